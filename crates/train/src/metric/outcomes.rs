//! `val/precision`, `val/recall` and `val/f1`, class by class and averaged, from the outcomes of
//! each class: hits, false alarms and misses.

use std::collections::BTreeMap;

use candle_core::{DType, Device, Result, Tensor};

use crate::loss::rows;
use crate::metric::{Metric, MetricState, needs_classes};
use crate::ops::IGNORED_LABEL;
use crate::plan::{MetricContext, Mode, Targets};

/// [`Metric::state_name`] of the metrics computed from [`Outcome`]s.
pub const OUTCOMES_STATE: &str = "outcomes";

/// Counts of right and wrong answers for one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// True positives.
    pub hits: u64,
    /// False positives.
    pub false_alarms: u64,
    /// False negatives.
    pub misses: u64,
}

/// Average over the classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Average {
    /// Mean of the values of the classes that occur, as labels or as answers.
    Macro,
    /// Value of the samples of all classes together.
    Micro,
    /// Value of the positive class, the second of two.
    Binary,
}

impl Outcome {
    /// Share of positive answers that are right; 0 without any, as scikit-learn's
    /// `zero_division=0`.
    pub fn precision(&self) -> f64 {
        share(self.hits, self.hits + self.false_alarms)
    }

    /// Share of the samples of the class that are found; 0 without any.
    pub fn recall(&self) -> f64 {
        share(self.hits, self.hits + self.misses)
    }

    /// Harmonic mean of precision and recall; 0 without samples or answers.
    pub fn f1(&self) -> f64 {
        share(2 * self.hits, 2 * self.hits + self.false_alarms + self.misses)
    }

    /// Number of samples of the class.
    pub fn support(&self) -> u64 {
        self.hits + self.misses
    }
}

fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

impl Average {
    /// Average of `value` over the classes.
    fn of(self, kept: &MetricState, value: fn(&Outcome) -> f64) -> f64 {
        let classes = of_classes(kept);
        let classes: Vec<&Outcome> = match self {
            Self::Micro => return value(&total(&classes)),
            Self::Binary => return value(&classes.get(1).copied().unwrap_or_default()),
            // What multi-label data calls a class counts in any case, as in scikit-learn.
            Self::Macro if matches!(kept, MetricState::Sums(_)) => classes.iter().collect(),
            Self::Macro => classes.iter().filter(|class| **class != Outcome::default()).collect(),
        };
        classes.iter().map(|class| value(class)).sum::<f64>() / classes.len().max(1) as f64
    }

    /// Reason why it is undefined for such answers.
    fn why_not(self, context: &MetricContext) -> Option<String> {
        match context.targets {
            Targets::MultiLabel if self == Self::Binary => {
                Some("needs one of two classes for each sample".to_owned())
            }
            Targets::MultiLabel => None,
            Targets::Classes if context.labels_in_sequence => {
                Some("needs one label for each sample".to_owned())
            }
            Targets::Classes if self == Self::Macro => None,
            Targets::Classes if self == Self::Binary => (context.classes != 2)
                .then(|| format!("needs two classes, but the data has {}", context.classes)),
            Targets::Classes => Some("is the accuracy where a sample has one class".to_owned()),
            Targets::Numbers | Targets::Series => {
                Some("is a classification metric, but the loss is a regression loss".to_owned())
            }
            Targets::Preferences => needs_classes(context),
        }
    }
}

fn total(classes: &[Outcome]) -> Outcome {
    let sum = |part: fn(&Outcome) -> u64| classes.iter().map(part).sum();
    Outcome {
        hits: sum(|c| c.hits),
        false_alarms: sum(|c| c.false_alarms),
        misses: sum(|c| c.misses),
    }
}

/// Outcome of each class, in label order, from pairs of labels and answers or from sums of hits,
/// false alarms and misses.
pub fn of_classes(kept: &MetricState) -> Vec<Outcome> {
    match kept {
        MetricState::Counts(pairs) => {
            let classes = pairs.keys().flatten().max().map_or(0, |&last| last as usize + 1);
            let mut outcomes = vec![Outcome::default(); classes];
            for (&[label, answer], &n) in pairs {
                if label == answer {
                    outcomes[label as usize].hits += n;
                } else {
                    outcomes[label as usize].misses += n;
                    outcomes[answer as usize].false_alarms += n;
                }
            }
            outcomes
        }
        MetricState::Sums(sums) => {
            let of = |&[hits, false_alarms, misses]: &[f64; 3]| Outcome {
                hits: hits as u64,
                false_alarms: false_alarms as u64,
                misses: misses as u64,
            };
            sums.as_chunks::<3>().0.iter().map(of).collect()
        }
        MetricState::Scores(_) => Vec::new(),
    }
}

/// State of a batch: pairs of labels and answers, where the answer is the largest output (the
/// first, if several); for multi-label data, the outcomes of each class, where an output greater
/// than 0 is a positive answer.
fn measure(outputs: &Tensor, targets: &Tensor) -> Result<MetricState> {
    if targets.dtype() == DType::F32 {
        return measure_multi_label(outputs, targets);
    }
    let (outputs, labels) = rows(outputs, targets)?;
    let outputs = outputs.to_device(&Device::Cpu)?.to_vec2::<f32>()?;
    let labels = labels.to_device(&Device::Cpu)?.to_dtype(DType::I64)?.to_vec1::<i64>()?;
    let mut pairs = BTreeMap::new();
    for (row, label) in outputs.iter().zip(labels).filter(|(_, label)| *label != IGNORED_LABEL) {
        *pairs.entry([label as u32, largest(row)]).or_default() += 1;
    }
    Ok(MetricState::Counts(pairs))
}

/// Label and answer of a single sample; `None` if the label does not count.
pub fn one_answer(output: &Tensor, target: &Tensor) -> Result<Option<[u32; 2]>> {
    let MetricState::Counts(pairs) = measure(output, target)? else { return Ok(None) };
    Ok(pairs.into_keys().next())
}

/// Index of the first of the largest values; NaN is larger than all.
fn largest(row: &[f32]) -> u32 {
    let mut best = 0;
    for (at, value) in row.iter().enumerate() {
        if *value > row[best] || (value.is_nan() && !row[best].is_nan()) {
            best = at;
        }
    }
    best as u32
}

fn measure_multi_label(outputs: &Tensor, targets: &Tensor) -> Result<MetricState> {
    let outputs = outputs.to_device(&Device::Cpu)?.to_vec2::<f32>()?;
    let targets = targets.to_device(&Device::Cpu)?.to_vec2::<f32>()?;
    let classes = targets.first().map_or(0, Vec::len);
    let mut sums = vec![0.0; 3 * classes];
    for (row, has) in outputs.iter().zip(&targets) {
        for (class, (output, has)) in row.iter().zip(has).enumerate() {
            match (*output > 0.0, *has > 0.5) {
                (true, true) => sums[3 * class] += 1.0,
                (true, false) => sums[3 * class + 1] += 1.0,
                (false, true) => sums[3 * class + 2] += 1.0,
                (false, false) => {}
            }
        }
    }
    Ok(MetricState::Sums(sums))
}

/// A value of the outcomes of each class, averaged over the classes.
#[derive(Debug)]
pub struct ClassScore {
    /// Names with the macro, micro and binary average.
    names: [&'static str; 3],
    value: fn(&Outcome) -> f64,
    average: Average,
}

impl ClassScore {
    /// Share of positive answers that are right.
    pub fn precision(average: Average) -> Self {
        Self {
            names: ["precision", "precision_micro", "precision_binary"],
            value: Outcome::precision,
            average,
        }
    }

    /// Share of the samples of a class that are found. Its macro average is the balanced accuracy.
    pub fn recall(average: Average) -> Self {
        Self { names: ["recall", "recall_micro", "recall_binary"], value: Outcome::recall, average }
    }

    /// Harmonic mean of precision and recall.
    pub fn f1(average: Average) -> Self {
        Self { names: ["f1", "f1_micro", "f1_binary"], value: Outcome::f1, average }
    }
}

impl Metric for ClassScore {
    fn name(&self) -> &'static str {
        match self.average {
            Average::Macro => self.names[0],
            Average::Micro => self.names[1],
            Average::Binary => self.names[2],
        }
    }

    fn mode(&self) -> Mode {
        Mode::Max
    }

    fn why_not(&self, context: &MetricContext) -> Option<String> {
        self.average.why_not(context)
    }

    fn is_usual(&self) -> bool {
        false
    }

    fn state_name(&self) -> &'static str {
        OUTCOMES_STATE
    }

    fn measure(&self, outputs: &Tensor, targets: &Tensor) -> Result<MetricState> {
        measure(outputs, targets)
    }

    fn value(&self, all: &MetricState) -> f64 {
        self.average.of(all, self.value)
    }
}
