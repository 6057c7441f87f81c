//! 8-bit pixels -> the values that the model receives, by torchvision's standard transforms.
//!
//! Each transform follows torchvision on PIL images, rounding included. All randomness comes from the
//! caller's key; without a key each transform does the middle of what it might do: crops are centred, and
//! nothing is flipped, rotated or coloured.

mod color;
mod crop;
mod geometry;
mod normalize;
mod resize;
pub(crate) mod spare;

use crate::data::error::Error;
use crate::plan::TransformPlan;
use crate::rng::{Key, Stream};
use normalize::Normalizer;

/// An image of 8-bit values in the order (height, width, channels).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pixels {
    /// 1 (grey) or 3 (RGB).
    pub(crate) channels: usize,
    /// Rows.
    pub(crate) height: usize,
    /// Columns.
    pub(crate) width: usize,
    /// `height * width * channels` values.
    pub(crate) data: Vec<u8>,
}

/// A rectangle of pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Area {
    pub(crate) top: usize,
    pub(crate) left: usize,
    pub(crate) height: usize,
    pub(crate) width: usize,
}

/// An image, or as much of it as was decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decoded {
    /// What was decoded.
    pub(crate) pixels: Pixels,
    /// Row of the image in which it begins.
    pub(crate) top: usize,
    /// Column of the image in which it begins.
    pub(crate) left: usize,
    /// (height, width) of the image.
    pub(crate) size: (usize, usize),
}

impl Decoded {
    /// Whether the pixels of `area` are among those that were decoded.
    pub(crate) fn holds(&self, area: Area) -> bool {
        let (bottom, right) = (self.top + self.pixels.height, self.left + self.pixels.width);
        let rows = self.top <= area.top && area.top + area.height <= bottom;
        rows && self.left <= area.left && area.left + area.width <= right
    }
}

/// The transforms of one split, checked, with the size that they all lead to.
#[derive(Debug)]
pub(crate) struct Pipeline {
    steps: Vec<TransformPlan>,
    normalizer: Normalizer,
    shape: [usize; 3],
}

impl Pipeline {
    /// Checks `transforms` for images of `channels`, all of (height, width) `size` if the source knows it.
    ///
    /// # Errors
    ///
    /// The result would not have the same size for each image, or `normalize` does not fit.
    pub(crate) fn new(
        transforms: &[TransformPlan],
        channels: usize,
        size: Option<(u32, u32)>,
    ) -> Result<Self, Error> {
        let Some((height, width)) = output_size(transforms, size) else {
            return Err(unusable(
                "images would keep different sizes; end with a `resize` to [height, width] or a crop",
            ));
        };
        let (steps, normalizer) = match transforms.split_last() {
            Some((TransformPlan::Normalize { mean, std }, steps)) => {
                (steps, Normalizer::new(mean, std, channels)?)
            }
            _ => (transforms, Normalizer::new(&[0.0], &[1.0], channels)?),
        };
        if steps.iter().any(|step| matches!(step, TransformPlan::Normalize { .. })) {
            return Err(unusable("`normalize` must come last, and once"));
        }
        let shape = [channels, height as usize, width as usize];
        Ok(Self { steps: steps.to_vec(), normalizer, shape })
    }

    /// (channels, height, width) of each result.
    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The area that the transforms look at, of an image of (height, width) `size`: what `RandomResizedCrop`
    /// keeps if it comes first, else everything.
    pub(crate) fn needed(&self, size: (usize, usize), key: Option<Key>) -> Area {
        match self.steps.first() {
            Some(TransformPlan::RandomResizedCrop { scale, ratio, .. }) => {
                crop::resized_area(size, *scale, *ratio, stream(key, 0).as_mut())
            }
            _ => Area::whole(size),
        }
    }

    /// Transforms an image, of which at least the [needed](Self::needed) area is there, and appends it to
    /// `values`, in the order (channels, height, width).
    ///
    /// # Errors
    ///
    /// A message, if a transform does not fit this image's size.
    pub(crate) fn run(
        &self,
        decoded: Decoded,
        key: Option<Key>,
        values: &mut Vec<f32>,
    ) -> Result<(), String> {
        let (mut image, done) = match self.steps.first() {
            Some(TransformPlan::RandomResizedCrop { height, width, .. }) => {
                let area = self.needed(decoded.size, key).seen_from(decoded.top, decoded.left);
                (resize::resize_area(decoded.pixels, area, *height, *width)?, 1)
            }
            _ => (decoded.pixels, 0),
        };
        for (position, step) in self.steps.iter().enumerate().skip(done) {
            image = apply(step, image, stream(key, position).as_mut())?;
        }
        let [_, height, width] = self.shape;
        if (image.height, image.width) != (height, width) {
            let (h, w) = (image.height, image.width);
            return Err(format!("it is {w}x{h} pixels after all transforms, not {width}x{height}"));
        }
        self.normalizer.append(&image, values);
        spare::give(image.data);
        Ok(())
    }
}

/// Own numbers for each step: how many one of them draws does not move the others.
fn stream(key: Option<Key>, position: usize) -> Option<Stream> {
    key.map(|key| key.with(position as u64).stream())
}

/// (height, width) after `transforms`, if it is the same for each image.
///
/// Images of one `size` stay of one size; where sizes differ (`None`), the last transform with a fixed
/// output size decides.
pub fn output_size(transforms: &[TransformPlan], size: Option<(u32, u32)>) -> Option<(u32, u32)> {
    transforms.iter().fold(size, |size, transform| match transform {
        TransformPlan::Resize { height, width }
        | TransformPlan::CenterCrop { height, width }
        | TransformPlan::RandomCrop { height, width, .. }
        | TransformPlan::RandomResizedCrop { height, width, .. } => Some((*height, *width)),
        TransformPlan::ResizeShorter { size: shorter } => {
            size.map(|(height, width)| resize::shorter_side(height, width, *shorter))
        }
        TransformPlan::RandomHorizontalFlip { .. }
        | TransformPlan::RandomRotation { .. }
        | TransformPlan::ColorJitter { .. }
        | TransformPlan::Normalize { .. } => size,
    })
}

fn apply(
    step: &TransformPlan,
    image: Pixels,
    random: Option<&mut Stream>,
) -> Result<Pixels, String> {
    match step {
        TransformPlan::ResizeShorter { size } => {
            let (height, width) =
                resize::shorter_side(image.height as u32, image.width as u32, *size);
            resize::resize(image, height, width)
        }
        TransformPlan::Resize { height, width } => resize::resize(image, *height, *width),
        TransformPlan::CenterCrop { height, width } => {
            Ok(crop::center(image, *height as usize, *width as usize))
        }
        TransformPlan::RandomCrop { height, width, padding } => {
            let size = (*height as usize, *width as usize);
            crop::random(image, size, *padding as usize, random)
        }
        TransformPlan::RandomResizedCrop { height, width, scale, ratio } => {
            let area = crop::resized_area(image.size(), *scale, *ratio, random);
            resize::resize_area(image, area, *height, *width)
        }
        TransformPlan::RandomHorizontalFlip { p } => {
            let flips = random.is_some_and(|random| random.uniform() < *p);
            Ok(if flips { geometry::flip(image) } else { image })
        }
        TransformPlan::RandomRotation { degrees } => Ok(match random {
            Some(random) => geometry::rotate(image, random.range(-degrees, *degrees)),
            None => image,
        }),
        TransformPlan::ColorJitter { brightness, contrast, saturation, hue } => Ok(match random {
            Some(random) => {
                let jitter =
                    color::Jitter::draw([*brightness, *contrast, *saturation, *hue], random);
                jitter.apply(image)
            }
            None => image,
        }),
        // Split off by `Pipeline::new`.
        TransformPlan::Normalize { .. } => Ok(image),
    }
}

fn unusable(what: &str) -> Error {
    Error::Transforms { what: what.to_owned() }
}

impl Area {
    /// All of an image of (height, width).
    pub(crate) fn whole((height, width): (usize, usize)) -> Self {
        Self { top: 0, left: 0, height, width }
    }

    /// The same pixels, in a part of the image that begins at (`top`, `left`).
    fn seen_from(self, top: usize, left: usize) -> Self {
        Self { top: self.top - top, left: self.left - left, ..self }
    }
}

impl Decoded {
    /// All of an image.
    pub(crate) fn whole(pixels: Pixels) -> Self {
        Self { top: 0, left: 0, size: pixels.size(), pixels }
    }
}

impl Pixels {
    /// (height, width)
    fn size(&self) -> (usize, usize) {
        (self.height, self.width)
    }

    /// Black pixels.
    fn black(channels: usize, height: usize, width: usize) -> Self {
        Self { channels, height, width, data: vec![0; channels * height * width] }
    }

    /// Values of the pixels from `left` on, `width` of them, in a row.
    pub(in crate::data) fn row(&self, row: usize, left: usize, width: usize) -> &[u8] {
        let start = (row * self.width + left) * self.channels;
        &self.data[start..start + width * self.channels]
    }
}

#[cfg(test)]
pub(in crate::data) mod tests {
    use super::*;
    use crate::rng::Purpose;

    /// The picture of all golden numbers: `(7 x + 13 y + 50 c + x y) % 256`, as the Pillow side computes it.
    pub(in crate::data) fn picture(channels: usize, height: usize, width: usize) -> Pixels {
        let mut data = Vec::with_capacity(channels * height * width);
        for y in 0..height {
            for x in 0..width {
                data.extend((0..channels).map(|c| (7 * x + 13 * y + 50 * c + x * y) as u8));
            }
        }
        Pixels { channels, height, width, data }
    }

    /// Sum of (position + 1) * value, modulo 2^32.
    pub(in crate::data) fn checksum(values: &[u8]) -> u32 {
        let weighted = values.iter().zip(1u32..).map(|(&v, i)| i.wrapping_mul(u32::from(v)));
        weighted.fold(0, u32::wrapping_add)
    }

    fn augmented(key: Option<Key>) -> Vec<f32> {
        let transforms = [
            TransformPlan::RandomResizedCrop {
                height: 8,
                width: 10,
                scale: [0.2, 1.0],
                ratio: [0.75, 1.33],
            },
            TransformPlan::RandomHorizontalFlip { p: 0.5 },
            TransformPlan::RandomRotation { degrees: 15.0 },
            TransformPlan::ColorJitter {
                brightness: 0.2,
                contrast: 0.2,
                saturation: 0.2,
                hue: 0.1,
            },
            TransformPlan::Normalize { mean: vec![0.5], std: vec![0.25] },
        ];
        let pipeline = Pipeline::new(&transforms, 3, None).unwrap();
        assert_eq!(pipeline.shape(), [3, 8, 10]);
        let mut values = Vec::new();
        pipeline.run(Decoded::whole(picture(3, 20, 30)), key, &mut values).unwrap();
        assert_eq!(values.len(), 240);
        values
    }

    #[test]
    fn augmentation_depends_on_the_key_only() {
        let key = |epoch, sample| Some(Key::new(3, Purpose::Augment, epoch, sample));
        assert_eq!(augmented(key(1, 7)), augmented(key(1, 7)));
        assert_ne!(augmented(key(1, 7)), augmented(key(2, 7)));
        assert_ne!(augmented(key(1, 7)), augmented(key(1, 8)));
        assert_eq!(augmented(None), augmented(None));
    }

    #[test]
    fn transforms_that_leave_sizes_different_are_refused() {
        let shorter = [TransformPlan::ResizeShorter { size: 8 }];
        assert!(Pipeline::new(&shorter, 3, None).is_err());
        assert_eq!(Pipeline::new(&shorter, 1, Some((28, 14))).unwrap().shape(), [1, 16, 8]);
        assert!(Pipeline::new(&[], 3, None).is_err());
        let twice = [
            TransformPlan::Normalize { mean: vec![0.0], std: vec![1.0] },
            TransformPlan::Normalize { mean: vec![0.0], std: vec![1.0] },
        ];
        assert!(Pipeline::new(&twice, 3, Some((4, 4))).is_err());
    }
}
