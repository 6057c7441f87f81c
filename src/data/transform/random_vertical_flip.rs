//! `name = "random_vertical_flip"`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::data::transform::{Area, Pixels, Transform, happens};
use crate::rng::Stream;

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

impl Transform for RandomVerticalFlip {
    fn is_random(&self) -> bool {
        true
    }

    fn takes_uint16(&self) -> bool {
        true
    }

    fn apply(
        &self,
        mut image: Pixels,
        _: Area,
        stream: Option<&mut Stream>,
    ) -> Result<Pixels, String> {
        if happens(self.p, stream) {
            flip(&mut image);
        }
        Ok(image)
    }
}

/// Mirrors top to bottom.
fn flip(image: &mut Pixels) {
    let row = image.width * image.stride();
    for line in 0..image.height / 2 {
        let (upper, lower) = image.data.split_at_mut((image.height - 1 - line) * row);
        upper[line * row..(line + 1) * row].swap_with_slice(&mut lower[..row]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::transform::golden::equals;

    #[test]
    fn flipping_equals_pillow() {
        equals("vertical_flip", |mut image| {
            flip(&mut image);
            image
        });
    }
}
