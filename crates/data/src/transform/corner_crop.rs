//! Replacement of `center_crop` where predictions of five crops are averaged.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::config::values::Shape2;
use crate::plan::Unfit;
use crate::rng::Stream;
use crate::transform::center_crop::CenterCrop;
use crate::transform::crop::crop;
use crate::transform::{Area, Images, Pixels, Sides, Transform, Transforms};

/// one of the crops of torchvision's `FiveCrop`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CornerCrop {
    /// [height, width] in pixels; one number is both.
    size: Shape2,
    /// Index of the crop, in torchvision's order: top left, top right, bottom left, bottom right,
    /// center.
    #[serde(skip)]
    at: usize,
}

/// Crops of an image.
pub(crate) const CROPS: usize = 5;

impl Kind for CornerCrop {
    const NAME: &'static str = "corner_crop";
}

impl Transform for CornerCrop {
    fn size(&self, _: &Images) -> Result<Option<Sides>, Unfit> {
        Ok(Some(self.size.sides()))
    }

    fn takes_uint16(&self) -> bool {
        true
    }

    fn apply(
        &self,
        image: Pixels,
        area: Area,
        stream: Option<&mut Stream>,
    ) -> Result<Pixels, String> {
        let (height, width) = self.size.sides();
        let height = height as usize;
        let width = width as usize;
        let rooms = image.height.checked_sub(height).zip(image.width.checked_sub(width));
        let Some((down, right)) = rooms else {
            let (h, w) = image.size();
            return Err(format!("it is {w}x{h} pixels, less than its crops of {width}x{height}"));
        };
        if self.at + 1 == CROPS {
            return CenterCrop { size: self.size }.apply(image, area, stream);
        }
        let top = down * (self.at / 2);
        let left = right * (self.at % 2);
        Ok(crop(image, Area { top, left, height, width }))
    }
}

/// `transforms`, of which `center_crop` cuts the crop `at`, below [`CROPS`].
pub(crate) fn with_center_crop_at(at: usize, transforms: &Transforms) -> Transforms {
    let mut all = transforms.clone();
    all.add_variant::<CornerCrop>(CenterCrop::NAME, "", move |crop| crop.at = at);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::kind::Choice;
    use crate::transform::tests::picture;

    #[test]
    fn crops_are_torchvisions_in_its_order() {
        // torchvision: five_crop of 5 x 7 pixels to 2 x 4.
        let places = [(0, 0), (0, 3), (3, 0), (3, 3), (2, 2)];
        let choice = Choice::of(&CenterCrop { size: Shape2::Both([2, 4]) });
        for (at, (top, left)) in places.into_iter().enumerate() {
            let transforms = with_center_crop_at(at, &Transforms::default());
            let cut = transforms.build(&choice).unwrap();
            let found = cut.apply(picture(3, 5, 7), Area::whole((5, 7)), None).unwrap();
            let expected = crop(picture(3, 5, 7), Area { top, left, height: 2, width: 4 });
            assert_eq!(found, expected, "crop {at}");
            let small = cut.apply(picture(3, 5, 3), Area::whole((5, 3)), None);
            assert_eq!(small.unwrap_err(), "it is 3x5 pixels, less than its crops of 4x2");
        }
    }
}
