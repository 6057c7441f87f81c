//! Time to save and load a ResNet-50 with SGD's momentum (205 MB), against a raw write of as many
//! bytes, and the time that training waits. One line of JSON for each, with the names of the
//! PyTorch script that does the same, so that they can be paired: `cargo bench -p ddprun-benches --bench checkpoint`.
//! Checkpoints go into `CHECKPOINT_BENCH_DIR`, or the build's folder.
#![expect(clippy::expect_used, clippy::print_stdout, reason = "a benchmark may stop, and speaks")]

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use ddprun::config;
use ddprun::config::kind::Choice;
use ddprun::config::schema::Data;
use ddprun::data::{self, SurveyRequest};
use ddprun::engine::TrainState;
use ddprun::event::Saved;
use ddprun::internals::checkpoint::{self, Destination, Importance, Snapshot, Writer};
use ddprun::kinds::Kinds;
use ddprun::nn::Param;
use ddprun::optim::ParameterState;
use ddprun::plan::{Facts, Plan, Targets};

/// As the command `ddprun`.
#[global_allocator]
static ALLOCATOR: ddprun::memory::Allocator = ddprun::memory::Allocator;

/// Measured repetitions; one more goes before.
const REPETITIONS: usize = 7;

/// The plan of a ResNet-50 with 1,000 classes.
fn plan(kinds: &Kinds) -> Plan {
    let changes = ["model.name=resnet50", "distributed.devices=1"].map(str::to_owned);
    let path = Path::new("experiments/quickstart.toml");
    let loaded = config::load(path, &changes, &kinds.vocabulary()).expect("an experiment");
    let Data { name, options, .. } = loaded.experiment.data.clone();
    let asked = SurveyRequest::new(loaded.name(), 0, Targets::Classes);
    let data = data::survey(&kinds.data, &Choice { name, options }, &asked).expect("data");
    let mut plan = Plan::new(&loaded, &Facts::of(data), kinds).expect("a plan");
    plan.model.outputs = 1000;
    plan
}

/// Seconds of `work`, once the disk is idle.
fn seconds(work: impl FnOnce()) -> f64 {
    rustix::fs::sync();
    let began = Instant::now();
    work();
    began.elapsed().as_secs_f64()
}

fn median(times: &[f64]) -> f64 {
    let mut times = times.to_vec();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn say(name: &str, bytes: usize, times: &[f64]) {
    let s = median(times);
    let (low, high) =
        times.iter().fold((f64::MAX, 0f64), |(low, high), &time| (low.min(time), high.max(time)));
    let reps: Vec<String> = times.iter().map(|time| format!("{time:.4}")).collect();
    println!(
        "{{\"bench\": \"ckpt\", \"name\": \"{name}\", \"bytes\": {bytes}, \"s\": {s:.4}, \"MBps\": {:.1}, \
         \"spread\": {:.3}, \"reps\": [{}]}}",
        bytes as f64 / 1e6 / s,
        (high - low) / s,
        reps.join(", ")
    );
}

fn raw_write(path: &Path, bytes: &[u8]) {
    let mut file = File::create(path).expect("a file");
    file.write_all(bytes).expect("room");
    file.sync_all().expect("a disk");
}

/// Saves as a run does, and waits until it is on disk.
fn background(writer: &Writer, snapshot: &Snapshot<'_>) -> Saved {
    writer.save(snapshot, Importance::Regular).expect("a disk");
    writer.finish().expect("a disk").remove(0)
}

fn main() {
    let folder = std::env::var_os("CHECKPOINT_BENCH_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")), PathBuf::from)
        .join("checkpoint-bench");
    fs::create_dir_all(&folder).expect("a folder");
    let kinds = Kinds::default();
    let plan = plan(&kinds);
    let (_, params) = kinds.models.instantiate(&plan.model, 0).expect("a model");
    let rule = &plan.optimizer;
    let zeros = |param: &Param| ParameterState::zeros(rule, 0, param.shape());
    let mut states: Vec<ParameterState> = params.parameters().iter().map(zeros).collect();
    let tensors = states.iter_mut().filter_map(|state| state.tensors.first_mut());
    tensors.for_each(|tensor| tensor.values.fill(0.1));
    let state = TrainState::new(&plan);
    let snapshot =
        Snapshot { plan: &plan, params: &params, optimizer_state: &states, state: &state };
    let destination =
        Destination { folder: folder.clone(), plan: plan.checkpoint.clone(), records: vec![] };
    let writer = Writer::start(destination, &snapshot).expect("a thread");
    let bytes = background(&writer, &snapshot).size.0 as usize;
    let blob: Vec<u8> = (0..bytes).map(|byte| (byte % 251) as u8).collect();

    let [mut raw, mut save, mut load, mut stall] = [const { Vec::new() }; 4];
    for repetition in 0..=REPETITIONS {
        let raw_time = seconds(|| raw_write(&folder.join("raw"), &blob));
        rustix::fs::sync();
        let saved = background(&writer, &snapshot);
        let load_time = seconds(|| {
            drop(checkpoint::restore_newest(&folder, &plan, &params).expect("a checkpoint"));
        });
        if repetition > 0 {
            raw.push(raw_time);
            save.push(saved.seconds);
            load.push(load_time);
            stall.push(saved.stall_seconds);
        }
    }
    say("raw write + fsync", bytes, &raw);
    say("safetensors save_file + fsync + rename", bytes, &save);
    say("safetensors load_file + copy into model+opt", bytes, &load);
    say("training waits for a save", bytes, &stall);
    let ratios: Vec<f64> = raw.iter().zip(&save).map(|(raw, save)| save / raw).collect();
    println!("{{\"bench\": \"ckpt_ratio\", \"save_to_raw\": {:.3}}}", median(&ratios));
    drop(writer);
    fs::remove_dir_all(&folder).expect("a folder");
}
