//! Ranks that run out of memory: named, or given smaller passes.

use std::fmt::Write;
use std::fs;
use std::process::Command;

use rustix::process::{Signal, kill_process};

use crate::harness::experiments::BASE;
use crate::harness::faults::ControlGroup;
use crate::harness::lab::{BINARY, Lab};
use crate::harness::running::{Ended, pid_of, spawn};
use crate::skipped::skipped;

/// A step of 512 rows; each of a few activations of a pass of 256 is 64 MiB, and everything else is
/// small.
const WIDE: &str = r#"
[experiment]
name = "small"
[model]
name = "mlp"
hidden = [65536]
[data]
name = "csv"
train_file = "rows.csv"
val_file = "rows.csv"
target = "y"
num_workers = 0
[loss]
name = "mse"
[train]
steps = 2
batch_size = 256
global_batch_size = 512
[optimizer]
lr = 1e-3
[distributed]
devices = 2
threads_per_rank = 1
[validation]
every = "never"
"#;

/// KiB that a rank may have: its stack of 512 MiB, and too little for a pass of 256 rows.
const LIMIT: u32 = (512 + 170) << 10;

/// Bytes that all processes may have together: enough for two passes of 128 rows, too few for two
/// of 256.
const TOGETHER: u64 = 330 << 20;

fn lab() -> Lab {
    let lab = Lab::with(WIDE);
    let mut rows = "x,y\n".to_owned();
    for row in 0..512 {
        let x = f64::from(row) / 512.0;
        let _ = writeln!(rows, "{x},{}", x * x);
    }
    lab.write("rows.csv", rows);
    lab
}

/// The small experiment with a GPU that has no memory left when `point` is reached: the error is
/// made up, the way it takes is that of the driver's.
fn run_out(point: &str, changes: &[&str]) -> (Lab, Ended) {
    let lab = Lab::with(BASE);
    let ended = lab.run_with(point, &[&["small.toml"], changes].concat());
    (lab, ended)
}

#[test]
fn a_gpu_without_memory_is_named_and_the_run_ends_with_8() {
    let (lab, ended) = run_out("memory=oom@1,3", &[]);
    ended.has_code(8);
    ended.says(&["rank 1", "CUDA_ERROR_OUT_OF_MEMORY", "step 3"]);
    assert!(lab.processes().is_empty());
}

#[test]
fn a_gpu_without_memory_gets_smaller_passes_on_all_ranks_by_the_parents_word() {
    let shrinks = "fault.on_oom=shrink_batch";
    let (_, ended) = run_out("memory=oom@1,3", &[shrinks]);
    ended.has_code(0);
    ended.says(&["with micro-batches of 2 samples", "completed after step 12"]);
    // As long as it does not fit, passes become smaller; one sample is the end.
    let (_, ended) = run_out("memory=oom@*,*,*", &[shrinks]);
    ended.has_code(8);
    ended.says(&["with micro-batches of 2 samples", "with micro-batches of 1 sample"]);
}

#[test]
fn no_stack_frames_reach_the_user_unless_asked_for() {
    let run = |ours: &str| {
        let lab = Lab::with(BASE);
        let mut command = lab.ddprun(&["small.toml"]);
        command.env("DDPRUN_FP", "memory=oom@1,3");
        command.env("RUST_BACKTRACE", "1").env("RUST_LIB_BACKTRACE", ours);
        if ours.is_empty() {
            command.env_remove("RUST_LIB_BACKTRACE");
        }
        let ended = spawn(command).wait();
        ended.has_code(8);
        let logs = lab.run_folder().join("rank-1.log");
        (ended.stderr.clone(), fs::read_to_string(logs).unwrap())
    };
    let frame = "candle_core::error";
    let (said, log) = run("");
    assert!(!said.contains(frame) && !log.contains(frame), "{said}\n{log}");
    assert!(run("1").0.contains(frame));
}

/// Runs the shell's words.
fn shell(lab: &Lab, script: &str) -> Ended {
    let mut command: Command = lab.command("sh", &["-c", script]);
    command.env("RUST_BACKTRACE", "0");
    spawn(command).wait()
}

fn run(changes: &str) -> (Lab, Ended) {
    let lab = lab();
    let script = format!("ulimit -d {LIMIT} && exec {BINARY} small.toml {changes}");
    let ended = shell(&lab, &script);
    (lab, ended)
}

#[test]
fn a_rank_that_the_kernel_kills_for_memory_is_named_and_comes_back_with_smaller_passes() {
    let files = ["memory.limit_in_bytes", "memory.max"];
    for (changes, code) in [("", 8), ("fault.on_oom=shrink_batch", 0)] {
        let Some(group) = ControlGroup::new("memory", files, TOGETHER) else {
            skipped("no control group can be made");
            return;
        };
        let lab = lab();
        let ended = shell(&lab, &group.script(&format!("{BINARY} small.toml {changes}")));
        ended.has_code(code);
        ended.says(&[" ran out of memory"]);
        if code == 0 {
            ended.says(&["with micro-batches of 128 samples", "completed after step 2"]);
            lab.is_clean();
        } else {
            ended.says(&["the kernel killed it, because memory ran out"]);
            assert!(lab.processes().is_empty());
        }
    }
}

/// What the kernel adds to this process's share of memory when it chooses whom to kill.
fn oom_score(process: &str) -> i32 {
    let score = fs::read_to_string(format!("/proc/{process}/oom_score_adj")).unwrap();
    score.trim().parse().unwrap()
}

#[test]
fn a_rank_that_is_killed_by_hand_did_not_run_out_of_memory_because_a_process_elsewhere_did() {
    let files = ["memory.limit_in_bytes", "memory.max"];
    let Some(group) = ControlGroup::new("memory", files, 16 << 20) else {
        skipped("no control group can be made");
        return;
    };
    let lab = Lab::with(BASE);
    let mut running =
        lab.start(&["small.toml", "train.epochs=100000", "fault.on_oom=shrink_batch"]);
    lab.wait_for_step(&mut running, 3);
    let scores = running.ranks().into_iter().map(|rank| oom_score(&rank.to_string()));
    assert!(scores.min().unwrap() > oom_score("self"), "the parent is killed before its ranks");
    let greedy = shell(&lab, &group.script("tail /dev/zero"));
    greedy.has_code(-libc::SIGKILL);
    kill_process(pid_of(running.ranks()[1]), Signal::KILL).unwrap();
    let ended = running.wait();
    ended.has_code(5);
    ended.says(&["rank 1 was killed by SIGKILL"]);
    assert!(!ended.stderr.contains("ran out of memory"), "{}", ended.stderr);
    lab.is_clean();
}

#[test]
fn a_rank_that_is_denied_memory_is_named_and_the_run_ends_with_8() {
    let (lab, ended) = run("");
    ended.has_code(8);
    ended.says(&[
        " ran out of memory\n",
        "which the system denied",
        "`fault.on_oom = \"shrink_batch\"`",
    ]);
    assert!(lab.processes().is_empty());
}

#[test]
fn passes_become_smaller_until_they_fit_and_steps_stay_the_same() {
    let (lab, ended) = run("fault.on_oom=shrink_batch");
    ended.has_code(0);
    ended.says(&[
        "with micro-batches of 128 samples",
        " ran out of memory",
        "completed after step 2",
    ]);
    let losses = |lab: &Lab| -> Vec<f64> {
        let events = lab.events();
        let steps = events.iter().filter(|event| event["event"] == "epoch_done");
        steps.map(|event| event["train_loss"].as_f64().unwrap()).collect()
    };
    let free = Lab::with(WIDE);
    free.write("rows.csv", std::fs::read(lab.path("rows.csv")).unwrap());
    free.run_to(0, &["small.toml"]);
    let (shrunk, whole) = (losses(&lab), losses(&free));
    assert_eq!((shrunk.len(), whole.len()), (2, 2));
    for (shrunk, whole) in shrunk.iter().zip(&whole) {
        assert!((shrunk / whole - 1.0).abs() < 1e-4, "{shrunk} and {whole}");
    }
    lab.is_clean();
}
