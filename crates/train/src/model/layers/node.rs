//! Built layers: where each is built, what it does, and which of them are one operation together.

use candle_core::{D, Error, Result, Tensor, bail};

use crate::model::layers::{Layers, Sizes};
use crate::nn::{BatchNorm2d, Builder, Conv2d, ForwardContext, Linear, Nonlinearity, Param};
use crate::onnx::{Graph, Value};
use crate::ops::{self, Activation, LinearActivation};
use crate::plan::LayerPlan;

/// The forward pass of a layer. Images are (n, h, w, c), sequences (n, steps, c), vectors (n, c).
pub trait Forward: Send + Sync {
    /// The output for `x`.
    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor>;

    /// True if x may be in half precision. Under bf16 a convolution may output it; on a GPU, one
    /// with its batch norm does, under fp16 too, and so does a linear layer with an activation.
    /// Batch norms, activations and max pooling keep it. Other layers get f32, which the operations
    /// of Candle can mix with weights.
    fn takes_half(&self) -> bool {
        false
    }

    /// Writes [`Forward::forward`] in evaluation mode into an ONNX graph, in which values have
    /// their channels last, too. Without it a model with such a layer cannot be exported as ONNX.
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
    /// Any other layer, and its name in messages.
    Other(Box<dyn Forward>, String),
}

impl Node {
    /// A layer that stands alone.
    pub fn of(layer: impl Forward + 'static) -> Self {
        Self::Other(Box::new(layer), String::new())
    }

    /// Sets the name of a single layer in messages.
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

    /// Writes [`Node::forward`] in evaluation mode into an ONNX graph.
    ///
    /// # Errors
    ///
    /// A layer has no form in ONNX; the graph then names it.
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
                layer.onnx(graph, x).inspect_err(|_| graph.mark_unsupported("layer", name))
            }
        }
    }
}

/// Runs the nodes one after another.
pub fn run(nodes: &[Node], x: Tensor, pass: &ForwardContext) -> Result<Tensor> {
    nodes.iter().try_fold(x, |x, node| node.forward(&x, pass))
}

/// [`run`] in a graph of ONNX.
pub fn run_onnx(nodes: &[Node], graph: &mut Graph, x: &Value) -> Result<Value> {
    nodes.iter().try_fold(x.clone(), |x, node| node.onnx(graph, &x))
}

/// Fuses two nodes into one where it computes the same, else returns both.
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

/// The place of a layer in the model that is built, with its sizes.
#[derive(Clone, Copy)]
pub struct Site<'a> {
    root: &'a Builder,
    layers: &'a Layers,
    needed: usize,
    plan: &'a LayerPlan,
}

impl Site<'_> {
    /// Builds all layers of a list, fused where possible.
    pub(in crate::model) fn all(
        layers: &Layers,
        plans: &[LayerPlan],
        root: &Builder,
        needed: usize,
    ) -> Result<Vec<Node>> {
        let mut nodes: Vec<Node> = Vec::with_capacity(plans.len());
        for plan in plans {
            let node = Site { root, layers, needed, plan }.node()?;
            match nodes.pop() {
                Some(before) => nodes.extend(merged(before, node)),
                None => nodes.push(node),
            }
        }
        Ok(nodes)
    }

    /// Sizes of the layer.
    pub fn sizes(&self) -> Sizes {
        Sizes { input: self.plan.input, output: self.plan.output, needed: self.needed }
    }

    /// Builder of its parameters.
    pub fn builder(&self) -> Builder {
        self.root.pp(&self.plan.path)
    }

    /// The weight of the layer that is called `key`, which was built before.
    pub fn weight_of(&self, key: &str) -> Result<Param> {
        let missing = || Error::Msg(format!("no layer before it has a parameter `{key}.weight`"));
        self.root.existing(&format!("{key}.weight")).ok_or_else(missing)
    }

    /// Builder that names its random numbers.
    pub fn draws(&self) -> Builder {
        self.root.pp(self.plan.rng_path.as_ref().unwrap_or(&self.plan.path))
    }

    /// The layers inside, one after another.
    pub fn sequence(&self) -> Result<Vec<Node>> {
        Self::all(self.layers, &self.plan.layers, self.root, self.needed)
    }

    /// The layers of the shortcut.
    pub fn shortcut(&self) -> Result<Vec<Node>> {
        Self::all(self.layers, &self.plan.shortcut, self.root, self.needed)
    }

    /// The layers inside, as branches on one input.
    pub fn branches(&self) -> Result<Vec<Node>> {
        self.plan.layers.iter().map(|plan| Site { plan, ..*self }.node()).collect()
    }

    fn node(&self) -> Result<Node> {
        let layer = self.layers.build(&self.plan.kind);
        let layer = layer.map_err(|error| Error::Msg(error.to_string()))?;
        Ok(layer.build(self)?.named(&self.plan.kind.name, &self.plan.path))
    }
}
