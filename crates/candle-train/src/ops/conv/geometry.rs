//! Sizes of a convolution, and the input pixel that each tap of an output pixel reads.

use std::ops::Range;

use candle_core::{Result, bail};

/// Stride, padding, dilation and groups of a convolution, along rows and columns.
#[derive(Clone, Copy)]
pub(super) struct Sliding {
    pub(super) stride: [usize; 2],
    pub(super) padding: [usize; 2],
    pub(super) dilation: [usize; 2],
    pub(super) groups: usize,
}

/// Sizes of one convolution; x (n, h, w, ci), weight (co, ci / groups, kh, kw), y (n, oh, ow, co).
///
/// Output pixels are numbered over (image, row, column).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::ops) struct Geometry {
    pub(in crate::ops) n: usize,
    pub(in crate::ops) h: usize,
    pub(in crate::ops) w: usize,
    pub(in crate::ops) ci: usize,
    pub(in crate::ops) co: usize,
    pub(in crate::ops) kh: usize,
    pub(in crate::ops) kw: usize,
    /// Along rows and columns.
    pub(in crate::ops) stride: [usize; 2],
    pub(in crate::ops) padding: [usize; 2],
    /// Input pixels from one tap to the next.
    pub(in crate::ops) dilation: [usize; 2],
    pub(in crate::ops) groups: usize,
    pub(in crate::ops) oh: usize,
    pub(in crate::ops) ow: usize,
}

impl Geometry {
    /// Checks that the shapes fit each other.
    pub(super) fn new(
        (n, h, w, ci): (usize, usize, usize, usize),
        (co, per_group, kh, kw): (usize, usize, usize, usize),
        sliding: Sliding,
    ) -> Result<Self> {
        let Sliding { stride, padding, dilation, groups } = sliding;
        if groups == 0 || ci != per_group * groups || !co.is_multiple_of(groups) {
            bail!("{groups} groups of {per_group} channels each were given {ci} and make {co}");
        }
        if dilation.contains(&0) {
            bail!("taps are at least one pixel apart");
        }
        let reach = |kernel: usize, dilation| kernel.saturating_sub(1) * dilation + kernel.min(1);
        let oh = output_size(h, reach(kh, dilation[0]), stride[0], padding[0])?;
        let ow = output_size(w, reach(kw, dilation[1]), stride[1], padding[1])?;
        Ok(Self { n, h, w, ci, co, kh, kw, stride, padding, dilation, groups, oh, ow })
    }

    /// Output pixels over all images.
    pub(in crate::ops) fn pixels(&self) -> usize {
        self.n * self.oh * self.ow
    }

    /// Pixels of the kernel.
    pub(in crate::ops) fn taps(&self) -> usize {
        self.kh * self.kw
    }

    /// Input channels of a group.
    pub(in crate::ops) fn group_inputs(&self) -> usize {
        self.ci / self.groups
    }

    /// Output channels of a group.
    pub(super) fn group_outputs(&self) -> usize {
        self.co / self.groups
    }

    /// Multiplications of the product.
    pub(super) fn multiplications(&self) -> usize {
        self.pixels() * self.weight_len()
    }

    /// Elements of the weight.
    pub(in crate::ops) fn weight_len(&self) -> usize {
        self.co * self.group_inputs() * self.taps()
    }

    /// The input pixel under tap (ky, kx) of an output pixel; `None` outside the image.
    #[inline(always)]
    pub(super) fn input_pixel(&self, output: Pixel, ky: usize, kx: usize) -> Option<usize> {
        // Above and left of the image the numbers wrap, and so lie outside of it as well.
        let y = (output.y * self.stride[0] + ky * self.dilation[0]).wrapping_sub(self.padding[0]);
        let x = (output.x * self.stride[1] + kx * self.dilation[1]).wrapping_sub(self.padding[1]);
        (y < self.h && x < self.w).then(|| (output.image * self.h + y) * self.w + x)
    }

    /// The output pixel that reads an input pixel through tap (ky, kx), if the stride meets it.
    #[inline(always)]
    pub(super) fn output_pixel(&self, input: Pixel, ky: usize, kx: usize) -> Option<usize> {
        let y = (input.y + self.padding[0]).checked_sub(ky * self.dilation[0])?;
        let x = (input.x + self.padding[1]).checked_sub(kx * self.dilation[1])?;
        let row = y / self.stride[0];
        let column = x / self.stride[1];
        let meets = y % self.stride[0] == 0 && x % self.stride[1] == 0;
        (meets && row < self.oh && column < self.ow)
            .then(|| (input.image * self.oh + row) * self.ow + column)
    }

    /// Output pixels of this range.
    pub(super) fn output_pixels(&self, range: Range<usize>) -> impl Iterator<Item = Pixel> {
        let oh = self.oh;
        let ow = self.ow;
        let mut next = Pixel::new(range.start, oh, ow);
        range.map(move |_| {
            let pixel = next;
            next = pixel.following(oh, ow);
            pixel
        })
    }
}

/// A pixel's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pixel {
    pub(super) image: usize,
    pub(super) y: usize,
    pub(super) x: usize,
}

impl Pixel {
    /// Number `pixel` of images of h x w.
    #[inline(always)]
    pub(super) fn new(pixel: usize, h: usize, w: usize) -> Self {
        Self { image: pixel / (h * w), y: pixel / w % h, x: pixel % w }
    }

    /// The next one, of images of h x w.
    #[inline(always)]
    fn following(self, h: usize, w: usize) -> Self {
        let Self { image, y, x } = self;
        match () {
            () if x + 1 < w => Self { image, y, x: x + 1 },
            () if y + 1 < h => Self { image, y: y + 1, x: 0 },
            () => Self { image: image + 1, y: 0, x: 0 },
        }
    }
}

/// Treatment of a rest that a stride leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rounding {
    /// No window sees it.
    #[default]
    Down,
    /// One more window does, which hangs over the edge (`ceil_mode=True` of PyTorch).
    Up,
}

impl Rounding {
    /// Windows over a padded line of `size` values, of which the last one begins before the padding
    /// behind it.
    pub fn windows(
        self,
        size: usize,
        kernel: usize,
        stride: usize,
        padding: usize,
    ) -> Result<usize> {
        let whole = output_size(size, kernel, stride, padding)?;
        let has_rest = !(size + 2 * padding - kernel).is_multiple_of(stride);
        let begins_inside = whole * stride < size + padding;
        Ok(whole + usize::from(self == Self::Up && has_rest && begins_inside))
    }
}

/// Output size of a window that slides over a padded line of `size` values.
fn output_size(size: usize, kernel: usize, stride: usize, padding: usize) -> Result<usize> {
    if kernel == 0 || stride == 0 {
        bail!("a window needs a size and a stride of at least 1");
    }
    match (size + 2 * padding).checked_sub(kernel) {
        Some(room) => Ok(room / stride + 1),
        None => bail!("a window of {kernel} does not fit into {size} values padded by {padding}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_pixels_read_exactly_the_input_pixels_that_lead_back_to_them() {
        let sliding = Sliding { stride: [2, 3], padding: [1, 2], dilation: [2, 1], groups: 1 };
        let g = Geometry::new((2, 7, 8, 1), (1, 1, 3, 5), sliding).unwrap();
        let mut found = 0;
        for (ky, kx) in (0..3).flat_map(|ky| (0..5).map(move |kx| (ky, kx))) {
            for (number, output) in g.output_pixels(0..g.pixels()).enumerate() {
                if let Some(input) = g.input_pixel(output, ky, kx) {
                    let input = Pixel::new(input, g.h, g.w);
                    assert_eq!(g.output_pixel(input, ky, kx), Some(number));
                    found += 1;
                }
            }
            let back = (0..2 * 7 * 8).filter_map(|i| g.output_pixel(Pixel::new(i, 7, 8), ky, kx));
            found -= back.count();
        }
        assert_eq!(found, 0);
    }
}
