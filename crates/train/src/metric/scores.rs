//! Metrics that rank samples by the score of each class: `val/auroc`, `val/average_precision`.

use candle_core::{DType, Device, Result, Tensor};
use rayon::prelude::*;

use crate::metric::{Metric, MetricState, Scores, needs_classes};
use crate::plan::{MetricContext, Mode, Targets};

/// [`Metric::state_name`] of the metrics that rank samples.
pub const SCORES_STATE: &str = "scores";
/// Largest number of scores gathered on every rank, 128 MiB.
const MAX_SCORES: usize = 1 << 24;

/// Quality of the ranking by the scores of a class, of samples of the class before others; the mean
/// over the classes.
#[derive(Debug)]
pub struct RankingScore {
    name: &'static str,
    /// Value of one class from its scores in descending order, each with a flag that is true for
    /// samples of the class; `None` = undefined.
    value: fn(&[(f32, bool)]) -> Option<f64>,
}

impl Metric for RankingScore {
    fn name(&self) -> &'static str {
        self.name
    }

    fn mode(&self) -> Mode {
        Mode::Max
    }

    fn why_not(&self, context: &MetricContext) -> Option<String> {
        why_not(context)
    }

    fn is_usual(&self) -> bool {
        false
    }

    fn state_name(&self) -> &'static str {
        SCORES_STATE
    }

    fn measure(&self, outputs: &Tensor, targets: &Tensor) -> Result<MetricState> {
        measure(outputs, targets)
    }

    fn value(&self, all: &MetricState) -> f64 {
        mean(all, self.value)
    }
}

/// Reason why samples cannot be ranked.
fn why_not(context: &MetricContext) -> Option<String> {
    match context.targets {
        Targets::Numbers | Targets::Series => {
            return Some(
                "is a classification metric, but the loss is a regression loss".to_owned(),
            );
        }
        Targets::Preferences => return needs_classes(context),
        Targets::Classes if context.labels_in_sequence => {
            return Some("needs one label for each sample".to_owned());
        }
        Targets::Classes | Targets::MultiLabel => {}
    }
    let samples = context.samples;
    let classes = context.classes;
    let what =
        || format!("ranks all scores, but {samples} samples of {classes} classes are too many");
    (samples.saturating_mul(classes) > MAX_SCORES).then(what)
}

/// Scores of a batch. For samples with one class log(p / (1 - p)) under the softmax, which is in
/// the order of p and never saturates; for multi-label samples, the outputs.
fn measure(outputs: &Tensor, targets: &Tensor) -> Result<MetricState> {
    let outputs = outputs.to_device(&Device::Cpu)?.to_vec2::<f32>()?;
    let classes = outputs.first().map_or(0, Vec::len);
    let mut values = Vec::with_capacity(outputs.len() * classes);
    if targets.dtype() == DType::F32 {
        let targets = targets.to_device(&Device::Cpu)?.to_vec2::<f32>()?;
        for (row, has) in outputs.iter().zip(&targets) {
            values.extend(row.iter().zip(has).map(|(&output, &has)| (output, has > 0.5)));
        }
    } else {
        let labels = targets.to_device(&Device::Cpu)?.to_dtype(DType::I64)?.to_vec1::<i64>()?;
        for (row, label) in outputs.iter().zip(labels).filter(|(_, label)| *label >= 0) {
            let is_right = |class| class as i64 == label;
            let odds = log_odds(row);
            values.extend(odds.enumerate().map(|(class, odds)| (odds, is_right(class))));
        }
    }
    Ok(MetricState::Scores(Scores { classes, values }))
}

/// Log-odds of each class: its logit minus the logarithm of the sum of the others' exponentials.
fn log_odds(row: &[f32]) -> impl Iterator<Item = f32> {
    let largest = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let exponential = move |x: f32| (f64::from(x) - largest).exp();
    let all: f64 = row.iter().copied().map(exponential).sum();
    let others = move |class: usize| {
        let own = exponential(row[class]);
        if own < all / 2.0 {
            return all - own;
        }
        // The difference would have no digits left.
        let others = row.iter().enumerate().filter(|(other, _)| *other != class);
        others.map(|(_, &x)| exponential(x)).sum()
    };
    let odds =
        move |(class, &x): (usize, &f32)| (f64::from(x) - largest - f64::ln(others(class))) as f32;
    row.iter().enumerate().map(odds)
}

impl Scores {
    /// `value` of each class, given its scores in descending order; `None` = undefined.
    pub fn of_classes(
        &self,
        value: impl Fn(&[(f32, bool)]) -> Option<f64> + Sync,
    ) -> Vec<Option<f64>> {
        let of_class = |class: usize| {
            let column = self.values.iter().skip(class).step_by(self.classes);
            let mut column: Vec<(f32, bool)> = column.copied().collect();
            column.sort_by(|a, b| b.0.total_cmp(&a.0));
            value(&column)
        };
        (0..self.classes).into_par_iter().map(of_class).collect()
    }
}

/// Mean over the classes that have a value; NaN if none has.
fn mean(all: &MetricState, value: fn(&[(f32, bool)]) -> Option<f64>) -> f64 {
    let MetricState::Scores(scores) = all else { return f64::NAN };
    let values: Vec<f64> = scores.of_classes(value).into_iter().flatten().collect();
    values.iter().sum::<f64>() / values.len() as f64
}

/// Numbers of right and wrong samples in each group of equal scores; scores are sorted.
fn ties(sorted: &[(f32, bool)]) -> impl Iterator<Item = [u64; 2]> {
    sorted.chunk_by(|a, b| a.0 == b.0).map(|tied| {
        let right = tied.iter().filter(|(_, is_right)| *is_right).count();
        [right as u64, (tied.len() - right) as u64]
    })
}

/// Area under the receiver operating characteristic of each class against all others, and their
/// mean; classes that all samples have, or none, are left out.
pub const AUROC: RankingScore = RankingScore { name: "auroc", value: auroc };

/// Share of pairs of a sample with the class and one without it that are in the right order; ties
/// count half. Exact in integers. `None` without such pairs.
pub fn auroc(sorted: &[(f32, bool)]) -> Option<f64> {
    let mut halves = 0u128;
    let mut before = 0;
    let mut others = 0;
    for [right, wrong] in ties(sorted) {
        // Samples without the class that come before one with it are in the wrong order.
        halves += u128::from(right) * u128::from(2 * others + wrong);
        before += right;
        others += wrong;
    }
    let pairs = u128::from(before) * u128::from(others);
    (pairs > 0).then(|| 1.0 - halves as f64 / (2 * pairs) as f64)
}

/// Mean precision over the samples of a class, from the surest to the least sure, and the mean of
/// the classes that occur.
pub const AVERAGE_PRECISION: RankingScore =
    RankingScore { name: "average_precision", value: average_precision };

/// Sum of each gain of recall times the precision there. `None` without samples of the class.
pub fn average_precision(sorted: &[(f32, bool)]) -> Option<f64> {
    let all = sorted.iter().filter(|(_, is_right)| *is_right).count() as f64;
    let (mut hits, mut n, mut sum) = (0, 0, 0.0);
    for [right, wrong] in ties(sorted) {
        hits += right;
        n += right + wrong;
        sum += right as f64 / all * (hits as f64 / n as f64);
    }
    (all > 0.0).then_some(sum)
}
