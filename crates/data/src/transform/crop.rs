//! Crops, and images with a border: the transforms `center_crop` and `random_crop`, and the five
//! crops of which predictions are averaged.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Kind, Options};
use crate::config::values::Shape2;
use crate::plan::Unfit;
use crate::rng::Stream;
use crate::transform::{Area, Images, Pixels, Sides, Transform, Transforms};

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

/// crop at a random position, after `padding` pixels on each side, as torchvision's `RandomCrop`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RandomCrop {
    /// [height, width] in pixels; one number is both.
    #[schemars(example = 224)]
    pub size: Shape2,
    /// pixels added on each side.
    #[serde(default)]
    #[schemars(range(max = 8192), example = 4)]
    pub padding: u32,
    /// how they are filled.
    #[serde(default)]
    pub padding_mode: PaddingMode,
}

/// What is added around an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PaddingMode {
    /// Zeros.
    #[default]
    Constant,
    /// The image mirrored at its first and last rows and columns.
    Reflect,
}

impl Kind for RandomCrop {
    const NAME: &'static str = "random_crop";
}

impl Transform for RandomCrop {
    fn is_random(&self) -> bool {
        true
    }

    fn size(&self, images: &Images) -> Result<Option<Sides>, Unfit> {
        let (height, width) = self.size.sides();
        let padding = self.padding;
        let room = |side: u32| side.saturating_add(2 * padding);
        match images.size {
            Some((h, w)) if room(h) < height || room(w) < width => Err(Unfit {
                key: "size",
                what: format!("is larger than the images, {h}x{w} with padding {padding}"),
                help: None,
            }),
            Some((h, w)) if self.padding_mode == PaddingMode::Reflect && padding >= h.min(w) => {
                let what = format!("must be less than the sides of the images, {h}x{w}");
                Err(Unfit { key: "padding", what, help: None })
            }
            _ => Ok(Some((height, width))),
        }
    }

    fn takes_uint16(&self) -> bool {
        true
    }

    fn apply(&self, image: Pixels, _: Area, stream: Option<&mut Stream>) -> Result<Pixels, String> {
        let (height, width) = self.size.sides();
        let n = self.padding as usize;
        let image = match self.padding_mode {
            _ if n == 0 => image,
            PaddingMode::Constant => pad(image, [n; 4]),
            PaddingMode::Reflect => reflect(&image, n)?,
        };
        random(image, (height as usize, width as usize), stream)
    }
}

/// Cuts (height, width) at a random place.
fn random(
    image: Pixels,
    (height, width): (usize, usize),
    stream: Option<&mut Stream>,
) -> Result<Pixels, String> {
    if image.height < height || image.width < width {
        return Err(format!(
            "a crop of {width}x{height} pixels does not fit into {}x{}; `resize` first",
            image.width, image.height
        ));
    }
    let (top, left) = random_offset((image.height - height, image.width - width), stream);
    Ok(crop(image, Area { top, left, height, width }))
}

/// The area as an image of its own.
pub(super) fn crop(image: Pixels, area: Area) -> Pixels {
    if area == Area::whole(image.size()) {
        return image;
    }
    let mut data = Vec::with_capacity(area.height * area.width * image.stride());
    for row in area.top..area.top + area.height {
        data.extend_from_slice(image.row(row, area.left, area.width));
    }
    Pixels { height: area.height, width: area.width, data, ..image }
}

/// Adds black rows and columns: top, bottom, left, right.
fn pad(image: Pixels, [top, bottom, left, right]: [usize; 4]) -> Pixels {
    if [top, bottom, left, right] == [0; 4] {
        return image;
    }
    let width = left + image.width + right;
    let mut out = image.black(top + image.height + bottom, width);
    for row in 0..image.height {
        let start = ((top + row) * width + left) * image.stride();
        let source = image.row(row, 0, image.width);
        out.data[start..start + source.len()].copy_from_slice(source);
    }
    out
}

/// Adds `n` rows and columns on each side that mirror the image at its first and last ones, as
/// torchvision's `padding_mode = "reflect"`.
fn reflect(image: &Pixels, n: usize) -> Result<Pixels, String> {
    let (height, width) = image.size();
    if height <= n || width <= n {
        return Err(format!("{width}x{height} pixels cannot be reflected by {n}"));
    }
    let mirrored = |i: usize, side: usize| {
        let i = i.abs_diff(n);
        if i < side { i } else { 2 * (side - 1) - i }
    };
    let mut out = image.black(height + 2 * n, width + 2 * n);
    let stride = image.stride();
    for (row, values) in out.data.chunks_exact_mut((width + 2 * n) * stride).enumerate() {
        let source = image.row(mirrored(row, height), 0, width);
        for (column, pixel) in values.chunks_exact_mut(stride).enumerate() {
            let from = mirrored(column, width) * stride;
            pixel.copy_from_slice(&source[from..from + stride]);
        }
    }
    Ok(out)
}

/// A random (top, left), each up to its room; the middle without randomness.
pub(super) fn random_offset(
    (down, right): (usize, usize),
    random: Option<&mut Stream>,
) -> (usize, usize) {
    match random {
        None => (down / 2, right / 2),
        Some(random) => {
            let top = random.below(down as u64 + 1) as usize;
            (top, random.below(right as u64 + 1) as usize)
        }
    }
}

#[cfg(test)]
mod tests {
    use test_support::assert_refused;

    use super::*;
    use crate::config::kind::Choice;
    use crate::transform::golden::{picture, stream};

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

    #[test]
    fn random_crops_reach_each_place_of_the_padded_image() {
        let image = || pad(Pixels::new(1, [1, 2], vec![1, 2]), [1; 4]);
        let mut seen = std::collections::BTreeSet::new();
        for sample in 0..400 {
            let crop = random(image(), (1, 2), Some(&mut stream(sample))).unwrap();
            seen.insert(crop.data);
        }
        let expected = [[0, 0], [0, 1], [1, 2], [2, 0]].map(|row| row.to_vec());
        assert_eq!(seen, expected.into_iter().collect());
        assert_eq!(random(image(), (1, 2), None).unwrap().data, [1, 2]);
        assert!(random(image(), (4, 2), None).unwrap_err().contains("does not fit into 4x3"));
    }

    #[test]
    fn reflected_borders_are_torchvisions() {
        // torchvision 0.29: v2.functional.pad(image, 2, padding_mode="reflect") of 3 x 4 pixels.
        let image = Pixels::new(1, [3, 4], (0..12).collect());
        let expected: [[u8; 8]; 7] = [
            [10, 9, 8, 9, 10, 11, 10, 9],
            [6, 5, 4, 5, 6, 7, 6, 5],
            [2, 1, 0, 1, 2, 3, 2, 1],
            [6, 5, 4, 5, 6, 7, 6, 5],
            [10, 9, 8, 9, 10, 11, 10, 9],
            [6, 5, 4, 5, 6, 7, 6, 5],
            [2, 1, 0, 1, 2, 3, 2, 1],
        ];
        assert_eq!(reflect(&image, 2).unwrap().data, expected.concat());
        assert!(reflect(&image, 3).unwrap_err().contains("4x3 pixels cannot be reflected by 3"));
        let colours = Pixels::new(3, [1, 2], vec![1, 2, 3, 4, 5, 6]);
        assert_refused(reflect(&colours, 1), "2x1 pixels cannot be reflected by 1");
    }
}
