//! Pruners, which stop trials early by the reports of all trials: `none` here, the others one source
//! file each. Pure.
//!
//! A decision is about one report and is made once. It depends on the reports up to it and on the
//! present reports of the other trials, so that a sweep with one trial at a time makes the same
//! decisions however often it is interrupted.

mod asha;
mod median;

use std::fmt::Debug;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Kind, OptionConflict};
use crate::config::schema::Mode;
use crate::config::sweep::PRUNER;
use crate::config::values::Interval;
use crate::registry::{Accepts, Family, Registered, Registry};
use crate::sweep::trial::Trial;

pub use asha::Asha;
pub use median::Median;

/// Stops trials early.
pub trait Pruner: Debug + Send + Sync {
    /// Returns true to stop the trial at this report, which is not its last.
    fn is_cut(&self, running: &Running<'_>) -> bool;

    /// The unit in which training is counted; of a count, only its unit matters.
    fn unit(&self) -> Interval {
        Interval::Epochs(1)
    }

    /// Training before which no trial is stopped; `None` if there is no such limit.
    fn least(&self) -> Option<Interval> {
        None
    }

    /// Training that counts for a trial trained for `spent`, to rank pruned trials.
    fn reached(&self, spent: f64) -> f64 {
        spent
    }

    /// True if it never stops any trial: its decisions need no journal.
    fn is_off(&self) -> bool {
        false
    }
}

/// A trial at one of its reports.
#[derive(Clone, Copy, Debug)]
pub struct Running<'a> {
    /// Direction in which the metric improves.
    pub goal: Mode,
    pub trial: &'a Trial,
    /// Index of the report.
    pub index: usize,
    /// All other trials, in any order.
    pub others: &'a [&'a Trial],
}

/// `[sweep.pruner]`
#[derive(Debug)]
pub enum PrunerFamily {}

impl Family for PrunerFamily {
    const TABLE: &'static str = PRUNER;
    const NOUN: &'static str = "pruner";
    type Object = dyn Pruner;
}

impl<K: Kind + Pruner> Accepts<K> for PrunerFamily {
    fn boxed(kind: K) -> Box<dyn Pruner> {
        Box::new(kind)
    }
}

/// Pruners that a program knows.
pub type Pruners = Registry<PrunerFamily>;

/// The pruners that come with ddprun.
impl Registered for PrunerFamily {
    fn registered() -> Pruners {
        let mut all = Pruners::empty();
        all.add::<NoPruner>();
        all.add::<Asha>();
        all.add::<Median>();
        all
    }
}

/// Returns true if the pruner stops the trial at this report. The last report never does: nothing
/// would be saved.
pub(crate) fn is_cut(pruner: &dyn Pruner, running: &Running<'_>) -> bool {
    let Running { trial, index, .. } = *running;
    trial.reports[index].step < trial.length.total_steps && pruner.is_cut(running)
}

/// no trial is stopped early.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NoPruner {}

impl Kind for NoPruner {
    const NAME: &'static str = "none";
}

impl Pruner for NoPruner {
    fn is_cut(&self, _: &Running<'_>) -> bool {
        false
    }

    fn is_off(&self) -> bool {
        true
    }
}

/// Pattern of an amount of training.
const AMOUNT: &str = r"^\s*0*[1-9]\d*\s*(epoch|step)s?\s*$";

/// The number of epochs or steps.
fn count(every: Interval) -> f64 {
    match every {
        Interval::Epochs(n) | Interval::Steps(n) => n as f64,
        Interval::Never => f64::INFINITY,
    }
}

/// The problem of an option that is not an amount of training.
fn countable(key: &'static str, every: Interval) -> Option<OptionConflict> {
    let is_count = matches!(every, Interval::Epochs(1..) | Interval::Steps(1..));
    let what = "must be a count with its unit, such as \"1 epoch\" or \"500 steps\"";
    (!is_count).then(|| OptionConflict { key, with: &[], what: what.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::example_sweeps::{of_batch, trial};
    use crate::sweep::trial::State;

    pub(super) const ASHA: Asha =
        Asha { min_resource: Interval::Epochs(1), max_resource: None, reduction_factor: 3 };

    const MEDIAN: Median = Median { min_resource: Interval::Epochs(1), startup_trials: 1 };

    /// Runs trials one after another; each is given by its reports, one per epoch of ten steps, and
    /// is ten epochs long. Returns the epoch in which each was cut.
    pub(super) fn cuts(pruner: &dyn Pruner, goal: Mode, all: &[&[f64]]) -> Vec<Option<usize>> {
        let mut done: Vec<Trial> = Vec::new();
        let mut cuts = Vec::new();
        for reports in all {
            let mut next = trial(done.len() as u32 + 1, State::Finished, reports);
            let others: Vec<&Trial> = done.iter().collect();
            let at = |index| Running { goal, trial: &next, index, others: &others };
            let cut = (0..reports.len()).find(|&index| is_cut(pruner, &at(index)));
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
    fn trials_of_different_batches_meet_at_the_same_epochs() {
        let cut = |pruner: &dyn Pruner, trial: &Trial, index, others: &[&Trial]| {
            is_cut(pruner, &Running { goal: Mode::Max, trial, index, others })
        };
        // 0.2 after one epoch is the worse of the two, whichever took more steps for it.
        for (steps, other) in [(5, 20), (20, 5)] {
            let good = of_batch(steps, trial(1, State::Finished, &[0.5; 9]));
            let bad = of_batch(other, trial(2, State::Running, &[0.2; 4]));
            let better = of_batch(other, trial(3, State::Running, &[0.7; 4]));
            for pruner in [&ASHA as &dyn Pruner, &MEDIAN] {
                assert!(cut(pruner, &bad, 0, &[&good]), "{steps} {pruner:?}");
                assert!(!cut(pruner, &bad, 1, &[]), "{steps} {pruner:?}");
                assert!(!cut(pruner, &better, 0, &[&good]), "{steps} {pruner:?}");
            }
            // Between two rungs no trial is asked.
            assert!(!cut(&ASHA, &bad, 1, &[&good]), "{steps}");
        }
    }
}
