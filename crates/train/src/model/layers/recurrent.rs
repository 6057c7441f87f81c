//! `name = "lstm"`, `"gru"`, `"rnn"`

use candle_core::{Result as CandleResult, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::model::layers::{
    Flow, Forward, InferredLayer, Layer, LayerMisfit, Node, Scope, Site, Sizes,
};
use crate::nn::{self, ForwardContext, RecurrentShape};
use crate::onnx::{Graph, Value};
use crate::ops::Cell;

/// A recurrent layer: its options and what it does in a step.
macro_rules! recurrent {
    ($type:ident, $name:literal, $cell:expr, $about:literal $(, $(#[$meta:meta])* $field:ident: $of:ty)?) => {
        #[doc = $about]
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        pub struct $type {
            /// features of a state.
            #[schemars(range(min = 1, max = 16_777_216), example = 64)]
            pub hidden_size: u32,
            /// layers, each of which reads the states of the one before.
            #[serde(default = "one")]
            #[schemars(range(min = 1, max = 1024), example = 2)]
            pub num_layers: u32,
            /// whether each layer reads from the end as well; the states are side by side.
            #[serde(default)]
            #[schemars(example = true)]
            pub bidirectional: bool,
            /// dropout between layers.
            #[serde(default)]
            #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0), example = 0.1)]
            pub dropout: f64,
            $($(#[$meta])* pub $field: $of,)?
        }

        impl $type {
            fn shape(&self, inputs: usize) -> RecurrentShape {
                let cell: fn(&Self) -> Cell = $cell;
                RecurrentShape {
                    cell: cell(self),
                    inputs,
                    hidden: self.hidden_size as usize,
                    layers: self.num_layers as usize,
                    bidirectional: self.bidirectional,
                    dropout: self.dropout,
                }
            }
        }

        impl Kind for $type {
            const NAME: &'static str = $name;
        }

        impl Layer for $type {
            fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<InferredLayer, LayerMisfit> {
                let [steps, features] = input.sequence()?;
                let outputs = self.shape(features).outputs();
                // What is read backwards begins with the padding.
                let states = if self.bidirectional {
                    Flow::Sequence([steps, outputs])
                } else {
                    input.with_features(outputs)
                };
                Ok(states.into())
            }

            fn details(&self, _: &Sizes) -> String {
                let layers = match self.num_layers {
                    1 => String::new(),
                    n => format!(" of {n} layers"),
                };
                layers + if self.bidirectional { ", both ways" } else { "" }
            }

            fn parameters(&self, sizes: &Sizes) -> usize {
                self.shape(sizes.inputs()).elem_count()
            }

            fn flops(&self, sizes: &Sizes) -> u64 {
                self.shape(sizes.inputs()).flops(sizes.input.rows())
            }

            fn draws(&self) -> bool {
                true
            }

            fn build(&self, site: &Site<'_>) -> CandleResult<Node> {
                let shape = self.shape(site.sizes().inputs());
                nn::Recurrent::drawing(&site.builder(), &site.draws(), shape).map(Node::of)
            }
        }
    };
}

fn one() -> u32 {
    1
}

recurrent!(
    Lstm,
    "lstm",
    |_| Cell::Lstm,
    "long short-term memory over the steps of a sequence, `torch.nn.LSTM`: the states of all \
     steps. GPUs leave it to the CPU."
);
recurrent!(
    Gru,
    "gru",
    |_| Cell::Gru,
    "gated recurrent unit over the steps of a sequence, `torch.nn.GRU`: the states of all steps. \
     GPUs leave it to the CPU."
);
recurrent!(
    Rnn,
    "rnn",
    |layer| match layer.nonlinearity {
        RnnNonlinearity::Tanh => Cell::Tanh,
        RnnNonlinearity::Relu => Cell::Relu,
    },
    "recurrent layer over the steps of a sequence, `torch.nn.RNN`: the states of all steps. GPUs \
     leave it to the CPU.",
    /// what a state is of the sum of both products.
    #[serde(default)]
    #[schemars(example = &"relu")]
    nonlinearity: RnnNonlinearity
);

/// What a state of `rnn` is of the sum of what is read and the state before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RnnNonlinearity {
    /// The hyperbolic tangent.
    #[default]
    Tanh,
    /// The positive part.
    Relu,
}

impl Forward for nn::Recurrent {
    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> CandleResult<Tensor> {
        nn::Recurrent::forward(self, x, pass)
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        nn::Recurrent::onnx(self, graph, x)
    }
}
