//! Brightness, contrast, saturation, sharpness and grey by the integer arithmetic of PIL's
//! `ImageEnhance`, with the transforms `grayscale`, `random_grayscale` and
//! `random_adjust_sharpness`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Kind, OptionConflict};
use crate::ops::vectorised;
use crate::plan::PixelDtype;
use crate::rng::Stream;
use crate::transform::{Area, Pixels, RandomlyApplied, Transform};

/// grey images, as torchvision's `Grayscale`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Grayscale {
    /// 1, or 3 that are equal.
    #[schemars(range(min = 1, max = 3))]
    pub num_output_channels: usize,
}

impl Default for Grayscale {
    fn default() -> Self {
        Self { num_output_channels: 1 }
    }
}

impl Kind for Grayscale {
    const NAME: &'static str = "grayscale";

    fn check(&self) -> Vec<OptionConflict> {
        let what = || "must be 1 or 3".to_owned();
        let wrong = || OptionConflict { key: "num_output_channels", with: &[], what: what() };
        (self.num_output_channels == 2).then(wrong).into_iter().collect()
    }
}

impl Transform for Grayscale {
    fn channels(&self, _: usize) -> usize {
        self.num_output_channels
    }

    fn takes_uint16(&self) -> bool {
        true
    }

    fn apply(&self, image: Pixels, _: Area, _: Option<&mut Stream>) -> Result<Pixels, String> {
        Ok(grey(&image, self.num_output_channels))
    }
}

/// grey of the same number of channels, or the image as it is, as torchvision's `RandomGrayscale`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RandomGrayscale {
    /// probability.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub p: f64,
}

impl Default for RandomGrayscale {
    fn default() -> Self {
        Self { p: 0.1 }
    }
}

impl Kind for RandomGrayscale {
    const NAME: &'static str = "random_grayscale";
}

impl RandomlyApplied for RandomGrayscale {
    fn p(&self) -> f64 {
        self.p
    }

    fn changed(&self, image: Pixels) -> Pixels {
        grey(&image, image.channels)
    }

    fn takes_16_bits(&self) -> bool {
        true
    }
}

/// sharpen or smooth, or leave the image as it is, as torchvision's `RandomAdjustSharpness`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RandomAdjustSharpness {
    /// 0 smooths, 1 changes nothing, 2 sharpens.
    #[schemars(range(min = 0.0))]
    pub sharpness_factor: f64,
    /// probability.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub p: f64,
}

impl Default for RandomAdjustSharpness {
    fn default() -> Self {
        Self { sharpness_factor: 2.0, p: 0.5 }
    }
}

impl Kind for RandomAdjustSharpness {
    const NAME: &'static str = "random_adjust_sharpness";
}

impl RandomlyApplied for RandomAdjustSharpness {
    fn p(&self) -> f64 {
        self.p
    }

    fn changed(&self, mut image: Pixels) -> Pixels {
        sharpen(&mut image, self.sharpness_factor as f32);
        image
    }
}

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
    let grey = grey(image, 3);
    blend_with(image, &grey.data, factor);
}

/// Blends with the smoothed picture.
pub(super) fn sharpen(image: &mut Pixels, factor: f32) {
    let smooth = smoothed(image);
    blend_with(image, &smooth, factor);
}

fn blend_with(image: &mut Pixels, degenerate: &[u8], factor: f32) {
    let values = &mut image.data[..];
    vectorised(
        #[inline(always)]
        move || {
            for (value, from) in values.iter_mut().zip(degenerate) {
                *value = blend(*from, *value, factor);
            }
        },
    );
}

/// PIL's filter `SMOOTH`: the middle of 3 x 3 pixels counts five times; the border stays.
fn smoothed(image: &Pixels) -> Vec<u8> {
    let mut out = image.data.clone();
    let channels = image.channels;
    let row = image.width * image.channels;
    if image.width < 3 {
        return out;
    }
    let mut columns = vec![0; row];
    for line in 1..image.height.saturating_sub(1) {
        let lines = [line - 1, line, line + 1].map(|line| &image.data[line * row..][..row]);
        let inner = line * row + channels..(line + 1) * row - channels;
        smooth_line(lines, channels, &mut columns, &mut out[inner]);
    }
    out
}

/// The inner pixels of the second of three lines; `columns` is room for their sums.
fn smooth_line(
    [above, here, below]: [&[u8]; 3],
    channels: usize,
    columns: &mut [u16],
    out: &mut [u8],
) {
    vectorised(
        #[inline(always)]
        || {
            let three = above.iter().zip(here).zip(below);
            for (sum, ((above, here), below)) in columns.iter_mut().zip(three) {
                *sum = u16::from(*above) + u16::from(*here) + u16::from(*below);
            }
            let three = columns.iter().zip(&columns[channels..]).zip(&columns[2 * channels..]);
            for (out, (three, here)) in out.iter_mut().zip(three.zip(&here[channels..])) {
                let ((left, middle), right) = three;
                let sum = left + middle + right + 4 * u16::from(*here);
                *out = ((2 * sum + 13) / 26) as u8;
            }
        },
    );
}

/// PIL's `Image.blend(degenerate, image, factor)`: cut, not rounded; clipped.
#[inline(always)]
fn blend(from: u8, to: u8, factor: f32) -> u8 {
    let value = f32::from(from) + factor * (f32::from(to) - f32::from(from));
    value.clamp(0.0, 255.0) as u8
}

/// PIL's conversion to "L" (ITU-R 601-2) in 16-bit fixed point.
#[inline]
fn luma(pixel: &[u8]) -> u8 {
    weighted([u32::from(pixel[0]), u32::from(pixel[1]), u32::from(pixel[2])]) as u8
}

/// Weighted sum of the channels, in their range, up to 16 bits.
fn weighted([r, g, b]: [u32; 3]) -> u32 {
    (r * 19595 + g * 38470 + b * 7471 + 0x8000) >> 16
}

/// The picture in grey, of one channel or of several that are equal.
fn grey(image: &Pixels, channels: usize) -> Pixels {
    if image.dtype == PixelDtype::Uint16 {
        return grey_of_uint16(image, channels);
    }
    let data = match (image.channels, channels) {
        (1, 1) => image.data.clone(),
        (1, _) => image.data.iter().flat_map(|grey| [*grey; 3]).collect(),
        (_, 1) => image.data.chunks_exact(3).map(luma).collect(),
        _ => {
            let mut data = image.data.clone();
            for pixel in data.as_chunks_mut::<3>().0 {
                *pixel = [luma(pixel); 3];
            }
            data
        }
    };
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
    use crate::transform::golden::{equals, equals_at};

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
        for (channels, size) in [(1, [2, 3]), (1, [3, 1]), (1, [3, 2]), (3, [3, 2]), (3, [1, 3])] {
            let n = channels * size[0] * size[1];
            let thin = || Pixels::new(channels, size, (0..n as u8).collect());
            let mut image = thin();
            sharpen(&mut image, 0.0);
            assert_eq!(image, thin());
        }
    }
}
