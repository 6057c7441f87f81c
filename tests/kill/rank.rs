//! A rank that dies, leaves, fails or panics, and what is said of it.

use std::time::Instant;

use ddprun::internals::launch::{self, Ended, Exit, LauncherEvent, Phase};
use ddprun::units::Rank;

use crate::{TIMEOUT, fails, folders, plan, run, start};

#[test]
fn a_run_without_trouble_completes() {
    let folder = tempfile::tempdir().unwrap();
    let (result, notes) = run("fine", &plan(3, 0, TIMEOUT), folder.path());
    assert_eq!(result.unwrap(), Ended::Completed);
    assert_eq!(
        notes.iter().filter(|note| matches!(note, LauncherEvent::Started { .. })).count(),
        3
    );
    let log = std::fs::read_to_string(folder.path().join("rank-2.log")).unwrap();
    assert!(log.contains("DONE 2 of 3"), "{log}");
    assert!(!folder.path().join("failure.json").exists());
}

#[test]
fn the_rank_that_failed_is_the_cause_and_failed_collectives_are_not() {
    let (failure, folder) = fails("fail", TIMEOUT);
    assert_eq!((failure.rank, failure.step, failure.phase), (Rank(1), 3, Phase::Forward));
    assert_eq!((failure.exit, u8::from(failure.exit_code())), (Some(Exit::Code(3)), 3));
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
    let (failure, _folder) = fails("die", TIMEOUT);
    assert!(began.elapsed() < TIMEOUT / 3, "the deadline of the collective was not waited for");
    assert_eq!((failure.rank, u8::from(failure.exit_code())), (Rank(1), 5));
    assert_eq!(failure.exit, Some(Exit::Signal(9)));
    assert_eq!(failure.message, "rank 1 was killed by SIGKILL");
}

#[test]
fn a_rank_that_leaves_early_with_code_0_is_a_failure() {
    let (failure, _folder) = fails("leave", TIMEOUT);
    assert_eq!(
        (failure.rank, failure.exit, u8::from(failure.exit_code())),
        (Rank(1), Some(Exit::Code(0)), 5)
    );
    assert_eq!(failure.message, "rank 1 exited before the run ended");
}

#[test]
fn a_panic_is_our_bug() {
    let (failure, _folder) = fails("panic", TIMEOUT);
    assert_eq!(
        (failure.rank, failure.exit, u8::from(failure.exit_code())),
        (Rank(1), Some(Exit::Code(101)), 70)
    );
    assert!(failure.log_tail.join("\n").contains("index out of range"));
}

#[test]
fn a_program_that_does_not_exist_is_a_failure_of_its_rank() {
    let folder = tempfile::tempdir().unwrap();
    let mut start = start("fine");
    start.program.path = "/nonexistent/ddprun".into();
    let failure = launch::run(&plan(2, 3, TIMEOUT), &folders(folder.path()), &start, &mut |_| {})
        .unwrap_err();
    assert_eq!((failure.rank, u8::from(failure.exit_code())), (Rank(0), 8));
    assert_eq!(failure.message, "rank 0 cannot be started");
}
