//! `name = "relu"`, `"gelu"`, `"silu"` and others without options: element by element.

use candle_core::Result as CandleResult;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::model::layers::{Decided, Flow, Layer, LayerMisfit, Node, Scope, Site};
use crate::nn::Nonlinearity;

/// A kind without options that is an operation of `nn`.
macro_rules! activation {
    ($type:ident, $name:literal, $about:literal) => {
        #[doc = $about]
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields, default)]
        pub struct $type {}

        impl Kind for $type {
            const NAME: &'static str = $name;
        }

        impl Layer for $type {
            fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<Decided, LayerMisfit> {
                Ok(input.numbers()?.into())
            }

            fn build(&self, _: &Site<'_>) -> CandleResult<Node> {
                Ok(Node::Nonlinearity(Nonlinearity::$type))
            }
        }
    };
}

activation!(Relu, "relu", "ReLU.");
activation!(Relu6, "relu6", "ReLU that ends at 6.");
activation!(Hardswish, "hardswish", "`x relu6(x + 3) / 6`.");
activation!(Hardsigmoid, "hardsigmoid", "`relu6(x + 3) / 6`.");
activation!(Gelu, "gelu", "Gaussian error linear unit.");
activation!(Silu, "silu", "sigmoid linear unit.");
activation!(Mish, "mish", "x tanh(ln(1 + e^x)).");
activation!(Sigmoid, "sigmoid", "logistic function.");
activation!(Tanh, "tanh", "hyperbolic tangent.");
