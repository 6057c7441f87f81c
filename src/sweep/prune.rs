//! Whether a trial goes on, by what it and the others have reported. Pure.
//!
//! A decision is about one report and is made once. It depends on the reports up to it and on the other
//! trials as they stand, so that one trial at a time gives the same decisions however often it is interrupted.

use crate::config::schema::Mode;
use crate::config::sweep::Pruner;
use crate::config::values::Every;
use crate::sweep::trial::{State, Trial, cost};

/// Whether `trial` is given up at its report `index`. `others` are all other trials, in any order.
pub(crate) fn is_cut(
    pruner: &Pruner,
    goal: Mode,
    trial: &Trial,
    index: usize,
    others: &[&Trial],
) -> bool {
    let is_last = trial.reports[index].step >= trial.length.total_steps;
    if is_last {
        return false;
    }
    match *pruner {
        Pruner::None => false,
        Pruner::Asha { min_resource, max_resource, reduction_factor } => {
            let rungs = Rungs { first: min_resource, last: max_resource, factor: reduction_factor };
            rungs.is_cut(goal, trial, index, others)
        }
        Pruner::Median { min_resource, startup_trials } => {
            is_below_median((min_resource, startup_trials), goal, trial, index, others)
        }
    }
}

/// The highest rung that a trial has reached which was trained for so long, 0 before the first; `None` where the
/// pruner has no rungs.
pub(crate) fn rung_of(pruner: &Pruner, spent: f64) -> Option<f64> {
    let Pruner::Asha { min_resource, max_resource, reduction_factor } = *pruner else {
        return None;
    };
    let rungs = Rungs { first: min_resource, last: max_resource, factor: reduction_factor };
    Some(rungs.up_to(spent).last().unwrap_or(0.0))
}

/// Asynchronous successive halving (Li et al. 2020, <https://arxiv.org/abs/1810.05934>), in the variant that stops
/// trials instead of pausing them, as in Optuna's `SuccessiveHalvingPruner` and Ray's `ASHAScheduler`: at the rung
/// `first x factor^k` a trial goes on if it is among the best `1/factor` of those that have reached the rung so far,
/// at least if it is the best of them.
struct Rungs {
    first: Every,
    last: Option<Every>,
    factor: u64,
}

fn count(every: Every) -> f64 {
    match every {
        Every::Epochs(n) | Every::Steps(n) => n as f64,
        Every::Never => f64::INFINITY,
    }
}

impl Rungs {
    fn is_cut(&self, goal: Mode, trial: &Trial, index: usize, others: &[&Trial]) -> bool {
        let spent = |at: usize| trial.resource(&trial.reports[at], self.first);
        let before = index.checked_sub(1).map_or(0.0, spent);
        let mut new = self.up_to(spent(index)).filter(|rung| *rung > before);
        new.any(|rung| self.loses_at(rung, goal, trial, index, others))
    }

    /// The rungs that are reached with `spent`, lowest first.
    fn up_to(&self, spent: f64) -> impl Iterator<Item = f64> {
        let (factor, last) = (self.factor as f64, self.last.map_or(f64::INFINITY, count));
        let rungs = std::iter::successors(Some(count(self.first)), move |rung| Some(rung * factor));
        rungs.take_while(move |rung| *rung <= spent && *rung < last)
    }

    fn loses_at(
        &self,
        rung: f64,
        goal: Mode,
        trial: &Trial,
        index: usize,
        others: &[&Trial],
    ) -> bool {
        let own = cost(trial.reports[index].value, goal);
        let at_rung = |other: &&Trial| {
            let reached = |report: &&_| other.resource(report, self.first) >= rung;
            other.reports.iter().find(reached).map(|report| cost(report.value, goal))
        };
        let known: Vec<f64> = others.iter().filter_map(at_rung).collect();
        let places = ((known.len() + 1) / self.factor as usize).max(1);
        let better = known.iter().filter(|other| **other < own).count();
        better >= places || own.is_infinite()
    }
}

/// The median stopping rule (Golovin et al. 2017, section 3.2.2, and Optuna's `MedianPruner`): a trial ends if
/// its best report so far is worse than the median of what the finished trials reported there.
fn is_below_median(
    (first, startup): (Every, u64),
    goal: Mode,
    trial: &Trial,
    index: usize,
    others: &[&Trial],
) -> bool {
    let here = trial.resource(&trial.reports[index], first);
    if here < count(first) {
        return false;
    }
    let finished = others.iter().filter(|other| other.state == State::Finished);
    let there = |other: &&&Trial| {
        let until = |report: &&_| other.resource(report, first) <= here + 1e-9;
        other.reports.iter().rfind(until).map(|report| cost(report.value, goal))
    };
    let mut known: Vec<f64> = finished.filter_map(|other| there(&other)).collect();
    if (known.len() as u64) < startup.max(1) {
        return false;
    }
    known.sort_by(f64::total_cmp);
    let (low, high) = (known[(known.len() - 1) / 2], known[known.len() / 2]);
    let reports = &trial.reports[..=index];
    let best = reports.iter().map(|report| cost(report.value, goal)).fold(f64::INFINITY, f64::min);
    best > f64::midpoint(low, high) || best.is_infinite()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::examples::{of_batch, trial};

    const ASHA: Pruner =
        Pruner::Asha { min_resource: Every::Epochs(1), max_resource: None, reduction_factor: 3 };

    const MEDIAN: Pruner = Pruner::Median { min_resource: Every::Epochs(1), startup_trials: 1 };

    /// Runs trials one after another; each is given by its reports, one per epoch of ten steps, and is ten epochs
    /// long. Returns the epoch in which each was cut.
    fn cuts(pruner: &Pruner, goal: Mode, all: &[&[f64]]) -> Vec<Option<usize>> {
        let mut done: Vec<Trial> = Vec::new();
        let mut cuts = Vec::new();
        for reports in all {
            let mut next = trial(done.len() as u32 + 1, State::Finished, reports);
            let others: Vec<&Trial> = done.iter().collect();
            let cut = (0..reports.len()).find(|&at| is_cut(pruner, goal, &next, at, &others));
            if let Some(at) = cut {
                next.state = State::Pruned;
                next.reports.truncate(at + 1);
            }
            cuts.push(cut.map(|at| at + 1));
            done.push(next);
        }
        cuts
    }

    #[test]
    fn asha_keeps_the_best_third_of_each_rung() {
        let flat: Vec<[f64; 4]> =
            [0.5, 0.4, 0.6, 0.55, 0.7, 0.65, 0.1].iter().map(|value| [*value; 4]).collect();
        let all: Vec<&[f64]> = flat.iter().map(<[f64; 4]>::as_slice).collect();
        // The third value is the best so far; the sixth the second best of six, which has two places.
        let expected = [None, Some(1), None, Some(1), None, Some(3), Some(1)];
        assert_eq!(cuts(&ASHA, Mode::Max, &all), expected);
    }

    #[test]
    fn asha_compares_at_rungs_only_and_never_at_the_end_or_past_the_last_rung() {
        let good: &[f64] = &[0.9; 9];
        let falls: &[f64] = &[0.9, 0.1, 0.9, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1];
        assert_eq!(cuts(&ASHA, Mode::Max, &[good, falls]), [None, Some(9)]);
        let short = Pruner::Asha {
            min_resource: Every::Epochs(1),
            max_resource: Some(Every::Epochs(9)),
            reduction_factor: 3,
        };
        assert_eq!(cuts(&short, Mode::Max, &[good, falls]), [None, None]);
        let only_last: &[f64] = &[f64::NAN; 10];
        let mut last = trial(2, State::Running, only_last);
        last.reports.drain(..9);
        assert!(!is_cut(&ASHA, Mode::Max, &last, 0, &[]), "nothing is saved by cutting at the end");
    }

    #[test]
    fn a_rung_that_falls_between_two_reports_counts_at_the_second() {
        let steps = Pruner::Asha {
            min_resource: Every::Steps(15),
            max_resource: None,
            reduction_factor: 2,
        };
        let (good, bad): (&[f64], &[f64]) = (&[0.9; 5], &[0.1; 5]);
        assert_eq!(cuts(&steps, Mode::Max, &[good, bad]), [None, Some(2)]);
    }

    #[test]
    fn trials_of_different_batches_meet_at_the_same_epochs() {
        // 0.2 after one epoch is the worse of the two, whichever took more steps for it.
        for (steps, other) in [(5, 20), (20, 5)] {
            let good = of_batch(steps, trial(1, State::Finished, &[0.5; 9]));
            let bad = of_batch(other, trial(2, State::Running, &[0.2; 4]));
            let better = of_batch(other, trial(3, State::Running, &[0.7; 4]));
            for pruner in [ASHA, MEDIAN] {
                assert!(is_cut(&pruner, Mode::Max, &bad, 0, &[&good]), "{steps} {pruner:?}");
                assert!(!is_cut(&pruner, Mode::Max, &bad, 1, &[]), "{steps} {pruner:?}");
                assert!(!is_cut(&pruner, Mode::Max, &better, 0, &[&good]), "{steps} {pruner:?}");
            }
            // Between two rungs no trial is asked.
            assert!(!is_cut(&ASHA, Mode::Max, &bad, 1, &[&good]), "{steps}");
        }
    }

    #[test]
    fn median_waits_for_five_trials_and_then_cuts_what_is_worse_than_their_median() {
        let median = Pruner::Median { min_resource: Every::Epochs(2), startup_trials: 5 };
        let losses: Vec<[f64; 3]> = [5.0, 4.0, 3.0, 2.0, 1.0, 3.1, 2.9].map(|v| [v; 3]).to_vec();
        let all: Vec<&[f64]> = losses.iter().map(<[f64; 3]>::as_slice).collect();
        let cuts = cuts(&median, Mode::Min, &all);
        assert_eq!(cuts, [None, None, None, None, None, Some(2), None]);
    }
}
