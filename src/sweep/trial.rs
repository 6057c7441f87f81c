//! One trial: its values, what it reported, and how it stands.

use serde::{Deserialize, Serialize};

use crate::config::schema::Mode;
use crate::config::sweep::Values;
use crate::config::values::Every;

/// How a trial stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It was started, and its end is not written down: it runs, or was interrupted.
    Running,
    /// It ran to its end.
    Finished,
    /// It was given up early.
    Pruned,
    /// Its loss or gradients were not finite any more.
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

/// How long a trial is planned to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Length {
    /// Steps of an epoch.
    pub steps_per_epoch: u64,
    /// Steps of the whole run.
    pub total_steps: u64,
}

/// A trial.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    /// Counted from 1.
    pub number: u32,
    /// The values of its parameters.
    pub values: Values,
    /// How long it is planned to be.
    pub length: Length,
    /// How it stands.
    pub state: State,
    /// What it reported, by step.
    pub reports: Vec<Report>,
    /// Seconds of the process that ended it.
    pub seconds: f64,
    /// Why it failed.
    pub error: Option<String>,
}

impl Trial {
    /// A trial that is about to begin.
    pub fn new(number: u32, values: Values, length: Length) -> Self {
        let state = State::Running;
        Self { number, values, length, state, reports: Vec::new(), seconds: 0.0, error: None }
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

    /// How much was spent at `report`, in the unit of `every`.
    pub fn resource(&self, report: &Report, every: Every) -> f64 {
        match every {
            Every::Epochs(_) => report.step as f64 / self.length.steps_per_epoch.max(1) as f64,
            Every::Steps(_) | Every::Never => report.step as f64,
        }
    }
}

/// `trial-0007`
pub fn id(number: u32) -> String {
    format!("trial-{number:04}")
}

/// A value of which less is better; what is not finite is the worst.
pub fn cost(value: Option<f64>, goal: Mode) -> f64 {
    let sign = if goal == Mode::Max { -1.0 } else { 1.0 };
    value.filter(|value| value.is_finite()).map_or(f64::INFINITY, |value| sign * value)
}

/// Trials that count, best first: finished ones by their value, then pruned ones by how far they came, then
/// diverged ones; among equals the earlier one.
pub fn ranked(trials: &[Trial], goal: Mode) -> Vec<&Trial> {
    let class = |trial: &Trial| match trial.state {
        State::Finished => 0,
        State::Pruned => 1,
        State::Running => 2,
        State::Diverged => 3,
        State::Failed => 4,
    };
    let far = |trial: &Trial| match trial.state {
        State::Pruned => trial.reports.last().map_or(0, |report| report.step),
        _ => 0,
    };
    let mut ranked: Vec<&Trial> = trials.iter().collect();
    ranked.sort_by(|a, b| {
        let by_cost = cost(a.value(goal), goal).total_cmp(&cost(b.value(goal), goal));
        let by_class = class(a).cmp(&class(b));
        by_class.then(far(b).cmp(&far(a))).then(by_cost).then(a.number.cmp(&b.number))
    });
    ranked
}

/// The best finished trial; if none is finished, none is the best.
pub fn best(trials: &[Trial], goal: Mode) -> Option<&Trial> {
    let finished = |trial: &&Trial| trial.state == State::Finished && trial.value(goal).is_some();
    ranked(trials, goal).into_iter().find(finished)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::examples::trial;

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
        let order = |goal| ranked(&trials, goal).iter().map(|t| t.number).collect::<Vec<_>>();
        assert_eq!(order(Mode::Max), [6, 3, 5, 4, 1, 2]);
        assert_eq!(order(Mode::Min), [3, 5, 6, 4, 1, 2]);
        assert_eq!(best(&trials, Mode::Max).unwrap().number, 6);
        assert_eq!(best(&trials[..2], Mode::Max), None);
    }

    #[test]
    fn a_value_that_is_not_finite_is_never_the_best() {
        let mut one = trial(1, State::Finished, &[f64::NAN, 0.5]);
        assert_eq!(one.value(Mode::Min), Some(0.5));
        one.reports[1].value = None;
        assert_eq!(cost(one.reports[0].value, Mode::Max), f64::INFINITY);
    }
}
