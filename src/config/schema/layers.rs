//! `[[model.layers]]`: a model written down layer by layer.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::values::Auto;

/// One entry of `[[model.layers]]`; keys that its name does not use are errors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Layer {
    /// Which layer.
    pub name: LayerKind,
    /// What its parameters are called by: `conv1` in `conv1.weight`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Convolutions: channels of the output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_channels: Option<u32>,
    /// Convolutions, pooling: rows and columns of the window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_size: Option<u32>,
    /// Convolutions, pooling: places from window to window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stride: Option<u32>,
    /// Convolutions, pooling: zeros (pooling: nothing) on each side.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub padding: Option<u32>,
    /// Convolutions: groups of channels that do not see each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<u32>,
    /// Convolutions, `linear`, `layer_norm`: whether there is a bias.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bias: Option<bool>,
    /// Convolutions: initial weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init: Option<LayerInit>,
    /// `linear`, `embedding`: width of the output; "auto" = what the data asks for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_features: Option<Auto<u32>>,
    /// `dropout`, `attention`: probability.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p: Option<f64>,
    /// `attention`: heads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n_heads: Option<u32>,
    /// `attention`: whether a step sees only itself and those before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub causal: Option<bool>,
    /// `repeat`: how often.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u32>,
    /// `residual`: what follows the sum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activation: Option<ResidualActivation>,
    /// `sequential`, `repeat`, `residual`, `concat`: the layers inside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<Vec<Layer>>,
    /// `residual`: layers on the way round; none = the input as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shortcut: Option<Vec<Layer>>,
}

/// Layers that a graph is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LayerKind {
    /// `torch.nn.Conv2d` with a square kernel.
    Conv2d,
    /// `torch.nn.Conv1d` along the steps of a sequence.
    Conv1d,
    /// `torch.nn.BatchNorm1d` or `2d`.
    BatchNorm,
    /// `torch.nn.LayerNorm` over the features.
    LayerNorm,
    /// `torch.nn.Linear` over the features.
    Linear,
    /// `torch.nn.Embedding` of tokens.
    Embedding,
    /// One learnt vector per step, added.
    PositionEmbedding,
    /// Self-attention with a linear layer before (`qkv`) and after (`proj`), as timm's.
    Attention,
    /// Rectifier.
    Relu,
    /// Gaussian error linear unit.
    Gelu,
    /// Sigmoid linear unit.
    Silu,
    /// Logistic function.
    Sigmoid,
    /// Hyperbolic tangent.
    Tanh,
    /// `torch.nn.Dropout`.
    Dropout,
    /// Largest value of each window.
    MaxPool2d,
    /// Mean of each window.
    AvgPool2d,
    /// Mean of each channel of an image, or of each feature over the steps.
    GlobalAvgPool,
    /// Image or sequence -> vector, in PyTorch's order.
    Flatten,
    /// Image -> sequence: one step per pixel, row by row.
    Tokens,
    /// Sequence -> sequence with steps and features exchanged.
    Transpose,
    /// One after another.
    Sequential,
    /// One after another, several times, each with parameters of its own.
    Repeat,
    /// The input, or what `shortcut` makes of it, plus what the layers make of it.
    Residual,
    /// Each layer on the same input; the outputs side by side, along channels or features.
    Concat,
}

/// Initial weights of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LayerInit {
    /// PyTorch's default.
    Torch,
    /// Normal with deviation `sqrt(2 / (out_channels kernel_size^2))`, as torchvision's residual networks.
    HeFanOut,
}

/// What follows the sum of a residual block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ResidualActivation {
    /// Nothing.
    None,
    /// Rectifier.
    Relu,
}
