//! One trial: its values, what it reported, and how it stands.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::config::schema::Mode;
use crate::config::sweep::Values;
use crate::config::values::Interval;

/// State of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Started without a journalled end: running or interrupted.
    Running,
    /// Ran to its end.
    Finished,
    /// Stopped early by the pruner.
    Pruned,
    /// Loss or gradients became infinite or NaN.
    Diverged,
    /// Something else went wrong.
    Failed,
}

/// The metric after a step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Finished steps.
    pub step: u64,
    /// The metric; `None` if it was not finite.
    pub value: Option<f64>,
}

/// Planned length of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Length {
    pub steps_per_epoch: u64,
    /// Steps of the whole run.
    pub total_steps: u64,
}

impl Length {
    /// The whole run in the unit of `every`, rounded up.
    pub(crate) fn in_unit_of(self, every: Interval) -> Interval {
        match every {
            Interval::Epochs(_) => {
                Interval::Epochs(self.total_steps.div_ceil(self.steps_per_epoch.max(1)))
            }
            Interval::Steps(_) | Interval::Never => Interval::Steps(self.total_steps),
        }
    }
}

/// Returns true if a folder has the name of a sweep's trial, `trial-0007`.
pub fn is_trial(folder: &Path) -> bool {
    folder.file_name().and_then(|name| trial_number(name.to_str()?)).is_some()
}

/// 7 of `trial-0007`.
pub fn trial_number(id: &str) -> Option<u32> {
    id.strip_prefix("trial-")?.parse().ok()
}

/// A trial.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    /// Counted from 1.
    pub number: u32,
    /// The values of its parameters.
    pub values: Values,
    pub length: Length,
    pub state: State,
    /// Reports by step.
    pub reports: Vec<Report>,
    /// Running time in seconds, without the pauses between starts; 0 if not known.
    pub seconds: f64,
    pub error: Option<String>,
    /// True if it failed because something could not be written: it is retried when the sweep
    /// continues.
    pub lacked_storage: bool,
    /// Step of the last report at which the pruner let it continue.
    pub kept: u64,
}

impl Trial {
    /// A trial that is about to begin.
    pub fn new(number: u32, values: Values, length: Length) -> Self {
        let state = State::Running;
        let reports = Vec::new();
        let seconds = 0.0;
        let error = None;
        let lacked_storage = false;
        let kept = 0;
        Self { number, values, length, state, reports, seconds, error, lacked_storage, kept }
    }

    /// The same trial, to be tried again.
    pub(crate) fn begin_again(&mut self, length: Length) {
        let values = std::mem::take(&mut self.values);
        *self = Self { kept: self.kept, ..Self::new(self.number, values, length) };
    }

    /// `trial-0007`: the name of its folders.
    pub fn id(&self) -> String {
        id(self.number)
    }

    /// The best report, the first of equals.
    pub fn best(&self, goal: Mode) -> Option<Report> {
        let known = self.reports.iter().filter(|report| report.value.is_some());
        known.copied().min_by(|a, b| cost(a.value, goal).total_cmp(&cost(b.value, goal)))
    }

    /// The best value that it reported.
    pub fn value(&self, goal: Mode) -> Option<f64> {
        self.best(goal).and_then(|report| report.value)
    }

    /// Epochs that it had at its last report.
    pub fn epochs(&self) -> Option<f64> {
        self.reports.last().map(|report| self.resource(report, Interval::Epochs(1)))
    }

    /// Training up to `report`, in the unit of `every`.
    pub fn resource(&self, report: &Report, every: Interval) -> f64 {
        match every {
            Interval::Epochs(_) => report.step as f64 / self.length.steps_per_epoch.max(1) as f64,
            Interval::Steps(_) | Interval::Never => report.step as f64,
        }
    }
}

/// `trial-0007`
pub fn id(number: u32) -> String {
    format!("trial-{number:04}")
}

/// Value to minimise; infinite if `value` is missing or not finite.
pub fn cost(value: Option<f64>, goal: Mode) -> f64 {
    let sign = if goal == Mode::Max { -1.0 } else { 1.0 };
    value.filter(|value| value.is_finite()).map_or(f64::INFINITY, |value| sign * value)
}

/// An earlier result with its values in another sweep's space.
#[derive(Clone, Debug, PartialEq)]
pub struct EarlierTrial {
    /// The folder of its run.
    pub from: String,
    pub trial: Trial,
}

/// All keys that any trial has changed, in the order in which they first appear.
pub(super) fn keys(trials: &[Trial]) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for (key, _) in trials.iter().flat_map(|trial| &trial.values) {
        if !found.contains(key) {
            found.push(key.clone());
        }
    }
    found
}

/// The word for a state.
pub(super) fn word(state: State) -> &'static str {
    match state {
        State::Running => "running",
        State::Finished => "finished",
        State::Pruned => "pruned",
        State::Diverged => "diverged",
        State::Failed => "failed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::example_sweeps::trial;

    #[test]
    fn a_value_that_is_not_finite_is_never_the_best() {
        let mut one = trial(1, State::Finished, &[f64::NAN, 0.5]);
        assert_eq!(one.value(Mode::Min), Some(0.5));
        one.reports[1].value = None;
        assert_eq!(cost(one.reports[0].value, Mode::Max), f64::INFINITY);
    }
}
