//! `name = "random_resized_crop"`

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::config::kind::{Kind, OptionConflict, Options};
use crate::config::values::Shape2;
use crate::plan::Unfit;
use crate::rng::Stream;
use crate::transform::crop::random_offset;
use crate::transform::resize::{Interpolation, resize_area};
use crate::transform::{Area, Images, Pixels, Sides, Transform};

/// crop a random fraction of the area with a random aspect ratio, then resize, as torchvision's
/// `RandomResizedCrop`. If it is the first transform, only the pixels that it keeps are decoded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RandomResizedCrop {
    /// [height, width] in pixels; one number is both.
    #[schemars(example = 224)]
    pub size: Shape2,
    /// fraction of the area, lowest and highest.
    #[serde(default = "scale")]
    #[schemars(schema_with = "shares")]
    pub scale: [f64; 2],
    /// width / height of the crop, lowest and highest.
    #[serde(default = "ratio")]
    #[schemars(schema_with = "ratios")]
    pub ratio: [f64; 2],
    /// filter of the resize: `bilinear`, `bicubic`, `lanczos` or `nearest`.
    #[serde(default)]
    #[schemars(example = Interpolation::Bicubic)]
    pub interpolation: Interpolation,
}

fn scale() -> [f64; 2] {
    [0.08, 1.0]
}

fn ratio() -> [f64; 2] {
    [3.0 / 4.0, 4.0 / 3.0]
}

/// Two numbers above 0, up to 1.
fn shares(_: &mut SchemaGenerator) -> Schema {
    let share = json!({ "type": "number", "exclusiveMinimum": 0.0, "maximum": 1.0 });
    json_schema!({ "type": "array", "items": share, "minItems": 2, "maxItems": 2 })
}

/// Two numbers above 0.
fn ratios(_: &mut SchemaGenerator) -> Schema {
    let ratio = json!({ "type": "number", "exclusiveMinimum": 0.0 });
    json_schema!({ "type": "array", "items": ratio, "minItems": 2, "maxItems": 2 })
}

impl RandomResizedCrop {
    /// A crop to this size, with the default scale and ratio.
    pub fn to(size: Shape2) -> Self {
        Self { size, scale: scale(), ratio: ratio(), interpolation: Interpolation::default() }
    }
}

impl Kind for RandomResizedCrop {
    const NAME: &'static str = "random_resized_crop";

    fn check(&self) -> Vec<OptionConflict> {
        let descends = |key, [low, high]: [f64; 2]| {
            (low > high).then(|| OptionConflict {
                key,
                with: &[],
                what: "must be [low, high]".to_owned(),
            })
        };
        descends("scale", self.scale).into_iter().chain(descends("ratio", self.ratio)).collect()
    }
}

impl Transform for RandomResizedCrop {
    fn is_random(&self) -> bool {
        true
    }

    fn size(&self, _: &Images) -> Result<Option<Sides>, Unfit> {
        Ok(Some(self.size.sides()))
    }

    fn area(&self, size: (usize, usize), stream: Option<&mut Stream>) -> Area {
        resized_area(size, self.scale, self.ratio, stream)
    }

    fn takes_uint16(&self) -> bool {
        true
    }

    fn evaluated(&self) -> Options {
        let crop = "the largest area in the middle whose ratio is allowed";
        [("crop".to_owned(), crop.into()), ("antialias".to_owned(), true.into())].into()
    }

    fn apply(&self, image: Pixels, area: Area, _: Option<&mut Stream>) -> Result<Pixels, String> {
        Ok(resize_area(image, area, self.size.sides(), self.interpolation))
    }
}

/// The area that `RandomResizedCrop` keeps of an image of (height, width): a uniform share of the
/// area and a log-uniform aspect ratio, ten tries, then the largest centred area with an allowed
/// ratio.
fn resized_area(
    (height, width): (usize, usize),
    scale: [f64; 2],
    ratio: [f64; 2],
    random: Option<&mut Stream>,
) -> Area {
    let Some(random) = random else { return fallback_area((height, width), ratio) };
    let low = ratio[0].ln();
    let high = ratio[1].ln();
    for _ in 0..10 {
        let target = (height * width) as f64 * random.range(scale[0], scale[1]);
        let aspect = random.range(low, high).exp();
        let w = (target * aspect).sqrt().round_ties_even() as usize;
        let h = (target / aspect).sqrt().round_ties_even() as usize;
        if (1..=width).contains(&w) && (1..=height).contains(&h) {
            let (top, left) = random_offset((height - h, width - w), Some(random));
            return Area { top, left, height: h, width: w };
        }
    }
    fallback_area((height, width), ratio)
}

fn fallback_area((height, width): (usize, usize), ratio: [f64; 2]) -> Area {
    let have = width as f64 / height as f64;
    let mut h = height;
    let mut w = width;
    if have < ratio[0] {
        h = (width as f64 / ratio[0]).round_ties_even() as usize;
    } else if have > ratio[1] {
        w = (height as f64 * ratio[1]).round_ties_even() as usize;
    }
    let h = h.clamp(1, height);
    let w = w.clamp(1, width);
    Area { top: (height - h) / 2, left: (width - w) / 2, height: h, width: w }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transform::golden::stream;

    #[test]
    fn resized_areas_stay_within_the_asked_share_and_aspect() {
        let (scale, ratio) = ([0.08, 1.0], [0.75, 4.0 / 3.0]);
        let mut mean = 0.0;
        for sample in 0..2000 {
            let area = resized_area((300, 400), scale, ratio, Some(&mut stream(sample)));
            assert!(area.top + area.height <= 300 && area.left + area.width <= 400);
            let share = (area.height * area.width) as f64 / 120_000.0;
            let aspect = area.width as f64 / area.height as f64;
            assert!((0.078..=1.0).contains(&share), "{area:?}");
            assert!((0.74..=1.35).contains(&aspect), "{area:?}");
            mean += share / 2000.0;
        }
        // Uniform in [0.08, 1] less the tries that do not fit.
        assert!((0.4..0.55).contains(&mean), "{mean}");
    }

    #[test]
    fn without_a_fitting_area_the_centre_with_the_nearest_aspect_is_taken() {
        // torchvision's fallback for a 10 x 100 image: width = round(10 * 4/3) = 13, left = 87 //
        // 2.
        let ratio = [0.75, 4.0 / 3.0];
        let expected = Area { top: 0, left: 43, height: 10, width: 13 };
        assert_eq!(resized_area((10, 100), [1.0, 1.0], ratio, Some(&mut stream(0))), expected);
        assert_eq!(resized_area((10, 100), [0.1, 1.0], ratio, None), expected);
        let tall = Area { top: 43, left: 0, height: 13, width: 10 };
        assert_eq!(resized_area((100, 10), [0.1, 1.0], ratio, None), tall);
    }
}
