//! Sequences of events that end in a verdict, and what holds for every sequence.

use crate::user_error::ExitCode;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::launch::error_report::{Blame, FORMAT};
use crate::launch::failure::Ended;
use crate::launch::parent::stall::StallKind;
use crate::launch::parent::verdict::{Verdict, judge};

fn at(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn report(rank: u32, ms: u64, blame: Blame) -> Event {
    Event::Failed(Box::new(ErrorReport {
        format: FORMAT,
        rank: Rank(rank),
        pid: 100 + rank,
        host: "h".to_owned(),
        monotonic: at(ms),
        time: jiff::Timestamp::UNIX_EPOCH,
        phase: Phase::Reducing,
        step: 7,
        exit_code: ExitCode::Peer,
        blame,
        suspects: vec![],
        out_of_memory: false,
        message: "m".to_owned(),
        causes: vec![],
        place: None,
        help: None,
    }))
}

fn exited(rank: u32, code: i32) -> Event {
    Event::Exited(Rank(rank), Exit::Code(code))
}

fn killed(rank: u32) -> Event {
    Event::Exited(Rank(rank), Exit::Signal(9))
}

fn finished(rank: u32) -> Event {
    Event::Finished(Rank(rank))
}

/// The verdict on a group of three ranks after these events, where the ranks that are left are
/// killed.
fn verdict_on(events: Vec<(u64, Event)>) -> Verdict {
    let mut group = Group::new([100, 101, 102]);
    for (ms, event) in events {
        group.step(at(ms), Event::Tick);
        group.step(at(ms), event);
    }
    let left: Vec<u32> =
        (0..3).filter(|&rank| group.members[rank as usize].exit.is_none()).collect();
    if !left.is_empty() {
        assert_eq!(group.step(at(10_000), Event::Tick), [Action::Kill]);
        for rank in left {
            group.step(at(10_001), killed(rank));
        }
    }
    assert!(group.is_over(at(10_002)));
    judge(&group)
}

#[track_caller]
fn check(events: Vec<(u64, Event)>, expected: Verdict) {
    assert_eq!(verdict_on(events), expected);
}

fn orderly(codes: [i32; 3]) -> Vec<(u64, Event)> {
    let each =
        codes.into_iter().zip(0..).flat_map(|(code, rank)| [finished(rank), exited(rank, code)]);
    each.map(|event| (50, event)).collect()
}

#[test]
fn finished_ranks_end_the_run_by_their_exit_code() {
    check(orderly([0, 0, 0]), Verdict::Ended(Ended::Completed));
    check(orderly([9, 0, 0]), Verdict::Ended(Ended::Missed));
    check(orderly([75, 75, 75]), Verdict::Ended(Ended::Stopped));
    check(orderly([130, 130, 130]), Verdict::Ended(Ended::Interrupted { saved: true }));
}

#[test]
fn the_earliest_error_counts_not_the_first_to_arrive() {
    let events = vec![(20, report(2, 15, Blame::Own)), (21, report(0, 12, Blame::Own))];
    check(events, Verdict::Fault(Rank(0), Fault::Reported));
}

#[test]
fn a_failed_collective_is_never_the_cause_if_a_rank_failed_by_itself() {
    let events = vec![(10, report(0, 10, Blame::Peer)), (11, exited(0, 5)), (60, killed(1))];
    check(events, Verdict::Fault(Rank(1), Fault::Signal(9)));
    let events = vec![(10, report(0, 10, Blame::Peer)), (11, report(1, 12, Blame::Own))];
    check(events, Verdict::Fault(Rank(1), Fault::Reported));
}

#[test]
fn a_failed_collective_is_the_cause_if_there_is_no_other() {
    check(vec![(10, report(2, 10, Blame::Peer))], Verdict::Fault(Rank(2), Fault::Reported));
}

#[test]
fn a_stopped_rank_is_the_cause_of_failed_collectives_only() {
    let stopped = || (5, Event::Stopped(Rank(1), true));
    check(vec![stopped(), (10, report(0, 10, Blame::Peer))], Verdict::Stopped(Rank(1)));
    let went_on = (6, Event::Stopped(Rank(1), false));
    check(
        vec![stopped(), went_on, (10, report(0, 10, Blame::Peer))],
        Verdict::Fault(Rank(0), Fault::Reported),
    );
    check(vec![stopped(), (10, killed(2))], Verdict::Fault(Rank(2), Fault::Signal(9)));
}

#[test]
fn a_group_makes_room_for_a_larger_one_after_its_checkpoints_unless_it_was_asked_to_stop() {
    let exit_with = |mut group: Group, codes: [i32; 2]| {
        for (code, rank) in codes.into_iter().zip(0..) {
            group.step(at(60), finished(rank));
            group.step(at(60), exited(rank, code));
        }
        judge(&group)
    };
    let mut group = Group::new([100, 101]).growing_after(Some(2));
    assert_eq!(group.step(at(1), Event::Saved), []);
    assert_eq!(group.step(at(2), Event::Saved), [Action::Send(Stop::Resize)]);
    assert_eq!(group.step(at(3), Event::Saved), []);
    assert_eq!(exit_with(group.clone(), [76, 76]), Verdict::Resized);
    // It was over before it could exit.
    assert_eq!(exit_with(group.clone(), [0, 0]), Verdict::Ended(Ended::Completed));
    // One rank alone was asked to stop for good, and the others agreed.
    assert_eq!(exit_with(group.clone(), [75, 75]), Verdict::Ended(Ended::Stopped));
    // The user asked a moment too late for the vote.
    assert_eq!(group.step(at(4), Event::Preempted).len(), 2);
    assert_eq!(exit_with(group, [76, 76]), Verdict::Ended(Ended::Stopped));
    let mut group = Group::new([100, 101]);
    assert_eq!(group.step(at(1), Event::Saved), []);
    // Another machine has come.
    assert_eq!(group.step(at(2), Event::Knocked), [Action::Send(Stop::Resize)]);
    assert_eq!(group.step(at(3), Event::Knocked), []);
    let mut group = Group::new([100, 101]);
    assert_eq!(group.step(at(1), Event::Knocked), []);
    assert_eq!(group.step(at(2), Event::Saved), [Action::Send(Stop::Resize)]);
}

fn stalled(kind: StallKind) -> (u64, Event) {
    (5, Event::Stalled(Stall { rank: Rank(1), kind, time: at(9000) }))
}

/// A rank that waited for `suspect` until its deadline.
fn waited(rank: u32, ms: u64, suspect: u32) -> (u64, Event) {
    let Event::Failed(mut waiter) = report(rank, ms, Blame::Peer) else { unreachable!() };
    waiter.suspects = vec![Rank(suspect)];
    (ms, Event::Failed(waiter))
}

#[test]
fn a_rank_that_holds_up_the_others_is_the_cause_of_what_they_say() {
    let silent = Stall { rank: Rank(1), kind: StallKind::NoProgress, time: at(9000) };
    check(vec![stalled(StallKind::NoProgress), waited(0, 10, 1)], Verdict::Stalled(silent));
    check(vec![stalled(StallKind::NoProgress)], Verdict::Stalled(silent));
    let failed = (10, report(2, 10, Blame::Own));
    check(vec![stalled(StallKind::NoProgress), failed], Verdict::Fault(Rank(2), Fault::Reported));
    let stopped = (4, Event::Stopped(Rank(1), true));
    check(
        vec![stopped, stalled(StallKind::NoHeartbeat), waited(0, 10, 1)],
        Verdict::Stopped(Rank(1)),
    );
}

#[test]
fn waiting_ranks_know_better_which_rank_is_missing() {
    let together = Stall { rank: Rank(2), kind: StallKind::Deadlock, time: at(9000) };
    check(vec![stalled(StallKind::Deadlock), waited(0, 10, 2)], Verdict::Stalled(together));
    let aborted = (9, report(1, 9, Blame::Peer));
    let events = vec![stalled(StallKind::Deadlock), aborted, waited(0, 10, 2)];
    check(events, Verdict::Stalled(together));
    check(vec![waited(0, 10, 2)], Verdict::MissedDeadline(Rank(2)));
    // A suspect that is itself a victim is none.
    let events = vec![waited(0, 10, 2), (11, report(2, 11, Blame::Peer))];
    check(events, Verdict::Fault(Rank(0), Fault::Reported));
}

#[test]
fn waiting_ranks_are_told_once_to_give_up_and_killed_a_moment_later() {
    let mut group = Group::new([100, 101]);
    let (_, stall) = stalled(StallKind::NoProgress);
    assert_eq!(group.step(at(0), stall.clone()), [Action::GiveUp]);
    assert_eq!(group.step(at(1), stall), []);
    assert_eq!(group.step(GRACE_PERIOD, Event::Tick), [Action::Kill]);
}

#[test]
fn an_early_exit_is_a_failure_unless_the_rank_had_finished() {
    check(vec![(10, exited(1, 0))], Verdict::Fault(Rank(1), Fault::ExitedEarly(0)));
    check(vec![(10, exited(1, 75))], Verdict::Fault(Rank(1), Fault::ExitedEarly(75)));
    check(vec![(10, exited(1, 101))], Verdict::Fault(Rank(1), Fault::Code(101)));
    let mut events = orderly([0, 0, 0]);
    events.remove(4);
    check(events, Verdict::Fault(Rank(2), Fault::ExitedEarly(0)));
}

#[test]
fn a_rank_that_has_done_its_work_but_does_not_exit_is_killed_and_counts_as_done() {
    let mut group = Group::new([100, 101]);
    for event in [finished(0), exited(0, 0), finished(1)] {
        assert_eq!(group.step(at(50), event), []);
    }
    assert_eq!(group.next_deadline(), Some(at(50) + EXIT_TIMEOUT));
    assert_eq!(group.step(at(60), Event::Tick), []);
    assert_eq!(group.step(at(50) + EXIT_TIMEOUT, Event::Tick), [Action::Kill]);
    assert_eq!(group.step(at(50) + EXIT_TIMEOUT, killed(1)), []);
    assert_eq!(judge(&group), Verdict::Ended(Ended::Completed));
}

#[test]
fn ranks_that_all_saved_and_exited_need_not_have_reported_it() {
    let events =
        |codes: [i32; 3]| codes.into_iter().zip(0..).map(|(code, rank)| (50, exited(rank, code)));
    check(events([75; 3]).collect(), Verdict::Ended(Ended::Stopped));
    check(events([75, 0, 75]).collect(), Verdict::Fault(Rank(0), Fault::ExitedEarly(75)));
}

#[test]
fn ctrl_c_once_saves_twice_does_not_and_thrice_kills() {
    let mut group = Group::new([100]);
    assert_eq!(group.step(at(0), Event::Interrupted)[0], Action::Send(Stop::Interrupt));
    assert_eq!(group.step(at(1), Event::Interrupted)[0], Action::Send(Stop::Abandon));
    assert_eq!(group.step(at(2), Event::Interrupted), [Action::Kill]);
    group.step(at(3), killed(0));
    assert_eq!(judge(&group), Verdict::Ended(Ended::Interrupted { saved: false }));
}

#[test]
fn the_second_ctrl_c_has_a_timeout() {
    let mut group = Group::new([100]);
    group.step(at(0), Event::Interrupted);
    group.step(at(0), Event::Interrupted);
    assert_eq!(group.next_deadline(), Some(ABANDON_TIMEOUT));
    assert_eq!(group.step(ABANDON_TIMEOUT, Event::Tick), [Action::Kill]);
}

#[test]
fn a_preempted_run_can_still_be_interrupted() {
    let mut group = Group::new([100]);
    assert_eq!(group.step(at(0), Event::Preempted)[0], Action::Send(Stop::Preempt));
    assert_eq!(group.step(at(1), Event::Preempted), []);
    assert_eq!(group.step(at(2), Event::Interrupted)[0], Action::Send(Stop::Interrupt));
    assert_eq!(group.step(at(3), Event::Preempted), []);
}

#[test]
fn a_process_that_cannot_be_killed_does_not_block_the_parent_for_ever() {
    let mut group = Group::new([100, 101]);
    group.step(at(0), killed(0));
    assert_eq!(group.step(GRACE_PERIOD, Event::Tick), [Action::Kill]);
    assert!(!group.is_over(KILL_TIMEOUT));
    assert!(group.is_over(GRACE_PERIOD + KILL_TIMEOUT));
    assert_eq!(judge(&group), Verdict::Fault(Rank(0), Fault::Signal(9)));
}

fn any_event() -> impl Strategy<Value = Event> {
    let rank = || (0u32..3).prop_map(Rank);
    let exit = prop_oneof![
        prop::sample::select(vec![0, 3, 5, 9, 75, 101, 130]).prop_map(Exit::Code),
        prop::sample::select(vec![6, 9, 11]).prop_map(Exit::Signal),
    ];
    prop_oneof![
        (rank(), 0u64..9).prop_map(|(rank, step)| Event::Progress(rank, step, Phase::Forward)),
        (0u32..3, any::<bool>()).prop_map(|(rank, own)| report(
            rank,
            1,
            if own { Blame::Own } else { Blame::Peer }
        )),
        rank().prop_map(Event::Finished),
        (rank(), exit).prop_map(|(rank, exit)| Event::Exited(rank, exit)),
        (rank(), any::<bool>()).prop_map(|(rank, stopped)| Event::Stopped(rank, stopped)),
        Just(Event::Preempted),
        Just(Event::Interrupted),
        Just(Event::Tick),
    ]
}

proptest! {
    #[test]
    fn every_sequence_kills_at_most_once_asks_ever_stronger_and_ends(
        events in prop::collection::vec((0u64..150, any_event()), 0..40),
    ) {
        let mut group = Group::new([100, 101, 102]);
        let (mut now, mut kills, mut asked) = (0, 0, None);
        for (ms, event) in events {
            now += ms;
            // A process is gone once.
            if matches!(&event, Event::Exited(rank, _) if group.members[rank.index()].exit.is_some()) {
                continue;
            }
            for action in group.step(at(now), event) {
                match action {
                    Action::Kill => kills += 1,
                    Action::Send(stop) => {
                        prop_assert!(Some(stop) > asked);
                        asked = Some(stop);
                    }
                    Action::Tell(_) | Action::GiveUp => {}
                }
            }
        }
        prop_assert!(kills <= 1);
        // A failing group is over soon, whatever its processes do.
        if group.is_failing() {
            group.step(at(now) + GRACE_PERIOD, Event::Tick);
            prop_assert!(group.is_over(at(now) + GRACE_PERIOD + KILL_TIMEOUT));
            let faulty = group.members.iter().any(|member| member.fault().is_some());
            prop_assert_eq!(matches!(judge(&group), Verdict::Ended(_)), group.is_abandoned || !faulty);
        }
        if kills == 0 && group.members.iter().any(|member| member.fault().is_some()) {
            prop_assert!(group.is_failing());
        }
    }
}

#[test]
fn a_death_is_put_down_to_memory_only_if_it_was_denied_or_the_kernel_killed_for_it() {
    let why = |event: Event, signal: i32| {
        let mut group = Group::new([100]);
        group.step(at(1), event);
        group.step(at(1), Event::Exited(Rank(0), Exit::Signal(signal)));
        group.lack_of_memory(Rank(0)).unwrap_or_default()
    };
    let denied = |bytes| Event::Denied(Rank(0), Bytes(bytes));
    assert_eq!(why(denied(0), libc::SIGKILL), "");
    assert_eq!(why(denied(0), libc::SIGABRT), "");
    assert_eq!(why(denied(8), libc::SIGKILL), "");
    assert!(why(denied(8), libc::SIGABRT).contains("which the system denied"));
    let by_kernel = Event::KilledForMemory(Rank(0));
    assert!(why(by_kernel, libc::SIGKILL).starts_with("the kernel killed it"));
}
