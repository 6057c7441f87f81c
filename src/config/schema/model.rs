//! `[model]`: what is trained.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::schema::Layer;
use crate::config::values::{Auto, Strict};

/// `[model]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Gelu {
    /// With the normal distribution function, as nanoGPT's.
    #[default]
    Gelu,
    /// Its approximation by the tangent, as GPT-2's.
    GeluTanh,
}

/// First layers of a `ResNet`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Stem {
    /// 7x7 convolution with stride 2, then 3x3 max pooling with stride 2.
    Imagenet,
    /// 3x3 convolution with stride 1, no pooling: for 32x32 images.
    Cifar,
}

/// In which mode a frozen backbone runs while the head trains, as after `backbone.train()` or `backbone.eval()`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BackboneMode {
    /// Norms use and track the statistics of the batch; dropout drops.
    #[default]
    Train,
    /// Norms use their running statistics and leave them as they are; nothing is dropped.
    Eval,
}

/// How a diffusion model takes the noise off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NoiseScheduler {
    /// Every step, each with a little new noise.
    Ddpm,
    /// Few steps, without.
    Ddim,
}
