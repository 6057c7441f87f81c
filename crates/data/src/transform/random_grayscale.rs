//! `name = "random_grayscale"`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::transform::enhance::grey;
use crate::transform::{ByChance, Pixels};

/// grey of the same number of channels, or the image as it is, as torchvision's `RandomGrayscale`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RandomGrayscale {
    /// probability.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub p: f64,
}

impl Default for RandomGrayscale {
    fn default() -> Self {
        Self { p: 0.1 }
    }
}

impl Kind for RandomGrayscale {
    const NAME: &'static str = "random_grayscale";
}

impl ByChance for RandomGrayscale {
    fn p(&self) -> f64 {
        self.p
    }

    fn changed(&self, image: Pixels) -> Pixels {
        grey(&image, image.channels)
    }

    fn takes_16_bits(&self) -> bool {
        true
    }
}
