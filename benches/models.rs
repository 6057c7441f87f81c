//! Time of a training step of each registered model with one thread and with two, and the share of
//! the latter in which only one of them works.
//!
//! ```text
//! cargo bench -p ddprun-benches --bench models                        a row of a Markdown table for each model
//! cargo bench -p ddprun-benches --bench models -- gpt resnet18 --bf16
//! ```
//!
//! A step is the engine's: forward, loss, backward, update. Samples are in memory. Each number of
//! threads has a process of its own, in turn; the fastest of three runs counts. The share is 2 less
//! the processor time by the time. What is left to two threads is memory and clock rates that they
//! share, for which neither is idle.
#![expect(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::panic,
    reason = "a benchmark may stop, and prints"
)]

#[expect(dead_code, reason = "groups of ranks are for tests")]
#[path = "../tests/support/sequences.rs"]
mod sequences;
#[expect(dead_code, reason = "groups of ranks are for tests")]
#[path = "../tests/support/mod.rs"]
mod support;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use ddprun::config;
use ddprun::data::sampler::EpochOrder;
use ddprun::kinds::Kinds;
use ddprun::model::Models;
use ddprun::plan::{
    BatchPlan, Cameras, DataFacts, Facts, Modality, ModelPlan, Plan, Precision, SourcePlan,
};
use ddprun::units::{AccumulationSteps, BatchSize, GlobalBatchSize, Rank, Shards, WorldSize};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use support::{batch, choose, engine, plan};

/// As the command `ddprun`.
#[global_allocator]
static ALLOCATOR: ddprun::memory::Allocator = ddprun::memory::Allocator;

/// Stack for candle's recursion in `backward`.
const STACK_BYTES: usize = 512 << 20;
/// Runs with each number of threads.
const RUNS: usize = 3;
/// Seconds that a run measures for, and steps that it measures at least.
const SECONDS: f64 = 1.5;
const STEPS: usize = 5;

fn main() {
    // Cargo adds `--bench`.
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let is_half = words.iter().any(|word| word == "--bf16");
    let names: Vec<&str> =
        words.iter().map(String::as_str).filter(|word| !word.starts_with("--")).collect();
    if let ["one", name, threads] = names[..] {
        let [time, used] = measured(&planned(name, is_half), threads.parse().expect("a number"));
        return println!("{time} {used}");
    }
    println!("| model | 1 thread | 2 threads | one of two works alone |\n|---|---|---|---|");
    for name in
        Kinds::default().models.names().filter(|name| names.is_empty() || names.contains(name))
    {
        let runs = (0..RUNS).map(|_| ["1", "2"].map(|threads| run(name, threads, is_half)));
        let faster = |a: [f64; 2], b: [f64; 2]| if b[0] < a[0] { b } else { a };
        let best = runs.reduce(|a, b| [faster(a[0], b[0]), faster(a[1], b[1])]);
        let [[one, _], [two, used]] = best.expect("runs");
        let share = (100.0 * (2.0 - used / two)).clamp(0.0, 100.0);
        println!("| {name} | {one:.1} ms | {two:.1} ms | {share:.0} % |");
    }
}

/// [`measured`] by a process of its own.
fn run(name: &str, threads: &str, is_half: bool) -> [f64; 2] {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["one", name, threads]).args(is_half.then_some("--bf16"));
    let output = command.env("RAYON_NUM_THREADS", threads).output().expect("a process");
    let text = String::from_utf8_lossy(&output.stdout);
    let figures: Vec<f64> = text.split_whitespace().flat_map(str::parse).collect();
    figures.try_into().unwrap_or_else(|_| panic!("{name}: {output:?}"))
}

/// Milliseconds of a step, and of processor time in it: the means of the steps after two.
fn measured(plan: &Plan, threads: usize) -> [f64; 2] {
    let train = || {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).use_current_thread();
        let _pool = pool.build().expect("threads");
        steps(plan)
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
        thread.spawn_scoped(scope, train).expect("a thread").join().expect("the training ends")
    })
}

fn steps(plan: &Plan) -> [f64; 2] {
    let mut engine = engine(plan, support::group(plan).remove(0));
    let order = EpochOrder::new(&plan.data, &plan.batch, WorldSize::ONE, plan.seed, 0);
    let passes = order.passes(0, Rank(0));
    let batch = batch(plan, &passes[0].samples);
    let mut step = || engine.step(&passes, &mut || Ok(batch.clone()), &|| None).expect("a step");
    let _warm = [step(), step()];
    let (began, used) = (Instant::now(), processor_time());
    let mut n = 0;
    while n < STEPS || began.elapsed().as_secs_f64() < SECONDS {
        step();
        n += 1;
    }
    let both = [began.elapsed(), processor_time().saturating_sub(used)];
    both.map(|time| 1e3 * time.as_secs_f64() / n as f64)
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A plan of one rank for the registered model `name`, at a size of which a step takes about a
/// tenth of a second.
fn planned(name: &str, is_half: bool) -> Plan {
    let (mut plan, samples) = sized(name);
    plan.batch = BatchPlan {
        size: BatchSize::new(samples).unwrap(),
        accumulation: AccumulationSteps::new(1).unwrap(),
        global: GlobalBatchSize::new(samples).unwrap(),
        shards: Shards::new(1).unwrap(),
    };
    if is_half {
        plan.precision = Precision::Bf16;
    }
    plan
}

/// The model on samples of a usual size, and how many make a batch.
fn sized(name: &str) -> (Plan, u32) {
    match name {
        "gpt" => (text(sequences::gpt_plan(1), &json!({})), 16),
        "llama" => (text(sequences::llama_plan(1), &json!({ "n_kv_heads": 2, "d_ff": 512 })), 16),
        "dlinear" | "lstm" | "gru" | "itransformer" | "patchtst" | "timebridge" => {
            (forecast(name), 32)
        }
        "diffusion_policy" | "diffusion_policy_image" => (policy(name), 32),
        "nest" | "fastconformer" => (speech(name), 4),
        "graph" => (graph(), 32),
        "mlp" | "simple_cnn" | "airbench94" => (plan(name, &[3, 32, 32], 1), 64),
        _ if name.starts_with("resnet") && !name.contains('_') => (plan(name, &[3, 32, 32], 1), 32),
        _ => (plan(name, &[3, 64, 64], 1), 16),
    }
}

fn text(mut plan: Plan, options: &Value) -> Plan {
    (plan.model.input, plan.model.target, plan.model.outputs) = (vec![128], vec![128], 256);
    choose(&mut plan, &json!({ "d_model": 192, "n_heads": 6, "n_layers": 4 }));
    choose(&mut plan, options);
    plan
}

fn forecast(name: &str) -> Plan {
    let mut plan = sequences::forecast_plan(name, 1);
    (plan.model.input, plan.model.target) = (vec![96, 25], vec![96, 21]);
    plan.model.outputs = 21;
    let sizes = json!({
        "d_model": 128, "n_heads": 8, "d_ff": 256, "patch_len": 16, "stride": 8, "period": 24, "num_p": 4,
        "stable_len": 6, "hidden_size": 128
    });
    let options = Models::default().with_options(name, &serde_json::from_value(sizes).unwrap());
    plan.model.kind.options.extend(options.options);
    plan
}

fn policy(name: &str) -> Plan {
    let mut plan = match name {
        "diffusion_policy" => sequences::policy_plan(1),
        _ => sequences::seeing_policy_plan(1),
    };
    plan.model.input = vec![2, 10];
    (plan.model.target, plan.model.outputs) = (vec![16, 7], 7);
    let sizes =
        json!({ "down_dims": [64, 128, 256], "diffusion_step_embed_dim": 64, "n_groups": 8 });
    choose(&mut plan, &sizes);
    if name == "diffusion_policy_image" {
        let names = vec!["front".to_owned(), "wrist".to_owned()];
        let cameras = Cameras { names, shape: [3, 48, 48] };
        plan.model.input = vec![2, 10 + cameras.values()];
        plan.model.cameras = Some(cameras);
        choose(&mut plan, &json!({ "vision_backbone": "resnet18" }));
    }
    plan
}

fn speech(name: &str) -> Plan {
    let mut plan = sequences::speech_plan(name, 1);
    plan.model.input = vec![2, 401, 80];
    let sizes = json!({
        "d_model": 176, "n_heads": 4, "n_layers": 4, "subsampling_channels": 64, "kernel_size": 9,
        "codebook_size": 1024, "code_dim": 16
    });
    let options =
        Kinds::default().models.with_options(name, &serde_json::from_value(sizes).unwrap());
    plan.model.kind.options.extend(options.options);
    plan
}

/// ResNet-18, written down layer by layer.
fn graph() -> Plan {
    let (kinds, mut plan) = (Kinds::default(), plan("mlp", &[3, 32, 32], 1));
    let path = Path::new("experiments/graph_resnet18.toml");
    let loaded = config::load(path, &[], &kinds.vocabulary())
        .unwrap_or_else(|problems| panic!("{}", problems.page(false, 100)));
    let data = DataFacts {
        source: SourcePlan::new("mnist", Modality::Images),
        n_train: 96,
        n_val: 1,
        classes: plan.data.classes.clone(),
        sample: Some(plan.model.input.clone()),
        ..DataFacts::default()
    };
    let of_graph = Plan::new(&loaded, &Facts::of(data), &kinds)
        .unwrap_or_else(|problems| panic!("{}", problems.page(false, 100)));
    plan.model = ModelPlan { pretrained: None, ..of_graph.model };
    plan
}
