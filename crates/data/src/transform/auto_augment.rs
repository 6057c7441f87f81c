//! The transforms `rand_augment` and `trivial_augment_wide`: the operations of automatic
//! augmentation, and how strong each may be, by torchvision's augmentation spaces.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Kind, OptionConflict};
use crate::rng::Stream;
use crate::transform::affine::{Motion, affine, rotation};
use crate::transform::enhance::{brighten, contrast, saturate, sharpen};
use crate::transform::image_ops::{autocontrast, equalize, posterize, solarize};
use crate::transform::{Area, Pixels, Transform};

/// some operations of 14, all of one magnitude, as torchvision's `RandAugment` (Cubuk et al. 2020).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RandAugment {
    /// operations, one after another.
    #[schemars(range(min = 0, max = 100))]
    pub num_ops: u32,
    /// strength of all of them, from 0 to `num_magnitude_bins` - 1.
    #[schemars(range(min = 0))]
    pub magnitude: u32,
    /// number of strengths.
    #[schemars(range(min = 2, max = 1000))]
    pub num_magnitude_bins: u32,
}

impl Default for RandAugment {
    fn default() -> Self {
        Self { num_ops: 2, magnitude: 9, num_magnitude_bins: 31 }
    }
}

impl Kind for RandAugment {
    const NAME: &'static str = "rand_augment";

    fn check(&self) -> Vec<OptionConflict> {
        let what = || "must be less than `num_magnitude_bins`".to_owned();
        let wrong =
            || OptionConflict { key: "magnitude", with: &["num_magnitude_bins"], what: what() };
        (self.magnitude >= self.num_magnitude_bins).then(wrong).into_iter().collect()
    }
}

impl Transform for RandAugment {
    fn is_random(&self) -> bool {
        true
    }

    fn apply(
        &self,
        mut image: Pixels,
        _: Area,
        stream: Option<&mut Stream>,
    ) -> Result<Pixels, String> {
        let Some(stream) = stream else { return Ok(image) };
        let space = Space { bins: self.num_magnitude_bins, ..RAND_AUGMENT };
        for _ in 0..self.num_ops {
            image = Operation::draw(stream).apply(image, &space, self.magnitude, stream);
        }
        Ok(image)
    }
}

/// one operation of 14 at a random magnitude, as torchvision's `TrivialAugmentWide` (Müller and
/// Hutter 2021).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TrivialAugmentWide {
    /// number of magnitudes.
    #[schemars(range(min = 2, max = 1000))]
    pub num_magnitude_bins: u32,
}

impl Default for TrivialAugmentWide {
    fn default() -> Self {
        Self { num_magnitude_bins: 31 }
    }
}

impl Kind for TrivialAugmentWide {
    const NAME: &'static str = "trivial_augment_wide";
}

impl Transform for TrivialAugmentWide {
    fn is_random(&self) -> bool {
        true
    }

    fn apply(&self, image: Pixels, _: Area, stream: Option<&mut Stream>) -> Result<Pixels, String> {
        let Some(stream) = stream else { return Ok(image) };
        let space = Space { bins: self.num_magnitude_bins, ..TRIVIAL_AUGMENT };
        let operation = Operation::draw(stream);
        let bin = stream.below(u64::from(space.bins)) as u32;
        Ok(operation.apply(image, &space, bin, stream))
    }
}

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Identity,
    ShearX,
    ShearY,
    TranslateX,
    TranslateY,
    Rotate,
    Brightness,
    Color,
    Contrast,
    Sharpness,
    Posterize,
    Solarize,
    AutoContrast,
    Equalize,
}

use Operation::{
    AutoContrast, Brightness, Color, Contrast, Equalize, Identity, Posterize, Rotate, Sharpness,
    ShearX, ShearY, Solarize, TranslateX, TranslateY,
};

/// Operations of `rand_augment` and `trivial_augment_wide`.
const CHOSEN: [Operation; 14] = [
    Identity,
    ShearX,
    ShearY,
    TranslateX,
    TranslateY,
    Rotate,
    Brightness,
    Color,
    Contrast,
    Sharpness,
    Posterize,
    Solarize,
    AutoContrast,
    Equalize,
];

/// The largest magnitudes of a space, and the number of magnitudes from 0 to them.
#[derive(Clone, Copy, Debug)]
struct Space {
    shear: f64,
    /// Largest shift for a side of so many pixels.
    translate: fn(usize) -> f64,
    rotate: f64,
    /// Largest change of brightness, colour, contrast and sharpness.
    enhance: f64,
    /// Bits that are lost.
    posterize: f64,
    bins: u32,
}

/// Magnitudes of `rand_augment`.
const RAND_AUGMENT: Space = Space {
    shear: 0.3,
    translate: |side| 150.0 / 331.0 * side as f64,
    rotate: 30.0,
    enhance: 0.9,
    posterize: 4.0,
    bins: 31,
};

/// Magnitudes of `trivial_augment_wide`.
const TRIVIAL_AUGMENT: Space = Space {
    shear: 0.99,
    translate: |_| 32.0,
    rotate: 135.0,
    enhance: 0.99,
    posterize: 6.0,
    bins: 31,
};

impl Operation {
    /// Draws an operation, each as likely.
    fn draw(stream: &mut Stream) -> Self {
        CHOSEN[stream.below(CHOSEN.len() as u64) as usize]
    }

    /// The operation on `image` at magnitude `bin` of its `space`, either way where it has two.
    fn apply(self, image: Pixels, space: &Space, bin: u32, stream: &mut Stream) -> Pixels {
        let magnitude = self.magnitude(image.size(), space, bin);
        let is_signed = !matches!(self, Identity | Posterize | Solarize | AutoContrast | Equalize);
        let turned = is_signed && stream.uniform() <= 0.5;
        self.at(image, if turned { -magnitude } else { magnitude })
    }

    /// Magnitude `bin` for an image of (height, width).
    fn magnitude(self, (height, width): (usize, usize), space: &Space, bin: u32) -> f64 {
        let to = |largest| spaced(0.0, largest, space.bins, bin);
        match self {
            ShearX | ShearY => to(space.shear),
            TranslateX => to((space.translate)(width)),
            TranslateY => to((space.translate)(height)),
            Rotate => to(space.rotate),
            Brightness | Color | Contrast | Sharpness => to(space.enhance),
            Posterize => {
                let step = f64::from(space.bins - 1) / space.posterize;
                f64::from((8.0 - bin as f32 / step as f32).round_ties_even())
            }
            Solarize => spaced(1.0, 0.0, space.bins, bin),
            Identity | AutoContrast | Equalize => 0.0,
        }
    }

    /// The operation with a magnitude of its own unit.
    fn at(self, mut image: Pixels, magnitude: f64) -> Pixels {
        let center = [image.width as f64 * 0.5, image.height as f64 * 0.5];
        let factor = (1.0 + magnitude) as f32;
        let still = Motion::IDENTITY;
        let angle = magnitude.atan().to_degrees();
        let shift = magnitude.trunc();
        match self {
            Identity => {}
            ShearX => return sheared(&image, [angle, 0.0]),
            ShearY => return sheared(&image, [0.0, angle]),
            TranslateX => {
                let motion = Motion { translate: [shift, 0.0], ..still };
                return affine(&image, motion.inverse(center));
            }
            TranslateY => {
                let motion = Motion { translate: [0.0, shift], ..still };
                return affine(&image, motion.inverse(center));
            }
            Rotate => return affine(&image, rotation(magnitude, image.width, image.height)),
            Brightness => brighten(&mut image, factor),
            Color => saturate(&mut image, factor),
            Contrast => contrast(&mut image, factor),
            Sharpness => sharpen(&mut image, factor),
            Posterize => posterize(&mut image, magnitude as u32),
            Solarize => solarize(&mut image, 255.0 * magnitude),
            AutoContrast => autocontrast(&mut image),
            Equalize => equalize(&mut image),
        }
        image
    }
}

/// Sheared about the first corner.
fn sheared(image: &Pixels, shear: [f64; 2]) -> Pixels {
    affine(image, Motion { shear, ..Motion::IDENTITY }.inverse([0.0; 2]))
}

/// Number `bin` of `bins` from `start` to `end`, as `torch.linspace` in f32.
fn spaced(start: f64, end: f64, bins: u32, bin: u32) -> f64 {
    let start = start as f32;
    let end = end as f32;
    let last = bins.saturating_sub(1);
    let step = (end - start) / last.max(1) as f32;
    let near_start = bin < bins / 2;
    let value =
        if near_start { start + step * bin as f32 } else { end - step * (last - bin) as f32 };
    f64::from(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transform::golden::picture;
    use crate::transform::golden::{agrees, recorded, stream};

    #[test]
    fn draws_follow_the_stream_alone() {
        let image = |sample| {
            let mut stream = stream(sample);
            let kind = RandAugment::default();
            kind.apply(picture(3, 12, 17), Area::whole((12, 17)), Some(&mut stream)).unwrap()
        };
        assert_eq!(image(1), image(1));
        let different = (0..100).filter(|&sample| image(sample) != picture(3, 12, 17)).count();
        // Both of two operations change nothing once in some hundred times.
        assert!(different > 80, "{different}");
    }

    const NAMED: [(&str, Operation); 14] = [
        ("Identity", Identity),
        ("ShearX", ShearX),
        ("ShearY", ShearY),
        ("TranslateX", TranslateX),
        ("TranslateY", TranslateY),
        ("Rotate", Rotate),
        ("Brightness", Brightness),
        ("Color", Color),
        ("Contrast", Contrast),
        ("Sharpness", Sharpness),
        ("Posterize", Posterize),
        ("Solarize", Solarize),
        ("AutoContrast", AutoContrast),
        ("Equalize", Equalize),
    ];

    #[test]
    fn each_operation_equals_torchvision_at_each_magnitude() {
        let spaces = [
            ("rand_augment 9", RAND_AUGMENT, 9),
            ("rand_augment 30", RAND_AUGMENT, 30),
            ("trivial_augment_wide 17", TRIVIAL_AUGMENT, 17),
            ("trivial_augment_wide 30", TRIVIAL_AUGMENT, 30),
        ];
        for (space, ranges, bin) in spaces {
            for (name, sums) in recorded(space).as_object().unwrap() {
                let (name, sign) = name.split_at(name.len() - 1);
                let (_, operation) = NAMED.iter().find(|(known, _)| *known == name).unwrap();
                agrees(sums, &format!("{space}: {name}{sign}"), |image| {
                    let magnitude = operation.magnitude(image.size(), &ranges, bin);
                    operation.at(image, if sign == "-" { -magnitude } else { magnitude })
                });
            }
        }
    }
}
