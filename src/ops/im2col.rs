//! A convolution as matrix products: which input values each output pixel reads.
//!
//! Output pixels are numbered over (image, row, column). A block of pixels becomes a matrix with one
//! row per
//! pixel and kh kw ci columns, in the order (kh, kw, ci), so that a kernel row is one copy.

use std::ops::Range;

use candle_core::{Result, bail};

/// Sizes of one convolution; x (n, h, w, ci), weight (co, ci, kh, kw), y (n, oh, ow, co).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Geometry {
    pub(super) n: usize,
    pub(super) h: usize,
    pub(super) w: usize,
    pub(super) ci: usize,
    pub(super) co: usize,
    pub(super) kh: usize,
    pub(super) kw: usize,
    pub(super) stride: usize,
    pub(super) padding: usize,
    pub(super) oh: usize,
    pub(super) ow: usize,
}

impl Geometry {
    /// Checks that the shapes fit each other.
    pub(super) fn new(
        x: (usize, usize, usize, usize),
        weight: (usize, usize, usize, usize),
        stride: usize,
        padding: usize,
    ) -> Result<Self> {
        let ((n, h, w, ci), (co, weight_ci, kh, kw)) = (x, weight);
        if ci != weight_ci {
            bail!("a convolution over {weight_ci} channels was given {ci}");
        }
        let (oh, ow) = (output_size(h, kh, stride, padding)?, output_size(w, kw, stride, padding)?);
        Ok(Self { n, h, w, ci, co, kh, kw, stride, padding, oh, ow })
    }

    /// Output pixels over all images.
    pub(super) fn pixels(&self) -> usize {
        self.n * self.oh * self.ow
    }

    /// Input values that one output pixel reads.
    pub(super) fn columns(&self) -> usize {
        self.kh * self.kw * self.ci
    }

    /// Whether the input itself is the matrix: 1x1, stride 1, no padding.
    pub(super) fn is_pointwise(&self) -> bool {
        (self.kh, self.kw, self.stride, self.padding) == (1, 1, 1, 0)
    }

    /// Fills `matrix` with the rows of these output pixels; zeros outside the image.
    pub(super) fn gather(&self, x: &[f32], pixels: Range<usize>, matrix: &mut [f32]) {
        let kernel_row = self.kw * self.ci;
        for (pixel, row) in pixels.zip(matrix.chunks_exact_mut(self.columns())) {
            for (ky, row) in row.chunks_exact_mut(kernel_row).enumerate() {
                match self.segment(pixel, ky) {
                    None => row.fill(0.0),
                    Some(segment) => {
                        let end = segment.column + segment.len;
                        row[..segment.column].fill(0.0);
                        row[segment.column..end].copy_from_slice(&x[segment.at..][..segment.len]);
                        row[end..].fill(0.0);
                    }
                }
            }
        }
    }

    /// The transpose of [`Geometry::gather`]: adds each row's values to the input values it stands for.
    /// `first_image` is the image at which `dx` begins.
    pub(super) fn scatter(
        &self,
        matrix: &[f32],
        pixels: Range<usize>,
        dx: &mut [f32],
        first_image: usize,
    ) {
        let kernel_row = self.kw * self.ci;
        let offset = first_image * self.h * self.w * self.ci;
        for (pixel, row) in pixels.zip(matrix.chunks_exact(self.columns())) {
            for (ky, row) in row.chunks_exact(kernel_row).enumerate() {
                let Some(segment) = self.segment(pixel, ky) else { continue };
                let target = &mut dx[segment.at - offset..][..segment.len];
                for (sum, value) in target.iter_mut().zip(&row[segment.column..]) {
                    *sum += value;
                }
            }
        }
    }

    /// The input values under kernel row `ky` of an output pixel; `None` above and below the image.
    fn segment(&self, pixel: usize, ky: usize) -> Option<Segment> {
        let (image, place) = (pixel / (self.oh * self.ow), pixel % (self.oh * self.ow));
        let y = (place / self.ow * self.stride + ky).checked_sub(self.padding)?;
        if y >= self.h {
            return None;
        }
        let left = place % self.ow * self.stride;
        let skipped = self.padding.saturating_sub(left).min(self.kw);
        let x = left + skipped - self.padding.min(left + skipped);
        let taps = (self.kw - skipped).min(self.w.saturating_sub(x));
        (taps > 0).then(|| Segment {
            at: ((image * self.h + y) * self.w + x) * self.ci,
            column: skipped * self.ci,
            len: taps * self.ci,
        })
    }
}

/// A run of input values: where it begins, the kernel column it belongs to, its length.
struct Segment {
    at: usize,
    column: usize,
    len: usize,
}

/// Output size of a window that slides over a padded line of `size` values.
pub(super) fn output_size(
    size: usize,
    kernel: usize,
    stride: usize,
    padding: usize,
) -> Result<usize> {
    if kernel == 0 || stride == 0 {
        bail!("a window needs a size and a stride of at least 1");
    }
    match (size + 2 * padding).checked_sub(kernel) {
        Some(room) => Ok(room / stride + 1),
        None => bail!("a window of {kernel} does not fit into {size} values padded by {padding}"),
    }
}
