//! Brightness, contrast, saturation and sharpness by the integer arithmetic of PIL's
//! `ImageEnhance`.

use crate::data::transform::Pixels;
use crate::plan::PixelDtype;

/// Blends with black.
pub(super) fn brighten(image: &mut Pixels, factor: f32) {
    let table: [u8; 256] = std::array::from_fn(|value| blend(0, value as u8, factor));
    image.data.iter_mut().for_each(|value| *value = table[usize::from(*value)]);
}

/// Blends with the mean grey.
pub(super) fn contrast(image: &mut Pixels, factor: f32) {
    let sum: u64 = match image.channels {
        1 => image.data.iter().map(|&value| u64::from(value)).sum(),
        _ => image.data.chunks_exact(3).map(|pixel| u64::from(luma(pixel))).sum(),
    };
    let mean = (sum as f64 / (image.height * image.width) as f64 + 0.5) as u8;
    let table: [u8; 256] = std::array::from_fn(|value| blend(mean, value as u8, factor));
    image.data.iter_mut().for_each(|value| *value = table[usize::from(*value)]);
}

/// Blends with the grey picture; grey images have no saturation.
pub(super) fn saturate(image: &mut Pixels, factor: f32) {
    if image.channels == 1 {
        return;
    }
    for pixel in image.data.chunks_exact_mut(3) {
        let grey = luma(pixel);
        for value in pixel {
            *value = blend(grey, *value, factor);
        }
    }
}

/// Blends with the smoothed picture.
pub(super) fn sharpen(image: &mut Pixels, factor: f32) {
    let smooth = smoothed(image);
    for (value, smooth) in image.data.iter_mut().zip(smooth) {
        *value = blend(smooth, *value, factor);
    }
}

/// PIL's filter `SMOOTH`: the middle of 3 x 3 pixels counts five times; the border stays.
fn smoothed(image: &Pixels) -> Vec<u8> {
    let mut out = image.data.clone();
    let (channels, row) = (image.channels, image.width * image.channels);
    for line in 1..image.height.saturating_sub(1) {
        let inner = line * row + channels..((line + 1) * row).saturating_sub(channels);
        for (at, smooth) in inner.clone().zip(out.get_mut(inner).into_iter().flatten()) {
            let three = |at: usize| -> u32 {
                [at - channels, at, at + channels].iter().map(|&at| u32::from(image.data[at])).sum()
            };
            let sum = three(at - row) + three(at) + three(at + row) + 4 * u32::from(image.data[at]);
            *smooth = ((2 * sum + 13) / 26) as u8;
        }
    }
    out
}

/// PIL's `Image.blend(degenerate, image, factor)`: cut, not rounded; clipped.
fn blend(from: u8, to: u8, factor: f32) -> u8 {
    let value = f32::from(from) + factor * (f32::from(to) - f32::from(from));
    value.clamp(0.0, 255.0) as u8
}

/// PIL's conversion to "L" (ITU-R 601-2) in 16-bit fixed point.
pub(super) fn luma(pixel: &[u8]) -> u8 {
    weighted([pixel[0], pixel[1], pixel[2]].map(u32::from)) as u8
}

/// In the range of its channels, up to 16 bits.
fn weighted([r, g, b]: [u32; 3]) -> u32 {
    (r * 19595 + g * 38470 + b * 7471 + 0x8000) >> 16
}

/// The picture in grey, of one channel or of several that are equal.
pub(super) fn grey(image: &Pixels, channels: usize) -> Pixels {
    if image.dtype == PixelDtype::Uint16 {
        return grey_of_uint16(image, channels);
    }
    let values = image.data.chunks_exact(image.channels);
    let grey = |pixel: &[u8]| if pixel.len() == 1 { pixel[0] } else { luma(pixel) };
    let data = values.flat_map(|pixel| std::iter::repeat_n(grey(pixel), channels)).collect();
    Pixels { channels, data, ..*image }
}

fn grey_of_uint16(image: &Pixels, channels: usize) -> Pixels {
    let grey = |pixel: &[u16]| match *pixel {
        [r, g, b] => weighted([r, g, b].map(u32::from)) as u16,
        _ => pixel[0],
    };
    let values = image.uint16();
    let pixels = values.chunks_exact(image.channels);
    let values: Vec<u16> =
        pixels.flat_map(|pixel| std::iter::repeat_n(grey(pixel), channels)).collect();
    Pixels::of_uint16(channels, [image.height, image.width], &values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::transform::golden::{equals, equals_at};

    #[test]
    fn sharpness_and_grey_equal_pillow() {
        for factor in [0.0, 0.5, 1.9] {
            equals_at("sharpness", format!("{factor:?}"), |mut image| {
                sharpen(&mut image, factor);
                image
            });
        }
        equals("grayscale_3", |image| grey(&image, 3));
        equals("grayscale_1", |image| grey(&image, 1));
    }

    #[test]
    fn an_image_without_inner_pixels_stays_as_it_is() {
        let thin = || Pixels::new(1, [2, 3], vec![1, 2, 3, 4, 5, 6]);
        let mut image = thin();
        sharpen(&mut image, 0.0);
        assert_eq!(image, thin());
    }
}
