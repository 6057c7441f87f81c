//! State of a run beside its tensors; together they are all that a resume needs.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::engine::early_stopping::EarlyStopping;
use crate::engine::scaler::Scaler;
use crate::event::{Best, TIE_BREAKER, nulls_are_nan};
use crate::optim::{Plateau, Scheduler};
use crate::plan::{CheckpointPlan, EarlyStoppingPlan, Mode, Plan};

/// Progress of a run. Equal on all ranks: it moves on reduced values only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainState {
    /// Finished steps.
    pub step: u64,
    /// Updates of the parameters: steps less the skipped ones.
    pub updates: u64,
    /// By parameter: the number of `updates` that it took no part in, because no pass used it;
    /// without those that took part in all.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub missed: BTreeMap<String, u64>,
    /// Progress of the average of `[swa]`, where one is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swa: Option<SwaState>,
    /// fp16 gradient scaler.
    pub scaler: Option<Scaler>,
    /// State of `ReduceLROnPlateau`.
    pub plateau: Plateau,
    /// Sums over the epoch at hand.
    pub sums: EpochSums,
    /// Metrics of the newest evaluation; one that is not finite has no written form, and is read as
    /// NaN.
    #[serde(deserialize_with = "nulls_are_nan")]
    pub metrics: BTreeMap<String, f64>,
    /// Step of the newest evaluation; 0 = none yet.
    pub evaluated_at: u64,
    /// Evaluations so far.
    pub evaluations: u64,
    /// Best value of the metric that ranks checkpoints.
    pub best: Option<Best>,
    /// Progress of early stopping.
    pub early_stopping: EarlyStopping,
    /// Wall-clock seconds of all starts of the run together, on rank 0; only where `train.time`
    /// limits them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// Hash of the weights of a file that the model is compared with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// Work that is left after the last step, before the next one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<PendingEvaluation>,
}

/// Work that is left after a step whose evaluation was broken off.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PendingEvaluation {
    /// Learning rate of the step.
    pub lr: f64,
    /// True if the loss of the step compares classes.
    pub has_accuracy: bool,
    /// True if the epoch of the step was recorded as over.
    pub epoch_is_closed: bool,
}

/// Progress of a plain average of the weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwaState {
    /// Number of weights that have joined the average.
    pub averaged: u64,
    /// True once the running statistics are those of the average: only then is it evaluated.
    pub is_complete: bool,
}

/// Sums over the steps of an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EpochSums {
    /// Sum of the steps' mean losses, each times its weight; without those that are not finite.
    pub loss: f64,
    /// Sum of the steps' weights: their samples, except for labels that do not count.
    pub weight: f64,
    /// Right answers.
    pub correct: u64,
    pub answers: u64,
    pub samples: u64,
    /// Samples that could not be read, so that others were taken in their place.
    pub unreadable: u64,
}

impl EpochSums {
    /// Mean loss over all that counts; `None` if nothing does.
    pub fn mean_loss(&self) -> Option<f64> {
        (self.weight > 0.0).then(|| self.loss / self.weight)
    }

    /// Share of right answers.
    pub fn accuracy(&self) -> f64 {
        self.correct as f64 / self.answers.max(1) as f64
    }
}

impl TrainState {
    /// The state of a new run.
    pub fn new(plan: &Plan) -> Self {
        Self {
            step: 0,
            updates: 0,
            missed: BTreeMap::new(),
            swa: plan.swa.map(|_| SwaState::default()),
            scaler: plan.scaler.as_ref().map(Scaler::new),
            plateau: Plateau::default(),
            sums: EpochSums::default(),
            metrics: BTreeMap::new(),
            evaluated_at: 0,
            evaluations: 0,
            best: None,
            early_stopping: EarlyStopping::default(),
            seconds: None,
            reference: None,
            left: None,
        }
    }

    /// Takes the metrics of an evaluation after the current step. Returns whether the metric that
    /// ranks checkpoints is the best so far. Early stopping and the schedule have their reasons
    /// from the weights, also where a run that ended with their average is given more steps.
    pub fn evaluated(
        &mut self,
        plan: &Plan,
        scheduler: &dyn Scheduler,
        metrics: BTreeMap<String, f64>,
    ) -> bool {
        self.metrics = metrics;
        self.evaluated_at = self.step;
        self.evaluations += 1;
        let is_of_average = self.swa.is_some_and(|swa| swa.is_complete);
        if !is_of_average {
            if let Some(early) = &plan.early_stopping {
                self.early_stopping.observe(early, &self.metrics);
            }
            self.observe_plateau(scheduler, plan.schedule.better);
        }
        self.observe_best(&plan.checkpoint)
    }

    /// Drops the values of metrics that `plan` watches no more: a loss says nothing beside an
    /// accuracy. Whether less or more is better follows from the metric. Returns true if `best` is
    /// one of them.
    pub fn forget_other_metrics(&mut self, plan: &Plan) -> bool {
        let is_other = |early: &EarlyStoppingPlan| {
            self.early_stopping.metric.as_ref().is_some_and(|metric| *metric != early.monitor)
        };
        if plan.early_stopping.as_ref().is_some_and(is_other) {
            self.early_stopping = EarlyStopping::default();
        }
        let best = self.best.take_if(|best| best.metric != plan.checkpoint.monitor);
        best.is_some()
    }

    /// Value of `metric` right now; `None` if it is older than the parameters.
    pub fn metric_now(&self, metric: &str) -> Option<f64> {
        (self.evaluated_at == self.step).then(|| self.metrics.get(metric).copied()).flatten()
    }

    /// True if averages, where some are kept, replace the weights in evaluations.
    pub fn has_averages(&self) -> bool {
        self.swa.is_none_or(|swa| swa.is_complete)
    }

    /// Wall-clock time of all starts so far; zero where it is not limited.
    pub fn time_spent(&self) -> Duration {
        // What was saved was positive; a file may say anything.
        Duration::try_from_secs_f64(self.seconds.unwrap_or(0.0)).unwrap_or_default()
    }

    /// True if early stopping is out of patience: after `patience` evaluations without improvement,
    /// counted as Lightning and transformers do.
    pub fn is_stuck(&self, plan: &Plan) -> bool {
        plan.early_stopping.as_ref().is_some_and(|early| self.early_stopping.bad >= early.patience)
    }

    fn observe_plateau(&mut self, scheduler: &dyn Scheduler, better: Mode) {
        let watched = scheduler.monitor().and_then(|monitor| self.metrics.get(monitor));
        if let Some(&value) = watched {
            scheduler.observe(&mut self.plateau, value, better);
        }
    }

    fn observe_best(&mut self, plan: &CheckpointPlan) -> bool {
        let Some(&value) = self.metrics.get(&plan.monitor) else { return false };
        let loss = self.metrics.get(TIE_BREAKER).copied().filter(|loss| loss.is_finite());
        let new = Best { metric: plan.monitor.clone(), value, loss, step: self.step };
        let is_better = |best: &Best| new.is_better_than(best, plan.mode);
        let is_best = value.is_finite() && self.best.as_ref().is_none_or(is_better);
        if is_best {
            self.best = Some(new);
        }
        is_best
    }
}

impl Best {
    /// True if the value is strictly better than that of `other`, or equal with a smaller loss.
    pub(crate) fn is_better_than(&self, other: &Self, mode: Mode) -> bool {
        let has_smaller_loss = || self.loss.zip(other.loss).is_some_and(|(own, other)| own < other);
        mode.is_better(self.value, other.value) || self.value == other.value && has_smaller_loss()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The state of a run that begins, as a checkpoint holds it.
    fn new_state() -> TrainState {
        let state = r#"{"step": 0, "updates": 0, "scaler": null,
            "plateau": {"scale": 1.0, "best": null, "bad": 0},
            "sums": {"loss": 0.0, "weight": 0.0, "correct": 0, "answers": 0, "samples": 0,
                "unreadable": 0},
            "metrics": {}, "evaluated_at": 0, "evaluations": 0, "best": null,
            "early_stopping": {"best": null, "bad": 0}}"#;
        serde_json::from_str(state).unwrap()
    }

    fn plan(monitor: &str, mode: Mode) -> CheckpointPlan {
        CheckpointPlan {
            dir: "checkpoints".into(),
            every: crate::plan::Interval::Epochs(1),
            keep_last: 1,
            keep_best: 1,
            monitor: monitor.to_owned(),
            mode,
        }
    }

    #[test]
    fn a_metric_that_is_infinite_is_never_the_best_and_hinders_no_resume() {
        let plan = plan("val/perplexity", Mode::Min);
        let mut state = new_state();
        let best = [f64::INFINITY, 9.0, f64::INFINITY, 8.0].map(|perplexity| {
            state.metrics.insert("val/perplexity".to_owned(), perplexity);
            let is_best = state.observe_best(&plan);
            let written = serde_json::to_string(&state).unwrap();
            state = serde_json::from_str(&written).unwrap();
            (is_best, state.best.as_ref().map(|best| best.value))
        });
        assert_eq!(best, [(false, None), (true, Some(9.0)), (false, Some(9.0)), (true, Some(8.0))]);
    }

    #[test]
    fn of_equal_values_that_with_the_smaller_loss_is_the_best() {
        let plan = plan("val/accuracy", Mode::Max);
        let mut state = new_state();
        let measured = [(0.9, 0.5), (0.9, 0.4), (0.9, 0.6), (0.8, 0.1), (0.9, f64::NAN)];
        let best = measured.map(|(accuracy, loss)| {
            state.step += 1;
            state.metrics.insert("val/accuracy".to_owned(), accuracy);
            state.metrics.insert("val/loss".to_owned(), loss);
            state.observe_best(&plan);
            let written = serde_json::to_string(&state.best).unwrap();
            state.best = serde_json::from_str(&written).unwrap();
            state.best.as_ref().map(|best| best.step)
        });
        assert_eq!(best, [1, 2, 2, 2, 2].map(Some));
    }
}
