//! Rows of numbers, each with a class or a number, in memory.
//!
//! Features are standardised: each column minus its mean, divided by its population standard
//! deviation, both of the *training* rows (a constant column becomes 0). Targets stay as they are:
//! numbers for regression; for classification a label is the position of the row's value among the
//! sorted distinct values of the training rows (numerically if all are integers, else in byte
//! order).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::data::error::{Error, SampleError, shown};
use crate::data::sources::holdout::{Holdout, Part};
use crate::data::{Dataset, Splits, Target};
use crate::rng::Key;

/// Rows as written.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    path: PathBuf,
    /// Names of the features.
    pub(crate) columns: Vec<String>,
    /// Those of one row after the other.
    pub(crate) features: Vec<f64>,
    /// The target of each row.
    pub(crate) answers: Vec<Answer>,
    /// Line of each row.
    pub(crate) lines: Vec<u64>,
    /// What each row belongs to; empty where nothing says so.
    pub(crate) groups: Vec<String>,
}

/// What a model should answer, as written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Answer {
    /// A number, for regression; its f32 bits.
    Value(u32),
    /// A class that is an integer.
    Integer(i64),
    /// A class that is a word.
    Word(String),
}

/// Mean and deviation of a column.
pub(crate) type Scale = (f64, f64);

/// All parts as samples, on the scale of the training rows.
///
/// # Errors
///
/// The columns of two parts differ, or a class is in no training row.
pub(crate) fn splits(
    mut train: Rows,
    val: Rows,
    test: Option<Rows>,
    classify: bool,
) -> Result<Splits, Error> {
    let mut others = std::iter::once(&val).chain(&test);
    if let Some(other) = others.find(|other| other.columns != train.columns) {
        return Err(Error::ColumnsDiffer {
            train: train.path.clone(),
            val: other.path.clone(),
            train_columns: train.columns.clone(),
            val_columns: other.columns.clone(),
        });
    }
    let scales = train.scales();
    train.standardise(&scales);
    let classes = if classify { sorted_classes(&train.answers) } else { Vec::new() };
    let evaluated = |mut rows: Rows| -> Result<Arc<dyn Dataset>, Error> {
        rows.standardise(&scales);
        Ok(Arc::new(rows.into_table(&classes, classify)?))
    };
    Ok(Splits {
        val: evaluated(val)?,
        test: test.map(evaluated).transpose()?,
        train: Arc::new(train.into_table(&classes, classify)?),
        classes,
    })
}

/// An error of a line.
pub(crate) fn at(path: &Path, line: u64, what: String) -> Error {
    Error::Line { path: path.to_owned(), line, what }
}

impl Rows {
    /// No rows yet.
    pub(crate) fn new(path: &Path, columns: Vec<String>) -> Self {
        let (features, answers, lines) = (Vec::new(), Vec::new(), Vec::new());
        Self { path: path.to_owned(), columns, features, answers, lines, groups: Vec::new() }
    }

    /// What each row is for: groups as wholes, or else the rows of each class.
    ///
    /// # Errors
    ///
    /// A part would be empty, in words.
    pub(crate) fn parts(&self, holdout: &Holdout) -> Result<Vec<Part>, String> {
        if !self.groups.is_empty() {
            let mut numbers: BTreeMap<&str, usize> = BTreeMap::new();
            let number = |group| {
                let next = numbers.len();
                *numbers.entry(group).or_insert(next)
            };
            let units: Vec<usize> = self.groups.iter().map(String::as_str).map(number).collect();
            let dealt = holdout.deal(&vec![0; numbers.len()])?;
            return Ok(units.into_iter().map(|unit| dealt[unit]).collect());
        }
        let mut classes: Vec<&Answer> = self.answers.iter().collect();
        classes.sort_unstable();
        classes.dedup();
        let label = |answer: &Answer| match answer {
            Answer::Value(_) => 0,
            class => classes.binary_search(&class).unwrap_or(0) as u32,
        };
        holdout.deal(&self.answers.iter().map(label).collect::<Vec<u32>>())
    }

    /// The rows of one part.
    pub(crate) fn only(&self, parts: &[Part], part: Part) -> Self {
        let mut only = Self::new(&self.path, self.columns.clone());
        let rows = self.features.chunks_exact(self.columns.len().max(1));
        for (index, row) in rows.enumerate().filter(|&(index, _)| parts[index] == part) {
            only.features.extend_from_slice(row);
            only.answers.push(self.answers[index].clone());
            only.lines.push(self.lines[index]);
        }
        only
    }

    fn scales(&self) -> Vec<Scale> {
        let columns = self.columns.len();
        let column = |c: usize| self.features.iter().skip(c).step_by(columns).copied();
        (0..columns).map(|c| scale(column(c))).collect()
    }

    fn standardise(&mut self, scales: &[Scale]) {
        for row in self.features.chunks_exact_mut(scales.len().max(1)) {
            for (value, (mean, deviation)) in row.iter_mut().zip(scales) {
                *value = (*value - mean) / deviation;
            }
        }
    }

    fn into_table(self, classes: &[String], classifies: bool) -> Result<Table, Error> {
        let labels: BTreeMap<&str, u32> =
            classes.iter().zip(0..).map(|(class, label)| (class.as_str(), label)).collect();
        let target = |(answer, &line): (&Answer, &u64)| match answer {
            Answer::Value(bits) => Ok(Target::Value(f32::from_bits(*bits))),
            class => {
                labels.get(class.text().as_str()).copied().map(Target::Class).ok_or_else(|| {
                    let what = format!("class `{}` is not in the training table", class.text());
                    at(&self.path, line, what)
                })
            }
        };
        let targets: Result<Vec<Target>, Error> =
            self.answers.iter().zip(&self.lines).map(target).collect();
        Ok(Table {
            features: self.features.iter().map(|&value| value as f32).collect(),
            shape: [self.columns.len()],
            targets: targets?,
            classifies,
            name: shown(&self.path),
        })
    }
}

/// One split.
#[derive(Debug)]
struct Table {
    /// `rows * columns` standardised values.
    features: Vec<f32>,
    shape: [usize; 1],
    targets: Vec<Target>,
    classifies: bool,
    name: String,
}

impl Dataset for Table {
    fn len(&self) -> usize {
        self.targets.len()
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn classifies(&self) -> bool {
        self.classifies
    }

    fn label(&self, index: usize) -> Option<u32> {
        match self.targets[index] {
            Target::Class(label) => Some(label),
            _ => None,
        }
    }

    fn name(&self, index: usize) -> String {
        format!("row {} of `{}`", index + 1, self.name)
    }

    fn load(
        &self,
        index: usize,
        _: Option<Key>,
        values: &mut Vec<f32>,
    ) -> Result<Target, SampleError> {
        let columns = self.shape[0];
        values.extend_from_slice(&self.features[index * columns..][..columns]);
        Ok(self.targets[index].clone())
    }
}

impl Answer {
    /// A number.
    pub(crate) fn value(value: f64) -> Self {
        Self::Value((value as f32).to_bits())
    }

    fn text(&self) -> String {
        match self {
            Self::Value(bits) => f32::from_bits(*bits).to_string(),
            Self::Integer(value) => value.to_string(),
            Self::Word(word) => word.clone(),
        }
    }
}

/// Mean and population deviation; 1 for a constant column, which becomes 0.
pub(crate) fn scale(column: impl Iterator<Item = f64> + Clone) -> Scale {
    let n = column.clone().count() as f64;
    let mean = column.clone().sum::<f64>() / n;
    let deviation = (column.map(|v| (v - mean).powi(2)).sum::<f64>() / n).sqrt();
    // Rounding leaves a constant column with a tiny variance.
    let constant = deviation <= mean.abs() * 1e-12;
    (mean, if constant { 1.0 } else { deviation })
}

/// Distinct classes: integers in their order, or all as words.
fn sorted_classes(answers: &[Answer]) -> Vec<String> {
    let distinct: BTreeSet<&Answer> = answers.iter().collect();
    let mut classes: Vec<String> = distinct.iter().map(|answer| answer.text()).collect();
    if distinct.iter().any(|answer| matches!(answer, Answer::Word(_))) {
        classes.sort_unstable();
    }
    classes
}
