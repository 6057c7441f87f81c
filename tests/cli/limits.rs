//! What a process may not have, and who does not answer: descriptors, room on the terminal, a
//! parent that is stopped, numbers that mean nothing.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use rustix::process::{Signal, kill_process};
use test_support::processes::is_alive;

use crate::harness::experiments::BASE;
use crate::harness::faults::ControlGroup;
use crate::harness::lab::{BINARY, Lab, children};
use crate::harness::running::{Running, pid_of, spawn, until};
use crate::skipped::skipped;

/// A run that ends only when it is stopped.
const ENDLESS: [&str; 6] = [
    "small.toml",
    "train.epochs=1000000",
    "validation.every=never",
    "checkpoint.every=10 steps",
    "logging.every=10 steps",
    "logging.sinks=[jsonl]",
];

fn endless(lab: &Lab, changes: &[&str]) -> Running {
    let mut running = lab.start(&[&ENDLESS[..], changes].concat());
    lab.wait_for_step_and_save(&mut running, 40);
    assert!(!running.is_over(), "{}", running.stderr());
    running
}

#[test]
fn ranks_of_a_stopped_parent_save_and_leave_and_the_parent_says_so_when_it_runs_again() {
    let lab = Lab::new();
    let running = endless(&lab, &["distributed.timeout=5s"]);
    let (parent, ranks) = (pid_of(running.pid()), running.ranks());
    kill_process(parent, Signal::STOP).unwrap();
    until("the end of the ranks", || !ranks.iter().any(|&rank| is_alive(rank)));
    kill_process(parent, Signal::CONT).unwrap();
    let ended = running.wait();
    ended.has_code(75);
    ended
        .says(&["no heartbeat from the parent process for `distributed.timeout`", "(state saved)"]);
    let epochs = format!("train.epochs={}", lab.last_step() / 6 + 10);
    lab.run_to(0, &["resume", &epochs, "distributed.timeout=60s"]).says(&["resumed after step "]);
    lab.is_clean();
}

#[test]
fn a_rank_that_is_continued_after_the_verdict_is_gone() {
    let lab = Lab::new();
    let mut running = endless(&lab, &["fault.stall_timeout=1s", "fault.max_restarts=1"]);
    let rank = running.ranks()[1];
    kill_process(pid_of(rank), Signal::STOP).unwrap();
    until("the verdict", || running.stderr().contains("restart 1 of 1"));
    let _ = kill_process(pid_of(rank), Signal::CONT);
    assert!(!is_alive(rank), "a rank that was given up would work on");
    let step = lab.last_step();
    lab.wait_for_step(&mut running, step + 20);
    running.signal(Signal::TERM);
    running.wait().has_code(75);
    lab.run_to(0, &["checkpoint", "verify"]);
    lab.is_clean();
}

/// Starts a run of 20 epochs that writes stdout and stderr into one pipe, which takes little.
fn into_a_pipe(lab: &Lab) -> (Child, std::io::PipeReader) {
    let (reader, writer) = std::io::pipe().unwrap();
    rustix::pipe::fcntl_setpipe_size(&writer, 4096).unwrap();
    let mut command = lab.ddprun(&["small.toml", "train.epochs=20"]);
    command.stdin(Stdio::null()).stdout(writer.try_clone().unwrap()).stderr(writer);
    (command.process_group(0).spawn().unwrap(), reader)
}

fn ends_well(lab: &Lab, child: &mut Child) {
    until("the end", || child.try_wait().unwrap().is_some());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(lab.last_step(), 120);
    let log = fs::read_to_string(lab.run_folder().join("rank-0.log")).unwrap();
    assert!(log.contains("step 119/120") && log.contains("completed after step 120"), "{log}");
    lab.is_clean();
}

#[test]
fn a_pipe_without_a_reader_does_not_hold_up_the_training() {
    let lab = Lab::new();
    let (mut child, mut reader) = into_a_pipe(&lab);
    ends_well(&lab, &mut child);
    let mut said = String::new();
    reader.read_to_string(&mut said).unwrap();
    assert!(said.contains("Use device") && !said.contains("step 119/120"), "{said}");
}

#[test]
fn a_reader_that_leaves_does_not_end_the_training() {
    let lab = Lab::new();
    let (mut child, reader) = into_a_pipe(&lab);
    let mut first = String::new();
    BufReader::new(reader).read_line(&mut first).unwrap();
    assert!(!first.is_empty());
    ends_well(&lab, &mut child);
}

#[test]
fn too_few_descriptors_are_named_and_enough_are_enough() {
    let lab = Lab::new();
    lab.run_to(0, &["small.toml"]);
    let mut refused = 0;
    for limit in [8, 10, 12, 14, 16, 18, 20, 24, 32, 64] {
        fs::remove_dir_all(lab.path("logs")).unwrap();
        let script = format!("ulimit -n {limit} && exec {BINARY} small.toml");
        let ended = spawn(lab.command("sh", &["-c", &script])).wait();
        assert!([0, 8].contains(&ended.code), "{limit}: {} {}", ended.code, ended.stderr);
        if ended.code == 8 {
            refused += 1;
            ended.says(&["error: ", "oo many open files"]);
        }
        assert!(limit < 64 || ended.code == 0, "64 are enough: {}", ended.stderr);
        assert!(lab.processes().is_empty(), "{limit}");
        fs::create_dir_all(lab.path("logs")).unwrap();
    }
    assert!(refused > 0);
}

/// Descriptors, memory maps and threads of a process.
fn holdings(pid: u32) -> [usize; 3] {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let count = |kind: &str| children(format!("/proc/{pid}/{kind}").as_ref()).len();
    [count("fd"), maps.lines().count(), count("task")]
}

#[test]
fn a_run_holds_no_more_after_200_steps_and_20_checkpoints_than_before() {
    /// Maps by which an allocator may differ from one moment to the next.
    const SLACK: [usize; 3] = [0, 40, 0];
    let lab = Lab::new();
    let mut running = endless(&lab, &[]);
    let processes = [running.ranks(), vec![running.pid()]].concat();
    let before: Vec<[usize; 3]> = processes.iter().map(|&pid| holdings(pid)).collect();
    lab.wait_for_step(&mut running, 240);
    assert!(!running.is_over(), "{}", running.stderr());
    // A file may be open at the moment: what was let go of is let go of sooner or later.
    until("as few as before", || {
        processes.iter().zip(&before).all(|(&pid, before)| {
            let now = holdings(pid);
            (0..3).all(|kind| now[kind] <= before[kind] + SLACK[kind])
        })
    });
    running.signal(Signal::TERM);
    running.wait().has_code(75);
    lab.is_clean();
}

#[test]
fn weights_that_are_not_finite_reach_no_checkpoint() {
    let lab = Lab::with(&BASE.replace("adamw", "sgd").replace("epochs = 2", "steps = 1"));
    // The loss of the first step is finite, the weights after it are not.
    let huge = ["optimizer.lr=1e6", "optimizer.weight_decay=1e36", "validation.every=never"];
    let ended = lab.run(&[&["small.toml"], &huge[..]].concat());
    ended.has_code(4);
    ended.says(&["is not finite after step 1: refusing to save it", "`optimizer.lr`"]);
    assert!(lab.steps().is_empty());
    lab.is_clean();
}

#[test]
fn a_loss_that_explodes_ends_the_run_and_the_checkpoints_before_it_stay() {
    let lab = Lab::with(&BASE.replace("adamw", "sgd"));
    let calm =
        ["train.steps=4", "~train.epochs", "checkpoint.every=1 step", "checkpoint.keep_last=2"];
    lab.run_to(0, &[&["small.toml"], &calm[..]].concat());
    let before = lab.steps();
    let wild =
        ["resume", "train.steps=12", "fault.divergence_threshold=1e-3", "fault.max_restarts=3"];
    let ended = lab.run_to(4, &wild);
    ended.says(&[
        "the loss of step 5 is ",
        "greater than `fault.divergence_threshold` = 0.001",
        "`optimizer.lr`",
        " fault.divergence_threshold=...`",
    ]);
    assert!(!ended.stderr.contains("restart 1"), "the same numbers come again: {}", ended.stderr);
    assert_eq!(lab.steps(), before, "good checkpoints are rotated away");
    lab.run_to(0, &["resume", "train.steps=12", "fault.divergence_threshold=1e3"]);
    lab.is_clean();
}

#[test]
fn too_few_threads_are_named_and_enough_are_enough() {
    const MAX_RANKS: u64 = 24;
    let lab = Lab::new();
    // Also generates the data.
    lab.run_to(0, &["small.toml"]);
    let mut refused = 0;
    for limit in 1..=MAX_RANKS {
        let Some(group) = ControlGroup::new("pids", ["pids.max", "pids.max"], limit) else {
            skipped("no control group can be made");
            return;
        };
        let script = group.script(&format!("{BINARY} small.toml"));
        let ended = spawn(lab.command("sh", &["-c", &script])).wait();
        assert!([0, 8].contains(&ended.code), "{limit}: {} {}", ended.code, ended.stderr);
        assert!(!ended.stderr.contains("panicked"), "{limit}: {}", ended.stderr);
        if ended.code == 8 {
            refused += 1;
            ended.says(&["error: ", "Resource temporarily unavailable"]);
        }
        assert!(limit < MAX_RANKS || ended.code == 0, "{MAX_RANKS} are enough: {}", ended.stderr);
        assert!(lab.processes().is_empty(), "{limit}");
    }
    assert!(refused > 10, "{refused}");
}

/// Whether this machine has the program.
fn has(program: &str) -> bool {
    let mut command = Command::new(program);
    command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

#[test]
fn a_terminal_that_is_closed_has_the_run_saved() {
    if !has("script") {
        skipped("no `script`, which makes terminals");
        return;
    }
    let lab = Lab::new();
    // Where these tests run under `nohup`, a run would heed it too.
    let words = ENDLESS.map(|word| format!("'{word}'")).join(" ");
    let words = format!("env --default-signal=HUP {BINARY} {words}");
    let mut terminal = spawn(lab.command("script", &["-qec", &words, "/dev/null"]));
    lab.wait_for_step_and_save(&mut terminal, 40);
    terminal.signal(Signal::KILL);
    until("the end of all", || lab.processes().is_empty());
    let epochs = format!("train.epochs={}", lab.last_step() / 6 + 10);
    let resumed = lab.run_to(0, &["resume", &epochs]);
    resumed.says(&[&format!("resumed after step {}", lab_saved(&lab))]);
    lab.is_clean();
}

/// As some daemons start programs: how a child ended is then forgotten, unless ddprun undoes it.
#[test]
fn a_killed_rank_is_named_where_sigchld_was_ignored() {
    let lab = Lab::new();
    let words = [&["--ignore-signal=CHLD", BINARY][..], &ENDLESS].concat();
    let mut running = spawn(lab.command("env", &words));
    lab.wait_for_step_and_save(&mut running, 40);
    kill_process(pid_of(running.ranks()[1]), Signal::KILL).unwrap();
    let ended = running.wait();
    ended.has_code(5);
    ended.says(&["error: rank 1 was killed by SIGKILL\n"]);
    lab.is_clean();
}

/// The step after which the run left and saved, as its log says.
fn lab_saved(lab: &Lab) -> u64 {
    let log = fs::read_to_string(lab.run_folder().join("rank-0.log")).unwrap();
    let rest = log.split("(state saved) after step ").nth(1).unwrap_or_else(|| panic!("{log}"));
    rest.split_whitespace().next().unwrap().trim_end_matches(['.', ',']).parse().unwrap()
}
