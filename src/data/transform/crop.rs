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
    if area == Area::whole(image.size()) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::transform::tests::picture;
    use crate::rng::{Key, Purpose};

    fn stream(sample: u64) -> Stream {
        Key::new(5, Purpose::Augment, 0, sample).stream()
    }

    #[test]
    fn a_centre_crop_rounds_half_to_even_and_pads_small_images() {
        // torchvision: crop_top = int(round((5 - 2) / 2.0)) = round(1.5) = 2, crop_left = round(0.5) = 0.
        let cropped = center(picture(1, 5, 5), 2, 4);
        let expected = cut(picture(1, 5, 5), Area { top: 2, left: 0, height: 2, width: 4 });
        assert_eq!(cropped, expected);
        let one = Pixels { channels: 1, height: 1, width: 1, data: vec![9] };
        assert_eq!(center(one, 2, 4).data, [0, 9, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn random_crops_reach_each_place_of_the_padded_image() {
        let image = || Pixels { channels: 1, height: 1, width: 2, data: vec![1, 2] };
        let mut seen = std::collections::BTreeSet::new();
        for sample in 0..400 {
            let crop = random(image(), (1, 2), 1, Some(&mut stream(sample))).unwrap();
            seen.insert(crop.data);
        }
        let expected = [[0, 0], [0, 1], [1, 2], [2, 0]].map(|row| row.to_vec());
        assert_eq!(seen, expected.into_iter().collect());
        assert_eq!(random(image(), (1, 2), 1, None).unwrap().data, [1, 2]);
        assert!(random(image(), (4, 2), 1, None).unwrap_err().contains("does not fit into 4x3"));
    }

    #[test]
    fn resized_areas_stay_within_the_asked_share_and_aspect() {
        let (scale, ratio) = ([0.08, 1.0], [0.75, 4.0 / 3.0]);
        let mut mean = 0.0;
        for sample in 0..2000 {
            let area = resized_area((300, 400), scale, ratio, Some(&mut stream(sample)));
            assert!(area.top + area.height <= 300 && area.left + area.width <= 400);
            let share = (area.height * area.width) as f64 / 120_000.0;
            let aspect = area.width as f64 / area.height as f64;
            assert!((0.078..=1.0).contains(&share), "{area:?}");
            assert!((0.74..=1.35).contains(&aspect), "{area:?}");
            mean += share / 2000.0;
        }
        // Uniform in [0.08, 1] less the tries that do not fit.
        assert!((0.4..0.55).contains(&mean), "{mean}");
    }

    #[test]
    fn without_a_fitting_area_the_centre_with_the_nearest_aspect_is_taken() {
        // torchvision's fallback for a 10 x 100 image: width = round(10 * 4/3) = 13, left = 87 // 2.
        let ratio = [0.75, 4.0 / 3.0];
        let expected = Area { top: 0, left: 43, height: 10, width: 13 };
        assert_eq!(resized_area((10, 100), [1.0, 1.0], ratio, Some(&mut stream(0))), expected);
        assert_eq!(resized_area((10, 100), [0.1, 1.0], ratio, None), expected);
        let tall = Area { top: 43, left: 0, height: 13, width: 10 };
        assert_eq!(resized_area((100, 10), [0.1, 1.0], ratio, None), tall);
    }
}
