//! Which of the algorithms computes a convolution.

use std::borrow::Cow;

use super::geometry::Geometry;
use super::winograd::Rounding;
use super::{depthwise, direct, direct_gradient, winograd};
use crate::ops::channel_norm::ROWS;
use crate::ops::kernel::Format;
use crate::ops::precision::{Round, round, rounded};
use crate::ops::saved::Saved;
use crate::{Convolutions, Precision};

/// The ways to compute a convolution and its gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Products of row slices: any shape.
    Direct,
    /// Fewer multiplications for 3x3 kernels of stride 1.
    Winograd,
    /// A filter per channel.
    Depthwise,
}

/// How a convolution and its gradients are computed, and to what operands and results are rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Algorithm {
    pub(super) way: Way,
    pub(super) precision: Precision,
}

impl Algorithm {
    /// The fastest for a shape, if it may be other than plain sums. The number of images must not
    /// decide: the bits of one would depend on how many others there are.
    pub(super) fn of(g: &Geometry, convolutions: Convolutions, precision: Precision) -> Self {
        let is_transformed = winograd::applies(g)
            && convolutions == Convolutions::Fast
            && !Format::of(precision).outruns_transforms();
        let way = match () {
            () if depthwise::applies(g) => Way::Depthwise,
            () if is_transformed => Way::Winograd,
            () => Way::Direct,
        };
        Self { way, precision }
    }

    /// Of the products that are made: the other ways multiply f32 numbers.
    fn format(self) -> Format {
        match self.way {
            Way::Direct => Format::of(self.precision),
            Way::Winograd | Way::Depthwise => Format::F32,
        }
    }

    /// Whether images are rounded on the way, and so neither before nor after.
    fn rounds_on_the_way(self) -> bool {
        self.way == Way::Winograd && self.precision == Precision::Bf16
    }

    /// What is rounded on the way where the result is not.
    fn rounding_of_operands(self) -> Rounding {
        if self.rounds_on_the_way() { Rounding::Operands } else { Rounding::Nothing }
    }

    /// The numbers of images that are multiplied: as [`crate::ops::precision::operand`].
    pub(super) fn operand(self, values: &[f32]) -> Cow<'_, [f32]> {
        if self.rounds_on_the_way() { Cow::Borrowed(values) } else { self.weight(values) }
    }

    /// The numbers of a weight that are multiplied.
    pub(super) fn weight(self, values: &[f32]) -> Cow<'_, [f32]> {
        match self.format() {
            Format::F32 => rounded(values, self.precision),
            Format::Bf16(_) => Cow::Borrowed(values),
        }
    }

    /// The sums of [`Algorithm::forward`], not rounded.
    pub(super) fn sums(self, g: &Geometry, x: &[f32], weight: &[f32]) -> Vec<f32> {
        match self.way {
            Way::Direct => direct::forward(g, x, weight, self.format(), ()),
            Way::Winograd => winograd::forward(g, x, weight, self.rounding_of_operands()),
            Way::Depthwise => depthwise::forward(g, x, weight),
        }
    }

    /// y (n, oh, ow, co) of [`Algorithm::operand`]s.
    pub(super) fn forward(self, g: &Geometry, x: &[f32], weight: &[f32]) -> Vec<f32> {
        match self.way {
            Way::Direct if g.groups == 1 => {
                direct::forward(g, x, weight, self.format(), Round(self.precision))
            }
            Way::Winograd if self.rounds_on_the_way() => {
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
        x: &[f32],
        weight: &[f32],
        see: impl Fn(&[f32]) -> R + Sync,
    ) -> (Saved, Option<Vec<R>>) {
        const { assert!(direct::SEEN_PIXELS.is_multiple_of(ROWS)) };
        let apart = || (Saved::new(self.forward(g, x, weight), self.precision), None);
        match self.way {
            Way::Direct => {
                let formats = (self.format(), self.precision);
                let saved = direct::forward_saved(g, x, weight, formats, see);
                saved.map_or_else(apart, |(y, seen)| (y, Some(seen)))
            }
            Way::Winograd if self.precision != Precision::Fp16 => {
                winograd::forward_saved(g, x, weight, self.precision, (ROWS, see))
            }
            _ => apart(),
        }
    }

    /// dx (n, h, w, ci).
    pub(super) fn backward_data(self, g: &Geometry, dy: &[f32], weight: &[f32]) -> Vec<f32> {
        if self.rounds_on_the_way() {
            return winograd::backward_data(g, dy, weight, Rounding::OperandsAndResult);
        }
        self.rounded(self.data_sums(g, dy, weight))
    }

    /// The sums of [`Algorithm::backward_data`], not rounded.
    pub(super) fn data_sums(self, g: &Geometry, dy: &[f32], weight: &[f32]) -> Vec<f32> {
        match self.way {
            Way::Direct => direct::backward_data(g, dy, weight, self.format()),
            Way::Winograd => winograd::backward_data(g, dy, weight, self.rounding_of_operands()),
            Way::Depthwise => depthwise::backward_data(g, dy, weight),
        }
    }

    /// dw (co, ci / groups, kh, kw).
    pub(super) fn backward_weight(self, g: &Geometry, x: &[f32], dy: &[f32]) -> Vec<f32> {
        self.rounded(match self.way {
            Way::Direct => direct_gradient::backward_weight(g, x, dy, self.format()),
            Way::Winograd => winograd::backward_weight(g, x, dy, self.rounding_of_operands()),
            Way::Depthwise => depthwise::backward_weight(g, x, dy),
        })
    }

    fn rounded(self, mut values: Vec<f32>) -> Vec<f32> {
        round(&mut values, self.precision);
        values
    }
}
