//! Groups of real processes that are killed, stopped, left and interrupted, by what it happens to.
//!
//! The binary of these tests is also the program of the ranks (`as_worker`) and of the parent
//! (`parent::as_parent`).
#![expect(
    clippy::unwrap_used,
    clippy::exit,
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::panic,
    reason = "this binary is also the processes that are tested"
)]

mod foreign;
mod parent;
mod rank;
mod restart;
mod stall;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ddprun::internals::collective;
use ddprun::internals::launch::{
    self, Blame, Console, Ended, Failure, LauncherEvent, Link, Membership, Phase, PreparedRun,
    Program, Start, Stop, rank_env,
};
use ddprun::plan::{Modality, Plan, RunFolders, SourcePlan, SplitPlan};
use ddprun::units::Rank;
use ddprun::user_error::ExitCode;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use test_support::processes::is_alive;

const SCENARIO: &str = "TEST_SCENARIO";
const FOLDER: &str = "TEST_FOLDER";
/// Longest wait for what must happen.
const TIMEOUT: Duration = Duration::from_secs(30);

/// One rank; does nothing in the process of the tests.
#[test]
fn as_worker() {
    let Ok(scenario) = std::env::var(SCENARIO) else { return };
    let role = rank_env::from_environment().unwrap();
    if role == rank_env::Role::Parent {
        return;
    }
    let folder = std::env::var_os(FOLDER);
    let make = || -> Result<_, String> {
        if scenario == "refuse" {
            return Err("`lr` must be positive".to_owned());
        }
        let folder = PathBuf::from(folder.unwrap());
        Ok(PreparedRun { plan: plan(3, 0, TIMEOUT), folders: folders(&folder), resume: false })
    };
    let membership = match launch::join(&role, make) {
        Ok(membership) => membership,
        Err(error) => {
            println!("JOIN: {error}");
            std::process::exit(5);
        }
    };
    let code = train(&scenario, membership);
    std::process::exit(code);
}

/// Steps with a collective and a vote each, as a training loop has them.
fn train(scenario: &str, membership: Membership) -> i32 {
    let Membership { rank_plan, shm, link, .. } = membership;
    let (rank, distributed) = (rank_plan.rank, &rank_plan.plan.distributed);
    let world = distributed.world_size;
    let (shm, mapping) = (shm.unwrap(), distributed.backend.mapping.unwrap());
    let group = collective::open_shm(&shm, mapping, rank, world, distributed.timeout).unwrap();
    link.on_give_up({
        let group = group.clone();
        move || group.give_up()
    });
    link.on_rank_lost({
        let group = group.clone();
        move |why| group.abort(why)
    });
    let last = if scenario == "work" || scenario == "foreign_stop" { u64::MAX } else { 20 };
    for step in 1..=last {
        link.progress(step, Phase::Forward);
        if scenario == "die_together" && step == 3 && rank != Rank(2) && rank_plan.restarts == 0 {
            misbehave("die", 0, false, &link);
        }
        if scenario == "die_first" && rank == Rank(0) && step == 3 {
            misbehave("die", 0, false, &link);
        }
        if rank == Rank(1) && step == 3 {
            misbehave(scenario, rank_plan.restarts, rank_plan.resume, &link);
        }
        link.progress(step, Phase::Reducing);
        let mine = [link.stop_requested().map_or(0, |stop| stop as u8)];
        let votes = match group.all_gather(&mine) {
            Ok(votes) => votes,
            Err(error) => {
                let mut report = link.describe(&error, ExitCode::Peer, Blame::Peer);
                report.suspects = error.missing().iter().map(|missing| missing.rank).collect();
                println!("ERROR {rank}: {error}");
                link.report(&report).unwrap();
                return 5;
            }
        };
        let strongest = votes.into_iter().flatten().max().unwrap();
        if strongest > 0 {
            println!("STOP {rank} {step} {strongest}");
            link.finish();
            return if strongest == Stop::Preempt as u8 { 75 } else { 130 };
        }
    }
    link.progress(last, Phase::Finishing);
    println!("DONE {rank} of {world}");
    link.finish();
    0
}

fn misbehave(scenario: &str, restarts: u32, resume: bool, link: &Link) {
    let me = rustix::process::getpid();
    match scenario {
        "die" => kill_process(me, Signal::KILL).unwrap(),
        "freeze" => {
            kill_process(me, Signal::STOP).unwrap();
            // Another thread may take the signal, and this one would go on for a moment.
            park_for_ever(link, Phase::LoadingData);
        }
        "hang" => park_for_ever(link, Phase::LoadingData),
        "never_enter" => park_for_ever(link, Phase::Reducing),
        "hang_once" if restarts == 0 => park_for_ever(link, Phase::Backward),
        "leave" => std::process::exit(0),
        "panic" => panic!("index out of range"),
        "flaky" if restarts < 2 => std::process::exit(6),
        "flaky" => assert!(resume),
        "fail" => {
            eprintln!("about to fail");
            let mut report = link.describe_message(
                "`a.png` is truncated".to_owned(),
                ExitCode::Data,
                Blame::Own,
            );
            report.causes = vec!["unexpected end of file".to_owned()];
            link.report(&report).unwrap();
            std::process::exit(3);
        }
        _ => {}
    }
}

fn park_for_ever(link: &Link, phase: Phase) {
    link.progress(3, phase);
    loop {
        std::thread::park();
    }
}

fn plan(world: u32, max_restarts: u32, timeout: Duration) -> Plan {
    let mapping = (64 << 10) + world * (1 << 20);
    serde_json::from_value(json!({
        "name": "test", "seed": 1,
        "model": {
            "kind": { "name": "mlp", "options": { "hidden": [] } }, "outputs": 2, "input": [4],
            "pretrained": null, "except_head": false, "n_parameters": 10, "n_tensors": 2, "n_buffer_elements": 0
        },
        "data": {
            "source": SourcePlan::new("image_folder", Modality::Images), "n_train": 1, "n_val": 1,
            "classes": ["a", "b"], "split": SplitPlan::NONE, "sampler": "shards", "shuffle": true,
            "drop_last": true, "aug_repeats": 1, "num_workers": 0, "prefetch_factor": 2,
            "on_bad_sample": "error", "max_bad_fraction": 0.1, "train_transforms": [],
            "val_transforms": []
        },
        "loss": { "kind": { "name": "cross_entropy" }, "targets": "classes" },
        "batch": { "size": 1, "accumulation": 1, "global": world, "shards": world },
        "length": { "steps_per_epoch": 1, "total_steps": 1, "time": null },
        "precision": "fp32", "scaler": null, "clip": { "norm": null, "value": null },
        "convolutions": "fast",
        "on_non_finite": "stop",
        "optimizer": {
            "rule": { "name": "sgd" }, "state": [], "momentum": null,
            "lr": 0.1, "base_lr": 0.1, "scaling": "none", "base_batch_size": 1, "weight_decay": 0.0,
            "no_decay_on_1d": false
        },
        "schedule": {
            "rule": { "name": "constant" }, "warmup_steps": 0, "warmup_start_factor": 1.0, "interval": 1,
            "intervals": 1, "better": "min"
        },
        "distributed": {
            "world_size": world, "devices": vec!["cpu"; world as usize], "threads_per_rank": 1,
            "backend": { "shm": { "mapping": mapping } }, "bucket_cap": 1, "first_bucket_cap": 1,
            "overlap": true, "find_unused_parameters": false, "timeout": timeout
        },
        "validate_every": "never", "val_batch_size": 1,
        "checkpoint": {
            "dir": "c", "every": "never", "keep_last": 1, "keep_best": 1, "monitor": "val/loss", "mode": "min"
        },
        "early_stopping": null, "max_restarts": max_restarts,
        "logging": { "dir": "l", "every": "never", "sinks": [] }, "expect": {}
    }))
    .unwrap()
}

fn folders(folder: &Path) -> RunFolders {
    RunFolders { id: "r1".to_owned(), logs: folder.to_owned(), checkpoints: folder.to_owned() }
}

fn start(scenario: &str) -> Start {
    let args = ["--exact", "as_worker", "--nocapture"].map(Into::into).to_vec();
    let env = vec![(SCENARIO.into(), scenario.into()), ("RUST_BACKTRACE".into(), "0".into())];
    let program = Program { path: std::env::current_exe().unwrap(), args, env };
    Start { resume: false, program, console: Console::Terminal, smaller: vec![], waker: None }
}

/// Runs a scenario in this process, and checks that no process is left.
fn run(
    scenario: &str,
    plan: &Plan,
    folder: &Path,
) -> (Result<Ended, Box<Failure>>, Vec<LauncherEvent>) {
    let mut notes = Vec::new();
    let result =
        launch::run(plan, &folders(folder), &start(scenario), &mut |note| notes.push(note));
    for note in &notes {
        if let LauncherEvent::Started { pid, .. } = note {
            assert!(!is_alive(*pid), "process {pid} is left");
        }
    }
    (result, notes)
}

fn fails(scenario: &str, timeout: Duration) -> (Failure, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let (result, _) = run(scenario, &plan(3, 0, timeout), folder.path());
    let failure = *result.unwrap_err();
    let written = std::fs::read(folder.path().join("failure.json")).unwrap();
    assert_eq!(serde_json::from_slice::<Failure>(&written).unwrap(), failure);
    (failure, folder)
}

fn signal_to(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

/// Polls until there is an answer.
fn until<T>(mut ask: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(began.elapsed() < TIMEOUT, "nothing happened in {TIMEOUT:?}");
        std::thread::yield_now();
    }
}
