//! `name = "random_crop"`. Where it cuts is drawn by `random_offset` of `crop.rs`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::config::values::Shape2;
use crate::plan::Unfit;
use crate::rng::Stream;
use crate::transform::crop::{crop, pad, random_offset, reflect};
use crate::transform::{Area, Images, Pixels, Sides, Transform};

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

#[cfg(test)]
mod tests {
    use test_support::assert_refused;

    use super::*;
    use crate::rng::{Key, Purpose};

    fn stream(sample: u64) -> Stream {
        Key::new(5, Purpose::Augment, 0, sample).stream()
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
