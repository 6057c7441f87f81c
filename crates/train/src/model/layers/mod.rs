//! Layers of the model `graph`: each a file of its own, with its options, the shape that it leads
//! to, and what it does.
//!
//! Images are (n, h, w, c) inside of a graph, sequences (n, steps, c), vectors (n, c). Names,
//! numbers and initial values are PyTorch's.

mod activations;
mod adaptive_avg_pool2d;
mod attention;
mod avg_pool1d;
mod avg_pool2d;
mod batch_norm;
mod class_token;
mod concat;
mod conv1d;
mod conv2d;
mod conv_transpose2d;
mod cross_attention;
mod dropout;
mod embedding;
mod flatten;
mod global_avg_pool;
mod group_norm;
mod instance_norm;
mod latents;
mod layer_norm;
mod leaky_relu;
mod lengths;
mod linear;
mod max_pool1d;
mod max_pool2d;
mod node;
mod padding;
mod position_embedding;
mod product;
mod recurrent;
mod repeat;
mod residual;
mod rms_norm;
mod scope;
mod select;
mod sequential;
mod site;
mod softmax;
mod stochastic_depth;
mod tokens;
mod transpose;
mod upsample;
mod window;

#[cfg(test)]
mod tests;
mod registered;

use std::fmt::Debug;

use candle_core::Result as CandleResult;

use crate::config::kind::{Entry, Kind};
pub use crate::plan::{Flow, LayerMisfit, LayerPlan, Unfit};
use crate::registry::{Family, Registry, Takes};
pub use activations::{Gelu, Hardsigmoid, Hardswish, Mish, Relu, Relu6, Sigmoid, Silu, Tanh};
pub use adaptive_avg_pool2d::AdaptiveAvgPool2d;
pub use attention::SelfAttention;
pub use avg_pool1d::AvgPool1d;
pub use avg_pool2d::AvgPool2d;
pub use batch_norm::BatchNorm;
pub use class_token::ClassToken;
pub use concat::Concat;
pub use conv_transpose2d::ConvTranspose2d;
pub use conv1d::Conv1d;
pub use conv2d::{Conv2d, Conv2dInit};
pub use cross_attention::CrossAttention;
pub use dropout::Dropout;
pub use embedding::Embedding;
pub use flatten::Flatten;
pub use global_avg_pool::GlobalAvgPool;
pub use group_norm::GroupNorm;
pub use instance_norm::InstanceNorm;
pub use latents::Latents;
pub use layer_norm::LayerNorm;
pub use leaky_relu::LeakyRelu;
pub use linear::Linear;
pub use max_pool1d::MaxPool1d;
pub use max_pool2d::MaxPool2d;
pub use node::{Forward, Node, run, run_onnx};
pub use padding::Padding;
pub use position_embedding::PositionEmbedding;
pub use product::Product;
pub use recurrent::{Gru, Lstm, Rnn, RnnNonlinearity};
pub use repeat::Repeat;
pub use residual::{Residual, ResidualActivation};
pub use rms_norm::RmsNorm;
pub use scope::{Decided, Scope};
pub use select::Select;
pub use sequential::Sequential;
pub use site::Site;
pub use softmax::Softmax;
pub use stochastic_depth::StochasticDepth;
pub use tokens::Tokens;
pub use transpose::Transpose;
pub use upsample::{Upsample, UpsampleMode};

/// A layer that a graph may hold: its fields are its options.
pub trait Layer: Debug + Send + Sync {
    /// What it makes of `input`, worked out before anything is built.
    fn decide(&self, input: Flow, scope: &mut Scope<'_>) -> Result<Decided, LayerMisfit>;

    /// What the table of `ddprun plan` says after its name: " 3, stride 2".
    fn details(&self, sizes: &Sizes) -> String {
        let _ = sizes;
        String::new()
    }

    /// Elements of its parameters, without those of layers inside.
    fn parameters(&self, sizes: &Sizes) -> usize {
        let _ = sizes;
        0
    }

    /// Floating-point operations of the forward pass of one sample, without those of layers inside:
    /// two for each multiplication of a product.
    fn flops(&self, sizes: &Sizes) -> u64 {
        let _ = sizes;
        0
    }

    /// Whether it draws random numbers, by a name of its own.
    fn draws(&self) -> bool {
        false
    }

    /// How often it stands one after another, each time with parameters of its own; `None` = once.
    fn times(&self) -> Option<u32> {
        None
    }

    /// Registers its parameters and returns what it does. It runs twice, as
    /// [`Architecture::build`](crate::model::Architecture::build).
    fn build(&self, site: &Site<'_>) -> CandleResult<Node>;
}

/// Sizes that follow from where a layer stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// What it takes.
    pub input: Flow,
    /// What it gives.
    pub output: Flow,
    /// Numbers that the data needs at the end of the model.
    pub needed: usize,
}

impl Sizes {
    /// Channels or features of the input.
    pub fn inputs(&self) -> usize {
        self.input.features().unwrap_or(0)
    }

    /// Channels or features of the output.
    pub fn outputs(&self) -> usize {
        self.output.features().unwrap_or(0)
    }

    /// Operations of products of `inner` numbers, one for each number of the output.
    pub fn product(&self, inner: usize) -> u64 {
        2 * (self.output.rows() * self.outputs() * inner) as u64
    }

    /// Elements of a bias.
    fn bias(&self, has_bias: bool) -> usize {
        if has_bias { self.outputs() } else { 0 }
    }
}

/// `[[model.layers]]`
#[derive(Debug)]
pub enum LayerFamily {}

impl Family for LayerFamily {
    const TABLE: &'static str = "model.layers";
    const NOUN: &'static str = "layer";
    const LISTS: &'static [&'static str] = &["model.layers"];
    const LISTS_OF: Option<&'static str> = Some("graph");
    const ENTRY_KEY: Option<&'static str> = Some(
        "what the parameters of a layer are called by (`conv1.weight`); without one it is the \
         layer's place in its list, as in torch.nn.Sequential.",
    );
    type Object = dyn Layer;
}

impl<K: Kind + Layer> Takes<K> for LayerFamily {
    fn boxed(kind: K) -> Box<dyn Layer> {
        Box::new(kind)
    }
}

/// Layers that a program knows.
pub type Layers = Registry<LayerFamily>;

/// The layers of `[[model.layers]]` with all their sizes, for samples of such an input, and
/// data that needs so many numbers at the end.
pub fn plan(
    known: &Layers,
    layers: &[Entry],
    input: Flow,
    needed: usize,
) -> Result<Vec<LayerPlan>, LayerMisfit> {
    Scope::new(known, needed).all(layers, input)
}
