//! `name = "upsample"`

use candle_core::{Result as CandleResult, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::model::layers::{
    Decided, Flow, Forward, Layer, LayerMisfit, Node, Scope, Site, Sizes, Unfit,
};
use crate::nn::ForwardContext;
use crate::onnx::{Graph, Value};
use crate::ops::{self, Lines};

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
    fn lines(&self, from: usize) -> CandleResult<Lines> {
        let to = from * self.scale_factor as usize;
        match self.mode {
            UpsampleMode::Nearest => Lines::nearest(from, to),
            UpsampleMode::Bilinear => Lines::linear(from, to),
        }
    }
}

impl Layer for Upsample {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<Decided, LayerMisfit> {
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
