//! Requests to a loader, and its results.

use serde::{Deserialize, Serialize};

use crate::dataset::Batch;
use crate::plan::{DataPlan, MixupPlan, OnBadSample};

/// One pass to load.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Indices into the data set; may be empty.
    pub samples: Vec<u32>,
    /// Partner that each sample is mixed with, itself if it is left alone; empty if nothing is
    /// mixed.
    pub partners: Vec<u32>,
    /// Copy number of each sample, and of each partner; empty if there is one of each.
    pub copies: Vec<[u32; 2]>,
    /// Step of the epoch, for the randomness of the mixing.
    pub step: u64,
    /// The epoch, for the randomness of the augmentation; `None` = evaluation, nothing is random.
    pub epoch: Option<u64>,
}

/// A loaded pass.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The samples; an empty request gives a batch of no rows.
    pub batch: Batch,
    /// The samples that cannot be read.
    pub unreadable: Vec<Unreadable>,
}

/// A sample that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Unreadable {
    /// Index in its data set.
    pub sample: u32,
    /// The problem, and the sample used instead.
    pub problem: String,
}

/// Loader settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Seed of the run.
    pub seed: u64,
    /// Loader threads; 0 loads in the thread that asks.
    pub threads: usize,
    /// Batches prepared ahead per thread.
    pub prefetch_factor: usize,
    /// Policy for unreadable samples.
    pub on_bad_sample: OnBadSample,
    /// Mixing of samples that have partners.
    pub mixup: Option<MixupPlan>,
    /// True if a batch is as long as its longest sample, without the padding after it.
    pub pad_to_longest: bool,
}

impl Settings {
    /// The planned settings.
    pub fn new(plan: &DataPlan, seed: u64) -> Self {
        Self {
            seed,
            threads: plan.num_workers,
            prefetch_factor: plan.prefetch_factor,
            on_bad_sample: plan.on_bad_sample,
            mixup: plan.mixup,
            pad_to_longest: plan.pad_to_longest,
        }
    }
}
