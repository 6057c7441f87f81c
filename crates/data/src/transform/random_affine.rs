//! `name = "random_affine"`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Kind, OptionConflict};
use crate::rng::Stream;
use crate::transform::affine::{Motion, affine};
use crate::transform::{Area, Pixels, Transform, is_range};

/// rotate, shift, scale and shear by random amounts, as torchvision's `RandomAffine`; nearest
/// neighbour, black fill.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RandomAffine {
    /// largest angle either way.
    #[schemars(range(min = 0.0, max = 180.0), example = 15.0)]
    pub degrees: f64,
    /// largest shift either way, as shares of width and height.
    #[schemars(example = [0.1, 0.1])]
    pub translate: [f64; 2],
    /// range of the factor of both sides.
    #[schemars(example = [0.9, 1.1])]
    pub scale: [f64; 2],
    /// largest angle along x, either way, in degrees.
    #[schemars(range(min = 0.0, max = 89.0), example = 10.0)]
    pub shear: f64,
}

impl Default for RandomAffine {
    fn default() -> Self {
        Self { degrees: 0.0, translate: [0.0; 2], scale: [1.0; 2], shear: 0.0 }
    }
}

impl Kind for RandomAffine {
    const NAME: &'static str = "random_affine";

    fn check(&self) -> Vec<OptionConflict> {
        let shares = self.translate.iter().all(|share| (0.0..=1.0).contains(share));
        let wrong = |key, what: &str| OptionConflict { key, with: &[], what: what.to_owned() };
        let translate = (!shares).then(|| wrong("translate", "must be two shares from 0 to 1"));
        let scale =
            (!is_range(self.scale)).then(|| wrong("scale", "must be [least, most], above 0"));
        translate.into_iter().chain(scale).collect()
    }
}

impl Transform for RandomAffine {
    fn is_random(&self) -> bool {
        true
    }

    fn takes_uint16(&self) -> bool {
        true
    }

    fn apply(&self, image: Pixels, _: Area, stream: Option<&mut Stream>) -> Result<Pixels, String> {
        let Some(stream) = stream else { return Ok(image) };
        let center = [image.width as f64 * 0.5, image.height as f64 * 0.5];
        Ok(affine(&image, self.draw(image.size(), stream).inverse(center)))
    }
}

impl RandomAffine {
    /// Draws each amount uniformly in its range, in torchvision's order; shifts in whole pixels.
    fn draw(&self, (height, width): (usize, usize), stream: &mut Stream) -> Motion {
        let angle = stream.range(-self.degrees, self.degrees);
        let [across, down] = [self.translate[0] * width as f64, self.translate[1] * height as f64];
        let translate = [across, down].map(|most| stream.range(-most, most).round_ties_even());
        let scale = stream.range(self.scale[0], self.scale[1]);
        Motion { angle, translate, scale, shear: [stream.range(-self.shear, self.shear), 0.0] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transform::golden::{equals, stream};

    #[test]
    fn motions_equal_torchvision() {
        let still = Motion::IDENTITY;
        let motions = [
            ("affine shear", Motion { shear: [12.5, 0.0], ..still }),
            ("affine translate", Motion { translate: [3.0, -2.0], ..still }),
            ("affine scale", Motion { scale: 0.83, ..still }),
            (
                "affine all",
                Motion { angle: -33.0, translate: [-1.0, 4.0], scale: 1.21, shear: [-7.0, 0.0] },
            ),
        ];
        for (name, motion) in motions {
            equals(name, |image| {
                let center = [image.width as f64 * 0.5, image.height as f64 * 0.5];
                affine(&image, motion.inverse(center))
            });
        }
    }

    #[test]
    fn draws_stay_in_their_ranges() {
        let kind =
            RandomAffine { degrees: 10.0, translate: [0.2, 0.5], scale: [0.5, 0.75], shear: 5.0 };
        for sample in 0..200 {
            let mut stream = stream(sample);
            let motion = kind.draw((10, 20), &mut stream);
            assert!(motion.angle.abs() <= 10.0 && motion.shear[0].abs() <= 5.0, "{motion:?}");
            let [x, y] = motion.translate;
            assert!(x.abs() <= 4.0 && y.abs() <= 5.0 && x.fract() == 0.0, "{motion:?}");
            assert!((0.5..0.75).contains(&motion.scale), "{motion:?}");
        }
    }
}
