//! `name = "adaptive_avg_pool2d"`

use candle_core::{Result as CandleResult, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::model::layers::{Decided, Flow, Forward, Layer, LayerMisfit, Node, Scope, Site};
use crate::nn::ForwardContext;
use crate::ops::{self, Lines};

/// means over parts of an image, as many as `output_size` says: `torch.nn.AdaptiveAvgPool2d`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AdaptiveAvgPool2d {
    /// rows and columns of the output.
    #[schemars(inner(range(min = 1, max = 65_536)), example = [7, 7])]
    pub output_size: [u32; 2],
}

impl Kind for AdaptiveAvgPool2d {
    const NAME: &'static str = "adaptive_avg_pool2d";
}

impl Layer for AdaptiveAvgPool2d {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<Decided, LayerMisfit> {
        let ([channels, ..], [rows, columns]) = (input.image()?, self.output_size);
        Ok(Flow::Image([channels, rows as usize, columns as usize]).into())
    }

    fn build(&self, _: &Site<'_>) -> CandleResult<Node> {
        Ok(Node::of(self.clone()))
    }
}

impl Forward for AdaptiveAvgPool2d {
    fn forward(&self, x: &Tensor, _: &ForwardContext) -> CandleResult<Tensor> {
        let ((_, height, width, _), [rows, columns]) = (x.dims4()?, self.output_size);
        let rows = Lines::adaptive(height, rows as usize)?;
        ops::resample(x, rows, Lines::adaptive(width, columns as usize)?)
    }
}
