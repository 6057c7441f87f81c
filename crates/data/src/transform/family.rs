//! The family of transforms.

use std::fmt::Debug;

use crate::config::kind::{Kind, Options};
use crate::plan::Unfit;
use crate::registry::{Accepts, Family, Registry};
use crate::rng::Stream;
use crate::transform::{Area, Images, Pixels, Sides};

/// A transform of an image before a model sees it.
pub trait Transform: Debug + Send + Sync {
    /// Size of all images after it; `None` = they may differ.
    fn size(&self, images: &Images) -> Result<Option<Sides>, Unfit> {
        Ok(images.size)
    }

    /// Channels of an image after it.
    fn channels(&self, channels: usize) -> usize {
        channels
    }

    /// The area that it looks at, of an image of (height, width) `size`: pixels outside of it are
    /// not decoded where it is the first of its list.
    fn area(&self, size: (usize, usize), stream: Option<&mut Stream>) -> Area {
        let _ = stream;
        Area::whole(size)
    }

    /// The image after it; `area` is the one that it looks at. Random numbers come from `stream`,
    /// after those that [`Transform::area`] drew; without one nothing is random.
    fn apply(
        &self,
        image: Pixels,
        area: Area,
        stream: Option<&mut Stream>,
    ) -> Result<Pixels, String>;

    /// True if it draws random numbers when it gets a stream of them, so that it belongs to
    /// training.
    fn is_random(&self) -> bool {
        false
    }

    /// True if it also takes images of 16 bits: it changes no value by itself, or asks for
    /// [`Pixels::dtype`]. The plan refuses others for them.
    fn takes_uint16(&self) -> bool {
        false
    }

    /// The value for the model of a channel's `value` from 0 (black) to 1 (white), by a transform
    /// that is the last of its list; `None` leaves it to others.
    fn value(&self, channel: usize, value: f32) -> Option<f32> {
        let _ = (channel, value);
        None
    }

    /// Facts beside the options that another program needs to do the same to an image that is
    /// evaluated.
    fn evaluated(&self) -> Options {
        Options::new()
    }

    /// True if it changes values instead of pixels: it stands after the conversion of pixels to
    /// values.
    fn changes_values(&self) -> bool {
        false
    }

    /// Changes the values of an image, (channels, height, width) of `shape`. Random numbers come
    /// from `stream`; without one nothing is random.
    fn change(&self, values: &mut [f32], shape: [usize; 3], stream: Option<&mut Stream>) {
        let _ = (values, shape, stream);
    }
}

/// A transform that changes the whole image with a probability, or leaves it as it is.
pub trait RandomlyApplied: Debug + Send + Sync {
    /// The probability.
    fn p(&self) -> f64;

    /// The image after the change.
    fn changed(&self, image: Pixels) -> Pixels;

    /// [`Transform::takes_uint16`]
    fn takes_16_bits(&self) -> bool {
        false
    }
}

impl<T: RandomlyApplied> Transform for T {
    fn apply(&self, image: Pixels, _: Area, stream: Option<&mut Stream>) -> Result<Pixels, String> {
        Ok(if happens(self.p(), stream) { self.changed(image) } else { image })
    }

    fn is_random(&self) -> bool {
        true
    }

    fn takes_uint16(&self) -> bool {
        self.takes_16_bits()
    }
}

/// Draws an event of probability `p`; without randomness only a certain one happens.
pub(super) fn happens(p: f64, stream: Option<&mut Stream>) -> bool {
    stream.map_or(p >= 1.0, |stream| stream.uniform() < p)
}

/// True for [least, most], above 0.
pub(super) fn is_range([low, high]: [f64; 2]) -> bool {
    low > 0.0 && low <= high && high.is_finite()
}

/// `[[data.transforms.train]]` and `[[data.transforms.val]]`
#[derive(Debug)]
pub enum TransformFamily {}

impl Family for TransformFamily {
    const TABLE: &'static str = "data.transforms";
    const NOUN: &'static str = "transform";
    const LISTS: &'static [&'static str] = &["data.transforms.train", "data.transforms.val"];
    type Object = dyn Transform;
}

impl<K: Kind + Transform> Accepts<K> for TransformFamily {
    fn boxed(kind: K) -> Box<dyn Transform> {
        Box::new(kind)
    }
}

/// Transforms that a program knows.
pub type Transforms = Registry<TransformFamily>;
