//! `name = "latents"`

use candle_core::{Result as CandleResult, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::model::layers::{Decided, Flow, Forward, Layer, LayerMisfit, Node, Scope, Site, Sizes};
use crate::nn::{ForwardContext, Init, Param};
use crate::onnx::{Graph, Value};

/// learnt vectors, the same for each sample whatever comes in: what asks in a `cross_attention`, as
/// in Perceiver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Latents {
    /// how many.
    #[schemars(range(min = 1, max = 16_777_216), example = 16)]
    pub steps: u32,
    /// width of the vectors.
    #[schemars(range(min = 1, max = 16_777_216), example = 128)]
    pub out_features: u32,
}

impl Kind for Latents {
    const NAME: &'static str = "latents";
}

impl Layer for Latents {
    fn decide(&self, _: Flow, _: &mut Scope<'_>) -> Result<Decided, LayerMisfit> {
        Ok(Flow::Sequence([self.steps as usize, self.out_features as usize]).into())
    }

    fn parameters(&self, sizes: &Sizes) -> usize {
        sizes.output.rows() * sizes.outputs()
    }

    fn build(&self, site: &Site<'_>) -> CandleResult<Node> {
        let sizes = site.sizes();
        let shape = [1, sizes.output.rows(), sizes.outputs()];
        let vectors = site.builder().param("weight", &shape, Init::Normal(0.02))?;
        Ok(Node::of(Vectors(vectors)))
    }
}

/// (1, steps, c)
struct Vectors(Param);

impl Forward for Vectors {
    fn forward(&self, x: &Tensor, _: &ForwardContext) -> CandleResult<Tensor> {
        let vectors = self.0.tensor()?;
        let (_, steps, features) = vectors.dims3()?;
        vectors.broadcast_as((x.dim(0)?, steps, features))?.contiguous()
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        let vectors = self.0.onnx(graph)?;
        Ok(graph.for_each_sample(&vectors, x))
    }
}
