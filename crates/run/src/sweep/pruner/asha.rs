//! `sweep.pruner = "asha"`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Kind, OptionConflict};
use crate::config::values::Interval::{self, Epochs, Steps};
use crate::sweep::pruner::{AMOUNT, Pruner, Running, count, countable};
use crate::sweep::trial::{Trial, cost};

/// asynchronous successive halving (Li et al. 2020, <https://arxiv.org/abs/1810.05934>), in the
/// variant that stops trials instead of pausing them, as Optuna's `SuccessiveHalvingPruner`: at
/// each rung, a trial continues if it is among the best `1/reduction_factor` of the trials that
/// reached it, or the best of them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Asha {
    /// the first rung: "1 epoch" or "500 steps".
    #[schemars(extend("pattern" = AMOUNT))]
    pub min_resource: Interval,
    /// where pruning ends, in the unit of `min_resource`. Default: the run's length.
    #[schemars(extend("pattern" = AMOUNT))]
    pub max_resource: Option<Interval>,
    /// one in this many trials continues at each rung, and each rung is this many times later.
    #[schemars(range(min = 2, max = 100))]
    pub reduction_factor: u64,
}

impl Default for Asha {
    fn default() -> Self {
        Self { min_resource: Epochs(1), max_resource: None, reduction_factor: 3 }
    }
}

impl Kind for Asha {
    const NAME: &'static str = "asha";

    fn check(&self) -> Vec<OptionConflict> {
        let first = countable("min_resource", self.min_resource);
        let last = self.max_resource.and_then(|last| {
            countable("max_resource", last).or_else(|| {
                let is_longer = match (self.min_resource, last) {
                    (Epochs(min), Epochs(max)) | (Steps(min), Steps(max)) => max > min,
                    _ => false,
                };
                let first = self.min_resource;
                let what = format!("must be more than `min_resource`, {first}, in the same unit");
                let wrong = OptionConflict { key: "max_resource", with: &["min_resource"], what };
                (!is_longer && self.is_sound()).then_some(wrong)
            })
        });
        first.into_iter().chain(last).collect()
    }
}

impl Pruner for Asha {
    fn unit(&self) -> Interval {
        self.min_resource
    }

    fn least(&self) -> Option<Interval> {
        Some(self.min_resource)
    }

    fn is_cut(&self, running: &Running<'_>) -> bool {
        let trial = running.trial;
        let index = running.index;
        let spent = |at: usize| trial.resource(&trial.reports[at], self.min_resource);
        let before = index.checked_sub(1).map_or(0.0, spent);
        let mut new = self.rungs(spent(index)).filter(|rung| *rung > before);
        new.any(|rung| self.loses_at(rung, running))
    }

    fn reached(&self, spent: f64) -> f64 {
        self.rungs(spent).last().unwrap_or(0.0)
    }
}

impl Asha {
    /// True if there is a first rung.
    fn is_sound(&self) -> bool {
        countable("min_resource", self.min_resource).is_none()
    }

    /// The rungs reached with `spent`, lowest first: `min_resource` x
    /// `reduction_factor`^k.
    fn rungs(&self, spent: f64) -> impl Iterator<Item = f64> + use<> {
        let factor = self.reduction_factor as f64;
        let last = self.max_resource.map_or(f64::INFINITY, count);
        let first = count(self.min_resource);
        let rungs = std::iter::successors(Some(first), move |rung| Some(rung * factor));
        rungs.take_while(move |rung| *rung <= spent && *rung < last)
    }

    fn loses_at(&self, rung: f64, running: &Running<'_>) -> bool {
        let goal = running.goal;
        let own = cost(running.trial.reports[running.index].value, goal);
        let at_rung = |other: &&Trial| {
            let reached = |report: &&_| other.resource(report, self.min_resource) >= rung;
            other.reports.iter().find(reached).map(|report| cost(report.value, goal))
        };
        let known: Vec<f64> = running.others.iter().filter_map(at_rung).collect();
        let places = ((known.len() + 1) / self.reduction_factor as usize).max(1);
        let better = known.iter().filter(|other| **other < own).count();
        better >= places || own.is_infinite()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::schema::Mode;
    use crate::sweep::example_sweeps::trial;
    use crate::sweep::pruner::is_cut;
    use crate::sweep::pruner::tests::{ASHA, cuts};
    use crate::sweep::trial::State;

    #[test]
    fn asha_keeps_the_best_third_of_each_rung() {
        let flat: Vec<[f64; 4]> =
            [0.5, 0.4, 0.6, 0.55, 0.7, 0.65, 0.1].iter().map(|value| [*value; 4]).collect();
        let all: Vec<&[f64]> = flat.iter().map(<[f64; 4]>::as_slice).collect();
        // The third value is the best so far; the sixth the second best of six, which has two
        // places.
        let expected = [None, Some(1), None, Some(1), None, Some(3), Some(1)];
        assert_eq!(cuts(&ASHA, Mode::Max, &all), expected);
    }

    #[test]
    fn asha_compares_at_rungs_only_and_never_at_the_end_or_past_the_last_rung() {
        let good: &[f64] = &[0.9; 9];
        let falls: &[f64] = &[0.9, 0.1, 0.9, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1];
        assert_eq!(cuts(&ASHA, Mode::Max, &[good, falls]), [None, Some(9)]);
        let short = Asha { max_resource: Some(Epochs(9)), ..ASHA };
        assert_eq!(cuts(&short, Mode::Max, &[good, falls]), [None, None]);
        let only_last: &[f64] = &[f64::NAN; 10];
        let mut last = trial(2, State::Running, only_last);
        last.reports.drain(..9);
        let running = Running { goal: Mode::Max, trial: &last, index: 0, others: &[] };
        assert!(!is_cut(&ASHA, &running), "nothing is saved by cutting at the end");
    }

    #[test]
    fn a_rung_that_falls_between_two_reports_counts_at_the_second() {
        let steps = Asha { min_resource: Steps(15), max_resource: None, reduction_factor: 2 };
        let (good, bad): (&[f64], &[f64]) = (&[0.9; 5], &[0.1; 5]);
        assert_eq!(cuts(&steps, Mode::Max, &[good, bad]), [None, Some(2)]);
    }
}
