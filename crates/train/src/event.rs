//! Everything a run can say, as plain versioned data. `engine` and `launch` only say it; `record`
//! turns it into the terminal and files, `report` into pictures.
//!
//! ```text
//! Started                      once, first: the arithmetic, ranks, devices
//! for epoch:
//!     Partitioned              each sample belongs to one rank
//!     for step:                forward, backward, reduce, update
//!         StepDone             every `logging.every`
//!         StepSkipped          fp16: a gradient was not finite
//!         Evaluated            every `validation.every`
//!         Saved                when a checkpoint of `checkpoint.every` is on disk, some steps later
//!         Straggler            when the others waited for one rank in most of 20 steps
//!         RankStats            about once a second, rarer in long runs: what each rank does and takes
//!         Unreadable           when samples of an evaluation, or of the epoch, cannot be read
//!         Warned               whenever something is worth a look
//!     EpochDone
//! Tested                       once, if the data has a test part or a simulation
//! Finished | Failed            once, last
//! ```
//! Written as JSON, an event says its name first:
//! ```
//! let event = ddprun_train::event::Event::Warned { message: "slow disk".to_owned() };
//! let json = serde_json::to_string(&event).unwrap();
//! assert_eq!(json, r#"{"event":"warned","message":"slow disk"}"#);
//! ```

mod history;
mod phase;
mod stop;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Deserializer, Serialize};

pub use history::History;
pub use phase::Phase;
pub use stop::Stop;

use crate::units::{Bytes, Rank};

/// Version of [`Event`]'s written form.
pub const FORMAT: u32 = 1;

/// Something that happened in a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The run, or its continuation, begins.
    Started(Started),
    /// A step was recorded.
    StepDone(StepDone),
    /// The update of a step was left out because a gradient was not finite.
    StepSkipped {
        step: u64,
        /// Loss scale from here on; `None` without a scaler.
        loss_scale: Option<f64>,
    },
    /// The validation data was evaluated, each sample that can be read exactly once.
    Evaluated(Evaluated),
    /// An epoch is over.
    EpochDone(EpochDone),
    /// The test data was evaluated, each sample exactly once, or the simulation of the data run,
    /// with the best parameters of the run.
    Tested(Evaluated),
    /// A checkpoint is on disk.
    Saved(Saved),
    /// Something is worth a look.
    Warned {
        /// What, and what to do.
        message: String,
    },
    /// The samples of an epoch were dealt out to the ranks.
    Partitioned(Partitioned),
    /// Samples that cannot be read were replaced in training, or left out of an evaluation.
    Unreadable(Unreadable),
    /// A rank comes late to the reductions, so that the others wait for it.
    Straggler(Straggler),
    /// Statistics of all ranks: time in each phase, processor time, memory.
    RankStats(RankStats),
    /// The run is over.
    Finished(Finished),
    /// The run failed.
    Failed {
        /// The rank that failed.
        rank: Rank,
        /// Last step begun.
        step: u64,
        /// Error message.
        message: String,
    },
}

/// First words of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Started {
    /// Version of this file's lines.
    pub format: u32,
    /// Version of ddprun.
    pub version: String,
    /// Experiment and run.
    pub name: String,
    /// `<time>-<id>`
    pub run: String,
    /// Lines of arithmetic: batch size, learning rate, steps.
    pub arithmetic: Vec<String>,
    /// Device of each rank, in rank order.
    pub devices: Vec<String>,
    pub steps_per_epoch: u64,
    /// Last step.
    pub total_steps: u64,
    /// Step that the run continues from; 0 at a fresh start.
    pub resumed_from: u64,
    /// Work that is left to do for that step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unfinished: Option<Unfinished>,
    /// Reasons for earlier restarts of the group, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub restarts: Vec<String>,
}

/// A step whose evaluation was broken off: the start that continues from it makes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unfinished {
    /// Evaluations of the step that count. One that was recorded by a start that was killed before
    /// it could save is made again.
    pub evaluations: u64,
    /// True if the step was recorded as the end of its epoch.
    pub epoch_is_closed: bool,
}

/// One recorded step. Loss, accuracy and gradient norm are those of the global batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepDone {
    /// Counted from 1.
    pub step: u64,
    /// Counted from 1.
    pub epoch: u64,
    /// Step within the epoch, from 1.
    pub step_in_epoch: u64,
    /// Mean over the global batch.
    #[serde(deserialize_with = "null_is_nan")]
    pub loss: f64,
    /// Share of right answers, 0 to 1; classifiers only.
    pub accuracy: Option<f64>,
    /// Learning rate used.
    pub lr: f64,
    /// L2 norm of the mean gradient before clipping.
    #[serde(deserialize_with = "null_is_nan")]
    pub grad_norm: f64,
    /// fp16 only.
    pub loss_scale: Option<f64>,
    /// Samples of all ranks per second since the last record.
    pub samples_per_second: f64,
}

/// The distribution of an epoch's samples: to one rank each, none forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partitioned {
    /// Counted from 1.
    pub epoch: u64,
    /// Step before the epoch, or before the rest of it.
    pub step: u64,
    /// Number of ranks.
    pub ranks: u32,
    /// Samples that some rank takes.
    pub samples: u64,
    /// Samples of an incomplete last step, which are left out (`data.drop_last`).
    pub left_out: u64,
    /// Samples that are taken a second time, to give each rank as many (`data.sampler = "torch"`),
    /// or because they are drawn.
    pub repeated: u64,
}

/// Samples of an epoch or an evaluation that cannot be read, over all ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unreadable {
    /// "training", "validation" or "test".
    pub split: String,
    /// Finished steps.
    pub step: u64,
    /// Counted from 1.
    pub epoch: u64,
    /// Samples of the epoch so far, or of the evaluation.
    pub samples: u64,
    /// Number of them that cannot be read.
    pub unreadable: u64,
    /// Errors of the first of them.
    pub first: Vec<String>,
}

/// A rank for which the others wait, step after step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Straggler {
    pub rank: Rank,
    /// Last of the steps that were looked at.
    pub step: u64,
    /// Time per step for which the others waited, in seconds.
    pub lag_seconds: f64,
    /// Time per step in which it waited for its data, in seconds.
    #[serde(default)]
    pub data_seconds: f64,
    /// Time of a step, in seconds.
    pub step_seconds: f64,
}

/// Statistics of each rank since this start of the run, in the order of the ranks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankStats {
    /// Finished steps.
    pub step: u64,
    /// Seconds in each phase, by the names of [`TimeShares`].
    pub phase_seconds: BTreeMap<String, Vec<f64>>,
    /// Seconds that the others waited for it; empty where that is not measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub late_seconds: Vec<f64>,
    /// Processor time of all its threads, in seconds.
    pub cpu_seconds: Vec<f64>,
    /// Bytes that it has resident; 0 where the system does not tell.
    pub memory: Vec<u64>,
    /// Bytes in use of its GPU, by all processes; empty without GPUs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpu_memory: Vec<Option<u64>>,
    /// Utilization of each rank's GPU in the last moments, from 0 to 1; empty without GPUs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpu_utilization: Vec<Option<f64>>,
}

/// An evaluation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluated {
    /// Parameters after this step.
    pub step: u64,
    /// In this epoch.
    pub epoch: u64,
    /// `val/loss`, `val/accuracy`, `test/mse` ...
    #[serde(deserialize_with = "nulls_are_nan")]
    pub metrics: BTreeMap<String, f64>,
    /// Samples that were evaluated, each counted once.
    pub samples: u64,
}

/// The end of an epoch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpochDone {
    /// Counted from 1.
    pub epoch: u64,
    /// Last step of the epoch.
    pub step: u64,
    /// Mean over the epoch's samples, or over what of them counts in the loss.
    #[serde(deserialize_with = "null_is_nan")]
    pub train_loss: f64,
    /// Share of right answers, 0 to 1; classifiers only.
    pub train_accuracy: Option<f64>,
    /// Loss of the last evaluation in this epoch, if there was one.
    pub val_loss: Option<f64>,
    /// Accuracy of the last evaluation in this epoch, 0 to 1.
    pub val_accuracy: Option<f64>,
    /// Other metrics of that evaluation: `val/mse`, `val/mae`.
    #[serde(
        default,
        deserialize_with = "nulls_are_nan",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub metrics: BTreeMap<String, f64>,
    /// Learning rate used in the epoch's last step.
    pub lr: f64,
    /// Wall-clock time.
    pub seconds: f64,
}

/// A checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    /// State after this step.
    pub step: u64,
    pub path: PathBuf,
    /// True if it is the best so far.
    pub best: bool,
    /// Size of all its files.
    pub size: Bytes,
    /// Wall-clock time from the copy of the state until it was on disk.
    pub seconds: f64,
    /// Time of it that training waited.
    #[serde(default)]
    pub stall_seconds: f64,
    /// Checkpoints since the last one that this one replaced, because the disk was busy.
    #[serde(default)]
    pub replaced: u64,
    /// Error with which an older checkpoint could not be deleted; a warning shows it.
    #[serde(skip)]
    pub surplus: Option<String>,
}

/// Last words of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finished {
    /// Reason of the end.
    pub reason: Reason,
    /// Last step.
    pub step: u64,
    /// Metric that ranks checkpoints, its best value and step.
    pub best: Option<Best>,
    /// Wall-clock time of this process's part of the run.
    pub seconds: f64,
    /// Samples of all ranks per second of training.
    pub samples_per_second: f64,
    /// Seconds of rank 0 in each phase. Every written line has a `time` of its own.
    #[serde(rename = "phase_seconds")]
    pub time: TimeShares,
    /// Most memory that rank 0 had resident; `None` where the system does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_memory: Option<Bytes>,
    /// True if no checkpoint is kept: the run saves only when it is stopped, and never was.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_checkpoint: bool,
}

/// The metric by which equal values of the monitored one are told apart: less is better.
pub const TIE_BREAKER: &str = "val/loss";

/// The best value of the monitored metric.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// `val/accuracy`
    pub metric: String,
    #[serde(deserialize_with = "null_is_nan")]
    pub value: f64,
    /// `val/loss` then, by which equal values are told apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// The step that reached it.
    pub step: u64,
}

/// Reason for the end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// All steps are done.
    Completed,
    /// No improvement for too long.
    EarlyStopped,
    /// The time budget is used up.
    OutOfTime,
    /// A signal asked for it; the state is saved.
    Stopped,
    /// Ctrl-C twice: nothing is saved since the last checkpoint.
    Abandoned,
}

/// Time of training by phase, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TimeShares {
    /// Waiting for the loader.
    pub data: f64,
    /// Forward passes.
    pub forward: f64,
    /// Backward passes, with the communication that they hide.
    pub backward: f64,
    /// Waiting for reductions after backward.
    pub communication: f64,
    /// Updates.
    pub optimizer: f64,
    pub evaluation: f64,
    /// Copying the state for checkpoints, and waiting for the last one.
    pub checkpoint: f64,
}

impl Event {
    /// The step after which it happened; `None` for what belongs to no step.
    pub fn step(&self) -> Option<u64> {
        match self {
            Self::Started(started) => Some(started.resumed_from),
            Self::StepDone(done) => Some(done.step),
            Self::StepSkipped { step, .. } | Self::Failed { step, .. } => Some(*step),
            Self::Evaluated(at) | Self::Tested(at) => Some(at.step),
            Self::EpochDone(epoch) => Some(epoch.step),
            Self::Saved(saved) => Some(saved.step),
            Self::Partitioned(partitioned) => Some(partitioned.step),
            Self::Straggler(straggler) => Some(straggler.step),
            Self::RankStats(stats) => Some(stats.step),
            Self::Unreadable(unreadable) => Some(unreadable.step),
            Self::Finished(finished) => Some(finished.step),
            Self::Warned { .. } => None,
        }
    }
}

impl TimeShares {
    /// The phases in the order of a step, each with its name and seconds.
    pub fn phases(&self) -> [(&'static str, f64); 7] {
        [
            ("data", self.data),
            ("forward", self.forward),
            ("backward", self.backward),
            ("communication", self.communication),
            ("optimizer", self.optimizer),
            ("evaluation", self.evaluation),
            ("checkpoint", self.checkpoint),
        ]
    }
}

/// JSON has no word for a loss that is not a number; serde writes it as `null`.
fn null_is_nan<'de, D: Deserializer<'de>>(value: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(value)?.unwrap_or(f64::NAN))
}

/// Reads metrics by name as [`null_is_nan`].
pub(crate) fn nulls_are_nan<'de, D: Deserializer<'de>>(
    value: D,
) -> Result<BTreeMap<String, f64>, D::Error> {
    let values = BTreeMap::<String, Option<f64>>::deserialize(value)?;
    Ok(values.into_iter().map(|(name, value)| (name, value.unwrap_or(f64::NAN))).collect())
}
