//! Ranking of trials by value and by the length of their training. Pure.
//!
//! The length of training is measured in the unit of the pruner: trials of different batch sizes
//! take different numbers of steps for an epoch, so that steps alone would say nothing.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

use crate::config::schema::Mode;
use crate::config::sweep::Values;
use crate::config::values::Interval;
use crate::sweep::pruner::{NoPruner, Pruner};
use crate::sweep::repeats::{over, repeats, repeats_of, shared};
use crate::sweep::trial::{State, Trial, cost};

/// Comparison of trials.
#[derive(Clone, Debug)]
pub struct Ranking {
    /// Direction in which the metric improves.
    pub goal: Mode,
    /// Measures the length of training.
    pub pruner: Arc<dyn Pruner>,
}

impl Ranking {
    /// The ranking of trials without a pruner.
    pub fn plain(goal: Mode) -> Self {
        Self { goal, pruner: Arc::new(NoPruner {}) }
    }

    /// `epochs` or `steps`.
    pub(crate) fn unit_name(&self) -> &'static str {
        match self.pruner.unit() {
            Interval::Epochs(_) | Interval::Never => "epochs",
            Interval::Steps(_) => "steps",
        }
    }

    /// Training of a trial up to its last report, in the unit of the pruner.
    pub(crate) fn spent(&self, trial: &Trial) -> f64 {
        trial.reports.last().map_or(0.0, |report| trial.resource(report, self.pruner.unit()))
    }

    /// Training of a trial as the pruner counts it: the last rung, if there are rungs.
    fn far(&self, trial: &Trial) -> f64 {
        self.pruner.reached(self.spent(trial))
    }

    /// Trials, best first: finished ones by their value, or the mean over the folds and seeds of
    /// their setting, before which no single result comes; then pruned ones by their training, and
    /// with them finished ones that were shorter and worse; then diverged ones; among equals the
    /// earlier one.
    pub fn ranked<'a>(&self, trials: &'a [Trial]) -> Vec<&'a Trial> {
        let standings = Standings::of(trials, self.goal);
        let key = |trial: &Trial| {
            let class = standings.class(trial);
            let far = if class == class_of(State::Pruned) { self.far(trial) } else { 0.0 };
            let cost = cost(trial.value(self.goal), self.goal);
            (class, -far, standings.setting(trial), cost, trial.number)
        };
        let mut keyed: Vec<_> = trials.iter().map(|trial| (key(trial), trial)).collect();
        keyed.sort_by(|((class, far, setting, cost, number), _), (other, _)| {
            let by_distance = class.cmp(&other.0).then(far.total_cmp(&other.1));
            let by_value = setting.compare(&other.2).then(cost.total_cmp(&other.3));
            by_distance.then(by_value).then(number.cmp(&other.4))
        });
        keyed.into_iter().map(|(_, trial)| trial).collect()
    }
}

/// How good the setting of a trial is.
#[derive(Clone, Copy)]
struct Standing {
    /// True if trials of it were pruned or diverged: what is left is its better part.
    is_lost: bool,
    /// Cost of the mean, or of the only result of a setting that was not repeated.
    cost: f64,
    /// Place among the means; after all of them without one.
    place: usize,
}

impl Standing {
    fn compare(&self, other: &Self) -> Ordering {
        let by_cost = self.is_lost.cmp(&other.is_lost).then(self.cost.total_cmp(&other.cost));
        by_cost.then(self.place.cmp(&other.place))
    }
}

/// Criteria that precede a trial's own value.
struct Standings {
    goal: Mode,
    /// Standing of the setting of each finished trial whose setting was repeated.
    settings: HashMap<u32, Standing>,
    /// Cost of the best mean.
    best_mean: f64,
    /// Epochs and cost of each pruned trial.
    pruned: Vec<(f64, f64)>,
}

impl Standings {
    fn of(trials: &[Trial], goal: Mode) -> Self {
        let repeated = repeats(trials, goal);
        let best_mean = repeated.first().map_or(f64::NEG_INFINITY, |best| {
            if best.n_lost > 0 { f64::NEG_INFINITY } else { cost(Some(best.mean), goal) }
        });
        let settings = repeated.into_iter().enumerate().flat_map(|(place, setting)| {
            let cost = cost(Some(setting.mean), goal);
            let standing = Standing { is_lost: setting.n_lost > 0, cost, place };
            setting.trials.into_iter().map(move |one| (one, standing))
        });
        let pruned = trials.iter().filter(|trial| trial.state == State::Pruned);
        let pruned =
            pruned.filter_map(|trial| Some((trial.epochs()?, cost(trial.value(goal), goal))));
        Self { goal, settings: settings.collect(), best_mean, pruned: pruned.collect() }
    }

    /// One lucky result does not rank before the best mean.
    fn setting(&self, trial: &Trial) -> Standing {
        let own = cost(trial.value(self.goal), self.goal).max(self.best_mean);
        let alone = Standing { is_lost: false, cost: own, place: usize::MAX };
        self.settings.get(&trial.number).copied().unwrap_or(alone)
    }

    /// A trial that is too short to be pruned is not better for having finished than one that was
    /// pruned later with a better value.
    fn class(&self, trial: &Trial) -> u8 {
        let length = trial.length.total_steps as f64 / trial.length.steps_per_epoch.max(1) as f64;
        let own = cost(trial.value(self.goal), self.goal);
        let outdone = trial.state == State::Finished
            && self.pruned.iter().any(|(epochs, cost)| *epochs > length && *cost < own);
        class_of(if outdone { State::Pruned } else { trial.state })
    }
}

fn class_of(state: State) -> u8 {
    match state {
        State::Finished => 0,
        State::Pruned => 1,
        State::Running => 2,
        State::Diverged => 3,
        State::Failed => 4,
    }
}

/// The best finished trial, the first of equals: by the mean over the folds and seeds of its
/// setting, where these are swept, and in that setting by its value. If none is finished, none is
/// the best.
pub fn best(trials: &[Trial], goal: Mode) -> Option<&Trial> {
    let standings = Standings::of(trials, goal);
    let finished = trials.iter().filter(|trial| trial.state == State::Finished);
    let valued = finished.filter_map(|trial| {
        let cost = cost(Some(trial.value(goal)?), goal);
        Some((trial, (standings.class(trial), standings.setting(trial), cost, trial.number)))
    });
    let least = valued.min_by(|(_, a), (_, b)| {
        let by_setting = a.0.cmp(&b.0).then(a.1.compare(&b.1));
        by_setting.then(a.2.total_cmp(&b.2)).then(a.3.cmp(&b.3))
    });
    least.map(|(trial, _)| trial)
}

/// True if the best finished trial is as good as `until`: by the mean of its setting, where folds or
/// seeds are swept.
pub(super) fn reaches(trials: &[Trial], goal: Mode, until: f64) -> bool {
    let value = |trial: &Trial| {
        if over(trials).is_empty() {
            trial.value(goal)
        } else {
            repeats_of(trials, goal, trial.number).map(|setting| setting.mean)
        }
    };
    let reached = best(trials, goal).and_then(value);
    reached.is_some_and(|value| cost(Some(value), goal) <= cost(Some(until), goal))
}

/// Number of settings that were begun after the best one and have ended, without those that failed;
/// 0 if there is no best one.
pub(super) fn n_not_better(trials: &[Trial], goal: Mode) -> usize {
    let Some(best) = best(trials, goal) else { return 0 };
    let mut before: Vec<Values> = Vec::new();
    let mut after: Vec<Values> = Vec::new();
    let setting = shared(&best.values);
    let first = trials.iter().find(|trial| shared(&trial.values) == setting).unwrap_or(best);
    for trial in trials {
        let values = shared(&trial.values);
        if trial.number <= first.number {
            before.push(values);
        } else if !matches!(trial.state, State::Running | State::Failed)
            && !before.contains(&values)
            && !after.contains(&values)
        {
            after.push(values);
        }
    }
    after.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::example_sweeps::{of_batch, trial};
    use crate::sweep::pruner::Asha;
    use crate::sweep::trial::{Length, Report};

    fn plain() -> Ranking {
        Ranking::plain(Mode::Max)
    }

    /// The ranking of trials with the pruner `asha`.
    fn asha(min_resource: Interval) -> Ranking {
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
        assert_eq!(numbers(&asha(Interval::Epochs(1)), &trials), [3, 2, 1]);
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
        assert_eq!(numbers(&asha(Interval::Steps(15)), &trials), [3, 2, 1]);
        assert_eq!(numbers(&plain(), &trials), [3, 1, 2], "without rungs by what was trained");
    }

    #[test]
    fn the_best_is_of_the_setting_with_the_best_mean_not_the_luckiest_fold() {
        let of = |number, lr: f64, fold: u32, value| Trial {
            values: vec![("optimizer.lr".into(), lr.into()), ("data.fold".into(), fold.into())],
            ..trial(number, State::Finished, &[value])
        };
        let trials =
            [of(1, 0.1, 0, 0.99), of(2, 0.1, 1, 0.1), of(3, 0.2, 0, 0.7), of(4, 0.2, 1, 0.8)];
        assert_eq!(numbers(&plain(), &trials), [4, 3, 1, 2]);
        assert_eq!(best(&trials, Mode::Max).unwrap().number, 4);
        assert_eq!(best(&trials[..3], Mode::Max).unwrap().number, 1, "the only setting repeated");
        // Each has a seed of its own: there are no means.
        let seeds = [of(1, 0.1, 0, 0.9), of(2, 0.2, 1, 0.95)];
        assert_eq!(best(&seeds, Mode::Max).unwrap().number, 2);
    }

    #[test]
    fn a_trial_too_short_for_a_rung_does_not_outrank_what_was_given_up_later_and_was_better() {
        let length = |epochs: u64| Length { steps_per_epoch: 10, total_steps: 10 * epochs };
        let short = Trial { length: length(1), ..trial(1, State::Finished, &[0.6]) };
        let good = Trial { length: length(1), ..trial(2, State::Finished, &[0.8]) };
        let trials = [
            short,
            good,
            trial(3, State::Pruned, &[0.5, 0.6, 0.7]),
            trial(4, State::Finished, &[0.5; 10]),
            trial(5, State::Pruned, &[0.1, 0.1, 0.1]),
        ];
        let ranking = asha(Interval::Epochs(3));
        assert_eq!(numbers(&ranking, &trials), [2, 4, 3, 5, 1]);
        assert_eq!(best(&trials, Mode::Max).unwrap().number, 2);
        assert_eq!(best(&trials[..1], Mode::Max).unwrap().number, 1);
    }
}
