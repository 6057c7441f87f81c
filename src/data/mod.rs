//! Files on disk -> this rank's batches: survey, decode, augment, shard, prefetch.
//!
//! ```text
//! DataFacts ◀─survey─ files ─open─▶ Dataset ─┐
//!            EpochOrder ─passes─▶ Request ───┴─Loader─▶ Batch
//! ```
//!
//! Which samples a pass holds and how each is augmented follows from (seed, epoch, sample) alone: no
//! loader thread owns random state, so a run may resume at any step, with any number of threads.

mod assemble;
pub mod audit;
mod caught;
mod control;
mod csv;
#[cfg(test)]
mod damaged;
mod decode;
mod error;
mod fingerprint;
mod forecast;
#[cfg(test)]
mod golden_images;
mod image_folder;
mod instructions;
mod jpeg;
mod listing;
mod listing_cache;
pub mod loader;
mod mersenne;
mod mnist;
mod paths;
mod read;
pub mod sampler;
mod shapes;
mod speech;
mod survey;
mod token_cache;
mod tokenizer;
mod tokens;
pub mod transform;

use std::sync::Arc;

use candle_core::Tensor;

use crate::plan::{DataPlan, SourcePlan};
use crate::rng::Key;

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzed;

pub use control::push::{ARENA, GOAL, MOST_STEPS, Push, RADII, TOLERANCE};
pub use error::{Error, Fault, SampleError};
pub use fingerprint::Fingerprint;
pub use instructions::prompt;
pub use speech::LogMel;
pub use survey::{generate, survey};
pub use tokenizer::Tokenizer;
pub use tokens::encode;
pub use transform::Transforms;

/// A label of [`Target::Classes`] that does not count.
pub const IGNORED: u32 = u32::MAX;
/// The same in a batch, whose labels are i64 then, as PyTorch's losses have it.
pub const IGNORED_LABEL: i64 = -100;

/// Samples of one pass.
#[derive(Clone, Debug)]
pub struct Batch {
    /// (n, ...) f32: images as (n, channels, height, width), vectors as (n, features), series as (n, time steps,
    /// series and features of the date), tokens as (n, tokens), behaviour as (n, observations, numbers).
    pub inputs: Tensor,
    /// (n) or (n, tokens) u32 labels (i64 where some are [`IGNORED_LABEL`]), (n, targets) f32, (n, time steps, series) f32, or (n, actions, numbers) f32.
    pub targets: Tensor,
    /// Index of each sample in its data set.
    pub samples: Vec<u32>,
    /// Samples that were asked for and cannot be read: replaced in training, left out of an evaluation.
    pub unreadable: u64,
}

/// What a model should answer for a sample.
#[derive(Clone, Debug, PartialEq)]
pub enum Target {
    /// A class label.
    Class(u32),
    /// A number.
    Value(f32),
    /// An array of [`Dataset::target_shape`], row-major.
    Series(Vec<f32>),
    /// Labels of that shape.
    Classes(Vec<u32>),
}

/// Samples that can be loaded in any order, from any thread.
pub trait Dataset: Send + Sync {
    /// Number of samples.
    fn len(&self) -> usize;

    /// Whether there is no sample.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Shape of one sample: (channels, height, width) or (features).
    fn shape(&self) -> &[usize];

    /// Shape of one target where it is an array; empty for a label or a number.
    fn target_shape(&self) -> &[usize] {
        &[]
    }

    /// Whether targets are classes (else numbers).
    fn classifies(&self) -> bool;

    /// What messages call sample `index`: its file, if it has one.
    fn name(&self, index: usize) -> String;

    /// Appends sample `index` to `values`, of [`Dataset::shape`] in row-major order, and returns its target.
    /// `key` is the randomness of the augmentation; without it nothing is random.
    ///
    /// # Errors
    ///
    /// The sample cannot be read, or does not survive its transforms; names the file. Part of it may have been
    /// appended.
    fn load(
        &self,
        index: usize,
        key: Option<Key>,
        values: &mut Vec<f32>,
    ) -> Result<Target, SampleError>;
}

/// The splits of the data.
#[derive(Clone)]
pub struct Splits {
    /// Samples to train on.
    pub train: Arc<dyn Dataset>,
    /// Samples to validate on.
    pub val: Arc<dyn Dataset>,
    /// Samples to test on when the training is over.
    pub test: Option<Arc<dyn Dataset>>,
}

/// Opens the data that `plan` describes, with its transforms, and checks that it still is what was planned.
///
/// # Errors
///
/// The data is unusable, or its counts or classes are no longer those of the plan.
pub fn open(plan: &DataPlan, transforms: &Transforms) -> Result<Splits, Error> {
    let (splits, classes) = match &plan.source {
        SourcePlan::ImageFolder { train, val } => image_folder::open(train, val, plan, transforms)?,
        SourcePlan::Mnist { dir } => mnist::open(dir, plan, transforms)?,
        SourcePlan::Csv { train, val, target, classify } => {
            csv::open(train, val, target, *classify)?
        }
        SourcePlan::Text { file, tokenizer, seq_len } => {
            tokens::open(&tokens::Source::Text(file.clone(), tokenizer.clone()), *seq_len)?
        }
        SourcePlan::Instructions(source) => instructions::open(source)?,
        SourcePlan::Tokens { train, val, vocabulary, seq_len } => {
            let (train, val, vocabulary) = (train.clone(), val.clone(), *vocabulary);
            tokens::open(&tokens::Source::Binary { train, val, vocabulary }, *seq_len)?
        }
        SourcePlan::CsvForecast { file, split, seq_len, pred_len, calendar, check_dates } => {
            let (file, split, seq_len) = (file.clone(), *split, *seq_len);
            let (pred_len, calendar, check_dates) = (*pred_len, *calendar, *check_dates);
            let asked =
                forecast::Forecast { file, split, seq_len, pred_len, calendar, check_dates };
            (forecast::open(&asked)?, Vec::new())
        }
        SourcePlan::Speech(source) => speech::open(source)?,
        SourcePlan::Trajectories { from, chunk, ranges } => {
            (control::open(from, *chunk, ranges)?, Vec::new())
        }
    };
    let planned = Fingerprint::of_plan(plan);
    let n_test = splits.test.as_ref().map_or(0, |test| test.len());
    let found = planned.counting([splits.train.len(), splits.val.len(), n_test], classes);
    let differences = found.differences(&planned);
    if differences.is_empty() { Ok(splits) } else { Err(Error::Changed { differences }) }
}
