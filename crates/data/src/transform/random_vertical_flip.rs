//! `name = "random_vertical_flip"`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::transform::{ByChance, Pixels};

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

impl ByChance for RandomVerticalFlip {
    fn p(&self) -> f64 {
        self.p
    }

    fn changed(&self, mut image: Pixels) -> Pixels {
        flip(&mut image);
        image
    }

    fn takes_16_bits(&self) -> bool {
        true
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
    use crate::transform::golden::equals;

    #[test]
    fn flipping_equals_pillow() {
        equals("vertical_flip", |mut image| {
            flip(&mut image);
            image
        });
    }
}
