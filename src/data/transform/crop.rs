//! Crops, as torchvision's `CenterCrop`, `RandomCrop` and `RandomResizedCrop`.

use crate::data::transform::{Area, Pixels};
use crate::rng::Stream;

/// Cuts (height, width) from the middle; black where the image is smaller.
pub(super) fn center(image: Pixels, height: usize, width: usize) -> Pixels {
    let (top, bottom) = padding(height, image.height);
    let (left, right) = padding(width, image.width);
    let image = pad(image, [top, bottom, left, right]);
    let offset = |have: usize, want: usize| ((have - want) as f64 / 2.0).round_ties_even() as usize;
    let area =
        Area { top: offset(image.height, height), left: offset(image.width, width), height, width };
    cut(image, area)
}

/// Pads by `padding` black pixels on each side, then cuts (height, width) at a random place.
///
/// # Errors
///
/// The padded image is smaller.
pub(super) fn random(
    image: Pixels,
    (height, width): (usize, usize),
    padding: usize,
    random: Option<&mut Stream>,
) -> Result<Pixels, String> {
    let image = pad(image, [padding; 4]);
    if image.height < height || image.width < width {
        return Err(format!(
            "a crop of {width}x{height} pixels does not fit into {}x{}; `resize` first",
            image.width, image.height
        ));
    }
    let (top, left) = place((image.height - height, image.width - width), random);
    Ok(cut(image, Area { top, left, height, width }))
}

/// The area that `RandomResizedCrop` keeps of an image of (height, width): a uniform share of the area and
/// a log-uniform aspect ratio, ten tries, then the largest centred area with an allowed ratio.
pub(super) fn resized_area(
    (height, width): (usize, usize),
    scale: [f64; 2],
    ratio: [f64; 2],
    random: Option<&mut Stream>,
) -> Area {
    let Some(random) = random else { return fallback_area((height, width), ratio) };
    let (low, high) = (ratio[0].ln(), ratio[1].ln());
    for _ in 0..10 {
        let target = (height * width) as f64 * random.range(scale[0], scale[1]);
        let aspect = random.range(low, high).exp();
        let w = (target * aspect).sqrt().round_ties_even() as usize;
        let h = (target / aspect).sqrt().round_ties_even() as usize;
        if (1..=width).contains(&w) && (1..=height).contains(&h) {
            let (top, left) = place((height - h, width - w), Some(random));
            return Area { top, left, height: h, width: w };
        }
    }
    fallback_area((height, width), ratio)
}

fn fallback_area((height, width): (usize, usize), ratio: [f64; 2]) -> Area {
    let have = width as f64 / height as f64;
    let (mut h, mut w) = (height, width);
    if have < ratio[0] {
        h = (width as f64 / ratio[0]).round_ties_even() as usize;
    } else if have > ratio[1] {
        w = (height as f64 * ratio[1]).round_ties_even() as usize;
    }
    let (h, w) = (h.clamp(1, height), w.clamp(1, width));
    Area { top: (height - h) / 2, left: (width - w) / 2, height: h, width: w }
}

/// A random (top, left), each up to its room; the middle without randomness.
fn place((down, right): (usize, usize), random: Option<&mut Stream>) -> (usize, usize) {
    match random {
        None => (down / 2, right / 2),
        Some(random) => {
            let top = random.below(down as u64 + 1) as usize;
            (top, random.below(right as u64 + 1) as usize)
        }
    }
}

/// The area as an image of its own.
pub(super) fn cut(image: Pixels, area: Area) -> Pixels {
    if area == Area::whole(&image) {
        return image;
    }
    let mut data = Vec::with_capacity(area.height * area.width * image.channels);
    for row in area.top..area.top + area.height {
        data.extend_from_slice(image.row(row, area.left, area.width));
    }
    Pixels { channels: image.channels, height: area.height, width: area.width, data }
}

/// Black pixels before and after, for one side of a centred crop: the odd one comes after.
fn padding(want: usize, have: usize) -> (usize, usize) {
    let missing = want.saturating_sub(have);
    (missing / 2, missing.div_ceil(2))
}

/// Adds black rows and columns: top, bottom, left, right.
fn pad(image: Pixels, [top, bottom, left, right]: [usize; 4]) -> Pixels {
    if [top, bottom, left, right] == [0; 4] {
        return image;
    }
    let width = left + image.width + right;
    let mut out = Pixels::black(image.channels, top + image.height + bottom, width);
    for row in 0..image.height {
        let start = ((top + row) * width + left) * image.channels;
        let source = image.row(row, 0, image.width);
        out.data[start..start + source.len()].copy_from_slice(source);
    }
    out
}
