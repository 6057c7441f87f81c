//! Metrics of evaluations: which can be measured, which are watched by a monitor, and the values
//! that `[expect]` requires.

use std::collections::BTreeSet;

use serde::Deserialize;

use crate::config::{Experiment, Loaded, Problem};
use crate::plan::{DataFacts, Expectation, LossPlan, Mode, Plan, TargetColumn, Targets};

/// The key of `SourcePlan::survey` under which a data set of series keeps the errors of a naive
/// forecast of each series: mean absolute errors over the training rows, on the scale of the
/// targets.
pub const NAIVE_ERRORS: &str = "naive_errors";

/// Properties of a run that decide which metrics its evaluations can measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricContext {
    /// Targets of the loss.
    pub targets: Targets,
    /// Classes of the data; 0 where it holds numbers.
    pub classes: usize,
    /// Samples of the validation or the test part, whichever is larger.
    pub samples: usize,
    /// True if a sample has a label at each position, as a text has.
    pub labels_in_sequence: bool,
    /// True if the numbers of a target are divided by their standard deviations.
    pub is_standardized: bool,
    /// True if the bytes of text of each label are known.
    pub has_token_bytes: bool,
    /// True if the errors of a naive forecast of each series are known.
    pub has_naive_errors: bool,
}

/// Properties that a metric declares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricFacts {
    /// Name without the prefix `val/`.
    pub name: String,
    /// Direction in which the metric is better.
    pub mode: Mode,
    /// Reason why the metric has no meaning in this run, if it has none.
    pub why_not: Option<String>,
}

impl MetricContext {
    /// True if predictions are classes, which can be right or wrong.
    pub fn has_classes(&self) -> bool {
        self.targets == Targets::Classes
    }

    pub(super) fn of(loss: &LossPlan, data: &DataFacts) -> Self {
        Self {
            targets: loss.targets,
            classes: data.classes.len(),
            samples: data.n_val.max(data.n_test),
            labels_in_sequence: !data.target.is_empty(),
            is_standardized: are_standardized(&data.target_columns),
            has_token_bytes: !data.token_bytes.is_empty(),
            has_naive_errors: data.source.survey.contains_key(NAIVE_ERRORS),
        }
    }
}

impl Plan {
    /// Properties of this run that decide which metrics can be measured.
    pub fn measurable(&self) -> MetricContext {
        MetricContext {
            targets: self.loss.targets,
            classes: self.data.classes.len(),
            samples: self.data.n_val.max(self.data.n_test),
            labels_in_sequence: !self.model.target.is_empty(),
            is_standardized: are_standardized(&self.data.target_columns),
            has_token_bytes: !self.data.token_bytes.is_empty(),
            has_naive_errors: self.data.source.survey.contains_key(NAIVE_ERRORS),
        }
    }

    /// Errors of a naive forecast of each series; empty if the data are no series.
    pub fn naive_errors(&self) -> Vec<f64> {
        let errors = self.data.source.survey.get(NAIVE_ERRORS).and_then(|errors| errors.as_array());
        errors.into_iter().flatten().filter_map(serde_json::Value::as_f64).collect()
    }
}

/// True if any of the numbers was divided by its standard deviation.
fn are_standardized(columns: &[TargetColumn]) -> bool {
    columns.iter().any(|column| column.scale.to_bits() != 1f64.to_bits())
}

/// Problems of metrics that are watched, expected or asked for, but have no meaning in this run.
pub(super) fn check(
    loaded: &Loaded,
    data: &DataFacts,
    loss: &LossPlan,
    is_never_negative: bool,
    metrics: &[MetricFacts],
) -> Vec<Problem> {
    let fitting = || {
        let fitting = metrics.iter().filter(|metric| metric.why_not.is_none());
        let names = std::iter::once("loss").chain(fitting.map(|metric| metric.name.as_str()));
        names.map(|name| format!("`val/{name}`")).collect::<Vec<_>>().join(", ")
    };
    let problem = |(key, metric): (String, &str)| {
        if metric.starts_with("test/") && metric != "test/success" && data.n_test == 0 {
            let what = format!("`{metric}` is never measured: there is nothing to test on");
            return Some(loaded.problem(&key, what));
        }
        if let Some(what) = find(metric, metrics).and_then(|metric| metric.why_not.as_ref()) {
            let problem = loaded.problem(&key, format!("`{metric}` {what}"));
            return Some(problem.help(format!("use one that fits: {}", fitting())));
        }
        reversed_mode(loaded, &key, metric, metrics)
    };
    let asked = loaded.experiment.validation.metrics.iter().enumerate();
    let asked: Vec<(String, String)> = asked
        .map(|(at, name)| (format!("validation.metrics[{at}]"), format!("val/{name}")))
        .collect();
    let asked = asked.iter().map(|(key, metric)| (key.clone(), metric.as_str()));
    let mut problems: Vec<Problem> =
        watched(&loaded.experiment).into_iter().chain(asked).filter_map(problem).collect();
    if is_never_negative {
        problems.extend(impossible_losses(loaded, loss));
    }
    problems
}

/// A problem if the mode beside the monitor at `key` would keep the worst checkpoints. Metrics that
/// are not known are left alone.
fn reversed_mode(
    loaded: &Loaded,
    key: &str,
    metric: &str,
    metrics: &[MetricFacts],
) -> Option<Problem> {
    let experiment = &loaded.experiment;
    let table = key.strip_suffix(".monitor")?;
    let mode = match table {
        "checkpoint" => experiment.checkpoint.mode,
        "early_stopping" => experiment.early_stopping.mode,
        _ => Mode::deserialize(experiment.scheduler.options.get("mode")?).ok()?,
    };
    let is_known = metric.ends_with("/loss") || find(metric, metrics).is_some();
    let better = better(metric, metrics);
    (is_known && mode != better).then(|| {
        let key = format!("{table}.mode");
        let problem = loaded.problem(&key, format!("would keep the worst `{metric}`"));
        problem.help(format!("set `mode = \"{}\"`", better.word()))
    })
}

/// Names of the metrics that are measured because they are watched, expected or asked for.
pub(super) fn extra_metrics(experiment: &Experiment) -> Vec<String> {
    let watched = watched(experiment);
    let names = watched.iter().filter_map(|(_, metric)| Some(metric.split_once('/')?.1.to_owned()));
    let all = experiment.validation.metrics.iter().cloned().chain(names);
    all.collect::<BTreeSet<String>>().into_iter().collect()
}

/// Direction in which a metric, as `val/mse`, is better.
pub(super) fn better(metric: &str, metrics: &[MetricFacts]) -> Mode {
    find(metric, metrics).map_or(Mode::Min, |metric| metric.mode)
}

fn find<'a>(metric: &str, metrics: &'a [MetricFacts]) -> Option<&'a MetricFacts> {
    let (_, name) = metric.split_once('/')?;
    metrics.iter().find(|metric| metric.name == name)
}

/// Metrics that the experiment watches or expects, each with its key.
fn watched(experiment: &Experiment) -> Vec<(String, &str)> {
    let monitor = |table: &str| format!("{table}.monitor");
    let early = &experiment.early_stopping;
    let scheduler = &experiment.scheduler;
    let expected = experiment.expect.keys();
    let mut watched: Vec<(String, &str)> =
        expected.map(|metric| (format!("expect.\"{metric}\""), metric.as_str())).collect();
    watched.push((monitor("checkpoint"), &experiment.checkpoint.monitor));
    if early.patience.is_some() {
        watched.push((monitor("early_stopping"), &early.monitor));
    }
    watched.extend(scheduler.monitor().map(|metric| (monitor("scheduler"), metric)));
    watched
}

impl Plan {
    /// The entries of `[expect]` that a run missed, in words. `measured` returns the last value of
    /// a metric, or the best value of the metric that ranks checkpoints.
    pub fn missed_expectations(&self, measured: impl Fn(&str) -> Option<f64>) -> Option<String> {
        let missed = |(metric, expected): (&String, &Expectation)| {
            missed(metric, measured(metric), expected)
        };
        let missed: Vec<String> = self.expect.iter().filter_map(missed).collect();
        (!missed.is_empty()).then(|| missed.join("; "))
    }
}

/// A sentence about how `value` misses the expectation of `metric`; `None` if it does not.
fn missed(metric: &str, value: Option<f64>, expected: &Expectation) -> Option<String> {
    let Some(value) = value else { return Some(format!("`{metric}` was never measured")) };
    let low = expected.at_least.filter(|least| value < *least);
    let high = expected.at_most.filter(|most| value > *most);
    let low = low.map(|least| format!("`{metric}` is {value:.4}, expected at least {least}"));
    low.or_else(|| high.map(|most| format!("`{metric}` is {value:.4}, expected at most {most}")))
}

/// Problems of a loss that is never negative but expected to be at most a negative number.
fn impossible_losses<'a>(
    loaded: &'a Loaded,
    loss: &'a LossPlan,
) -> impl Iterator<Item = Problem> + 'a {
    loaded.experiment.expect.iter().filter_map(|(metric, expected)| {
        let is_below = expected.at_most.is_some_and(|most| most < 0.0);
        (metric.ends_with("/loss") && is_below).then(|| {
            let what = format!("must be at least 0: `{}` is never less", loss.kind.name);
            loaded.problem(&format!("expect.\"{metric}\""), what)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expectation_is_missed_on_either_side_or_when_unmeasured() {
        let expected = Expectation { at_least: Some(0.9), at_most: Some(1.0) };
        assert_eq!(missed("val/accuracy", Some(0.95), &expected), None);
        assert!(missed("val/accuracy", Some(0.8), &expected).unwrap().contains("at least 0.9"));
        assert!(missed("val/accuracy", Some(1.1), &expected).unwrap().contains("at most 1"));
        assert!(missed("val/accuracy", None, &expected).unwrap().contains("never measured"));
    }
}
