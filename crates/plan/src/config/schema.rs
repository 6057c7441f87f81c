//! The experiment file, schema 1, as plain data: what was asked, before anything is decided.
//!
//! Every key stands in `defaults.toml` with its meaning and default; rules between keys live in
//! `check`. A kind-specific key (`momentum` belongs to `sgd`) is an `Option`: `plan` fills it.

mod data;
mod model;
mod train;

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Entry, Options, TABLES};
use crate::config::values::{Auto, Duration, Every, Patience, Warmup};

pub use data::{Data, Mixup, MixupMode, OnBadSample, Sampler, Transforms};
pub use model::Model;
pub use train::{OnNonFinite, PrecisionChoice, Train};
pub use train_numbers::Convolutions;

/// A whole experiment file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// Version of this schema; 1.
    pub schema: u32,
    /// Name and seed.
    pub experiment: Identity,
    /// What is trained.
    pub model: Model,
    /// On what.
    pub data: Data,
    /// For how long, in which batches and precision.
    pub train: Train,
    /// What is minimised.
    pub loss: Loss,
    /// How parameters move.
    pub optimizer: Optimizer,
    /// Moving average of the weights.
    pub ema: Ema,
    /// Plain average of the weights of the last epochs.
    #[serde(default)]
    pub swa: Swa,
    /// `[lookahead]`
    pub lookahead: Lookahead,
    /// How the learning rate follows the global batch size.
    pub lr_scaling: LrScaling,
    /// How the learning rate follows time.
    pub scheduler: Scheduler,
    /// The fp16 gradient scaler.
    pub loss_scale: LossScale,
    /// Ranks, devices and collectives.
    pub distributed: Distributed,
    /// When to evaluate.
    pub validation: Validation,
    /// When to save, and what to keep.
    pub checkpoint: Checkpoint,
    /// When to give up early.
    pub early_stopping: EarlyStopping,
    /// What to do about failures.
    pub fault: Fault,
    /// What to write about the run, and where.
    pub logging: Logging,
    /// Figures that the run must reach: `"val/accuracy" = { at_least = 0.9 }`.
    pub expect: BTreeMap<String, Expectation>,
}

impl Experiment {
    /// The kind that `table` chooses: its name, and its options.
    pub(crate) fn choice_mut(&mut self, table: &str) -> Option<(&str, &mut Options)> {
        match table {
            "model" => Some((&self.model.name, &mut self.model.options)),
            "data" => Some((&self.data.name, &mut self.data.options)),
            "loss" => Some((&self.loss.name, &mut self.loss.options)),
            "optimizer" => Some((&self.optimizer.name, &mut self.optimizer.options)),
            "scheduler" => Some((&self.scheduler.name, &mut self.scheduler.options)),
            _ => None,
        }
    }

    /// The options of the kind that `table` chooses.
    pub(crate) fn options(&self, table: &str) -> Option<&Options> {
        match table {
            "model" => Some(&self.model.options),
            "data" => Some(&self.data.options),
            "loss" => Some(&self.loss.options),
            "optimizer" => Some(&self.optimizer.options),
            "scheduler" => Some(&self.scheduler.options),
            _ => None,
        }
    }

    /// The list with this dotted name whose entries choose kinds.
    pub(crate) fn list_mut(&mut self, list: &str) -> Option<&mut Vec<Entry>> {
        match list {
            "data.transforms.train" => Some(&mut self.data.transforms.train),
            "data.transforms.val" => Some(&mut self.data.transforms.val),
            "model.layers" => Some(&mut self.model.layers),
            _ => None,
        }
    }

    /// The experiment as JSON in the shape of its file: options beside the keys that all kinds
    /// share.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        let mut whole = serde_json::to_value(self).unwrap_or_default();
        for table in TABLES {
            let Some(keys) = whole.get_mut(table).and_then(|table| table.as_object_mut()) else {
                continue;
            };
            if let Some(serde_json::Value::Object(options)) = keys.shift_remove("options") {
                keys.extend(options);
            }
            // TOML wants a table's own keys before the tables in it.
            let (tables, own): (Vec<_>, Vec<_>) =
                std::mem::take(keys).into_iter().partition(|(_, value)| value.is_object());
            keys.extend(own.into_iter().chain(tables));
        }
        whole
    }
}

/// `[experiment]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// Name of the run's folders: letters, digits, `.`, `_`, `-`. The file's stem by default.
    pub name: Option<String>,
    /// Seed of everything random.
    pub seed: u64,
    /// Words by which runs are found again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
}

/// `[loss]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Loss {
    /// Which loss.
    pub name: String,
    /// What only some losses have.
    #[serde(default)]
    pub options: Options,
}

/// `[optimizer]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Optimizer {
    /// Which update rule.
    pub name: String,
    /// Base learning rate, before `lr_scaling`.
    pub lr: f64,
    /// Leave biases and norm parameters (one-dimensional tensors) without weight decay.
    pub no_decay_on_1d: bool,
    /// What is left without weight decay.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub no_decay: Vec<NoDecay>,
    /// Factor of the learning rate from each layer to the one below.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer_decay: Option<f64>,
    /// After which epochs or steps the next layer is trained as well; absent or "never" = all are
    /// from the first step on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gradual_unfreezing: Option<Every>,
    /// Parameters that are treated otherwise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<Group>,
    /// What only some update rules have.
    #[serde(default)]
    pub options: Options,
}

/// Parameters that may be left without weight decay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NoDecay {
    /// Weights of norms, and anything else one-dimensional that is not a bias.
    Norm,
    /// Biases.
    Bias,
    /// Tables of vectors, of tokens or positions.
    Embedding,
}

/// `[[optimizer.groups]]`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Names of its parameters: a module, or a pattern with `*` and `?`.
    #[serde(rename = "match")]
    pub pattern: String,
    /// Multiplies the learning rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lr_factor: Option<f64>,
    /// Its weight decay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight_decay: Option<f64>,
    /// Whether it keeps its values for the whole run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frozen: Option<bool>,
    /// Epochs for which it is frozen first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unfreeze_at_epoch: Option<u64>,
    /// Epochs after which it is frozen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub freeze_at_epoch: Option<u64>,
}

/// `[ema]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ema {
    /// Share of the average that stays at an update; absent = no average.
    pub decay: Option<f64>,
    /// How fast the share grows up to `decay`; absent = at once.
    pub power: Option<f64>,
    /// Whether buffers are averaged as well.
    pub use_buffers: Option<bool>,
}

/// `[swa]`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Swa {
    /// Epochs or steps before it; absent or "never" = no average.
    pub start: Option<Every>,
    /// After which epochs or steps the weights join the average; absent = after each epoch.
    pub every: Option<Every>,
    /// Learning rate from the start on; absent = the schedule's.
    pub lr: Option<f64>,
    /// Epochs in which the rate gets there; absent = 10.
    pub anneal_epochs: Option<u64>,
    /// On which way; absent = a cosine's.
    pub anneal_strategy: Option<AnnealStrategy>,
}

/// `[lookahead]`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Lookahead {
    /// Steps between two meetings; absent = no slow weights.
    pub k: Option<u64>,
    /// Share of their way that slow weights go; absent = a half.
    pub alpha: Option<f64>,
    /// How the share falls to `alpha` over the run; absent = it is `alpha`.
    pub power: Option<f64>,
}

/// How a learning rate gets to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AnnealStrategy {
    /// Half a cosine.
    #[default]
    Cos,
    /// A straight line.
    Linear,
}

/// `[lr_scaling]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LrScaling {
    /// Exponent of the scaling.
    pub rule: ScalingRule,
    /// Global batch size that `optimizer.lr` was tuned for.
    pub base_batch_size: u32,
}

/// How the learning rate follows the global batch size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScalingRule {
    /// Not at all.
    None,
    /// With its square root.
    Sqrt,
    /// In proportion (Goyal et al. 2017).
    Linear,
}

/// `[scheduler]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Scheduler {
    /// Which schedule.
    pub name: String,
    /// Whether the schedule moves after each epoch or each step.
    pub interval: Interval,
    /// Linear rise from `warmup_start_factor` before the schedule begins: "5 epochs", "500 steps",
    /// "5 %" of the run.
    pub warmup: Warmup,
    /// Learning-rate factor at the first warm-up step.
    pub warmup_start_factor: f64,
    /// What only some schedules have.
    #[serde(default)]
    pub options: Options,
}

impl Scheduler {
    /// The metric that the schedule watches, if it does.
    pub(crate) fn monitor(&self) -> Option<&str> {
        self.options.get("monitor")?.as_str()
    }
}

/// When a schedule moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Interval {
    /// After each epoch.
    Epoch,
    /// After each step.
    Step,
}

/// Whether less or more of a metric is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Less is better.
    Min,
    /// More is better.
    Max,
}

/// `[loss_scale]`, the fp16 gradient scaler
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LossScale {
    /// First scale.
    pub init: f64,
    /// Factor after `growth_interval` good steps.
    pub growth_factor: f64,
    /// Factor after a step with a gradient that is not finite.
    pub backoff_factor: f64,
    /// Good steps in a row before the scale grows.
    pub growth_interval: u64,
}

/// `[distributed]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Distributed {
    /// How ranks exchange tensors.
    pub backend: Backend,
    /// Ranks of this machine: "auto", a count, or a list of GPUs.
    pub devices: crate::config::values::Devices,
    /// Compute threads of each rank; "auto" = cores / ranks.
    pub threads_per_rank: Auto<u32>,
    /// Bytes of gradients that are reduced together: "25MiB".
    pub bucket_cap: crate::config::values::Size,
    /// Bytes of the first bucket to be ready.
    pub first_bucket_cap: crate::config::values::Size,
    /// Parts of the global batch that fix the order of additions; "auto" = the world size.
    pub shards: Auto<u32>,
    /// Fewest ranks that a run goes on with when some are lost; "auto" = the planned number.
    pub min_world_size: Auto<u32>,
    /// Reduce buckets while backward still runs.
    pub overlap: bool,
    /// In which numbers gradients are exchanged.
    pub comm_hook: CommHook,
    /// Who adds up the gradients of all ranks.
    pub all_reduce: AllReduce,
    /// What ranks divide among themselves, in place of keeping all of it each.
    pub zero_stage: crate::config::values::ZeroStage,
    /// Tolerate parameters that the loss does not reach.
    pub find_unused_parameters: bool,
    /// BatchNorm statistics of a pass over all shards (`SyncBatchNorm`), not of each shard.
    pub sync_batchnorm: bool,
    /// Longest wait for another rank.
    pub timeout: Duration,
}

/// Collective backends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// The best for the devices: `nccl` on GPUs, `shm` on CPUs, `mpi` or `tcp` on several machines.
    Auto,
    /// Shared memory of one machine.
    Shm,
    /// GPUs.
    Nccl,
    /// Several machines, through the CPUs' memory.
    Tcp,
    /// Ranks that an MPI launcher started, by its library.
    Mpi,
}

/// How gradients are exchanged, as the hooks of PyTorch's DDP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CommHook {
    /// As they are: f32.
    #[default]
    None,
    /// Rounded to bf16.
    Bf16,
    /// Rounded to fp16.
    Fp16,
}

impl CommHook {
    /// What travels.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "fp32",
            Self::Bf16 => "bf16",
            Self::Fp16 => "fp16",
        }
    }
}

/// Who adds up the gradients of all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AllReduce {
    /// This program, in a fixed tree over ranks.
    #[default]
    Tree,
    /// The MPI library, in an order of its own.
    Library,
}

/// `[validation]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Validation {
    /// "1 epoch", "500 steps" or "never".
    pub every: Every,
    /// Samples per pass; "auto" = `train.batch_size`.
    pub batch_size: Auto<u32>,
    /// Metrics to measure beside the usual ones.
    pub metrics: Vec<String>,
    /// Every how many evaluations a diffusion model is asked for samples.
    pub sample_every: u32,
}

/// `[checkpoint]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    /// Folder of all runs' checkpoints.
    pub dir: PathBuf,
    /// "1 epoch", "500 steps" or "never".
    pub every: Every,
    /// Newest checkpoints to keep.
    pub keep_last: u32,
    /// Best checkpoints to keep.
    pub keep_best: u32,
    /// Metric that ranks checkpoints.
    pub monitor: String,
    /// Whether less or more of it is better.
    pub mode: Mode,
}

/// `[early_stopping]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EarlyStopping {
    /// Metric to watch.
    pub monitor: String,
    /// Whether less or more of it is better.
    pub mode: Mode,
    /// Evaluations without improvement that are tolerated; absent = no early stopping.
    pub patience: Option<u64>,
    /// Absolute improvement that counts.
    pub min_delta: f64,
}

/// `[fault]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// Times that the group is started again from its newest checkpoint after a failure.
    pub max_restarts: u32,
    /// Time after which a rank that does not move is named and its group ended.
    pub stall_timeout: Patience,
    /// How often ranks compare their weights.
    pub compare_weights: Every,
    /// What to do when a rank runs out of memory.
    pub on_oom: OnOom,
    /// Largest mean loss of a step that is no sign of divergence; absent = any that is finite.
    pub divergence_threshold: Option<f64>,
}

/// What to do when a rank runs out of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnOom {
    /// End the run with code 8.
    #[default]
    Stop,
    /// Go on from the newest checkpoint with smaller passes, and more of them.
    ShrinkBatch,
}

/// `[logging]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Logging {
    /// Folder of all runs' logs.
    pub dir: PathBuf,
    /// "10 steps": how often a step is recorded.
    pub every: Every,
    /// What to write beside the history: "jsonl", "csv", "curves".
    pub sinks: Vec<String>,
}

/// One entry of `[expect]`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Expectation {
    /// The final value must not be less.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<f64>,
    /// The final value must not be more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_most: Option<f64>,
}
