//! The transforms of one split, one after another.

use crate::config::kind::Choice;
use crate::error::Error;
use crate::plan::PixelDtype;
use crate::rng::{Key, Stream};
use crate::transform::registered::after_one;
use crate::transform::{Area, Decoded, Images, Pixels, Transform, Transforms, give_buffer};

/// The transforms of one split, with the size that they all lead to.
#[derive(Debug)]
pub(crate) struct Pipeline {
    /// Transforms of pixels.
    steps: Vec<Box<dyn Transform>>,
    /// The value for the model of each value of a pixel, per channel.
    values: Vec<Vec<f32>>,
    /// Transforms of values, and the position of the first of them in the list.
    changes: Vec<Box<dyn Transform>>,
    first_change: usize,
    shape: [usize; 3],
}

impl Pipeline {
    /// The transforms of `list`, for such images.
    pub(crate) fn new(
        list: &[Choice],
        transforms: &Transforms,
        images: Images,
    ) -> Result<Self, Error> {
        let mut after = images;
        let mut steps = Vec::with_capacity(list.len());
        for choice in list {
            let step = transforms.build(choice).map_err(|error| unusable(&error.to_string()))?;
            let unfit = |unfit: crate::plan::Unfit| {
                unusable(&format!("`{}` of `{}` {}", unfit.key, choice.name, unfit.what))
            };
            after = after_one(&*step, &after).map_err(unfit)?;
            steps.push(step);
        }
        let Images { channels, size: Some((height, width)), dtype, .. } = after else {
            return Err(unusable(
                "images would keep different sizes; end with a `resize` to [height, width] or a \
                 crop",
            ));
        };
        let first_change =
            steps.iter().rposition(|step| !step.changes_values()).map_or(0, |i| i + 1);
        let changes = steps.split_off(first_change);
        let last = steps.pop_if(|step| makes_values(&**step));
        let values = (0..channels).map(|channel| table(dtype, channel, last.as_deref())).collect();
        if steps.iter().any(|step| makes_values(&**step)) {
            return Err(unusable("`normalize` must come last, and once"));
        }
        if let Some(early) = steps.iter().position(|step| step.changes_values()) {
            let name = &list[early].name;
            return Err(unusable(&format!("`{name}` must come after what changes pixels")));
        }
        let shape = [channels, height as usize, width as usize];
        Ok(Self { steps, values, changes, first_change, shape })
    }

    /// (channels, height, width) of each result.
    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The area that the transforms look at, of an image of (height, width) `size`.
    pub(crate) fn needed(&self, size: (usize, usize), key: Option<Key>) -> Area {
        match self.steps.first() {
            Some(first) => first.area(size, stream(key, 0).as_mut()),
            None => Area::whole(size),
        }
    }

    /// Transforms an image, of which at least the [needed](Self::needed) area is there, and appends
    /// it to `values`, in the order (channels, height, width).
    pub(crate) fn run(
        &self,
        decoded: Decoded,
        key: Option<Key>,
        values: &mut Vec<f32>,
    ) -> Result<(), String> {
        let Decoded { pixels: mut image, mut top, mut left, mut size } = decoded;
        for (position, step) in self.steps.iter().enumerate() {
            let mut stream = stream(key, position);
            let area = step.area(size, stream.as_mut()).seen_from(top, left);
            image = step.apply(image, area, stream.as_mut())?;
            (size, top, left) = (image.size(), 0, 0);
        }
        let [_, height, width] = self.shape;
        if (image.height, image.width) != (height, width) {
            let h = image.height;
            let w = image.width;
            return Err(format!("it is {w}x{h} pixels after all transforms, not {width}x{height}"));
        }
        let start = values.len();
        self.append(&image, values);
        give_buffer(image.data);
        for (position, change) in self.changes.iter().enumerate() {
            let mut stream = stream(key, self.first_change + position);
            change.change(&mut values[start..], self.shape, stream.as_mut());
        }
        Ok(())
    }

    /// Interleaved values -> f32 planes.
    fn append(&self, image: &Pixels, values: &mut Vec<f32>) {
        for (channel, table) in self.values.iter().enumerate() {
            let pixels = image.data.chunks_exact(image.stride());
            if let (Some(table), PixelDtype::Uint8) = (table.first_chunk::<256>(), image.dtype) {
                values.extend(pixels.map(|pixel| table[usize::from(pixel[channel])]));
            } else {
                let value =
                    |pixel: &[u8]| u16::from_ne_bytes([pixel[2 * channel], pixel[2 * channel + 1]]);
                values.extend(pixels.map(|pixel| table[usize::from(value(pixel))]));
            }
        }
    }
}

/// True if it converts pixels to values.
fn makes_values(step: &dyn Transform) -> bool {
    step.value(0, 0.0).is_some()
}

/// The value for the model of each value of a channel: its share of white, unless the last
/// transform converts it.
fn table(dtype: PixelDtype, channel: usize, last: Option<&dyn Transform>) -> Vec<f32> {
    let white = (1_usize << (8 * dtype.bytes())) - 1;
    let shares = (0..=white).map(|value| value as f32 / white as f32);
    shares.map(|share| last.and_then(|last| last.value(channel, share)).unwrap_or(share)).collect()
}

/// Own numbers for each step: how many one of them draws does not move the others.
fn stream(key: Option<Key>, position: usize) -> Option<Stream> {
    key.map(|key| key.with(position as u64).stream())
}

fn unusable(what: &str) -> Error {
    Error::Transforms { what: what.to_owned() }
}

#[cfg(test)]
mod tests {
    use test_support::assert_refused;

    use super::*;
    use crate::config::values::Shape2;
    use crate::rng::Purpose;
    use crate::transform::golden::picture;
    use crate::transform::{
        ColorJitter, Grayscale, Normalize, RandomErasing, RandomHorizontalFlip, RandomResizedCrop,
        RandomRotation, Resize,
    };

    /// Colour images of any size.
    const ANY: Images = Images { channels: 3, size: None, dtype: PixelDtype::Uint8, cameras: 0 };

    fn augmented(key: Option<Key>) -> Vec<f32> {
        let size = Shape2::Both([8, 10]);
        let crop = RandomResizedCrop {
            scale: [0.2, 1.0],
            ratio: [0.75, 1.33],
            ..RandomResizedCrop::to(size)
        };
        let color = ColorJitter { brightness: 0.2, contrast: 0.2, saturation: 0.2, hue: 0.1 };
        let list = [
            Choice::of(&crop),
            Choice::of(&RandomHorizontalFlip { p: 0.5 }),
            Choice::of(&RandomRotation { degrees: 15.0 }),
            Choice::of(&color),
            Choice::of(&Normalize::new(&[0.5], &[0.25])),
        ];
        let pipeline = Pipeline::new(&list, &Transforms::default(), ANY).unwrap();
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
    fn what_always_happens_does_so_without_a_key_too() {
        let run = |list: &[Choice]| {
            let images = Images::new(3, Some((4, 5)));
            let pipeline = Pipeline::new(list, &Transforms::default(), images).unwrap();
            let mut values = Vec::new();
            pipeline.run(Decoded::whole(picture(3, 4, 5)), None, &mut values).unwrap();
            values
        };
        let always = Choice::of(&RandomHorizontalFlip { p: 1.0 });
        let plain = run(&[]);
        let mut mirrored = plain.clone();
        mirrored.chunks_exact_mut(5).for_each(<[f32]>::reverse);
        assert_eq!(run(std::slice::from_ref(&always)), mirrored);
        assert_eq!(run(&[always.clone(), always]), plain);
        assert_eq!(run(&[Choice::of(&RandomHorizontalFlip { p: 0.9 })]), plain);
    }

    #[test]
    fn transforms_that_leave_sizes_different_are_refused() {
        let new = |list: &[Choice], channels, size| {
            Pipeline::new(list, &Transforms::default(), Images::new(channels, size))
        };
        let shorter = [Choice::of(&Resize::to(Shape2::Side(8)))];
        assert_refused(new(&shorter, 3, None), "images would keep different sizes");
        assert_eq!(new(&shorter, 1, Some((28, 14))).unwrap().shape(), [1, 16, 8]);
        assert_refused(new(&[], 3, None), "images would keep different sizes");
        let twice = [Choice::of(&Normalize::identity()), Choice::of(&Normalize::identity())];
        assert_refused(new(&twice, 3, Some((4, 4))), "`normalize` must come last, and once");
    }

    #[test]
    fn grey_images_have_one_channel_and_values_are_erased_after_normalising() {
        let erase = RandomErasing { p: 1.0, value: vec![-5.0], ..RandomErasing::default() };
        let list = [
            Choice::of(&Grayscale::default()),
            Choice::of(&Normalize::new(&[0.5], &[0.5])),
            Choice::of(&erase),
        ];
        let images = Images::new(3, Some((12, 17)));
        let pipeline = Pipeline::new(&list, &Transforms::default(), images).unwrap();
        assert_eq!(pipeline.shape(), [1, 12, 17]);
        let run = |key| {
            let mut values = vec![7.0];
            pipeline.run(Decoded::whole(picture(3, 12, 17)), key, &mut values).unwrap();
            values
        };
        let (plain, erased) = (run(None), run(Some(Key::new(3, Purpose::Augment, 0, 1))));
        assert_eq!((plain.len(), plain[0], erased[0]), (205, 7.0, 7.0));
        let differing = plain.iter().zip(&erased).filter(|(a, b)| a != b);
        let written: Vec<f32> = differing.map(|(_, &written)| written).collect();
        assert!(!written.is_empty() && written.iter().all(|&value| value == -5.0));
        let early = [Choice::of(&erase), Choice::of(&Grayscale::default())];
        assert_refused(
            Pipeline::new(&early, &Transforms::default(), images),
            "`random_erasing` must come after what changes pixels",
        );
    }

    #[test]
    fn bytes_become_normalised_planes() {
        let image = Pixels::new(3, [1, 2], vec![0, 128, 255, 51, 102, 204]);
        let imagenet = Normalize::new(&[0.485, 0.456, 0.406], &[0.229, 0.224, 0.225]);
        let list = [Choice::of(&imagenet)];
        let images = Images::new(3, Some((1, 2)));
        let pipeline = Pipeline::new(&list, &Transforms::default(), images).unwrap();
        let mut values = Vec::new();
        pipeline.run(Decoded::whole(image), None, &mut values).unwrap();
        // (x / 255 - mean) / std by hand, planes first.
        let expected = [-2.117_904, -1.244_541_5, 0.205_182_1, -0.25, 2.64, 1.751_111];
        assert_eq!(values.len(), 6);
        for (value, expected) in values.iter().zip(expected) {
            assert!((value - expected).abs() < 1e-5, "{values:?}");
        }
    }
}
