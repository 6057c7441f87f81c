//! Parts of images, and images with a border.

use crate::rng::Stream;
use crate::transform::{Area, Pixels};

/// The area as an image of its own.
pub(super) fn crop(image: Pixels, area: Area) -> Pixels {
    if area == Area::whole(image.size()) {
        return image;
    }
    let mut data = Vec::with_capacity(area.height * area.width * image.stride());
    for row in area.top..area.top + area.height {
        data.extend_from_slice(image.row(row, area.left, area.width));
    }
    Pixels { height: area.height, width: area.width, data, ..image }
}

/// Adds black rows and columns: top, bottom, left, right.
pub(super) fn pad(image: Pixels, [top, bottom, left, right]: [usize; 4]) -> Pixels {
    if [top, bottom, left, right] == [0; 4] {
        return image;
    }
    let width = left + image.width + right;
    let mut out = image.black(top + image.height + bottom, width);
    for row in 0..image.height {
        let start = ((top + row) * width + left) * image.stride();
        let source = image.row(row, 0, image.width);
        out.data[start..start + source.len()].copy_from_slice(source);
    }
    out
}

/// Adds `n` rows and columns on each side that mirror the image at its first and last ones, as
/// torchvision's `padding_mode = "reflect"`.
pub(super) fn reflect(image: &Pixels, n: usize) -> Result<Pixels, String> {
    let (height, width) = image.size();
    if height <= n || width <= n {
        return Err(format!("{width}x{height} pixels cannot be reflected by {n}"));
    }
    let mirrored = |i: usize, side: usize| {
        let i = i.abs_diff(n);
        if i < side { i } else { 2 * (side - 1) - i }
    };
    let mut out = image.black(height + 2 * n, width + 2 * n);
    let stride = image.stride();
    for (row, values) in out.data.chunks_exact_mut((width + 2 * n) * stride).enumerate() {
        let source = image.row(mirrored(row, height), 0, width);
        for (column, pixel) in values.chunks_exact_mut(stride).enumerate() {
            let from = mirrored(column, width) * stride;
            pixel.copy_from_slice(&source[from..from + stride]);
        }
    }
    Ok(out)
}

/// A random (top, left), each up to its room; the middle without randomness.
pub(super) fn random_offset(
    (down, right): (usize, usize),
    random: Option<&mut Stream>,
) -> (usize, usize) {
    match random {
        None => (down / 2, right / 2),
        Some(random) => {
            let top = random.below(down as u64 + 1) as usize;
            (top, random.below(right as u64 + 1) as usize)
        }
    }
}
