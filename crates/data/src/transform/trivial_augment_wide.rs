//! `name = "trivial_augment_wide"`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::rng::Stream;
use crate::transform::augmentation_space::{Operation, Space, TRIVIAL_AUGMENT};
use crate::transform::{Area, Pixels, Transform};

/// one operation of 14 at a random magnitude, as torchvision's `TrivialAugmentWide` (Müller and
/// Hutter 2021).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TrivialAugmentWide {
    /// number of magnitudes.
    #[schemars(range(min = 2, max = 1000))]
    pub num_magnitude_bins: u32,
}

impl Default for TrivialAugmentWide {
    fn default() -> Self {
        Self { num_magnitude_bins: 31 }
    }
}

impl Kind for TrivialAugmentWide {
    const NAME: &'static str = "trivial_augment_wide";
}

impl Transform for TrivialAugmentWide {
    fn is_random(&self) -> bool {
        true
    }

    fn apply(&self, image: Pixels, _: Area, stream: Option<&mut Stream>) -> Result<Pixels, String> {
        let Some(stream) = stream else { return Ok(image) };
        let space = Space { bins: self.num_magnitude_bins, ..TRIVIAL_AUGMENT };
        let operation = Operation::draw(stream);
        let bin = stream.below(u64::from(space.bins)) as u32;
        Ok(operation.apply(image, &space, bin, stream))
    }
}
