//! Your own layer of `graph`: registered by your program, written into TOML between the layers that
//! come with ddprun, its options and its input checked as theirs are.
//!
//! ```text
//! cargo run --release --example custom_layer -- plan examples/custom_layer.toml
//! cargo run --release --example custom_layer -- examples/custom_layer.toml
//! ```
//!
//! The first command shows the layer in the table of the model: its shape, parameters and
//! operations.

use std::process::ExitCode;

use candle_core::{D, Result, Tensor};
use ddprun::config::kind::Kind;
use ddprun::kinds::Kinds;
use ddprun::model::layers::{
    Flow, Forward, InferredLayer, Layer, LayerMisfit, Node, Scope, Site, Sizes,
};
use ddprun::nn::{ForwardContext, Init, Param};
use ddprun::onnx::{Graph, Value};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Global response normalisation (Woo et al. 2023, `ConvNeXt` V2): channels that respond little are
/// weakened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct GlobalResponseNorm {
    /// added to the mean response.
    #[schemars(range(min = 0.0))]
    eps: f64,
}

impl Default for GlobalResponseNorm {
    fn default() -> Self {
        Self { eps: 1e-6 }
    }
}

impl Kind for GlobalResponseNorm {
    const NAME: &'static str = "global_response_norm";
}

impl Layer for GlobalResponseNorm {
    /// Takes images only, and keeps their shape.
    fn decide(
        &self,
        input: Flow,
        _: &mut Scope<'_>,
    ) -> std::result::Result<InferredLayer, LayerMisfit> {
        input.image()?;
        Ok(input.into())
    }

    fn parameters(&self, sizes: &Sizes) -> usize {
        2 * sizes.outputs()
    }

    fn flops(&self, sizes: &Sizes) -> u64 {
        sizes.product(3)
    }

    fn build(&self, site: &Site<'_>) -> Result<Node> {
        let (builder, channels) = (site.builder(), site.sizes().outputs());
        let zeros = |name: &str| builder.param(name, &[channels], Init::Constant(0.0));
        Ok(Node::of(Parameters { gamma: zeros("gamma")?, beta: zeros("beta")?, eps: self.eps }))
    }
}

struct Parameters {
    gamma: Param,
    beta: Param,
    eps: f64,
}

impl Forward for Parameters {
    /// x (n, h, w, c) -> the same shape.
    fn forward(&self, x: &Tensor, _: &ForwardContext) -> Result<Tensor> {
        // The root has no slope at 0, where a channel may well be after a ReLU.
        let norms = (x.sqr()?.sum_keepdim((1, 2))? + 1e-12)?.sqrt()?; // (n, 1, 1, c)
        let share = norms.broadcast_div(&(norms.mean_keepdim(D::Minus1)? + self.eps)?)?;
        let scaled = x.broadcast_mul(&share)?.broadcast_mul(&self.gamma.tensor()?)?;
        x + scaled.broadcast_add(&self.beta.tensor()?)?
    }

    /// The forward pass as a graph of ONNX, for `ddprun checkpoint export`.
    fn onnx(&self, graph: &mut Graph, x: &Value) -> Result<Value> {
        let norms = graph.reduced("ReduceL2", x, &[1, 2]);
        let mean = graph.reduced("ReduceMean", &norms, &[3]);
        let eps = graph.scalar(self.eps);
        let divisor = graph.add(&mean, &eps);
        let share = graph.div(&norms, &divisor);
        let scaled = graph.mul(x, &share);
        let (gamma, beta) = (self.gamma.onnx(graph)?, self.beta.onnx(graph)?);
        let scaled = graph.per_channel("Mul", &scaled, &gamma);
        let added = graph.per_channel("Add", &scaled, &beta);
        Ok(graph.add(x, &added))
    }
}

/// ddprun's kinds, and this one.
pub(crate) fn kinds() -> Kinds {
    let mut kinds = Kinds::default();
    kinds.add_layer::<GlobalResponseNorm>();
    kinds
}

fn main() -> ExitCode {
    ddprun::cli::run(std::env::args_os(), &kinds())
}
