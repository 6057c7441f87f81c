//! Plans and ranks for tests of the engine: threads as ranks over a real shared mapping.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a helper may stop the test")]

use std::sync::Arc;
use std::time::Duration;

use candle_core::{Device, Tensor};
use ddprun::data::Batch;
use ddprun::data::sampler::EpochOrder;
use ddprun::engine::{Components, Engine, StepReport};
use ddprun::internals::collective::{self, Collective};
use ddprun::kinds::Kinds;
use ddprun::loss::{self, CrossEntropy};
use ddprun::model::Model;
use ddprun::nn::Params;
use ddprun::optim::{self, CosineAnnealingLr, Sgd};
use ddprun::plan::{
    BackendCapabilities, BackendPlan, BatchPlan, CheckpointPlan, ClipPlan, Convolutions, DataPlan,
    DistributedPlan, Interval, LengthPlan, LoggingPlan, Modality, Mode, ModelPlan, OnBadSample,
    OnNonFinite, Plan, Precision, Sampler, SchedulePlan, SourcePlan, SplitPlan, Targets,
};
use ddprun::rng::{Key, Purpose};
use ddprun::units::{
    AccumulationSteps, BatchSize, Bytes, GlobalBatchSize, Rank, Shards, WorldSize,
};
use serde_json::{Value, json};

/// Training samples of every test plan.
pub(crate) const N_TRAIN: usize = 96;
/// Validation samples: not a multiple of any world size.
pub(crate) const N_VAL: usize = 13;
pub(crate) const CLASSES: usize = 4;

/// A plan for `model` on generated samples: 4 passes of 4 samples per step, cut into 4 shards.
pub(crate) fn plan(model: &str, input: &[usize], world: u32) -> Plan {
    let world_size = WorldSize::new(world).unwrap();
    Plan {
        name: "test".into(),
        seed: 7,
        model: model_plan(model, input),
        data: data_plan(),
        loss: loss::plan(&CrossEntropy { label_smoothing: 0.1, ..CrossEntropy::default() }),
        batch: BatchPlan {
            size: BatchSize::new(4).unwrap(),
            accumulation: AccumulationSteps::new(4 / world.min(4)).unwrap(),
            global: GlobalBatchSize::new(16).unwrap(),
            shards: Shards::new(4).unwrap(),
        },
        length: LengthPlan { steps_per_epoch: 6, total_steps: 12, time: None },
        precision: Precision::Fp32,
        bf16_instructions: None,
        activation_checkpointing: false,
        cuda_graph: None,
        scaler: None,
        clip: ClipPlan { norm: Some(1.0), value: None, noise: None },
        convolutions: Convolutions::Fast,
        on_non_finite: OnNonFinite::Stop,
        optimizer: optim::plan(
            &Sgd { momentum: 0.9, nesterov: true, weight_decay: 1e-3, ..Sgd::default() },
            0.05,
        ),
        ema: None,
        swa: None,
        lookahead: None,
        schedule: SchedulePlan {
            warmup_steps: 2,
            warmup_start_factor: 0.1,
            ..optim::schedule(&CosineAnnealingLr::default(), 10)
        },
        distributed: distributed_plan(world_size),
        validate_every: Interval::Epochs(1),
        val_batch_size: BatchSize::new(4).unwrap(),
        metrics: vec![],
        sample_every: 1,
        test_time_augmentation: None,
        evaluated_samples: None,
        checkpoint: CheckpointPlan {
            dir: "checkpoints".into(),
            every: Interval::Epochs(1),
            keep_last: 1,
            keep_best: 1,
            monitor: "val/loss".into(),
            mode: Mode::Min,
        },
        early_stopping: None,
        max_restarts: 0,
        stall_timeout: ddprun::plan::Patience::Auto,
        compare_weights: Interval::Never,
        on_oom: ddprun::plan::OnOom::Stop,
        divergence_threshold: None,
        logging: LoggingPlan { dir: "logs".into(), every: Interval::Steps(1), sinks: vec![] },
        mirror: None,
        hooks: ddprun::config::schema::Hooks::default(),
        expect: std::collections::BTreeMap::new(),
    }
}

fn model_plan(name: &str, input: &[usize]) -> ModelPlan {
    let small = json!({ "stem": "cifar", "hidden": [32, 16], "dropout": 0.25 });
    let kind = Kinds::default().models.with_options(name, &serde_json::from_value(small).unwrap());
    ModelPlan::new(kind, input, CLASSES)
}

/// Gives the model of `plan` these options.
pub(crate) fn choose(plan: &mut Plan, options: &Value) {
    for (key, value) in options.as_object().unwrap() {
        plan.model.kind.set(key, value);
    }
}

fn data_plan() -> DataPlan {
    DataPlan {
        source: SourcePlan::new("mnist", Modality::Images),
        n_train: N_TRAIN,
        n_val: N_VAL,
        n_test: 0,
        notes: Vec::new(),
        classes: (0..CLASSES).map(|class| class.to_string()).collect(),
        target_columns: vec![],
        sampler: Sampler::Shards,
        token_bytes: Vec::new(),
        split: SplitPlan::NONE,
        aug_repeats: 1,
        class_weights: vec![],
        subset_of: None,
        shuffle: true,
        drop_last: true,
        num_workers: 0,
        prefetch_factor: 2,
        on_bad_sample: OnBadSample::Error,
        max_bad_fraction: 0.1,
        train_transforms: vec![],
        val_transforms: vec![],
        mixup: None,
        pad_to_longest: false,
    }
}

fn distributed_plan(world_size: WorldSize) -> DistributedPlan {
    // Enough for four ranks of a ResNet-18; only what is touched takes memory.
    let shm = BackendPlan::sharing("shm", Some(Bytes(512 << 20)));
    DistributedPlan {
        nodes: 1,
        world_size,
        smaller: vec![],
        devices: vec!["cpu".into(); world_size.count()],
        threads_per_rank: 1,
        backend: if world_size == WorldSize::ONE { BackendPlan::alone() } else { shm },
        capabilities: BackendCapabilities::default(),
        machine_mapping: None,
        bucket_cap: Bytes(2048),
        first_bucket_cap: Bytes(512),
        overlap: true,
        comm_hook: ddprun::plan::CommHook::None,
        all_reduce: ddprun::plan::AllReduce::Tree,
        zero_stage: ddprun::plan::ZeroStage::None,
        largest_part: 0,
        nccl_if_apart: false,
        find_unused_parameters: false,
        sync_batchnorm: false,
        timeout: Duration::from_mins(1),
    }
}

/// One joined group of `world` ranks.
pub(crate) fn group(plan: &Plan) -> Vec<Arc<dyn Collective>> {
    let distributed = &plan.distributed;
    let world = distributed.world_size;
    let Some(mapping) = distributed.backend.mapping else { return vec![collective::alone()] };
    let fd = rustix::fs::memfd_create("ddprun-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, mapping.0).unwrap();
    let timeout = distributed.timeout;
    let open = |rank| collective::open_shm(&fd, mapping, Rank(rank), world, timeout).unwrap();
    (0..world.get()).map(open).collect()
}

/// Runs `rank` on every rank of a new group, each on its own thread, and returns the results in
/// order.
pub(crate) fn on_ranks<T: Send>(
    plan: &Plan,
    rank: impl Fn(Arc<dyn Collective>) -> T + Send + Sync,
) -> Vec<T> {
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            group(plan).into_iter().map(|collective| scope.spawn(|| rank(collective))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank panicked")).collect()
    })
}

/// A fresh engine of one rank.
pub(crate) fn engine(plan: &Plan, collective: Arc<dyn Collective>) -> Engine {
    let components = Kinds::default().components(plan, &Device::Cpu).unwrap();
    Engine::new(Arc::new(plan.clone()), components, collective, None).unwrap()
}

/// Samples whose values and labels follow from their indices.
pub(crate) fn batch(plan: &Plan, samples: &[u32]) -> Batch {
    let shape = &plan.model.input;
    let n: usize = shape.iter().product();
    let mut values = Vec::with_capacity(samples.len() * n);
    for &sample in samples {
        let mut stream = Key::new(1, Purpose::Generate, 0, u64::from(sample)).stream();
        let class = f64::from(sample % CLASSES as u32);
        if let [2, rows, bands] = shape[..] {
            // Speech: clean and noisy features, each with a last row that begins with the length.
            for _ in 0..2 {
                values.extend((0..(rows - 1) * bands).map(|_| stream.normal() as f32));
                values.push((rows - 1 - sample as usize % 9) as f32);
                values.resize(values.len() + bands - 1, 0.0);
            }
        } else if ["gpt", "llama"].contains(&plan.model.name()) {
            values.extend((0..n).map(|_| stream.below(CLASSES as u64) as f32));
        } else {
            values.extend((0..n).map(|_| (0.4 * class + stream.normal()) as f32));
        }
    }
    let dims: Vec<usize> = [&[samples.len()], shape.as_slice()].concat();
    Batch {
        inputs: Tensor::from_vec(values, dims, &Device::Cpu).unwrap(),
        targets: match plan.loss.targets {
            Targets::MultiLabel => several_classes(samples),
            _ => targets(&plan.model.target, samples),
        },
        samples: samples.to_vec(),
        segments: None,
        unreadable: 0,
    }
}

/// Labels, or arrays of this shape.
fn targets(shape: &[usize], samples: &[u32]) -> Tensor {
    if shape.len() < 2 {
        let answers: usize = shape.iter().product();
        let labels = samples
            .iter()
            .flat_map(|&sample| (0..answers as u32).map(move |i| (sample + i) % CLASSES as u32));
        let shape = [&[samples.len()], shape].concat();
        return Tensor::from_vec(labels.collect::<Vec<u32>>(), shape, &Device::Cpu).unwrap();
    }
    let value = |&sample: &u32| {
        let mut stream = Key::new(2, Purpose::Generate, 0, u64::from(sample)).stream();
        (0..shape.iter().product()).map(move |_| stream.normal() as f32).collect::<Vec<_>>()
    };
    let values: Vec<f32> = samples.iter().flat_map(value).collect();
    Tensor::from_vec(values, [&[samples.len()], shape].concat(), &Device::Cpu).unwrap()
}

/// A 1 for each class that a sample has: one, two or none.
fn several_classes(samples: &[u32]) -> Tensor {
    let has = |sample: u32, class: usize| {
        let class = class as u32;
        f32::from(sample % 5 == class || sample % 3 == class)
    };
    let rows = samples.iter().flat_map(|&sample| (0..CLASSES).map(move |class| has(sample, class)));
    Tensor::from_vec(rows.collect::<Vec<f32>>(), (samples.len(), CLASSES), &Device::Cpu).unwrap()
}

/// The next step of `engine`.
pub(crate) fn step(
    engine: &mut Engine,
    plan: &Plan,
    rank: Rank,
) -> Result<StepReport, ddprun::engine::Error> {
    let done = engine.state().step;
    let epoch = done / plan.length.steps_per_epoch;
    let order =
        EpochOrder::new(&plan.data, &plan.batch, plan.distributed.world_size, plan.seed, epoch);
    let passes = order.passes((done % plan.length.steps_per_epoch) as usize, rank);
    let mut batches = passes.clone().into_iter().filter(|pass| !pass.samples.is_empty());
    engine.step(&passes, &mut || Ok(batch(plan, &batches.next().unwrap().samples)), &|| None)
}

/// BLAKE3 of all parameters, buffers, optimizer state and averages.
pub(crate) fn fingerprint(engine: &Engine) -> String {
    let mut hasher = blake3::Hasher::new();
    let vars = engine.params().parameters().iter().map(|param| param.var().unwrap().clone());
    let buffers = engine.params().buffers().iter().map(|buffer| buffer.var().unwrap().clone());
    for var in vars.chain(buffers) {
        let values: Vec<f32> = var.flatten_all().unwrap().to_vec1().unwrap();
        hasher.update(bytemuck::cast_slice(&values));
    }
    for state in engine.optimizer_state() {
        for tensor in &state.tensors {
            hasher.update(bytemuck::cast_slice(&tensor.values));
        }
        hasher.update(bytemuck::cast_slice(&state.average));
    }
    hasher.finalize().to_hex().to_string()
}

/// What an engine of `plan` trains, with a model that a test has built.
pub(crate) fn components(plan: &Plan, (model, params): (Box<dyn Model>, Params)) -> Components {
    let kinds = Kinds::default();
    let loss = kinds.losses.build(&plan.loss.kind).unwrap();
    let optimizer = kinds.optimizers.build(&plan.optimizer.rule).unwrap();
    let metrics = kinds.metrics.of(&plan.measurable(), &plan.metrics);
    let scheduler = kinds.schedulers.build(&plan.schedule.rule).unwrap();
    Components { model, params, loss, metrics, optimizer, scheduler }
}
