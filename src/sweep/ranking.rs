//! The order of trials: who is better, and who came further. Pure.
//!
//! How far a trial came is counted as its pruner counts: trials of different batch sizes take
//! different numbers of steps for an epoch, so that steps alone would say nothing.

use std::sync::Arc;

use crate::config::schema::Mode;
use crate::config::values::Every;
use crate::sweep::pruner::{NoPruner, Pruner};
use crate::sweep::trial::{State, Trial, cost};

/// By what trials are compared.
#[derive(Clone, Debug)]
pub struct Ranking {
    /// Whether less or more of the metric is better.
    pub goal: Mode,
    /// How far is far.
    pub pruner: Arc<dyn Pruner>,
}

impl Ranking {
    /// That of trials which no pruner stops.
    pub fn plain(goal: Mode) -> Self {
        Self { goal, pruner: Arc::new(NoPruner {}) }
    }

    /// `epochs` or `steps`.
    pub(crate) fn unit_name(&self) -> &'static str {
        match self.pruner.unit() {
            Every::Epochs(_) | Every::Never => "epochs",
            Every::Steps(_) => "steps",
        }
    }

    /// How much training a trial had at its last report.
    pub(crate) fn spent(&self, trial: &Trial) -> f64 {
        trial.reports.last().map_or(0.0, |report| trial.resource(report, self.pruner.unit()))
    }

    /// How far a trial came: to which rung, where there are rungs.
    fn far(&self, trial: &Trial) -> f64 {
        self.pruner.reached(self.spent(trial))
    }

    /// Trials that count, best first: finished ones by their value, then pruned ones by how far
    /// they came, then diverged ones; among equals the earlier one.
    pub fn ranked<'a>(&self, trials: &'a [Trial]) -> Vec<&'a Trial> {
        let key = |trial: &Trial| {
            let far = if trial.state == State::Pruned { self.far(trial) } else { 0.0 };
            (class(trial.state), -far, cost(trial.value(self.goal), self.goal), trial.number)
        };
        let mut keyed: Vec<_> = trials.iter().map(|trial| (key(trial), trial)).collect();
        keyed.sort_by(|((class, far, cost, number), _), (other, _)| {
            let by_distance = class.cmp(&other.0).then(far.total_cmp(&other.1));
            by_distance.then(cost.total_cmp(&other.2)).then(number.cmp(&other.3))
        });
        keyed.into_iter().map(|(_, trial)| trial).collect()
    }
}

fn class(state: State) -> u8 {
    match state {
        State::Finished => 0,
        State::Pruned => 1,
        State::Running => 2,
        State::Diverged => 3,
        State::Failed => 4,
    }
}

/// The best finished trial, the first of equals; if none is finished, none is the best.
pub fn best(trials: &[Trial], goal: Mode) -> Option<&Trial> {
    let finished = trials.iter().filter(|trial| trial.state == State::Finished);
    let valued = finished.filter_map(|trial| Some((trial, trial.value(goal)?)));
    let order = |(trial, value): &(&Trial, f64)| (cost(Some(*value), goal), trial.number);
    let least = valued.min_by(|a, b| {
        let (a, b) = (order(a), order(b));
        a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))
    });
    least.map(|(trial, _)| trial)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::example_sweeps::{of_batch, trial};
    use crate::sweep::pruner::Asha;
    use crate::sweep::trial::Report;

    fn plain() -> Ranking {
        Ranking::plain(Mode::Max)
    }

    /// Of trials with the pruner `asha`.
    fn asha(min_resource: Every) -> Ranking {
        let asha = Asha { min_resource, max_resource: None, reduction_factor: 2 };
        Ranking { pruner: Arc::new(asha), ..plain() }
    }

    fn numbers(ranking: &Ranking, trials: &[Trial]) -> Vec<u32> {
        ranking.ranked(trials).iter().map(|trial| trial.number).collect()
    }

    #[test]
    fn finished_trials_rank_before_pruned_and_those_before_diverged_ones() {
        let trials = [
            trial(1, State::Pruned, &[0.99]),
            trial(2, State::Diverged, &[1.0]),
            trial(3, State::Finished, &[0.2, 0.5, 0.4]),
            trial(4, State::Pruned, &[0.1, 0.2]),
            trial(5, State::Finished, &[0.5]),
            trial(6, State::Finished, &[0.9]),
        ];
        assert_eq!(numbers(&plain(), &trials), [6, 3, 5, 4, 1, 2]);
        assert_eq!(numbers(&Ranking::plain(Mode::Min), &trials), [3, 5, 6, 4, 1, 2]);
        assert_eq!(best(&trials, Mode::Max).unwrap().number, 6);
        assert_eq!(best(&trials[..2], Mode::Max), None);
    }

    #[test]
    fn trials_of_different_batches_rank_by_epochs_not_by_steps() {
        // One epoch each: 20 steps of the small batch, 10 of the large one.
        let small = of_batch(20, trial(1, State::Pruned, &[0.125]));
        let large = of_batch(10, trial(2, State::Pruned, &[0.2875]));
        let further = of_batch(5, trial(3, State::Pruned, &[0.1, 0.1]));
        assert!(small.reports[0].step > large.reports[0].step);
        let trials = [small, large, further];
        assert_eq!(numbers(&plain(), &trials), [3, 2, 1]);
        assert_eq!(numbers(&asha(Every::Epochs(1)), &trials), [3, 2, 1]);
    }

    #[test]
    fn trials_that_lost_at_the_same_rung_rank_by_their_value() {
        // Both are cut at 15 steps: one reports at 16, the other at 20, and the third reached 30.
        let at = |step, trial: Trial| {
            let value = trial.reports[0].value;
            Trial { reports: vec![Report { step, value }], ..trial }
        };
        let trials = [
            at(20, trial(1, State::Pruned, &[0.1])),
            at(16, trial(2, State::Pruned, &[0.3])),
            at(30, trial(3, State::Pruned, &[0.05])),
        ];
        assert_eq!(numbers(&asha(Every::Steps(15)), &trials), [3, 2, 1]);
        assert_eq!(numbers(&plain(), &trials), [3, 1, 2], "without rungs by what was trained");
    }
}
