//! `name = "random_equalize"`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::transform::image_ops::equalize;
use crate::transform::{ByChance, Pixels};

/// make the values of each channel equally frequent, or leave the image as it is, as torchvision's
/// `RandomEqualize`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RandomEqualize {
    /// probability.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub p: f64,
}

impl Default for RandomEqualize {
    fn default() -> Self {
        Self { p: 0.5 }
    }
}

impl Kind for RandomEqualize {
    const NAME: &'static str = "random_equalize";
}

impl ByChance for RandomEqualize {
    fn p(&self) -> f64 {
        self.p
    }

    fn changed(&self, mut image: Pixels) -> Pixels {
        equalize(&mut image);
        image
    }
}
