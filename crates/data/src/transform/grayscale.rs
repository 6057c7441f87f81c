//! `name = "grayscale"`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Kind, Wrong};
use crate::rng::Stream;
use crate::transform::enhance::grey;
use crate::transform::{Area, Pixels, Transform};

/// grey images, as torchvision's `Grayscale`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Grayscale {
    /// 1, or 3 that are equal.
    #[schemars(range(min = 1, max = 3))]
    pub num_output_channels: usize,
}

impl Default for Grayscale {
    fn default() -> Self {
        Self { num_output_channels: 1 }
    }
}

impl Kind for Grayscale {
    const NAME: &'static str = "grayscale";

    fn check(&self) -> Vec<Wrong> {
        let what = || "must be 1 or 3".to_owned();
        let wrong = || Wrong { key: "num_output_channels", with: &[], what: what() };
        (self.num_output_channels == 2).then(wrong).into_iter().collect()
    }
}

impl Transform for Grayscale {
    fn channels(&self, _: usize) -> usize {
        self.num_output_channels
    }

    fn takes_uint16(&self) -> bool {
        true
    }

    fn apply(&self, image: Pixels, _: Area, _: Option<&mut Stream>) -> Result<Pixels, String> {
        Ok(grey(&image, self.num_output_channels))
    }
}
