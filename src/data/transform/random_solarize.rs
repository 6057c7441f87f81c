//! `name = "random_solarize"`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::data::transform::image_ops::solarize;
use crate::data::transform::{Area, Pixels, Transform, happens};
use crate::rng::Stream;

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

impl Transform for RandomSolarize {
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
            solarize(&mut image, self.threshold);
        }
        Ok(image)
    }
}
