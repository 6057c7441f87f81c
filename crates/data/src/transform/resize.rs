//! `name = "resize"`: bit for bit as `PIL.Image.resize`, antialiased: the support grows with the
//! shrink factor.

use pillow_resize::{Filter, Image, resize as resize_u8, resize_u16};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Kind, Options};
use crate::config::values::Shape2;
use crate::plan::{PixelDtype, Unfit};
use crate::rng::Stream;
use crate::transform::crop::crop;
use crate::transform::{Area, Images, Pixels, Sides, Transform, give_buffer, take_buffer};

/// antialiased resize, with the pixels that torchvision's `Resize` makes of Pillow images.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Resize {
    /// one number is the length of the shorter side, keeping the aspect ratio; [height, width]
    /// gives exactly that size.
    #[schemars(example = [256, 256])]
    pub size: Shape2,
    /// filter: `bilinear`, `bicubic`, `lanczos`, or `nearest`, which is not antialiased. Pretrained
    /// weights expect the one that they were trained with (`interpolation` in timm's
    /// `pretrained_cfg`, `resample` = 2, 3, 1 or 0 in Hugging Face's `preprocessor_config.json`).
    #[serde(default)]
    #[schemars(example = Interpolation::Bicubic)]
    pub interpolation: Interpolation,
}

/// Pillow's filters, by torchvision's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Interpolation {
    /// The nearest pixel.
    Nearest,
    /// A triangle.
    #[default]
    Bilinear,
    /// Keys' cubic convolution.
    Bicubic,
    /// A windowed sinc.
    Lanczos,
}

impl Interpolation {
    fn filter(self) -> Filter {
        match self {
            Self::Nearest => Filter::Nearest,
            Self::Bilinear => Filter::Bilinear,
            Self::Bicubic => Filter::Bicubic,
            Self::Lanczos => Filter::Lanczos,
        }
    }
}

impl Resize {
    /// A resize to this size, by the default filter.
    pub fn to(size: Shape2) -> Self {
        Self { size, interpolation: Interpolation::default() }
    }
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

    fn evaluated(&self) -> Options {
        let antialias = self.interpolation != Interpolation::Nearest;
        let said = [("antialias", antialias.into()), ("as", "PIL.Image.resize".into())];
        let longer = matches!(self.size, Shape2::Side(_));
        let longer = longer.then(|| ("longer_side", "size * long // short".into()));
        said.into_iter().chain(longer).map(|(key, value)| (key.to_owned(), value)).collect()
    }

    fn apply(&self, image: Pixels, _: Area, _: Option<&mut Stream>) -> Result<Pixels, String> {
        let size = match self.size {
            Shape2::Side(side) => shorter_side(image.height as u32, image.width as u32, side),
            Shape2::Both([height, width]) => (height, width),
        };
        let area = Area::whole(image.size());
        Ok(resize_area(image, area, size, self.interpolation))
    }
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

/// Resizes an area of the image; pixels outside of it play no part.
pub(super) fn resize_area(
    image: Pixels,
    area: Area,
    (height, width): (u32, u32),
    interpolation: Interpolation,
) -> Pixels {
    let height = height as usize;
    let width = width as usize;
    if (area.height, area.width) == (height, width) {
        return crop(image, area);
    }
    let Pixels { channels, dtype, .. } = image;
    let Area { top, left, .. } = area;
    let part = pillow_resize::Area { left, top, width: area.width, height: area.height };
    let filter = interpolation.filter();
    let to = [height, width];
    let mut data = take_buffer(height * width * image.stride());
    match dtype {
        PixelDtype::Uint8 => {
            let from = Image { values: &image.data, channels, width: image.width };
            resize_u8(from, part, filter, &mut data, to);
        }
        PixelDtype::Uint16 => {
            let values = image.uint16();
            let from = Image { values: &values, channels, width: image.width };
            let mut resized = vec![0; data.len() / 2];
            resize_u16(from, part, filter, &mut resized, to);
            data.copy_from_slice(bytemuck::cast_slice(&resized));
        }
    }
    give_buffer(image.data);
    Pixels { channels, height, width, dtype, data }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transform::golden::{checksum, picture};

    fn resize(image: Pixels, height: u32, width: u32) -> Pixels {
        let area = Area::whole(image.size());
        resize_area(image, area, (height, width), Interpolation::Bilinear)
    }

    /// Numbers: Pillow 13.0.0, `image.resize((width, height), Image.BILINEAR)`.
    #[test]
    fn shrinking_and_growing_give_pillows_pixels() {
        let small = resize(picture(1, 6, 8), 3, 5);
        assert_eq!(small.data, [12, 24, 37, 49, 60, 37, 51, 66, 81, 95, 61, 77, 95, 113, 130]);
        let large = resize(picture(1, 6, 8), 9, 10);
        let expected =
            [0, 5, 11, 16, 22, 27, 33, 39, 44, 49, 7, 12, 18, 24, 30, 36, 42, 48, 54, 59];
        assert_eq!(large.data[..20], expected);
        let colour = resize(picture(3, 37, 53), 16, 16);
        assert_eq!(checksum(&colour.data), 37_594_323);
    }

    #[test]
    fn an_area_is_resized_as_if_cut_out_first() {
        let area = Area { top: 4, left: 5, height: 30, width: 20 };
        let found = resize_area(picture(3, 37, 53), area, (8, 8), Interpolation::Bilinear);
        let expected = [
            151, 193, 132, 178, 179, 84, 184, 117, 61, 148, 69, 87, 97, 69, 119, 80, 101, 150, 83,
            132, 164, 111, 151, 153,
        ];
        assert_eq!(found.data[..24], expected);
        assert_eq!(found, resize(crop(picture(3, 37, 53), area), 8, 8));
    }

    #[test]
    fn the_longer_side_is_cut_to_an_integer_as_in_torchvision() {
        assert_eq!(shorter_side(375, 500, 256), (256, 341));
        assert_eq!(shorter_side(500, 375, 256), (341, 256));
        assert_eq!(shorter_side(8, 8, 256), (256, 256));
    }

    #[test]
    fn each_interpolation_is_its_own_and_has_torchvisions_name() {
        let resized = |name: &str| {
            let text = format!("size = [5, 7]\ninterpolation = \"{name}\"");
            let resize: Resize = toml::from_str(&text).unwrap();
            let image = picture(3, 37, 53);
            let area = Area::whole(image.size());
            resize.apply(image, area, None).unwrap().data
        };
        let all = ["nearest", "bilinear", "bicubic", "lanczos"].map(resized);
        for (i, pixels) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|other| other != pixels));
        }
    }
}
