//! `name = "random_rotation"`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::data::transform::{Area, Pixels, Transform};
use crate::rng::Stream;

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
    fn apply(&self, image: Pixels, _: Area, stream: Option<&mut Stream>) -> Result<Pixels, String> {
        Ok(match stream {
            Some(stream) => rotate(image, stream.range(-self.degrees, self.degrees)),
            None => image,
        })
    }
}

/// Rotates counter-clockwise about the middle; nearest neighbour, black outside.
///
/// PIL's arithmetic: the inverse map in 16.16 fixed point, pixel centres at one half.
fn rotate(image: Pixels, degrees: f64) -> Pixels {
    if degrees.rem_euclid(360.0) == 0.0 {
        return image;
    }
    let [a, b, c, d, e, f] = inverse_map(degrees, image.width, image.height);
    let fixed = |v: f64| (v * 65536.0 + 0.5).floor() as i64;
    let (step_x, step_y) = ([fixed(a), fixed(d)], [fixed(b), fixed(e)]);
    let mut start = [fixed(c + (a + b) * 0.5), fixed(f + (d + e) * 0.5)];
    let mut out = Pixels::black(image.channels, image.height, image.width);
    for row in out.data.chunks_exact_mut(image.width * image.channels) {
        let [mut x, mut y] = start;
        for pixel in row.chunks_exact_mut(image.channels) {
            let (column, line) = ((x >> 16) as usize, (y >> 16) as usize);
            // A negative place became a huge one.
            if column < image.width && line < image.height {
                pixel.copy_from_slice(image.row(line, column, 1));
            }
            x += step_x[0];
            y += step_x[1];
        }
        start = [start[0] + step_y[0], start[1] + step_y[1]];
    }
    out
}

/// Where an output place comes from: x = a x' + b y' + c, y = d x' + e y' + f.
fn inverse_map(degrees: f64, width: usize, height: usize) -> [f64; 6] {
    let angle = -degrees.rem_euclid(360.0).to_radians();
    // PIL rounds to 15 decimals, so that right angles are exact.
    let rounded = |v: f64| (v * 1e15).round_ties_even() / 1e15;
    let (sin, cos) = (rounded(angle.sin()), rounded(angle.cos()));
    let (cx, cy) = (width as f64 / 2.0, height as f64 / 2.0);
    [cos, sin, -cx * cos - cy * sin + cx, -sin, cos, cx * sin - cy * cos + cy]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::transform::tests::{checksum, picture};

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
