//! Averaged weights and running statistics, and what evaluations see of them.

use std::sync::Arc;

use candle_core::Tensor;

use ddprun::data::Batch;
use ddprun::data::sampler::evaluation_chunks;
use ddprun::engine::{Engine, Error, Split};
use ddprun::internals::checkpoint::{self, Snapshot};
use ddprun::loss::{self, CrossEntropy, Loss};
use ddprun::model::Models;
use ddprun::nn::state_dict::{Strict, load_state_dict};
use ddprun::plan::{EmaPlan, Plan, TestTimeAugmentation};
use ddprun::units::Rank;

use crate::sequences::forecast_plan;
use crate::support::{self, N_VAL, batch, engine, fingerprint, on_ranks, plan, step};
use crate::{IMAGE, train};

/// After three steps with a decay of 1/2, the average holds 1/8 of the first weights, and of each
/// later ones twice as much as of those before.
#[test]
fn an_average_follows_the_weights_and_is_what_is_evaluated() {
    let mut plan = plan("mlp", &[10], 2);
    plan.ema = Some(EmaPlan { decay: 0.5, power: None, use_buffers: false });
    on_ranks(&plan, |collective| {
        let rank = collective.rank();
        let mut engine = engine(&plan, collective);
        let bias = |engine: &Engine| -> Vec<f32> {
            engine.params().parameters()[1].var().unwrap().to_vec1().unwrap()
        };
        let mut expected = bias(&engine);
        for _ in 0..3 {
            step(&mut engine, &plan, rank).unwrap();
            let halves = expected.iter().zip(bias(&engine));
            expected = halves.map(|(average, value)| value - (value - average) * 0.5).collect();
        }
        assert_eq!(engine.optimizer_state()[1].average, expected);
        let before = fingerprint(&engine);
        let of_average = val_loss(&mut engine, &plan, rank);
        assert_eq!(fingerprint(&engine), before, "an evaluation changed something");
        for (param, state) in engine.params().parameters().iter().zip(engine.optimizer_state()) {
            let average = Tensor::new(state.average.as_slice(), &candle_core::Device::Cpu);
            let average = average.unwrap().reshape(param.shape()).unwrap();
            param.var().unwrap().set(&average).unwrap();
        }
        assert_eq!(val_loss(&mut engine, &plan, rank), of_average);
    });
}

#[test]
fn answers_to_an_image_and_its_mirror_image_are_averaged_where_that_is_asked_for() {
    let mut plan = plan("resnet8", &IMAGE, 1);
    plan.test_time_augmentation = Some(TestTimeAugmentation::Hflip);
    let (mut expected, mut n) = (0.0, 0.0);
    let mut engine = engine(&plan, support::group(&plan).remove(0));
    for chunk in evaluation_chunks(N_VAL, plan.val_batch_size, plan.world_size(), Rank(0)) {
        let Batch { inputs, targets, .. } = batch(&plan, &chunk.samples);
        let answer = engine.predict(&inputs, &[]).unwrap();
        let mirrored = engine.predict(&inputs.flip(&[3]).unwrap(), &[]).unwrap();
        let mean = ((answer + mirrored).unwrap() / 2.0).unwrap();
        let loss = CrossEntropy::default().measured(&mean, &targets).unwrap();
        expected += f64::from(loss.to_scalar::<f32>().unwrap()) * chunk.samples.len() as f64;
        n += chunk.samples.len() as f64;
    }
    let found = val_loss(&mut engine, &plan, Rank(0));
    assert!((found - expected / n).abs() < 1e-12, "{found} instead of {}", expected / n);
}

/// `val/loss` over all validation samples.
fn val_loss(engine: &mut Engine, plan: &Plan, rank: Rank) -> f64 {
    let world = plan.distributed.world_size;
    let chunks: Vec<_> = evaluation_chunks(N_VAL, plan.val_batch_size, world, rank).collect();
    let mut next = chunks.iter();
    let mut batches = || Ok(batch(plan, &next.next().unwrap().samples));
    engine.evaluate(Split::Val, &chunks, &mut batches).unwrap().metrics["val/loss"]
}

#[test]
fn averages_go_with_the_running_statistics_at_hand_or_with_averaged_ones() {
    let make = |world, use_buffers| {
        let mut plan = plan("resnet8", &IMAGE, world);
        plan.ema = Some(EmaPlan { decay: 0.5, power: None, use_buffers });
        plan
    };
    let alone = [false, true].map(|use_buffers| train(&make(1, use_buffers)));
    assert_ne!(alone[0], alone[1]);
    for world in [2, 4] {
        assert_eq!(train(&make(world, true)), alone[1], "world size {world}");
    }
    // The first running mean: 0, then as training left it after each of three steps, on rank 0.
    let (plan, folder) = (make(2, true), tempfile::tempdir().unwrap());
    let losses = on_ranks(&plan, |collective| {
        let rank = collective.rank();
        let mut engine = engine(&plan, collective);
        let mean = |engine: &Engine| -> Vec<f32> {
            let mut buffers = engine.params().buffers().iter();
            let first = buffers.find(|buffer| buffer.name().ends_with("running_mean")).unwrap();
            first.var().unwrap().to_vec1().unwrap()
        };
        let mut expected = mean(&engine);
        for _ in 0..3 {
            step(&mut engine, &plan, rank).unwrap();
            let both = expected.iter().zip(mean(&engine));
            expected = both.map(|(average, now)| now - (now - average) * 0.5).collect();
        }
        // Running statistics are rank 0's until they are needed, and so are their averages.
        engine.compare_everything().unwrap();
        let found = &engine.optimizer_state()[engine.params().parameters().len()].average;
        if rank.is_first() {
            assert_eq!(*found, expected);
            let (params, optimizer_state, state) =
                (engine.params(), engine.optimizer_state(), engine.state());
            let snapshot = Snapshot { plan: &plan, params, optimizer_state, state };
            checkpoint::save(folder.path(), &snapshot).unwrap();
        }
        val_loss(&mut engine, &plan, rank)
    });
    // What is restored, and what is exported, measures the same.
    let plan = make(1, true);
    let collective = || support::group(&plan).remove(0);
    let (model, params) = Models::default().instantiate(&plan.model, 1).unwrap();
    let restored = checkpoint::restore_newest(folder.path(), &plan, &params).unwrap().unwrap();
    let restored = Some((restored.state, restored.optimizer_state));
    let mut engine = Engine::new(
        Arc::new(plan.clone()),
        support::components(&plan, (model, params)),
        collective(),
        restored,
    )
    .unwrap();
    assert_eq!(losses, [val_loss(&mut engine, &plan, Rank(0)); 2]);
    let opened = checkpoint::newest(folder.path()).unwrap();
    let exported = folder.path().join("exported.safetensors");
    let bytes = checkpoint::averaged_model(&opened).unwrap();
    ddprun::internals::files::write_atomic(&exported, &bytes).unwrap();
    let plan = Plan { ema: None, ..plan.clone() };
    let (model, params) = Models::default().instantiate(&plan.model, 1).unwrap();
    load_state_dict(&params, &exported, Strict::All).unwrap();
    let mut engine = Engine::new(
        Arc::new(plan.clone()),
        support::components(&plan, (model, params)),
        collective(),
        None,
    )
    .unwrap();
    assert_eq!(losses, [val_loss(&mut engine, &plan, Rank(0)); 2]);
}

#[test]
fn label_smoothing_is_for_training_and_not_for_evaluations() {
    let losses = [0.0, 0.3].map(|label_smoothing| {
        let mut plan = plan("mlp", &[10], 1);
        plan.loss = loss::plan(&CrossEntropy { label_smoothing, ..CrossEntropy::default() });
        let mut engine = engine(&plan, support::group(&plan).remove(0));
        (val_loss(&mut engine, &plan, Rank(0)), step(&mut engine, &plan, Rank(0)).unwrap().loss)
    });
    assert_eq!(losses[0].0, losses[1].0);
    assert_ne!(losses[0].1, losses[1].1);
}

/// The published `TimeBridge` has a norm that it never uses.
#[test]
fn an_unused_norm_stays_as_it_is_or_is_named() {
    let mut plan = forecast_plan("timebridge", 2);
    plan.optimizer.weight_decay = 0.1;
    on_ranks(&plan, |collective| {
        let rank = collective.rank();
        let mut engine = engine(&plan, collective);
        for _ in 0..3 {
            step(&mut engine, &plan, rank).unwrap();
        }
        let named = |name: &str| {
            let params = engine.params().parameters();
            let param = params.iter().find(|param| param.name().ends_with(name)).unwrap();
            param.var().unwrap().to_vec1::<f32>().unwrap()
        };
        assert_eq!(named("2.norm0.weight"), [1.0; 8]);
        assert_ne!(named("2.norm1.weight"), [1.0; 8]);
    });
    plan.distributed.find_unused_parameters = false;
    on_ranks(&plan, |collective| {
        let rank = collective.rank();
        let error = step(&mut engine(&plan, collective), &plan, rank).unwrap_err();
        let Error::Unused { names, .. } = &error else { panic!("{error}") };
        let expected = ["weight", "bias"].map(|key| format!("encoder.attn_layers.2.norm0.{key}"));
        assert_eq!(*names, expected);
    });
}
