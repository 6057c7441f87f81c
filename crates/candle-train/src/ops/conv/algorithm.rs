//! Which of the algorithms computes a convolution.

use super::geometry::Geometry;
use super::{depthwise, direct, direct_gradient, winograd};
use crate::Convolutions;

/// The ways to compute a convolution and its gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Algorithm {
    /// Products of row slices: any shape.
    Direct,
    /// Fewer multiplications for 3x3 kernels of stride 1.
    Winograd,
    /// A filter per channel.
    Depthwise,
}

impl Algorithm {
    /// The fastest for a shape, if it may be other than plain sums.
    pub(super) fn of(g: &Geometry, convolutions: Convolutions) -> Self {
        if depthwise::applies(g) {
            Self::Depthwise
        } else if winograd::applies(g) && convolutions == Convolutions::Fast {
            Self::Winograd
        } else {
            Self::Direct
        }
    }

    /// y (n, oh, ow, co).
    pub(super) fn forward(self, g: &Geometry, x: &[f32], weight: &[f32]) -> Vec<f32> {
        match self {
            Self::Direct => direct::forward(g, x, weight),
            Self::Winograd => winograd::forward(g, x, weight),
            Self::Depthwise => depthwise::forward(g, x, weight),
        }
    }

    /// dx (n, h, w, ci).
    pub(super) fn backward_data(self, g: &Geometry, dy: &[f32], weight: &[f32]) -> Vec<f32> {
        match self {
            Self::Direct => direct::backward_data(g, dy, weight),
            Self::Winograd => winograd::backward_data(g, dy, weight),
            Self::Depthwise => depthwise::backward_data(g, dy, weight),
        }
    }

    /// dw (co, ci / groups, kh, kw).
    pub(super) fn backward_weight(self, g: &Geometry, x: &[f32], dy: &[f32]) -> Vec<f32> {
        match self {
            Self::Direct => direct_gradient::backward_weight(g, x, dy),
            Self::Winograd => winograd::backward_weight(g, x, dy),
            Self::Depthwise => depthwise::backward_weight(g, x, dy),
        }
    }
}
