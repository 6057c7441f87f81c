//! `name = "color_jitter"`, with the integer arithmetic of PIL's HSV conversion.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::rng::Stream;
use crate::transform::enhance::{brighten, contrast, saturate};
use crate::transform::{Area, Pixels, Transform};

/// brightness, contrast, saturation and hue in random order, as torchvision's `ColorJitter`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ColorJitter {
    /// factor in [1 - x, 1 + x].
    #[schemars(range(min = 0.0), example = 0.2)]
    pub brightness: f64,
    /// factor in [1 - x, 1 + x].
    #[schemars(range(min = 0.0), example = 0.2)]
    pub contrast: f64,
    /// factor in [1 - x, 1 + x].
    #[schemars(range(min = 0.0), example = 0.2)]
    pub saturation: f64,
    /// shift in [-x, x] turns.
    #[schemars(range(min = 0.0, max = 0.5), example = 0.1)]
    pub hue: f64,
}

impl Kind for ColorJitter {
    const NAME: &'static str = "color_jitter";
}

impl Transform for ColorJitter {
    fn is_random(&self) -> bool {
        true
    }

    fn apply(&self, image: Pixels, _: Area, stream: Option<&mut Stream>) -> Result<Pixels, String> {
        let strengths = [self.brightness, self.contrast, self.saturation, self.hue];
        Ok(match stream {
            Some(stream) => Jitter::draw(strengths, stream).apply(image),
            None => image,
        })
    }
}

/// One draw of `ColorJitter`: up to four changes in random order.
#[derive(Debug, PartialEq)]
struct Jitter(Vec<Change>);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Change {
    /// Blend with black.
    Brightness(f64),
    /// Blend with the mean grey.
    Contrast(f64),
    /// Blend with the grey picture.
    Saturation(f64),
    /// Turn the hue, in turns.
    Hue(f64),
}

impl Jitter {
    /// Draws factors from [max(0, 1 - s), 1 + s] for the strengths of brightness, contrast and
    /// saturation, and a shift from [-s, s] for that of the hue; a strength of 0 leaves the change
    /// out.
    fn draw(strengths: [f64; 4], random: &mut Stream) -> Self {
        let kinds = [Change::Brightness, Change::Contrast, Change::Saturation, Change::Hue];
        let mut changes = Vec::with_capacity(4);
        for (position, (strength, kind)) in strengths.into_iter().zip(kinds).enumerate() {
            let low = if position == 3 { -strength } else { (1.0 - strength).max(0.0) };
            let high = if position == 3 { strength } else { 1.0 + strength };
            let factor = random.range(low, high);
            if strength > 0.0 {
                changes.push(kind(factor));
            }
        }
        for last in (1..changes.len()).rev() {
            changes.swap(last, random.below(last as u64 + 1) as usize);
        }
        Self(changes)
    }

    /// Applies the changes in their order. Grey images have neither saturation nor hue.
    fn apply(&self, mut image: Pixels) -> Pixels {
        for change in &self.0 {
            match *change {
                Change::Brightness(factor) => brighten(&mut image, factor as f32),
                Change::Contrast(factor) => contrast(&mut image, factor as f32),
                Change::Hue(_) if image.channels == 1 => {}
                Change::Saturation(factor) => saturate(&mut image, factor as f32),
                Change::Hue(turns) => turn_hue(&mut image, turns),
            }
        }
        image
    }
}

fn turn_hue(image: &mut Pixels, turns: f64) {
    // torchvision: the shift in 1/255 turns, cut towards zero, added modulo 256.
    let shift = (turns * 255.0) as i32 as u8;
    for pixel in image.data.chunks_exact_mut(3) {
        let [hue, saturation, value] = to_hsv([pixel[0], pixel[1], pixel[2]]);
        pixel.copy_from_slice(&to_rgb([hue.wrapping_add(shift), saturation, value]));
    }
}

/// PIL's RGB -> HSV: all three in 0..=255.
fn to_hsv([r, g, b]: [u8; 3]) -> [u8; 3] {
    let max = r.max(g).max(b);
    let min = r.min(g).min(b);
    if max == min {
        return [0, 0, max];
    }
    let range = f32::from(max - min);
    let saturation = range / f32::from(max);
    let [rc, gc, bc] = [r, g, b].map(|v| f32::from(max - v) / range);
    // PIL adds the whole number in f64 and keeps the result in f32.
    let hue = match max {
        _ if r == max => bc - gc,
        _ if g == max => (2.0 + f64::from(rc) - f64::from(bc)) as f32,
        _ => (4.0 + f64::from(gc) - f64::from(rc)) as f32,
    };
    let hue = (f64::from(hue) / 6.0 + 1.0).rem_euclid(1.0) as f32;
    [(f64::from(hue) * 255.0) as u8, (f64::from(saturation) * 255.0) as u8, max]
}

/// PIL's HSV -> RGB.
fn to_rgb([h, s, v]: [u8; 3]) -> [u8; 3] {
    if s == 0 {
        return [v; 3];
    }
    let scaled = f64::from(f32::from(h)) * 6.0 / 255.0;
    let sector = scaled.floor();
    let f = f64::from((scaled - sector) as f32);
    let fs = f64::from((f64::from(f32::from(s)) / 255.0) as f32);
    let value = f64::from(v);
    let channel = |v: f64| v.round().clamp(0.0, 255.0) as u8;
    let p = channel(value * (1.0 - fs));
    let q = channel(value * (1.0 - fs * f));
    let t = channel(value * (1.0 - fs * (1.0 - f)));
    match sector as u8 % 6 {
        0 => [v, t, p],
        1 => [q, v, p],
        2 => [p, v, t],
        3 => [p, q, v],
        4 => [t, p, v],
        _ => [v, p, q],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transform::golden::{checksum, colours, stream};

    fn changed(change: Change) -> u32 {
        checksum(&Jitter(vec![change]).apply(colours()).data)
    }

    #[test]
    fn each_change_equals_pillow_on_four_thousand_colours() {
        // Pillow 13.0.0: `ImageEnhance.{Brightness, Contrast, Color}(image).enhance(factor)`, and
        // torchvision's `adjust_hue` on its HSV conversion.
        let sums = [
            (Change::Brightness(0.8), 3_375_951_361),
            (Change::Brightness(1.15), 2_256_209_471),
            (Change::Contrast(0.83), 992_662_752),
            (Change::Contrast(1.2), 1_016_127_611),
            (Change::Saturation(0.81), 998_300_642),
            (Change::Saturation(1.19), 1_004_014_312),
            (Change::Hue(0.1), 1_024_340_853),
            (Change::Hue(-0.1), 1_028_217_729),
            (Change::Hue(0.0333), 1_043_679_371),
            (Change::Hue(0.5), 1_013_489_549),
        ];
        assert_eq!(checksum(&colours().data), 1_036_259_338);
        for (change, sum) in sums {
            assert_eq!(changed(change), sum, "{change:?}");
        }
        let hue = |color: [u8; 3]| {
            let pixel = Pixels::new(3, [1, 1], color.to_vec());
            Jitter(vec![Change::Hue(0.1)]).apply(pixel).data
        };
        assert_eq!(hue([255, 0, 0]), [255, 150, 0]);
        assert_eq!(hue([10, 200, 30]), [10, 200, 140]);
    }

    #[test]
    fn draws_stay_within_their_strengths_and_come_in_every_order() {
        let mut orders = std::collections::BTreeSet::new();
        for sample in 0..500 {
            let mut stream = stream(sample);
            let jitter = Jitter::draw([0.2, 0.3, 1.5, 0.1], &mut stream);
            let mut order = Vec::new();
            for change in &jitter.0 {
                let (position, low, high, value) = match *change {
                    Change::Brightness(v) => (0, 0.8, 1.2, v),
                    Change::Contrast(v) => (1, 0.7, 1.3, v),
                    Change::Saturation(v) => (2, 0.0, 2.5, v),
                    Change::Hue(v) => (3, -0.1, 0.1, v),
                };
                assert!((low..=high).contains(&value), "{change:?}");
                order.push(position);
            }
            orders.insert(order);
        }
        assert_eq!(orders.len(), 24);
    }

    #[test]
    fn grey_images_take_brightness_and_contrast_only() {
        let grey = || Pixels::new(1, [1, 2], vec![100, 200]);
        let apply = |change| Jitter(vec![change]).apply(grey()).data;
        assert_eq!(apply(Change::Hue(0.3)), [100, 200]);
        assert_eq!(apply(Change::Saturation(0.0)), [100, 200]);
        assert_eq!(apply(Change::Brightness(0.5)), [50, 100]);
        assert_eq!(apply(Change::Contrast(0.0)), [150, 150]);
    }
}
