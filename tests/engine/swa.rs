//! Stochastic weight averaging: PyTorch's numbers, the same bits at any world size, and resumes.

use std::cell::Cell;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use ddprun::config::kind::{Entry, Options};
use ddprun::data::Batch;
use ddprun::data::sampler::{EpochOrder, MicroBatch, evaluation_chunks};
use ddprun::engine::{Engine, Error, Split, Stop, SwaState};
use ddprun::internals::checkpoint::{self, Snapshot};
use ddprun::kinds::Kinds;
use ddprun::loss::{self, CrossEntropy};
use ddprun::model::Models;
use ddprun::nn::state_dict::{Strict, load_state_dict};
use ddprun::optim::{self, ExponentialLr, Sgd};
use ddprun::plan::{
    AnnealStrategy, ComponentFacts, EarlyStoppingPlan, EmaPlan, Flow, Interval, LengthPlan, Mode,
    ModelPlan, Plan, SchedulePlan, SwaPlan, SwaRate,
};
use ddprun::units::{AccumulationSteps, BatchSize, GlobalBatchSize, Rank, Shards};
use serde_json::{Value, json};

use crate::golden::{fill, filled, near, near_summary, number};
use crate::support::{self, N_VAL, batch, engine, fingerprint, group, on_ranks, plan, step};
use crate::{IMAGE, train};

const EVERY_EPOCH: SwaPlan = SwaPlan { start: 4, every: Interval::Epochs(1), rate: None };

/// A graph of a convolution, its batch norm, and a linear layer, as in `golden/swa.py`.
fn golden_plan(rate: SwaRate) -> Plan {
    let kinds = Kinds::default();
    let entry = |options: Value| Entry {
        name: options["name"].as_str().unwrap().to_owned(),
        key: None,
        options: options
            .as_object()
            .unwrap()
            .iter()
            .filter(|(key, _)| *key != "name")
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect(),
    };
    let layers = [
        json!({ "name": "conv2d", "out_channels": 4, "kernel_size": 3, "padding": 1, "bias": false }),
        json!({ "name": "batch_norm" }),
        json!({ "name": "relu" }),
        json!({ "name": "global_avg_pool" }),
        json!({ "name": "linear" }),
    ]
    .map(entry);
    let layers = kinds.layers(&layers, Flow::Image([3, 6, 6]), 3).unwrap();
    let graph = Models::default().with_options("graph", &Options::new());
    Plan {
        model: ModelPlan { layers, ..ModelPlan::new(graph, &[3, 6, 6], 3) },
        loss: loss::plan(&CrossEntropy::default()),
        batch: ddprun::plan::BatchPlan {
            size: BatchSize::new(4).unwrap(),
            accumulation: AccumulationSteps::new(1).unwrap(),
            global: GlobalBatchSize::new(4).unwrap(),
            shards: Shards::new(1).unwrap(),
        },
        length: LengthPlan { steps_per_epoch: 4, total_steps: 16, time: None },
        clip: ddprun::plan::ClipPlan { norm: None, value: None, noise: None },
        optimizer: optim::plan(&Sgd { momentum: 0.9, ..Sgd::default() }, 0.1),
        schedule: SchedulePlan {
            interval: 4,
            ..optim::schedule(&ExponentialLr { gamma: 0.5 }, 16)
        },
        swa: Some(SwaPlan { rate: Some(rate), ..EVERY_EPOCH }),
        data: ddprun::plan::DataPlan { n_val: 4, ..plan("mlp", &[10], 1).data },
        ..plan("mlp", &[10], 1)
    }
}

fn golden_batch(step: u64) -> Batch {
    let values = fill(&format!("step{step}.x"), 4 * 108).into_iter().map(|v| v as f32);
    let labels = fill(&format!("step{step}.y"), 4);
    let labels = labels.into_iter().map(|v| (1.5 * (v + 1.0)).floor() as u32);
    Batch {
        inputs: Tensor::from_iter(values, &Device::Cpu).unwrap().reshape((4, 3, 6, 6)).unwrap(),
        targets: Tensor::from_iter(labels, &Device::Cpu).unwrap(),
        samples: vec![0, 1, 2, 3],
        segments: None,
        unreadable: 0,
    }
}

/// An engine of the golden model, and its passes.
fn golden_engine(plan: &Plan) -> (Engine, Vec<MicroBatch>) {
    let components = support::components(plan, filled(&plan.model));
    let collective = group(plan).remove(0);
    let engine = Engine::new(Arc::new(plan.clone()), components, collective, None).unwrap();
    let samples = vec![0, 1, 2, 3];
    (
        engine,
        vec![MicroBatch { shard: 0, index_in_step: 0, samples, partners: vec![], copies: vec![] }],
    )
}

/// The averages, and the loss in their place, beside the golden ones.
#[track_caller]
fn check_averages(engine: &mut Engine, plan: &Plan, (key, golden): (&str, &Value)) {
    let params = engine.params();
    let names = params.parameters().iter().map(|p| (p.name(), p.shape()));
    let names = names.chain(params.moving_buffers().map(|b| (b.name(), b.shape())));
    for ((name, shape), state) in names.zip(engine.optimizer_state()) {
        let average = Tensor::from_slice(&state.average, shape, &Device::Cpu).unwrap();
        near_summary(&format!("{key} {name}"), &average, &golden["averaged"][name]);
    }
    let world = plan.world_size();
    let chunks: Vec<_> = evaluation_chunks(4, plan.val_batch_size, world, Rank(0)).collect();
    let seen = engine.evaluate(Split::Val, &chunks, &mut || Ok(golden_batch(99))).unwrap();
    near("loss of the average", seen.metrics["val/loss"], number(golden, "eval_loss"), 1e-5);
}

#[test]
fn moving_averages_with_and_without_buffers_are_timms() {
    let golden: Value = serde_json::from_str(include_str!("../golden/swa.json")).unwrap();
    for (key, use_buffers) in [("ema_without_buffers", false), ("ema_with_buffers", true)] {
        let rate = SwaRate { lr: 0.1, anneal_epochs: 1, anneal_strategy: AnnealStrategy::Cos };
        let mut plan = golden_plan(rate);
        plan.ema = Some(EmaPlan { decay: 0.9, power: None, use_buffers });
        plan.swa = None;
        plan.schedule = optim::schedule(&ExponentialLr { gamma: 1.0 }, 16);
        let (mut engine, passes) = golden_engine(&plan);
        for step in 0..8 {
            engine.step(&passes, &mut || Ok(golden_batch(step)), &|| None).unwrap();
        }
        check_averages(&mut engine, &plan, (key, &golden[key]));
    }
}

#[test]
fn averages_rates_and_statistics_are_pytorchs() {
    let golden: Value = serde_json::from_str(include_str!("../golden/swa.json")).unwrap();
    for (key, anneal_strategy, anneal_epochs) in
        [("cos_2", AnnealStrategy::Cos, 2), ("linear_5", AnnealStrategy::Linear, 5)]
    {
        let golden = &golden[key];
        let plan = golden_plan(SwaRate { lr: 0.02, anneal_epochs, anneal_strategy });
        let (mut engine, passes) = golden_engine(&plan);
        for step in 0..16 {
            let mut next = || Ok(golden_batch(step));
            let report = engine.step(&passes, &mut next, &|| None).unwrap();
            let at = |key: &str| golden[key][step as usize].as_f64().unwrap();
            near("learning rate", report.lr, at("lrs"), 1e-12);
            near("loss", report.loss, at("losses"), 1e-5);
        }
        assert!(engine.has_open_average());
        let mut steps = 16..;
        let mut all = (0..4).map(|_| passes.clone());
        engine
            .update_bn(&mut all, &mut || Ok(golden_batch(steps.next().unwrap())), &|| None)
            .unwrap();
        assert_eq!(engine.state().swa, Some(SwaState { averaged: 3, is_complete: true }));
        check_averages(&mut engine, &plan, (key, golden));
    }
}

/// Three epochs of six steps, of which the weights of the last two are averaged.
fn averaging(world: u32, change: impl Fn(&mut Plan)) -> Plan {
    let mut plan = plan("resnet8", &IMAGE, world);
    change(&mut plan);
    plan.swa = Some(SwaPlan { start: 3, every: Interval::Steps(2), rate: None });
    plan
}

/// Gives the average its statistics over the epoch `epoch`, unless `wishes` asks to stop.
fn update_bn(
    engine: &mut Engine,
    plan: &Plan,
    rank: Rank,
    epoch: u64,
    wishes: &dyn Fn() -> Option<Stop>,
) -> Result<(), Error> {
    let world = plan.distributed.world_size;
    let order = EpochOrder::new(&plan.data, &plan.batch, world, plan.seed, epoch);
    let steps: Vec<_> = (0..order.steps()).map(|step| order.passes(step, rank)).collect();
    let mut batches = steps.concat().into_iter().filter(|pass| !pass.samples.is_empty());
    let mut next = || Ok(batch(plan, &batches.next().unwrap().samples));
    engine.update_bn(&mut steps.into_iter(), &mut next, wishes)
}

fn complete(engine: &mut Engine, plan: &Plan, rank: Rank, epoch: u64) {
    update_bn(engine, plan, rank, epoch, &|| None).unwrap();
}

fn val_loss(engine: &mut Engine, plan: &Plan, rank: Rank) -> f64 {
    let world = plan.distributed.world_size;
    let chunks: Vec<_> = evaluation_chunks(N_VAL, plan.val_batch_size, world, rank).collect();
    let mut next = chunks.iter();
    let mut batches = || Ok(batch(plan, &next.next().unwrap().samples));
    engine.evaluate(Split::Val, &chunks, &mut batches).unwrap().metrics["val/loss"]
}

/// Losses before and after the average is complete, and all values.
fn run(plan: &Plan) -> (f64, f64, String) {
    let mut found = on_ranks(plan, |collective| {
        let rank = collective.rank();
        let mut engine = engine(plan, collective);
        for _ in 0..8 {
            step(&mut engine, plan, rank).unwrap();
        }
        let before = val_loss(&mut engine, plan, rank);
        engine.compare_everything().unwrap();
        complete(&mut engine, plan, rank, 2);
        let after = val_loss(&mut engine, plan, rank);
        (before, after, fingerprint(&engine))
    });
    assert!(found.iter().all(|of_rank| *of_rank == found[0]), "{found:?}");
    found.remove(0)
}

#[test]
fn the_average_and_its_statistics_have_the_same_bits_at_any_world_size() {
    type Change = fn(&mut Plan);
    let changes: [Change; 4] = [
        |_| (),
        |plan| {
            plan.data.drop_last = false;
            plan.data.n_train = 49;
            plan.length.steps_per_epoch = 4;
        },
        |plan| plan.distributed.sync_batchnorm = true,
        |plan| {
            plan.distributed.sync_batchnorm = true;
            plan.data.drop_last = false;
            plan.data.n_train = 51;
            plan.length.steps_per_epoch = 4;
            plan.batch.size = BatchSize::new(2).unwrap();
            let passes = 2 * plan.batch.accumulation.get();
            plan.batch.accumulation = AccumulationSteps::new(passes).unwrap();
        },
    ];
    for change in changes {
        let alone = run(&averaging(1, change));
        assert_ne!(alone.0, alone.1, "the average is evaluated when it is complete");
        for world in [2, 4] {
            assert_eq!(run(&averaging(world, change)), alone, "world size {world}");
        }
    }
}

#[test]
fn weights_are_evaluated_and_trained_as_without_an_average_until_it_is_complete() {
    let plan = averaging(2, |_| ());
    let without = Plan { swa: None, ..plan.clone() };
    let losses = |text: String| text[64..].to_owned();
    assert_eq!(losses(train(&plan)), losses(train(&without)));
}

#[test]
fn a_resumed_average_is_the_undisturbed_one_and_is_exported_when_it_is_complete() {
    let plan = averaging(1, |_| ());
    let undisturbed = run(&plan);
    let folder = tempfile::tempdir().unwrap();
    let resumed = || {
        let (model, params) = Models::default().instantiate(&plan.model, 999).unwrap();
        let restored = checkpoint::restore_newest(folder.path(), &plan, &params).unwrap().unwrap();
        let restored = Some((restored.state, restored.optimizer_state));
        let components = support::components(&plan, (model, params));
        let collective = group(&plan).remove(0);
        Engine::new(Arc::new(plan.clone()), components, collective, restored).unwrap()
    };
    let save = |engine: &Engine| {
        let (params, optimizer_state, state) =
            (engine.params(), engine.optimizer_state(), engine.state());
        checkpoint::save(folder.path(), &Snapshot { plan: &plan, params, optimizer_state, state })
            .unwrap();
        checkpoint::averaged_model(&checkpoint::newest(folder.path()).unwrap()).unwrap()
    };
    let mut first = engine(&plan, group(&plan).remove(0));
    for _ in 0..5 {
        step(&mut first, &plan, Rank(0)).unwrap();
    }
    save(&first);
    let mut second = resumed();
    for _ in 5..8 {
        step(&mut second, &plan, Rank(0)).unwrap();
    }
    assert_eq!(val_loss(&mut second, &plan, Rank(0)), undisturbed.0);
    assert_eq!(exported_loss(&plan, &save(&second)), undisturbed.0, "the weights are exported");
    complete(&mut second, &plan, Rank(0), 2);
    let average = save(&second);
    let mut third = resumed();
    assert_eq!(fingerprint(&third), undisturbed.2);
    assert_eq!(val_loss(&mut third, &plan, Rank(0)), undisturbed.1);
    assert_eq!(exported_loss(&plan, &average), undisturbed.1, "the average is exported");
    // More steps than there were to be: the weights go on, and the average is open again.
    step(&mut third, &plan, Rank(0)).unwrap();
    assert!(third.has_open_average());
}

/// `val/loss` of a state dict.
fn exported_loss(plan: &Plan, bytes: &[u8]) -> f64 {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("exported.safetensors");
    ddprun::internals::files::write_atomic(&file, bytes).unwrap();
    let plan = Plan { swa: None, ..plan.clone() };
    let (model, params) = Models::default().instantiate(&plan.model, 1).unwrap();
    load_state_dict(&params, &file, Strict::All).unwrap();
    let components = support::components(&plan, (model, params));
    let collective = group(&plan).remove(0);
    let mut engine = Engine::new(Arc::new(plan.clone()), components, collective, None).unwrap();
    val_loss(&mut engine, &plan, Rank(0))
}

#[test]
fn early_stopping_watches_the_weights_and_not_their_average() {
    let (monitor, mode) = ("val/loss".to_owned(), Mode::Min);
    let early = EarlyStoppingPlan { monitor, mode, patience: 5, min_delta: 0.0 };
    let plan =
        Plan { swa: Some(EVERY_EPOCH), early_stopping: Some(early), ..plan("mlp", &[10], 1) };
    let mut engine = engine(&plan, group(&plan).remove(0));
    assert!(engine.evaluated([("val/loss".to_owned(), 1.0)].into()));
    engine.state_mut().swa = Some(SwaState { averaged: 1, is_complete: true });
    assert!(engine.evaluated([("val/loss".to_owned(), 0.5)].into()));
    let state = engine.state();
    assert_eq!((state.early_stopping.best, state.early_stopping.bad), (Some(1.0), 0));
    assert_eq!(state.best.as_ref().map(|best| best.value), Some(0.5));
}

#[test]
fn statistics_that_are_broken_off_leave_the_average_open_and_all_values_as_they_were() {
    for change in [|_: &mut Plan| (), |plan: &mut Plan| plan.distributed.sync_batchnorm = true] {
        let plan = averaging(2, change);
        let (_, _, undisturbed) = run(&plan);
        let found = on_ranks(&plan, |collective| {
            let rank = collective.rank();
            let mut engine = engine(&plan, collective);
            for _ in 0..8 {
                step(&mut engine, &plan, rank).unwrap();
            }
            // An evaluation, as statistics, begins with the buffers of rank 0 on all ranks.
            val_loss(&mut engine, &plan, rank);
            let before = fingerprint(&engine);
            let steps = Cell::new(0);
            let wishes = || {
                steps.set(steps.get() + 1);
                let is_asked = rank.index() == 1 && steps.get() == 3;
                is_asked.then_some(Stop::Interrupt)
            };
            let error = update_bn(&mut engine, &plan, rank, 2, &wishes).unwrap_err();
            assert!(matches!(error, Error::BrokenOff(Stop::Interrupt)), "{error}");
            assert_eq!(steps.get(), 3);
            assert!(engine.has_open_average());
            assert_eq!(fingerprint(&engine), before);
            complete(&mut engine, &plan, rank, 2);
            fingerprint(&engine)
        });
        assert!(found.iter().all(|values| *values == undisturbed));
    }
}
