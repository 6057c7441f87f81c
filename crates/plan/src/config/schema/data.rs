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
    /// "shards" (same samples per step at any world size), "torch" (`DistributedSampler`'s order),
    /// or draws with replacement: "balanced" (each class as often), "weighted" (by
    /// `class_weights`).
    pub sampler: Sampler,
    /// How often a sample of each class is drawn, in label order.
    #[serde(default)]
    pub class_weights: Option<Vec<f64>>,
    /// Most training samples that are taken.
    #[serde(default)]
    pub limit: Option<u64>,
    /// Share of the training samples that is taken.
    #[serde(default)]
    pub fraction: Option<f64>,
    /// Share of the training samples that is held back to validate on.
    #[serde(default)]
    pub val_fraction: Option<f64>,
    /// Share of the training samples that is held back to test on when the training is over.
    #[serde(default)]
    pub test_fraction: Option<f64>,
    /// Cross-validation: parts of the training samples, of which one validates.
    #[serde(default)]
    pub folds: Option<u64>,
    /// Which one, from 0.
    #[serde(default)]
    pub fold: Option<u64>,
    /// Seed of what is held back.
    pub split_seed: u64,
    /// How often each training sample is in a batch, augmented anew each time.
    pub aug_repeats: u32,
    /// What to do about a sample that cannot be read.
    pub on_bad_sample: OnBadSample,
    /// Largest share of unreadable samples that is passed over.
    pub max_bad_fraction: f64,
    /// Image transforms.
    pub transforms: Transforms,
    /// How training images are mixed in pairs.
    pub mixup: Mixup,
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
    /// Drawn with replacement, each class equally often; independent of the world size.
    Balanced,
    /// Drawn with replacement, a sample as often as its class weighs; independent of the world
    /// size.
    Weighted,
}

impl Sampler {
    /// Whether samples are drawn with replacement.
    pub fn draws(self) -> bool {
        matches!(self, Self::Balanced | Self::Weighted)
    }
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

/// `[data.mixup]`, by the names of timm
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Mixup {
    /// Parameter of the distribution of mixup's shares; 0 = no mixup.
    pub mixup_alpha: f64,
    /// Parameter of the distribution of `CutMix`'s shares; 0 = no `CutMix`.
    pub cutmix_alpha: f64,
    /// Probability that images are mixed.
    pub prob: f64,
    /// Probability of `CutMix` where both are on.
    pub switch_prob: f64,
    /// What is drawn together.
    pub mode: MixupMode,
    /// Epochs after which mixing stops.
    pub off_epoch: Option<u64>,
}

/// What is drawn together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MixupMode {
    /// One draw for all pairs of a global batch.
    #[default]
    Batch,
    /// One draw for each pair.
    Pair,
}

impl Mixup {
    /// The key that turns it on, if one does.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let keys = [("mixup_alpha", self.mixup_alpha), ("cutmix_alpha", self.cutmix_alpha)];
        keys.into_iter().find(|(_, alpha)| *alpha > 0.0).map(|(key, _)| key)
    }
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
