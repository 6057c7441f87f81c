//! `name = "random_invert"`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::transform::image_ops::invert;
use crate::transform::{ByChance, Pixels};

/// the negative, or the image as it is, as torchvision's `RandomInvert`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RandomInvert {
    /// probability.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub p: f64,
}

impl Default for RandomInvert {
    fn default() -> Self {
        Self { p: 0.5 }
    }
}

impl Kind for RandomInvert {
    const NAME: &'static str = "random_invert";
}

impl ByChance for RandomInvert {
    fn p(&self) -> f64 {
        self.p
    }

    fn changed(&self, mut image: Pixels) -> Pixels {
        invert(&mut image);
        image
    }
}
