//! Outputs and targets -> what an evaluation measures beside the loss.
//!
//! Each metric is a file of its own: what it needs, which values are better, and its sum over a batch. Sums are added over
//! batches in their order, so a metric is the same at any number of ranks.
//!
//! ```
//! use candle_core::{Device, Tensor};
//! use ddprun::metric::{Accuracy, Metric, Share};
//!
//! let scores = Tensor::new(&[[0.1f32, 0.9], [0.8, 0.2]], &Device::Cpu)?;
//! let share = Accuracy.measure(&scores, &Tensor::new(&[1u32, 1], &Device::Cpu)?)?;
//! assert_eq!(share, Share { sum: 1.0, count: 2.0 });
//! # Ok::<(), candle_core::Error>(())
//! ```

mod accuracy;
mod mae;
mod mse;
mod top5_accuracy;

use std::fmt::{self, Debug};
use std::sync::Arc;

use candle_core::{Result, Tensor};

use crate::config::MetricSpec;
use crate::plan::{Measurable, MetricFacts, Mode};
pub use accuracy::Accuracy;
pub use mae::Mae;
pub use mse::Mse;
pub use top5_accuracy::Top5Accuracy;

/// Something that is measured on validation and test data: a mean over what counts.
pub trait Metric: Debug + Send + Sync {
    /// What follows `val/` in its name.
    fn name(&self) -> &'static str;

    /// Whether less or more of it is better.
    fn mode(&self) -> Mode;

    /// Why it has no meaning for such answers, as "is a classification metric, but ..."; `None` if it has one.
    fn why_not(&self, answers: &Measurable) -> Option<String>;

    /// Its sum over a batch.
    ///
    /// # Errors
    ///
    /// Shapes or labels that do not fit.
    fn measure(&self, outputs: &Tensor, targets: &Tensor) -> Result<Share>;
}

/// Part of a mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// Sum of the values.
    pub sum: f64,
    /// How many they are.
    pub count: f64,
}

impl Share {
    /// `right` of `asked` answers.
    pub fn of_answers(right: usize, asked: usize) -> Self {
        Self { sum: right as f64, count: asked as f64 }
    }

    /// The mean of a batch, as many times as it has samples.
    pub fn of_samples(values: &[f64]) -> Self {
        let count = values.len() as f64;
        Self { sum: values.iter().sum::<f64>() / count * count, count }
    }
}

/// Metrics that a program knows.
#[derive(Clone)]
pub struct Metrics(Vec<Arc<dyn Metric>>);

impl Default for Metrics {
    /// Those that come with ddprun.
    fn default() -> Self {
        let mut all = Self(Vec::new());
        all.add(Accuracy);
        all.add(Mse);
        all.add(Mae);
        all.add(Top5Accuracy);
        all
    }
}

impl Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|metric| metric.name())).finish()
    }
}

impl Metrics {
    /// Adds `metric`, or puts it in the place of the one of the same name.
    pub fn add(&mut self, metric: impl Metric + 'static) {
        let metric: Arc<dyn Metric> = Arc::new(metric);
        match self.0.iter_mut().find(|other| other.name() == metric.name()) {
            Some(existing) => *existing = metric,
            None => self.0.push(metric),
        }
    }

    /// Those that have a meaning for such answers.
    pub fn of(&self, answers: &Measurable) -> Vec<Arc<dyn Metric>> {
        let all = self.0.iter().filter(|metric| metric.why_not(answers).is_none());
        all.cloned().collect()
    }

    /// What an experiment may say of them.
    pub fn specs(&self) -> Vec<MetricSpec> {
        let spec =
            |metric: &Arc<dyn Metric>| MetricSpec { name: metric.name(), mode: metric.mode() };
        self.0.iter().map(spec).collect()
    }

    /// What planning needs to know of them.
    pub fn facts(&self, answers: &Measurable) -> Vec<MetricFacts> {
        let facts = |metric: &Arc<dyn Metric>| MetricFacts {
            name: metric.name().to_owned(),
            mode: metric.mode(),
            why_not: metric.why_not(answers),
        };
        self.0.iter().map(facts).collect()
    }
}

/// Why a metric of answers that are right or wrong has no meaning.
pub(crate) fn needs_classes(answers: &Measurable) -> Option<String> {
    let what = "is a classification metric, but the loss is a regression loss";
    (!answers.has_classes()).then(|| what.to_owned())
}

/// Why a metric of errors has no meaning.
pub(crate) fn needs_numbers(answers: &Measurable) -> Option<String> {
    let what = "is a regression metric, but the loss is a classification loss";
    answers.has_classes().then(|| what.to_owned())
}
