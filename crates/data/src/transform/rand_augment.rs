//! `name = "rand_augment"`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Kind, Wrong};
use crate::rng::Stream;
use crate::transform::augmentation_space::{Operation, RAND_AUGMENT, Space};
use crate::transform::{Area, Pixels, Transform};

/// some operations of 14, all of one magnitude, as torchvision's `RandAugment` (Cubuk et al. 2020).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RandAugment {
    /// operations, one after another.
    #[schemars(range(min = 0, max = 100))]
    pub num_ops: u32,
    /// strength of all of them, from 0 to `num_magnitude_bins` - 1.
    #[schemars(range(min = 0))]
    pub magnitude: u32,
    /// number of strengths.
    #[schemars(range(min = 2, max = 1000))]
    pub num_magnitude_bins: u32,
}

impl Default for RandAugment {
    fn default() -> Self {
        Self { num_ops: 2, magnitude: 9, num_magnitude_bins: 31 }
    }
}

impl Kind for RandAugment {
    const NAME: &'static str = "rand_augment";

    fn check(&self) -> Vec<Wrong> {
        let what = || "must be less than `num_magnitude_bins`".to_owned();
        let wrong = || Wrong { key: "magnitude", with: &["num_magnitude_bins"], what: what() };
        (self.magnitude >= self.num_magnitude_bins).then(wrong).into_iter().collect()
    }
}

impl Transform for RandAugment {
    fn is_random(&self) -> bool {
        true
    }

    fn apply(
        &self,
        mut image: Pixels,
        _: Area,
        stream: Option<&mut Stream>,
    ) -> Result<Pixels, String> {
        let Some(stream) = stream else { return Ok(image) };
        let space = Space { bins: self.num_magnitude_bins, ..RAND_AUGMENT };
        for _ in 0..self.num_ops {
            image = Operation::draw(stream).apply(image, &space, self.magnitude, stream);
        }
        Ok(image)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::{Key, Purpose};
    use crate::transform::tests::picture;

    #[test]
    fn draws_follow_the_stream_alone() {
        let image = |sample| {
            let mut stream = Key::new(5, Purpose::Augment, 0, sample).stream();
            let kind = RandAugment::default();
            kind.apply(picture(3, 12, 17), Area::whole((12, 17)), Some(&mut stream)).unwrap()
        };
        assert_eq!(image(1), image(1));
        let different = (0..100).filter(|&sample| image(sample) != picture(3, 12, 17)).count();
        // Both of two operations change nothing once in some hundred times.
        assert!(different > 80, "{different}");
    }
}
