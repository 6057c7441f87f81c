//! Whether what is watched or expected is measured with this loss.

use crate::config::schema::SchedulerKind;
use crate::config::{Experiment, Loaded, Problem};
use crate::plan::LossPlan;

/// Refuses metrics that the loss leaves without meaning.
pub(crate) fn check(loaded: &Loaded, loss: &LossPlan) -> Result<(), Vec<Problem>> {
    let problem = |(key, metric): (String, &str)| {
        let what = why_not(metric, loss)?;
        Some(loaded.problem(&key, format!("`{metric}` {what}")))
    };
    let found: Vec<Problem> = watched(&loaded.experiment).into_iter().filter_map(problem).collect();
    if found.is_empty() { Ok(()) } else { Err(found) }
}

/// Keys that name metrics, and these.
fn watched(experiment: &Experiment) -> Vec<(String, &str)> {
    let monitor = |table: &str| format!("{table}.monitor");
    let (early, scheduler) = (&experiment.early_stopping, &experiment.scheduler);
    let expected = experiment.expect.keys();
    let mut watched: Vec<(String, &str)> =
        expected.map(|metric| (format!("expect.\"{metric}\""), metric.as_str())).collect();
    watched.push((monitor("checkpoint"), &experiment.checkpoint.monitor));
    if early.patience.is_some() {
        watched.push((monitor("early_stopping"), &early.monitor));
    }
    if let (SchedulerKind::Plateau, Some(metric)) = (scheduler.name, &scheduler.monitor) {
        watched.push((monitor("scheduler"), metric));
    }
    watched
}

fn why_not(metric: &str, loss: &LossPlan) -> Option<&'static str> {
    let measures_errors = metric.ends_with("/mse") || metric.ends_with("/mae");
    if measures_errors && loss.has_classes() {
        return Some("needs numbers, but the loss is one of classes");
    }
    let needs_classes = metric.ends_with("/accuracy") && !loss.has_classes();
    needs_classes.then_some("needs classes, but the loss is one of numbers")
}
