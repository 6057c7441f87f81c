//! The expected answer to a row of a table: a class, in any spelling, or numbers.

use std::collections::BTreeMap;

use crate::sources::tables::column::{BadCell, truth, whole};

/// An expected answer, as written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Answer {
    /// Numbers, for regression, or a 1 for each of several classes; their f64 bits.
    Numbers(Vec<u64>),
    /// A class that is an integer.
    Integer(i64),
    /// A class that is a word.
    Word(String),
}

impl Answer {
    pub(crate) fn numbers(values: &[f64]) -> Self {
        Self::Numbers(values.iter().map(|value| value.to_bits()).collect())
    }

    /// Number `at`.
    pub(crate) fn number(&self, at: usize) -> f64 {
        match self {
            Self::Numbers(bits) => bits.get(at).map_or(0.0, |bits| f64::from_bits(*bits)),
            _ => 0.0,
        }
    }

    /// A class as text.
    fn text(&self) -> String {
        match self {
            Self::Numbers(_) => String::new(),
            Self::Integer(value) => value.to_string(),
            Self::Word(word) => word.clone(),
        }
    }

    /// Key that is the same for all spellings of a class.
    pub(crate) fn key(&self) -> String {
        key(&self.text())
    }

    /// Error for a class without training rows.
    pub(crate) fn untrained(&self) -> String {
        format!("class `{}` has no training rows", self.text())
    }
}

/// Key that is the same for `True` and `true`.
fn key(class: &str) -> String {
    truth(class).map_or(class.to_owned(), |is_true| is_true.to_string())
}

/// The class that a cell holds: `1.0` is `1`.
pub(crate) fn class(column: &str, cell: &str) -> Result<Answer, String> {
    match cell.parse::<f64>().map(whole) {
        Ok(Some(value)) => Ok(Answer::Integer(value)),
        Ok(None) => Err(format!(
            "`{column}` is `{cell}`, which is not a class: a class is an integer or a word"
        )),
        Err(_) => Ok(Answer::Word(cell.to_owned())),
    }
}

/// Error for an empty target, with the remedy.
pub(crate) fn unlabelled(what: String) -> BadCell {
    let help = "remove such rows, or set `data.drop_unlabelled = true`; `data.missing_values` says \
                which words count as empty";
    BadCell { what, help: Some(help.to_owned()) }
}

/// The label of each class, by its key.
pub(crate) fn labels(classes: &[String]) -> BTreeMap<String, u32> {
    classes.iter().map(|class| key(class)).zip(0..).collect()
}

/// Distinct classes: integers in their order, or all as words.
pub(crate) fn sorted_classes(answers: &[Answer]) -> Vec<String> {
    let mut distinct: BTreeMap<String, &Answer> = BTreeMap::new();
    for answer in answers {
        distinct.entry(answer.key()).or_insert(answer);
    }
    let mut classes: Vec<&Answer> = distinct.into_values().collect();
    classes.sort_unstable();
    let are_words = classes.iter().any(|answer| matches!(answer, Answer::Word(_)));
    let mut classes: Vec<String> = classes.into_iter().map(Answer::text).collect();
    if are_words {
        classes.sort_unstable();
    }
    classes
}

/// The label of each row among the classes that occur; 0 where rows have numbers.
pub(crate) fn labelled(answers: &[Answer]) -> Vec<u32> {
    let labels = labels(&sorted_classes(answers));
    let label = |answer: &Answer| labels.get(&answer.key()).copied().unwrap_or(0);
    answers.iter().map(label).collect()
}
