//! `name = "normalize"`: `ToTensor` and `Normalize` of torchvision in one.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::config::kind::{Choice, Kind, OptionConflict, Requirement};
use crate::plan::{PixelStats, Unfit};
use crate::rng::Stream;
use crate::terminal::counted;
use crate::transform::{Area, Images, Pixels, Sides, Transform};

/// (pixel / 255 - mean) / std, with pixel / 65535 for 16-bit images. It is the last transform,
/// except for `random_erasing`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Normalize {
    /// mean of values in [0, 1]: a number per channel, or one for all.
    #[schemars(example = [0.485, 0.456, 0.406])]
    pub mean: Vec<f64>,
    /// standard deviation: a number per channel, or one for all.
    #[schemars(schema_with = "deviations", example = [0.229, 0.224, 0.225])]
    pub std: Vec<f64>,
    /// `mean` of each camera, in their order, where observations hold images of several: lists of
    /// numbers as above, in place of `mean`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(example = [[0.5], [0.3]])]
    pub camera_mean: Vec<Vec<f64>>,
    /// the same of `std`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(example = [[0.2], [0.1]])]
    pub camera_std: Vec<Vec<f64>>,
}

/// Numbers above 0.
fn deviations(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "array", "items": { "type": "number", "exclusiveMinimum": 0.0 } })
}

impl Normalize {
    /// Normalizes by a mean and a deviation for each channel, or one for all.
    pub fn new(mean: &[f64], std: &[f64]) -> Self {
        let camera_mean = Vec::new();
        let camera_std = Vec::new();
        Self { mean: mean.to_vec(), std: std.to_vec(), camera_mean, camera_std }
    }

    /// Values in [0, 1].
    pub fn identity() -> Self {
        Self::new(&[0.0], &[1.0])
    }

    /// Normalizes by pixel statistics, camera by camera if there are several.
    pub(crate) fn by(pixels: &PixelStats) -> Self {
        let of = |list: fn(&PixelStats) -> &[f64]| {
            pixels.cameras.iter().map(|camera| list(camera).to_vec()).collect()
        };
        let camera_mean = of(|pixels| &pixels.mean);
        let camera_std = of(|pixels| &pixels.std);
        Self { camera_mean, camera_std, ..Self::new(&pixels.mean, &pixels.std) }
    }

    /// `list` for the images of one camera.
    pub(crate) fn of_camera(list: &[Choice], camera: usize) -> Vec<Choice> {
        let mut list = list.to_vec();
        for choice in list.iter_mut().filter(|choice| choice.name == Self::NAME) {
            for (of_all, of_each) in [("mean", "camera_mean"), ("std", "camera_std")] {
                let each = choice.options.remove(of_each);
                if let Some(own) = each.as_ref().and_then(|each| each.get(camera)) {
                    choice.set(of_all, own);
                }
            }
        }
        list
    }
}

impl Kind for Normalize {
    const NAME: &'static str = "normalize";
    const REQUIREMENTS: &'static [Requirement] = &[Requirement::LastPlace];

    fn check(&self) -> Vec<OptionConflict> {
        let lists = [("mean", &self.mean), ("std", &self.std)];
        let wrong = |key| OptionConflict {
            key,
            with: &[],
            what: "must have one number per channel: 3, or 1 for all".to_owned(),
        };
        let is_wrong = |list: &Vec<f64>| ![1, 3].contains(&list.len());
        let of_cameras = [("camera_mean", &self.camera_mean), ("camera_std", &self.camera_std)];
        let wrong_of_cameras =
            of_cameras.into_iter().filter(|(_, lists)| lists.iter().any(is_wrong));
        let found: Vec<OptionConflict> = lists
            .into_iter()
            .filter(|(_, list)| is_wrong(list))
            .map(|(key, _)| wrong(key))
            .chain(wrong_of_cameras.map(|(key, _)| wrong(key)))
            .collect();
        found.into_iter().chain(self.uneven()).collect()
    }
}

impl Normalize {
    /// Checks the numbers of cameras.
    fn uneven(&self) -> Option<OptionConflict> {
        let what = if self.camera_mean.len() != self.camera_std.len() {
            "must have as many lists as `camera_mean`, one for each camera"
        } else if self.camera_std.iter().flatten().any(|std| *std <= 0.0) {
            "must hold numbers above 0"
        } else {
            return None;
        };
        Some(OptionConflict { key: "camera_std", with: &["camera_mean"], what: what.to_owned() })
    }
}

impl Transform for Normalize {
    fn size(&self, images: &Images) -> Result<Option<Sides>, Unfit> {
        let n = self.camera_mean.len();
        let cameras = images.cameras;
        if n > 0 && n != cameras {
            let what = format!("needs a list for each camera: it has {n}, cameras are {cameras}");
            return Err(Unfit { key: "camera_mean", what, help: None });
        }
        let of_cameras = self.camera_mean.iter().map(|list| ("camera_mean", list));
        let of_cameras = of_cameras.chain(self.camera_std.iter().map(|list| ("camera_std", list)));
        for (key, list) in [("mean", &self.mean), ("std", &self.std)].into_iter().chain(of_cameras)
        {
            if list.len() != 1 && list.len() != images.channels {
                return Err(per_channel(key, list.len(), images.channels));
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

    /// Computes in f32, as torchvision.
    fn value(&self, channel: usize, value: f32) -> Option<f32> {
        let of = |list: &[f64]| list[channel % list.len()] as f32;
        Some((value - of(&self.mean)) / of(&self.std))
    }
}

/// A list that has neither one number for all channels of images nor one for each.
pub(super) fn per_channel(key: &'static str, have: usize, channels: usize) -> Unfit {
    let numbers = counted(have as u64, "number");
    let what =
        format!("has {numbers}, but the images have {}", counted(channels as u64, "channel"));
    let help = match channels {
        1 => "give one number, as for grey images",
        _ => "give one number for each channel, or one for all",
    };
    Unfit { key, what, help: Some(help) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_that_do_not_fit_the_channels_are_refused() {
        let normalize = Normalize::new(&[0.0; 3], &[1.0]);
        let unfit = normalize.size(&Images::new(1, None)).unwrap_err();
        assert_eq!(
            (unfit.key, &*unfit.what),
            ("mean", "has 3 numbers, but the images have 1 channel")
        );
        assert_eq!(normalize.size(&Images::new(3, None)), Ok(None));
    }

    #[test]
    fn each_camera_has_its_own_numbers() {
        let of =
            |mean: f64, std: f64| PixelStats { mean: vec![mean], std: vec![std], cameras: vec![] };
        let pixels = PixelStats { cameras: vec![of(0.2, 0.1), of(0.8, 0.4)], ..of(0.5, 0.3) };
        let list = [Choice::of(&Normalize::by(&pixels))];
        for (camera, own) in pixels.cameras.iter().enumerate() {
            let expected = [Choice::of(&Normalize::by(own))];
            assert_eq!(Normalize::of_camera(&list, camera), expected);
        }
        let images = |cameras| Images { cameras, ..Images::new(1, None) };
        assert_eq!(Normalize::by(&pixels).size(&images(2)), Ok(None));
        let unfit = Normalize::by(&pixels).size(&images(0)).unwrap_err();
        assert_eq!(unfit.what, "needs a list for each camera: it has 2, cameras are 0");
        let wrong = Normalize { camera_std: vec![vec![1.0]], ..Normalize::by(&pixels) }.check();
        assert_eq!(wrong[0].key, "camera_std");
        // Runs of before have one mean of all.
        let before = [Choice::of(&Normalize::new(&[0.5], &[0.3]))];
        assert_eq!(Normalize::of_camera(&before, 1), before);
    }
}
