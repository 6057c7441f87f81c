//! How ranks begin and resume: the same state everywhere, or a refusal.

use std::sync::Arc;

use ddprun::engine::{Engine, TrainState};
use ddprun::internals::checkpoint::{self, Snapshot};
use ddprun::model::Models;
use ddprun::optim::ParameterState;
use ddprun::plan::EmaPlan;

use crate::IMAGE;
use crate::support::{self, engine, fingerprint, on_ranks, plan, step};

#[test]
fn a_checkpoint_in_the_middle_of_an_epoch_continues_bit_for_bit() {
    let mut plan = plan("resnet8", &IMAGE, 2);
    plan.ema = Some(EmaPlan { decay: 0.99, power: None, use_buffers: false });
    let folder = tempfile::tempdir().unwrap();
    let undisturbed = on_ranks(&plan, |collective| {
        let rank = collective.rank();
        let mut engine = engine(&plan, collective.clone());
        for done in 0..8 {
            if done == 4 && rank.is_first() {
                let snapshot = Snapshot {
                    plan: &plan,
                    params: engine.params(),
                    optimizer_state: engine.optimizer_state(),
                    state: engine.state(),
                };
                checkpoint::save(folder.path(), &snapshot).unwrap();
            }
            step(&mut engine, &plan, rank).unwrap();
        }
        engine.broadcast_buffers().unwrap();
        (fingerprint(&engine), engine.state().clone())
    });
    let resumed = on_ranks(&plan, |collective| {
        let rank = collective.rank();
        let (model, params) = Models::default().instantiate(&plan.model, 999).unwrap();
        let restored = checkpoint::restore_newest(folder.path(), &plan, &params).unwrap().unwrap();
        let state = Some((restored.state, restored.optimizer_state));
        let mut engine = Engine::new(
            Arc::new(plan.clone()),
            support::components(&plan, (model, params)),
            collective,
            state,
        )
        .unwrap();
        assert_eq!(engine.state().step, 4);
        for _ in 4..8 {
            step(&mut engine, &plan, rank).unwrap();
        }
        engine.broadcast_buffers().unwrap();
        (fingerprint(&engine), engine.state().clone())
    });
    assert_eq!(resumed, undisturbed);
}

/// What each of two ranks says that start from a state after step 4, which rank 1 has changed
/// before.
fn start_otherwise(
    change: impl Fn(&mut TrainState, &mut Vec<ParameterState>) + Sync,
) -> Vec<String> {
    let plan = plan("mlp", &[10], 2);
    let saved = on_ranks(&plan, |collective| {
        let rank = collective.rank();
        let mut engine = engine(&plan, collective);
        (0..4).for_each(|_| {
            step(&mut engine, &plan, rank).unwrap();
        });
        (engine.state().clone(), engine.optimizer_state().to_vec())
    });
    on_ranks(&plan, |collective| {
        let (mut state, mut optimizer_state) = saved[0].clone();
        if !collective.rank().is_first() {
            change(&mut state, &mut optimizer_state);
        }
        let (model, params) = Models::default().instantiate(&plan.model, plan.seed).unwrap();
        let restored = Some((state, optimizer_state));
        match Engine::new(
            Arc::new(plan.clone()),
            support::components(&plan, (model, params)),
            collective,
            restored,
        ) {
            Ok(engine) => format!("starts after step {}", engine.state().step),
            Err(error) => error.to_string(),
        }
    })
}

#[test]
fn ranks_that_restored_different_states_are_told_apart_before_they_train() {
    let all = |words: &str| vec![words.to_owned(); 2];
    assert_eq!(start_otherwise(|_, _| ()), all("starts after step 4"));
    let other_step = start_otherwise(|state, _| state.step = 2);
    assert_eq!(other_step, all("rank 1 starts after step 2, but rank 0 after step 4"));
    let other_momentum = start_otherwise(|_, of| of[1].tensors[0].values[3] += 1.0);
    assert!(
        other_momentum.iter().all(|error| error.contains("the restored optimizer state of rank 1")),
        "{other_momentum:?}"
    );
    let other_progress = start_otherwise(|state, _| state.updates -= 1);
    assert!(
        other_progress.iter().all(|error| error.contains("counters and metrics of rank 1 differ")),
        "{other_progress:?}"
    );
}

#[test]
fn ranks_with_different_models_are_refused_with_the_first_difference() {
    let plan = plan("mlp", &[10], 2);
    let errors = on_ranks(&plan, |collective| {
        let mut mine = plan.clone();
        if collective.rank().0 == 1 {
            mine.model.kind.set("hidden", [32, 17]);
        }
        let (model, params) = Models::default().instantiate(&mine.model, 0).unwrap();
        match Engine::new(
            Arc::new(mine.clone()),
            support::components(&mine, (model, params)),
            collective,
            None,
        ) {
            Ok(_) => panic!("different models trained together"),
            Err(error) => error.to_string(),
        }
    });
    for error in errors {
        assert!(error.contains("rank 1 built another model than rank 0"), "{error}");
        assert!(error.contains("[17, 32]") && error.contains("[16, 32]"), "{error}");
    }
}
