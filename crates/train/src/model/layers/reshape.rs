//! Values that change their place, not their meaning: `name = "flatten"`, `"tokens"`,
//! `"transpose"`, `"select"`, `"upsample"`

use candle_core::{Result as CandleResult, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::model::layers::{
    Flow, Forward, InferredLayer, Layer, LayerMisfit, Node, Scope, Site, Sizes, Unfit,
};
use crate::nn::ForwardContext;
use crate::onnx::{Graph, Value};
use crate::ops::{self, ResampleWeights};

/// image or sequence to vector, all values in PyTorch's order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Flatten {}

impl Kind for Flatten {
    const NAME: &'static str = "flatten";
}

impl Layer for Flatten {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<InferredLayer, LayerMisfit> {
        let features = input.numbers()?.features().unwrap_or(0);
        Ok(Flow::Vector(features * input.rows()).into())
    }

    fn build(&self, _: &Site<'_>) -> CandleResult<Node> {
        Ok(Node::of(Self {}))
    }
}

impl Forward for Flatten {
    fn forward(&self, x: &Tensor, _: &ForwardContext) -> CandleResult<Tensor> {
        match x.rank() {
            4 => ops::nhwc_to_nchw(x)?.flatten_from(1),
            _ => x.flatten_from(1),
        }
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        let x = if x.rank() == 4 { graph.planes(x) } else { x.clone() };
        Ok(graph.flattened(&x, 1))
    }
}

/// image to sequence: one step per pixel, row by row.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Tokens {}

impl Kind for Tokens {
    const NAME: &'static str = "tokens";
}

impl Layer for Tokens {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<InferredLayer, LayerMisfit> {
        let [channels, height, width] = input.image()?;
        Ok(Flow::Sequence([height * width, channels]).into())
    }

    fn build(&self, _: &Site<'_>) -> CandleResult<Node> {
        Ok(Node::of(Self {}))
    }
}

impl Forward for Tokens {
    fn forward(&self, x: &Tensor, _: &ForwardContext) -> CandleResult<Tensor> {
        x.flatten(1, 2)
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        Ok(graph.reshaped(x, &[0, -1, x.features() as i64]))
    }
}

/// steps and features of a sequence exchanged.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Transpose {}

impl Kind for Transpose {
    const NAME: &'static str = "transpose";
}

impl Layer for Transpose {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<InferredLayer, LayerMisfit> {
        let [steps, features] = input.sequence()?;
        Ok(Flow::Sequence([features, steps]).into())
    }

    fn build(&self, _: &Site<'_>) -> CandleResult<Node> {
        Ok(Node::of(Self {}))
    }
}

impl Forward for Transpose {
    fn forward(&self, x: &Tensor, _: &ForwardContext) -> CandleResult<Tensor> {
        ops::transpose_adjacent(x, 1)
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        Ok(graph.transposed(x, &[0, 2, 1]))
    }
}

/// one step of a sequence, as a vector: the class token, or what a recurrent layer has read at the
/// end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Select {
    /// which one, from 0; from the end, -1 is the last.
    #[schemars(range(min = -16_777_216, max = 16_777_216), example = -1)]
    pub index: i64,
}

impl Kind for Select {
    const NAME: &'static str = "select";
}

impl Select {
    /// The index counted from the first of `steps`; `None` if there is no such step.
    fn step(&self, steps: usize) -> Option<usize> {
        let step = if self.index < 0 { self.index + steps as i64 } else { self.index };
        usize::try_from(step).ok().filter(|&step| step < steps)
    }
}

impl Layer for Select {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<InferredLayer, LayerMisfit> {
        let [steps, features] = input.sequence()?;
        if self.step(steps).is_none() {
            let what = format!("there are {steps} steps");
            return Err(Unfit { key: "index", what, help: None }.into());
        }
        Ok(Flow::Vector(features).into())
    }

    fn details(&self, _: &Sizes) -> String {
        format!(" {}", self.index)
    }

    fn build(&self, _: &Site<'_>) -> CandleResult<Node> {
        Ok(Node::of(self.clone()))
    }
}

impl Forward for Select {
    fn forward(&self, x: &Tensor, _: &ForwardContext) -> CandleResult<Tensor> {
        let step = self.step(x.dim(1)?).unwrap_or_default();
        x.narrow(1, step, 1)?.squeeze(1)?.contiguous()
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        let step = self.step(x.dims()[1].unwrap_or_default()).unwrap_or_default();
        let step = graph.narrowed(x, 1, step, 1);
        Ok(graph.squeezed(&step, &[1]))
    }
}

/// Most rows or columns of an image that is made larger.
const MAX_SIDE: usize = 65_536;

/// an image with `scale_factor` times the rows and columns, `torch.nn.Upsample`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Upsample {
    /// how many times larger.
    #[schemars(range(min = 1, max = 256), example = 2)]
    pub scale_factor: u32,
    /// where the values come from.
    #[serde(default)]
    #[schemars(example = &"bilinear")]
    pub mode: UpsampleMode,
}

/// Where the values of a larger image come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UpsampleMode {
    /// Each pixel several times.
    #[default]
    Nearest,
    /// Between the four nearest pixels, with `align_corners=False`.
    Bilinear,
}

impl Kind for Upsample {
    const NAME: &'static str = "upsample";
}

impl Upsample {
    fn lines(&self, from: usize) -> CandleResult<ResampleWeights> {
        let to = from * self.scale_factor as usize;
        match self.mode {
            UpsampleMode::Nearest => ResampleWeights::nearest(from, to),
            UpsampleMode::Bilinear => ResampleWeights::linear(from, to),
        }
    }
}

impl Layer for Upsample {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<InferredLayer, LayerMisfit> {
        let ([channels, height, width], factor) = (input.image()?, self.scale_factor as usize);
        let [height, width] = [height, width].map(|side| side.saturating_mul(factor));
        if height.max(width) > MAX_SIDE {
            let what = format!("makes an image of {height}x{width}");
            return Err(Unfit { key: "scale_factor", what, help: None }.into());
        }
        Ok(Flow::Image([channels, height, width]).into())
    }

    fn details(&self, _: &Sizes) -> String {
        match self.mode {
            UpsampleMode::Nearest => format!(" x{}", self.scale_factor),
            UpsampleMode::Bilinear => format!(" x{}, bilinear", self.scale_factor),
        }
    }

    fn build(&self, _: &Site<'_>) -> CandleResult<Node> {
        Ok(Node::of(self.clone()))
    }
}

impl Forward for Upsample {
    fn forward(&self, x: &Tensor, _: &ForwardContext) -> CandleResult<Tensor> {
        let (_, height, width, _) = x.dims4()?;
        ops::resample(x, self.lines(height)?, self.lines(width)?)
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        Ok(graph.resized(x, self.scale_factor as usize, self.mode == UpsampleMode::Bilinear))
    }
}
