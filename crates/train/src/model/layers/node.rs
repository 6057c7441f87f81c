//! What layers do, and which of them are one operation together.

use candle_core::{D, Result, Tensor, bail};

use crate::nn::{BatchNorm2d, Conv2d, ForwardContext, Linear, Nonlinearity};
use crate::onnx::{Graph, Value};
use crate::ops::{self, Activation, LinearActivation};

/// What a layer does. Images are (n, h, w, c), sequences (n, steps, c), vectors (n, c).
pub trait Forward: Send + Sync {
    /// The output for `x`.
    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor>;

    /// Whether x may be in half precision. Under bf16 a convolution may hand it on; on a GPU, one
    /// with its batch norm does, under fp16 too, and so does a linear layer with an activation.
    /// Batch norms, activations and max pooling keep it. Others get f32, which the operations of
    /// Candle can mix with weights.
    fn takes_half(&self) -> bool {
        false
    }

    /// What [`Forward::forward`] does in evaluation, in a graph of ONNX; values have their channels
    /// last there, too. Without it a model with such a layer is not exported as ONNX.
    fn onnx(&self, graph: &mut Graph, x: &Value) -> Result<Value> {
        let _ = (graph, x);
        bail!("it does not say how it is written (`Forward::onnx`)")
    }
}

/// A layer, or several that are one operation: a batch norm after a convolution, and an activation
/// after either or after a linear layer.
pub enum Node {
    /// A convolution.
    Conv2d(Conv2d),
    /// A convolution, its batch norm, and what follows.
    ConvNorm(Conv2d, BatchNorm2d, Activation),
    /// A batch norm, and what follows.
    Norm(BatchNorm2d, Activation),
    /// A linear layer, and what follows.
    Linear(Linear, LinearActivation),
    /// An activation.
    Nonlinearity(Nonlinearity),
    /// Whatever stands alone, and what it is called.
    Other(Box<dyn Forward>, String),
}

impl Node {
    /// A layer that stands alone.
    pub fn of(layer: impl Forward + 'static) -> Self {
        Self::Other(Box::new(layer), String::new())
    }

    /// The same, called so where it is refused.
    pub(super) fn named(self, kind: &str, path: &str) -> Self {
        match self {
            Self::Other(layer, _) => Self::Other(layer, format!("`{kind}` ({path})")),
            node => node,
        }
    }

    /// The output for `x`.
    pub fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        match self {
            Self::Conv2d(conv) => conv.autocast(x, pass),
            Self::ConvNorm(conv, norm, activation) => norm.after(conv, x, None, *activation, pass),
            Self::Norm(norm, activation) => {
                let rows = x.elem_count() / x.dim(D::Minus1)?.max(1);
                let y = x.reshape((rows, 1, 1, ()))?;
                norm.forward(&y, None, *activation, pass)?.reshape(x.shape())
            }
            Self::Linear(linear, activation) => linear.forward_activated(x, *activation, pass),
            Self::Nonlinearity(nonlinearity) => nonlinearity.forward(x),
            Self::Other(layer, _) if layer.takes_half() => layer.forward(x, pass),
            Self::Other(layer, _) => layer.forward(&ops::widen(x)?, pass),
        }
    }

    /// What [`Node::forward`] does in evaluation, in a graph of ONNX.
    ///
    /// # Errors
    ///
    /// A layer that ONNX has nothing for, which the graph then blames.
    pub fn onnx(&self, graph: &mut Graph, x: &Value) -> Result<Value> {
        match self {
            Self::Conv2d(conv) => conv.onnx(graph, x, [0; 2]),
            Self::ConvNorm(conv, norm, activation) => {
                let y = conv.onnx(graph, x, [0; 2])?;
                norm.onnx(graph, &y, *activation)
            }
            Self::Norm(norm, activation) => norm.onnx(graph, x, *activation),
            Self::Linear(linear, activation) => linear.onnx_activated(graph, x, *activation),
            Self::Nonlinearity(nonlinearity) => Ok(nonlinearity.onnx(graph, x)),
            Self::Other(layer, name) => {
                layer.onnx(graph, x).inspect_err(|_| graph.blame("layer", name))
            }
        }
    }
}

/// One node after another.
pub fn run(nodes: &[Node], x: Tensor, pass: &ForwardContext) -> Result<Tensor> {
    nodes.iter().try_fold(x, |x, node| node.forward(&x, pass))
}

/// [`run`] in a graph of ONNX.
pub fn run_onnx(nodes: &[Node], graph: &mut Graph, x: &Value) -> Result<Value> {
    nodes.iter().try_fold(x.clone(), |x, node| node.onnx(graph, &x))
}

/// One node that does what both do, or both.
pub(super) fn merged(before: Node, node: Node) -> Vec<Node> {
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
