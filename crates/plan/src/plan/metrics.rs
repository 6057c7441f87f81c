//! What evaluations measure, and whether that is what is watched or expected.

use std::collections::BTreeSet;

use serde::Deserialize;

use crate::config::{Experiment, Loaded, Problem};
use crate::plan::{
    DataFacts, KindFacts, LossPlan, Mode, Plan, TargetColumn, Targets, expectations, loss,
};

/// By what name a data set of series keeps how far off a naive forecast of each is: mean absolute
/// errors over the training rows, on the scale of the targets.
pub const NAIVE_ERRORS: &str = "naive_errors";

/// What an evaluation has to measure something of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measurable {
    /// What the loss compares.
    pub targets: Targets,
    /// Classes of the data; 0 where it holds numbers.
    pub classes: usize,
    /// Samples of the larger of the parts that are evaluated.
    pub samples: usize,
    /// Whether a sample has a label at each of its positions, as a text has.
    pub labels_in_sequence: bool,
    /// Whether the data set has divided the numbers of a target by their standard deviations.
    pub is_standardized: bool,
    /// Whether it is known of how many bytes of text each label is.
    pub has_token_bytes: bool,
    /// Whether it is known how far off a naive forecast of each series is.
    pub has_naive_errors: bool,
}

/// What a metric says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricFacts {
    /// What follows `val/` in its name.
    pub name: String,
    /// Whether less or more of it is better.
    pub mode: Mode,
    /// Why it has no meaning here.
    pub why_not: Option<String>,
}

impl Measurable {
    /// Whether answers can be right or wrong.
    pub fn has_classes(&self) -> bool {
        self.targets == Targets::Classes
    }

    fn of(loss: &LossPlan, data: &DataFacts) -> Self {
        let labels_in_sequence = !data.target.is_empty();
        let classes = data.classes.len();
        let samples = data.n_val.max(data.n_test);
        let is_standardized = are_standardized(&data.target_columns);
        let has_token_bytes = !data.token_bytes.is_empty();
        Self {
            targets: loss.targets,
            classes,
            samples,
            labels_in_sequence,
            is_standardized,
            has_token_bytes,
            has_naive_errors: data.source.found.contains_key(NAIVE_ERRORS),
        }
    }
}

impl Plan {
    /// What its evaluations have to measure something of.
    pub fn measurable(&self) -> Measurable {
        let labels_in_sequence = !self.model.target.is_empty();
        Measurable {
            targets: self.loss.targets,
            classes: self.data.classes.len(),
            samples: self.data.n_val.max(self.data.n_test),
            labels_in_sequence,
            is_standardized: are_standardized(&self.data.target_columns),
            has_token_bytes: !self.data.token_bytes.is_empty(),
            has_naive_errors: self.data.source.found.contains_key(NAIVE_ERRORS),
        }
    }
}

impl Plan {
    /// How far off a naive forecast of each series is; empty if the data are no series.
    pub fn naive_errors(&self) -> Vec<f64> {
        let errors = self.data.source.found.get(NAIVE_ERRORS).and_then(|errors| errors.as_array());
        errors.into_iter().flatten().filter_map(serde_json::Value::as_f64).collect()
    }
}

/// Whether any of the numbers was divided by its standard deviation.
fn are_standardized(columns: &[TargetColumn]) -> bool {
    columns.iter().any(|column| column.scale.to_bits() != 1f64.to_bits())
}

/// The loss and the metrics, none of which may be watched or expected without a meaning.
pub(crate) fn with_loss(
    loaded: &Loaded,
    data: &DataFacts,
    on_gpus: bool,
    kinds: &dyn KindFacts,
) -> Result<(LossPlan, Vec<MetricFacts>), Vec<Problem>> {
    let loss = loss::decide(loaded, data, on_gpus, kinds).map_err(|problem| vec![problem])?;
    let metrics = kinds.metrics(&Measurable::of(&loss, data));
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
        if let Some(what) = found(metric, &metrics).and_then(|metric| metric.why_not.as_ref()) {
            let problem = loaded.problem(&key, format!("`{metric}` {what}"));
            return Some(problem.help(format!("use one that fits: {}", fitting())));
        }
        backwards(loaded, &key, metric, &metrics)
    };
    let asked = loaded.experiment.validation.metrics.iter().enumerate();
    let asked: Vec<(String, String)> = asked
        .map(|(at, name)| (format!("validation.metrics[{at}]"), format!("val/{name}")))
        .collect();
    let asked = asked.iter().map(|(key, metric)| (key.clone(), metric.as_str()));
    let problems: Vec<Problem> =
        watched(&loaded.experiment).into_iter().chain(asked).filter_map(problem).collect();
    let problems: Vec<Problem> =
        problems.into_iter().chain(expectations::impossible_loss(loaded, &loss, kinds)).collect();
    if problems.is_empty() { Ok((loss, metrics)) } else { Err(problems) }
}

/// A problem if the mode beside the monitor at `key` would keep the worst checkpoints. It is only
/// looked for where the metric can be measured.
fn backwards(loaded: &Loaded, key: &str, metric: &str, metrics: &[MetricFacts]) -> Option<Problem> {
    let experiment = &loaded.experiment;
    let table = key.strip_suffix(".monitor")?;
    let mode = match table {
        "checkpoint" => experiment.checkpoint.mode,
        "early_stopping" => experiment.early_stopping.mode,
        _ => Mode::deserialize(experiment.scheduler.options.get("mode")?).ok()?,
    };
    let is_known = metric.ends_with("/loss") || found(metric, metrics).is_some();
    let better = better(metric, metrics);
    (is_known && mode != better).then(|| {
        let key = format!("{table}.mode");
        let problem = loaded.problem(&key, format!("would keep the worst `{metric}`"));
        problem.help(format!("set `mode = \"{}\"`", better.word()))
    })
}

/// Names of the metrics that are measured because they are watched, expected or asked for.
pub(crate) fn wanted(experiment: &Experiment) -> Vec<String> {
    let watched = watched(experiment);
    let names = watched.iter().filter_map(|(_, metric)| Some(metric.split_once('/')?.1.to_owned()));
    let all = experiment.validation.metrics.iter().cloned().chain(names);
    all.collect::<BTreeSet<String>>().into_iter().collect()
}

/// Whether less or more of a metric, as `val/mse`, is better.
pub(crate) fn better(metric: &str, metrics: &[MetricFacts]) -> Mode {
    found(metric, metrics).map_or(Mode::Min, |metric| metric.mode)
}

fn found<'a>(metric: &str, metrics: &'a [MetricFacts]) -> Option<&'a MetricFacts> {
    let (_, name) = metric.split_once('/')?;
    metrics.iter().find(|metric| metric.name == name)
}

/// Keys that name metrics, and these.
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
