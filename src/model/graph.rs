//! `graph`: a model written down layer by layer (`[[model.layers]]`), with the names that the file gives.
//!
//! A batch norm after a convolution, and a rectifier after either, are one operation; so a `resnet18` in layers has
//! the bits and the speed of the registered one.

use std::sync::Arc;

use candle_core::{Device, Result, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Architecture, Head, Model};
use crate::config::kind::Kind;
use crate::nn::{
    self, BatchNorm2d, Builder, Conv1d, Conv2d, ConvShape, Dropout, Embedding, ForwardContext,
    Init, LayerNorm, Linear, Nonlinearity,
};
use crate::ops::{self, Activation, Attention, LinearActivation, Window};
use crate::plan::{Flow, LayerInit, LayerOp, LayerPlan, ModelPlan, WindowPlan};

/// Deviation of the first position vectors, as in GPT-2.
const POSITION_STD: f64 = 0.02;

/// A model written down layer by layer, in `[[model.layers]]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GraphConfig {}

impl Kind for GraphConfig {
    const NAME: &'static str = "graph";
}

impl Architecture for GraphConfig {
    fn build(&self, plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>> {
        let is_image = plan.input.len() == 3;
        Ok(Box::new(Graph { is_image, nodes: nodes(&plan.layers, builder)? }))
    }

    fn head(&self) -> Head {
        Head::Last
    }
}

struct Graph {
    is_image: bool,
    nodes: Vec<Node>,
}

impl Model for Graph {
    fn forward(&self, input: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let x = if self.is_image { ops::nchw_to_nhwc(input)? } else { input.clone() };
        run(&self.nodes, x, pass)
    }
}

fn run(nodes: &[Node], x: Tensor, pass: &ForwardContext) -> Result<Tensor> {
    nodes.iter().try_fold(x, |x, node| node.forward(&x, pass))
}

/// A layer, or several that are one operation. Images are (n, h, w, c), sequences (n, steps, c), vectors (n, c).
enum Node {
    Conv2d(Conv2d),
    ConvNorm(Conv2d, BatchNorm2d, Activation),
    Conv1d(Conv1d),
    Norm(BatchNorm2d, Activation),
    LayerNorm(LayerNorm),
    Linear(Linear, LinearActivation),
    Embedding(Embedding),
    Positions(Embedding, usize),
    Attention(SelfAttention),
    Nonlinearity(Nonlinearity),
    Dropout(Dropout),
    MaxPool(WindowPlan),
    AvgPool(WindowPlan),
    GlobalAvgPool,
    Flatten,
    Tokens,
    Transpose,
    Sequential(Vec<Node>),
    Residual(Arc<Residual>),
    Concat(Vec<Node>),
}

/// The layers as nodes, those that belong together merged.
fn nodes(layers: &[LayerPlan], builder: &Builder) -> Result<Vec<Node>> {
    let mut nodes: Vec<Node> = Vec::with_capacity(layers.len());
    for layer in layers {
        let node = Node::new(layer, builder)?;
        match nodes.pop() {
            Some(before) => nodes.extend(merged(before, node)),
            None => nodes.push(node),
        }
    }
    Ok(nodes)
}

/// One node that does what both do, or both.
fn merged(before: Node, node: Node) -> Vec<Node> {
    use Activation::{Identity, Relu};
    vec![match (before, node) {
        (Node::Conv2d(conv), Node::Norm(norm, Identity)) => Node::ConvNorm(conv, norm, Identity),
        (Node::ConvNorm(conv, norm, Identity), Node::Nonlinearity(Nonlinearity::Relu)) => {
            Node::ConvNorm(conv, norm, Relu)
        }
        (Node::Norm(norm, Identity), Node::Nonlinearity(Nonlinearity::Relu)) => {
            Node::Norm(norm, Relu)
        }
        (
            Node::Linear(linear, LinearActivation::Identity),
            Node::Nonlinearity(Nonlinearity::Relu),
        ) => Node::Linear(linear, LinearActivation::Relu),
        (
            Node::Linear(linear, LinearActivation::Identity),
            Node::Nonlinearity(Nonlinearity::Gelu),
        ) => Node::Linear(linear, LinearActivation::Gelu),
        (before, node) => return vec![before, node],
    }]
}

impl Node {
    fn new(layer: &LayerPlan, root: &Builder) -> Result<Self> {
        let builder = root.pp(&layer.path);
        let inputs = layer.input.features().unwrap_or(0);
        let outputs = layer.output.features().unwrap_or(0);
        let draws = layer.draws.as_ref().unwrap_or(&layer.path);
        let dropout = |p: &f64| Dropout::new(&root.pp(draws), *p);
        Ok(match &layer.op {
            LayerOp::Conv2d { window, groups, bias, init } => {
                let shape = conv_shape(inputs, outputs, *window, *groups);
                Self::Conv2d(conv2d(&builder, shape, *bias, *init)?)
            }
            LayerOp::Conv1d { window, groups, bias } => {
                let shape = conv_shape(inputs, outputs, *window, *groups);
                let new = if *bias { Conv1d::new } else { Conv1d::without_bias };
                Self::Conv1d(new(&builder, shape)?)
            }
            LayerOp::BatchNorm => {
                let norm = BatchNorm2d::new(&builder, outputs, layer.output.rows(), 1.0)?;
                Self::Norm(norm, Activation::Identity)
            }
            LayerOp::LayerNorm { bias } => {
                let new = if *bias { LayerNorm::new } else { LayerNorm::without_bias };
                Self::LayerNorm(new(&builder, outputs)?)
            }
            LayerOp::Linear { bias } => {
                let new = if *bias { Linear::new } else { Linear::without_bias };
                Self::Linear(new(&builder, inputs, outputs)?, LinearActivation::Identity)
            }
            LayerOp::Embedding { rows } => {
                Self::Embedding(Embedding::new(&builder, *rows, outputs)?)
            }
            LayerOp::PositionEmbedding => {
                let Flow::Sequence([steps, _]) = layer.output else { return Err(unplanned(layer)) };
                let init = Init::Normal(POSITION_STD);
                Self::Positions(Embedding::with_init(&builder, steps, outputs, init)?, steps)
            }
            LayerOp::Attention { heads, causal, dropout: p } => Self::Attention(SelfAttention {
                qkv: Linear::new(&builder.pp("qkv"), inputs, 3 * inputs)?,
                proj: Linear::new(&builder.pp("proj"), inputs, inputs)?,
                heads: *heads,
                causal: *causal,
                dropout: dropout(p),
            }),
            LayerOp::Relu => Self::Nonlinearity(Nonlinearity::Relu),
            LayerOp::Gelu => Self::Nonlinearity(Nonlinearity::Gelu),
            LayerOp::Silu => Self::Nonlinearity(Nonlinearity::Silu),
            LayerOp::Sigmoid => Self::Nonlinearity(Nonlinearity::Sigmoid),
            LayerOp::Tanh => Self::Nonlinearity(Nonlinearity::Tanh),
            LayerOp::Dropout { p } => Self::Dropout(dropout(p)),
            LayerOp::MaxPool2d { window } => Self::MaxPool(*window),
            LayerOp::AvgPool2d { window } => Self::AvgPool(*window),
            LayerOp::GlobalAvgPool => Self::GlobalAvgPool,
            LayerOp::Flatten => Self::Flatten,
            LayerOp::Tokens => Self::Tokens,
            LayerOp::Transpose => Self::Transpose,
            LayerOp::Sequential { layers } => Self::Sequential(nodes(layers, root)?),
            LayerOp::Residual { layers, shortcut, relu } => Self::Residual(Arc::new(Residual {
                layers: nodes(layers, root)?,
                shortcut: nodes(shortcut, root)?,
                activation: if *relu { Activation::Relu } else { Activation::Identity },
            })),
            LayerOp::Concat { layers } => Self::Concat(
                layers.iter().map(|layer| Self::new(layer, root)).collect::<Result<_>>()?,
            ),
        })
    }

    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        match self {
            Self::Conv2d(conv) => conv.forward(x, pass),
            Self::ConvNorm(conv, norm, activation) => norm.after(conv, x, None, *activation, pass),
            Self::Conv1d(conv) => conv.forward(x, pass),
            Self::Norm(norm, activation) => {
                let rows = x.elem_count() / x.dim(candle_core::D::Minus1)?.max(1);
                let y = x.reshape((rows, 1, 1, ()))?;
                norm.forward(&y, None, *activation, pass)?.reshape(x.shape())
            }
            Self::LayerNorm(norm) => norm.forward(x),
            Self::Linear(linear, activation) => linear.forward_activated(x, *activation, pass),
            Self::Embedding(table) => table.forward(&x.to_dtype(candle_core::DType::U32)?),
            Self::Positions(table, steps) => {
                let positions = table.forward(&Tensor::arange(0, *steps as u32, &Device::Cpu)?)?;
                x.broadcast_add(&positions)
            }
            Self::Attention(attention) => attention.forward(x, pass),
            Self::Nonlinearity(nonlinearity) => nonlinearity.forward(x),
            Self::Dropout(dropout) => dropout.forward(x, pass),
            Self::MaxPool(window) => ops::max_pool2d(x, window.kernel, slid(*window)),
            Self::AvgPool(window) => ops::average_pool2d(x, window.kernel, slid(*window)),
            Self::GlobalAvgPool if x.rank() == 3 => ops::global_average_pool(&x.unsqueeze(2)?),
            Self::GlobalAvgPool => ops::global_average_pool(x),
            Self::Flatten if x.rank() == 4 => ops::nhwc_to_nchw(x)?.flatten_from(1),
            Self::Flatten => x.flatten_from(1),
            Self::Tokens => x.flatten(1, 2),
            Self::Transpose => x.transpose(1, 2)?.contiguous(),
            Self::Sequential(nodes) => run(nodes, x.clone(), pass),
            Self::Residual(block) => nn::run_block(block, x, pass),
            Self::Concat(branches) => {
                let outputs = branches.iter().map(|branch| branch.forward(x, pass));
                Tensor::cat(&outputs.collect::<Result<Vec<_>>>()?, candle_core::D::Minus1)
            }
        }
    }
}

fn conv2d(builder: &Builder, shape: ConvShape, bias: bool, init: LayerInit) -> Result<Conv2d> {
    let init = match init {
        LayerInit::Torch => Init::torch_default(shape.weight()[1..].iter().product()),
        LayerInit::HeFanOut => Init::he_fan_out(&shape.weight()),
    };
    if bias {
        Conv2d::with_init(builder, shape, init)
    } else {
        Conv2d::without_bias(builder, shape, init)
    }
}

fn conv_shape(inputs: usize, outputs: usize, window: WindowPlan, groups: usize) -> ConvShape {
    ConvShape { inputs, outputs, kernel: window.kernel, window: slid(window), groups }
}

fn slid(window: WindowPlan) -> Window {
    Window { stride: window.stride, padding: window.padding }
}

/// The plan gives such a layer another shape; only a plan that was edited by hand does not.
fn unplanned(layer: &LayerPlan) -> candle_core::Error {
    candle_core::Error::Msg(format!("`{}` cannot output {}", layer.path, layer.output))
}

/// activation(layers(x) + shortcut(x)).
struct Residual {
    layers: Vec<Node>,
    shortcut: Vec<Node>,
    activation: Activation,
}

impl nn::Block for Residual {
    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let round = run(&self.shortcut, x.clone(), pass)?;
        if let Some((Node::ConvNorm(conv, norm, Activation::Identity), before)) =
            self.layers.split_last()
        {
            let y = run(before, x.clone(), pass)?;
            return norm.after(conv, &y, Some(&round), self.activation, pass);
        }
        let sum = (round + run(&self.layers, x.clone(), pass)?)?;
        match self.activation {
            Activation::Identity => Ok(sum),
            Activation::Relu => ops::relu(&sum),
        }
    }
}

/// Self-attention with one linear layer for queries, keys and values, and one after it.
struct SelfAttention {
    qkv: Linear,
    proj: Linear,
    heads: usize,
    causal: bool,
    /// Of the probabilities.
    dropout: Dropout,
}

impl SelfAttention {
    /// x (n, steps, c) -> (n, steps, c).
    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let dropout = self.dropout.drawn(pass);
        let Self { heads, causal, .. } = *self;
        let options = Attention { heads, causal, dropout, precision: pass.precision };
        let qkv = self.qkv.forward(x, pass)?;
        self.proj.forward(&ops::attention_packed(&qkv, options)?, pass)
    }
}

#[cfg(test)]
mod tests;
