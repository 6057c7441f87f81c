//! Choice of the algorithm that computes a convolution.

use std::borrow::Cow;

use half::bf16;

use super::geometry::Geometry;
use super::winograd::Rounding;
use super::{depthwise, direct, direct_gradient, winograd};
use crate::ops::batch_norm::ROWS;
use crate::ops::element::{Numbers, widened};
use crate::ops::kernel::{Factor, Format};
use crate::ops::precision::{Round, round, round_block, rounded};
use crate::ops::saved::Saved;
use crate::{Convolutions, Precision};

/// Pixels that get their bias together.
pub(super) const PIXELS: usize = 256;

/// The ways to compute a convolution and its gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    /// Products of row slices: any shape.
    Direct,
    /// Fewer multiplications for 3x3 kernels of stride 1.
    Winograd,
    /// A filter per channel.
    Depthwise,
}

/// Algorithm of a convolution and its gradients, and the precision to which operands and results are
/// rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Algorithm {
    pub(super) method: Method,
    pub(super) precision: Precision,
}

impl Algorithm {
    /// The fastest for a shape, if it may be other than plain sums. The number of images must not
    /// decide: the bits of one would depend on how many others there are.
    pub(super) fn of(g: &Geometry, convolutions: Convolutions, precision: Precision) -> Self {
        let is_transformed = winograd::applies(g)
            && convolutions == Convolutions::Fast
            && !Format::of(precision).outruns_transforms();
        let method = match () {
            () if depthwise::applies(g) => Method::Depthwise,
            () if is_transformed => Method::Winograd,
            () => Method::Direct,
        };
        Self { method, precision }
    }

    /// Format of the products: only the direct algorithm multiplies other numbers than f32.
    fn format(self) -> Format {
        match self.method {
            Method::Direct => Format::of(self.precision),
            Method::Winograd | Method::Depthwise => Format::F32,
        }
    }

    /// True if images and weights are rounded on the way, and so neither before nor after.
    fn rounds_on_the_way(self) -> bool {
        self.method == Method::Winograd && self.precision == Precision::Bf16
    }

    /// Rounding on the way where the result is not rounded.
    fn rounding_of_operands(self) -> Rounding {
        if self.rounds_on_the_way() { Rounding::Operands } else { Rounding::Nothing }
    }

    /// The numbers of images that are multiplied: as [`crate::ops::precision::operand`], and bf16
    /// as they are where bf16 is multiplied or read.
    pub(super) fn operand<'a>(self, values: impl Into<Numbers<'a>>) -> Operand<'a> {
        let reads_halves = self.rounds_on_the_way() || self.format() != Format::F32;
        match values.into() {
            Numbers::F32(values) => Operand::F32(self.factor(values)),
            Numbers::Bf16(values) if reads_halves => Operand::Bf16(values),
            Numbers::Bf16(values) => Operand::F32(Cow::Owned(widened(values))),
        }
    }

    /// The numbers of a weight that are multiplied.
    pub(super) fn factor(self, values: &[f32]) -> Cow<'_, [f32]> {
        match self.format() {
            Format::F32 if !self.rounds_on_the_way() => rounded(values, self.precision),
            _ => Cow::Borrowed(values),
        }
    }

    /// The sums of [`Algorithm::forward`], not rounded.
    pub(super) fn sums(self, g: &Geometry, x: &[f32], weight: &[f32]) -> Vec<f32> {
        match self.method {
            Method::Direct => direct::forward(g, x, weight, self.format(), ()),
            Method::Winograd => winograd::forward(g, x, weight, self.rounding_of_operands()),
            Method::Depthwise => depthwise::forward(g, x, weight),
        }
    }

    /// y (n, oh, ow, co) of [`Algorithm::operand`]s.
    pub(super) fn forward(self, g: &Geometry, x: &[f32], weight: &[f32]) -> Vec<f32> {
        match self.method {
            Method::Direct if g.groups == 1 => {
                direct::forward(g, x, weight, self.format(), Round(self.precision))
            }
            Method::Winograd if self.rounds_on_the_way() => {
                winograd::forward(g, x, weight, Rounding::OperandsAndResult)
            }
            _ => self.rounded(self.sums(g, x, weight)),
        }
    }

    /// [`Algorithm::forward`] as it is kept for backward, and what `see` makes of each block of
    /// pixels, while it is in the cache; in their order. `None` if blocks are few, or not whole
    /// blocks of rows of a norm.
    pub(super) fn forward_saved<R: Send>(
        self,
        g: &Geometry,
        x: &Operand<'_>,
        weight: &[f32],
        see: impl Fn(&[f32]) -> R + Sync,
    ) -> (Saved, Option<Vec<R>>) {
        const { assert!(direct::SEEN_PIXELS.is_multiple_of(ROWS)) };
        let saved = match (self.method, x) {
            (Method::Direct, x) => self.direct_saved(g, x, weight, |pixels| {
                round_block(pixels, self.precision);
                see(pixels)
            }),
            (Method::Winograd, Operand::F32(x)) if self.precision != Precision::Fp16 => {
                return winograd::forward_saved(g, x, weight, self.precision, ROWS, see);
            }
            (Method::Winograd, Operand::Bf16(x)) => {
                return winograd::forward_saved(g, x, weight, self.precision, ROWS, see);
            }
            _ => None,
        };
        match saved {
            Some((y, seen)) => (y, Some(seen)),
            None => (Saved::new(self.forward(g, &x.wide(), weight), self.precision), None),
        }
    }

    /// [`Algorithm::forward`] with `bias` added to the sums before they are rounded, as it is kept
    /// for backward.
    pub(super) fn biased_saved(
        self,
        g: &Geometry,
        x: &Operand<'_>,
        weight: &[f32],
        bias: &[f32],
    ) -> Saved {
        let add = |pixels: &mut [f32]| {
            add_bias(pixels, bias);
            round_block(pixels, self.precision);
        };
        let saved = match self.method {
            Method::Direct => self.direct_saved(g, x, weight, add),
            Method::Winograd | Method::Depthwise => None,
        };
        if let Some((y, _)) = saved {
            return y;
        }
        let sums = self.sums(g, &x.wide(), weight);
        Saved::filled(sums.len(), PIXELS * bias.len(), self.precision, |start, pixels| {
            pixels.copy_from_slice(&sums[start..][..pixels.len()]);
            add(pixels);
        })
    }

    /// [`direct::forward_saved`], of either type.
    fn direct_saved<R: Send>(
        self,
        g: &Geometry,
        x: &Operand<'_>,
        weight: &[f32],
        finish: impl Fn(&mut [f32]) -> R + Sync,
    ) -> Option<(Saved, Vec<R>)> {
        let format = self.format();
        let held = self.precision;
        match x {
            Operand::F32(x) => direct::forward_saved(g, x, weight, format, held, finish),
            Operand::Bf16(x) => direct::forward_saved(g, x, weight, format, held, finish),
        }
    }

    /// dx (n, h, w, ci), held as `held`.
    pub(super) fn backward_data(
        self,
        g: &Geometry,
        dy: &Operand<'_>,
        weight: &[f32],
        held: Precision,
    ) -> Saved {
        if self.rounds_on_the_way() {
            return self.data_gradient(g, dy, weight, Rounding::OperandsAndResult, held);
        }
        self.data_gradient(g, dy, weight, Rounding::Nothing, held).rounded(self.precision)
    }

    /// The sums of [`Algorithm::backward_data`], not rounded.
    pub(super) fn data_sums(self, g: &Geometry, dy: &Operand<'_>, weight: &[f32]) -> Vec<f32> {
        let rounding = self.rounding_of_operands();
        self.data_gradient(g, dy, weight, rounding, Precision::Fp32).wide()
    }

    fn data_gradient(
        self,
        g: &Geometry,
        dy: &Operand<'_>,
        weight: &[f32],
        rounding: Rounding,
        held: Precision,
    ) -> Saved {
        let format = self.format();
        match (self.method, dy) {
            (Method::Direct, Operand::F32(dy)) => {
                direct::backward_data(g, dy, weight, format, held)
            }
            (Method::Direct, Operand::Bf16(dy)) => {
                direct::backward_data(g, dy, weight, format, held)
            }
            (Method::Winograd, Operand::F32(dy)) => {
                winograd::backward_data(g, dy, weight, rounding, held)
            }
            (Method::Winograd, Operand::Bf16(dy)) => {
                winograd::backward_data(g, dy, weight, rounding, held)
            }
            (Method::Depthwise, dy) => {
                Saved::new(depthwise::backward_data(g, &dy.wide(), weight), held)
            }
        }
    }

    /// dw (co, ci / groups, kh, kw).
    pub(super) fn backward_weight(
        self,
        g: &Geometry,
        x: &Operand<'_>,
        dy: &Operand<'_>,
    ) -> Vec<f32> {
        if self.method == Method::Depthwise {
            return self.rounded(depthwise::backward_weight(g, &x.wide(), &dy.wide()));
        }
        self.rounded(match (x, dy) {
            (Operand::F32(x), Operand::F32(dy)) => self.weight_gradient(g, x, dy),
            (Operand::F32(x), Operand::Bf16(dy)) => self.weight_gradient(g, x, dy),
            (Operand::Bf16(x), Operand::F32(dy)) => self.weight_gradient(g, x, dy),
            (Operand::Bf16(x), Operand::Bf16(dy)) => self.weight_gradient(g, x, dy),
        })
    }

    fn weight_gradient<X: Factor, D: Factor>(self, g: &Geometry, x: &[X], dy: &[D]) -> Vec<f32> {
        match self.method {
            Method::Winograd => winograd::backward_weight(g, x, dy, self.rounding_of_operands()),
            _ => direct_gradient::backward_weight(g, x, dy, self.format()),
        }
    }

    fn rounded(self, mut values: Vec<f32>) -> Vec<f32> {
        round(&mut values, self.precision);
        values
    }
}

/// Numbers of images that a convolution multiplies; bf16 only where it takes them as they are.
pub(super) enum Operand<'a> {
    /// In f32.
    F32(Cow<'a, [f32]>),
    /// In bf16.
    Bf16(&'a [bf16]),
}

impl Operand<'_> {
    /// As f32.
    pub(super) fn wide(&self) -> Cow<'_, [f32]> {
        match self {
            Self::F32(values) => Cow::Borrowed(values),
            Self::Bf16(values) => Cow::Owned(widened(values)),
        }
    }
}

/// Adds to each pixel of a block.
pub(super) fn add_bias(block: &mut [f32], bias: &[f32]) {
    for pixel in block.chunks_exact_mut(bias.len()) {
        pixel.iter_mut().zip(bias).for_each(|(y, bias)| *y += bias);
    }
}
