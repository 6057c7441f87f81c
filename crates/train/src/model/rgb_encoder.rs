//! From the images of a camera to features.

use candle_core::{Result, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::resnet::{Backbone, Block, Variant};
use super::spatial_softmax::SpatialSoftmax;
use crate::nn::{Builder, ForwardContext, Linear};
use crate::onnx::{Graph, Value};
use crate::ops::{self, LinearActivation};

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
