//! `name = "alternating_horizontal_flip"`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::rng::Stream;
use crate::transform::random_horizontal_flip::flip;
use crate::transform::{Area, Pixels, Transform};

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
        Ok(if stream.is_some_and(|stream| stream.turn()) { flip(image) } else { image })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::{Key, Purpose};

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
}
