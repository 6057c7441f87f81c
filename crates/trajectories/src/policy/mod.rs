//! Models that imitate behaviour: diffusion policies, and the parts that they are made of.

pub mod diffusion;
mod unet1d;
mod denoiser;
mod rgb_encoder;
mod diffusion_policy;
mod diffusion_policy_image;
#[cfg(test)]
mod tests;

pub use diffusion::NoiseScheduler;
pub use diffusion_policy::{DiffusionPolicy, DiffusionPolicyConfig};
pub use diffusion_policy_image::{DiffusionPolicyImage, DiffusionPolicyImageConfig};
pub use rgb_encoder::VisionBackbone;
