//! `sweep.pruner = "median"`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Kind, OptionConflict};
use crate::config::values::Interval;
use crate::sweep::pruner::{AMOUNT, Pruner, Running, count, countable};
use crate::sweep::trial::{State, cost};

/// the median stopping rule (Golovin et al. 2017, section 3.2.2, as Optuna's `MedianPruner`): a
/// trial stops if its best value so far is worse than the median of the finished trials at the same
/// point.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Median {
    /// no trial is stopped before this: "3 epochs" or "500 steps".
    #[schemars(extend("pattern" = AMOUNT))]
    pub min_resource: Interval,
    /// finished trials before any trial is stopped.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub startup_trials: u64,
}

impl Default for Median {
    fn default() -> Self {
        Self { min_resource: Interval::Epochs(1), startup_trials: 5 }
    }
}

impl Kind for Median {
    const NAME: &'static str = "median";

    fn check(&self) -> Vec<OptionConflict> {
        countable("min_resource", self.min_resource).into_iter().collect()
    }
}

impl Pruner for Median {
    fn unit(&self) -> Interval {
        self.min_resource
    }

    fn least(&self) -> Option<Interval> {
        Some(self.min_resource)
    }

    fn is_cut(&self, running: &Running<'_>) -> bool {
        let Running { goal, trial, index, others } = *running;
        let here = trial.resource(&trial.reports[index], self.min_resource);
        if here < count(self.min_resource) {
            return false;
        }
        let finished = others.iter().filter(|other| other.state == State::Finished);
        let there = |other: &&&crate::sweep::trial::Trial| {
            let until = |report: &&_| other.resource(report, self.min_resource) <= here + 1e-9;
            other.reports.iter().rfind(until).map(|report| cost(report.value, goal))
        };
        let mut known: Vec<f64> = finished.filter_map(|other| there(&other)).collect();
        if (known.len() as u64) < self.startup_trials.max(1) {
            return false;
        }
        known.sort_by(f64::total_cmp);
        let low = known[(known.len() - 1) / 2];
        let high = known[known.len() / 2];
        let reports = &trial.reports[..=index];
        let best =
            reports.iter().map(|report| cost(report.value, goal)).fold(f64::INFINITY, f64::min);
        best > f64::midpoint(low, high) || best.is_infinite()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::schema::Mode;
    use crate::sweep::pruner::tests::cuts;

    #[test]
    fn median_waits_for_five_trials_and_then_cuts_what_is_worse_than_their_median() {
        let median = Median { min_resource: Interval::Epochs(2), startup_trials: 5 };
        let losses: Vec<[f64; 3]> = [5.0, 4.0, 3.0, 2.0, 1.0, 3.1, 2.9].map(|v| [v; 3]).to_vec();
        let all: Vec<&[f64]> = losses.iter().map(<[f64; 3]>::as_slice).collect();
        let cuts = cuts(&median, Mode::Min, &all);
        assert_eq!(cuts, [None, None, None, None, None, Some(2), None]);
    }
}
