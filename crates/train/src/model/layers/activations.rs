//! Element-wise activations (`name = "relu"`, `"gelu"`, `"leaky_relu"` ...) and `"softmax"`.

use candle_core::{Result as CandleResult, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::model::layers::{
    Flow, Forward, InferredLayer, Layer, LayerMisfit, Node, Scope, Site, Sizes,
};
use crate::nn::{ForwardContext, Nonlinearity};
use crate::onnx::{Attribute, Graph, Value};
use crate::ops;

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
            fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<InferredLayer, LayerMisfit> {
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

/// x where it is positive, else `negative_slope` x, `torch.nn.LeakyReLU`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LeakyRelu {
    /// factor of negative numbers.
    #[schemars(range(min = 0.0), example = 0.2)]
    pub negative_slope: f64,
}

impl Default for LeakyRelu {
    fn default() -> Self {
        Self { negative_slope: 0.01 }
    }
}

impl Kind for LeakyRelu {
    const NAME: &'static str = "leaky_relu";
}

impl Layer for LeakyRelu {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<InferredLayer, LayerMisfit> {
        Ok(input.numbers()?.into())
    }

    fn details(&self, _: &Sizes) -> String {
        format!(" {}", self.negative_slope)
    }

    fn build(&self, _: &Site<'_>) -> CandleResult<Node> {
        Ok(Node::of(self.clone()))
    }
}

impl Forward for LeakyRelu {
    fn forward(&self, x: &Tensor, _: &ForwardContext) -> CandleResult<Tensor> {
        ops::leaky_relu(x, self.negative_slope)
    }

    fn takes_half(&self) -> bool {
        true
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        Ok(graph.unary("LeakyRelu", x, &[Attribute::Float("alpha", self.negative_slope)]))
    }
}

/// e^x / sum(e^x) over the features of a vector or of each step, or over the channels of each
/// pixel. A loss such as `cross_entropy` takes scores from before it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Softmax {}

impl Kind for Softmax {
    const NAME: &'static str = "softmax";
}

impl Layer for Softmax {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<InferredLayer, LayerMisfit> {
        Ok(input.numbers()?.into())
    }

    fn build(&self, _: &Site<'_>) -> CandleResult<Node> {
        Ok(Node::of(Self {}))
    }
}

impl Forward for Softmax {
    fn forward(&self, x: &Tensor, _: &ForwardContext) -> CandleResult<Tensor> {
        ops::softmax(x)
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        Ok(graph.softmax(x))
    }
}
