//! Layers of the model `graph`, a file for each family: options, output shape, parameters and
//! operations, and the forward pass.
//!
//! Images are (n, h, w, c) inside of a graph, sequences (n, steps, c), vectors (n, c). Names,
//! numbers and initial values are PyTorch's.

mod activations;
mod attention;
mod containers;
mod convolution;
mod dropout;
mod embedding;
mod linear;
mod node;
mod norm;
mod pooling;
mod recurrent;
mod reshape;
mod scope;
#[cfg(test)]
mod tests;
mod window;

use std::fmt::Debug;

use candle_core::Result as CandleResult;

use crate::config::kind::{Entry, Kind};
pub use crate::plan::{Flow, LayerMisfit, LayerPlan, Unfit};
use crate::registry::{Accepts, Family, Registered, Registry};
pub use activations::{
    Gelu, Hardsigmoid, Hardswish, LeakyRelu, Mish, Relu, Relu6, Sigmoid, Silu, Softmax, Tanh,
};
pub use attention::{CrossAttention, SelfAttention};
pub use containers::{Concat, Product, Repeat, Residual, ResidualActivation, Sequential};
pub use convolution::{Conv1d, Conv2d, Conv2dInit, ConvTranspose2d};
pub use dropout::{Dropout, StochasticDepth};
pub use embedding::{ClassToken, Embedding, Latents, PositionEmbedding};
pub use linear::Linear;
pub use node::{Forward, Node, Site, run, run_onnx};
pub use norm::{BatchNorm, GroupNorm, InstanceNorm, LayerNorm, RmsNorm};
pub use pooling::{AdaptiveAvgPool2d, AvgPool1d, AvgPool2d, GlobalAvgPool, MaxPool1d, MaxPool2d};
pub use recurrent::{Gru, Lstm, Rnn, RnnNonlinearity};
pub use reshape::{Flatten, Select, Tokens, Transpose, Upsample, UpsampleMode};
pub use scope::{InferredLayer, Scope};
pub use window::Padding;

/// A layer that a graph may hold: its fields are its options.
pub trait Layer: Debug + Send + Sync {
    /// Output shape for `input`, and the layers inside, before anything is built.
    fn decide(&self, input: Flow, scope: &mut Scope<'_>) -> Result<InferredLayer, LayerMisfit>;

    /// Details after its name in the table of `ddprun plan`: " 3, stride 2".
    fn details(&self, sizes: &Sizes) -> String {
        let _ = sizes;
        String::new()
    }

    /// Number of elements of its parameters, without those of layers inside.
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

    /// True if it draws random numbers, under a name of its own.
    fn draws(&self) -> bool {
        false
    }

    /// Number of repetitions, each with parameters of its own; `None` = no repetition.
    fn times(&self) -> Option<u32> {
        None
    }

    /// Registers its parameters and returns its forward pass. It runs twice, as
    /// [`Architecture::build`](crate::model::Architecture::build) does.
    fn build(&self, site: &Site<'_>) -> CandleResult<Node>;
}

/// Sizes of a layer that follow from its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Input shape.
    pub input: Flow,
    /// Output shape.
    pub output: Flow,
    /// Outputs that the data needs of the model.
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

    /// Operations of dot products of `inner` elements, one for each element of the output.
    pub fn product(&self, inner: usize) -> u64 {
        2 * (self.output.rows() * self.outputs() * inner) as u64
    }

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

impl<K: Kind + Layer> Accepts<K> for LayerFamily {
    fn boxed(kind: K) -> Box<dyn Layer> {
        Box::new(kind)
    }
}

/// Registry of layers.
pub type Layers = Registry<LayerFamily>;

/// Plans the layers of `[[model.layers]]` with all their sizes, for samples of shape `input` and
/// data that needs `needed` outputs.
pub fn plan(
    known: &Layers,
    layers: &[Entry],
    input: Flow,
    needed: usize,
) -> Result<Vec<LayerPlan>, LayerMisfit> {
    Scope::new(known, needed).all(layers, input)
}

impl Registered for LayerFamily {
    fn registered() -> Layers {
        let mut all = Layers::empty();
        all.add::<Conv2d>();
        all.add::<Conv1d>();
        all.add::<ConvTranspose2d>();
        all.add::<BatchNorm>();
        all.add::<LayerNorm>();
        all.add::<GroupNorm>();
        all.add::<InstanceNorm>();
        all.add::<RmsNorm>();
        all.add::<Linear>();
        all.add::<Embedding>();
        all.add::<PositionEmbedding>();
        all.add::<ClassToken>();
        all.add::<Select>();
        all.add::<SelfAttention>();
        all.add::<CrossAttention>();
        all.add::<Latents>();
        all.add::<Lstm>();
        all.add::<Gru>();
        all.add::<Rnn>();
        all.add::<Relu>();
        all.add::<LeakyRelu>();
        all.add::<Relu6>();
        all.add::<Hardswish>();
        all.add::<Hardsigmoid>();
        all.add::<Gelu>();
        all.add::<Silu>();
        all.add::<Mish>();
        all.add::<Sigmoid>();
        all.add::<Tanh>();
        all.add::<Softmax>();
        all.add::<Dropout>();
        all.add::<StochasticDepth>();
        all.add::<MaxPool2d>();
        all.add::<AvgPool2d>();
        all.add::<MaxPool1d>();
        all.add::<AvgPool1d>();
        all.add::<AdaptiveAvgPool2d>();
        all.add::<GlobalAvgPool>();
        all.add::<Upsample>();
        all.add::<Flatten>();
        all.add::<Tokens>();
        all.add::<Transpose>();
        all.add::<Sequential>();
        all.add::<Repeat>();
        all.add::<Residual>();
        all.add::<Product>();
        all.add::<Concat>();
        all
    }
}
