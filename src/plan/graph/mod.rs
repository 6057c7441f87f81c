//! A model written down layer by layer: every layer with its sizes, or the one that does not fit.
//!
//! Shapes are worked out from the data forward, before anything is built.

mod infer;
mod shape;
mod table;

use serde::{Deserialize, Serialize};

pub use crate::config::schema::LayerInit;
use crate::config::schema::{Layer, Model};
use crate::config::{Loaded, Problem};
use infer::Inference;
pub use shape::Flow;
pub(crate) use table::rows;

/// A layer with all its numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerPlan {
    /// What its parameters are called by: `layer1.0.conv1`.
    pub path: String,
    /// What its random numbers are called by, where `path` is that of an earlier layer that draws.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draws: Option<String>,
    /// What it does.
    pub op: LayerOp,
    /// What it takes.
    pub input: Flow,
    /// What it gives.
    pub output: Flow,
}

/// What a layer does; widths are those of its input and output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "snake_case")]
pub enum LayerOp {
    /// `torch.nn.Conv2d`
    Conv2d {
        /// How its window slides.
        window: WindowPlan,
        /// Groups of channels.
        groups: usize,
        /// Whether there is a bias.
        bias: bool,
        /// Initial weights.
        init: LayerInit,
    },
    /// `torch.nn.Conv1d`
    Conv1d {
        /// How its window slides.
        window: WindowPlan,
        /// Groups of channels.
        groups: usize,
        /// Whether there is a bias.
        bias: bool,
    },
    /// `torch.nn.BatchNorm1d`, `2d`
    BatchNorm,
    /// `torch.nn.LayerNorm`
    LayerNorm {
        /// Whether there is a bias.
        bias: bool,
    },
    /// `torch.nn.Linear`
    Linear {
        /// Whether there is a bias.
        bias: bool,
    },
    /// `torch.nn.Embedding`
    Embedding {
        /// Size of the vocabulary.
        rows: usize,
    },
    /// Adds a vector per step.
    PositionEmbedding,
    /// Self-attention.
    Attention {
        /// Heads.
        heads: usize,
        /// Whether a step sees only itself and those before it.
        causal: bool,
        /// Dropout of the probabilities.
        dropout: f64,
    },
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
    /// `torch.nn.Dropout`
    Dropout {
        /// Probability.
        p: f64,
    },
    /// Largest value of each window.
    MaxPool2d {
        /// How its window slides.
        window: WindowPlan,
    },
    /// Mean of each window.
    AvgPool2d {
        /// How its window slides.
        window: WindowPlan,
    },
    /// Mean over places or steps.
    GlobalAvgPool,
    /// Image or sequence -> vector.
    Flatten,
    /// Image -> sequence.
    Tokens,
    /// Steps and features exchanged.
    Transpose,
    /// One after another.
    Sequential {
        /// The layers.
        layers: Vec<LayerPlan>,
    },
    /// Input plus what the layers make of it.
    Residual {
        /// The layers.
        layers: Vec<LayerPlan>,
        /// The way round.
        shortcut: Vec<LayerPlan>,
        /// Whether a rectifier follows the sum.
        relu: bool,
    },
    /// Outputs side by side.
    Concat {
        /// The branches.
        layers: Vec<LayerPlan>,
    },
}

/// A square window over an image, or one along a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowPlan {
    /// Rows and columns.
    pub kernel: usize,
    /// Places from window to window.
    pub stride: usize,
    /// Places added on each side.
    pub padding: usize,
}

/// The layers of the model `graph`, decided for samples of shape `input`; of any other model, none.
pub(super) fn decide(
    loaded: &Loaded,
    input: &[usize],
    target: &[usize],
    outputs: usize,
) -> Result<Vec<LayerPlan>, Problem> {
    let Model { name, layers, .. } = &loaded.experiment.model;
    let layers = layers.as_deref().unwrap_or_default();
    let Some(start) = Flow::of(input, target).filter(|_| name == "graph" && !layers.is_empty())
    else {
        return Ok(Vec::new());
    };
    let mut inference = Inference::new(loaded, outputs);
    let plans = inference.sequence("model.layers", layers, start, "")?;
    let (given, needed) =
        (plans.last().map_or(start, |layer| layer.output), Flow::needed(outputs, target));
    if given != needed {
        let last = format!("model.layers[{}].name", layers.len() - 1);
        let what = format!("gives {}, but the data needs {}", given.in_words(), needed.in_words());
        let help = "end with `linear`: its `out_features` is what the data needs";
        return Err(loaded.problem(&last, what).help(help));
    }
    Ok(plans)
}

/// Layers inside a layer, and those on the way round.
fn inner(layer: &Layer) -> (&[Layer], &[Layer]) {
    (layer.layers.as_deref().unwrap_or_default(), layer.shortcut.as_deref().unwrap_or_default())
}

impl LayerPlan {
    /// Floating-point operations of the forward pass of one sample: two for each multiplication of a product.
    pub fn flops(&self) -> u64 {
        let (inputs, outputs) =
            (self.input.features().unwrap_or(0), self.output.features().unwrap_or(0));
        let rows = self.output.rows();
        let product = |inner: usize| 2 * (rows * outputs * inner) as u64;
        let own = match &self.op {
            LayerOp::Conv2d { window, groups, .. } => {
                product(window.kernel * window.kernel * inputs / groups)
            }
            LayerOp::Conv1d { window, groups, .. } => product(window.kernel * inputs / groups),
            LayerOp::Linear { .. } => product(inputs),
            LayerOp::Attention { .. } => product(4 * inputs) + product(2 * rows),
            _ => 0,
        };
        own + self.inside().iter().flat_map(|layers| *layers).map(Self::flops).sum::<u64>()
    }

    /// The layers inside, and those on the way round them.
    fn inside(&self) -> [&[Self]; 2] {
        match &self.op {
            LayerOp::Sequential { layers } | LayerOp::Concat { layers } => [layers, &[]],
            LayerOp::Residual { layers, shortcut, .. } => [layers, shortcut],
            _ => [&[], &[]],
        }
    }

    /// Elements of its parameters.
    pub fn parameters(&self) -> usize {
        let (inputs, outputs) =
            (self.input.features().unwrap_or(0), self.output.features().unwrap_or(0));
        let or_none = |bias: bool| if bias { outputs } else { 0 };
        let own = match &self.op {
            LayerOp::Conv2d { window, groups, bias, .. } => {
                outputs * window.kernel * window.kernel * inputs / groups + or_none(*bias)
            }
            LayerOp::Conv1d { window, groups, bias } => {
                outputs * window.kernel * inputs / groups + or_none(*bias)
            }
            LayerOp::BatchNorm => 2 * outputs,
            LayerOp::LayerNorm { bias } => outputs + or_none(*bias),
            LayerOp::Linear { bias } => inputs * outputs + or_none(*bias),
            LayerOp::Embedding { rows } => rows * outputs,
            LayerOp::PositionEmbedding => self.output.rows() * outputs,
            LayerOp::Attention { .. } => 4 * (inputs + 1) * inputs,
            _ => 0,
        };
        own + self.inside().iter().flat_map(|layers| *layers).map(Self::parameters).sum::<usize>()
    }
}

#[cfg(test)]
mod tests;
