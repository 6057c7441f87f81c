//! `Experiment + Facts -> Plan`: every number decided. Pure: no I/O, no clock, no environment.
//!
//! A `Plan` is equal on all ranks, and nothing below this module reads the experiment again.
//! An `Option` here means "may truly be absent at run time", never "not configured".
//!
//! ```
//! use ddprun_plan::plan::{ScalingRule, admitted_worlds, scale_lr};
//! use train_numbers::units::GlobalBatchSize;
//!
//! // A rate of 0.1 that was tuned for batches of 256, in batches of 1,024.
//! let tuned_for = GlobalBatchSize::new(256).unwrap();
//! let in_use = GlobalBatchSize::new(1024).unwrap();
//! assert_eq!(scale_lr(ScalingRule::Linear, 0.1, tuned_for, in_use), 0.4);
//! // A step of 8 shards gives the same bits on any of these numbers of ranks.
//! assert_eq!(admitted_worlds(8), [1, 2, 4, 8]);
//! ```

mod images;
mod facts;
mod arithmetic;
mod averaging;
mod batch;
mod batch_statistics;
mod build;
pub mod cuda_graph;
mod data;
mod sharding;
mod backend;
mod distributed;
mod graph;
mod param_groups;
mod layer_decay;
mod length;
mod loss;
pub mod shm_layout;
mod memory_estimate;
mod pass_estimate;
mod metrics;
mod mixup;
mod model;
mod optimizer;
mod outputs;
mod precision;
mod schedule;
mod show;
mod split;
mod test_time;
mod transforms;

use crate::config::schema::Hooks;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::terminal::shell_word;
use train_numbers::units::{BatchSize, Rank};

pub use crate::config::kind::Modality;
pub use crate::config::schema::{
    AllReduce, AnnealStrategy, CommHook, Convolutions, Expectation, MixupMode, Mode, OnBadSample,
    OnNonFinite, OnOom, Sampler, ScalingRule, ScheduleUnit,
};
pub use crate::config::values::{Patience, ZeroStage};
pub use crate::terminal::format_number;
pub use averaging::{Average, EmaPlan, LookaheadPlan, SwaPlan, SwaRate};
pub use backend::{BackendCapabilities, BackendFacts, BackendPlan, SharedMemory};
pub use batch::{BatchPlan, admitted_worlds};
pub use build::ComponentFacts;
pub use data::{DataPlan, Limit, shares};
pub use distributed::DistributedPlan;
pub use facts::{DataFacts, Facts, GpuFacts, MpiFacts, SourcePlan, TargetColumn, Unfit};
pub use graph::rows as layer_rows;
pub use graph::{Flow, LayerMisfit, LayerPlan};
pub use images::{Cameras, Images, PixelDtype, PixelStats, Sides, TrainedOn};
pub use length::{EarlyStoppingPlan, Interval, LengthPlan, NO_STEP_LIMIT};
pub use loss::{LossFacts, LossPlan, Targets, chosen as chosen_loss};
pub use memory_estimate::{KEPT_SHARE, Memory};
pub use metrics::{MetricContext, MetricFacts, NAIVE_ERRORS};
pub use mixup::MixupPlan;
pub use model::{BaseFacts, ModelFacts, ModelPlan};
pub use optimizer::{
    ClipPlan, Extent, Matrices, OptimizerFacts, OptimizerPlan, ParameterGroup, StateTensor,
    scale_lr,
};
pub use outputs::{CheckpointPlan, LoggingPlan, MirrorPlan};
pub use pass_estimate::{PassEstimate, estimate as estimate_pass};
pub use precision::ScalerPlan;
pub use schedule::{SchedulePlan, SchedulerFacts, Span};
pub use sharding::owners;
pub use shm_layout::Mapping;
pub use show::{Costs, json, page};
pub use split::{Part, SplitPlan};
pub use test_time::TestTimeAugmentation;
pub use train_numbers::{Bf16Instructions, Precision};
pub use transforms::TransformFacts;

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
    /// Length in steps, and the limit of time.
    pub length: LengthPlan,
    /// Numbers of matrix products and convolutions.
    pub precision: Precision,
    /// Instructions that multiply bf16 numbers on the CPU, if that is the precision; absent = f32
    /// numbers are rounded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bf16_instructions: Option<Bf16Instructions>,
    /// Algorithms of convolutions.
    pub convolutions: Convolutions,
    /// True if blocks keep only their input and are recomputed in backward.
    #[serde(default)]
    pub activation_checkpointing: bool,
    /// True if passes on a GPU are recorded as one CUDA graph; absent = where possible.
    #[serde(default)]
    pub cuda_graph: Option<bool>,
    /// Gradient scaler (fp16 only).
    pub scaler: Option<ScalerPlan>,
    /// Clipping of gradients, and noise on them.
    pub clip: ClipPlan,
    /// Reaction to a loss that is not finite.
    pub on_non_finite: OnNonFinite,
    /// Update rule with its base learning rate.
    pub optimizer: OptimizerPlan,
    /// Exponential moving average of the parameters, evaluated in their place.
    #[serde(default)]
    pub ema: Option<EmaPlan>,
    /// Plain average of the parameters, which takes their place when training is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swa: Option<SwaPlan>,
    /// Slow weights to which the weights return at intervals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lookahead: Option<LookaheadPlan>,
    /// Learning rate over time.
    pub schedule: SchedulePlan,
    /// Ranks and their communication.
    pub distributed: DistributedPlan,
    /// Interval of evaluations.
    pub validate_every: Interval,
    /// Samples per evaluation pass.
    pub val_batch_size: BatchSize,
    /// Metrics that are measured beside the usual ones.
    #[serde(default)]
    pub metrics: Vec<String>,
    /// Evaluations per draw of samples from a diffusion model.
    #[serde(default = "each")]
    pub sample_every: u64,
    /// Views of a sample over which an evaluation averages predictions; absent = one prediction.
    /// Only `ddprun eval` sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test_time_augmentation: Option<TestTimeAugmentation>,
    /// Number of samples that an evaluation reads, the first ones; absent = all. Only `ddprun try`
    /// sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluated_samples: Option<usize>,
    /// Checkpoints: when and where.
    pub checkpoint: CheckpointPlan,
    /// The second place of the run; absent = none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirror: Option<MirrorPlan>,
    /// Early stopping.
    pub early_stopping: Option<EarlyStoppingPlan>,
    /// Restarts after a failure.
    pub max_restarts: u32,
    /// Longest time that a rank may make no progress.
    #[serde(default)]
    pub stall_timeout: Patience,
    /// Interval at which ranks compare their weights.
    #[serde(default)]
    pub compare_weights: Interval,
    /// Reaction to a rank that runs out of memory.
    #[serde(default)]
    pub on_oom: OnOom,
    /// Largest mean loss of a step that is no sign of divergence.
    #[serde(default)]
    pub divergence_threshold: Option<f64>,
    /// The log.
    pub logging: LoggingPlan,
    /// Commands that are run when something has happened.
    #[serde(default)]
    pub hooks: Hooks,
    /// Values of metrics that the run must reach.
    pub expect: BTreeMap<String, Expectation>,
}

/// The default of plans that were written before the key existed.
fn each() -> u64 {
    1
}

/// The plan of one rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankPlan {
    /// The plan, equal on all ranks.
    pub plan: Plan,
    /// This rank.
    pub rank: Rank,
    /// Folders of this run.
    pub run: RunFolders,
    /// True to continue from the newest checkpoint of the run.
    pub resume: bool,
    /// Number of earlier restarts of the group.
    pub restarts: u32,
    /// Causes of these restarts, oldest first; empty where another launcher restarted the group.
    pub causes: Vec<String>,
}

/// Folders of one run, made by the launcher alone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunFolders {
    /// `<time>-<id>`
    pub id: String,
    /// `logs/<name>/<id>`
    pub logs: PathBuf,
    /// `checkpoints/<name>/<id>`
    pub checkpoints: PathBuf,
}

impl RunFolders {
    /// The folder in which commands look for a run by its id.
    pub const LOGS: &str = "logs";

    /// The word that names the run with these logs in a command: its id or, where that would not be
    /// found, its folder.
    pub fn word(logs: &Path) -> String {
        let is_found = logs.ancestors().nth(2).is_some_and(|all| all == Path::new(Self::LOGS));
        let word = logs.file_name().filter(|_| is_found).unwrap_or(logs.as_os_str());
        shell_word(&word.to_string_lossy())
    }
}

#[cfg(test)]
mod tests;
