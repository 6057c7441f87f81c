//! Winograd's F(4x4, 3x3): 3x3 convolutions of stride 1 with a quarter of the multiplications.
//!
//! Each tile of 4x4 output pixels is 36 products of transformed values instead of 144; over all
//! tiles and channels they are 36 matrix products. Tiles that reach beyond the image are those of
//! F(3, 3) or F(2, 3) along that axis, and have no part in some of the products. The gradients of
//! input and kernel are made the same way. The price is rounding: see the tests for its error.

mod apply;
mod components;
mod gather;
mod gradient;
mod tiles;
mod transform;
mod weights;

use super::geometry::Geometry;
use crate::Precision;
use crate::ops::element::Element;
use crate::ops::saved::Saved;
use gather::Gather;
use tiles::Images;
use weights::Kernels;

/// Channels from which on the transforms are worth it.
const CHANNELS: usize = 16;

/// True if a convolution has this form, and enough channels.
pub(super) fn applies(g: &Geometry) -> bool {
    (g.kh, g.kw, g.stride, g.dilation, g.groups) == (3, 3, [1, 1], [1, 1], 1)
        && g.padding.iter().all(|&padding| padding <= 2)
        && g.ci.min(g.co) >= CHANNELS
}

/// Values that are rounded to bf16 on their way through the registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rounding {
    /// Nothing.
    Nothing,
    /// Images and kernels as they are read.
    Operands,
    /// Images and kernels as they are read, and images as they are written.
    OperandsAndResult,
}

impl Rounding {
    fn rounds_operands(self) -> bool {
        self != Self::Nothing
    }

    fn rounds_result(self) -> bool {
        self == Self::OperandsAndResult
    }
}

/// x (n, h, w, ci) -> y (n, oh, ow, co); weight (co, ci, 3, 3).
pub(super) fn forward(g: &Geometry, x: &[f32], weight: &[f32], rounding: Rounding) -> Vec<f32> {
    let (input, output) = images(g);
    let gather = Gather::new(x, input, g.padding, rounding.rounds_operands());
    let kernels = Kernels::forward(weight, [g.ci, g.co], rounding.rounds_operands());
    apply::apply(gather, &kernels, output, rounding.rounds_result(), Precision::Fp32).wide()
}

/// [`forward`], as [`apply::apply_saved`] keeps it.
pub(super) fn forward_saved<E: Element, R: Send>(
    g: &Geometry,
    x: &[E],
    weight: &[f32],
    precision: Precision,
    pixels: usize,
    see: impl Fn(&[f32]) -> R + Sync,
) -> (Saved, Option<Vec<R>>) {
    let (input, output) = images(g);
    let rounds = precision == Precision::Bf16;
    let gather = Gather::new(x, input, g.padding, rounds);
    let kernels = Kernels::forward(weight, [g.ci, g.co], rounds);
    apply::apply_saved(gather, &kernels, output, precision, pixels, see)
}

/// dy (n, oh, ow, co) -> dx (n, h, w, ci): the convolution of dy with the rotated kernels.
pub(super) fn backward_data<E: Element>(
    g: &Geometry,
    dy: &[E],
    weight: &[f32],
    rounding: Rounding,
    held: Precision,
) -> Saved {
    let (input, output) = images(g);
    let padding = g.padding.map(|padding| 2 - padding);
    let gather = Gather::new(dy, output, padding, rounding.rounds_operands());
    let kernels = Kernels::backward(weight, [g.ci, g.co], rounding.rounds_operands());
    apply::apply(gather, &kernels, input, rounding.rounds_result(), held)
}

/// dw (co, ci, 3, 3).
pub(super) fn backward_weight<X: Element, D: Element>(
    g: &Geometry,
    x: &[X],
    dy: &[D],
    rounding: Rounding,
) -> Vec<f32> {
    let (input, output) = images(g);
    let x = Gather::new(x, input, g.padding, rounding.rounds_operands());
    gradient::gradient(x, Gather::new(dy, output, [0, 0], rounding.rounds_operands()))
}

fn images(g: &Geometry) -> (Images, Images) {
    let input = Images { n: g.n, h: g.h, w: g.w, c: g.ci };
    (input, Images { h: g.oh, w: g.ow, c: g.co, ..input })
}

#[cfg(test)]
mod tests {
    use super::super::geometry::Sliding;
    use super::*;
    use crate::ops::precision::round_block;
    use crate::ops::testing::values;

    #[test]
    fn rounding_on_the_way_is_rounding_before_and_after() {
        let sliding = Sliding { stride: [1, 1], padding: [1, 1], dilation: [1, 1], groups: 1 };
        let g = Geometry::new((2, 9, 6, 20), (17, 20, 3, 3), sliding).unwrap();
        let (x, dy) = (values("x", 0, 2 * 9 * 6 * 20), values("dy", 0, 2 * 9 * 6 * 17));
        let weight = values("weight", 0, g.weight_len());
        let rounded = |values: &[f32]| {
            let mut copy = values.to_vec();
            round_block(&mut copy, Precision::Bf16);
            copy
        };
        let (on_the_way, apart) = (Rounding::OperandsAndResult, Rounding::Nothing);
        assert_ne!(x, rounded(&x));
        let held = rounded(&weight);
        let y = forward(&g, &x, &weight, on_the_way);
        assert_eq!(y, rounded(&forward(&g, &rounded(&x), &held, apart)));
        let data = |dy: &[f32], weight: &[f32], rounding| {
            backward_data(&g, dy, weight, rounding, Precision::Fp32).wide()
        };
        let dx = data(&dy, &weight, on_the_way);
        assert_eq!(dx, rounded(&data(&rounded(&dy), &held, apart)));
        let dw = backward_weight(&g, &x, &dy, on_the_way);
        assert_eq!(dw, backward_weight(&g, &rounded(&x), &rounded(&dy), apart));
    }
}
