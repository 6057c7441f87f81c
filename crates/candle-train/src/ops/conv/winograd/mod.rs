//! Winograd's F(4x4, 3x3): 3x3 convolutions of stride 1 with a quarter of the multiplications.
//!
//! Each tile of 4x4 output pixels is 36 products of transformed values instead of 144; over all
//! tiles and channels they are 36 matrix products. The gradients of input and kernel are made the
//! same way. The price is rounding: about ten times the error of the direct sum, see the tests.

mod apply;
mod components;
mod gather;
mod gradient;
mod scatter;
mod tiles;
mod transform;
mod weights;

use super::geometry::Geometry;
use crate::ops::scratch::zeros;
use tiles::Images;
use weights::Kernels;

/// Channels from which on the transforms are worth it.
const CHANNELS: usize = 16;

/// Whether a convolution has this form, and enough channels.
pub(super) fn applies(g: &Geometry) -> bool {
    (g.kh, g.kw, g.stride, g.dilation, g.groups) == (3, 3, [1, 1], [1, 1], 1)
        && g.padding.iter().all(|&padding| padding <= 2)
        && g.ci.min(g.co) >= CHANNELS
}

/// x (n, h, w, ci) -> y (n, oh, ow, co); weight (co, ci, 3, 3).
pub(super) fn forward(g: &Geometry, x: &[f32], weight: &[f32]) -> Vec<f32> {
    let (input, output) = images(g);
    let mut y = zeros(output.len());
    apply::apply(x, input, &Kernels::forward(weight, g.ci, g.co), output, g.padding, &mut y);
    y
}

/// dy (n, oh, ow, co) -> dx (n, h, w, ci): the convolution of dy with the rotated kernels.
pub(super) fn backward_data(g: &Geometry, dy: &[f32], weight: &[f32]) -> Vec<f32> {
    let (input, output) = images(g);
    let mut dx = zeros(input.len());
    let kernels = Kernels::backward(weight, g.ci, g.co);
    apply::apply(dy, output, &kernels, input, g.padding.map(|padding| 2 - padding), &mut dx);
    dx
}

/// dw (co, ci, 3, 3).
pub(super) fn backward_weight(g: &Geometry, x: &[f32], dy: &[f32]) -> Vec<f32> {
    let (input, output) = images(g);
    gradient::gradient(x, input, dy, output, g.padding)
}

fn images(g: &Geometry) -> (Images, Images) {
    let input = Images { n: g.n, h: g.h, w: g.w, c: g.ci };
    (input, Images { h: g.oh, w: g.ow, c: g.co, ..input })
}
