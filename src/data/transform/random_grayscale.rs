//! `name = "random_grayscale"`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::data::transform::enhance::grey;
use crate::data::transform::{Area, Pixels, Transform, happens};
use crate::rng::Stream;

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

impl Transform for RandomGrayscale {
    fn is_random(&self) -> bool {
        true
    }

    fn takes_uint16(&self) -> bool {
        true
    }

    fn apply(
        &self,
        mut image: Pixels,
        _: Area,
        stream: Option<&mut Stream>,
    ) -> Result<Pixels, String> {
        if happens(self.p, stream) {
            let channels = image.channels;
            image = grey(&image, channels);
        }
        Ok(image)
    }
}
