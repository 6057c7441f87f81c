//! `[data]`: what is read, in which order, and what becomes of each image.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Entry, Options};
use crate::config::values::Auto;

/// `[data]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Data {
    /// Which data set.
    pub name: String,
    /// Loader threads per rank; 0 loads in the training thread.
    pub num_workers: Auto<u32>,
    /// Batches that each loader thread prepares ahead.
    pub prefetch_factor: u32,
    /// Drop the samples that do not fill a global batch at the end of an epoch.
    pub drop_last: bool,
    /// New order in each epoch.
    pub shuffle: bool,
    /// "shards" (same samples per step at any world size) or "torch" (`DistributedSampler`'s order).
    pub sampler: Sampler,
    /// What to do about a sample that cannot be read.
    pub on_bad_sample: OnBadSample,
    /// Largest share of unreadable samples that is passed over.
    pub max_bad_fraction: f64,
    /// Image transforms.
    pub transforms: Transforms,
    /// What only some data sets have.
    #[serde(default)]
    pub options: Options,
}

/// Order of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Sampler {
    /// The global batch is cut into shards; independent of the world size.
    Shards,
    /// `torch.utils.data.DistributedSampler`, bit for bit.
    Torch,
}

/// Policy for samples that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnBadSample {
    /// Stop and name the file.
    Error,
    /// Use the next readable sample in file order instead, and count it.
    Skip,
}

/// `[data.transforms]`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Transforms {
    /// Applied to training images, in order.
    pub train: Vec<Entry>,
    /// Applied to validation images, in order.
    pub val: Vec<Entry>,
}
