//! Samples that can be loaded in any order, and what a batch of them is.

use std::path::PathBuf;
use std::sync::Arc;

use candle_core::Tensor;

use crate::error::SampleError;
use crate::ops::Segments;
use crate::rng::Key;

/// A label of [`Target::Classes`] that does not count.
pub const IGNORED: u32 = u32::MAX;
/// [`IGNORED`] in a batch, whose labels are then i64, as PyTorch's losses expect.
pub const IGNORED_LABEL: i64 = -100;

/// Samples of one pass.
#[derive(Clone, Debug)]
pub struct Batch {
    /// (n, ...) f32: images as (n, channels, height, width), vectors as (n, features), series as
    /// (n, time steps, series and features of the date), tokens as (n, tokens), behaviour as (n,
    /// observations, numbers).
    pub inputs: Tensor,
    /// (n) or (n, tokens) u32 labels (i64 where some are [`IGNORED_LABEL`]), (n, targets) f32, (n,
    /// time steps, series) f32, or (n, actions, numbers) f32.
    pub targets: Tensor,
    /// Index of each sample in its data set.
    pub samples: Vec<u32>,
    /// Texts that samples hold one behind the other; `None` if each is one.
    pub segments: Option<Segments>,
    /// Samples that were asked for and cannot be read: replaced in training, left out of an
    /// evaluation.
    pub unreadable: u64,
}

/// The expected answer to a sample.
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

/// Error of a forecast without a model, over all samples and numbers of a split.
#[derive(Clone, Debug, PartialEq)]
pub struct Baseline {
    /// `naive` repeats the last value, `seasonal_naive` the last season.
    pub name: &'static str,
    /// Mean squared error, on the scale of the targets.
    pub mse: f64,
    /// Mean absolute error.
    pub mae: f64,
}

/// Samples that can be loaded in any order, from any thread.
pub trait Dataset: Send + Sync {
    /// Number of samples.
    fn len(&self) -> usize;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Shape of one sample: (channels, height, width) or (features).
    fn shape(&self) -> &[usize];

    /// Shape of one target where it is an array; empty for a label or a number.
    fn target_shape(&self) -> &[usize] {
        &[]
    }

    /// True if targets are classes, false if they are numbers.
    fn classifies(&self) -> bool;

    /// The class of sample `index`, where it has one that is known without loading it.
    fn label(&self, _index: usize) -> Option<u32> {
        None
    }

    /// Name of sample `index` in messages: its file, if it has one.
    fn name(&self, index: usize) -> String;

    /// Places of sample `index` before its padding, along the first dimension of both shapes, where
    /// samples are filled up with what counts for nothing.
    fn length(&self, _index: usize) -> Option<usize> {
        None
    }

    /// Lengths of the texts that sample `index` holds one behind the other, which see nothing of
    /// each other; `None` if it is one.
    fn segments(&self, _index: usize) -> Option<Vec<usize>> {
        None
    }

    /// The file of sample `index`, and its line there, from 1, if the file holds several; `None` if
    /// it was made of several places.
    fn origin(&self, _index: usize) -> Option<(PathBuf, Option<u64>)> {
        None
    }

    /// Errors of forecasts without a model, to compare with; none where there is no such thing.
    fn baselines(&self) -> Vec<Baseline> {
        Vec::new()
    }

    /// True if [`Dataset::load`] ends with an error by itself where it takes too long, so that a
    /// loader that waits for it does not hang.
    fn ends_by_itself(&self) -> bool {
        false
    }

    /// Appends sample `index` to `values`, of [`Dataset::shape`] in row-major order, and returns
    /// its target. `key` is the randomness of the augmentation; without it nothing is random.
    ///
    /// # Errors
    ///
    /// The sample cannot be read, or does not survive its transforms; names the file. Part of it
    /// may have been appended.
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
    /// Class names in label order; empty for numbers.
    pub classes: Vec<String>,
}

impl Splits {
    /// A table of the samples that are not trained on: the part, and file and line of each. `None`
    /// if some are of no single place.
    pub fn held_out(&self) -> Option<String> {
        let mut table = csv::Writer::from_writer(Vec::new());
        table.write_record(["part", "file", "line"]).ok()?;
        let parts = [("val", Some(&self.val)), ("test", self.test.as_ref())];
        for (part, samples) in parts.into_iter().filter_map(|(part, of)| Some((part, of?))) {
            for index in 0..samples.len() {
                let (file, line) = samples.origin(index)?;
                let line = line.map_or(String::new(), |line| line.to_string());
                table.write_record([part, &file.to_string_lossy(), &line]).ok()?;
            }
        }
        String::from_utf8(table.into_inner().ok()?).ok()
    }
}
