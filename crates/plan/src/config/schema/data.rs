//! `[data]`: what is read, in which order, and what becomes of each image.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Entry, Options};
use crate::config::schema::{MAX_EPOCHS, MAX_STEPS};
use crate::config::table::{SAFE, table};
use crate::config::values::Auto;

/// Why a key changes no evaluation.
const TRAINING_ONLY: &str = "it concerns training samples only";

table! {
    /// What the model is trained and validated on.
    pub struct Data {
        /// The data set. Paths are relative to the folder in which ddprun is started. Required:
        #[schemars(example = &"image_folder")]
        pub name: String,
        /// Options of the data set.
        pub options: Options,
        /// Fetch the files of a well-known data set that are not at their paths, and check their
        /// hashes: folders mnist and fashion-mnist; files ETTh1.csv, ETTh2.csv, ETTm1.csv,
        /// ETTm2.csv, `exchange_rate.csv` and tinyshakespeare/input.txt.
        #[schemars(extend("x-resume" = SAFE))]
        pub download: bool = false,
        /// Loader threads per rank; 0 loads in the training thread; "auto" = cores / ranks, at most
        /// 4.
        #[schemars(extend(
            "minimum" = 0, "maximum" = 256, "x-resume" = SAFE, "x-aliases" = ["workers"],
        ))]
        pub num_workers: Auto<u32> = Auto::Auto,
        /// Batches that each loader thread prepares ahead.
        #[schemars(range(min = 1, max = 64), extend("x-resume" = SAFE))]
        pub prefetch_factor: u32 = 2,
        /// Drop the samples at the end of an epoch that do not fill a global batch. With `false`,
        /// some ranks may get no samples in the last step; a model with BatchNorm is refused if a
        /// pass would give a channel only a single value.
        #[schemars(extend("x-eval" = TRAINING_ONLY))]
        pub drop_last: bool = true,
        /// Shuffle the samples anew in each epoch.
        #[schemars(extend("x-eval" = TRAINING_ONLY))]
        pub shuffle: bool = true,
        /// "shards": the same samples in the same step on any number of ranks. "torch": exactly the
        /// order of PyTorch's `DistributedSampler`, which depends on the number of ranks.
        /// "balanced" and "weighted" draw an epoch's samples with replacement, the same ones on any
        /// number of ranks: each class equally often, or in proportion to `class_weights`.
        #[schemars(extend("x-eval" = TRAINING_ONLY))]
        pub sampler: Sampler = Sampler::Shards,
        /// For `sampler = "weighted"`: a weight for each class, in label order. A class with weight
        /// 0 is never drawn.
        #[schemars(extend(
            "examples" = [[1.0, 3.0]], "x-eval" = TRAINING_ONLY,
            "x-aliases" = ["weight", "weights"],
        ))]
        pub class_weights: Option<Vec<f64>>,
        /// Train on only this many samples, stratified by class. The choice is the same in every
        /// run, and a smaller subset is contained in a larger one.
        #[schemars(
            range(min = 1, max = MAX_STEPS), example = 1000, extend("x-eval" = TRAINING_ONLY),
        )]
        pub limit: Option<u64>,
        /// Train on only this fraction of the samples, chosen as by `limit`.
        #[schemars(
            example = 0.1,
            extend("exclusiveMinimum" = 0.0, "maximum" = 1.0, "x-eval" = TRAINING_ONLY),
        )]
        pub fraction: Option<f64>,
        /// Fraction of the training samples (of each class) held out for validation, for data
        /// without a validation split. If the data set has a fixed one (mnist, shapes), that split
        /// is then used for testing. What belongs together is held out together: rows of a `group`,
        /// all windows of an episode. For a text, its end is held out.
        #[schemars(example = 0.2, extend("exclusiveMinimum" = 0.0, "exclusiveMaximum" = 1.0))]
        pub val_fraction: Option<f64>,
        /// Fraction held out for a single test of the best weights at the end of training.
        #[schemars(example = 0.1, extend("exclusiveMinimum" = 0.0, "exclusiveMaximum" = 1.0))]
        pub test_fraction: Option<f64>,
        /// Cross-validation: divide the training samples into this many folds, and validate on
        /// `fold`. A sweep over `data.fold` runs all folds.
        #[schemars(range(min = 2, max = 1000), example = 5)]
        pub folds: Option<u64>,
        /// The fold to validate on, from 0; 0 by default.
        #[schemars(range(min = 0, max = 999), example = 0)]
        pub fold: Option<u64>,
        /// Seed of the split: it is the same in every run, whatever `experiment.seed` is.
        pub split_seed: u64 = 0,
        /// Repeated augmentation, as timm's `RepeatAugSampler`: each sample is in a batch this many
        /// times, each time with fresh augmentation, on any number of ranks. An epoch has as many
        /// samples as before, so only one in `aug_repeats` is distinct.
        #[schemars(range(min = 1, max = 64), extend("x-eval" = TRAINING_ONLY))]
        pub aug_repeats: u32 = 1,
        /// What to do with a sample that cannot be read: "error" ends the run and names it. "skip"
        /// counts it, and replaces it by the next readable one in training; evaluations leave it
        /// out.
        #[schemars(extend("x-resume" = SAFE))]
        pub on_bad_sample: OnBadSample = OnBadSample::Error,
        /// "skip" ends the run with an error once more than this fraction of an epoch's or an
        /// evaluation's samples cannot be read, over all ranks; 0 to 1. An evaluation without any
        /// readable sample is always an error.
        #[schemars(range(min = 0.0, max = 1.0), extend("x-resume" = SAFE))]
        pub max_bad_fraction: f64 = 0.1,
        /// Image transforms, in order, for training and for validation. Both lists must produce the
        /// same height and width. Names and options are torchvision's; without `normalize`, pixels
        /// are only scaled to 0..1.
        pub transforms: Transforms,
        /// Mixes pairs of training images and their labels, with timm's option names and
        /// arithmetic. A sample is mixed with its neighbour in the global batch, so a step is the
        /// same on any number of ranks and with any micro-batch size. The loss must accept class
        /// probabilities, as `cross_entropy` does.
        pub mixup: Mixup,
    }
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
    /// True if samples are drawn with replacement.
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

table! {
    /// How training images are mixed.
    #[schemars(extend("x-eval" = TRAINING_ONLY))]
    pub struct Mixup {
        /// Mixing coefficients are drawn from Beta(alpha, alpha); timm's recipes use 0.1 to 0.8. 0:
        /// no mixup.
        #[schemars(range(min = 0.0), extend("x-aliases" = ["alpha", "mixup"]))]
        pub mixup_alpha: f64 = 0.0,
        /// The same for the areas of CutMix; 1.0 is usual. 0: no CutMix.
        #[schemars(range(min = 0.0), extend("x-aliases" = ["cutmix"]))]
        pub cutmix_alpha: f64 = 0.0,
        /// Probability that images are mixed at all.
        #[schemars(range(min = 0.0, max = 1.0))]
        pub prob: f64 = 1.0,
        /// Probability of CutMix instead of mixup, if both are on.
        #[schemars(range(min = 0.0, max = 1.0))]
        pub switch_prob: f64 = 0.5,
        /// "batch": one coefficient per global batch; "pair": one per pair.
        pub mode: MixupMode,
        /// Stop mixing after this many epochs.
        #[schemars(range(min = 1, max = MAX_EPOCHS), example = 280)]
        pub off_epoch: Option<u64>,
    }
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

table! {
    /// What is done to each image.
    pub struct Transforms {
        /// For training images.
        #[schemars(extend("x-eval" = TRAINING_ONLY))]
        pub train: Vec<Entry>,
        /// For validation images.
        pub val: Vec<Entry>,
    }
}
