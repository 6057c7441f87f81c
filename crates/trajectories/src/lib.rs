//! Robot demonstrations and policies: recorded or generated trajectories as data sets, and the models
//! that imitate them.
//!
//! The program has them with its feature `trajectories`; a program without it adds them by
//! [`register`]:
//!
//! ```
//! use ddprun_data::DataSources;
//! use ddprun_train::model::Models;
//!
//! let (mut data, mut models) = (DataSources::default(), Models::default());
//! ddprun_trajectories::register(&mut data, &mut models);
//! assert!(data.kind("trajectories").is_some() && models.kind("diffusion_policy").is_some());
//! ```

use candle_train::{nn, onnx, ops};
use ddprun_data as data;
#[cfg(test)]
use ddprun_host::{files, user_error};
use ddprun_plan::{config, plan};
use ddprun_train::model;
#[cfg(test)]
use test_support::{mutated, skipped};
use train_numbers::{rng, units};
mod chunk;
mod episodes;
mod pixel_stats;
mod npz_reader;
mod parquet_images;
mod parquet_reader;
mod windows;
mod push_t_like;
mod trajectories;
pub mod policy;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz_readers;

pub use push_t_like::PushTLike;
pub use trajectories::Trajectories;
pub use windows::cameras;

use crate::data::DataSources;
use crate::model::Models;
use crate::policy::{DiffusionPolicyConfig, DiffusionPolicyImageConfig};

/// Adds the data sets and models of this package.
pub fn register(data: &mut DataSources, models: &mut Models) {
    data.add::<Trajectories>();
    data.add::<PushTLike>();
    models.add::<DiffusionPolicyConfig>();
    models.add::<DiffusionPolicyImageConfig>();
}
