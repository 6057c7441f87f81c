//! Finds the rank that holds up the group, by what the ranks write into
//! [`RankStatus`](crate::launch::rank::status). Pure.
//!
//! Two counters: a rank makes *progress* when its training thread reports where it is (or its
//! loader has read a sample), and shows *heartbeats* from a thread of its own. A process without
//! heartbeats is stopped or starved of cores; one with heartbeats but no progress hangs. A rank
//! that waits for others in a collective is blamed only if no other can be.
//!
//! Outside of training steps (evaluation, checkpoints, the end) ranks wait for each other in the
//! phase that they are in, and nothing is usual: there the whole group must have come to rest, for
//! longer than any collective would wait.
//!
//! Time is watched time: while the parent itself is suspended (Ctrl-Z, a sleeping machine), so are
//! all limits.

use std::collections::VecDeque;
use std::time::Duration;

use crate::launch::Phase;
use crate::launch::rank::status::RankState;
use crate::plan::Patience;
use crate::units::Rank;

/// Least time without progress after which a rank counts as stalled, unless the experiment sets
/// one.
const MIN_STALL_TIME: Duration = Duration::from_secs(10);
/// Least time without a heartbeat after which a process counts as stalled.
const MIN_HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(3);
/// Number of usual steps without progress after which a rank counts as stalled.
const USUAL_STEPS: u32 = 5;
/// Steps from which the usual duration is learned.
const MAX_REMEMBERED_STEPS: usize = 512;
/// Longest time between two inspections that counts as watched.
const MAX_INSPECTION_GAP: Duration = Duration::from_secs(1);

/// A rank that holds up the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stall {
    pub(super) rank: Rank,
    pub(super) kind: StallKind,
    pub(super) time: Duration,
}

/// The kind of a stall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StallKind {
    /// The process shows no heartbeat.
    NoHeartbeat,
    /// It shows heartbeats, but makes no progress.
    NoProgress,
    /// It waits in a collective, as all others do.
    Deadlock,
}

/// Follows the states of all ranks.
pub(super) struct StallDetector {
    timeout: Patience,
    /// Longest rest of the whole group outside of training steps.
    longest_rest: Duration,
    ranks: Vec<RankHistory>,
    /// Durations of the last steps.
    steps: VecDeque<Duration>,
    /// When the last inspection was, by the clock.
    inspected_at: Option<Duration>,
    watched: Duration,
    /// True if other ranks are watched on other machines.
    has_others: bool,
}

/// A rank, in watched time.
#[derive(Clone, Copy, Default)]
struct RankHistory {
    state: RankState,
    last_progress: Duration,
    last_heartbeat: Duration,
    step_began: Duration,
    /// True if its process exists and has work left.
    is_at_work: bool,
}

impl StallDetector {
    /// Watches `world` ranks, whose collectives wait for `deadline`.
    pub(super) fn new(timeout: Patience, deadline: Duration, world: usize) -> Self {
        let (ranks, steps) = (vec![RankHistory::default(); world], VecDeque::new());
        let (inspected_at, watched, has_others) = (None, Duration::ZERO, false);
        // Earlier than the ranks that wait, who cannot know which one does not come.
        let longest_rest = deadline * 9 / 10;
        Self { timeout, longest_rest, ranks, steps, inspected_at, watched, has_others }
    }

    /// The same, beside ranks that other machines watch: a rank that waits may wait for those.
    pub(super) fn among_others(self, has_others: bool) -> Self {
        Self { has_others, ..self }
    }

    /// Begins an inspection of all ranks, at `now` by the clock.
    pub(super) fn begin_inspection(&mut self, now: Duration) {
        let since =
            self.inspected_at.replace(now).map_or(Duration::ZERO, |then| now.saturating_sub(then));
        self.watched += since.min(MAX_INSPECTION_GAP);
        self.ranks.iter_mut().for_each(|rank| rank.is_at_work = false);
    }

    /// Records the state of a rank that has work left. `is_stopped`: a signal stopped its process.
    pub(super) fn observe(&mut self, rank: Rank, state: RankState, is_stopped: bool) {
        let rank = &mut self.ranks[rank.index()];
        let before = std::mem::replace(&mut rank.state, state);
        rank.is_at_work = true;
        // Before its first heartbeat a process is being loaded, which only a stop can interrupt.
        if state.heartbeats != before.heartbeats || (state.heartbeats == 0 && !is_stopped) {
            rank.last_heartbeat = self.watched;
        }
        if state.progress != before.progress {
            rank.last_progress = self.watched;
        }
        if state.step > before.step {
            let time = self.watched.saturating_sub(rank.step_began);
            rank.step_began = self.watched;
            if before.step > 0 {
                self.steps.push_back(time / (state.step - before.step).min(u32::MAX.into()) as u32);
                self.steps.drain(..self.steps.len().saturating_sub(MAX_REMEMBERED_STEPS));
            }
        }
    }

    /// The rank that has held up the group for too long.
    pub(super) fn stall(&self) -> Option<Stall> {
        let no_heartbeat =
            self.overdue(|rank| self.heartbeat_limit().map(|limit| (rank.last_heartbeat, limit)));
        let no_progress = |waits: bool| {
            move |rank: &RankHistory| {
                let judged =
                    is_training(rank.state) && waits == (rank.state.phase == Phase::Reducing);
                self.progress_limit().filter(|_| judged).map(|limit| (rank.last_progress, limit))
            }
        };
        let all_wait = || {
            let mut at_work = self.ranks.iter().filter(|rank| rank.is_at_work);
            !self.has_others
                && at_work
                    .all(|rank| rank.state.phase == Phase::Reducing && is_training(rank.state))
        };
        let found = |kind| move |(rank, time)| Stall { rank, kind, time };
        no_heartbeat
            .map(found(StallKind::NoHeartbeat))
            .or_else(|| self.overdue(no_progress(false)).map(found(StallKind::NoProgress)))
            .or_else(|| {
                self.overdue(no_progress(true))
                    .filter(|_| all_wait())
                    .map(found(StallKind::Deadlock))
            })
            .or_else(|| self.at_rest().map(found(StallKind::NoProgress)))
    }

    /// The rank that brought the group to rest outside of training steps: one that saves, which
    /// waits for nobody, else the last that moved.
    fn at_rest(&self) -> Option<(Rank, Duration)> {
        use Phase::{Evaluating, Finishing, Saving};
        let at_work = || (0..).map(Rank).zip(&self.ranks).filter(|(_, rank)| rank.is_at_work);
        let rest = |rank: &RankHistory| self.watched.saturating_sub(rank.last_progress);
        let is_outside =
            at_work().any(|(_, rank)| matches!(rank.state.phase, Evaluating | Saving | Finishing));
        let moves = at_work().any(|(_, rank)| rest(rank) < self.longest_rest);
        if !is_outside || moves || self.has_others || self.timeout == Patience::Never {
            return None;
        }
        let last = at_work().max_by_key(|(number, rank)| {
            (rank.state.phase == Saving, rank.last_progress, std::cmp::Reverse(*number))
        });
        last.map(|(number, rank)| (number, rest(rank)))
    }

    /// The rank that is furthest behind among those that are over their limit: `judge` returns the
    /// time of the last sign and the limit.
    fn overdue(
        &self,
        judge: impl Fn(&RankHistory) -> Option<(Duration, Duration)>,
    ) -> Option<(Rank, Duration)> {
        let ranks = (0..).map(Rank).zip(&self.ranks).filter(|(_, rank)| rank.is_at_work);
        let overdue = ranks.filter_map(|(rank, history)| {
            let (last, limit) = judge(history)?;
            let time = self.watched.saturating_sub(last);
            (time >= limit).then_some((history.state.step, last, rank, time))
        });
        overdue.min().map(|(_, _, rank, time)| (rank, time))
    }

    /// Longest time without a heartbeat.
    fn heartbeat_limit(&self) -> Option<Duration> {
        match self.timeout {
            Patience::Never => None,
            // A busy machine delays heartbeats, which come twice a second.
            Patience::After(time) => Some(time.max(MIN_HEARTBEAT_TIMEOUT)),
            Patience::Auto => Some(self.usual_limit().unwrap_or(MIN_STALL_TIME)),
        }
    }

    /// Longest time without progress; `None` until a step has shown how long one takes.
    fn progress_limit(&self) -> Option<Duration> {
        match self.timeout {
            Patience::Never => None,
            Patience::After(time) => Some(time),
            Patience::Auto => self.usual_limit(),
        }
    }

    fn usual_limit(&self) -> Option<Duration> {
        let mut steps: Vec<Duration> = self.steps.iter().copied().collect();
        steps.sort_unstable();
        let longest = steps.get((steps.len() * 99).div_ceil(100).checked_sub(1)?)?;
        Some(MIN_STALL_TIME.max(USUAL_STEPS * *longest))
    }
}

/// True if a rank is in a phase of the training step. Other phases have no usual duration.
fn is_training(state: RankState) -> bool {
    use Phase::{Backward, Forward, LoadingData, Optimizer, Reducing};
    state.step > 0 && matches!(state.phase, LoadingData | Forward | Backward | Reducing | Optimizer)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two ranks whose parent inspects them every 200 ms.
    struct Simulation {
        stall_detector: StallDetector,
        now: Duration,
        states: [RankState; 2],
        stopped: [bool; 2],
    }

    impl Simulation {
        fn new(timeout: Patience) -> Self {
            let now = Duration::from_secs(1000);
            let (states, stopped) = ([RankState::default(); 2], [false; 2]);
            let stall_detector = StallDetector::new(timeout, Duration::from_mins(10), 2);
            Self { stall_detector, now, states, stopped }
        }

        /// One inspection later. A process that is not stopped shows a heartbeat.
        fn inspect(&mut self) -> Option<Stall> {
            self.now += Duration::from_millis(200);
            self.stall_detector.begin_inspection(self.now);
            for (rank, state) in self.states.iter_mut().enumerate() {
                state.heartbeats += u64::from(!self.stopped[rank]);
                self.stall_detector.observe(Rank(rank as u32), *state, self.stopped[rank]);
            }
            self.stall_detector.stall()
        }

        fn is_at(&mut self, rank: usize, step: u64, phase: Phase) {
            let progress = self.states[rank].progress + 1;
            self.states[rank] = RankState { step, phase, progress, ..self.states[rank] };
        }

        /// Both ranks take `n` steps of so many inspections.
        fn steps(&mut self, n: u64, inspections: u32) {
            for _ in 0..n {
                for rank in 0..2 {
                    self.is_at(rank, self.states[rank].step + 1, Phase::Forward);
                }
                for _ in 0..inspections {
                    assert_eq!(self.inspect(), None);
                }
            }
        }

        /// Inspects until a rank is named, and returns after how many seconds.
        #[track_caller]
        fn ends_with(&mut self, rank: u32, kind: StallKind) -> f64 {
            for inspections in 1..10_000 {
                if let Some(stall) = self.inspect() {
                    assert_eq!((stall.rank, stall.kind), (Rank(rank), kind));
                    return f64::from(inspections) / 5.0;
                }
            }
            panic!("no rank was named");
        }

        #[track_caller]
        fn names_no_rank(&mut self) {
            assert!((0..10_000).all(|_| self.inspect().is_none()), "a rank was named");
        }
    }

    #[test]
    fn a_rank_that_loads_for_ever_is_named_and_the_one_that_waits_for_it_is_not() {
        let mut run = Simulation::new(Patience::Auto);
        run.steps(5, 1);
        run.is_at(1, 6, Phase::LoadingData);
        run.is_at(0, 6, Phase::Reducing);
        assert_eq!(run.ends_with(1, StallKind::NoProgress), 10.2);
    }

    #[test]
    fn the_limit_follows_the_usual_step() {
        let mut run = Simulation::new(Patience::Auto);
        // Steps of four seconds.
        run.steps(5, 20);
        run.is_at(0, 6, Phase::Reducing);
        assert_eq!(run.ends_with(1, StallKind::NoProgress), 20.0 - 4.0 + 0.2);
    }

    #[test]
    fn a_stopped_rank_is_named_wherever_it_is() {
        for step in [0, 3] {
            let mut run = Simulation::new(Patience::Auto);
            run.steps(step, 1);
            run.is_at(0, step, Phase::Reducing);
            run.is_at(1, step, Phase::Evaluating);
            assert_eq!(run.inspect(), None);
            run.stopped[1] = true;
            assert_eq!(run.ends_with(1, StallKind::NoHeartbeat), 10.0);
        }
    }

    #[test]
    fn ranks_that_all_wait_are_a_deadlock_named_by_the_first_to_wait() {
        let mut run = Simulation::new(Patience::After(Duration::from_secs(2)));
        run.steps(1, 1);
        run.is_at(1, 2, Phase::Reducing);
        assert_eq!(run.inspect(), None);
        run.is_at(0, 2, Phase::Reducing);
        assert_eq!(run.ends_with(1, StallKind::Deadlock), 2.0);
    }

    #[test]
    fn a_slow_rank_that_makes_progress_is_waited_for() {
        let mut run = Simulation::new(Patience::After(Duration::from_secs(2)));
        run.steps(1, 1);
        run.is_at(0, 2, Phase::Reducing);
        for _ in 0..100 {
            run.is_at(1, 2, Phase::LoadingData);
            for _ in 0..9 {
                assert_eq!(run.inspect(), None);
            }
        }
    }

    #[test]
    fn a_rank_that_hangs_outside_of_steps_is_named_before_the_others_give_up_waiting() {
        for phase in [Phase::Evaluating, Phase::Saving, Phase::Finishing] {
            let mut run = Simulation::new(Patience::Auto);
            run.steps(3, 1);
            run.is_at(0, 4, Phase::Reducing);
            assert_eq!(run.inspect(), None);
            run.is_at(1, 3, phase);
            assert_eq!(run.ends_with(1, StallKind::NoProgress), 540.2);
            run.stall_detector.has_others = true;
            run.names_no_rank();
        }
    }

    #[test]
    fn a_rank_that_waits_for_the_disk_is_named_though_others_came_later() {
        let mut run = Simulation::new(Patience::Auto);
        run.steps(3, 1);
        run.is_at(1, 3, Phase::Saving);
        assert_eq!(run.inspect(), None);
        run.is_at(0, 3, Phase::Finishing);
        assert_eq!(run.ends_with(1, StallKind::NoProgress), 540.2);
    }

    #[test]
    fn while_one_rank_evaluates_those_that_wait_for_it_are_not_named() {
        let mut run = Simulation::new(Patience::Auto);
        run.steps(3, 1);
        run.is_at(0, 3, Phase::Evaluating);
        for _ in 0..10 {
            run.is_at(1, 3, Phase::Evaluating);
            // Nearly eight minutes for each batch.
            assert!((0..2300).all(|_| run.inspect().is_none()));
        }
    }

    #[test]
    fn nothing_is_known_of_steps_before_the_first_and_nobody_is_named_by_one_who_never_loses_patience()
     {
        // The first step may take long: nothing is known of steps yet.
        let mut run = Simulation::new(Patience::Auto);
        run.steps(1, 1);
        run.names_no_rank();
        let mut run = Simulation::new(Patience::Never);
        run.steps(9, 1);
        run.stopped[1] = true;
        run.names_no_rank();
    }

    #[test]
    fn unwatched_time_does_not_count() {
        let mut run = Simulation::new(Patience::Auto);
        run.steps(5, 1);
        run.now += Duration::from_hours(1);
        assert_eq!(run.inspect(), None);
    }

    #[test]
    fn a_rank_that_is_gone_is_not_named() {
        let mut run = Simulation::new(Patience::After(Duration::from_secs(1)));
        run.steps(1, 1);
        run.now += Duration::from_secs(5);
        run.stall_detector.begin_inspection(run.now);
        assert_eq!(run.stall_detector.stall(), None);
    }
}
