//! `name = "global_avg_pool"`

use candle_core::{Result as CandleResult, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::model::layers::lengths::{own_steps, without_padding};
use crate::model::layers::{Decided, Flow, Forward, Layer, LayerMisfit, Node, Scope, Site, Sizes};
use crate::model::recordings::{mean_within, mean_within_onnx};
use crate::nn::ForwardContext;
use crate::onnx::{Graph, Value};
use crate::ops;

/// mean of each channel of an image, or of each feature over the steps of a sequence, without the
/// padding of recordings: a vector.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GlobalAvgPool {}

impl Kind for GlobalAvgPool {
    const NAME: &'static str = "global_avg_pool";
}

impl Layer for GlobalAvgPool {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<Decided, LayerMisfit> {
        match input {
            Flow::Image([features, ..])
            | Flow::Sequence([_, features])
            | Flow::Padded([_, features, _]) => Ok(Flow::Vector(features).into()),
            _ => Err(input.is_no("an image or a sequence").into()),
        }
    }

    fn details(&self, sizes: &Sizes) -> String {
        without_padding(sizes).to_owned()
    }

    fn build(&self, site: &Site<'_>) -> CandleResult<Node> {
        Ok(Node::of(Mean { padded: site.sizes().input.padded() }))
    }
}

struct Mean {
    /// Frames from one step to the next, if some are padding.
    padded: Option<usize>,
}

impl Forward for Mean {
    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> CandleResult<Tensor> {
        if let Some(lengths) = own_steps(x, self.padded, pass)? {
            return mean_within(x, &lengths);
        }
        match x.rank() {
            3 => ops::global_average_pool(&x.unsqueeze(2)?),
            _ => ops::global_average_pool(x),
        }
    }

    fn takes_half(&self) -> bool {
        self.padded.is_none()
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        Ok(match self.padded.and_then(|stride| graph.lengths(stride)) {
            Some(lengths) => mean_within_onnx(graph, x, &lengths),
            None => graph.global_average_pool(x),
        })
    }
}
