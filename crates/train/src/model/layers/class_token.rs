//! `name = "class_token"`

use candle_core::{Result as CandleResult, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::model::layers::{Decided, Flow, Forward, Layer, LayerMisfit, Node, Scope, Site, Sizes};
use crate::nn::{ForwardContext, Init, Param};
use crate::onnx::{Graph, Value};

/// a learnt vector as the first step of a sequence, as in vision transformers; `select` takes it
/// out again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ClassToken {}

impl Kind for ClassToken {
    const NAME: &'static str = "class_token";
}

impl Layer for ClassToken {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<Decided, LayerMisfit> {
        let [steps, features] = input.sequence()?;
        Ok(Flow::Sequence([steps + 1, features]).into())
    }

    fn parameters(&self, sizes: &Sizes) -> usize {
        sizes.outputs()
    }

    fn build(&self, site: &Site<'_>) -> CandleResult<Node> {
        let shape = [1, 1, site.sizes().outputs()];
        site.builder()
            .param("weight", &shape, Init::Normal(0.02))
            .map(|token| Node::of(Token(token)))
    }
}

/// (1, 1, c)
struct Token(Param);

impl Forward for Token {
    fn forward(&self, x: &Tensor, _: &ForwardContext) -> CandleResult<Tensor> {
        let (n, _, features) = x.dims3()?;
        let token = self.0.tensor()?.broadcast_as((n, 1, features))?;
        Tensor::cat(&[&token.contiguous()?, x], 1)
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        let token = self.0.onnx(graph)?;
        let token = graph.for_each_sample(&token, x);
        Ok(graph.concatenated(&[&token, x], 1))
    }
}
