//! Outputs and targets -> what an evaluation measures beside the loss.
//!
//! A metric says what it needs, which values are better, what it keeps of a batch, and its value.
//! States are added in the order of the batches, so a metric is the same at any number of ranks.
//!
//! ```
//! use candle_core::{Device, Tensor};
//! use ddprun_train::metric::{Accuracy, Metric};
//!
//! let scores = Tensor::new(&[[0.1f32, 0.9], [0.8, 0.2]], &Device::Cpu)?;
//! let kept = Accuracy.measure(&scores, &Tensor::new(&[1u32, 1], &Device::Cpu)?)?;
//! assert_eq!(Accuracy.value(&kept), 0.5);
//! # Ok::<(), candle_core::Error>(())
//! ```

mod accuracy;
mod errors;
mod mase;
mod metric_state;
mod outcomes;
mod perplexity;
mod rewards;
mod scores;
#[cfg(test)]
mod tests;

use std::fmt::{self, Debug};
use std::sync::Arc;

use candle_core::{Result, Tensor};

use crate::config::MetricSpec;
use crate::loss::Loss;
use crate::plan::{MetricContext, MetricFacts, Mode, Targets};
pub use accuracy::{Accuracy, ExactMatch, TopAccuracy};
pub use errors::{
    ERRORS_STATE, ErrorScore, Errors, MAE_UNSCALED, Mae, Mse, R2, RMSE_UNSCALED, Rmse, of_targets,
};
pub use mase::{Mase, naive_forecast_warning};
pub use metric_state::{MetricState, Scores};
pub use outcomes::{Average, ClassScore, OUTCOMES_STATE, Outcome, of_classes, one_answer};
pub use perplexity::{BitsPerByte, Perplexity};
pub use rewards::Reward;
pub use scores::{AUROC, AVERAGE_PRECISION, RankingScore, SCORES_STATE, auroc, average_precision};

/// A metric of validation and test data.
pub trait Metric: Debug + Send + Sync {
    /// Name without `val/`.
    fn name(&self) -> &'static str;

    /// The better direction, less or more.
    fn mode(&self) -> Mode;

    /// Reason why it is undefined for such answers, as "is a classification metric, but ...";
    /// `None` = it is defined.
    fn why_not(&self, context: &MetricContext) -> Option<String>;

    /// True if every evaluation measures it; other metrics are measured if they are monitored,
    /// expected or listed in `validation.metrics`, and by `ddprun eval`.
    fn is_usual(&self) -> bool {
        true
    }

    /// Name of its state: metrics with the same name share one state, which is measured once.
    fn state_name(&self) -> &'static str {
        self.name()
    }

    /// The metric for texts whose tokens have these numbers of bytes, if it needs them.
    fn of_tokens(&self, _bytes: &Arc<[u32]>) -> Option<Arc<dyn Metric>> {
        None
    }

    /// The metric for series with these errors of a naive forecast, if it needs them.
    fn of_series(&self, _naive: &[f64]) -> Option<Arc<dyn Metric>> {
        None
    }

    /// The metric for answers to which `loss` gives rewards, if it needs it.
    fn of_loss(&self, _loss: &Arc<dyn Loss>) -> Option<Arc<dyn Metric>> {
        None
    }

    /// State of one batch.
    fn measure(&self, outputs: &Tensor, targets: &Tensor) -> Result<MetricState>;

    /// Value from the state of all batches; NaN if it is undefined.
    fn value(&self, all: &MetricState) -> f64 {
        all.mean()
    }

    /// Value in the units of the data, whose columns were divided by `scales`; none if they were
    /// not.
    fn value_unscaled(&self, all: &MetricState, _scales: &[f64]) -> f64 {
        self.value(all)
    }
}

/// The first of `metrics` for each state that they share.
fn measuring(metrics: &[Arc<dyn Metric>]) -> impl Iterator<Item = &Arc<dyn Metric>> {
    let is_first = |at: usize| {
        let keeps = metrics[at].state_name();
        metrics[..at].iter().all(|metric| metric.state_name() != keeps)
    };
    metrics.iter().enumerate().filter(move |(at, _)| is_first(*at)).map(|(_, metric)| metric)
}

/// States of one batch, one for all `metrics` that share it.
pub fn measure(
    metrics: &[Arc<dyn Metric>],
    outputs: &Tensor,
    targets: &Tensor,
) -> Result<Vec<MetricState>> {
    measuring(metrics).map(|metric| metric.measure(outputs, targets)).collect()
}

/// The state named `keeps` among those of [`measure`].
pub(crate) fn state_of<'a>(
    metrics: &[Arc<dyn Metric>],
    all: &'a [MetricState],
    keeps: &str,
) -> Option<&'a MetricState> {
    let named = measuring(metrics).zip(all).find(|(metric, _)| metric.state_name() == keeps);
    named.map(|(_, kept)| kept)
}

/// Defined values from the [`measure`]d states of all batches, whose targets were divided by
/// `scales`.
pub(crate) fn values(
    metrics: &[Arc<dyn Metric>],
    all: &[MetricState],
    scales: &[f64],
) -> impl Iterator<Item = (&'static str, f64)> {
    let value = |metric: &Arc<dyn Metric>| {
        let kept = state_of(metrics, all, metric.state_name())?;
        Some((metric.name(), metric.value_unscaled(kept, scales)))
    };
    metrics.iter().filter_map(value).filter(|(_, value)| !value.is_nan())
}

/// Registry of metrics.
#[derive(Clone)]
pub struct Metrics {
    all: Vec<Arc<dyn Metric>>,
    /// True once ddprun's own are registered.
    is_sealed: bool,
    /// Names that were registered twice.
    taken: Vec<&'static str>,
}

impl Default for Metrics {
    /// The metrics that come with ddprun.
    fn default() -> Self {
        let mut all = Self { all: Vec::new(), is_sealed: false, taken: Vec::new() };
        all.add(Accuracy);
        all.add(Mse);
        all.add(Mae);
        all.add(TopAccuracy::<5>);
        all.add(TopAccuracy::<2>);
        all.add(TopAccuracy::<3>);
        all.add(TopAccuracy::<10>);
        for average in [Average::Macro, Average::Micro, Average::Binary] {
            all.add(ClassScore::precision(average));
            all.add(ClassScore::recall(average));
            all.add(ClassScore::f1(average));
        }
        all.add(ExactMatch);
        all.add(AUROC);
        all.add(AVERAGE_PRECISION);
        all.add(Rmse);
        all.add(MAE_UNSCALED);
        all.add(RMSE_UNSCALED);
        all.add(R2);
        all.add(Mase::default());
        all.add(Perplexity);
        all.add(BitsPerByte::default());
        for reward in Reward::all() {
            all.add(reward);
        }
        all.is_sealed = true;
        all
    }
}

impl Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.all.iter().map(|metric| metric.name())).finish()
    }
}

impl Metrics {
    /// Adds `metric`. A name that another metric has stays with that one, and the program refuses
    /// to run.
    pub fn add(&mut self, metric: impl Metric + 'static) {
        if self.is_sealed && self.all.iter().any(|other| other.name() == metric.name()) {
            self.taken.push(metric.name());
        } else {
            self.all.push(Arc::new(metric));
        }
    }

    /// "metric `mse`" for each name that was registered although a metric had it already.
    pub fn taken(&self) -> impl Iterator<Item = String> {
        self.taken.iter().map(|name| format!("metric `{name}`"))
    }

    /// The metrics that are defined for such answers, and are usual or named in `names`.
    pub fn of(&self, context: &MetricContext, names: &[String]) -> Vec<Arc<dyn Metric>> {
        let is_measured = |metric: &Arc<dyn Metric>| {
            metric.is_usual() || names.iter().any(|name| name == metric.name())
        };
        let all = self.all.iter().filter(|metric| metric.why_not(context).is_none());
        all.filter(|metric| is_measured(metric)).cloned().collect()
    }

    /// Names and directions, for reading experiments.
    pub fn specs(&self) -> Vec<MetricSpec> {
        let spec =
            |metric: &Arc<dyn Metric>| MetricSpec { name: metric.name(), mode: metric.mode() };
        self.all.iter().map(spec).collect()
    }

    /// Properties of the metrics that planning needs.
    pub fn facts(&self, context: &MetricContext) -> Vec<MetricFacts> {
        let facts = |metric: &Arc<dyn Metric>| MetricFacts {
            name: metric.name().to_owned(),
            mode: metric.mode(),
            why_not: metric.why_not(context),
        };
        self.all.iter().map(facts).collect()
    }
}

/// Reason why a metric of right and wrong answers is undefined.
pub(crate) fn needs_classes(context: &MetricContext) -> Option<String> {
    let what = match context.targets {
        Targets::Classes => return None,
        Targets::MultiLabel => "needs one class for each sample, but these may have several",
        Targets::Numbers | Targets::Series => {
            "is a classification metric, but the loss is a regression loss"
        }
        Targets::Preferences => {
            "is a classification metric, but the loss compares pairs of answers"
        }
    };
    Some(what.to_owned())
}

/// Reason why a metric of errors is undefined.
pub(crate) fn needs_numbers(context: &MetricContext) -> Option<String> {
    let what = match context.targets {
        Targets::Classes | Targets::MultiLabel => {
            "is a regression metric, but the loss is a classification loss"
        }
        Targets::Preferences => "is a regression metric, but the loss compares pairs of answers",
        Targets::Numbers | Targets::Series => return None,
    };
    Some(what.to_owned())
}

/// Reason why a metric in the units of the data is undefined.
pub(crate) fn needs_scaled(context: &MetricContext) -> Option<String> {
    let what = "needs targets that the data set has standardised";
    needs_numbers(context).or_else(|| (!context.is_standardized).then(|| what.to_owned()))
}
