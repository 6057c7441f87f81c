//! Frames of a batch that are padding, hidden.

use candle_core::{Result, Tensor};

use crate::onnx::{Attribute, Graph, Value};
use crate::ops;

/// Number of frames of each sample of a batch without padding.
pub(crate) struct Frames(pub(crate) Vec<usize>);

impl Frames {
    /// x (n, frames, ...) with zeros for padding.
    pub(crate) fn hide(&self, x: &Tensor) -> Result<Tensor> {
        ops::hide_padding(x, &self.0)
    }

    /// x (n, heads, frames, frames) with `value` for pairs with padding.
    pub(crate) fn hide_pairs(&self, x: &Tensor, value: f64) -> Result<Tensor> {
        ops::hide_pairs(x, &self.0, value as f32)
    }
}

/// [`Frames`] in a graph of ONNX.
pub(crate) struct FramesOnnx {
    /// (n, frames, 1)
    keep: Value,
    /// (n, 1, frames, frames)
    pairs: Value,
}

impl FramesOnnx {
    /// `lengths` (n, 1) of samples that were padded to `most` frames.
    pub(crate) fn new(graph: &mut Graph, lengths: &Value, most: usize) -> Self {
        let is_real = graph.is_within(most, lengths);
        let is_real = graph.unary("Cast", &is_real, &[Attribute::Int("to", 1)]);
        let keep = graph.unsqueezed(&is_real, &[2]);
        let across = graph.unsqueezed(&is_real, &[1]);
        let pairs = graph.matmul(&keep, &across);
        Self { keep, pairs: graph.unsqueezed(&pairs, &[1]) }
    }

    /// [`Frames::hide`]
    pub(crate) fn hide(&self, graph: &mut Graph, x: &Value) -> Value {
        let keep =
            if x.rank() == 4 { graph.unsqueezed(&self.keep, &[3]) } else { self.keep.clone() };
        graph.mul(x, &keep)
    }

    /// [`Frames::hide_pairs`]
    pub(crate) fn hide_pairs(&self, graph: &mut Graph, x: &Value, value: f64) -> Value {
        let hidden = graph.mul(x, &self.pairs);
        if value == 0.0 {
            return hidden;
        }
        let instead = graph.scaled(&self.pairs, -value);
        let value = graph.scalar(value);
        let instead = graph.add(&instead, &value);
        graph.add(&hidden, &instead)
    }
}
