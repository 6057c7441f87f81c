//! The experiment file, schema 1, as plain data: what was asked, before anything is decided.
//!
//! Every key stands in `defaults.toml` with its meaning and default; rules between keys live in
//! `check.rs`. A kind-specific key (`momentum` belongs to `sgd`) is an `Option`: `plan` fills it.

mod data;
mod layers;
mod train;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::config::values::{Auto, Duration, Every, Patience, Strict};

pub use data::{
    Calendar, Data, DataKind, OnBadSample, Sampler, Transform, TransformKind, Transforms,
};
pub use layers::{Layer, LayerInit, LayerKind, ResidualActivation};
pub use train::{Convolutions, OnNonFinite, PrecisionChoice, Train};

/// A whole experiment file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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

/// `[experiment]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// Name of the run's folders: letters, digits, `.`, `_`, `-`. The file's stem by default.
    pub name: Option<String>,
    /// Seed of everything random.
    pub seed: u64,
}

/// `[model]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Registered name.
    pub name: String,
    /// Outputs of the classifier; "auto" = the data's number of classes.
    pub num_classes: Auto<u32>,
    /// Safetensors state dict to start from.
    pub pretrained: Option<PathBuf>,
    /// Whether every key of `pretrained` must fit.
    pub strict: Strict,
    /// `ResNet`: "imagenet" (7x7 stride 2 and pooling) or "cifar" (3x3 stride 1).
    pub stem: Option<Stem>,
    /// `ResNet`: start the last norm of each block at zero.
    pub zero_init_residual: Option<bool>,
    /// Train the head only.
    pub freeze_backbone: Option<bool>,
    /// In which mode a frozen backbone runs while the head trains.
    pub backbone_mode: Option<BackboneMode>,
    /// MLP: widths of the hidden layers.
    pub hidden: Option<Vec<u32>>,
    /// Dropout where the model's paper has it: after each hidden layer of an MLP, after each sublayer of a transformer.
    pub dropout: Option<f64>,
    /// Transformers: dropout of attention probabilities.
    pub attn_dropout: Option<f64>,
    /// Transformers: width.
    pub d_model: Option<u32>,
    /// Transformers: heads of each attention.
    pub n_heads: Option<u32>,
    /// Transformers: width inside the feed-forward part.
    pub d_ff: Option<u32>,
    /// Transformers: number of layers.
    pub n_layers: Option<u32>,
    /// GPT: whether linear layers and norms have biases.
    pub bias: Option<bool>,
    /// GPT: what follows the first linear layer of the feed-forward part.
    pub activation: Option<Gelu>,
    /// Llama: heads of keys and values.
    pub n_kv_heads: Option<u32>,
    /// Llama: base of the rotary embedding's wavelengths.
    pub rope_theta: Option<f64>,
    /// Llama: how these wavelengths are stretched.
    pub rope_scaling: RopeScaling,
    /// Llama: added to the mean square in norms.
    pub norm_eps: Option<f64>,
    /// Llama: whether the output layer is the table of token embeddings.
    pub tie_word_embeddings: Option<bool>,
    /// `PatchTST`: time steps of a patch.
    pub patch_len: Option<u32>,
    /// `PatchTST`: time steps from patch to patch.
    pub stride: Option<u32>,
    /// `TimeBridge`: time steps of a patch.
    pub period: Option<u32>,
    /// `TimeBridge`: patches after sampling.
    pub num_p: Option<u32>,
    /// `TimeBridge`: window of the moving average.
    pub stable_len: Option<u32>,
    /// `TimeBridge`: integrated layers.
    pub ia_layers: Option<u32>,
    /// `TimeBridge`: patch-sampling layers.
    pub pd_layers: Option<u32>,
    /// `TimeBridge`: cointegrated layers.
    pub ca_layers: Option<u32>,
    /// `graph`: the layers, in order.
    pub layers: Option<Vec<Layer>>,
    /// Diffusion policy: channels of each level of its U-Net.
    pub down_dims: Option<Vec<u32>>,
    /// Diffusion policy: features of a diffusion step.
    pub diffusion_step_embed_dim: Option<u32>,
    /// Diffusion policy: values that a convolution sees. Speech: frames.
    pub kernel_size: Option<u32>,
    /// Diffusion policy: groups of channels of a norm.
    pub n_groups: Option<u32>,
    /// Diffusion policy: steps from actions to noise.
    pub num_train_timesteps: Option<u32>,
    /// Diffusion policy: steps back.
    pub num_inference_steps: Option<u32>,
    /// Diffusion policy: how they are taken.
    pub noise_scheduler: Option<NoiseScheduler>,
    /// Speech: channels of the convolutions that make eight frames one.
    pub subsampling_channels: Option<u32>,
    /// NEST: tokens.
    pub codebook_size: Option<u32>,
    /// NEST: numbers of a token's code.
    pub code_dim: Option<u32>,
    /// NEST: chance of a frame to begin a masked block.
    pub mask_prob: Option<f64>,
    /// NEST: frames of a masked block.
    pub mask_block: Option<u32>,
    /// Llama: adapters that are trained instead of it.
    pub lora: Lora,
    /// Options of a model that the user registered.
    pub options: BTreeMap<String, serde_json::Value>,
}

/// `[model.rope_scaling]`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RopeScaling {
    /// Which scaling; absent = none.
    pub rope_type: Option<RopeType>,
    /// How far wavelengths are stretched.
    pub factor: Option<f64>,
    /// `llama3`: wavelengths longer than the first context divided by it are stretched.
    pub low_freq_factor: Option<f64>,
    /// `llama3`: wavelengths shorter than the first context divided by it stay.
    pub high_freq_factor: Option<f64>,
    /// `llama3`: the first context.
    pub original_max_position_embeddings: Option<u32>,
}

/// Scalings of a rotary embedding, each exactly that of `transformers`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RopeType {
    /// None.
    #[default]
    Default,
    /// All wavelengths alike.
    Linear,
    /// Long wavelengths only (Llama 3.1).
    Llama3,
}

impl RopeType {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Linear => "linear",
            Self::Llama3 => "llama3",
        }
    }
}

/// `[model.lora]`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lora {
    /// Rank of the adapters; absent = none.
    pub r: Option<u32>,
    /// What an adapter adds counts alpha / r times.
    pub alpha: Option<f64>,
    /// Dropout before an adapter.
    pub dropout: Option<f64>,
    /// Layers that have one.
    pub targets: Option<Vec<String>>,
    /// Folder of adapters in PEFT's form to start from.
    pub adapters: Option<PathBuf>,
}

/// Forms of the GELU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gelu {
    /// With the normal distribution function, as nanoGPT's.
    #[default]
    Gelu,
    /// Its approximation by the tangent, as GPT-2's.
    GeluTanh,
}

/// First layers of a `ResNet`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stem {
    /// 7x7 convolution with stride 2, then 3x3 max pooling with stride 2.
    Imagenet,
    /// 3x3 convolution with stride 1, no pooling: for 32x32 images.
    Cifar,
}

/// In which mode a frozen backbone runs while the head trains, as after `backbone.train()` or `backbone.eval()`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BackboneMode {
    /// Norms use and track the statistics of the batch; dropout drops.
    #[default]
    Train,
    /// Norms use their running statistics and leave them as they are; nothing is dropped.
    Eval,
}

/// How a diffusion model takes the noise off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoiseScheduler {
    /// Every step, each with a little new noise.
    Ddpm,
    /// Few steps, without.
    Ddim,
}

/// `[loss]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Loss {
    /// Which loss.
    pub name: LossKind,
    /// Cross-entropy: share of the target spread over all classes.
    pub label_smoothing: Option<f64>,
    /// `time_frequency`: weight of the frequencies.
    pub alpha: Option<f64>,
}

/// Losses, each a mean over the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossKind {
    /// Softmax cross-entropy with class labels.
    CrossEntropy,
    /// Mean squared error.
    Mse,
    /// Mean absolute error.
    Mae,
    /// `(1 - alpha)` times the mean absolute error over time, and `alpha` times that of the Fourier coefficients.
    TimeFrequency,
}

/// `[optimizer]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Optimizer {
    /// Which update rule.
    pub name: OptimizerKind,
    /// Base learning rate, before `lr_scaling`.
    pub lr: f64,
    /// L2 penalty (`sgd`, `adam`) or decoupled decay (`adamw`).
    pub weight_decay: Option<f64>,
    /// `sgd`
    pub momentum: Option<f64>,
    /// `sgd`
    pub dampening: Option<f64>,
    /// `sgd`
    pub nesterov: Option<bool>,
    /// `adam`, `adamw`
    pub betas: Option<[f64; 2]>,
    /// `adam`, `adamw`
    pub eps: Option<f64>,
    /// Leave biases and norm parameters (one-dimensional tensors) without weight decay.
    pub no_decay_on_1d: bool,
}

/// Update rules, each exactly PyTorch's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OptimizerKind {
    /// `torch.optim.SGD`
    Sgd,
    /// `torch.optim.Adam`
    Adam,
    /// `torch.optim.AdamW`
    AdamW,
}

/// `[ema]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ema {
    /// Share of the average that stays at an update; absent = no average.
    pub decay: Option<f64>,
    /// How fast the share grows up to `decay`; absent = at once.
    pub power: Option<f64>,
    /// Whether buffers are averaged as well.
    pub use_buffers: Option<bool>,
}

/// `[lr_scaling]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LrScaling {
    /// Exponent of the scaling.
    pub rule: ScalingRule,
    /// Global batch size that `optimizer.lr` was tuned for.
    pub base_batch_size: u32,
}

/// How the learning rate follows the global batch size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scheduler {
    /// Which schedule.
    pub name: SchedulerKind,
    /// Whether the schedule moves after each epoch or each step.
    pub interval: Interval,
    /// Linear rise from `warmup_start_factor` before the schedule begins: "5 epochs", "500 steps".
    pub warmup: Every,
    /// Learning-rate factor at the first warm-up step.
    pub warmup_start_factor: f64,
    /// `step`: intervals between drops.
    pub step_size: Option<u64>,
    /// `multi_step`: intervals after which the rate drops.
    pub milestones: Option<Vec<u64>>,
    /// `step`, `multi_step`, `exponential`: factor of a drop.
    pub gamma: Option<f64>,
    /// `cosine`: lowest learning rate.
    pub eta_min: Option<f64>,
    /// `noam`: width of the model.
    pub d_model: Option<u32>,
    /// `noam`: lowest learning rate after the warm-up.
    pub min_lr: Option<f64>,
    /// `one_cycle`: share of the steps in which the rate rises.
    pub pct_start: Option<f64>,
    /// `one_cycle`: the first rate is the peak divided by this.
    pub div_factor: Option<f64>,
    /// `one_cycle`: the last rate is the first divided by this.
    pub final_div_factor: Option<f64>,
    /// `plateau`: factor of a drop.
    pub factor: Option<f64>,
    /// `plateau`: bad epochs that are tolerated.
    pub patience: Option<u64>,
    /// `plateau`: relative improvement that counts.
    pub threshold: Option<f64>,
    /// `plateau`: metric to watch.
    pub monitor: Option<String>,
    /// `plateau`: whether less or more is better.
    pub mode: Option<Mode>,
}

/// Learning-rate schedules, each exactly PyTorch's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SchedulerKind {
    /// The same rate throughout.
    Constant,
    /// `StepLR`
    Step,
    /// `MultiStepLR`
    MultiStep,
    /// `CosineAnnealingLR` over what follows the warm-up.
    Cosine,
    /// `OneCycleLR` over all steps; its peak is the (scaled) learning rate.
    OneCycle,
    /// `ReduceLROnPlateau`
    Plateau,
    /// `ExponentialLR`
    Exponential,
    /// `NeMo`'s `NoamAnnealing` (Vaswani et al. 2017, section 5.3), its warm-up included.
    Noam,
}

/// When a schedule moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Interval {
    /// After each epoch.
    Epoch,
    /// After each step.
    Step,
}

/// Whether less or more of a metric is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Less is better.
    Min,
    /// More is better.
    Max,
}

/// `[loss_scale]`, the fp16 gradient scaler
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    /// Tolerate parameters that the loss does not reach.
    pub find_unused_parameters: bool,
    /// Normalise over all ranks instead of over each rank.
    pub sync_batchnorm: bool,
    /// Longest wait for another rank.
    pub timeout: Duration,
}

/// Collective backends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// The best for the devices: `nccl` on GPUs, `shm` on CPUs.
    Auto,
    /// Shared memory of one machine.
    Shm,
    /// GPUs.
    Nccl,
    /// Several machines, through the CPUs' memory.
    Tcp,
    /// CPUs of several machines, by a library.
    Mpi,
}

/// How gradients are exchanged, as the hooks of PyTorch's DDP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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

/// `[validation]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Validation {
    /// "1 epoch", "500 steps" or "never".
    pub every: Every,
    /// Samples per pass; "auto" = `train.batch_size`.
    pub batch_size: Auto<u32>,
    /// Every how many evaluations a diffusion model is asked for samples.
    pub sample_every: u32,
}

/// `[checkpoint]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnOom {
    /// End the run with code 8.
    #[default]
    Stop,
    /// Go on from the newest checkpoint with smaller passes, and more of them.
    ShrinkBatch,
}

/// `[logging]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Logging {
    /// Folder of all runs' logs.
    pub dir: PathBuf,
    /// "10 steps": how often a step is recorded.
    pub every: Every,
    /// What to write beside the history: "jsonl", "csv", "curves".
    pub sinks: Vec<Sink>,
}

/// What a run can write about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sink {
    /// `events.jsonl`
    Jsonl,
    /// `metrics.csv`
    Csv,
    /// `events.out.tfevents.*`
    Tensorboard,
    /// `curves.png` and `curves.svg`
    Curves,
}

/// One entry of `[expect]`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expectation {
    /// The final value must not be less.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<f64>,
    /// The final value must not be more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_most: Option<f64>,
}
