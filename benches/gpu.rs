//! Training steps on a GPU, on samples in memory: images, tokens or steps in a second, memory, and
//! what half precision gains; one line for each model, batch size and precision. `just gpu` runs it
//! beside `benches/peers/bench_gpu.py`, which prints PyTorch's lines.
//!
//! `--works resnet50:128,gpt2` and `--precisions bf16,fp16` measure a part of it. `--first` prints
//! the time from the start of the program to the end of one step of ResNet-50, `--no-graph` launches
//! one kernel after another, `--cards` only names the GPUs, and fails without one, and `--tiny`
//! trains small models on the CPU, to see that all of it works.
#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a benchmark may stop, and prints its table"
)]

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use candle_core::{Device, Result, Tensor};
use ddprun::config;
use ddprun::data::Batch;
use ddprun::data::sampler::EpochOrder;
use ddprun::engine::Engine;
use ddprun::kinds::Kinds;
use ddprun::ops::{open_gpu, take_gpu_peak, trim_gpu_memory, visible_gpus};
use ddprun::plan::{DataFacts, Facts, GpuFacts, Modality, Plan, SourcePlan};
use ddprun::rng::{Key, Purpose};
use ddprun::units::{Bytes, Rank};

/// As the command `ddprun`.
#[global_allocator]
static ALLOCATOR: ddprun::memory::Allocator = ddprun::memory::Allocator;

/// Steps before the clock runs: algorithms are chosen, a graph is recorded and compared.
const WARM: usize = 8;
/// Batches that take turns.
const BATCHES: usize = 4;

/// A model, its sample, and the batches that it is measured at.
struct Work {
    /// Name in `--works`.
    key: &'static str,
    name: &'static str,
    sample: &'static [usize],
    /// Classes, or words.
    outputs: usize,
    batches: &'static [usize],
    settings: &'static [&'static str],
    /// Unit of the throughput, and how many of them a sample has.
    unit: (&'static str, usize),
}

const ADAMW: [&str; 3] =
    ["optimizer.name=adamw", "optimizer.lr=1e-3", "optimizer.weight_decay=0.1"];
const GPT_124M: [&str; 6] = [
    "model.name=gpt",
    "model.n_layers=12",
    "model.n_heads=12",
    "model.d_model=768",
    "model.dropout=0",
    "model.bias=false",
];
const GPT_TINY: [&str; 6] = [
    "model.name=gpt",
    "model.n_layers=2",
    "model.n_heads=2",
    "model.d_model=16",
    "model.dropout=0",
    "model.bias=false",
];

const WORKS: [Work; 4] = [
    Work {
        key: "resnet50",
        name: "ResNet-50 224x224",
        sample: &[3, 224, 224],
        outputs: 1000,
        batches: &[64, 128, 256],
        settings: &["model.name=resnet50", "model.stem=imagenet"],
        unit: ("images", 1),
    },
    Work {
        key: "resnet18",
        name: "ResNet-18 32x32",
        sample: &[3, 32, 32],
        outputs: 10,
        batches: &[64, 256],
        settings: &["model.name=resnet18", "model.stem=cifar"],
        unit: ("images", 1),
    },
    Work {
        key: "gpt2",
        name: "GPT-2 124M",
        sample: &[1024],
        outputs: 50_257,
        batches: &[4, 8],
        settings: &GPT_124M,
        unit: ("tokens", 1024),
    },
    Work {
        key: "mlp",
        name: "MLP 784-2048-2048-10",
        sample: &[1, 28, 28],
        outputs: 10,
        batches: &[128],
        settings: &["model.name=mlp", "model.hidden=[2048,2048]"],
        unit: ("samples", 1),
    },
];

/// Models of the same kinds, small enough for a CPU.
const TINY: [Work; 3] = [
    Work {
        key: "resnet50",
        name: "ResNet-8 8x8",
        sample: &[3, 8, 8],
        outputs: 10,
        batches: &[4],
        settings: &["model.name=resnet8"],
        unit: ("images", 1),
    },
    Work {
        key: "gpt2",
        name: "GPT tiny",
        sample: &[16],
        outputs: 65,
        batches: &[2],
        settings: &GPT_TINY,
        unit: ("tokens", 16),
    },
    Work {
        key: "mlp",
        name: "MLP tiny",
        sample: &[1, 28, 28],
        outputs: 10,
        batches: &[4],
        settings: &["model.name=mlp", "model.hidden=[16]"],
        unit: ("samples", 1),
    },
];

/// The numbers of convolutions and matrix products. "tf32" is PyTorch's default: convolutions may
/// round to it, products do not.
const PRECISIONS: [(&str, &[&str]); 4] = [
    ("fp32", &["train.precision=fp32", "train.convolutions=direct"]),
    ("tf32", &["train.precision=fp32"]),
    ("bf16", &["train.precision=bf16"]),
    ("fp16", &["train.precision=fp16"]),
];

const EXPERIMENT: &str = r#"
schema = 1
[experiment]
name = "gpu"
[data]
name = "mnist"
dir = "memory"
num_workers = 0
[train]
steps = 1000000
on_non_finite = "skip"
[optimizer]
name = "sgd"
lr = 0.01
momentum = 0.9
[scheduler]
name = "constant"
[validation]
every = "never"
[checkpoint]
every = "never"
"#;

/// Result of a measurement.
struct Measurement {
    seconds: f64,
    peak: Option<Bytes>,
}

impl Work {
    fn is_text(&self) -> bool {
        self.sample.len() == 1
    }

    fn plan(&self, batch: usize, changes: &[&str], gpus: Option<Vec<GpuFacts>>) -> Plan {
        let kinds = Kinds::default();
        let optimizer: &[&str] = if self.is_text() { &ADAMW } else { &[] };
        let all = self.settings.iter().chain(optimizer).chain(changes);
        let mut changes: Vec<String> = all.map(|&change| change.into()).collect();
        changes.push(format!("train.batch_size={batch}"));
        changes.push("distributed.devices=1".into());
        let path = Path::new("gpu.toml");
        let loaded = config::load_text(path, EXPERIMENT, &changes, &kinds.vocabulary())
            .unwrap_or_else(|problems| panic!("{}", problems.page(false, 100)));
        Plan::new(&loaded, &self.facts(gpus), &kinds)
            .unwrap_or_else(|problems| panic!("{}", problems.page(false, 100)))
    }

    fn facts(&self, gpus: Option<Vec<GpuFacts>>) -> Facts {
        let outputs = self.outputs;
        let source = if self.is_text() {
            SourcePlan::new("tokens", Modality::Text)
        } else {
            SourcePlan::new("mnist", Modality::Images)
        };
        let data = DataFacts {
            source,
            n_train: 1024,
            n_val: 1,
            classes: (0..outputs).map(|class| class.to_string()).collect(),
            sample: Some(self.sample.to_vec()),
            target: if self.is_text() { self.sample.to_vec() } else { vec![] },
            ..DataFacts::default()
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Facts { cores, gpus, ..Facts::of(data) }
    }

    /// Noise or tokens, and their answers.
    fn batch(&self, n: usize, index: usize) -> Result<Batch> {
        let key = Key::new(0, Purpose::Generate, 0, index as u64);
        let shape = [&[n], self.sample].concat();
        let elements: usize = shape.iter().product();
        let below = |most: usize, i: usize| (key.uniform(i as u64) * most as f64) as u32;
        let classes = |count| (0..count).map(|i| below(self.outputs, i)).collect::<Vec<_>>();
        let samples = (0..n as u32).collect();
        if self.is_text() {
            let inputs = Tensor::from_vec(classes(elements), shape.clone(), &Device::Cpu)?;
            let targets = Tensor::from_vec(classes(elements), shape, &Device::Cpu)?;
            return Ok(Batch { inputs, targets, samples, segments: None, unreadable: 0 });
        }
        let noise = (0..elements).map(|i| (3.46 * (key.uniform(i as u64) - 0.5)) as f32);
        let inputs = Tensor::from_vec(noise.collect::<Vec<_>>(), shape, &Device::Cpu)?;
        let targets = Tensor::from_vec(classes(n), n, &Device::Cpu)?;
        Ok(Batch { inputs, targets, samples, segments: None, unreadable: 0 })
    }

    /// Trains for `steps` steps after `warm` others.
    fn measure(
        &self,
        plan: Plan,
        device: &Device,
        (warm, steps): (usize, usize),
    ) -> Result<Measurement> {
        // Memory that the row before left does not count for this one.
        trim_gpu_memory(device)?;
        let plan = Arc::new(plan);
        let built = Kinds::default().components(&plan, device);
        let components = built.map_err(candle_core::Error::msg)?;
        let world = plan.distributed.world_size;
        let engine = Engine::new(plan.clone(), components, ddprun::collective::alone(), None);
        let mut engine = engine.map_err(candle_core::Error::msg)?;
        let order = EpochOrder::new(&plan.data, &plan.batch, world, plan.seed, 0);
        let size = plan.batch.size.count();
        let batches: Vec<Batch> =
            (0..BATCHES).map(|i| self.batch(size, i)).collect::<Result<_>>()?;
        // As runs have them: while the GPU computes, a thread of its own sends the next batch.
        let next = ddprun::internals::prefetch::batches_of(&engine, batches.into_iter().cycle());
        let mut next = next.map_err(candle_core::Error::msg)?;
        let mut step = |at: usize| {
            let passes = order.passes(at % order.steps(), Rank(0));
            let stepped = engine.step(&passes, &mut next, &|| None);
            if let Some(notice) = engine.take_notice() {
                println!("TABLE | ddprun {}: {notice} | | |", self.name);
            }
            stepped.map(drop).map_err(candle_core::Error::msg)
        };
        (0..warm).try_for_each(&mut step)?;
        device.synchronize()?;
        take_gpu_peak(device)?;
        let began = Instant::now();
        (warm..warm + steps).try_for_each(&mut step)?;
        device.synchronize()?;
        let seconds = began.elapsed().as_secs_f64() / steps as f64;
        Ok(Measurement { seconds, peak: take_gpu_peak(device)? })
    }

    fn rows(&self, device: &Device, name: &str, gpus: Option<&GpuFacts>, flags: &Flags) {
        let steps = if flags.tiny { (1, 2) } else { (WARM, 30) };
        for &batch in self.batches {
            if !flags.wants(self.key, batch) {
                continue;
            }
            let mut exact = None;
            for (precision, changes) in PRECISIONS {
                if !flags.precisions.as_ref().is_none_or(|named| named.contains(precision)) {
                    continue;
                }
                let graph: &[&str] = if flags.no_graph { &["train.cuda_graph=false"] } else { &[] };
                let plan =
                    self.plan(batch, &[changes, graph].concat(), gpus.map(|gpu| vec![gpu.clone()]));
                let line = match self.measure(plan, device, steps) {
                    Err(error) => format!("failed: {error}"),
                    Ok(found) => {
                        let line = self.line(batch, &found, exact.as_ref());
                        exact = exact.or_else(|| (precision == "fp32").then_some(found));
                        line
                    }
                };
                let how = if flags.no_graph { " without graph" } else { "" };
                let Self { name: model, .. } = self;
                println!(
                    "SPEED | {model}, batch {batch}, {precision} | ddprun{how} | {line} | {name} |"
                );
            }
        }
    }

    /// "812.3 images/s, 12.7 steps/s, 5.2 GiB, 1.43x fp32's speed, 71 % of its memory"
    fn line(&self, batch: usize, found: &Measurement, exact: Option<&Measurement>) -> String {
        let (unit, each) = self.unit;
        let (steps, memory) = (1.0 / found.seconds, found.peak.map(|peak| peak.0 as f64));
        let mut line = format!("{:.1} {unit}/s, {steps:.2} steps/s", (batch * each) as f64 * steps);
        if let Some(memory) = memory {
            line += &format!(", {:.2} GiB", memory / (1u64 << 30) as f64);
        }
        if let Some(exact) = exact {
            line += &format!(", {:.2}x fp32's speed", exact.seconds / found.seconds);
            if let (Some(memory), Some(all)) = (memory, exact.peak) {
                line += &format!(", {:.0} % of its memory", 100.0 * memory / all.0 as f64);
            }
        }
        line
    }
}

/// Options of the command line.
struct Flags {
    tiny: bool,
    first: bool,
    no_graph: bool,
    /// `resnet50:128,gpt2`; all without it.
    works: Option<String>,
    /// `bf16,fp16`; all without it.
    precisions: Option<String>,
}

impl Flags {
    fn read() -> Self {
        let arguments: Vec<String> = std::env::args().collect();
        let place = |flag: &str| arguments.iter().position(|argument| argument == flag);
        let value = |flag: &str| arguments.get(place(flag)? + 1).cloned();
        let has = |flag: &str| place(flag).is_some();
        Self {
            tiny: has("--tiny"),
            first: has("--first"),
            no_graph: has("--no-graph"),
            works: value("--works"),
            precisions: value("--precisions"),
        }
    }

    /// True if a model is to be measured at this batch size. Small models have one each.
    fn wants(&self, key: &str, batch: usize) -> bool {
        let is_it = |word: &str| match word.split_once(':') {
            Some((name, size)) => name == key && (self.tiny || size == batch.to_string()),
            None => word == key,
        };
        self.works.as_ref().is_none_or(|words| words.split(',').any(is_it))
    }
}

/// Names the GPUs, or says why there is none.
fn cards() -> ExitCode {
    match visible_gpus() {
        Some(Ok(gpus)) if !gpus.is_empty() => {
            for (at, (name, memory)) in gpus.iter().enumerate() {
                println!("TABLE | GPU {at} | {name} | {memory} |");
            }
            ExitCode::SUCCESS
        }
        Some(Err(why)) => {
            println!("SKIPPED: no GPU can be used: {why}");
            ExitCode::FAILURE
        }
        _ => {
            println!("SKIPPED: CUDA shows no GPU");
            ExitCode::FAILURE
        }
    }
}

fn main() -> ExitCode {
    let began = Instant::now();
    if std::env::args().any(|argument| argument == "--cards") {
        return cards();
    }
    let flags = Flags::read();
    if flags.tiny {
        for work in &TINY {
            work.rows(&Device::Cpu, "the CPU", None, &flags);
        }
        return ExitCode::SUCCESS;
    }
    let gpus = visible_gpus().and_then(std::result::Result::ok).unwrap_or_default();
    let Some((name, memory)) = gpus.into_iter().next() else {
        println!("SKIPPED: no GPU");
        return ExitCode::SUCCESS;
    };
    let device = open_gpu(0).expect("a GPU");
    let facts = GpuFacts { name: name.clone(), memory };
    if flags.first {
        let work = &WORKS[0];
        let plan = work.plan(64, PRECISIONS[2].1, Some(vec![facts]));
        work.measure(plan, &device, (0, 1)).expect("a step");
        let seconds = began.elapsed().as_secs_f64();
        println!(
            "TABLE | ddprun: start to the end of the first step of {}, bf16 | {seconds:.2} s | {name} |",
            work.name
        );
        return ExitCode::SUCCESS;
    }
    for work in &WORKS {
        work.rows(&device, &name, Some(&facts), &flags);
    }
    ExitCode::SUCCESS
}
