//! `name = "random_rotation"`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::rng::Stream;
use crate::transform::affine::{affine, rotation};
use crate::transform::{Area, Pixels, Transform};

/// rotate by a random angle; nearest neighbour, black fill.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RandomRotation {
    /// largest angle either way.
    #[schemars(range(min = 0.0, max = 180.0), example = 15.0)]
    pub degrees: f64,
}

impl Kind for RandomRotation {
    const NAME: &'static str = "random_rotation";
}

impl Transform for RandomRotation {
    fn is_random(&self) -> bool {
        true
    }

    fn takes_uint16(&self) -> bool {
        true
    }

    fn apply(&self, image: Pixels, _: Area, stream: Option<&mut Stream>) -> Result<Pixels, String> {
        Ok(match stream {
            Some(stream) => rotate(image, stream.range(-self.degrees, self.degrees)),
            None => image,
        })
    }
}

/// Rotates counter-clockwise about the middle.
fn rotate(image: Pixels, degrees: f64) -> Pixels {
    if degrees.rem_euclid(360.0) == 0.0 {
        return image;
    }
    affine(&image, rotation(degrees, image.width, image.height))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transform::golden::{checksum, picture};

    #[test]
    fn rotation_equals_pillow() {
        // Pillow 13.0.0, `image.rotate(angle, Image.NEAREST)`.
        let turned = rotate(picture(1, 5, 6), 30.0);
        let rows: [[u8; 6]; 5] = [
            [0, 14, 21, 45, 53, 0],
            [7, 14, 37, 37, 62, 71],
            [13, 21, 44, 53, 79, 89],
            [26, 35, 59, 59, 85, 96],
            [0, 39, 49, 74, 85, 0],
        ];
        assert_eq!(turned.data, rows.concat());
        let sums = [
            (10.0, 22_875_655),
            (-7.5, 22_933_917),
            (45.0, 18_214_484),
            (90.0, 17_413_800),
            (-15.0, 21_276_223),
        ];
        for (angle, sum) in sums {
            assert_eq!(checksum(&rotate(picture(3, 12, 17), angle).data), sum, "{angle} degrees");
        }
        assert_eq!(rotate(picture(3, 12, 17), 0.0), picture(3, 12, 17));
    }
}
