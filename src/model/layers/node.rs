//! What layers do, and which of them are one operation together.

use candle_core::{D, Result, Tensor};

use crate::nn::{BatchNorm2d, Conv2d, ForwardContext, Linear, Nonlinearity};
use crate::ops::{Activation, LinearActivation};

/// What a layer does. Images are (n, h, w, c), sequences (n, steps, c), vectors (n, c).
pub trait Forward: Send + Sync {
    /// The output for `x`.
    ///
    /// # Errors
    ///
    /// What its operations refuse.
    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor>;
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
    /// Whatever stands alone.
    Other(Box<dyn Forward>),
}

impl Node {
    /// A layer that stands alone.
    pub fn of(layer: impl Forward + 'static) -> Self {
        Self::Other(Box::new(layer))
    }

    /// The output for `x`.
    ///
    /// # Errors
    ///
    /// What its operations refuse.
    pub fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        match self {
            Self::Conv2d(conv) => conv.forward(x, pass),
            Self::ConvNorm(conv, norm, activation) => norm.after(conv, x, None, *activation, pass),
            Self::Norm(norm, activation) => {
                let rows = x.elem_count() / x.dim(D::Minus1)?.max(1);
                let y = x.reshape((rows, 1, 1, ()))?;
                norm.forward(&y, None, *activation, pass)?.reshape(x.shape())
            }
            Self::Linear(linear, activation) => linear.forward_activated(x, *activation, pass),
            Self::Nonlinearity(nonlinearity) => nonlinearity.forward(x),
            Self::Other(layer) => layer.forward(x, pass),
        }
    }
}

/// One node after another.
///
/// # Errors
///
/// What their operations refuse.
pub fn run(nodes: &[Node], x: Tensor, pass: &ForwardContext) -> Result<Tensor> {
    nodes.iter().try_fold(x, |x, node| node.forward(&x, pass))
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
