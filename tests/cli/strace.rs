//! A run killed at each system call by which a checkpoint becomes one, one after another, with
//! `strace`.

use crate::harness::bits::{Bits, bits};
use crate::harness::experiments::four_steps;
use crate::harness::faults::{TRACER, can_trace, undisturbed};
use crate::harness::lab::{BINARY, Lab};
use crate::harness::running::{Ended, spawn, until};
use crate::skipped::skipped;

/// The calls that make files and folders durable, and give, move and take their names.
const CALLS: [&str; 7] = ["mkdir", "fsync", "rename", "renameat2", "symlink", "unlinkat", "rmdir"];

/// Most calls of one kind that a thread of this small run could make.
const MAX_CALLS: u32 = 100;

/// The run with `fault` at the `nth` call of this kind of each of its threads; its calls are
/// written to `log`.
fn traced(lab: &Lab, call: &str, fault: &str, nth: u32, (log, data): (&str, &str)) -> Ended {
    let (trace, inject) = (format!("trace={call}"), format!("inject={call}:{fault}:when={nth}"));
    let strace = ["-f", "-o", log, "-e", &trace, "-e", &inject, "--", BINARY];
    spawn(lab.command("strace", &[&strace[..], &["small.toml", data]].concat())).wait()
}

/// Kills each thread of the run at its `nth` call of this kind, and goes on. Returns whether
/// anybody was killed.
fn killed_at(call: &str, nth: u32, data: &str, expected: &Bits) -> bool {
    let lab = Lab::with(&four_steps());
    let ended = traced(&lab, call, "signal=KILL", nth, ("/dev/null", data));
    if ended.code == 0 {
        return false;
    }
    until("the end of all processes", || lab.processes().is_empty());
    if ended.stderr.contains("Use device") {
        let resumed = lab.run(&["resume"]);
        let what = format!("{call} {nth}: {}\nthen {}", ended.stderr, resumed.stderr);
        assert_eq!(resumed.code, 0, "{what}");
        bits(&lab).must_be(expected);
        lab.is_clean();
    }
    true
}

#[test]
#[ignore = "a run for each system call: `just failpoints`"]
fn a_run_killed_at_any_system_call_of_its_checkpoints_goes_on_with_the_same_bits() {
    if !can_trace() {
        // The fail points cover the same moments.
        skipped(TRACER);
        return;
    }
    let (_lab, data, expected) = undisturbed();
    let mut kills = 0;
    for call in CALLS {
        let nth = (1..=MAX_CALLS).find(|&nth| !killed_at(call, nth, &data, &expected));
        kills += nth.unwrap_or(MAX_CALLS) - 1;
    }
    assert!(kills > 20, "only {kills} calls were seen");
}

/// The calls that fail, and how: a broken disk, a quota, a file system that became read-only.
const FAILURES: [(&str, &str); 8] = [
    ("fsync", "EIO"),
    ("write", "EDQUOT"),
    ("write", "EIO"),
    ("rename", "EIO"),
    ("renameat2", "EIO"),
    ("mkdir", "EROFS"),
    ("symlink", "EROFS"),
    ("unlinkat", "EROFS"),
];

/// Most calls of one kind that are made to fail, one in each run.
const FAILED: u32 = 40;

/// Has each thread of the run fail at its `nth` call of this kind, and goes on if that ended it.
/// Returns how it ended, or `None` if fewer calls were made.
fn failed_at(call: &str, errno: &str, nth: u32, data: &str, expected: &Bits) -> Option<i32> {
    let lab = Lab::with(&four_steps());
    let what = format!("{call} {nth} {errno}");
    let log = lab.path("strace.txt");
    let fault = format!("error={errno}");
    let ended = traced(&lab, call, &fault, nth, (log.to_str().unwrap(), data));
    let calls = std::fs::read(&log).unwrap();
    if !String::from_utf8_lossy(&calls).contains("(INJECTED)") {
        return None;
    }
    until("the end of all processes", || lab.processes().is_empty());
    if ended.stderr.contains("error while loading shared libraries") {
        // Before a word of ours.
        return Some(ended.code);
    }
    // 6 is the disk; 8 what the system refuses before a rank is there; 5 a rank that could not say
    // why it left.
    assert!([0, 5, 6, 8].contains(&ended.code), "{what}: {} {}", ended.code, ended.stderr);
    assert!(!ended.stderr.contains("panicked"), "{what}: {}", ended.stderr);
    if ended.code != 0 && !ended.stderr.contains("Use device") {
        return Some(ended.code);
    }
    if ended.code != 0 {
        let resumed = lab.run(&["resume"]);
        assert_eq!(resumed.code, 0, "{what}: {}\nthen {}", ended.stderr, resumed.stderr);
    }
    lab.run_to(0, &["checkpoint", "verify"]);
    bits(&lab).must_be(expected);
    Some(ended.code)
}

#[test]
#[ignore = "a run for each system call: `just failpoints`"]
fn a_call_that_fails_ends_the_run_or_does_not_matter_and_no_bit_is_lost() {
    if !can_trace() {
        // The fail points cover the same moments.
        skipped(TRACER);
        return;
    }
    let (_lab, data, expected) = undisturbed();
    let (mut calls, mut ended) = (0, 0);
    for (call, errno) in FAILURES {
        for nth in 1..=FAILED {
            let Some(code) = failed_at(call, errno, nth, &data, &expected) else { break };
            println!("{call} {nth} {errno}: exit {code}");
            calls += 1;
            ended += u32::from(code != 0);
        }
    }
    assert!(calls > 40 && ended > 20, "{calls} calls failed, and {ended} runs");
}
