//! Speech: the data set `speech`, recordings to mel features, and the models `fastconformer` and
//! `nest`, which learn from them.
//!
//! ```
//! use ddprun_data::DataSources;
//! use ddprun_train::model::Models;
//!
//! let (mut data, mut models) = (DataSources::default(), Models::default());
//! ddprun_speech::register(&mut data, &mut models);
//! assert!(data.kind("speech").is_some() && models.kind("nest").is_some());
//! ```
#![expect(missing_docs, reason = "\"The file.\" over `path: PathBuf` says nothing")]

use candle_train::{nn, onnx, ops};
use ddprun_data as data;
#[cfg(test)]
use ddprun_host::files;
use ddprun_plan::{config, plan};
use ddprun_train::model;
#[cfg(test)]
use test_support::skipped;
use train_numbers::rng;
mod mel;
mod noise;
mod wav;
mod audio;
mod resample;
mod utterances;
mod folder;
mod manifest;
mod source;
mod frames;
mod conformer;
mod fastconformer;
mod nest;
mod classifier;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod model_tests;

use crate::data::DataSources;
use crate::model::Models;

pub use classifier::FastConformerConfig;
pub use mel::LogMel;
pub use nest::{Nest, NestConfig};
pub use source::Speech;
#[cfg(feature = "fuzzing")]
pub use utterances::features;

/// Adds the data set and the models.
pub fn register(data: &mut DataSources, models: &mut Models) {
    data.add::<Speech>();
    models.add::<NestConfig>();
    models.add::<FastConformerConfig>();
}
