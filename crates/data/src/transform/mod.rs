//! Pixels -> the values that the model receives, by torchvision's standard transforms.
//!
//! A file holds one transform or a few about the same subject: options, resulting size, and effect.
//! Ours follow torchvision on PIL images, rounding included. All randomness comes from the caller's
//! key; without a key each transform does the middle of what it might do: crops are centred, and
//! nothing is flipped, rotated or coloured, but what always happens (`p = 1`) does so there, too.

mod pixels;
mod family;
mod crop;
mod affine;
mod enhance;
mod image_ops;
mod auto_augment;
mod flips;
mod color_jitter;
mod gaussian_blur;
mod normalize;
mod random_affine;
mod random_erasing;
mod resize;
mod random_resized_crop;
mod random_rotation;
mod registered;
mod pipeline;
#[cfg(test)]
pub(crate) mod golden;
#[cfg(test)]
mod uint16_tests;

pub use crate::plan::{Images, PixelDtype, Sides};
pub use auto_augment::{RandAugment, TrivialAugmentWide};
pub use color_jitter::ColorJitter;
pub(crate) use crop::{CROPS, with_center_crop_at};
pub use crop::{CenterCrop, PaddingMode, RandomCrop};
pub use enhance::{Grayscale, RandomAdjustSharpness, RandomGrayscale};
pub use family::{RandomlyApplied, Transform, TransformFamily, Transforms};
use family::{happens, is_range};
pub use flips::{AlternatingHorizontalFlip, RandomHorizontalFlip, RandomVerticalFlip};
pub use gaussian_blur::GaussianBlur;
pub use image_ops::{
    RandomAutocontrast, RandomEqualize, RandomInvert, RandomPosterize, RandomSolarize,
};
pub use normalize::Normalize;
pub(crate) use pipeline::Pipeline;
pub use pixels::{Area, Decoded, Pixels};
pub(crate) use pixels::{give_buffer, take_buffer};
pub use random_affine::RandomAffine;
pub use random_erasing::RandomErasing;
pub use random_resized_crop::RandomResizedCrop;
pub use random_rotation::RandomRotation;
pub use registered::facts;
pub use resize::{Interpolation, Resize};
