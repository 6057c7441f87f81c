//! Details of an evaluation beside its metrics: scores per class, the confusion matrix, and the
//! samples with the largest losses.

use serde::Serialize;

use crate::data::Dataset;
use crate::engine::{Engine, Evaluation, Split};
use crate::metric::{
    ERRORS_STATE, Errors, MetricState, OUTCOMES_STATE, Outcome, SCORES_STATE, auroc,
    average_precision, of_classes, of_targets,
};
use crate::plan::{Plan, TargetColumn};

/// Samples that are named.
pub(crate) const MAX_WORST_SAMPLES: usize = 20;

/// Details of an evaluation on one part of the data.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Details {
    /// `val` or `test`.
    pub split: &'static str,
    /// Each class, in label order; empty for numbers.
    pub classes: Vec<ClassDetails>,
    /// Samples by class and by the class that they are taken for: `confusion[label][answer]`; empty
    /// where a sample may have several.
    pub confusion: Vec<Vec<u64>>,
    /// Each number to predict that has a name, in the units of the data; empty for classes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<TargetDetails>,
    /// The samples with the largest losses, the worst first.
    pub worst: Vec<WorstSample>,
}

/// Scores of one class.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClassDetails {
    pub class: String,
    /// Samples of the class.
    pub samples: u64,
    /// Share of samples taken for this class that belong to it.
    pub precision: f64,
    /// Share of samples of this class that were taken for it.
    pub recall: f64,
    /// Harmonic mean of precision and recall.
    pub f1: f64,
    /// Area under the receiver operating characteristic, against all other classes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auroc: Option<f64>,
    /// Mean precision from the surest to the least sure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub average_precision: Option<f64>,
}

/// Errors of a number to predict.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TargetDetails {
    /// Name in the data.
    pub target: String,
    /// Mean absolute error, in the unit of the data.
    pub mae: f64,
    /// Root of the mean squared error, in the unit of the data.
    pub rmse: f64,
    /// Share of its variance that is explained.
    pub r2: f64,
}

/// A sample that the model is wrong about.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorstSample {
    /// File of the sample, or its place in one.
    pub sample: String,
    pub loss: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// The class that it is taken for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
}

impl Details {
    /// The details of the evaluation `found` on `data`.
    pub fn of(
        plan: &Plan,
        split: Split,
        engine: &Engine,
        found: &Evaluation,
        data: &dyn Dataset,
    ) -> Self {
        let names = &plan.data.classes;
        let outcomes = engine.metric_state(found, OUTCOMES_STATE);
        let name = |class: u32| names.get(class as usize).cloned().unwrap_or(class.to_string());
        let worst = found.worst.iter().map(|worst| WorstSample {
            sample: unquoted(&data.name(worst.sample as usize)),
            loss: worst.loss,
            class: worst.classes.map(|[label, _]| name(label)),
            answer: worst.classes.map(|[_, answer]| name(answer)),
        });
        Self {
            split: split.name(),
            classes: outcomes.map_or(Vec::new(), |outcomes| {
                by_class(names, &of_classes(outcomes), engine.metric_state(found, SCORES_STATE))
            }),
            confusion: outcomes.map_or(Vec::new(), |outcomes| confusion(outcomes, names.len())),
            targets: engine
                .metric_state(found, ERRORS_STATE)
                .map_or(Vec::new(), |kept| by_target(plan, kept)),
            worst: worst.collect(),
        }
    }
}

/// The name of a sample without the backticks that messages have around its path.
fn unquoted(name: &str) -> String {
    match (name.find('`'), name.rfind('`')) {
        (Some(first), Some(last)) if first < last => {
            [&name[..first], &name[first + 1..last], &name[last + 1..]].concat()
        }
        _ => name.to_owned(),
    }
}

fn by_target(plan: &Plan, kept: &MetricState) -> Vec<TargetDetails> {
    let columns = plan.data.target_columns.iter().zip(of_targets(kept));
    let details = |(column, errors): (&TargetColumn, Errors)| TargetDetails {
        target: column.name.clone(),
        mae: column.scale * errors.mae(),
        rmse: column.scale * errors.mse().sqrt(),
        r2: errors.r2(),
    };
    columns.map(details).collect()
}

fn by_class(
    names: &[String],
    outcomes: &[Outcome],
    scores: Option<&MetricState>,
) -> Vec<ClassDetails> {
    let ranked = |value: fn(&[(f32, bool)]) -> Option<f64>| match scores {
        Some(MetricState::Scores(scores)) => scores.of_classes(value),
        _ => Vec::new(),
    };
    let aurocs = ranked(auroc);
    let precisions = ranked(average_precision);
    let details = |(at, class): (usize, &String)| {
        let outcome = outcomes.get(at).copied().unwrap_or_default();
        let of = |values: &[Option<f64>]| values.get(at).copied().flatten();
        ClassDetails {
            class: class.clone(),
            samples: outcome.support(),
            precision: outcome.precision(),
            recall: outcome.recall(),
            f1: outcome.f1(),
            auroc: of(&aurocs),
            average_precision: of(&precisions),
        }
    };
    names.iter().enumerate().map(details).collect()
}

fn confusion(kept: &MetricState, classes: usize) -> Vec<Vec<u64>> {
    let MetricState::Counts(pairs) = kept else { return Vec::new() };
    let count = |label, answer| pairs.get(&[label as u32, answer as u32]).copied().unwrap_or(0);
    (0..classes).map(|label| (0..classes).map(|answer| count(label, answer)).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_sample_has_no_backticks_but_its_own() {
        assert_eq!(unquoted("`photos/a b.png`"), "photos/a b.png");
        assert_eq!(unquoted("line 7 of `x.csv`"), "line 7 of x.csv");
        assert_eq!(unquoted("`a`b.png`"), "a`b.png");
        assert_eq!(unquoted("window 3"), "window 3");
    }
}
