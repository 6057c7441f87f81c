//! The data, and how each rank reads it.

mod subset;

use serde::{Deserialize, Serialize};

use crate::config::kind::Choice;
use crate::config::{Experiment, Loaded, Problem};
use crate::plan::batch::counted;
use crate::plan::mixup;
use crate::plan::transforms::Transformed;
use crate::plan::{
    DataFacts, MixupPlan, OnBadSample, Sampler, SourcePlan, SplitPlan, TargetColumn,
};
pub use subset::{Limit, shares};

/// The data and how it is read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DataPlan {
    /// Where the samples are.
    pub source: SourcePlan,
    /// Samples to train on.
    pub n_train: usize,
    /// Samples to validate on.
    pub n_val: usize,
    /// Samples to test on when the training is over; 0 = there is no test.
    #[serde(default)]
    pub n_test: usize,
    /// What is worth a look about the data, in words.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Class names in label order; empty for regression.
    pub classes: Vec<String>,
    /// The numbers of a target that have names.
    #[serde(default)]
    pub target_columns: Vec<TargetColumn>,
    /// Bytes of text of each class, if they are tokens of which that is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub token_bytes: Vec<u32>,
    /// What is held back of the training samples.
    pub split: SplitPlan,
    /// Order of samples.
    pub sampler: Sampler,
    /// For draws by classes: the weight of each; empty where all classes are drawn equally often.
    #[serde(default)]
    pub class_weights: Vec<f64>,
    /// Training samples that the data set has, of which `n_train` are taken; `None` = all of them.
    #[serde(default)]
    pub subset_of: Option<usize>,
    /// How often each sample is in a batch, augmented anew each time.
    pub aug_repeats: usize,
    /// New order in each epoch.
    pub shuffle: bool,
    /// Whether the incomplete last global batch of an epoch is dropped.
    pub drop_last: bool,
    /// Loader threads per rank.
    pub num_workers: usize,
    /// Batches prepared ahead per loader thread.
    pub prefetch_factor: usize,
    /// Policy for unreadable samples.
    pub on_bad_sample: OnBadSample,
    /// Largest share of unreadable samples that is passed over, of an epoch as of an evaluation.
    pub max_bad_fraction: f64,
    /// Transforms of training images.
    pub train_transforms: Vec<Choice>,
    /// Transforms of validation images.
    pub val_transforms: Vec<Choice>,
    /// How training images are mixed in pairs; absent = not at all.
    #[serde(default)]
    pub mixup: Option<MixupPlan>,
}

impl DataPlan {
    /// Whether `unreadable` of `samples` may be passed over. Never all of them: nothing would be
    /// learnt or measured.
    pub fn tolerates(&self, unreadable: u64, samples: u64) -> bool {
        let most = self.max_bad_fraction * samples as f64;
        unreadable == 0 || (unreadable < samples && unreadable as f64 <= most)
    }
}

/// Whether samples can be drawn by their classes, if that is asked for.
pub(crate) fn check(loaded: &Loaded, found: &DataFacts) -> Result<(), Problem> {
    let asked = &loaded.experiment.data;
    if !asked.sampler.draws() {
        return Ok(());
    }
    if found.class_counts.is_empty() {
        let what = format!("draws by classes, but samples of `{}` have none", asked.name);
        return Err(loaded.problem("data.sampler", what));
    }
    let weights = asked.class_weights.as_deref().unwrap_or_default();
    if !weights.is_empty() && weights.len() != found.classes.len() {
        let n = weights.len();
        let classes = found.classes.join(", ");
        let weights = counted(n as u64, "weight", "weights");
        let what = format!("has {weights}, but the classes are {classes}");
        return Err(loaded.problem("data.class_weights", what));
    }
    let drawn = weights.iter().zip(&found.class_counts).any(|(&w, &n)| w > 0.0 && n > 0);
    if !weights.is_empty() && !drawn {
        let what = "gives every class that has samples the weight 0";
        return Err(loaded.problem("data.class_weights", what));
    }
    Ok(())
}

/// Loader threads per rank where none are asked for: no more than this.
const MAX_LOADERS: usize = 4;

/// The data as found, read as asked by ranks that have `cores` each, for a model with `outputs`.
pub(crate) fn decide(
    experiment: &Experiment,
    found: &DataFacts,
    transformed: Transformed,
    outputs: usize,
    cores: usize,
) -> DataPlan {
    let asked = &experiment.data;
    DataPlan {
        source: found.source.clone(),
        n_train: found.n_train,
        n_val: found.n_val,
        n_test: found.n_test,
        notes: found.notes.iter().cloned().chain(transformed.notes).collect(),
        classes: found.classes.clone(),
        target_columns: found.target_columns.clone(),
        token_bytes: found.token_bytes.clone(),
        split: SplitPlan::of(asked),
        sampler: asked.sampler,
        class_weights: asked.class_weights.clone().unwrap_or_default(),
        subset_of: found.subset_of,
        aug_repeats: asked.aug_repeats as usize,
        shuffle: asked.shuffle,
        drop_last: asked.drop_last,
        num_workers: asked.num_workers.given().map_or(cores.min(MAX_LOADERS), |n| n as usize),
        prefetch_factor: asked.prefetch_factor as usize,
        on_bad_sample: asked.on_bad_sample,
        max_bad_fraction: asked.max_bad_fraction,
        train_transforms: transformed.train,
        val_transforms: transformed.val,
        mixup: mixup::decide(&asked.mixup, outputs),
    }
}
