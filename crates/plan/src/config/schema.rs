//! The experiment file, schema 1, as plain data, before anything is decided.
//!
//! Each key is declared here, and nowhere else (see `table`); rules between keys are in `check`.

mod data;
mod train;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::LazyLock;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Entry, Options, SINKS, TABLES, names_or_tables};
use crate::config::table::{self, FOLDER, SAFE, TAKEN, table};
use crate::config::values::{Auto, Devices, Duration, Interval, Patience, Size, Warmup, ZeroStage};

pub use data::{Data, Mixup, MixupMode, OnBadSample, Sampler, Transforms};
pub use train::{Model, OnNonFinite, PrecisionChoice, Train};
pub use train_numbers::Convolutions;

/// Most samples of a step, most epochs, steps: past them a number is a slip, and products overflow.
const MAX_SAMPLES: u64 = 1 << 24;
const MAX_EPOCHS: u64 = 1 << 24;
const MAX_STEPS: u64 = 1 << 40;
/// Seconds.
pub(super) const WEEK: u64 = 7 * 24 * 3600;

/// Why a key changes no evaluation.
const NO_TRAINING: &str = "nothing is trained";
const NO_RUN: &str = "`ddprun eval` makes no run, in one process";
/// A remedy for an interval of 0.
const SWITCH_OFF: &str = "to switch it off, write \"never\"";

/// The keys of an experiment, as they are declared.
pub(crate) static DECLARED: LazyLock<serde_json::Value> =
    LazyLock::new(table::declared::<Experiment>);

table! {
    /// Every key of an experiment, what it means, and its default.
    ///
    /// A key without a default is shown as a comment, with an example. An experiment file needs
    /// only the keys that it changes. Required: `model.name`, `data.name`, a batch size, and one of
    /// `train.epochs`, `train.steps`, `train.time`.
    ///
    /// Layers, weakest first:
    /// 1. these defaults
    /// 2. the files named by `extends`, in order
    /// 3. the experiment file
    /// 4. the environment: `DDPRUN_TRAIN__BATCH_SIZE=64` sets `train.batch_size`
    /// 5. the command line: `train.batch_size=64`, `~train.clip_grad_norm` (back to the default)
    ///
    /// Tables are merged key by key; lists are replaced. If a stronger layer selects another kind
    /// (`optimizer.name`), options that only the old kind has (`momentum`) are dropped.
    #[expect(missing_docs, reason = "the type of a table says what it is")]
    pub struct Experiment {
        /// Schema version of this file. Newer versions are refused.
        pub schema: u32 = 1,
        /// Base files to inherit from, relative to this file; later ones override earlier ones.
        #[serde(skip_serializing)]
        #[schemars(extend("examples" = [["_base/vision.toml"]]))]
        pub extends: Option<Bases>,
        /// Experiment to run instead, relative to this file, where files that `[data]` names are absent and cannot be
        /// fetched, also from the Hugging Face hub. Not inherited, and not followed if the command line or the environment gives a key of `[data]`.
        #[serde(skip_serializing)]
        #[schemars(extend("examples" = ["resnet_imagenette.toml"]))]
        pub fallback: Option<PathBuf>,
        pub experiment: Identity,
        pub model: Model,
        pub data: Data,
        pub train: Train,
        pub loss: Loss,
        pub optimizer: Optimizer,
        pub ema: Ema,
        pub swa: Swa,
        pub lookahead: Lookahead,
        pub lr_scaling: LrScaling,
        pub scheduler: Scheduler,
        pub loss_scale: LossScale,
        pub distributed: Distributed,
        pub validation: Validation,
        pub checkpoint: Checkpoint,
        pub early_stopping: EarlyStopping,
        pub fault: Fault,
        pub logging: Logging,
        pub hooks: Hooks,
        /// Metrics that the run must reach in the end, or it exits with code 9.
        #[schemars(extend(
            "examples" = [{ "val/accuracy": { "at_least": 0.9, "at_most": 1.0 } }],
            "x-resume" = SAFE, "x-eval" = NO_RUN,
        ))]
        pub expect: BTreeMap<String, Expectation>,
    }
}

/// The names of one file, or of several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Bases {
    /// A file.
    One(String),
    /// Files.
    Several(Vec<String>),
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
            SINKS => Some(&mut self.logging.sinks),
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

table! {
    /// What the run is called, and its seed.
    #[schemars(extend("x-eval" = NO_RUN))]
    pub struct Identity {
        /// Name of the folders below `logging.dir` and `checkpoint.dir`: letters, digits, `.`, `_`,
        /// `-`. Default: the file's name without its ending.
        #[schemars(example = &"resnet18-animals90")]
        pub name: Option<String>,
        /// Seed of everything random: initial weights, sample order, augmentation, dropout.
        pub seed: u64 = 0,
        /// Tags of its runs: `ddprun ls --tag` filters by them, `ddprun tag` changes those of one
        /// run.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        #[schemars(extend("examples" = [["baseline"]], "x-resume" = SAFE))]
        pub tags: Vec<String>,
    }
}

table! {
    /// What is minimised.
    #[schemars(extend(
        "x-eval" = "the metrics of a run are those of the loss that it was trained with"
    ))]
    pub struct Loss {
        /// The loss, averaged over the unmasked targets of the global batch. Default:
        /// `"cross_entropy"`; for tables, lists of images and series it follows from their target:
        /// `"cross_entropy"` for classes (words, or up to 20 different whole numbers that occur
        /// five times or more on average), `"bce_with_logits"` for labels, "mse" for numbers.
        pub name: String = "cross_entropy".to_owned(),
        /// Options of the loss.
        pub options: Options,
    }
}

table! {
    /// How parameters move.
    #[schemars(extend("x-eval" = NO_TRAINING))]
    pub struct Optimizer {
        /// The optimizer, each exactly PyTorch's or its paper's:
        pub name: String = "sgd".to_owned(),
        /// Learning rate, before `lr_scaling`. 0 makes no updates (for benchmarks).
        #[schemars(range(min = 0.0, max = 1e6), extend("x-aliases" = ["learning_rate"]))]
        pub lr: f64 = 1e-3,
        /// Exclude biases and norm parameters (1-D tensors) from weight decay, in addition to those
        /// in `no_decay`.
        pub no_decay_on_1d: bool = false,
        /// Exclude these from weight decay: "norm" (weights of norms, and any other one-dimensional
        /// tensor that is not a bias), "bias", "embedding" (token and position embeddings). timm's
        /// rule is `["norm", "bias"]`. By default all parameters decay, as in PyTorch.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        #[schemars(extend("examples" = [["norm", "bias", "embedding"]]))]
        pub no_decay: Vec<NoDecay>,
        /// Layer-wise learning-rate decay, as timm's `layer_decay`: the rate is multiplied by this
        /// factor from each block to the one below it, from the head down to the stem; 0 to 1.
        /// Blocks are the numbered parts of parameter names: `layer1.0`, `blocks.11`.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(example = 0.75, extend("exclusiveMinimum" = 0.0, "maximum" = 1.0))]
        pub layer_decay: Option<f64>,
        /// Gradual unfreezing (Howard and Ruder 2018): train the head first, and after each
        /// interval one more block, down to the stem; blocks are those of `layer_decay`. A group
        /// with `unfreeze_at_epoch` or `frozen` follows its own setting. `ddprun plan` shows when
        /// each part is trained.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(extend("minimum" = 1, "maximum" = MAX_STEPS))]
        pub gradual_unfreezing: Option<Interval>,
        /// Options of the optimizer.
        pub options: Options,
        /// Parameters with their own learning rate or weight decay, or that are frozen for part of
        /// the run. A parameter belongs to the first group that matches it. Frozen parameters have
        /// no gradient and no optimizer state; BatchNorm's running statistics keep moving, as in
        /// PyTorch. `ddprun plan` lists the groups.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        #[schemars(extend("x-aliases" = ["param_groups"]))]
        pub groups: Vec<Group>,
    }
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

table! {
    /// A group of parameters.
    pub struct Group {
        /// Parameter names: a module (`layer4`), or a pattern in which `*` is any characters and
        /// `?` any one (`*.bias`).
        #[serde(rename = "match")]
        #[schemars(example = &"layer4")]
        pub pattern: String,
        /// Factor of the learning rate.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(range(min = 0.0), example = 0.1, extend("x-aliases" = ["lr"]))]
        pub lr_factor: Option<f64>,
        /// Weight decay instead of the optimizer's; `no_decay` does not apply to it.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(range(min = 0.0), example = 0.0)]
        pub weight_decay: Option<f64>,
        /// Frozen for the whole run.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub frozen: Option<bool>,
        /// Frozen for this many epochs first, as Lightning's `unfreeze_backbone_at_epoch`.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(range(min = 1, max = MAX_STEPS), example = 3)]
        pub unfreeze_at_epoch: Option<u64>,
        /// Frozen after this many epochs.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(range(min = 1, max = MAX_STEPS), example = 10)]
        pub freeze_at_epoch: Option<u64>,
    }
}

table! {
    /// An exponential moving average of the weights that begins at the initial ones, as timm's
    /// `ModelEmaV3` without `step` (PyTorch's `AveragedModel` begins at the weights of its first
    /// update). If `decay` is given, the average is validated, tested, sampled and exported;
    /// training continues with the weights themselves. Checkpoints hold both. While more than 1 %
    /// of the average are initial weights (decay^steps), validation also measures the weights:
    /// `val_weights/loss`.
    #[schemars(extend("x-eval" = NO_TRAINING))]
    pub struct Ema {
        /// Weight of the previous average in each update, 0 to 1. Without it there is no average.
        #[schemars(range(min = 0.0, max = 1.0), example = 0.9999)]
        pub decay: Option<f64>,
        /// Warm-up of the decay: at update i it is 1 - (i - 1)^-power, at most `decay`. 0.75 suits
        /// diffusion policies, 2/3 long runs. Without it, `decay` applies from the first update on.
        #[schemars(extend("exclusiveMinimum" = 0.0), example = 0.75)]
        pub power: Option<f64>,
        /// Whether buffers (BatchNorm's running statistics) are averaged as well. false, as
        /// `AveragedModel` (and `ModelEmaV3` with `exclude_buffers`): the averaged weights use the
        /// running statistics of the trained weights. true, as `ModelEmaV3`: they use averaged
        /// statistics. Counters always come from training. Default: false.
        pub use_buffers: Option<bool>,
    }
}

table! {
    /// Stochastic weight averaging (Izmailov et al. 2018), as `torch.optim.swa_utils`: the plain
    /// average of the weights over the last epochs. When training ends, also through `train.time`
    /// or early stopping, one pass over the training data computes BatchNorm statistics for the
    /// averaged weights (`update_bn`). From then on, the average is validated, tested and exported;
    /// until then, the weights are.
    #[schemars(extend("x-eval" = NO_TRAINING))]
    pub struct Swa {
        /// When averaging starts: "75 epochs", "30000 steps". Without it there is no average.
        #[schemars(extend("minimum" = 0, "maximum" = MAX_STEPS, "examples" = ["75 epochs"]))]
        pub start: Option<Interval>,
        /// How often the weights are added to the average. Default: "1 epoch".
        #[schemars(extend("minimum" = 1, "maximum" = MAX_STEPS))]
        pub every: Option<Interval>,
        /// Learning rate from `start` on, before `lr_scaling`, as SWALR's `swa_lr`. Default: the
        /// scheduler's.
        #[schemars(range(min = 0.0, max = 1e6), example = 0.05)]
        pub lr: Option<f64>,
        /// Epochs over which the learning rate is annealed from the scheduler's at `start` to
        /// `swa.lr`. Default: 10.
        #[schemars(range(min = 0, max = MAX_EPOCHS), example = 10)]
        pub anneal_epochs: Option<u64>,
        /// Shape of the annealing: "cos" or "linear". Default: "cos".
        #[schemars(example = AnnealStrategy::Cos)]
        pub anneal_strategy: Option<AnnealStrategy>,
    }
}

table! {
    /// Lookahead (Zhang et al. 2019): every `k` steps, slow weights (and buffers) move by the
    /// fraction `alpha` towards the trained weights, and training continues from there, with its
    /// optimizer state. The slow weights are validated, tested, sampled and exported.
    #[schemars(extend("x-eval" = NO_TRAINING))]
    pub struct Lookahead {
        /// Steps between synchronisations; 5 is usual. Without it there are no slow weights.
        #[schemars(range(min = 1, max = MAX_STEPS), example = 5)]
        pub k: Option<u64>,
        /// Fraction by which the slow weights move towards the trained ones, 0 to 1. Default: 0.5.
        #[schemars(range(min = 0.0, max = 1.0), example = 0.5)]
        pub alpha: Option<f64>,
        /// Decay of that fraction: after step t of T it is 1 - (1 - alpha) (t / T)^power, from 1 at
        /// the start to `alpha` at the end. Without it, the fraction is always `alpha`.
        #[schemars(extend("exclusiveMinimum" = 0.0), example = 3.0)]
        pub power: Option<f64>,
    }
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

table! {
    /// How the learning rate follows the global batch size.
    #[schemars(extend("x-eval" = NO_TRAINING))]
    pub struct LrScaling {
        /// How the learning rate follows the global batch size: "none": it is `optimizer.lr`.
        /// "linear": times `global_batch_size` / `base_batch_size`. "sqrt": times the square root
        /// of that.
        pub rule: ScalingRule = ScalingRule::None,
        /// Global batch size that `optimizer.lr` was tuned for.
        #[schemars(range(min = 1, max = MAX_SAMPLES))]
        pub base_batch_size: u32 = 256,
    }
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

table! {
    /// How the learning rate follows time.
    #[schemars(extend("x-eval" = NO_TRAINING))]
    pub struct Scheduler {
        /// The learning rate over time, each exactly PyTorch's or its paper's:
        pub name: String = "constant".to_owned(),
        /// Update the learning rate after each "epoch" or each "step". Warm-up, `"one_cycle"`,
        /// `"inverse_sqrt"` and "noam" always go by steps.
        pub interval: ScheduleUnit = ScheduleUnit::Epoch,
        /// Linear warm-up before the schedule begins: "5 epochs", "500 steps", a share of the run's
        /// steps ("5 %"), or "never". A share fits a run of any length; it needs `train.epochs` or
        /// `train.steps`.
        #[schemars(extend("minimum" = 0, "maximum" = MAX_STEPS))]
        pub warmup: Warmup = Warmup::For(Interval::Never),
        /// Fraction of the learning rate at the first warm-up step.
        #[schemars(extend("exclusiveMinimum" = 0.0, "maximum" = 1.0))]
        pub warmup_start_factor: f64 = 0.01,
        /// Options of the scheduler.
        pub options: Options,
    }
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
pub enum ScheduleUnit {
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

impl Mode {
    /// True if `value` is strictly better than `than`.
    pub fn is_better(self, value: f64, than: f64) -> bool {
        match self {
            Self::Min => value < than,
            Self::Max => value > than,
        }
    }

    /// The word in a file: `min` or `max`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Min => "min",
            Self::Max => "max",
        }
    }
}

table! {
    /// The fp16 gradient scaler, as PyTorch's GradScaler; only with `precision = "fp16"`.
    #[schemars(extend("x-eval" = NO_TRAINING))]
    pub struct LossScale {
        /// Initial loss scale.
        #[schemars(extend("exclusiveMinimum" = 0.0))]
        pub init: f64 = 65536.0,
        /// The scale is multiplied by this after `growth_interval` good steps in a row.
        #[schemars(range(min = 1.0))]
        pub growth_factor: f64 = 2.0,
        /// The scale is multiplied by this after a step whose gradients are not finite.
        #[schemars(extend("exclusiveMinimum" = 0.0, "exclusiveMaximum" = 1.0))]
        pub backoff_factor: f64 = 0.5,
        /// Good steps in a row before the scale grows.
        #[schemars(range(min = 1, max = MAX_STEPS))]
        pub growth_interval: u64 = 2000,
    }
}

table! {
    /// Ranks, devices, and how gradients are exchanged.
    #[schemars(extend("x-eval" = NO_RUN))]
    pub struct Distributed {
        /// How ranks exchange gradients. "auto" is "nccl" on GPUs, but "shm" for ranks that share a
        /// GPU. On CPUs it is "shm" on one machine; on several "mpi" if an MPI launcher started the
        /// ranks, else "tcp".
        pub backend: String = AUTO_BACKEND.to_owned(),
        /// Ranks on each machine: a number; a list of GPUs, `[0, 3]` (`[0, 0]` puts two ranks on
        /// one); or "auto": one rank per visible GPU, or one on the CPU. GPUs need a build with
        /// `--features cuda`; `CUDA_VISIBLE_DEVICES` hides some or all.
        #[schemars(extend("x-aliases" = ["num_gpus", "gpus", "world_size"], "x-resume" = SAFE))]
        pub devices: Devices = Devices::Auto,
        /// Compute threads of each rank; "auto" = cores / ranks.
        #[schemars(extend("minimum" = 1, "maximum" = 1024, "x-resume" = SAFE))]
        pub threads_per_rank: Auto<u32> = Auto::Auto,
        /// Size of a gradient bucket, as DDP's `bucket_cap_mb`.
        #[schemars(extend("minimum" = 1024, "maximum" = 1_u64 << 40, "x-resume" = SAFE))]
        pub bucket_cap: Size = Size(25 << 20),
        /// Size of the first bucket that is ready in backward; small, so that communication starts
        /// early.
        #[schemars(extend("minimum" = 1024, "maximum" = 1_u64 << 40, "x-resume" = SAFE))]
        pub first_bucket_cap: Size = Size(1 << 20),
        /// Equal parts of the global batch, whose gradients are always added in the same order.
        /// Results are therefore bitwise identical on this many ranks, half as many, a quarter ...;
        /// "auto" = the number of ranks, also of those that `--nnodes` or a launcher (torchrun,
        /// srun, mpirun) starts.
        #[schemars(extend("minimum" = 1, "maximum" = 1024))]
        pub shards: Auto<u32> = Auto::Auto,
        /// Smallest world size to continue with after losing ranks: half of them, a quarter ... as
        /// `shards` allows, with bitwise identical results; the run grows back when possible.
        /// "auto": never shrink. `--nproc-per-node 1:4` sets `devices` too.
        #[schemars(extend("minimum" = 1, "maximum" = 1024, "x-resume" = SAFE))]
        pub min_world_size: Auto<u32> = Auto::Auto,
        /// Reduce buckets while backward still runs.
        #[schemars(extend("x-resume" = SAFE))]
        pub overlap: bool = true,
        /// Exchange gradients as they are ("none"), or rounded to "bf16" or "fp16", as with
        /// PyTorch's comm hooks. "nccl" then sends half as many bytes; other backends round but do
        /// not send less. All ranks get identical gradients; results differ from "none" and depend
        /// on the world size.
        pub comm_hook: CommHook,
        /// What adds up gradients: "tree": ddprun, in a fixed order, so that results do not depend
        /// on where ranks run. "library", with backend "mpi" only: `MPI_Iallreduce`, in an order of
        /// its own, so that results may differ in their last bits.
        pub all_reduce: AllReduce,
        /// Stage of ZeRO. 0: plain DDP. 1: each rank keeps the optimizer state of its part of the
        /// parameters, and updates these. 2: it also frees the reduced gradients of other parts.
        /// Results are bitwise identical (over NCCL with two GPUs). Checkpoints hold everything,
        /// and resume with any of the three.
        #[schemars(extend("x-aliases" = ["shard"], "x-resume" = SAFE))]
        pub zero_stage: ZeroStage,
        /// Allow parameters that get no gradient, as DDP's `find_unused_parameters`.
        pub find_unused_parameters: bool = false,
        /// Compute BatchNorm statistics over all shards of a pass (one per rank, unless `shards`
        /// says otherwise), as PyTorch's SyncBatchNorm. Results are bitwise identical at any world
        /// size that `shards` admits.
        #[schemars(extend("x-aliases" = ["sync_bn"]))]
        pub sync_batchnorm: bool = false,
        /// Timeout for rendezvous and collectives. If the parent sends no heartbeat for this long,
        /// ranks save and exit.
        #[schemars(extend("exclusiveMinimum" = 0, "maximum" = WEEK, "x-resume" = SAFE))]
        pub timeout: Duration = Duration::of_minutes(10),
    }
}

/// The value of `distributed.backend` that leaves the choice to the plan.
pub const AUTO_BACKEND: &str = "auto";
/// The meaning of that value.
pub(crate) const AUTO_BACKEND_ABOUT: &str = "The best for the devices: `nccl` on GPUs, `shm` on CPUs, `mpi` or \
                                             `tcp` on several machines.";

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
    /// Type of the numbers that are exchanged.
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

table! {
    /// When the model is evaluated, and by which metrics.
    #[schemars(extend("x-eval" = "`ddprun eval` measures every metric, once"))]
    pub struct Validation {
        /// When to evaluate: "1 epoch", "500 steps" or "never". Every sample counts exactly once.
        #[schemars(extend(
            "minimum" = 1, "maximum" = MAX_STEPS, "x-if-zero" = SWITCH_OFF, "x-resume" = SAFE
        ))]
        pub every: Interval = Interval::Epochs(1),
        /// Samples per pass and rank; "auto" = that of training.
        #[schemars(extend("minimum" = 1, "maximum" = MAX_SAMPLES, "x-eval" = TAKEN))]
        pub batch_size: Auto<u32> = Auto::Auto,
        /// Metrics to measure besides the usual ones (accuracy, `top5_accuracy`, `exact_match`,
        /// mse, mae), by name without `val/`. Metrics that are monitored or expected are always
        /// measured, by default `rmse_unscaled` where `data.standardize_target` is set, and `ddprun
        /// eval` measures all that apply:
        /// - classification: `top2_accuracy` `top3_accuracy` `top10_accuracy` precision recall f1
        ///   auroc `average_precision`
        /// - two classes: also `precision_binary` `recall_binary` `f1_binary`, of the positive
        ///   class, the second in label order
        /// - multi-label: the same without top, and `precision_micro` `recall_micro` `f1_micro`
        /// - numbers: rmse r2
        /// - texts: perplexity `bits_per_byte`
        ///
        /// Class metrics are macro averages; auroc and `average_precision` gather the scores of all
        /// samples on every rank.
        #[schemars(extend("x-resume" = SAFE))]
        pub metrics: Vec<String>,
        /// `diffusion_policy`: sample actions for val/mse and val/mae only in the first of every N
        /// evaluations, and in the last one; val/loss is measured in each. Sampling takes
        /// `num_inference_steps` passes, so such an evaluation may take longer than the epoch
        /// before it.
        #[schemars(range(min = 1, max = 1 << 20), extend("x-resume" = SAFE))]
        pub sample_every: u32 = 1,
    }
}

table! {
    /// When to save, and which checkpoints to keep.
    #[schemars(extend("x-resume" = SAFE, "x-eval" = NO_RUN))]
    pub struct Checkpoint {
        /// Folder of all runs' checkpoints.
        #[schemars(extend("x-resume" = FOLDER))]
        pub dir: PathBuf = "checkpoints".into(),
        /// When to save: "1 epoch", "500 steps" or "never". The end of a run is saved as well,
        /// unless "never"; a run that stops early (signal, time limit, early stopping) is saved
        /// even then, and so is the end of a run that has a checkpoint.
        #[schemars(extend("minimum" = 1, "maximum" = MAX_STEPS, "x-if-zero" = SWITCH_OFF))]
        pub every: Interval = Interval::Epochs(1),
        /// Newest checkpoints to keep. With 2, a run goes on if one of them is damaged.
        #[schemars(range(min = 1, max = 10_000))]
        pub keep_last: u32 = 2,
        /// Best checkpoints to keep; each new best is saved at once. With `every = "never"`, none
        /// is saved unless this key is given.
        #[schemars(range(min = 0, max = 10_000))]
        pub keep_best: u32 = 1,
        /// Metric that ranks checkpoints: "val/loss", "val/accuracy", "val/mse" or any other of
        /// `validation.metrics`; "train/loss" or "train/accuracy". Default: "val/loss"; for tables
        /// and lists of images "val/accuracy" if the target is a class, `"val/average_precision"`
        /// if it is labels. Of equal values the one with the smaller val/loss is better, then the
        /// earlier. After a resume with another metric, existing checkpoints are ranked by it too.
        pub monitor: String = "val/loss".to_owned(),
        /// Whether lower ("min") or higher ("max") is better; if not given, it follows from the
        /// metric.
        pub mode: Mode = Mode::Min,
        /// Second place for the run, on a machine whose disk may be lost: a folder that is there
        /// (a share, another disk), or a command for `sh` that makes a place the same as
        /// `{folder}`; `{name}` and `{run}` stand for the run's name and id, quoted. It gets logs
        /// and checkpoints after each save, beside the training, and gives up those that are not
        /// kept. `ddprun resume --from` brings the run back.
        #[schemars(length(min = 1), example = "rclone sync {folder} remote:bucket/{run}")]
        pub mirror: Option<String>,
        /// How long the end of the run waits for the mirror, and after which its command is ended.
        #[schemars(extend("exclusiveMinimum" = 0, "maximum" = WEEK))]
        pub mirror_timeout: Duration = Duration::of_minutes(10),
    }
}

table! {
    /// When to give up because nothing improves any more.
    #[schemars(extend("x-resume" = SAFE, "x-eval" = NO_RUN))]
    pub struct EarlyStopping {
        /// Metric to monitor.
        pub monitor: String = "val/loss".to_owned(),
        /// Whether lower ("min") or higher ("max") is better; if not given, it follows from the
        /// metric.
        pub mode: Mode = Mode::Min,
        /// Training stops after this many evaluations in a row without improvement; without this
        /// key there is no early stopping.
        #[schemars(range(min = 1, max = MAX_STEPS), example = 10)]
        pub patience: Option<u64>,
        /// Smallest absolute change that counts as an improvement.
        #[schemars(range(min = 0.0))]
        pub min_delta: f64 = 0.0,
    }
}

table! {
    /// What to do about failures.
    #[schemars(extend("x-resume" = SAFE, "x-eval" = NO_RUN))]
    pub struct Fault {
        /// How many times to restart all ranks from the newest checkpoint after a rank failed.
        #[schemars(range(min = 0, max = 1000))]
        pub max_restarts: u32 = 0,
        /// If a rank is stopped, or makes no progress within a step, for this long, it is reported
        /// and all ranks are ended (and restarted). "auto": five times the usual step, at least 10
        /// seconds. "never": only `distributed.timeout` applies.
        #[schemars(extend("exclusiveMinimum" = 0, "maximum" = WEEK))]
        pub stall_timeout: Patience = Patience::Auto,
        /// How often ranks compare hashes of their weights, which must be equal: "100 steps",
        /// "1 epoch" or "never". A rank whose weights differ (for example after a bit flip in
        /// memory) is reported, and all ranks are ended (and restarted). Before a checkpoint,
        /// weights, optimizer state and everything else that is saved are always compared.
        #[schemars(extend("minimum" = 1, "maximum" = MAX_STEPS, "x-if-zero" = SWITCH_OFF))]
        pub compare_weights: Interval = Interval::Steps(100),
        /// If a rank runs out of memory: "stop" ends the run (exit 8); `"shrink_batch"` continues
        /// from the newest checkpoint with half the micro-batch size and twice the accumulation
        /// steps. The global batch and its mean gradient stay the same, but BatchNorm sees smaller
        /// batches, dropout draws other masks, and sums are rounded in another order.
        pub on_oom: OnOom,
        /// A step whose mean loss exceeds this ends the run (exit 4) before the weights are
        /// updated, so the checkpoints stay good. Without this key, only a loss that is not finite
        /// does (`train.on_non_finite`).
        #[schemars(extend("exclusiveMinimum" = 0.0), example = 100.0)]
        pub divergence_threshold: Option<f64>,
    }
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

table! {
    /// Commands for `sh` that are run when something has happened, one after the other beside the
    /// training: they cost no step, and one that fails changes nothing. `{run}`, `{name}`, `{logs}`
    /// and `{checkpoints}` stand for the run's id, its name and its folders, quoted for the shell;
    /// the whole event comes as JSON on standard input. What they print is in `hooks.log`.
    #[schemars(extend("x-resume" = SAFE, "x-eval" = NO_RUN))]
    pub struct Hooks {
        /// A checkpoint is on disk: `{checkpoint}` is its folder, `{step}` its step. While a command
        /// runs, only the newest of the next checkpoints waits.
        #[schemars(length(min = 1), example = "rclone sync {checkpoints} remote:bucket/{run}")]
        pub checkpoint_saved: Option<String>,
        /// The run has ended, or was stopped and can go on: `{code}` is the exit code.
        #[schemars(length(min = 1), example = "notify-send {name} ended")]
        pub run_ended: Option<String>,
        /// The run has failed: `{code}` is the exit code, `{message}` the error.
        #[schemars(length(min = 1), example = "mail -s {name}' failed' me@example.org")]
        pub run_failed: Option<String>,
        /// A trial of a sweep has ended or failed, or was stopped by its pruner: `{code}` and
        /// `{message}` as above. Of the other hooks a trial has `checkpoint_saved` only.
        #[schemars(length(min = 1), example = "notify-send {run} ended")]
        pub trial_ended: Option<String>,
        /// Time after which a command is ended.
        #[schemars(extend("exclusiveMinimum" = 0, "maximum" = WEEK))]
        pub timeout: Duration = Duration::of_minutes(10),
    }
}

table! {
    /// What to write about the run, and where.
    #[schemars(extend("x-resume" = SAFE, "x-eval" = NO_RUN))]
    pub struct Logging {
        /// Folder of all runs' logs.
        #[schemars(extend("x-resume" = FOLDER))]
        pub dir: PathBuf = "logs".into(),
        /// How often training metrics are recorded: "10 steps", "1 epoch" or "never".
        #[schemars(extend("minimum" = 1, "maximum" = MAX_STEPS, "x-if-zero" = SWITCH_OFF))]
        pub every: Interval = Interval::Steps(10),
        /// Loggers, in addition to `epochs.jsonl` and `training_history.json`: each a name, or a
        /// table of a name and options, such as `{ name = "tensorboard", dir = "tb" }`.
        #[serde(serialize_with = "names_or_tables")]
        pub sinks: Vec<Entry> = ["jsonl", "csv", "curves"].map(Entry::named).to_vec(),
    }
}

table! {
    /// Bounds of a metric.
    #[derive(Copy)]
    pub struct Expectation {
        /// The final value must not be less.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub at_least: Option<f64>,
        /// The final value must not be more.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub at_most: Option<f64>,
    }
}
