//! The transforms `random_horizontal_flip`, `alternating_horizontal_flip` and
//! `random_vertical_flip`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::rng::Stream;
use crate::transform::{Area, Pixels, RandomlyApplied, Transform};

/// mirror left to right with probability `p`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RandomHorizontalFlip {
    /// probability.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub p: f64,
}

impl Default for RandomHorizontalFlip {
    fn default() -> Self {
        Self { p: 0.5 }
    }
}

impl Kind for RandomHorizontalFlip {
    const NAME: &'static str = "random_horizontal_flip";
}

impl RandomlyApplied for RandomHorizontalFlip {
    fn p(&self) -> f64 {
        self.p
    }

    fn changed(&self, image: Pixels) -> Pixels {
        flip_horizontally(image)
    }

    fn takes_16_bits(&self) -> bool {
        true
    }
}

/// Mirrors left to right.
fn flip_horizontally(mut image: Pixels) -> Pixels {
    let stride = image.stride();
    for row in image.data.chunks_exact_mut(image.width * stride) {
        match stride {
            2 => row.as_chunks_mut::<2>().0.reverse(),
            3 => row.as_chunks_mut::<3>().0.reverse(),
            6 => row.as_chunks_mut::<6>().0.reverse(),
            _ => row.reverse(),
        }
    }
    image
}

/// mirror left to right in every other epoch (Jordan 2024): a random half of the images in the
/// first epoch, the other half in the second, and so on, so that two epochs show each image both
/// ways.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AlternatingHorizontalFlip {}

impl Kind for AlternatingHorizontalFlip {
    const NAME: &'static str = "alternating_horizontal_flip";
}

impl Transform for AlternatingHorizontalFlip {
    fn is_random(&self) -> bool {
        true
    }

    fn takes_uint16(&self) -> bool {
        true
    }

    fn apply(&self, image: Pixels, _: Area, stream: Option<&mut Stream>) -> Result<Pixels, String> {
        Ok(if stream.is_some_and(|stream| stream.turn()) {
            flip_horizontally(image)
        } else {
            image
        })
    }
}

/// mirror top to bottom with probability `p`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RandomVerticalFlip {
    /// probability.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub p: f64,
}

impl Default for RandomVerticalFlip {
    fn default() -> Self {
        Self { p: 0.5 }
    }
}

impl Kind for RandomVerticalFlip {
    const NAME: &'static str = "random_vertical_flip";
}

impl RandomlyApplied for RandomVerticalFlip {
    fn p(&self) -> f64 {
        self.p
    }

    fn changed(&self, mut image: Pixels) -> Pixels {
        flip_vertically(&mut image);
        image
    }

    fn takes_16_bits(&self) -> bool {
        true
    }
}

/// Mirrors top to bottom.
fn flip_vertically(image: &mut Pixels) {
    let row = image.width * image.stride();
    for line in 0..image.height / 2 {
        let (upper, lower) = image.data.split_at_mut((image.height - 1 - line) * row);
        upper[line * row..(line + 1) * row].swap_with_slice(&mut lower[..row]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::{Key, Purpose};
    use crate::transform::golden::equals;

    #[test]
    fn flipping_mirrors_pixels_and_not_channels() {
        let image = Pixels::new(3, [1, 3], vec![1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(flip_horizontally(image).data, [7, 8, 9, 4, 5, 6, 1, 2, 3]);
    }

    #[test]
    fn an_image_is_mirrored_in_its_turn_only() {
        let image = || Pixels::new(1, [1, 2], vec![1, 2]);
        let key = Key::new(5, Purpose::Augment, 0, 0);
        let look = |mut stream: Option<Stream>| {
            let whole = Area::whole((1, 2));
            AlternatingHorizontalFlip {}.apply(image(), whole, stream.as_mut()).unwrap().data
        };
        assert_eq!(look(None), [1, 2]);
        assert_eq!(look(Some(key.in_turn(false).stream())), [1, 2]);
        assert_eq!(look(Some(key.in_turn(true).with(3).stream())), [2, 1]);
    }

    #[test]
    fn flipping_vertically_equals_pillow() {
        equals("vertical_flip", |mut image| {
            flip_vertically(&mut image);
            image
        });
    }
}
