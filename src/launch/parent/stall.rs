//! Which rank holds up the group, judged by what the ranks write about themselves. Pure.
//!
//! Two heartbeats: a rank *moves* when its training thread says where it is (or its loader has read a sample),
//! and *lives* while a thread of its own counts. A process that does not live is stopped, or starved; one that
//! lives and does not move hangs. A rank that waits for others in a collective is not to blame while one
//! of them can be.
//!
//! Time is watched time: while the parent itself stands still (Ctrl-Z, a suspended machine), so do all limits.

use std::collections::VecDeque;
use std::time::Duration;

use crate::launch::Phase;
use crate::launch::rank::status::Sign;
use crate::plan::Patience;
use crate::units::Rank;

/// Least time after which a rank counts as stalled, unless the experiment says otherwise.
const LEAST: Duration = Duration::from_secs(10);
/// Least time without a sign of life after which a process counts as lifeless.
const LEAST_LIFE: Duration = Duration::from_secs(3);
/// Times the usual step after which a rank counts as stalled.
const STEPS: u32 = 5;
/// Steps from which the usual one is learnt.
const REMEMBERED: usize = 512;
/// Longest time between two looks that counts as watched.
const BLINK: Duration = Duration::from_secs(1);

/// A rank that holds up the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::launch) struct Stall {
    pub(in crate::launch) rank: Rank,
    pub(in crate::launch) kind: Kind,
    /// For how long.
    pub(in crate::launch) time: Duration,
}

/// What is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::launch) enum Kind {
    /// Its process shows no sign of life.
    Lifeless,
    /// It lives, and does not move.
    Silent,
    /// It waits in a collective, as all others do.
    Together,
}

/// Follows the signs of all ranks.
pub(in crate::launch) struct StallDetector {
    patience: Patience,
    ranks: Vec<Pulse>,
    /// Durations of the last steps.
    steps: VecDeque<Duration>,
    /// When the last look was, by the clock.
    looked: Option<Duration>,
    watched: Duration,
    /// Whether there are ranks that are watched on other machines.
    has_others: bool,
}

/// A rank, in watched time.
#[derive(Clone, Copy, Default)]
struct Pulse {
    sign: Sign,
    moved: Duration,
    lived: Duration,
    step_began: Duration,
    /// Whether its process exists and has work left.
    is_here: bool,
}

impl StallDetector {
    pub(in crate::launch) fn new(patience: Patience, world: usize) -> Self {
        let (ranks, steps) = (vec![Pulse::default(); world], VecDeque::new());
        let (looked, watched, has_others) = (None, Duration::ZERO, false);
        Self { patience, ranks, steps, looked, watched, has_others }
    }

    /// The same, beside ranks that other machines watch: who waits, may wait for those.
    pub(in crate::launch) fn among_others(self, has_others: bool) -> Self {
        Self { has_others, ..self }
    }

    /// Begins a look at all ranks, at `now` by the clock.
    pub(in crate::launch) fn look(&mut self, now: Duration) {
        let since =
            self.looked.replace(now).map_or(Duration::ZERO, |then| now.saturating_sub(then));
        self.watched += since.min(BLINK);
        self.ranks.iter_mut().for_each(|pulse| pulse.is_here = false);
    }

    /// Takes in the sign of a rank that has work left. `is_stopped`: a signal stopped its process.
    pub(in crate::launch) fn see(&mut self, rank: Rank, sign: Sign, is_stopped: bool) {
        let pulse = &mut self.ranks[rank.index()];
        let before = std::mem::replace(&mut pulse.sign, sign);
        pulse.is_here = true;
        // Before its first beat a process is being loaded, which only a stop can hold up.
        if sign.beats != before.beats || (sign.beats == 0 && !is_stopped) {
            pulse.lived = self.watched;
        }
        if sign.moves != before.moves {
            pulse.moved = self.watched;
        }
        if sign.step > before.step {
            let time = self.watched.saturating_sub(pulse.step_began);
            pulse.step_began = self.watched;
            if before.step > 0 {
                self.steps.push_back(time / (sign.step - before.step).min(u32::MAX.into()) as u32);
                self.steps.drain(..self.steps.len().saturating_sub(REMEMBERED));
            }
        }
    }

    /// The rank that has held up the group for too long.
    pub(in crate::launch) fn stall(&self) -> Option<Stall> {
        let lifeless = self.overdue(|pulse| self.life_limit().map(|limit| (pulse.lived, limit)));
        let silent = |waits: bool| {
            move |pulse: &Pulse| {
                let judged =
                    is_training(pulse.sign) && waits == (pulse.sign.phase == Phase::Reducing);
                self.move_limit().filter(|_| judged).map(|limit| (pulse.moved, limit))
            }
        };
        let all_wait = || {
            let mut here = self.ranks.iter().filter(|pulse| pulse.is_here);
            !self.has_others
                && here.all(|pulse| pulse.sign.phase == Phase::Reducing && is_training(pulse.sign))
        };
        let found = |kind| move |(rank, time)| Stall { rank, kind, time };
        lifeless
            .map(found(Kind::Lifeless))
            .or_else(|| self.overdue(silent(false)).map(found(Kind::Silent)))
            .or_else(|| {
                self.overdue(silent(true)).filter(|_| all_wait()).map(found(Kind::Together))
            })
    }

    /// The rank that is furthest behind among those whose last sign, as `judge` says, is older than its limit.
    fn overdue(
        &self,
        judge: impl Fn(&Pulse) -> Option<(Duration, Duration)>,
    ) -> Option<(Rank, Duration)> {
        let ranks = (0..).map(Rank).zip(&self.ranks).filter(|(_, pulse)| pulse.is_here);
        let overdue = ranks.filter_map(|(rank, pulse)| {
            let (last, limit) = judge(pulse)?;
            let time = self.watched.saturating_sub(last);
            (time >= limit).then_some((pulse.sign.step, last, rank, time))
        });
        overdue.min().map(|(_, _, rank, time)| (rank, time))
    }

    /// Longest time without a sign of life.
    fn life_limit(&self) -> Option<Duration> {
        match self.patience {
            Patience::Never => None,
            // A busy machine delays the heartbeat, which comes twice a second.
            Patience::After(time) => Some(time.max(LEAST_LIFE)),
            Patience::Auto => Some(self.usual_limit().unwrap_or(LEAST)),
        }
    }

    /// Longest time without a move; `None` while no step has told how long one takes.
    fn move_limit(&self) -> Option<Duration> {
        match self.patience {
            Patience::Never => None,
            Patience::After(time) => Some(time),
            Patience::Auto => self.usual_limit(),
        }
    }

    fn usual_limit(&self) -> Option<Duration> {
        let mut steps: Vec<Duration> = self.steps.iter().copied().collect();
        steps.sort_unstable();
        let longest = steps.get((steps.len() * 99).div_ceil(100).checked_sub(1)?)?;
        Some(LEAST.max(STEPS * *longest))
    }
}

/// Whether a rank is in a phase of the training step. Nobody knows how long the others may take: they have
/// the deadline of the collectives alone.
fn is_training(sign: Sign) -> bool {
    use Phase::{Backward, Forward, LoadingData, Optimizer, Reducing};
    sign.step > 0 && matches!(sign.phase, LoadingData | Forward | Backward | Reducing | Optimizer)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two ranks whose parent looks every 200 ms.
    struct Story {
        stall_detector: StallDetector,
        now: Duration,
        signs: [Sign; 2],
        stopped: [bool; 2],
    }

    impl Story {
        fn new(patience: Patience) -> Self {
            let now = Duration::from_secs(1000);
            let (signs, stopped) = ([Sign::default(); 2], [false; 2]);
            Self { stall_detector: StallDetector::new(patience, 2), now, signs, stopped }
        }

        /// One look later. A process that is not stopped shows that it lives.
        fn look(&mut self) -> Option<Stall> {
            self.now += Duration::from_millis(200);
            self.stall_detector.look(self.now);
            for (rank, sign) in self.signs.iter_mut().enumerate() {
                sign.beats += u64::from(!self.stopped[rank]);
                self.stall_detector.see(Rank(rank as u32), *sign, self.stopped[rank]);
            }
            self.stall_detector.stall()
        }

        fn is_at(&mut self, rank: usize, step: u64, phase: Phase) {
            let moves = self.signs[rank].moves + 1;
            self.signs[rank] = Sign { step, phase, moves, ..self.signs[rank] };
        }

        /// Both ranks take `n` steps of so many looks.
        fn steps(&mut self, n: u64, looks: u32) {
            for _ in 0..n {
                for rank in 0..2 {
                    self.is_at(rank, self.signs[rank].step + 1, Phase::Forward);
                }
                for _ in 0..looks {
                    assert_eq!(self.look(), None);
                }
            }
        }

        /// Looks on until somebody is named, and says after how many seconds.
        #[track_caller]
        fn ends_with(&mut self, rank: u32, kind: Kind) -> f64 {
            for looks in 1..10_000 {
                if let Some(stall) = self.look() {
                    assert_eq!((stall.rank, stall.kind), (Rank(rank), kind));
                    return f64::from(looks) / 5.0;
                }
            }
            panic!("nobody was named");
        }

        #[track_caller]
        fn names_nobody(&mut self) {
            assert!((0..10_000).all(|_| self.look().is_none()), "somebody was named");
        }
    }

    #[test]
    fn a_rank_that_loads_for_ever_is_named_and_the_one_that_waits_for_it_is_not() {
        let mut story = Story::new(Patience::Auto);
        story.steps(5, 1);
        story.is_at(1, 6, Phase::LoadingData);
        story.is_at(0, 6, Phase::Reducing);
        assert_eq!(story.ends_with(1, Kind::Silent), 10.2);
    }

    #[test]
    fn the_limit_follows_the_usual_step() {
        let mut story = Story::new(Patience::Auto);
        // Steps of four seconds.
        story.steps(5, 20);
        story.is_at(0, 6, Phase::Reducing);
        assert_eq!(story.ends_with(1, Kind::Silent), 20.0 - 4.0 + 0.2);
    }

    #[test]
    fn a_stopped_rank_is_named_wherever_it_is() {
        for step in [0, 3] {
            let mut story = Story::new(Patience::Auto);
            story.steps(step, 1);
            story.is_at(0, step, Phase::Reducing);
            story.is_at(1, step, Phase::Evaluating);
            assert_eq!(story.look(), None);
            story.stopped[1] = true;
            assert_eq!(story.ends_with(1, Kind::Lifeless), 10.0);
        }
    }

    #[test]
    fn ranks_that_all_wait_are_named_together_by_who_came_first() {
        let mut story = Story::new(Patience::After(Duration::from_secs(2)));
        story.steps(1, 1);
        story.is_at(1, 2, Phase::Reducing);
        assert_eq!(story.look(), None);
        story.is_at(0, 2, Phase::Reducing);
        assert_eq!(story.ends_with(1, Kind::Together), 2.0);
    }

    #[test]
    fn a_slow_rank_that_moves_is_waited_for() {
        let mut story = Story::new(Patience::After(Duration::from_secs(2)));
        story.steps(1, 1);
        story.is_at(0, 2, Phase::Reducing);
        for _ in 0..100 {
            story.is_at(1, 2, Phase::LoadingData);
            for _ in 0..9 {
                assert_eq!(story.look(), None);
            }
        }
    }

    #[test]
    fn what_has_no_usual_time_is_left_to_the_deadline_of_the_collectives() {
        for phase in [Phase::Evaluating, Phase::Saving, Phase::Finishing] {
            let mut story = Story::new(Patience::Auto);
            story.steps(3, 1);
            story.is_at(1, 3, phase);
            story.is_at(0, 4, Phase::Reducing);
            story.names_nobody();
        }
        // The first step may take long: nothing is known of steps yet.
        let mut story = Story::new(Patience::Auto);
        story.steps(1, 1);
        story.names_nobody();
        let mut story = Story::new(Patience::Never);
        story.steps(9, 1);
        story.stopped[1] = true;
        story.names_nobody();
    }

    #[test]
    fn time_in_which_nobody_watched_does_not_count() {
        let mut story = Story::new(Patience::Auto);
        story.steps(5, 1);
        story.now += Duration::from_hours(1);
        assert_eq!(story.look(), None);
    }

    #[test]
    fn a_rank_that_is_gone_is_not_named() {
        let mut story = Story::new(Patience::After(Duration::from_secs(1)));
        story.steps(1, 1);
        story.now += Duration::from_secs(5);
        story.stall_detector.look(story.now);
        assert_eq!(story.stall_detector.stall(), None);
    }
}
