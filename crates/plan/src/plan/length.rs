//! Steps and epochs: their number in a run, what ends it earlier, and intervals that are counted in
//! them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::Experiment;
use crate::config::values;
use crate::plan::{BatchPlan, Mode, Sampler};
use crate::terminal::counted;
use train_numbers::units::WorldSize;

/// Last step of a run that only its wall-clock budget ends; no run reaches it.
pub const NO_STEP_LIMIT: u64 = 1 << 40;

/// Length of the run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LengthPlan {
    /// Steps of a whole epoch.
    pub steps_per_epoch: u64,
    /// Last step of the run.
    pub total_steps: u64,
    /// Wall-clock budget.
    pub time: Option<Duration>,
}

impl LengthPlan {
    /// True if epochs or steps end the run, and not only time.
    pub fn is_bounded(&self) -> bool {
        self.total_steps < NO_STEP_LIMIT
    }

    /// Epochs begun by the end of the run.
    pub fn epochs(&self) -> u64 {
        self.total_steps.div_ceil(self.steps_per_epoch)
    }
}

/// Steps that take each of `n_train` samples once, in global batches.
fn steps_per_epoch(n_train: usize, global: usize, drop_last: bool) -> usize {
    if drop_last { n_train / global } else { n_train.div_ceil(global) }
}

/// Steps per epoch with PyTorch's `DistributedSampler` and `DataLoader`: each rank cuts its own
/// list into batches.
fn torch_steps_per_epoch(
    n_train: usize,
    world: WorldSize,
    batch: &BatchPlan,
    drop_last: bool,
) -> usize {
    let ranks = world.count();
    let size = batch.size.count();
    let passes = batch.accumulation.count();
    if drop_last {
        // ceil((n - W) / W) = floor(n / W) where W does not divide n.
        n_train / ranks / size / passes
    } else {
        n_train.div_ceil(ranks).div_ceil(size).div_ceil(passes)
    }
}

/// The first limit of epochs and steps ends the run; time is watched while it runs.
pub(super) fn decide(
    experiment: &Experiment,
    n_train: usize,
    world: WorldSize,
    batch: &BatchPlan,
) -> LengthPlan {
    let drop_last = experiment.data.drop_last;
    let steps = match experiment.data.sampler {
        Sampler::Torch => torch_steps_per_epoch(n_train, world, batch, drop_last),
        _ => steps_per_epoch(n_train, batch.global.count(), drop_last),
    };
    let steps_per_epoch = steps.max(1) as u64;
    let by_epochs = experiment.train.epochs.map(|n| n.saturating_mul(steps_per_epoch));
    let limits = [by_epochs, experiment.train.steps, Some(NO_STEP_LIMIT)];
    LengthPlan {
        steps_per_epoch,
        total_steps: limits.into_iter().flatten().min().unwrap_or(NO_STEP_LIMIT),
        time: experiment.train.time.map(|time| time.0),
    }
}

/// When to stop early.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EarlyStoppingPlan {
    /// Metric to watch.
    pub monitor: String,
    /// Direction in which the metric is better.
    pub mode: Mode,
    /// Evaluations without improvement that are tolerated.
    pub patience: u64,
    /// Absolute improvement that counts.
    pub min_delta: f64,
}

impl EarlyStoppingPlan {
    /// "after 5 evaluations in a row without a better val/loss"
    pub(super) fn line(&self) -> String {
        let in_a_row = if self.patience == 1 { "" } else { " in a row" };
        let n = counted(self.patience, "evaluation");
        format!("after {n}{in_a_row} without a better {}", self.monitor)
    }
}

/// The plan of `[early_stopping]`, if it has a patience.
pub(super) fn early_stopping(experiment: &Experiment) -> Option<EarlyStoppingPlan> {
    let config = &experiment.early_stopping;
    config.patience.map(|patience| EarlyStoppingPlan {
        monitor: config.monitor.clone(),
        mode: config.mode,
        patience,
        min_delta: config.min_delta,
    })
}

/// An interval: every n steps, every n epochs, or never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Interval {
    /// Never.
    #[default]
    Never,
    /// After every n-th epoch (and at the end of the run).
    Epochs(u64),
    /// After every n-th step (and at the end of the run).
    Steps(u64),
}

impl From<values::Interval> for Interval {
    fn from(every: values::Interval) -> Self {
        match every {
            values::Interval::Never => Self::Never,
            values::Interval::Epochs(n) => Self::Epochs(n),
            values::Interval::Steps(n) => Self::Steps(n),
        }
    }
}

impl Interval {
    /// True if the interval ends after `step` (counted from 1), which is or is not the last of the
    /// `epoch`-th epoch.
    pub fn is_due(self, step: u64, epoch: u64, ends_epoch: bool) -> bool {
        match self {
            Self::Never => false,
            Self::Epochs(n) => ends_epoch && epoch.is_multiple_of(n),
            Self::Steps(n) => step.is_multiple_of(n),
        }
    }

    /// "after every 2 epochs", as `ddprun plan` shows an interval.
    pub(super) fn words(self) -> String {
        match self {
            Self::Never => "never".to_owned(),
            Self::Epochs(1) => "after every epoch".to_owned(),
            Self::Epochs(n) => format!("after every {n} epochs"),
            Self::Steps(1) => "after every step".to_owned(),
            Self::Steps(n) => format!("after every {n} steps"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use train_numbers::units::{AccumulationSteps, BatchSize, GlobalBatchSize, Shards};

    #[test]
    fn the_last_partial_batch_is_a_step_or_is_dropped() {
        assert_eq!(steps_per_epoch(1000, 128, true), 7);
        assert_eq!(steps_per_epoch(1000, 128, false), 8);
        assert_eq!(steps_per_epoch(1024, 128, false), 8);
        assert_eq!(steps_per_epoch(100, 128, true), 0);
    }

    #[test]
    fn torch_counts_batches_per_rank() {
        let batch = BatchPlan {
            size: BatchSize::new(3).unwrap(),
            accumulation: AccumulationSteps::ONE,
            global: GlobalBatchSize::new(12).unwrap(),
            shards: Shards::new(4).unwrap(),
        };
        let steps =
            |n, drop_last| torch_steps_per_epoch(n, WorldSize::new(4).unwrap(), &batch, drop_last);
        // n = 11, R = 4: lists of 3, or of 2 when dropped (facts of DistributedSampler).
        assert_eq!((steps(11, false), steps(11, true)), (1, 0));
        assert_eq!((steps(13, false), steps(13, true)), (2, 1));
        assert_eq!((steps(24, false), steps(24, true)), (2, 2));
    }

    #[test]
    fn a_cadence_counts_steps_or_whole_epochs() {
        let due = |cadence: Interval| -> Vec<u64> {
            // Epochs of 4 steps.
            (1..=16).filter(|&step| cadence.is_due(step, step.div_ceil(4), step % 4 == 0)).collect()
        };
        assert!(due(Interval::Never).is_empty());
        assert_eq!(due(Interval::Steps(5)), [5, 10, 15]);
        assert_eq!(due(Interval::Epochs(1)), [4, 8, 12, 16]);
        assert_eq!(due(Interval::Epochs(2)), [8, 16]);
    }
}
