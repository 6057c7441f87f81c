//! Affine maps of an image by PIL's arithmetic: nearest neighbour, black outside.

use crate::transform::Pixels;

/// Map from output to input positions: x = a x' + b y' + c, y = d x' + e y' + f.
pub(super) type Inverse = [f64; 6];

/// Motion of an image about its center.
#[derive(Clone, Copy, Debug)]
pub(super) struct Motion {
    /// Degrees, clockwise, as torchvision's `affine`.
    pub(super) angle: f64,
    /// To the right and down, in pixels.
    pub(super) translate: [f64; 2],
    /// Factor of both sides.
    pub(super) scale: f64,
    /// Degrees along x and y.
    pub(super) shear: [f64; 2],
}

impl Motion {
    /// No motion.
    pub(super) const IDENTITY: Self =
        Self { angle: 0.0, translate: [0.0; 2], scale: 1.0, shear: [0.0; 2] };

    /// The map of the motion about `center`, (x, y): torchvision's `_get_inverse_affine_matrix`.
    pub(super) fn inverse(self, [cx, cy]: [f64; 2]) -> Inverse {
        let rotation = self.angle.to_radians();
        let [sx, sy] = self.shear.map(f64::to_radians);
        let a = (rotation - sy).cos() / sy.cos();
        let b = -(rotation - sy).cos() * sx.tan() / sy.cos() - rotation.sin();
        let c = (rotation - sy).sin() / sy.cos();
        let d = -(rotation - sy).sin() * sx.tan() / sy.cos() + rotation.cos();
        let [a, b, c, d] = [d, -b, -c, a].map(|v| v / self.scale);
        let [x, y] = [-cx - self.translate[0], -cy - self.translate[1]];
        [a, b, a * x + b * y + cx, c, d, c * x + d * y + cy]
    }
}

/// Rotation about the middle, counter-clockwise, as PIL's `rotate`.
pub(super) fn rotation(degrees: f64, width: usize, height: usize) -> Inverse {
    let angle = -degrees.rem_euclid(360.0).to_radians();
    // PIL rounds to 15 decimals, so that right angles are exact.
    let rounded = |v: f64| (v * 1e15).round_ties_even() / 1e15;
    let sin = rounded(angle.sin());
    let cos = rounded(angle.cos());
    let cx = width as f64 / 2.0;
    let cy = height as f64 / 2.0;
    [cos, sin, -cx * cos - cy * sin + cx, -sin, cos, cx * sin - cy * cos + cy]
}

/// The image, each pixel taken from where `inverse` says.
pub(super) fn affine(image: &Pixels, inverse: Inverse) -> Pixels {
    match image.stride() {
        1 => moved::<1>(image, inverse),
        2 => moved::<2>(image, inverse),
        3 => moved::<3>(image, inverse),
        _ => moved::<6>(image, inverse),
    }
}

/// [`affine`] of pixels of so many bytes.
fn moved<const BYTES: usize>(image: &Pixels, inverse: Inverse) -> Pixels {
    let (height, width) = image.size();
    let mut out = image.black(height, width);
    let from = Source::<BYTES> { pixels: image.data.as_chunks().0, height, width };
    let rows = out.data.as_chunks_mut().0.chunks_exact_mut(width);
    if inverse[1] == 0.0 && inverse[3] == 0.0 {
        scaled(&from, rows, inverse);
    } else {
        mapped(&from, rows, inverse);
    }
    out
}

/// Pixels row by row.
struct Source<'a, const BYTES: usize> {
    pixels: &'a [[u8; BYTES]],
    height: usize,
    width: usize,
}

/// Rows and columns stay what they are.
fn scaled<'a, const BYTES: usize>(
    from: &Source<'_, BYTES>,
    rows: impl Iterator<Item = &'a mut [[u8; BYTES]]>,
    [a, _, c, _, e, f]: Inverse,
) {
    let columns = places(a, c, from.width);
    let lines = places(e, f, from.height);
    for (row, line) in rows.zip(lines) {
        let Some(line) = line else { continue };
        let line = &from.pixels[line * from.width..][..from.width];
        for (pixel, column) in row.iter_mut().zip(&columns) {
            if let Some(column) = *column {
                *pixel = line[column];
            }
        }
    }
}

/// Source position of each of `n` lines; PIL adds step to step.
fn places(step: f64, origin: f64, n: usize) -> Vec<Option<usize>> {
    let mut place = origin + step * 0.5;
    let next = |_| {
        let found = (place >= 0.0 && (place as usize) < n).then_some(place as usize);
        place += step;
        found
    };
    (0..n).map(next).collect()
}

/// Affine map in 16.16 fixed point, pixel centres at one half.
fn mapped<'a, const BYTES: usize>(
    from: &Source<'_, BYTES>,
    rows: impl Iterator<Item = &'a mut [[u8; BYTES]]>,
    [a, b, c, d, e, f]: Inverse,
) {
    let fixed = |v: f64| (v * 65536.0 + 0.5).floor() as i64;
    let step_x = [fixed(a), fixed(d)];
    let step_y = [fixed(b), fixed(e)];
    let mut start = [fixed(c + (a + b) * 0.5), fixed(f + (d + e) * 0.5)];
    for row in rows {
        let [mut x, mut y] = start;
        for pixel in row {
            let column = (x >> 16) as usize;
            let line = (y >> 16) as usize;
            // A negative place became a huge one.
            if column < from.width && line < from.height {
                *pixel = from.pixels[line * from.width + column];
            }
            x += step_x[0];
            y += step_x[1];
        }
        start = [start[0] + step_y[0], start[1] + step_y[1]];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pixels_of_any_size_move_alike() {
        let turned = Motion { angle: 20.0, shear: [5.0, 3.0], ..Motion::IDENTITY };
        let shifted = Motion { translate: [2.0, -1.0], ..Motion::IDENTITY };
        for channels in [1, 3] {
            let values: Vec<u8> = (0..7 * 9 * channels as u8).collect();
            let wide: Vec<u16> = values.iter().map(|value| u16::from(*value)).collect();
            let image = Pixels::new(channels, [7, 9], values);
            let of_uint16 = Pixels::of_uint16(channels, [7, 9], &wide);
            for motion in [turned, shifted] {
                let inverse = motion.inverse([4.5, 3.5]);
                let moved = affine(&image, inverse);
                assert_ne!(moved, image);
                let moved: Vec<u16> = moved.data.into_iter().map(u16::from).collect();
                assert_eq!(affine(&of_uint16, inverse).uint16(), moved);
            }
        }
    }
}
