//! A residual network as the eyes of a policy.

use candle_core::{Result, Tensor};

use super::trunk::{Shape, Style, Trunk};
use super::{Shortcut, Stem, Variant};
use crate::nn::{Builder, ForwardContext};
use crate::onnx::{Graph, Value};
use crate::ops;

/// torchvision's network up to its last feature maps, with a group norm of 16 channels a group in
/// place of each batch norm: averages of weights (EMA) and statistics of a batch do not go together
/// (Chi et al., 2023, section 3.2).
///
/// Keys are those of `nn.Sequential(*resnet.children())`: `0`, `1`, `4.0.conv1` ...
pub(in crate::model) struct Backbone(Trunk);

impl Backbone {
    /// Registers it for images (channels, height, width); also returns (height, width, channels) of
    /// its maps.
    pub(in crate::model) fn new(
        variant: Variant,
        image: [usize; 3],
        builder: &Builder,
    ) -> Result<(Self, [usize; 3])> {
        let shape = Shape::new(variant, Stem::Imagenet, Shortcut::Projection, Style::Grouped);
        let (trunk, maps) = Trunk::new(shape, &image, builder)?;
        Ok((Self(trunk), maps))
    }

    /// (n, channels, height, width) -> (n, height, width, channels).
    pub(in crate::model) fn forward(
        &self,
        images: &Tensor,
        pass: &ForwardContext,
    ) -> Result<Tensor> {
        ops::chain(images, |images| self.0.forward(images, pass))
    }

    /// [`Backbone::forward`] in a graph of ONNX.
    pub(in crate::model) fn onnx(&self, graph: &mut Graph, images: &Value) -> Result<Value> {
        self.0.onnx(graph, images)
    }
}
