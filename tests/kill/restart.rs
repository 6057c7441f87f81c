//! Groups that are started again, and those that are not.

use ddprun::internals::launch::{Ended, LauncherEvent};
use ddprun::units::Rank;

use crate::{TIMEOUT, plan, run};

/// The restarts that were announced: their causes.
pub(crate) fn restarts(notes: &[LauncherEvent]) -> Vec<String> {
    let cause = |event: &LauncherEvent| match event {
        LauncherEvent::Restarting { cause, .. } => Some(cause.to_string()),
        _ => None,
    };
    notes.iter().filter_map(cause).collect()
}

#[test]
fn a_group_that_fails_is_started_again_from_its_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let (result, notes) = run("flaky", &plan(2, 2, TIMEOUT), folder.path());
    assert_eq!(result.unwrap(), Ended::Completed);
    let waits: Vec<(u32, u64)> = notes
        .iter()
        .filter_map(|note| match note {
            LauncherEvent::Restarting { attempt, wait, .. } => Some((*attempt, wait.as_secs())),
            _ => None,
        })
        .collect();
    // The second attempt came no further than the first.
    assert_eq!(waits, [(1, 0), (2, 1)]);
}

#[test]
fn a_spent_budget_ends_the_run_with_the_history_of_causes() {
    let folder = tempfile::tempdir().unwrap();
    let (result, _) = run("flaky", &plan(2, 1, TIMEOUT), folder.path());
    let failure = result.unwrap_err();
    assert_eq!((failure.rank, u8::from(failure.exit_code())), (Rank(1), 6));
    assert_eq!(failure.history, ["rank 1 (step 3, forward): rank 1 exited with code 6"]);
    assert!(failure.block("nothing").contains("before restart 1: rank 1 (step 3"));
}

#[test]
fn two_ranks_that_die_together_are_one_failure_and_one_restart() {
    let folder = tempfile::tempdir().unwrap();
    let (result, notes) = run("die_together", &plan(3, 3, TIMEOUT), folder.path());
    assert_eq!(result.unwrap(), Ended::Completed);
    assert_eq!(restarts(&notes).len(), 1, "{notes:?}");
    assert!(restarts(&notes)[0].ends_with("was killed by SIGKILL"), "{notes:?}");
}

#[test]
fn a_rank_that_is_killed_in_every_attempt_spends_the_budget() {
    let folder = tempfile::tempdir().unwrap();
    let (result, notes) = run("die", &plan(2, 2, TIMEOUT), folder.path());
    let failure = result.unwrap_err();
    let cause = "rank 1 (step 3, forward): rank 1 was killed by SIGKILL";
    assert_eq!((failure.to_string().as_str(), u8::from(failure.exit_code())), (cause, 5));
    assert_eq!(failure.history, [cause, cause]);
    assert_eq!(restarts(&notes), [cause, cause]);
}

#[test]
fn bad_data_is_not_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    let (result, notes) = run("fail", &plan(2, 3, TIMEOUT), folder.path());
    assert_eq!(u8::from(result.unwrap_err().exit_code()), 3);
    assert!(!notes.iter().any(|note| matches!(note, LauncherEvent::Restarting { .. })));
}
