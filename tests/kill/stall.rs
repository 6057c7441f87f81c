//! A rank that is stopped, hangs or never comes, and how long its group waits for it.

use std::time::Instant;

use ddprun::internals::launch::{Ended, Failure, Phase};
use ddprun::plan::{Patience, Plan};
use ddprun::units::Rank;

use crate::restart::restarts;
use crate::{TIMEOUT, fails, plan, run};

#[test]
fn a_stopped_rank_is_named_when_the_others_have_waited_in_vain() {
    // Also the deadline of the first collective, for which all processes have to start; and still
    // shorter than the patience with a rank that stands still.
    let (failure, _folder) = fails("freeze", TIMEOUT / 6);
    assert_eq!((failure.rank, failure.exit, u8::from(failure.exit_code())), (Rank(1), None, 5));
    let pid = failure.pid.unwrap();
    assert_eq!(failure.message, format!("rank 1 (pid {pid}) is stopped (SIGSTOP)"));
    let others: Vec<&str> = failure.secondary.iter().map(|other| other.message.as_str()).collect();
    assert!(
        others.iter().any(|message| message.contains("timed out waiting for rank 1")),
        "{others:?}"
    );
}

/// A scenario in which a rank stands still, under a parent that is patient for half a second, with
/// its failure.
fn stalls(scenario: &str) -> Failure {
    let folder = tempfile::tempdir().unwrap();
    let patient = Plan { stall_timeout: Patience::After(TIMEOUT / 60), ..plan(3, 0, TIMEOUT) };
    let began = Instant::now();
    let (result, _) = run(scenario, &patient, folder.path());
    assert!(began.elapsed() < TIMEOUT / 2, "the deadline of the collective was not waited for");
    let failure = *result.unwrap_err();
    assert_eq!((failure.rank, failure.exit, u8::from(failure.exit_code())), (Rank(1), None, 5));
    let others: Vec<&str> = failure.secondary.iter().map(|other| other.message.as_str()).collect();
    let waited =
        others.iter().any(|message| message.contains("timed out waiting for rank 1 (in call "));
    assert!(waited, "{others:?}");
    failure
}

#[test]
fn a_rank_that_loads_for_ever_is_named_long_before_the_deadline_of_the_collective() {
    let failure = stalls("hang");
    assert_eq!((failure.step, failure.phase), (3, Phase::LoadingData));
    let start = format!("rank 1 (pid {}) has not made progress for ", failure.pid.unwrap());
    assert!(failure.message.starts_with(&start), "{}", failure.message);
    assert!(failure.causes[0].contains("its loader delivers no batch"), "{:?}", failure.causes);
}

#[test]
fn a_rank_that_never_enters_a_collective_is_named_by_those_who_are_in_it() {
    let failure = stalls("never_enter");
    assert_eq!((failure.step, failure.phase), (3, Phase::Reducing));
    let in_call = |message: &str| message.contains(" s in `all_gather` (call ");
    let waits = failure.secondary.iter().any(|other| in_call(&other.message));
    assert!(waits, "{:?}", failure.secondary);
    assert!(failure.message.contains("has not made progress for "), "{}", failure.message);
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
    let patient = Plan { stall_timeout: Patience::After(TIMEOUT / 60), ..plan(2, 1, TIMEOUT) };
    let (result, notes) = run("hang_once", &patient, folder.path());
    assert_eq!(result.unwrap(), Ended::Completed);
    let [cause] = &restarts(&notes)[..] else { panic!("{notes:?}") };
    assert!(cause.starts_with("rank 1 (step 3, backward): rank 1 (pid "), "{cause}");
}
