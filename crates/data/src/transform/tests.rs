//! Helpers of the tests of transforms.

use crate::transform::Pixels;

/// The picture of all golden numbers: `(7 x + 13 y + 50 c + x y) % 256`, as the Pillow side
/// computes it.
pub(crate) fn picture(channels: usize, height: usize, width: usize) -> Pixels {
    let mut data = Vec::with_capacity(channels * height * width);
    for y in 0..height {
        for x in 0..width {
            data.extend((0..channels).map(|c| (7 * x + 13 * y + 50 * c + x * y) as u8));
        }
    }
    Pixels::new(channels, [height, width], data)
}

/// Sum of (position + 1) * value, modulo 2^32.
pub(crate) fn checksum(values: &[u8]) -> u32 {
    let weighted = values.iter().zip(1u32..).map(|(&v, i)| i.wrapping_mul(u32::from(v)));
    weighted.fold(0, u32::wrapping_add)
}
