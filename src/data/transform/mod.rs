//! 8-bit pixels -> the values that the model receives, by torchvision's standard transforms.
//!
//! Each transform is a file of its own: its options, the size that it leads to, and what it does. Ours follow
//! torchvision on PIL images, rounding included. All randomness comes from the caller's key; without a key each
//! transform does the middle of what it might do: crops are centred, and nothing is flipped, rotated or coloured.

pub(crate) mod spare;
mod pixels;
mod cut;
mod family;
mod center_crop;
mod color_jitter;
mod normalize;
mod random_crop;
mod random_horizontal_flip;
mod resize;
mod random_resized_crop;
mod random_rotation;
mod registered;
mod pipeline;
#[cfg(test)]
pub(in crate::data) mod tests;

pub use crate::plan::{Images, Sides};
pub use center_crop::CenterCrop;
pub use color_jitter::ColorJitter;
pub use family::{Transform, TransformFamily, Transforms};
pub use normalize::Normalize;
pub(crate) use pipeline::Pipeline;
pub(crate) use pixels::Decoded;
pub use pixels::{Area, Pixels};
pub use random_crop::RandomCrop;
pub use random_horizontal_flip::RandomHorizontalFlip;
pub use random_resized_crop::RandomResizedCrop;
pub use random_rotation::RandomRotation;
pub use resize::Resize;
