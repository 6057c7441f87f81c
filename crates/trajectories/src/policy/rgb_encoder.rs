//! Encoder of camera images.

use candle_core::{Result, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::{Backbone, Block, Variant};
use crate::nn::{Buffer, Builder, Conv2d, ConvShape, ForwardContext, Linear};
use crate::onnx::{Graph, Value};
use crate::ops::{self, LinearActivation, Weight, Window};
use crate::plan::Precision;

/// The residual network that sees images.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum VisionBackbone {
    /// Three stages of one block from 16 channels on, for images of about 32x32.
    Resnet8,
    /// torchvision's of 18 layers.
    #[default]
    Resnet18,
    /// torchvision's of 34 layers.
    Resnet34,
    /// torchvision's of 50 layers.
    Resnet50,
}

impl VisionBackbone {
    fn variant(self) -> Variant {
        let (blocks, block): (&[usize], _) = match self {
            Self::Resnet8 => (&[1, 1, 1], Block::Basic),
            Self::Resnet18 => (&[2, 2, 2, 2], Block::Basic),
            Self::Resnet34 => (&[3, 4, 6, 3], Block::Basic),
            Self::Resnet50 => (&[3, 4, 6, 3], Block::Bottleneck),
        };
        Variant { blocks, block, is_small: self == Self::Resnet8, ..Variant::default() }
    }
}

/// A residual network, key points, a linear layer and a ReLU, as `LeRobot`'s `DiffusionRgbEncoder`.
/// Keys: `backbone`, `pool`, `out`.
pub(super) struct RgbEncoder {
    backbone: Backbone,
    pool: SpatialSoftmax,
    out: Linear,
}

impl RgbEncoder {
    /// Registers it for images (channels, height, width); it gives two features for each of
    /// `points`.
    pub(super) fn new(
        builder: &Builder,
        backbone: VisionBackbone,
        image: [usize; 3],
        points: usize,
    ) -> Result<Self> {
        let (backbone, maps) = Backbone::new(backbone.variant(), image, &builder.pp("backbone"))?;
        Ok(Self {
            backbone,
            pool: SpatialSoftmax::new(&builder.pp("pool"), maps, points)?,
            out: Linear::new(&builder.pp("out"), 2 * points, 2 * points)?,
        })
    }

    /// (n, channels, height, width) -> (n, features), f32.
    pub(super) fn forward(&self, images: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let points = self.pool.forward(&self.backbone.forward(images, pass)?, pass)?;
        // Other features, which are f32, go beside these.
        ops::widen(&self.out.forward_activated(&points, LinearActivation::Relu, pass)?)
    }

    /// [`RgbEncoder::forward`] in a graph of ONNX.
    pub(super) fn onnx(&self, graph: &mut Graph, images: &Value) -> Result<Value> {
        let maps = self.backbone.onnx(graph, images)?;
        let points = self.pool.onnx(graph, &maps)?;
        self.out.onnx_activated(graph, &points, LinearActivation::Relu)
    }
}

/// Spatial softmax (Finn et al., 2016, <https://arxiv.org/abs/1509.06113>, section IV-A): a map for
/// each key point, and the mean position under its softmax. Keys: `nets` (a 1x1 convolution),
/// `pos_grid`.
struct SpatialSoftmax {
    maps: Conv2d,
    /// (height x width, 2): x, then y of each pixel, from -1 to 1.
    grid: Buffer,
    points: usize,
}

impl SpatialSoftmax {
    /// Registers it for maps (height, width, channels).
    fn new(builder: &Builder, [height, width, inputs]: [usize; 3], points: usize) -> Result<Self> {
        let window = Window { stride: 1, padding: 0 };
        let shape = ConvShape { inputs, outputs: points, kernel: 1, window, groups: 1 };
        Ok(Self {
            maps: Conv2d::new(&builder.pp("nets"), shape)?,
            grid: builder.constant("pos_grid", &[height * width, 2], || grid(height, width))?,
            points,
        })
    }

    /// (n, height, width, channels) -> x and y of each point, (n, 2 points).
    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let (n, height, width, _) = x.dims4()?;
        let maps = self.maps.forward(x, pass)?.reshape((n, height * width, self.points))?;
        let shares = ops::softmax(&maps.transpose(1, 2)?.contiguous()?)?;
        // Positions are means over many pixels: never in half precision.
        let grid = Weight::from(&self.grid.var()?.as_detached_tensor().t()?.contiguous()?);
        ops::linear(&shares, &grid, None, Precision::Fp32)?.flatten_from(1)
    }

    /// [`SpatialSoftmax::forward`] in a graph of ONNX.
    fn onnx(&self, graph: &mut Graph, x: &Value) -> Result<Value> {
        let maps = self.maps.onnx(graph, x, [0; 2])?;
        let maps = graph.reshaped(&maps, &[0, -1, self.points as i64]);
        let maps = graph.transposed(&maps, &[0, 2, 1]);
        let shares = graph.softmax(&maps);
        let grid = self.grid.onnx(graph)?;
        let points = graph.matmul(&shares, &grid);
        Ok(graph.flattened(&points, 1))
    }
}

/// x and y of each pixel, row by row. A single one is at -1, as in `numpy.linspace`.
fn grid(height: usize, width: usize) -> Vec<f32> {
    let at = |i: usize, n: usize| -1.0 + 2.0 * i as f64 / n.saturating_sub(1).max(1) as f64;
    let pixels = (0..height).flat_map(|y| (0..width).map(move |x| (x, y)));
    pixels.flat_map(|(x, y)| [at(x, width) as f32, at(y, height) as f32]).collect()
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::nn::Params;

    #[test]
    fn places_go_from_corner_to_corner_x_first() {
        let rows = [-1.0, -1.0, 0.0, -1.0, 1.0, -1.0, -1.0, 1.0, 0.0, 1.0, 1.0, 1.0];
        assert_eq!(grid(2, 3), rows);
        assert_eq!(grid(1, 1), [-1.0, -1.0]);
    }

    /// One map, the input itself.
    fn key_points(x: &Tensor) -> Vec<Vec<f32>> {
        let builder = Builder::new(1);
        let (_, height, width, _) = x.dims4().unwrap();
        let pool = SpatialSoftmax::new(&builder, [height, width, 1], 1).unwrap();
        let params: Params = builder.finish();
        for (param, value) in params.parameters().iter().zip([1f32, 0.0]) {
            let value = Tensor::full(value, param.shape(), &Device::Cpu).unwrap();
            param.var().unwrap().set(&value).unwrap();
        }
        let pass = ForwardContext::eval(Precision::Bf16);
        pool.forward(x, &pass).unwrap().to_vec2().unwrap()
    }

    #[test]
    fn a_key_point_is_where_its_map_is_large_and_in_the_middle_of_an_even_one() {
        let mut values = vec![0f32; 2 * 3 * 5];
        // The second image has a peak in the second row of three, the last column of five.
        values[15 + 9] = 40.0;
        let x = Tensor::from_vec(values, (2, 3, 5, 1), &Device::Cpu).unwrap();
        let found = key_points(&x);
        for (found, expected) in found.concat().iter().zip([0.0, 0.0, 1.0, 0.0]) {
            assert!((found - expected).abs() < 1e-6, "{found} instead of {expected}");
        }
    }
}
