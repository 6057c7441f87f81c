//! Behaviour to imitate.

mod chunk;
mod episodes;
mod pixel_stats;
mod npz;
mod parquet;
pub(crate) mod windows;
mod push_t_like;
mod trajectories;

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use chunk::Behaviour;
pub use chunk::{Chunk, Policy, Ranges, scaled, unscaled};
pub use push_t_like::PushTLike;
pub use trajectories::Trajectories;
pub use windows::{CameraTransform, cameras};
