//! `name = "adaptive_avg_pool2d"`

use candle_core::{Device, Result as CandleResult, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::model::layers::{Decided, Flow, Forward, Layer, LayerMisfit, Node, Scope, Site};
use crate::nn::ForwardContext;
use crate::onnx::{Graph, Value};
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

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        let sides = [x.dims()[1], x.dims()[2]].map(Option::unwrap_or_default);
        let lines = |axis: usize| -> CandleResult<Tensor> {
            Lines::adaptive(sides[axis], self.output_size[axis] as usize)?.dense(&Device::Cpu)
        };
        let [rows, columns] = [lines(0)?, lines(1)?];
        let mut matrix = |lines: &Tensor| -> CandleResult<Value> {
            Ok(graph.floats(lines.dims(), &lines.flatten_all()?.to_vec1::<f32>()?))
        };
        let rows = matrix(&rows)?;
        let columns = matrix(&columns)?;
        Ok(graph.resampled(x, [&rows, &columns]))
    }
}
