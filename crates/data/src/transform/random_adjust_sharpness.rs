//! `name = "random_adjust_sharpness"`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::transform::enhance::sharpen;
use crate::transform::{ByChance, Pixels};

/// sharpen or smooth, or leave the image as it is, as torchvision's `RandomAdjustSharpness`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RandomAdjustSharpness {
    /// 0 smooths, 1 changes nothing, 2 sharpens.
    #[schemars(range(min = 0.0))]
    pub sharpness_factor: f64,
    /// probability.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub p: f64,
}

impl Default for RandomAdjustSharpness {
    fn default() -> Self {
        Self { sharpness_factor: 2.0, p: 0.5 }
    }
}

impl Kind for RandomAdjustSharpness {
    const NAME: &'static str = "random_adjust_sharpness";
}

impl ByChance for RandomAdjustSharpness {
    fn p(&self) -> f64 {
        self.p
    }

    fn changed(&self, mut image: Pixels) -> Pixels {
        sharpen(&mut image, self.sharpness_factor as f32);
        image
    }
}
