//! `Experiment + Facts -> Plan`: every number decided. Pure: no I/O, no clock, no environment.
//!
//! What a `Plan` holds is what all ranks do; nothing below this room asks the experiment again.
//! An `Option` here means "may truly be absent at run time", never "not configured".

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use crate::config::schema::{
    Expectation, Interval, LossKind, Mode, OnBadSample, OnNonFinite, Sampler, ScalingRule, Sink,
    Stem, TransformKind,
};
use crate::units::{AccumulationSteps, BatchSize, Bytes, GlobalBatchSize, Rank, Shards, WorldSize};

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
    /// Gradient scaler (fp16 only).
    pub scaler: Option<ScalerPlan>,
    /// Clipping of gradients.
    pub clip: ClipPlan,
    /// What to do about a loss that is not finite.
    pub on_non_finite: OnNonFinite,
    /// Update rule with its base learning rate.
    pub optimizer: OptimizerPlan,
    /// Learning rate over time.
    pub schedule: SchedulePlan,
    /// Ranks and their communication.
    pub distributed: DistributedPlan,
    /// When to evaluate, in steps.
    pub validate_every: Cadence,
    /// Samples per evaluation pass.
    pub val_batch_size: BatchSize,
    /// When and where to save.
    pub checkpoint: CheckpointPlan,
    /// When to give up early.
    pub early_stopping: Option<EarlyStoppingPlan>,
    /// Restarts after a failure.
    pub max_restarts: u32,
    /// What to write about the run.
    pub logging: LoggingPlan,
    /// Figures that the run must reach.
    pub expect: BTreeMap<String, Expectation>,
}

/// Something that happens every n steps, at the end of every n-th epoch, or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cadence {
    /// Never.
    Never,
    /// After every n-th epoch (and at the end of the run).
    Epochs(u64),
    /// After every n-th step (and at the end of the run).
    Steps(u64),
}

/// What is trained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelPlan {
    /// Registered name.
    pub name: String,
    /// Width of the output: classes, or regression targets.
    pub outputs: usize,
    /// Shape of one sample as the model receives it: (channels, height, width) or (features).
    pub input: Vec<usize>,
    /// `ResNet` stem.
    pub stem: Stem,
    /// Start the last norm of each residual block at zero.
    pub zero_init_residual: bool,
    /// Train the head only.
    pub freeze_backbone: bool,
    /// MLP: hidden widths.
    pub hidden: Vec<usize>,
    /// MLP: dropout probability.
    pub dropout: f64,
    /// Weights to start from.
    pub pretrained: Option<PathBuf>,
    /// Whether the head of `pretrained` may differ.
    pub except_head: bool,
    /// Options of a user's model.
    pub options: BTreeMap<String, serde_json::Value>,
    /// Trainable parameters.
    pub n_parameters: usize,
    /// Parameter tensors.
    pub n_tensors: usize,
    /// Elements of buffers (running statistics).
    pub n_buffer_elements: usize,
}

/// The data and how it is read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DataPlan {
    /// Where the samples are.
    pub source: SourcePlan,
    /// Samples to train on.
    pub n_train: usize,
    /// Samples to validate on.
    pub n_val: usize,
    /// Class names in label order; empty for regression.
    pub classes: Vec<String>,
    /// Order of samples.
    pub sampler: Sampler,
    /// New order in each epoch.
    pub shuffle: bool,
    /// Whether the incomplete last global batch of an epoch is dropped.
    pub drop_last: bool,
    /// Loader threads per rank.
    pub num_workers: usize,
    /// Batches prepared ahead per loader thread.
    pub prefetch_factor: usize,
    /// Policy for unreadable samples.
    pub on_bad_sample: OnBadSample,
    /// Transforms of training images.
    pub train_transforms: Vec<TransformPlan>,
    /// Transforms of validation images.
    pub val_transforms: Vec<TransformPlan>,
}

/// Where samples come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SourcePlan {
    /// Two folders of class folders.
    ImageFolder {
        /// Training root.
        train: PathBuf,
        /// Validation root.
        val: PathBuf,
    },
    /// A folder of idx files.
    Mnist {
        /// The folder.
        dir: PathBuf,
    },
    /// Two CSV tables with the same header.
    Csv {
        /// Training table.
        train: PathBuf,
        /// Validation table.
        val: PathBuf,
        /// Column to predict.
        target: String,
        /// Whether the target is a class (else a number).
        classify: bool,
    },
}

/// One image transform with all its numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "snake_case")]
pub enum TransformPlan {
    /// Resize the shorter side to `size`, keeping the aspect. Bilinear, antialiased.
    ResizeShorter {
        /// Pixels.
        size: u32,
    },
    /// Resize to exactly (height, width). Bilinear, antialiased.
    Resize {
        /// Pixels.
        height: u32,
        /// Pixels.
        width: u32,
    },
    /// Cut (height, width) from the middle; zero padding where the image is smaller.
    CenterCrop {
        /// Pixels.
        height: u32,
        /// Pixels.
        width: u32,
    },
    /// Pad by `padding` zeros on each side, then cut (height, width) at a random place.
    RandomCrop {
        /// Pixels.
        height: u32,
        /// Pixels.
        width: u32,
        /// Pixels.
        padding: u32,
    },
    /// Cut a random area fraction and aspect ratio, then resize to (height, width).
    RandomResizedCrop {
        /// Pixels.
        height: u32,
        /// Pixels.
        width: u32,
        /// Area fraction, low and high.
        scale: [f64; 2],
        /// Aspect ratio (width / height), low and high; log-uniform.
        ratio: [f64; 2],
    },
    /// Mirror left to right.
    RandomHorizontalFlip {
        /// Probability.
        p: f64,
    },
    /// Rotate by a uniform angle; nearest neighbour, black fill.
    RandomRotation {
        /// Largest angle in degrees.
        degrees: f64,
    },
    /// Brightness, contrast, saturation and hue in random order.
    ColorJitter {
        /// Factor in [1 - b, 1 + b].
        brightness: f64,
        /// Factor in [1 - c, 1 + c].
        contrast: f64,
        /// Factor in [1 - s, 1 + s].
        saturation: f64,
        /// Shift in [-h, h] turns.
        hue: f64,
    },
    /// `(x / 255 - mean) / std` per channel; always last, and always present (identity numbers if not asked for).
    Normalize {
        /// Per channel (one entry = all channels).
        mean: Vec<f64>,
        /// Per channel (one entry = all channels).
        std: Vec<f64>,
    },
}

/// The loss.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossPlan {
    /// Which.
    pub kind: LossKind,
    /// Cross-entropy only; 0 otherwise.
    pub label_smoothing: f64,
}

/// Batch arithmetic: `global = batch size x accumulation x world size`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchPlan {
    /// Samples per pass per rank.
    pub size: BatchSize,
    /// Passes per step per rank, over all of its shards.
    pub accumulation: AccumulationSteps,
    /// Samples per step.
    pub global: GlobalBatchSize,
    /// Equal parts of the global batch; each is `global / shards / size` passes of one rank.
    pub shards: Shards,
}

impl BatchPlan {
    /// Passes that make one shard.
    pub fn passes_per_shard(&self) -> usize {
        self.global.count() / self.shards.count() / self.size.count()
    }

    /// Samples of one shard in a full step.
    pub fn shard_size(&self) -> usize {
        self.global.count() / self.shards.count()
    }
}

/// How long the run is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LengthPlan {
    /// Steps of a whole epoch.
    pub steps_per_epoch: u64,
    /// Last step of the run.
    pub total_steps: u64,
    /// Wall-clock budget.
    pub time: Option<Duration>,
}

/// Numbers of matrix products and convolutions; everything else is f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// f32.
    Fp32,
    /// bfloat16 operands and results, f32 accumulation.
    Bf16,
    /// half-precision operands and results, f32 accumulation.
    Fp16,
}

/// PyTorch's `GradScaler`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScalerPlan {
    /// First scale.
    pub init: f64,
    /// Factor after `growth_interval` good steps in a row.
    pub growth_factor: f64,
    /// Factor after a bad step.
    pub backoff_factor: f64,
    /// Good steps in a row.
    pub growth_interval: u64,
}

/// Clipping, after unscaling: by norm first, then by value. `None` = off.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClipPlan {
    /// Largest global L2 norm.
    pub norm: Option<f64>,
    /// Largest absolute value.
    pub value: Option<f64>,
}

/// Update rule with all its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct OptimizerPlan {
    /// Which rule.
    pub rule: UpdateRule,
    /// Learning rate after scaling by the global batch size; schedules multiply it.
    pub lr: f64,
    /// Learning rate as written.
    pub base_lr: f64,
    /// How it was scaled.
    pub scaling: ScalingRule,
    /// Global batch size that `base_lr` was tuned for.
    pub base_batch_size: GlobalBatchSize,
    /// L2 penalty or decoupled decay.
    pub weight_decay: f64,
    /// Whether one-dimensional parameters are left without decay.
    pub no_decay_on_1d: bool,
}

/// The update rules.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UpdateRule {
    /// `torch.optim.SGD`
    Sgd {
        /// 0 = none.
        momentum: f64,
        /// Damping of the new gradient in the momentum buffer.
        dampening: f64,
        /// Nesterov's look-ahead.
        nesterov: bool,
    },
    /// `torch.optim.Adam`: decay is added to the gradient.
    Adam {
        /// First moment.
        beta1: f64,
        /// Second moment.
        beta2: f64,
        /// Added to the root of the second moment.
        eps: f64,
    },
    /// `torch.optim.AdamW`: decay shrinks the weights first.
    AdamW {
        /// First moment.
        beta1: f64,
        /// Second moment.
        beta2: f64,
        /// Added to the root of the second moment.
        eps: f64,
    },
}

/// Learning rate over time: a linear warm-up, then a rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SchedulePlan {
    /// Steps of linear warm-up.
    pub warmup_steps: u64,
    /// Factor at the first warm-up step.
    pub warmup_start_factor: f64,
    /// Steps between two moves of the rule: 1, or the steps of an epoch.
    pub interval: u64,
    /// The rule.
    pub rule: ScheduleRule,
}

/// The rules; `t` counts intervals after the warm-up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleRule {
    /// lr
    Constant,
    /// lr gamma^floor(t / size)
    Step {
        /// Intervals.
        size: u64,
        /// Factor.
        gamma: f64,
    },
    /// lr gamma^(number of milestones <= t)
    MultiStep {
        /// Intervals, ascending.
        milestones: Vec<u64>,
        /// Factor.
        gamma: f64,
    },
    /// lr gamma^t
    Exponential {
        /// Factor.
        gamma: f64,
    },
    /// `eta_min + (lr - eta_min) (1 + cos(pi t / t_max)) / 2`
    Cosine {
        /// Intervals to the minimum.
        t_max: u64,
        /// The minimum.
        eta_min: f64,
    },
    /// `OneCycleLR` with cosine annealing, by steps.
    OneCycle {
        /// Steps of the cycle.
        total: u64,
        /// Share in which the rate rises.
        pct_start: f64,
        /// peak / first rate.
        div_factor: f64,
        /// first rate / last rate.
        final_div_factor: f64,
    },
    /// `ReduceLROnPlateau`, after each evaluation.
    Plateau {
        /// Metric to watch.
        monitor: String,
        /// Less or more is better.
        mode: Mode,
        /// Factor of a drop.
        factor: f64,
        /// Bad evaluations tolerated.
        patience: u64,
        /// Relative improvement that counts.
        threshold: f64,
    },
}

/// Ranks and their communication.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DistributedPlan {
    /// Number of ranks.
    pub world_size: WorldSize,
    /// Device of each rank: "cpu".
    pub devices: Vec<String>,
    /// Compute threads of each rank.
    pub threads_per_rank: usize,
    /// How tensors are exchanged.
    pub backend: BackendPlan,
    /// Bytes at which a bucket closes.
    pub bucket_cap: Bytes,
    /// Bytes at which the first bucket closes.
    pub first_bucket_cap: Bytes,
    /// Reduce while backward runs.
    pub overlap: bool,
    /// Tolerate unused parameters.
    pub find_unused_parameters: bool,
    /// Longest wait for another rank.
    pub timeout: Duration,
}

/// How ranks exchange tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BackendPlan {
    /// A world of one.
    Solo,
    /// One shared mapping of one machine; its size in bytes.
    Shm {
        /// Bytes of the mapping.
        mapping: Bytes,
    },
}

/// When and where to save.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckpointPlan {
    /// Folder of all runs' checkpoints.
    pub dir: PathBuf,
    /// When.
    pub every: Cadence,
    /// Newest to keep.
    pub keep_last: usize,
    /// Best to keep.
    pub keep_best: usize,
    /// Metric that ranks checkpoints.
    pub monitor: String,
    /// Less or more of it is better.
    pub mode: Mode,
}

/// When to give up early.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EarlyStoppingPlan {
    /// Metric to watch.
    pub monitor: String,
    /// Less or more of it is better.
    pub mode: Mode,
    /// Evaluations without improvement that are tolerated.
    pub patience: u64,
    /// Absolute improvement that counts.
    pub min_delta: f64,
}

/// What to write about the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoggingPlan {
    /// Folder of all runs' logs.
    pub dir: PathBuf,
    /// How often a step is recorded.
    pub every: Cadence,
    /// What to write.
    pub sinks: Vec<Sink>,
}

/// What was found on this machine and in the data; measured elsewhere, so that planning is pure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// Cores that this process may use.
    pub cores: usize,
    /// The data, counted.
    pub data: DataFacts,
    /// Ranks that a foreign launcher (torchrun, srun) already decided.
    pub launched_world: Option<WorldSize>,
}

/// The data, counted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DataFacts {
    /// Where the samples are.
    pub source: SourcePlan,
    /// Samples to train on.
    pub n_train: usize,
    /// Samples to validate on.
    pub n_val: usize,
    /// Class names in label order; empty for regression.
    pub classes: Vec<String>,
    /// Shape of one sample where the files decide it: (1, 28, 28) for MNIST, (features) for a table;
    /// `None` for image folders, whose transforms decide.
    pub sample: Option<Vec<usize>>,
}

/// Counts of a built model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelFacts {
    /// Trainable parameters in registration order: name and shape.
    pub parameters: Vec<(String, Vec<usize>)>,
    /// Buffers in registration order: name and shape.
    pub buffers: Vec<(String, Vec<usize>)>,
}

/// What one rank is told beside the plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankPlan {
    /// The plan, equal on all ranks.
    pub plan: Plan,
    /// This rank.
    pub rank: Rank,
    /// Folders of this run.
    pub run: RunFolders,
    /// Continue from the newest checkpoint of the run.
    pub resume: bool,
    /// How often the group was restarted before.
    pub restarts: u32,
}

/// Folders of one run, made by the parent alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunFolders {
    /// `<time>-<id>`
    pub id: String,
    /// `logs/<name>/<id>`
    pub logs: PathBuf,
    /// `checkpoints/<name>/<id>`
    pub checkpoints: PathBuf,
}
