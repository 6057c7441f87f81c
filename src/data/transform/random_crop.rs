//! `name = "random_crop"`. Where it cuts is drawn by `random_offset` of `crop.rs`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::config::values::Shape2;
use crate::data::transform::crop::{crop, pad, random_offset};
use crate::data::transform::{Area, Images, Pixels, Sides, Transform};
use crate::plan::Unfit;
use crate::rng::Stream;

/// crop at a random position, after `padding` zeros on each side, as torchvision's `RandomCrop`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RandomCrop {
    /// [height, width] in pixels; one number is both.
    #[schemars(example = 224)]
    pub size: Shape2,
    /// zeros on each side, in pixels.
    #[serde(default)]
    #[schemars(range(max = 8192), example = 4)]
    pub padding: u32,
}

impl Kind for RandomCrop {
    const NAME: &'static str = "random_crop";
}

impl Transform for RandomCrop {
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
            _ => Ok(Some((height, width))),
        }
    }

    fn takes_uint16(&self) -> bool {
        true
    }

    fn apply(&self, image: Pixels, _: Area, stream: Option<&mut Stream>) -> Result<Pixels, String> {
        let (height, width) = self.size.sides();
        random(image, (height as usize, width as usize), self.padding as usize, stream)
    }
}

/// Pads by `padding` black pixels on each side, then cuts (height, width) at a random place.
///
/// # Errors
///
/// The padded image is smaller.
fn random(
    image: Pixels,
    (height, width): (usize, usize),
    padding: usize,
    stream: Option<&mut Stream>,
) -> Result<Pixels, String> {
    let image = pad(image, [padding; 4]);
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
    use super::*;
    use crate::rng::{Key, Purpose};

    fn stream(sample: u64) -> Stream {
        Key::new(5, Purpose::Augment, 0, sample).stream()
    }

    #[test]
    fn random_crops_reach_each_place_of_the_padded_image() {
        let image = || Pixels::new(1, [1, 2], vec![1, 2]);
        let mut seen = std::collections::BTreeSet::new();
        for sample in 0..400 {
            let crop = random(image(), (1, 2), 1, Some(&mut stream(sample))).unwrap();
            seen.insert(crop.data);
        }
        let expected = [[0, 0], [0, 1], [1, 2], [2, 0]].map(|row| row.to_vec());
        assert_eq!(seen, expected.into_iter().collect());
        assert_eq!(random(image(), (1, 2), 1, None).unwrap().data, [1, 2]);
        assert!(random(image(), (4, 2), 1, None).unwrap_err().contains("does not fit into 4x3"));
    }
}
