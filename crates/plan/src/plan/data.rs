//! The data, and how each rank reads it: limits on its samples, sampling, loader threads.

use serde::{Deserialize, Serialize};

use crate::config::kind::Choice;
use crate::config::{Experiment, Loaded, Problem};
use crate::plan::transforms::TransformPlan;
use crate::plan::{
    DataFacts, MixupPlan, ModelFacts, OnBadSample, Sampler, SourcePlan, SplitPlan, TargetColumn,
    mixup,
};
use crate::terminal::counted;

/// The data and how it is read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DataPlan {
    /// The data set.
    pub source: SourcePlan,
    /// Samples to train on.
    pub n_train: usize,
    /// Samples to validate on.
    pub n_val: usize,
    /// Samples to test on when the training is over; 0 = there is no test.
    #[serde(default)]
    pub n_test: usize,
    /// Remarks about the data for the user.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Class names in label order; empty for regression.
    pub classes: Vec<String>,
    /// Named numbers of a target.
    #[serde(default)]
    pub target_columns: Vec<TargetColumn>,
    /// Bytes of text of each class, if classes are tokens for which that is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub token_bytes: Vec<u32>,
    /// Training samples that are held back to validate or to test.
    pub split: SplitPlan,
    /// Order of samples.
    pub sampler: Sampler,
    /// Weights of the classes for weighted sampling; empty = all classes are drawn equally often.
    #[serde(default)]
    pub class_weights: Vec<f64>,
    /// Training samples that the data set has, of which `n_train` are taken; `None` = all of them.
    #[serde(default)]
    pub subset_of: Option<usize>,
    /// Copies of each sample in a batch, each augmented differently.
    pub aug_repeats: usize,
    /// True if each epoch has a new order.
    pub shuffle: bool,
    /// True if the incomplete last global batch of an epoch is dropped.
    pub drop_last: bool,
    /// Loader threads per rank.
    pub num_workers: usize,
    /// Batches prepared ahead per loader thread.
    pub prefetch_factor: usize,
    /// Policy for unreadable samples.
    pub on_bad_sample: OnBadSample,
    /// Largest share of unreadable samples in an epoch or an evaluation that are skipped.
    pub max_bad_fraction: f64,
    /// Transforms of training images.
    pub train_transforms: Vec<Choice>,
    /// Transforms of validation images.
    pub val_transforms: Vec<Choice>,
    /// Mixup and `CutMix` of training images; absent = off.
    #[serde(default)]
    pub mixup: Option<MixupPlan>,
    /// True if a batch is as long as its longest sample, which changes nothing that the model
    /// learns; false = all samples are padded to one length.
    #[serde(default)]
    pub pad_to_longest: bool,
}

impl DataPlan {
    /// True if `unreadable` of `samples` may be skipped. Never all of them: nothing would be learnt
    /// or measured.
    pub fn tolerates(&self, unreadable: u64, samples: u64) -> bool {
        let most = self.max_bad_fraction * samples as f64;
        unreadable == 0 || (unreadable < samples && unreadable as f64 <= most)
    }
}

/// Refuses sampling by classes of data without classes, and weights that do not fit the classes.
pub(super) fn check(loaded: &Loaded, facts: &DataFacts) -> Result<(), Problem> {
    let config = &loaded.experiment.data;
    if !config.sampler.draws() {
        return Ok(());
    }
    if facts.class_counts.is_empty() {
        let what = format!("draws by classes, but samples of `{}` have none", config.name);
        return Err(loaded.problem("data.sampler", what));
    }
    let weights = config.class_weights.as_deref().unwrap_or_default();
    if !weights.is_empty() && weights.len() != facts.classes.len() {
        let n = weights.len();
        let classes = facts.classes.join(", ");
        let weights = counted(n as u64, "weight");
        let what = format!("has {weights}, but the classes are {classes}");
        return Err(loaded.problem("data.class_weights", what));
    }
    let drawn = weights.iter().zip(&facts.class_counts).any(|(&w, &n)| w > 0.0 && n > 0);
    if !weights.is_empty() && !drawn {
        let what = "gives every class that has samples the weight 0";
        return Err(loaded.problem("data.class_weights", what));
    }
    Ok(())
}

/// Most loader threads per rank by default.
const MAX_LOADERS: usize = 4;

/// The plan of `[data]`, for ranks with `cores` each and a model with `outputs` and these facts.
pub(super) fn decide(
    experiment: &Experiment,
    facts: &DataFacts,
    transforms: TransformPlan,
    outputs: usize,
    model: &ModelFacts,
    cores: usize,
) -> DataPlan {
    let config = &experiment.data;
    DataPlan {
        source: facts.source.clone(),
        n_train: facts.n_train,
        n_val: facts.n_val,
        n_test: facts.n_test,
        notes: facts.notes.iter().cloned().chain(transforms.notes).collect(),
        classes: facts.classes.clone(),
        target_columns: facts.target_columns.clone(),
        token_bytes: facts.token_bytes.clone(),
        split: SplitPlan::of(config),
        sampler: config.sampler,
        class_weights: config.class_weights.clone().unwrap_or_default(),
        subset_of: facts.subset_of,
        aug_repeats: config.aug_repeats as usize,
        shuffle: config.shuffle,
        drop_last: config.drop_last,
        num_workers: config.num_workers.given().map_or(cores.min(MAX_LOADERS), |n| n as usize),
        prefetch_factor: config.prefetch_factor as usize,
        on_bad_sample: config.on_bad_sample,
        max_bad_fraction: config.max_bad_fraction,
        train_transforms: transforms.train,
        val_transforms: transforms.val,
        mixup: mixup::decide(&config.mixup, outputs),
        pad_to_longest: model.ignores_padding,
    }
}

/// Limit on the number of training samples.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Limit {
    /// All samples.
    #[default]
    All,
    /// A number of samples.
    Samples(usize),
    /// A fraction of the samples, from 0 to 1.
    Fraction(f64),
}

impl Limit {
    /// The limit of `data.limit` or `data.fraction`.
    pub fn of(experiment: &Experiment) -> Self {
        let samples = experiment.data.limit.map(|limit| Self::Samples(limit as usize));
        samples.or(experiment.data.fraction.map(Self::Fraction)).unwrap_or_default()
    }

    /// Number of samples that are taken of `all`; `None` if all are.
    pub fn samples(self, all: usize) -> Option<usize> {
        let n = match self {
            Self::All => return None,
            Self::Samples(n) => n,
            Self::Fraction(share) => (all as f64 * share).round() as usize,
        };
        Some(n.max(1)).filter(|&n| n < all)
    }
}

impl DataFacts {
    /// Reduces the counts of training samples to those that the experiment takes; classes keep
    /// their shares.
    pub fn limit(&mut self, limit: Limit) {
        let all = self.n_train;
        let Some(n) = limit.samples(all) else { return };
        self.notes.push(format!("{n} of {all} training samples are taken"));
        if self.multi_label {
            // Samples are taken whatever their classes are.
            let share = |count: &mut u64| *count = *count * n as u64 / all as u64;
            self.class_counts.iter_mut().for_each(share);
        } else if !self.class_counts.is_empty() {
            self.class_counts = shares(&self.class_counts, n as u64);
        }
        (self.n_train, self.subset_of) = (n, Some(all));
    }
}

/// `n` divided over classes in proportion to their `counts`: the largest remainders are rounded up,
/// of equal ones those of lower labels.
pub fn shares(counts: &[u64], n: u64) -> Vec<u64> {
    let all = u128::from(counts.iter().sum::<u64>().max(1));
    let exact = |&count: &u64| u128::from(count) * u128::from(n);
    let mut shares: Vec<u64> = counts.iter().map(|count| (exact(count) / all) as u64).collect();
    let mut order: Vec<usize> = (0..counts.len()).collect();
    order.sort_by_key(|&class| std::cmp::Reverse(exact(&counts[class]) % all));
    let rest = n.saturating_sub(shares.iter().sum()) as usize;
    order.iter().take(rest).for_each(|&class| shares[class] += 1);
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_keep_their_shares() {
        assert_eq!(shares(&[50, 30, 20], 10), [5, 3, 2]);
        assert_eq!(shares(&[1, 1, 1], 2), [1, 1, 0]);
        assert_eq!(shares(&[90, 6, 4], 10), [9, 1, 0]);
        assert_eq!(shares(&[3, 0, 5], 8), [3, 0, 5]);
        assert_eq!(shares(&[], 0), [0u64; 0]);
        assert_eq!(shares(&[u64::MAX / 2, 1], 4), [4, 0]);
    }
}
