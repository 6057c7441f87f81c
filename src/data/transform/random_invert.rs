//! `name = "random_invert"`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::data::transform::image_ops::invert;
use crate::data::transform::{Area, Pixels, Transform, happens};
use crate::rng::Stream;

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

impl Transform for RandomInvert {
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
            invert(&mut image);
        }
        Ok(image)
    }
}
