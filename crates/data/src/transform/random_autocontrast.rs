//! `name = "random_autocontrast"`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::transform::image_ops::autocontrast;
use crate::transform::{ByChance, Pixels};

/// stretch each channel to black and white, or leave the image as it is, as torchvision's
/// `RandomAutocontrast`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RandomAutocontrast {
    /// probability.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub p: f64,
}

impl Default for RandomAutocontrast {
    fn default() -> Self {
        Self { p: 0.5 }
    }
}

impl Kind for RandomAutocontrast {
    const NAME: &'static str = "random_autocontrast";
}

impl ByChance for RandomAutocontrast {
    fn p(&self) -> f64 {
        self.p
    }

    fn changed(&self, mut image: Pixels) -> Pixels {
        autocontrast(&mut image);
        image
    }
}
