//! What a run knows beside its tensors; with them it is everything a resume needs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::engine::scaler::Scaler;
use crate::event::{Best, History};
use crate::optim::Plateau;
use crate::plan::{CheckpointPlan, EarlyStoppingPlan, Mode, Plan};

/// Progress of a run. Equal on all ranks: it moves on reduced values only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainState {
    /// Finished steps.
    pub step: u64,
    /// Updates of the parameters: steps less the skipped ones.
    pub updates: u64,
    /// How many of `updates` a parameter had no part in, because no pass used it; by its name, where there are any.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub missed: BTreeMap<String, u64>,
    /// fp16 gradient scaler.
    pub scaler: Option<Scaler>,
    /// State of `ReduceLROnPlateau`.
    pub plateau: Plateau,
    /// Sums over the epoch at hand.
    pub sums: EpochSums,
    /// Metrics of the newest evaluation.
    pub metrics: BTreeMap<String, f64>,
    /// Step of the newest evaluation; 0 = none yet.
    pub evaluated_at: u64,
    /// Evaluations so far.
    #[serde(default)]
    pub evaluations: u64,
    /// Best value of the metric that ranks checkpoints.
    pub best: Option<Best>,
    /// Progress of early stopping.
    pub early_stopping: EarlyStopping,
    /// Empty: the finished epochs are in the run's records. Checkpoints of ddprun 0.1 have them here.
    #[serde(default)]
    pub history: History,
}

/// Sums over the steps of an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EpochSums {
    /// Of the steps' mean losses.
    pub loss: f64,
    /// Steps in `loss`.
    pub steps: u64,
    /// Right answers.
    pub correct: u64,
    /// Answers.
    #[serde(default)]
    pub answers: u64,
    /// Samples.
    pub samples: u64,
    /// Samples that could not be read, so that others were taken in their place.
    #[serde(default)]
    pub unreadable: u64,
}

/// Progress of early stopping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EarlyStopping {
    /// Best value so far.
    pub best: Option<f64>,
    /// Evaluations since.
    pub bad: u64,
}

impl TrainState {
    /// The state of a new run.
    pub fn new(plan: &Plan) -> Self {
        Self {
            step: 0,
            updates: 0,
            missed: BTreeMap::new(),
            scaler: plan.scaler.as_ref().map(Scaler::new),
            plateau: Plateau::default(),
            sums: EpochSums::default(),
            metrics: BTreeMap::new(),
            evaluated_at: 0,
            evaluations: 0,
            best: None,
            early_stopping: EarlyStopping::default(),
            history: History::default(),
        }
    }

    /// Takes the metrics of an evaluation after the current step. Returns whether the metric that
    /// ranks checkpoints is the best so far.
    pub fn evaluated(&mut self, plan: &Plan, metrics: BTreeMap<String, f64>) -> bool {
        self.metrics = metrics;
        self.evaluated_at = self.step;
        self.evaluations += 1;
        if let Some(early) = &plan.early_stopping {
            self.early_stopping.observe(early, &self.metrics);
        }
        self.observe_plateau(plan);
        self.observe_best(&plan.checkpoint)
    }

    /// Value of `metric` right now; `None` if it is older than the parameters.
    pub fn metric_now(&self, metric: &str) -> Option<f64> {
        (self.evaluated_at == self.step).then(|| self.metrics.get(metric).copied()).flatten()
    }

    /// Whether early stopping has lost its patience.
    pub fn is_stuck(&self, plan: &Plan) -> bool {
        plan.early_stopping.as_ref().is_some_and(|early| self.early_stopping.bad > early.patience)
    }

    fn observe_plateau(&mut self, plan: &Plan) {
        if let crate::plan::ScheduleRule::Plateau { monitor, .. } = &plan.schedule.rule
            && let Some(&value) = self.metrics.get(monitor)
        {
            self.plateau.observe(&plan.schedule.rule, value);
        }
    }

    fn observe_best(&mut self, plan: &CheckpointPlan) -> bool {
        let Some(&value) = self.metrics.get(&plan.monitor) else { return false };
        let is_best = self.best.as_ref().is_none_or(|best| is_better(plan.mode, value, best.value));
        if is_best {
            self.best = Some(Best { metric: plan.monitor.clone(), value, step: self.step });
        }
        is_best
    }
}

impl EarlyStopping {
    fn observe(&mut self, plan: &EarlyStoppingPlan, metrics: &BTreeMap<String, f64>) {
        let Some(&value) = metrics.get(&plan.monitor) else { return };
        let margin = if plan.mode == Mode::Min { plan.min_delta } else { -plan.min_delta };
        if self.best.is_none_or(|best| is_better(plan.mode, value + margin, best)) {
            *self = Self { best: Some(value), bad: 0 };
        } else {
            self.bad += 1;
        }
    }
}

/// Whether `value` is strictly better than `than`.
pub fn is_better(mode: Mode, value: f64, than: f64) -> bool {
    match mode {
        Mode::Min => value < than,
        Mode::Max => value > than,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_stopping_counts_evaluations_without_enough_improvement() {
        let plan = EarlyStoppingPlan {
            monitor: "val/loss".into(),
            mode: Mode::Min,
            patience: 1,
            min_delta: 0.1,
        };
        let mut progress = EarlyStopping::default();
        let bad: Vec<u64> = [1.0, 0.95, 0.8, 0.75, 0.9]
            .map(|loss| {
                progress.observe(&plan, &BTreeMap::from([("val/loss".to_owned(), loss)]));
                progress.bad
            })
            .into();
        assert_eq!(bad, [0, 1, 0, 1, 2]);
    }
}
