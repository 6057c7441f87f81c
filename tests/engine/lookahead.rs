//! Lookahead: slow weights, their bits at any world size, after a resume, and in evaluations.

use std::sync::Arc;

use ddprun::data::sampler::evaluation_chunks;
use ddprun::engine::{Engine, Split};
use ddprun::internals::checkpoint::{self, Snapshot};
use ddprun::model::Models;
use ddprun::nn::change_values;
use ddprun::plan::{LookaheadPlan, Plan};
use ddprun::units::{AccumulationSteps, BatchSize, Rank};

use crate::IMAGE;
use crate::support::{self, N_VAL, batch, engine, fingerprint, group, on_ranks, plan, step};

fn looking(world: u32, change: impl Fn(&mut Plan)) -> Plan {
    let mut plan = plan("resnet8", &IMAGE, world);
    plan.lookahead = Some(LookaheadPlan { k: 2, alpha: 0.25, power: Some(2.0) });
    change(&mut plan);
    plan
}

/// All values that the engine trains with, parameters and moving statistics.
fn values(engine: &Engine) -> Vec<Vec<f32>> {
    let params = engine.params();
    let vars = params.parameters().iter().map(|param| param.var().unwrap());
    let vars = vars.chain(params.moving_buffers().map(|buffer| buffer.var().unwrap()));
    vars.map(|var| var.flatten_all().unwrap().to_vec1().unwrap()).collect()
}

fn val_loss(engine: &mut Engine, plan: &Plan, rank: Rank) -> f64 {
    let world = plan.distributed.world_size;
    let chunks: Vec<_> = evaluation_chunks(N_VAL, plan.val_batch_size, world, rank).collect();
    let mut next = chunks.iter();
    let mut batches = || Ok(batch(plan, &next.next().unwrap().samples));
    engine.evaluate(Split::Val, &chunks, &mut batches).unwrap().metrics["val/loss"]
}

/// Beside an engine without it, whose values are moved by hand: 2 of 12 steps are a share of
/// 1 - 3/4 / 36 of the way, 4 of 12 one of 1 - 3/4 / 9.
#[test]
fn weights_and_statistics_come_back_to_slow_ones_that_go_a_share_of_the_way() {
    let plan = looking(1, |_| ());
    let plain = Plan { lookahead: None, ..plan.clone() };
    let mut ours = engine(&plan, group(&plan).remove(0));
    let mut by_hand = engine(&plain, group(&plain).remove(0));
    let mut slow = values(&by_hand);
    for done in 1..=5_u32 {
        step(&mut ours, &plan, Rank(0)).unwrap();
        step(&mut by_hand, &plain, Rank(0)).unwrap();
        if done % 2 == 0 {
            let share = 1.0 - 0.75 * (f64::from(done) / 12.0).powi(2);
            for (slow, fast) in slow.iter_mut().zip(values(&by_hand)) {
                for (slow, fast) in slow.iter_mut().zip(fast) {
                    // torch.lerp
                    *slow = fast - (fast - *slow) * (1.0 - share as f32);
                }
            }
            let params = by_hand.params();
            let vars = params.parameters().iter().map(|param| param.var().unwrap());
            let vars = vars.chain(params.moving_buffers().map(|buffer| buffer.var().unwrap()));
            for (var, slow) in vars.zip(&slow) {
                change_values(var, |values| values.copy_from_slice(slow)).unwrap();
            }
        }
        assert_eq!(values(&ours), values(&by_hand), "after step {done}");
    }
    let of_slow = val_loss(&mut ours, &plan, Rank(0));
    assert_ne!(of_slow, val_loss(&mut by_hand, &plain, Rank(0)), "step 5 is not looked at");
}

fn run(plan: &Plan) -> (f64, String) {
    let mut found = on_ranks(plan, |collective| {
        let rank = collective.rank();
        let mut engine = engine(plan, collective);
        for _ in 0..7 {
            step(&mut engine, plan, rank).unwrap();
        }
        let loss = val_loss(&mut engine, plan, rank);
        engine.broadcast_buffers().unwrap();
        (loss, fingerprint(&engine))
    });
    assert!(found.iter().all(|of_rank| *of_rank == found[0]), "{found:?}");
    found.remove(0)
}

#[test]
fn slow_weights_have_the_same_bits_at_any_world_size() {
    type Change = fn(&mut Plan);
    let changes: [Change; 3] = [
        |_| (),
        |plan| {
            plan.data.drop_last = false;
            plan.data.n_train = 49;
            plan.length.steps_per_epoch = 4;
        },
        |plan| {
            plan.batch.size = BatchSize::new(2).unwrap();
            let passes = 2 * plan.batch.accumulation.get();
            plan.batch.accumulation = AccumulationSteps::new(passes).unwrap();
        },
    ];
    for change in changes {
        let alone = run(&looking(1, change));
        for world in [2, 4] {
            assert_eq!(run(&looking(world, change)), alone, "world size {world}");
        }
    }
}

#[test]
fn a_resumed_run_has_the_slow_weights_of_the_undisturbed_one() {
    let plan = looking(1, |_| ());
    let undisturbed = run(&plan);
    let folder = tempfile::tempdir().unwrap();
    let mut first = engine(&plan, group(&plan).remove(0));
    for _ in 0..3 {
        step(&mut first, &plan, Rank(0)).unwrap();
    }
    let (params, optimizer_state, state) = (first.params(), first.optimizer_state(), first.state());
    checkpoint::save(folder.path(), &Snapshot { plan: &plan, params, optimizer_state, state })
        .unwrap();
    let (model, params) = Models::default().instantiate(&plan.model, 999).unwrap();
    let restored = checkpoint::restore_newest(folder.path(), &plan, &params).unwrap().unwrap();
    let restored = Some((restored.state, restored.optimizer_state));
    let components = support::components(&plan, (model, params));
    let collective = group(&plan).remove(0);
    let mut second = Engine::new(Arc::new(plan.clone()), components, collective, restored).unwrap();
    for _ in 3..7 {
        step(&mut second, &plan, Rank(0)).unwrap();
    }
    assert_eq!((val_loss(&mut second, &plan, Rank(0)), fingerprint(&second)), undisturbed);
}
