//! 8-bit pixels -> the values that the model receives, by torchvision's standard transforms.
//!
//! Each transform is a file of its own: its options, the size that it leads to, and what it does. Ours follow
//! torchvision on PIL images, rounding included. All randomness comes from the caller's key; without a key each
//! transform does the middle of what it might do: crops are centred, and nothing is flipped, rotated or coloured.

mod center_crop;
mod color_jitter;
mod cut;
mod normalize;
mod pipeline;
mod pixels;
mod random_crop;
mod random_horizontal_flip;
mod random_resized_crop;
mod random_rotation;
mod resize;
pub(crate) mod spare;

use std::fmt::Debug;

use crate::config::kind::{Choice, Kind};
use crate::config::values::Shape2;
pub use crate::plan::{Images, Sides};
use crate::plan::{TransformFacts, Unfit};
use crate::registry::{Family, Member, Registry};
use crate::rng::Stream;
pub use center_crop::CenterCrop;
pub use color_jitter::ColorJitter;
pub use normalize::Normalize;
pub(crate) use pipeline::Pipeline;
pub(crate) use pixels::Decoded;
pub use pixels::{Area, Pixels};
pub use random_crop::RandomCrop;
pub use random_horizontal_flip::RandomHorizontalFlip;
pub use random_resized_crop::RandomResizedCrop;
pub use random_rotation::RandomRotation;
pub use resize::Resize;

/// What is done to an image before a model sees it.
pub trait Transform: Debug + Send + Sync {
    /// Size of all images after it; `None` = they may differ.
    ///
    /// # Errors
    ///
    /// The option that does not go with such images.
    fn size(&self, images: &Images) -> Result<Option<Sides>, Unfit> {
        Ok(images.size)
    }

    /// The area that it looks at, of an image of (height, width) `size`: pixels outside of it are not decoded where it is
    /// the first of its list.
    fn area(&self, size: (usize, usize), stream: Option<&mut Stream>) -> Area {
        let _ = stream;
        Area::whole(size)
    }

    /// The image after it; `area` is the one that it looks at. Random numbers come from `stream`, after those that
    /// [`Transform::area`] drew; without one nothing is random.
    ///
    /// # Errors
    ///
    /// Why it does not fit this image, in words.
    fn apply(
        &self,
        image: Pixels,
        area: Area,
        stream: Option<&mut Stream>,
    ) -> Result<Pixels, String>;

    /// The value that each byte of a channel becomes, of a transform that is the last of its list; `None` leaves it to
    /// others.
    fn values(&self, channel: usize) -> Option<[f32; 256]> {
        let _ = channel;
        None
    }
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

impl<K: Kind + Transform> Member<TransformFamily> for K {
    fn boxed(self) -> Box<dyn Transform> {
        Box::new(self)
    }
}

/// Transforms that a program knows.
pub type Transforms = Registry<TransformFamily>;

impl Default for Transforms {
    /// Those that come with ddprun.
    fn default() -> Self {
        let mut all = Self::empty();
        all.add::<Resize>();
        all.add::<CenterCrop>();
        all.add::<RandomCrop>();
        all.add::<RandomResizedCrop>();
        all.add::<RandomHorizontalFlip>();
        all.add::<RandomRotation>();
        all.add::<ColorJitter>();
        all.add::<Normalize>();
        all
    }
}

impl Transforms {
    /// The transforms `asked` for such images, with those that are always there, and the size that they lead to.
    ///
    /// # Errors
    ///
    /// The place in the list of one that does not fit, and why.
    pub fn facts(
        &self,
        asked: &[Choice],
        images: &Images,
    ) -> Result<TransformFacts, (usize, Unfit)> {
        let (mut size, mut ends_in_values) = (images.size, false);
        for (index, choice) in asked.iter().enumerate() {
            let unknown = |what: String| Unfit { key: "name", what, help: None };
            let transform =
                self.build(choice).map_err(|error| (index, unknown(error.to_string())))?;
            let images = Images { size, ..*images };
            size = transform.size(&images).map_err(|unfit| (index, unfit))?;
            ends_in_values = transform.values(0).is_some();
        }
        let mut list = asked.to_vec();
        if let Some((height, width)) = images.size.filter(|_| images.channels == 3) {
            // Generated images have this size already; said so that their reader can rely on it.
            list.insert(0, Choice::of(&Resize { size: Shape2::Both([height, width]) }));
        }
        if !ends_in_values {
            list.push(Choice::of(&Normalize::identity()));
        }
        Ok(TransformFacts { list, size })
    }
}

#[cfg(test)]
pub(in crate::data) mod tests {
    use super::*;
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
}
