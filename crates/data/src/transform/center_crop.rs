//! `name = "center_crop"`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Kind, Options};
use crate::config::values::Shape2;
use crate::plan::Unfit;
use crate::rng::Stream;
use crate::transform::crop::{crop, pad};
use crate::transform::{Area, Images, Pixels, Sides, Transform};

/// crop the center, as torchvision's `CenterCrop`; smaller images get a black border.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CenterCrop {
    /// [height, width] in pixels; one number is both.
    #[schemars(example = 240)]
    pub size: Shape2,
}

impl Kind for CenterCrop {
    const NAME: &'static str = "center_crop";
}

impl Transform for CenterCrop {
    fn size(&self, _: &Images) -> Result<Option<Sides>, Unfit> {
        Ok(Some(self.size.sides()))
    }

    fn takes_uint16(&self) -> bool {
        true
    }

    fn evaluated(&self) -> Options {
        let offset = "half of what is cut off, rounded half to even";
        [("offset".to_owned(), offset.into()), ("fill".to_owned(), 0.into())].into()
    }

    fn apply(&self, image: Pixels, _: Area, _: Option<&mut Stream>) -> Result<Pixels, String> {
        let (height, width) = self.size.sides();
        Ok(center(image, height as usize, width as usize))
    }
}

/// Cuts (height, width) from the middle; black where the image is smaller.
fn center(image: Pixels, height: usize, width: usize) -> Pixels {
    let (top, bottom) = padding(height, image.height);
    let (left, right) = padding(width, image.width);
    let image = pad(image, [top, bottom, left, right]);
    let offset = |have: usize, want: usize| ((have - want) as f64 / 2.0).round_ties_even() as usize;
    let area =
        Area { top: offset(image.height, height), left: offset(image.width, width), height, width };
    crop(image, area)
}

/// Black pixels before and after, for one side of a centred crop: the odd one comes after.
fn padding(want: usize, have: usize) -> (usize, usize) {
    let missing = want.saturating_sub(have);
    (missing / 2, missing.div_ceil(2))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transform::tests::picture;

    #[test]
    fn a_centre_crop_rounds_half_to_even_and_pads_small_images() {
        // torchvision: crop_top = int(round((5 - 2) / 2.0)) = round(1.5) = 2, crop_left =
        // round(0.5) = 0.
        let cropped = center(picture(1, 5, 5), 2, 4);
        let expected = crop(picture(1, 5, 5), Area { top: 2, left: 0, height: 2, width: 4 });
        assert_eq!(cropped, expected);
        let one = Pixels::new(1, [1, 1], vec![9]);
        assert_eq!(center(one, 2, 4).data, [0, 9, 0, 0, 0, 0, 0, 0]);
    }
}
