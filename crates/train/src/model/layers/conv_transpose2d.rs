//! `name = "conv_transpose2d"`

use candle_core::{Result as CandleResult, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::model::layers::window::divided;
use crate::model::layers::{
    Decided, Flow, Forward, Layer, LayerMisfit, Node, Scope, Site, Sizes, Unfit,
};
use crate::nn::{self, ForwardContext, RectangularConv};
use crate::onnx::{Graph, Value};
use crate::ops::{Slides, Window};

/// transposed convolution, which makes an image larger, `torch.nn.ConvTranspose2d`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConvTranspose2d {
    /// channels of the output.
    #[schemars(range(min = 1, max = 16_777_216), example = 64)]
    pub out_channels: u32,
    /// kernel size (height and width).
    #[schemars(range(min = 1, max = 8192), example = 4)]
    pub kernel_size: u32,
    /// how many times larger the image becomes.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 8192), example = 2)]
    pub stride: u32,
    /// rows and columns that are left out on each side.
    #[serde(default)]
    #[schemars(range(max = 8192), example = 1)]
    pub padding: u32,
    /// rows and columns more below and on the right, fewer than `stride`.
    #[serde(default)]
    #[schemars(range(max = 8192), example = 1)]
    pub output_padding: u32,
    /// number of channel groups.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub groups: u32,
}

fn one() -> u32 {
    1
}

impl ConvTranspose2d {
    /// A side of the output.
    fn along(&self, side: usize) -> Result<usize, Unfit> {
        let [kernel, stride, padding, behind] =
            [self.kernel_size, self.stride, self.padding, self.output_padding].map(|n| n as usize);
        if behind >= stride {
            let what = format!("must be less than stride = {stride}");
            return Err(Unfit { key: "output_padding", what, help: None });
        }
        let length = (side - 1) * stride + kernel + behind;
        length.checked_sub(2 * padding).filter(|&length| length > 0).ok_or_else(|| {
            let what = format!("leaves nothing of {length} rows or columns");
            Unfit { key: "padding", what, help: None }
        })
    }

    /// Weights of one input channel.
    fn weights(&self) -> usize {
        let kernel = self.kernel_size as usize;
        kernel * kernel * self.out_channels as usize / self.groups as usize
    }
}

impl Kind for ConvTranspose2d {
    const NAME: &'static str = "conv_transpose2d";
}

impl Layer for ConvTranspose2d {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<Decided, LayerMisfit> {
        let [channels, height, width] = input.image()?;
        divided(self.groups, channels, self.out_channels)?;
        let height = self.along(height)?;
        let width = self.along(width)?;
        Ok(Flow::Image([self.out_channels as usize, height, width]).into())
    }

    fn details(&self, _: &Sizes) -> String {
        format!(" {}, stride {}", self.kernel_size, self.stride)
    }

    fn parameters(&self, sizes: &Sizes) -> usize {
        sizes.inputs() * self.weights() + sizes.outputs()
    }

    fn flops(&self, sizes: &Sizes) -> u64 {
        2 * (sizes.input.rows() * sizes.inputs() * self.weights()) as u64
    }

    fn build(&self, site: &Site<'_>) -> CandleResult<Node> {
        let sizes = site.sizes();
        let kernel = self.kernel_size as usize;
        let window = Window { stride: self.stride as usize, padding: self.padding as usize };
        let shape = RectangularConv {
            inputs: sizes.inputs(),
            outputs: sizes.outputs(),
            kernel: [kernel; 2],
            window: Slides::square(window),
            groups: self.groups as usize,
        };
        let behind = [self.output_padding as usize; 2];
        nn::ConvTranspose2d::new(&site.builder(), shape, behind).map(Node::of)
    }
}

impl Forward for nn::ConvTranspose2d {
    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> CandleResult<Tensor> {
        nn::ConvTranspose2d::forward(self, x, pass)
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        nn::ConvTranspose2d::onnx(self, graph, x)
    }
}
