//! Pixels of torchvision's transforms (`tests/golden/transforms.py`), and the images that they are
//! made of.

use std::fmt::Display;
use std::sync::LazyLock;

use serde_json::Value;

use crate::rng::{Key, Purpose, Stream};
use crate::transform::Pixels;

static GOLDEN: LazyLock<Value> = LazyLock::new(|| {
    serde_json::from_str(include_str!("../../../../tests/golden/transforms.json")).unwrap()
});

/// Golden values under `name`.
pub(super) fn recorded(name: &str) -> &'static Value {
    GOLDEN.get(name).unwrap_or_else(|| panic!("no golden numbers of `{name}`"))
}

/// The images of the generator.
fn images() -> [(&'static str, Pixels); 5] {
    [
        ("colour", picture(3, 12, 17)),
        ("grey", picture(1, 12, 17)),
        ("dull", dull(picture(3, 37, 53))),
        ("dull_grey", dull(picture(1, 37, 53))),
        ("colours", colours()),
    ]
}

fn dull(mut image: Pixels) -> Pixels {
    image.data.iter_mut().for_each(|value| *value = 40 + *value / 3);
    image
}

/// 4,096 colours spread over the cube by multiplication with 2654435761.
pub(super) fn colours() -> Pixels {
    let colour = |i: u32| {
        let h = i.wrapping_mul(2_654_435_761);
        [(h >> 24) as u8, (h >> 16) as u8, (h >> 8) as u8]
    };
    Pixels::new(3, [64, 64], (0..4096).flat_map(colour).collect())
}

/// `change` does to each image what is recorded under `name`.
#[track_caller]
pub(super) fn equals(name: &str, change: impl Fn(Pixels) -> Pixels) {
    agrees(recorded(name), name, change);
}

/// Checks `change` against the values under `name` and a parameter.
#[track_caller]
pub(super) fn equals_at(name: &str, at: impl Display, change: impl Fn(Pixels) -> Pixels) {
    equals(&format!("{name} {at}"), change);
}

/// `change` gives the sums of `expected`, which `what` recorded.
#[track_caller]
pub(super) fn agrees(expected: &Value, what: &str, change: impl Fn(Pixels) -> Pixels) {
    for (name, image) in images() {
        let found = checksum(&change(image).data);
        assert_eq!(Some(u64::from(found)), expected[name].as_u64(), "{what} of `{name}`");
    }
}

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

/// Random numbers of a sample.
pub(super) fn stream(sample: u64) -> Stream {
    Key::new(5, Purpose::Augment, 0, sample).stream()
}
