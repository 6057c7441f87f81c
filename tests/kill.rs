//! Groups of real processes that are killed, stopped, left and interrupted.
//!
//! The binary of these tests is also the program of the ranks (`as_worker`) and of the parent (`as_parent`).
#![expect(
    clippy::unwrap_used,
    clippy::exit,
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::panic,
    reason = "this binary is also the processes that are tested"
)]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use ddprun::collective;
use ddprun::launch::{
    self, Blame, Console, Ended, Exit, Failure, Link, Membership, Note, Phase, Program, Start,
    Stop, rank_env,
};
use ddprun::plan::{Patience, Plan, RunFolders};
use ddprun::units::Rank;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

const SCENARIO: &str = "TEST_SCENARIO";
const FOLDER: &str = "TEST_FOLDER";
/// Longest wait for what must happen.
const LONG: Duration = Duration::from_secs(30);

// ---------------------------------------------------------------------------------------------- the ranks

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
        Ok((plan(3, 0, LONG), folders(&folder), false))
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
    let Membership { rank_plan, shm, link } = membership;
    let (rank, distributed) = (rank_plan.rank, &rank_plan.plan.distributed);
    let world = distributed.world_size;
    let group =
        collective::open(distributed.backend, rank, world, shm, distributed.timeout).unwrap();
    link.when_told_to_give_up({
        let group = group.clone();
        move || group.give_up()
    });
    let last = if scenario == "work" || scenario == "foreign_stop" { u64::MAX } else { 20 };
    for step in 1..=last {
        link.progress(step, Phase::Forward);
        if scenario == "die_together" && step == 3 && rank != Rank(2) && rank_plan.restarts == 0 {
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
                let mut report = link.describe(&error, 5, Blame::Peer);
                report.suspects = error.missing().iter().map(|missing| missing.rank).collect();
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
        "freeze" => kill_process(me, Signal::STOP).unwrap(),
        "hang" => park_for_ever(link, Phase::LoadingData),
        "never_enter" => park_for_ever(link, Phase::Reducing),
        "hang_once" if restarts == 0 => park_for_ever(link, Phase::Backward),
        "leave" => std::process::exit(0),
        "panic" => panic!("index out of range"),
        "flaky" if restarts < 2 => std::process::exit(6),
        "flaky" => assert!(resume),
        "fail" => {
            eprintln!("about to fail");
            let mut report =
                link.describe_message("`a.png` is truncated".to_owned(), 3, Blame::Own);
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

// ---------------------------------------------------------------------------------------------- the plan

fn plan(world: u32, max_restarts: u32, timeout: Duration) -> Plan {
    let mapping = (64 << 10) + world * (1 << 20);
    serde_json::from_value(json!({
        "name": "test", "seed": 1,
        "model": {
            "name": "mlp", "outputs": 2, "input": [4], "stem": "imagenet", "zero_init_residual": false,
            "freeze_backbone": false, "hidden": [], "dropout": 0.0, "pretrained": null, "except_head": false,
            "options": {}, "n_parameters": 10, "n_tensors": 2, "n_buffer_elements": 0
        },
        "data": {
            "source": { "image_folder": { "train": "t", "val": "v" } }, "n_train": 1, "n_val": 1,
            "classes": ["a", "b"], "sampler": "shards", "shuffle": true, "drop_last": true,
            "num_workers": 0, "prefetch_factor": 2, "on_bad_sample": "error",
            "train_transforms": [], "val_transforms": []
        },
        "loss": { "kind": "cross_entropy", "label_smoothing": 0.0 },
        "batch": { "size": 1, "accumulation": 1, "global": world, "shards": world },
        "length": { "steps_per_epoch": 1, "total_steps": 1, "time": null },
        "precision": "fp32", "scaler": null, "clip": { "norm": null, "value": null },
        "convolutions": "fast",
        "on_non_finite": "stop",
        "optimizer": {
            "rule": { "sgd": { "momentum": 0.0, "dampening": 0.0, "nesterov": false } },
            "lr": 0.1, "base_lr": 0.1, "scaling": "none", "base_batch_size": 1, "weight_decay": 0.0,
            "no_decay_on_1d": false
        },
        "schedule": { "warmup_steps": 0, "warmup_start_factor": 1.0, "interval": 1, "rule": "constant" },
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
    Start { resume: false, program, console: Console::Terminal, smaller: vec![], bell: None }
}

/// Runs a scenario in this process, and checks that nobody is left.
fn run(scenario: &str, plan: &Plan, folder: &Path) -> (Result<Ended, Box<Failure>>, Vec<Note>) {
    let mut notes = Vec::new();
    let result =
        launch::run(plan, &folders(folder), &start(scenario), &mut |note| notes.push(note));
    for note in &notes {
        if let Note::Started { pid, .. } = note {
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

fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

// ---------------------------------------------------------------------------------------------- failures

#[test]
fn a_run_without_trouble_completes() {
    let folder = tempfile::tempdir().unwrap();
    let (result, notes) = run("fine", &plan(3, 0, LONG), folder.path());
    assert_eq!(result.unwrap(), Ended::Completed);
    assert_eq!(notes.iter().filter(|note| matches!(note, Note::Started { .. })).count(), 3);
    let log = std::fs::read_to_string(folder.path().join("rank-2.log")).unwrap();
    assert!(log.contains("DONE 2 of 3"), "{log}");
    assert!(!folder.path().join("failure.json").exists());
}

#[test]
fn the_rank_that_failed_is_the_cause_and_failed_collectives_are_not() {
    let (failure, folder) = fails("fail", LONG);
    assert_eq!((failure.rank, failure.step, failure.phase), (Rank(1), 3, Phase::Forward));
    assert_eq!((failure.exit, failure.exit_code()), (Some(Exit::Code(3)), 3));
    assert_eq!(failure.message, "`a.png` is truncated");
    assert!(failure.log_tail.iter().any(|line| line == "about to fail"), "{:?}", failure.log_tail);
    assert_eq!(failure.secondary.len(), 2);
    let block = failure.block("step 2");
    for part in [
        "error: `a.png` is truncated\n",
        "where: rank 1 on ",
        ", forward, step 3\n",
        "why:   unexpected end of file\n",
        "saved: step 2\n",
        "do:    ",
    ] {
        assert!(block.contains(part), "{part} is not in\n{block}");
    }
    let report = std::fs::read_to_string(folder.path().join("rank-1.error.json")).unwrap();
    assert!(report.contains("`a.png` is truncated"));
}

#[test]
fn a_killed_rank_is_named_with_its_signal_and_the_others_are_gone_within_a_second() {
    let began = Instant::now();
    let (failure, _folder) = fails("die", LONG);
    assert!(began.elapsed() < LONG / 3, "the deadline of the collective was not waited for");
    assert_eq!((failure.rank, failure.exit_code()), (Rank(1), 5));
    assert_eq!(failure.exit, Some(Exit::Signal(9)));
    assert_eq!(failure.message, "rank 1 was killed by SIGKILL");
}

#[test]
fn a_rank_that_leaves_early_with_code_0_is_a_failure() {
    let (failure, _folder) = fails("leave", LONG);
    assert_eq!(
        (failure.rank, failure.exit, failure.exit_code()),
        (Rank(1), Some(Exit::Code(0)), 5)
    );
    assert_eq!(failure.message, "rank 1 left before the run ended");
}

#[test]
fn a_panic_is_our_bug() {
    let (failure, _folder) = fails("panic", LONG);
    assert_eq!(
        (failure.rank, failure.exit, failure.exit_code()),
        (Rank(1), Some(Exit::Code(101)), 70)
    );
    assert!(failure.log_tail.join("\n").contains("index out of range"));
}

#[test]
fn a_stopped_rank_is_named_when_the_others_have_waited_in_vain() {
    let (failure, _folder) = fails("freeze", Duration::from_millis(700));
    assert_eq!((failure.rank, failure.exit, failure.exit_code()), (Rank(1), None, 5));
    let pid = failure.pid.unwrap();
    assert_eq!(failure.message, format!("rank 1 (pid {pid}) is stopped (SIGSTOP)"));
    let others: Vec<&str> = failure.secondary.iter().map(|other| other.message.as_str()).collect();
    assert!(others.iter().any(|message| message.contains("no sign of rank 1")), "{others:?}");
}

/// A scenario in which a rank stands still, under a parent that is patient for half a second, with its failure.
fn stalls(scenario: &str) -> Failure {
    let folder = tempfile::tempdir().unwrap();
    let patient = Plan { stall_timeout: Patience::After(LONG / 60), ..plan(3, 0, LONG) };
    let began = Instant::now();
    let (result, _) = run(scenario, &patient, folder.path());
    assert!(began.elapsed() < LONG / 2, "the deadline of the collective was not waited for");
    let failure = *result.unwrap_err();
    assert_eq!((failure.rank, failure.exit, failure.exit_code()), (Rank(1), None, 5));
    let others: Vec<&str> = failure.secondary.iter().map(|other| other.message.as_str()).collect();
    let waited = others.iter().any(|message| message.contains("no sign of rank 1 (in call "));
    assert!(waited, "{others:?}");
    failure
}

#[test]
fn a_rank_that_loads_for_ever_is_named_long_before_the_deadline_of_the_collective() {
    let failure = stalls("hang");
    assert_eq!((failure.step, failure.phase), (3, Phase::LoadingData));
    let start = format!("rank 1 (pid {}) has not moved for 0.", failure.pid.unwrap());
    assert!(failure.message.starts_with(&start), "{}", failure.message);
    assert!(failure.causes[0].contains("its loader gives no batch"), "{:?}", failure.causes);
}

#[test]
fn a_rank_that_never_enters_a_collective_is_named_by_those_who_are_in_it() {
    let failure = stalls("never_enter");
    assert_eq!((failure.step, failure.phase), (3, Phase::Reducing));
    assert!(failure.message.contains("has not moved for "), "{}", failure.message);
}

#[test]
fn a_stopped_rank_is_named_long_before_the_deadline_of_the_collective() {
    let failure = stalls("freeze");
    let pid = failure.pid.unwrap();
    assert_eq!(failure.message, format!("rank 1 (pid {pid}) is stopped (SIGSTOP)"));
}

#[test]
fn a_group_with_a_rank_that_hangs_is_started_again() {
    let folder = tempfile::tempdir().unwrap();
    let patient = Plan { stall_timeout: Patience::After(LONG / 60), ..plan(2, 1, LONG) };
    let (result, notes) = run("hang_once", &patient, folder.path());
    assert_eq!(result.unwrap(), Ended::Completed);
    let [cause] = &restarts(&notes)[..] else { panic!("{notes:?}") };
    assert!(cause.starts_with("rank 1 (step 3, backward): rank 1 (pid "), "{cause}");
}

#[test]
fn a_program_that_does_not_exist_is_a_failure_of_its_rank() {
    let folder = tempfile::tempdir().unwrap();
    let mut start = start("fine");
    start.program.path = "/nonexistent/ddprun".into();
    let failure =
        launch::run(&plan(2, 3, LONG), &folders(folder.path()), &start, &mut |_| {}).unwrap_err();
    assert_eq!((failure.rank, failure.exit_code()), (Rank(0), 8));
    assert_eq!(failure.message, "rank 0 cannot be started");
}

#[test]
fn a_group_that_fails_is_started_again_from_its_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let (result, notes) = run("flaky", &plan(2, 2, LONG), folder.path());
    assert_eq!(result.unwrap(), Ended::Completed);
    let waits: Vec<(u32, u64)> = notes
        .iter()
        .filter_map(|note| match note {
            Note::Restarting { attempt, wait, .. } => Some((*attempt, wait.as_secs())),
            _ => None,
        })
        .collect();
    // The second attempt came no further than the first.
    assert_eq!(waits, [(1, 0), (2, 1)]);
}

#[test]
fn a_spent_budget_ends_the_run_with_the_history_of_causes() {
    let folder = tempfile::tempdir().unwrap();
    let (result, _) = run("flaky", &plan(2, 1, LONG), folder.path());
    let failure = result.unwrap_err();
    assert_eq!((failure.rank, failure.exit_code()), (Rank(1), 6));
    assert_eq!(failure.history, ["rank 1 (step 3, forward): rank 1 exited with code 6"]);
    assert!(failure.block("nothing").contains("before restart 1: rank 1 (step 3"));
}

/// The restarts that were announced: their causes.
fn restarts(notes: &[Note]) -> Vec<String> {
    let cause = |note: &Note| match note {
        Note::Restarting { cause, .. } => Some(cause.to_string()),
        _ => None,
    };
    notes.iter().filter_map(cause).collect()
}

#[test]
fn two_ranks_that_die_together_are_one_failure_and_one_restart() {
    let folder = tempfile::tempdir().unwrap();
    let (result, notes) = run("die_together", &plan(3, 3, LONG), folder.path());
    assert_eq!(result.unwrap(), Ended::Completed);
    assert_eq!(restarts(&notes).len(), 1, "{notes:?}");
    assert!(restarts(&notes)[0].ends_with("was killed by SIGKILL"), "{notes:?}");
}

#[test]
fn a_rank_that_is_killed_in_every_attempt_spends_the_budget() {
    let folder = tempfile::tempdir().unwrap();
    let (result, notes) = run("die", &plan(2, 2, LONG), folder.path());
    let failure = result.unwrap_err();
    let cause = "rank 1 (step 3, forward): rank 1 was killed by SIGKILL";
    assert_eq!((failure.to_string().as_str(), failure.exit_code()), (cause, 5));
    assert_eq!(failure.history, [cause, cause]);
    assert_eq!(restarts(&notes), [cause, cause]);
}

#[test]
fn bad_data_is_not_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    let (result, notes) = run("fail", &plan(2, 3, LONG), folder.path());
    assert_eq!(result.unwrap_err().exit_code(), 3);
    assert!(!notes.iter().any(|note| matches!(note, Note::Restarting { .. })));
}

// ---------------------------------------------------------------------------------------------- signals

/// A parent of its own; does nothing in the process of the tests.
#[test]
fn as_parent() {
    let Some(folder) = std::env::var_os("TEST_PARENT") else { return };
    let mut on_note = |note: Note| match note {
        Note::Started { rank, pid } => println!("\nSTARTED {rank} {pid}"),
        Note::Progress { rank, step, .. } if step > 0 => println!("\nAT {rank} {step}"),
        _ => {}
    };
    let result =
        launch::run(&plan(3, 0, LONG), &folders(Path::new(&folder)), &start("work"), &mut on_note);
    std::process::exit(i32::from(result.unwrap().exit_code()));
}

/// A parent whose ranks are all in their steps.
struct Parent {
    child: Child,
    ranks: Vec<u32>,
    folder: tempfile::TempDir,
}

impl Parent {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "as_parent", "--nocapture"]).env("TEST_PARENT", folder.path());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (mut ranks, mut running) = (vec![0; 3], BTreeSet::new());
        while running.len() < 3 {
            let line = lines.next().unwrap().unwrap();
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["STARTED", rank, pid] => {
                    ranks[rank.parse::<usize>().unwrap()] = pid.parse().unwrap();
                }
                ["AT", rank, _] => drop(running.insert(rank.to_owned())),
                _ => {}
            }
        }
        // The pipe must not fill up.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, ranks, folder }
    }

    fn send(&self, signal: Signal) {
        signal_to(self.child.id(), signal);
    }

    fn end(mut self) -> (ExitStatus, tempfile::TempDir) {
        let status = until(|| self.child.try_wait().unwrap());
        until(|| self.ranks.iter().all(|&pid| !is_alive(pid)).then_some(()));
        (status, self.folder)
    }
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
        assert!(began.elapsed() < LONG, "nothing happened in {LONG:?}");
        std::thread::yield_now();
    }
}

#[test]
fn ranks_die_with_a_killed_parent() {
    let parent = Parent::start();
    parent.send(Signal::KILL);
    let began = Instant::now();
    let ranks = parent.ranks.clone();
    until(|| ranks.iter().all(|&pid| !is_alive(pid)).then_some(()));
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    parent.end();
}

#[test]
fn sigterm_to_the_parent_stops_all_ranks_at_the_same_step_with_75() {
    let parent = Parent::start();
    parent.send(Signal::TERM);
    let (status, folder) = parent.end();
    assert_eq!(status.code(), Some(75));
    let stop = |rank: u32| {
        let log = std::fs::read_to_string(folder.path().join(format!("rank-{rank}.log"))).unwrap();
        let line = log.lines().find(|line| line.contains("STOP")).unwrap().to_owned();
        line.split(' ').rev().take(2).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(stop(1), stop(2));
}

#[test]
fn sigterm_to_one_rank_is_a_vote_of_all() {
    let parent = Parent::start();
    signal_to(parent.ranks[2], Signal::TERM);
    assert_eq!(parent.end().0.code(), Some(75));
}

#[test]
fn ctrl_c_reaches_the_whole_group_and_counts_once() {
    let parent = Parent::start();
    // As a terminal does: parent and ranks.
    parent.ranks.iter().for_each(|&pid| signal_to(pid, Signal::INT));
    parent.send(Signal::INT);
    let (status, folder) = parent.end();
    assert_eq!(status.code(), Some(130));
    let log = std::fs::read_to_string(folder.path().join("rank-1.log")).unwrap();
    assert!(log.lines().any(|line| line.contains("STOP 1") && line.ends_with(" 2")), "{log}");
}

#[test]
fn a_third_ctrl_c_kills_ranks_that_do_not_react() {
    let parent = Parent::start();
    signal_to(parent.ranks[1], Signal::STOP);
    let mut parent = parent;
    // Each is sent after the one before was taken: the parent polls, and counts bytes.
    let status = until(|| {
        let _ = kill_process(Pid::from_child(&parent.child), Signal::INT);
        parent.child.try_wait().unwrap()
    });
    assert_eq!(status.code(), Some(130));
    parent.end();
}

#[test]
fn no_port_is_opened() {
    let parent = Parent::start();
    let mut sockets = BTreeSet::new();
    for pid in parent.ranks.iter().chain([&parent.child.id()]) {
        for fd in std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap() {
            let target = std::fs::read_link(fd.unwrap().path()).unwrap_or_default();
            let target = target.to_string_lossy().into_owned();
            sockets.extend(
                target.strip_prefix("socket:[").map(|inode| inode.trim_end_matches(']').to_owned()),
            );
        }
    }
    assert!(sockets.len() >= 6, "socket pairs are seen: {sockets:?}");
    for table in ["tcp", "tcp6", "udp", "udp6"] {
        let table = std::fs::read_to_string(format!("/proc/net/{table}")).unwrap_or_default();
        let inodes = table.lines().skip(1).filter_map(|line| line.split_whitespace().nth(9));
        assert!(inodes.into_iter().all(|inode| !sockets.contains(inode)));
    }
    parent.send(Signal::KILL);
    parent.end();
}

// ---------------------------------------------------------------------------------------------- foreign launchers

/// Starts `ranks` of a world of `world` as torchrun does, and returns their exit codes and output.
fn torchrun(
    scenario: &str,
    ranks: &[u32],
    world: u32,
    local: u32,
    stop: Option<usize>,
) -> Vec<(Option<i32>, String)> {
    let folder = tempfile::tempdir().unwrap();
    let id = folder.path().file_name().unwrap().to_str().unwrap().to_owned();
    let start = |rank: &u32| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "as_worker", "--nocapture"]);
        command.env(SCENARIO, scenario).env(FOLDER, folder.path());
        command.env("RANK", rank.to_string()).env("LOCAL_RANK", rank.to_string());
        command.env("WORLD_SIZE", world.to_string()).env("LOCAL_WORLD_SIZE", local.to_string());
        command
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", "29500")
            .env("TORCHELASTIC_RUN_ID", &id);
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let children: Vec<Child> = ranks.iter().map(start).collect();
    if let Some(at) = stop {
        // Once a process has mapped the memory it has joined, so it listens to signals.
        let pid = children[at].id();
        until(|| {
            std::fs::read_to_string(format!("/proc/{pid}/maps"))
                .unwrap()
                .contains("memfd:ddprun")
                .then_some(())
        });
        signal_to(pid, Signal::TERM);
    }
    let wait = |child: Child| {
        let output = child.wait_with_output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    children.into_iter().map(wait).collect()
}

#[test]
fn under_torchrun_rank_0_hands_plan_and_memory_to_the_others() {
    // The others come first, and wait.
    for (code, output) in torchrun("fine", &[2, 1, 0], 3, 3, None) {
        assert_eq!(code, Some(0), "{output}");
        assert!(output.contains("of 3"), "{output}");
    }
}

#[test]
fn under_torchrun_a_signal_to_one_rank_stops_all() {
    for (code, output) in torchrun("foreign_stop", &[0, 1, 2], 3, 3, Some(1)) {
        assert_eq!(code, Some(75), "{output}");
    }
}

#[test]
fn under_torchrun_a_bad_experiment_is_told_to_all_ranks() {
    let ended = torchrun("refuse", &[0, 1, 2], 3, 3, None);
    assert!(ended[0].1.contains("JOIN: `lr` must be positive"), "{}", ended[0].1);
    for (_, output) in &ended[1..] {
        assert!(
            output.contains("JOIN: rank 0 could not prepare the run: `lr` must be positive"),
            "{output}"
        );
    }
}

#[test]
fn several_machines_and_another_world_are_refused_in_words() {
    let (_, output) = &torchrun("fine", &[0], 4, 2, None)[0];
    assert!(output.contains("the launcher started 4 ranks, 2 of them on this machine"), "{output}");
    for (_, output) in torchrun("fine", &[0, 1], 2, 2, None) {
        assert!(output.contains("the plan is for 3 ranks, but the launcher started 2"), "{output}");
    }
}
