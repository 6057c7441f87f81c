//! `name = "normalize"`: `ToTensor` and `Normalize` of torchvision in one.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::config::kind::{Kind, Need, Wrong};
use crate::data::transform::{Area, Images, Pixels, Sides, Transform};
use crate::plan::Unfit;
use crate::rng::Stream;

/// (pixel / 255 - mean) / std, the last of its list; of 16 bits pixel / 65535.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Normalize {
    /// mean of values in [0, 1]: a number per channel, or one for all.
    #[schemars(example = [0.485, 0.456, 0.406])]
    pub mean: Vec<f64>,
    /// standard deviation: a number per channel, or one for all.
    #[schemars(schema_with = "deviations", example = [0.229, 0.224, 0.225])]
    pub std: Vec<f64>,
}

/// Numbers above 0.
fn deviations(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "array", "items": { "type": "number", "exclusiveMinimum": 0.0 } })
}

impl Normalize {
    /// Values in [0, 1].
    pub fn identity() -> Self {
        Self { mean: vec![0.0], std: vec![1.0] }
    }
}

impl Kind for Normalize {
    const NAME: &'static str = "normalize";
    const NEEDS: &'static [Need] = &[Need::LastPlace];

    fn check(&self) -> Vec<Wrong> {
        let lists = [("mean", &self.mean), ("std", &self.std)];
        let wrong = |key| Wrong {
            key,
            with: &[],
            what: "must have one number per channel: 3, or 1 for all".to_owned(),
        };
        let is_wrong = |list: &Vec<f64>| ![1, 3].contains(&list.len());
        lists.into_iter().filter(|(_, list)| is_wrong(list)).map(|(key, _)| wrong(key)).collect()
    }
}

impl Transform for Normalize {
    fn size(&self, images: &Images) -> Result<Option<Sides>, Unfit> {
        for (key, list) in [("mean", &self.mean), ("std", &self.std)] {
            if list.len() != 1 && list.len() != images.channels {
                let channels = images.channels;
                let what = format!("has {} numbers, the images {channels} channels", list.len());
                return Err(Unfit { key, what, help: None });
            }
        }
        Ok(images.size)
    }

    fn takes_uint16(&self) -> bool {
        true
    }

    fn apply(&self, image: Pixels, _: Area, _: Option<&mut Stream>) -> Result<Pixels, String> {
        Ok(image)
    }

    /// In f32, as torchvision.
    fn value(&self, channel: usize, value: f32) -> Option<f32> {
        let of = |list: &[f64]| list[channel % list.len()] as f32;
        Some((value - of(&self.mean)) / of(&self.std))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_that_do_not_fit_the_channels_are_refused() {
        let normalize = Normalize { mean: vec![0.0; 3], std: vec![1.0] };
        let unfit = normalize.size(&Images::new(1, None)).unwrap_err();
        assert_eq!((unfit.key, &*unfit.what), ("mean", "has 3 numbers, the images 1 channels"));
        assert_eq!(normalize.size(&Images::new(3, None)), Ok(None));
    }
}
