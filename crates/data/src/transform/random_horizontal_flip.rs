//! `name = "random_horizontal_flip"`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::transform::{ByChance, Pixels};

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

impl ByChance for RandomHorizontalFlip {
    fn p(&self) -> f64 {
        self.p
    }

    fn changed(&self, image: Pixels) -> Pixels {
        flip(image)
    }

    fn takes_16_bits(&self) -> bool {
        true
    }
}

/// Mirrors left to right.
pub(super) fn flip(mut image: Pixels) -> Pixels {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flipping_mirrors_pixels_and_not_channels() {
        let image = Pixels::new(3, [1, 3], vec![1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(flip(image).data, [7, 8, 9, 4, 5, 6, 1, 2, 3]);
    }
}
