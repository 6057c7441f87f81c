//! `name = "resize"`: antialiased and bilinear, as PIL: the support grows with the shrink factor.
//!
//! Values may differ from PIL's by one: rows are combined before columns, which is faster, and
//! weights are rounded to 16 bits.

use std::cell::RefCell;

use fast_image_resize::images::{TypedCroppedImage, TypedImage, TypedImageRef};
use fast_image_resize::pixels::{U8, U8x3, U16, U16x3};
use fast_image_resize::{FilterType, PixelTrait, ResizeAlg, ResizeOptions, Resizer};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::config::values::Shape2;
use crate::data::transform::crop::crop;
use crate::data::transform::{Area, Images, Pixels, Sides, Transform, buffer_pool};
use crate::plan::{PixelDtype, Unfit};
use crate::rng::Stream;

/// antialiased bilinear resize.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Resize {
    /// one number is the length of the shorter side, keeping the aspect ratio; [height, width]
    /// gives exactly that size.
    #[schemars(example = [256, 256])]
    pub size: Shape2,
}

impl Kind for Resize {
    const NAME: &'static str = "resize";
}

impl Transform for Resize {
    fn size(&self, images: &Images) -> Result<Option<Sides>, Unfit> {
        Ok(match self.size {
            Shape2::Side(side) => {
                images.size.map(|(height, width)| shorter_side(height, width, side))
            }
            Shape2::Both([height, width]) => Some((height, width)),
        })
    }

    fn takes_uint16(&self) -> bool {
        true
    }

    fn apply(&self, image: Pixels, _: Area, _: Option<&mut Stream>) -> Result<Pixels, String> {
        let (height, width) = match self.size {
            Shape2::Side(side) => shorter_side(image.height as u32, image.width as u32, side),
            Shape2::Both([height, width]) => (height, width),
        };
        resize(image, height, width)
    }
}

thread_local! {
    /// Keeps its buffers from image to image.
    static RESIZER: RefCell<Resizer> = RefCell::new(Resizer::new());
}

/// (height, width) with the shorter side at `size` and the aspect kept, as torchvision:
/// `int(size * long / short)`.
fn shorter_side(height: u32, width: u32, size: u32) -> (u32, u32) {
    let long = |long: u32, short: u32| {
        let long = u64::from(size) * u64::from(long) / u64::from(short.max(1));
        long.min(u64::from(u32::MAX)) as u32
    };
    if width <= height { (long(height, width), size) } else { (size, long(width, height)) }
}

/// Resizes the whole image.
fn resize(image: Pixels, height: u32, width: u32) -> Result<Pixels, String> {
    let area = Area::whole(image.size());
    resize_area(image, area, height, width)
}

/// Resizes an area of the image; pixels outside of it play no part.
pub(super) fn resize_area(
    image: Pixels,
    area: Area,
    height: u32,
    width: u32,
) -> Result<Pixels, String> {
    if (area.height, area.width) == (height as usize, width as usize) {
        return Ok(crop(image, area));
    }
    let mut data = buffer_pool::take(height as usize * width as usize * image.stride());
    let (size, to) = (image.size(), [height, width]);
    // One kind of pixels each: the crate's untyped way would compile all kinds that it knows into
    // this one.
    let resized = match (image.dtype, image.channels) {
        (PixelDtype::Uint8, 1) => resize_pixels::<U8>(&image.data, size, area, &mut data, to),
        (PixelDtype::Uint8, _) => resize_pixels::<U8x3>(&image.data, size, area, &mut data, to),
        (PixelDtype::Uint16, 1) => resize_uint16::<U16>(&image, area, &mut data, to),
        (PixelDtype::Uint16, _) => resize_uint16::<U16x3>(&image, area, &mut data, to),
    };
    resized.map_err(|error| format!("cannot resize: {error}"))?;
    let [height, width] = to.map(|n| n as usize);
    let (channels, dtype) = (image.channels, image.dtype);
    buffer_pool::give(image.data);
    Ok(Pixels { channels, height, width, dtype, data })
}

/// As the other, by way of values that are aligned.
fn resize_uint16<P: PixelTrait>(
    image: &Pixels,
    area: Area,
    out: &mut [u8],
    to: [u32; 2],
) -> Result<(), Box<dyn std::error::Error>> {
    let mut aligned = vec![0_u16; out.len() / 2];
    let values = image.uint16();
    let bytes = bytemuck::cast_slice_mut(&mut aligned);
    resize_pixels::<P>(bytemuck::cast_slice(&values), image.size(), area, bytes, to)?;
    out.copy_from_slice(bytes);
    Ok(())
}

fn resize_pixels<P: PixelTrait>(
    data: &[u8],
    size: (usize, usize),
    area: Area,
    out: &mut [u8],
    [height, width]: [u32; 2],
) -> Result<(), Box<dyn std::error::Error>> {
    let source = TypedImageRef::<P>::from_buffer(size.1 as u32, size.0 as u32, data)?;
    let [left, top, area_width, area_height] =
        [area.left, area.top, area.width, area.height].map(|n| n as u32);
    let source = TypedCroppedImage::new(source, left, top, area_width, area_height)?;
    let mut out = TypedImage::<P>::from_buffer(width, height, out)?;
    let options = ResizeOptions::new()
        .resize_alg(ResizeAlg::Convolution(FilterType::Bilinear))
        .use_alpha(false);
    RESIZER
        .with_borrow_mut(|resizer| resizer.resize_typed(&source, &mut out, &options))
        .map_err(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::transform::tests::{checksum, picture};

    // Numbers: Pillow 13.0.0, `image.resize((width, height), Image.BILINEAR)`.

    #[track_caller]
    fn check_within_one(found: &[u8], expected: &[u8]) {
        let close = found.iter().zip(expected).all(|(a, b)| a.abs_diff(*b) <= 1);
        assert!(close && found.len() >= expected.len(), "{found:?} instead of {expected:?}");
    }

    #[test]
    fn shrinking_and_growing_equal_pillow_within_one() {
        let small = resize(picture(1, 6, 8), 3, 5).unwrap();
        let expected = [12, 24, 37, 49, 60, 37, 51, 66, 81, 95, 61, 77, 95, 113, 130];
        check_within_one(&small.data, &expected);
        let large = resize(picture(1, 6, 8), 9, 10).unwrap();
        let expected =
            [0, 5, 11, 16, 22, 27, 33, 39, 44, 49, 7, 12, 18, 24, 30, 36, 42, 48, 54, 59];
        check_within_one(&large.data, &expected);
        let color = resize(picture(3, 37, 53), 16, 16).unwrap();
        let fourth_row = [
            120, 170, 207, 164, 197, 103, 198, 115, 57, 121, 60, 104, 62, 102, 152, 100, 150, 188,
            149, 180, 132, 177, 131, 77, 150, 88, 91, 102, 93, 138, 96, 136, 167, 134, 161, 141,
            155, 131, 117, 148, 109, 105, 121, 105, 125, 106, 124, 142,
        ];
        check_within_one(color.row(3, 0, 16), &fourth_row);
        // Pillow's checksum; a bias of a tenth of a value would move it by 0.1 * 768 * 769 / 2 =
        // 30,000.
        let sum = i64::from(checksum(&color.data));
        assert!((sum - 37_594_323).abs() < 30_000, "{sum}");
    }

    #[test]
    fn an_area_is_resized_as_if_cut_out_first() {
        let area = Area { top: 4, left: 5, height: 30, width: 20 };
        let found = resize_area(picture(3, 37, 53), area, 8, 8).unwrap();
        let expected = [
            151, 193, 132, 178, 179, 84, 184, 117, 61, 148, 69, 87, 97, 69, 119, 80, 101, 150, 83,
            132, 164, 111, 151, 153,
        ];
        check_within_one(&found.data, &expected);
        let part = crop(picture(3, 37, 53), area);
        assert_eq!(found, resize(part, 8, 8).unwrap());
    }

    #[test]
    fn the_longer_side_is_cut_to_an_integer_as_in_torchvision() {
        assert_eq!(shorter_side(375, 500, 256), (256, 341));
        assert_eq!(shorter_side(500, 375, 256), (341, 256));
        assert_eq!(shorter_side(8, 8, 256), (256, 256));
    }
}
