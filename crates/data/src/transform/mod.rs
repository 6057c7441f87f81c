//! Pixels -> the values that the model receives, by torchvision's standard transforms.
//!
//! Each transform is a file of its own: its options, the size that it leads to, and what it does.
//! Ours follow torchvision on PIL images, rounding included. All randomness comes from the caller's
//! key; without a key each transform does the middle of what it might do: crops are centred, and
//! nothing is flipped, rotated or coloured, but what always happens (`p = 1`) does so there, too.

pub(crate) mod buffer_pool;
mod pixels;
mod crop;
mod affine;
mod enhance;
mod image_ops;
mod augmentation_space;
mod family;
mod center_crop;
mod color_jitter;
mod corner_crop;
mod gaussian_blur;
mod grayscale;
mod normalize;
mod rand_augment;
mod random_adjust_sharpness;
mod random_affine;
mod random_autocontrast;
mod random_crop;
mod random_equalize;
mod random_erasing;
mod random_grayscale;
mod random_horizontal_flip;
mod random_invert;
mod random_posterize;
mod resize;
mod random_resized_crop;
mod random_rotation;
mod random_solarize;
mod random_vertical_flip;
mod alternating_horizontal_flip;
mod trivial_augment_wide;
mod registered;
mod pipeline;
#[cfg(test)]
pub(crate) mod tests;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod uint16_tests;

pub use crate::plan::{Images, PixelDtype, Sides};
pub use alternating_horizontal_flip::AlternatingHorizontalFlip;
pub use center_crop::CenterCrop;
pub use color_jitter::ColorJitter;
pub(crate) use corner_crop::{CROPS, with_center_crop_at};
pub(crate) use family::happens;
pub use family::{ByChance, Transform, TransformFamily, Transforms};
pub use gaussian_blur::GaussianBlur;
pub use grayscale::Grayscale;
pub use normalize::Normalize;
pub(crate) use pipeline::Pipeline;
pub(crate) use pixels::Decoded;
pub use pixels::{Area, Pixels};
pub use rand_augment::RandAugment;
pub use random_adjust_sharpness::RandomAdjustSharpness;
pub use random_affine::RandomAffine;
pub use random_autocontrast::RandomAutocontrast;
pub use random_crop::{PaddingMode, RandomCrop};
pub use random_equalize::RandomEqualize;
pub use random_erasing::RandomErasing;
pub use random_grayscale::RandomGrayscale;
pub use random_horizontal_flip::RandomHorizontalFlip;
pub use random_invert::RandomInvert;
pub use random_posterize::RandomPosterize;
pub use random_resized_crop::RandomResizedCrop;
pub use random_rotation::RandomRotation;
pub use random_solarize::RandomSolarize;
pub use random_vertical_flip::RandomVerticalFlip;
pub use registered::facts;
pub use resize::{Interpolation, Resize};
pub use trivial_augment_wide::TrivialAugmentWide;
