//! `name = "random_solarize"`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::transform::image_ops::solarize;
use crate::transform::{ByChance, Pixels};

/// invert the bright values, or leave the image as it is, as torchvision's `RandomSolarize`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RandomSolarize {
    /// lowest value that is inverted, from 0 to 255.
    #[schemars(range(min = 0.0, max = 256.0))]
    pub threshold: f64,
    /// probability.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub p: f64,
}

impl Default for RandomSolarize {
    fn default() -> Self {
        Self { threshold: 128.0, p: 0.5 }
    }
}

impl Kind for RandomSolarize {
    const NAME: &'static str = "random_solarize";
}

impl ByChance for RandomSolarize {
    fn p(&self) -> f64 {
        self.p
    }

    fn changed(&self, mut image: Pixels) -> Pixels {
        solarize(&mut image, self.threshold);
        image
    }
}
