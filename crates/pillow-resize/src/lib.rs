//! Images of another size, bit for bit as Pillow's `Image.resize` makes them.
//!
//! Pillow's order is part of the result, as values are rounded in between. Weights are computed in
//! f64 and, for values of 8 bits, rounded to 22 bits behind the point.
#![doc = include_str!("../README.md")]

mod weights;
mod passes;
#[cfg(test)]
mod tests;

use passes::Value;
use weights::Weights;

/// A filter, which makes an output value of the input's. All but [`Filter::Nearest`] are antialiased: the
/// more an image shrinks, the more values they combine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// The value of the nearest pixel.
    Nearest,
    /// A triangle.
    Bilinear,
    /// Keys' cubic convolution with a = -1/2.
    Bicubic,
    /// A sinc under the window of its third.
    Lanczos,
}

/// Values in the order (row, column, channel).
#[derive(Clone, Copy, Debug)]
pub struct Image<'a, T> {
    /// All of them, of whole rows.
    pub values: &'a [T],
    /// Number of channels of a pixel.
    pub channels: usize,
    /// Pixels of a row.
    pub width: usize,
}

/// A rectangle of pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// First column.
    pub left: usize,
    /// First row.
    pub top: usize,
    /// Columns.
    pub width: usize,
    /// Rows.
    pub height: usize,
}

/// Resizes the `area` of `image`, as if it were cut out first, to `height` rows of `width` pixels,
/// which replace what `out` holds.
///
/// # Panics
///
/// `area` is empty or not within the image, or `out` has another length.
pub fn resize(image: Image<'_, u8>, area: Area, filter: Filter, out: &mut [u8], size: [usize; 2]) {
    resize_values(image, area, filter, out, size);
}

/// [`resize`] of 16 bits, as in Pillow's mode `I;16`; in Pillow these have one channel.
///
/// # Panics
///
/// On the same conditions as [`resize`].
pub fn resize_u16(
    image: Image<'_, u16>,
    area: Area,
    filter: Filter,
    out: &mut [u16],
    size: [usize; 2],
) {
    resize_values(image, area, filter, out, size);
}

fn resize_values<T: Value>(
    image: Image<'_, T>,
    area: Area,
    filter: Filter,
    out: &mut [T],
    [height, width]: [usize; 2],
) {
    let channels = image.channels;
    assert!(area.width > 0 && area.height > 0, "the area has no pixels");
    assert!(area.left + area.width <= image.width, "the area is wider than the image");
    assert_eq!(out.len(), height * width * channels, "another length of the output");
    let row = |row: usize| {
        let start = ((area.top + row) * image.width + area.left) * channels;
        &image.values[start..start + area.width * channels]
    };
    let Some(kernel) = filter.kernel() else {
        let columns = T::nearest(area.width, width);
        let rows = T::nearest(area.height, height);
        for (to, from) in out.chunks_exact_mut((width * channels).max(1)).zip(rows) {
            let from = from.map(row);
            for (to, column) in to.chunks_exact_mut(channels).zip(&columns) {
                match (from, column) {
                    (Some(from), Some(column)) => {
                        to.copy_from_slice(&from[column * channels..][..channels]);
                    }
                    // Beyond the last pixel, which sums of steps may reach, Pillow leaves black.
                    _ => to.fill(T::default()),
                }
            }
        }
        return;
    };
    let weights = |from, to| (from != to).then(|| Weights::new(from, to, kernel));
    let columns = weights(area.width, width);
    let rows = weights(area.height, height);
    let (first, count) = rows.as_ref().map_or((0, area.height), Weights::extent);
    let source: Vec<&[T]> = (first..first + count).map(row).collect();
    match (columns, rows) {
        (None, None) => out.copy_from_slice(&source.concat()),
        (Some(columns), None) => T::combine_columns(&source, channels, &columns, out),
        (None, Some(rows)) => T::combine_rows(&source, &rows, out),
        (Some(columns), Some(rows)) if rows_come_first(area, [height, width]) => {
            let mut low = vec![T::default(); height * area.width * channels];
            T::combine_rows(&source, &rows, &mut low);
            let low: Vec<&[T]> = low.chunks_exact(area.width * channels).collect();
            T::combine_columns(&low, channels, &columns, out);
        }
        (Some(columns), Some(rows)) => {
            let mut narrow = vec![T::default(); count * width * channels];
            T::combine_columns(&source, channels, &columns, &mut narrow);
            let narrow: Vec<&[T]> = narrow.chunks_exact(width * channels).collect();
            T::combine_rows(&narrow, &rows, out);
        }
    }
}

/// True if rows are combined before columns, as Pillow does since 13.0.0 where that is less work.
fn rows_come_first(area: Area, [height, width]: [usize; 2]) -> bool {
    let lost_rows = area.height as i64 - height as i64;
    lost_rows > 0 && lost_rows > 2 * (area.width as i64 - width as i64)
}
