//! `name = "random_posterize"`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::transform::image_ops::posterize;
use crate::transform::{ByChance, Pixels};

/// keep the highest bits of each value, or leave the image as it is, as torchvision's
/// `RandomPosterize`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RandomPosterize {
    /// bits to keep.
    #[schemars(range(min = 1, max = 8))]
    pub bits: u32,
    /// probability.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub p: f64,
}

impl Default for RandomPosterize {
    fn default() -> Self {
        Self { bits: 4, p: 0.5 }
    }
}

impl Kind for RandomPosterize {
    const NAME: &'static str = "random_posterize";
}

impl ByChance for RandomPosterize {
    fn p(&self) -> f64 {
        self.p
    }

    fn changed(&self, mut image: Pixels) -> Pixels {
        posterize(&mut image, self.bits);
        image
    }
}
