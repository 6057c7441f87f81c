//! `name = "random_autocontrast"`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::data::transform::image_ops::autocontrast;
use crate::data::transform::{Area, Pixels, Transform, happens};
use crate::rng::Stream;

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

impl Transform for RandomAutocontrast {
    fn is_random(&self) -> bool {
        true
    }

    fn apply(
        &self,
        mut image: Pixels,
        _: Area,
        stream: Option<&mut Stream>,
    ) -> Result<Pixels, String> {
        if happens(self.p, stream) {
            autocontrast(&mut image);
        }
        Ok(image)
    }
}
