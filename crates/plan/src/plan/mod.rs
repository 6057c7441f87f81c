//! `Experiment + Facts -> Plan`: every number decided. Pure: no I/O, no clock, no environment.
//!
//! What a `Plan` holds is what all ranks do; nothing below this module asks the experiment again.
//! An `Option` here means "may truly be absent at run time", never "not configured".
//! ```
//! use ddprun_plan::plan::{ScalingRule, admitted_worlds, scale_lr};
//! use train_numbers::units::GlobalBatchSize;
//! // A rate of 0.1 that was tuned for batches of 256, in batches of 1,024.
//! let (tuned_for, in_use) = (GlobalBatchSize::new(256).unwrap(),
//! GlobalBatchSize::new(1024).unwrap()); assert_eq!(scale_lr(ScalingRule::Linear, 0.1, tuned_for,
//! in_use), 0.4); // A step of 8 shards gives the same bits on any of these numbers of ranks.
//! assert_eq!(admitted_worlds(8), [1, 2, 4, 8]);
//! ```

mod arithmetic;
mod averaging;
mod batch;
mod build;
mod cadence;
mod cameras;
pub mod cuda_graph;
mod data;
mod ownership;
mod backend;
mod distributed;
mod facts;
mod graph;
mod param_groups;
mod checkpointing;
mod clip;
mod early_stopping;
mod expectations;
mod layer_decay;
mod length;
mod logging;
mod loss;
mod lr_scaling;
pub mod shm_layout;
mod memory_estimate;
mod pass_estimate;
mod metrics;
mod mixup;
mod model;
mod optimizer;
mod precision;
mod rank;
mod scaler;
mod schedule;
mod show;
mod source;
mod batch_statistics;
mod split;
mod test_time;
mod transforms;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use crate::config::kind::Modality;
pub use crate::config::schema::{
    AllReduce, AnnealStrategy, CommHook, Convolutions, Expectation, Interval, MixupMode, Mode,
    OnBadSample, OnNonFinite, OnOom, Sampler, ScalingRule,
};
pub use crate::config::values::{Patience, ZeroStage};
pub use arithmetic::shown;
pub use averaging::{Average, EmaPlan, LookaheadPlan, SwaPlan, SwaRate};
pub use backend::{BackendCapabilities, BackendFacts, BackendPlan, SharedMemory};
pub use batch::{BatchPlan, admitted_worlds};
pub use cadence::Cadence;
pub use cameras::{Cameras, PixelStats};
pub use checkpointing::CheckpointPlan;
pub use clip::ClipPlan;
pub use data::{DataPlan, Limit, shares};
pub use distributed::DistributedPlan;
pub use early_stopping::EarlyStoppingPlan;
pub use facts::{DataFacts, Facts, GpuFacts, KindFacts, ModelFacts, MpiFacts, TargetColumn};
pub use graph::rows as layer_rows;
pub use graph::{Flow, LayerMisfit, LayerPlan};
pub use length::{LengthPlan, NO_STEP_LIMIT};
pub use logging::LoggingPlan;
pub use loss::{LossFacts, LossPlan, Targets, chosen as chosen_loss};
pub use lr_scaling::scale_lr;
pub use memory_estimate::{KEPT_SHARE, Memory};
pub use metrics::{Measurable, MetricFacts, NAIVE_ERRORS};
pub use mixup::MixupPlan;
pub use model::ModelPlan;
pub use optimizer::{Extent, Matrices, OptimizerFacts, OptimizerPlan, StateTensor};
pub use ownership::owners;
pub use param_groups::ParameterGroup;
pub use pass_estimate::{PassEstimate, estimate as estimate_pass};
pub use rank::{RankPlan, RunFolders};
pub use scaler::ScalerPlan;
pub use schedule::{SchedulePlan, SchedulerFacts, Span, Unfit};
pub use shm_layout::Mapping;
pub use show::{Costs, json, page};
pub use source::SourcePlan;
pub use split::{Part, SplitPlan};
pub use test_time::TestTimeAugmentation;
use train_numbers::units::BatchSize;
pub use train_numbers::{Bf16Instructions, Precision, RopeScaling};
pub use transforms::{Images, PixelDtype, Sides, TrainedOn, TransformFacts};

/// Everything that will happen, decided. Equal on all ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Name of the experiment; part of all its folders' names.
    pub name: String,
    /// Seed of everything random.
    pub seed: u64,
    /// The model and its start.
    pub model: ModelPlan,
    /// The data and how it is read.
    pub data: DataPlan,
    /// The loss.
    pub loss: LossPlan,
    /// Batch arithmetic.
    pub batch: BatchPlan,
    /// How long.
    pub length: LengthPlan,
    /// Numbers of matrix products and convolutions.
    pub precision: Precision,
    /// What multiplies bf16 numbers on the CPU, if that is the precision; absent = f32 numbers are
    /// rounded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bf16_instructions: Option<Bf16Instructions>,
    /// How convolutions are computed.
    pub convolutions: Convolutions,
    /// Whether blocks keep their input only and are run again in backward.
    #[serde(default)]
    pub activation_checkpointing: bool,
    /// Whether passes on a GPU become one launch; absent = where they can.
    #[serde(default)]
    pub cuda_graph: Option<bool>,
    /// Gradient scaler (fp16 only).
    pub scaler: Option<ScalerPlan>,
    /// Clipping of gradients.
    pub clip: ClipPlan,
    /// What to do about a loss that is not finite.
    pub on_non_finite: OnNonFinite,
    /// Update rule with its base learning rate.
    pub optimizer: OptimizerPlan,
    /// Average of the parameters, to be evaluated in their place.
    #[serde(default)]
    pub ema: Option<EmaPlan>,
    /// Plain average of the parameters, to take their place when training is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swa: Option<SwaPlan>,
    /// Slow weights that the weights come back to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lookahead: Option<LookaheadPlan>,
    /// Learning rate over time.
    pub schedule: SchedulePlan,
    /// Ranks and their communication.
    pub distributed: DistributedPlan,
    /// When to evaluate, in steps.
    pub validate_every: Cadence,
    /// Samples per evaluation pass.
    pub val_batch_size: BatchSize,
    /// Metrics that are measured beside the usual ones.
    #[serde(default)]
    pub metrics: Vec<String>,
    /// Every how many evaluations a diffusion model is asked for samples.
    #[serde(default = "each")]
    pub sample_every: u64,
    /// What an evaluation averages answers over; absent = one answer each. A run has none: `ddprun
    /// eval` is asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test_time_augmentation: Option<TestTimeAugmentation>,
    /// Samples that an evaluation looks at, the first ones; absent = all. Set by `ddprun try`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluated_samples: Option<usize>,
    /// When and where to save.
    pub checkpoint: CheckpointPlan,
    /// When to give up early.
    pub early_stopping: Option<EarlyStoppingPlan>,
    /// Restarts after a failure.
    pub max_restarts: u32,
    /// How long a rank may stand still.
    #[serde(default)]
    pub stall_timeout: Patience,
    /// When to compare the weights of the ranks.
    #[serde(default)]
    pub compare_weights: Cadence,
    /// What to do when a rank runs out of memory.
    #[serde(default)]
    pub on_oom: OnOom,
    /// Largest mean loss of a step that is no sign of divergence.
    #[serde(default)]
    pub divergence_threshold: Option<f64>,
    /// What to write about the run.
    pub logging: LoggingPlan,
    /// Figures that the run must reach.
    pub expect: BTreeMap<String, Expectation>,
}

#[cfg(test)]
mod tests;

/// For plans of before there was the key.
fn each() -> u64 {
    1
}
