//! Values of pixels through tables, as PIL's `ImageOps`: the transforms `random_autocontrast`,
//! `random_equalize`, `random_invert`, `random_posterize` and `random_solarize`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::transform::{Pixels, RandomlyApplied};

/// stretch each channel to black and white, or leave the image as it is, as torchvision's
/// `RandomAutocontrast`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RandomAutocontrast {
    /// probability.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub p: f64,
}

impl Default for RandomAutocontrast {
    fn default() -> Self {
        Self { p: 0.5 }
    }
}

impl Kind for RandomAutocontrast {
    const NAME: &'static str = "random_autocontrast";
}

impl RandomlyApplied for RandomAutocontrast {
    fn p(&self) -> f64 {
        self.p
    }

    fn changed(&self, mut image: Pixels) -> Pixels {
        autocontrast(&mut image);
        image
    }
}

/// make the values of each channel equally frequent, or leave the image as it is, as torchvision's
/// `RandomEqualize`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RandomEqualize {
    /// probability.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub p: f64,
}

impl Default for RandomEqualize {
    fn default() -> Self {
        Self { p: 0.5 }
    }
}

impl Kind for RandomEqualize {
    const NAME: &'static str = "random_equalize";
}

impl RandomlyApplied for RandomEqualize {
    fn p(&self) -> f64 {
        self.p
    }

    fn changed(&self, mut image: Pixels) -> Pixels {
        equalize(&mut image);
        image
    }
}

/// the negative, or the image as it is, as torchvision's `RandomInvert`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RandomInvert {
    /// probability.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub p: f64,
}

impl Default for RandomInvert {
    fn default() -> Self {
        Self { p: 0.5 }
    }
}

impl Kind for RandomInvert {
    const NAME: &'static str = "random_invert";
}

impl RandomlyApplied for RandomInvert {
    fn p(&self) -> f64 {
        self.p
    }

    fn changed(&self, mut image: Pixels) -> Pixels {
        invert(&mut image);
        image
    }
}

/// keep the highest bits of each value, or leave the image as it is, as torchvision's
/// `RandomPosterize`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RandomPosterize {
    /// bits to keep.
    #[schemars(range(min = 1, max = 8))]
    pub bits: u32,
    /// probability.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub p: f64,
}

impl Default for RandomPosterize {
    fn default() -> Self {
        Self { bits: 4, p: 0.5 }
    }
}

impl Kind for RandomPosterize {
    const NAME: &'static str = "random_posterize";
}

impl RandomlyApplied for RandomPosterize {
    fn p(&self) -> f64 {
        self.p
    }

    fn changed(&self, mut image: Pixels) -> Pixels {
        posterize(&mut image, self.bits);
        image
    }
}

/// invert the bright values, or leave the image as it is, as torchvision's `RandomSolarize`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RandomSolarize {
    /// lowest value that is inverted, from 0 to 255.
    #[schemars(range(min = 0.0, max = 256.0))]
    pub threshold: f64,
    /// probability.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub p: f64,
}

impl Default for RandomSolarize {
    fn default() -> Self {
        Self { threshold: 128.0, p: 0.5 }
    }
}

impl Kind for RandomSolarize {
    const NAME: &'static str = "random_solarize";
}

impl RandomlyApplied for RandomSolarize {
    fn p(&self) -> f64 {
        self.p
    }

    fn changed(&self, mut image: Pixels) -> Pixels {
        solarize(&mut image, self.threshold);
        image
    }
}

/// Negative.
fn invert(image: &mut Pixels) {
    image.data.iter_mut().for_each(|value| *value = !*value);
}

/// Keeps the highest `bits` of each value.
pub(super) fn posterize(image: &mut Pixels, bits: u32) {
    let kept = !(0xFF_u32 >> bits.min(8)) as u8;
    image.data.iter_mut().for_each(|value| *value &= kept);
}

/// Inverts values of `threshold` and above.
pub(super) fn solarize(image: &mut Pixels, threshold: f64) {
    let first = threshold.ceil() as u16;
    let invert = |value: u8| if u16::from(value) < first { value } else { !value };
    image.data.iter_mut().for_each(|value| *value = invert(*value));
}

/// Stretches each channel to 0..=255.
pub(super) fn autocontrast(image: &mut Pixels) {
    by_channel(image, |counts| {
        let lowest = counts.iter().position(|&n| n > 0)?;
        let highest = counts.iter().rposition(|&n| n > 0)?;
        let scale = 255.0 / highest.checked_sub(lowest).filter(|&range| range > 0)? as f64;
        let offset = -(lowest as f64) * scale;
        Some(std::array::from_fn(|value| (value as f64 * scale + offset).clamp(0.0, 255.0) as u8))
    });
}

/// Makes values of each channel equally frequent.
pub(super) fn equalize(image: &mut Pixels) {
    by_channel(image, |counts| {
        let last = counts.iter().rfind(|&&n| n > 0)?;
        let step = (counts.iter().sum::<usize>() - last) / 255;
        let mut below = step / 2;
        let mut next = |value: usize| {
            let found = below.checked_div(step)?.min(255) as u8;
            below += counts[value];
            Some(found)
        };
        let mut table = [0; 256];
        for (value, entry) in table.iter_mut().enumerate() {
            *entry = next(value)?;
        }
        Some(table)
    });
}

/// Sends each channel through a table made of how often it has each value; `None` leaves it as it
/// is.
fn by_channel(image: &mut Pixels, table: impl Fn(&[usize; 256]) -> Option<[u8; 256]>) {
    match image.channels {
        1 => by_each::<1>(&mut image.data, table),
        _ => by_each::<3>(&mut image.data, table),
    }
}

fn by_each<const CHANNELS: usize>(
    values: &mut [u8],
    table: impl Fn(&[usize; 256]) -> Option<[u8; 256]>,
) {
    let pixels = values.as_chunks_mut::<CHANNELS>().0;
    let mut counts = [[0; 256]; CHANNELS];
    for pixel in &*pixels {
        for channel in 0..CHANNELS {
            counts[channel][usize::from(pixel[channel])] += 1;
        }
    }
    let same = || std::array::from_fn(|value| value as u8);
    let tables = counts.map(|counts| table(&counts).unwrap_or_else(same));
    for pixel in pixels {
        for channel in 0..CHANNELS {
            pixel[channel] = tables[channel][usize::from(pixel[channel])];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transform::golden::{equals, equals_at};

    #[test]
    fn tables_equal_pillow() {
        equals("invert", changed(invert));
        equals("autocontrast", changed(autocontrast));
        equals("equalize", changed(equalize));
        for bits in [1, 3, 8] {
            equals_at("posterize", bits, changed(|image| posterize(image, bits)));
        }
        for threshold in [0.0, 100.5, 128.0, 255.0] {
            equals_at(
                "solarize",
                format!("{threshold:?}"),
                changed(|image| solarize(image, threshold)),
            );
        }
    }

    #[test]
    fn values_from_a_threshold_on_are_inverted() {
        let every = || Pixels::new(1, [16, 16], (0..=255).collect());
        for threshold in [-1.0, 0.0, 0.5, 1.0, 127.5, 255.0, 255.5, 256.0] {
            let image = changed(|image| solarize(image, threshold))(every());
            for (value, found) in (0..=255u8).zip(image.data) {
                let is_below = f64::from(value) < threshold;
                assert_eq!(found, if is_below { value } else { 255 - value }, "{threshold}");
            }
        }
    }

    fn changed(change: impl Fn(&mut Pixels)) -> impl Fn(Pixels) -> Pixels {
        move |mut image| {
            change(&mut image);
            image
        }
    }

    #[test]
    fn an_image_of_one_value_stays_as_it_is() {
        let plain = || Pixels::new(1, [2, 2], vec![7; 4]);
        assert_eq!(changed(autocontrast)(plain()), plain());
        assert_eq!(changed(equalize)(plain()), plain());
    }
}
