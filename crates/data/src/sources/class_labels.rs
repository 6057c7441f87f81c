//! Classes of samples as files have them, numbers or words -> labels from 0.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// Most classes that numbers without names may stand for.
const MAX_CLASSES: i64 = 1 << 20;

/// The class of each sample.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ClassLabels {
    Numbers(Vec<i64>),
    Words(Vec<String>),
}

impl Default for ClassLabels {
    fn default() -> Self {
        Self::Numbers(Vec::new())
    }
}

impl ClassLabels {
    /// Numbers where each of `words` is written as one, else the words.
    pub(crate) fn of_words(words: Vec<String>) -> Self {
        let number = |word: &String| word.parse().ok().filter(|it: &i64| it.to_string() == *word);
        match words.iter().map(number).collect() {
            Some(numbers) => Self::Numbers(numbers),
            None => Self::Words(words),
        }
    }

    /// The classes of samples that follow each other. They are words where those of any are.
    pub(crate) fn joined(parts: Vec<Self>) -> Self {
        if parts.iter().any(Self::are_words) {
            return Self::Words(parts.into_iter().flat_map(Self::into_words).collect());
        }
        let numbers = |labels| match labels {
            Self::Numbers(numbers) => numbers,
            Self::Words(_) => Vec::new(),
        };
        Self::Numbers(parts.into_iter().flat_map(numbers).collect())
    }

    fn into_words(self) -> Vec<String> {
        match self {
            Self::Numbers(numbers) => numbers.iter().map(i64::to_string).collect(),
            Self::Words(words) => words,
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Numbers(labels) => labels.len(),
            Self::Words(labels) => labels.len(),
        }
    }

    pub(crate) fn are_words(&self) -> bool {
        matches!(self, Self::Words(_))
    }

    /// "text" or "whole numbers"
    pub(crate) fn in_words(&self) -> &'static str {
        if self.are_words() { "text" } else { "whole numbers" }
    }

    /// Names of the classes in label order, of which these are the training samples': `named`, the
    /// words that occur, or numbers up to the largest of all `parts`.
    pub(crate) fn classes(&self, named: Option<&[String]>, parts: &[&Self]) -> Vec<String> {
        match (self, named) {
            (Self::Words(words), _) => {
                let distinct: BTreeSet<&String> = words.iter().collect();
                distinct.into_iter().cloned().collect()
            }
            (Self::Numbers(_), Some(names)) => names.to_vec(),
            (Self::Numbers(_), None) => {
                let largest = parts.iter().filter_map(|part| part.largest()).max();
                let largest = largest.unwrap_or(0).clamp(0, MAX_CLASSES - 1);
                (0..=largest).map(|label| label.to_string()).collect()
            }
        }
    }

    fn largest(&self) -> Option<i64> {
        match self {
            Self::Numbers(labels) => labels.iter().copied().max(),
            Self::Words(_) => None,
        }
    }

    /// The label of each sample among `classes`, which [`ClassLabels::classes`] has returned for
    /// `named`. `refuse` makes the error of a sample from what its class is, and a remedy;
    /// `unlabelled` is that for samples without a class.
    pub(crate) fn among(
        &self,
        classes: &[String],
        named: Option<&[String]>,
        unlabelled: &str,
        refuse: impl Fn(usize, String, &str) -> Error,
    ) -> Result<Vec<u32>, Error> {
        match self {
            Self::Numbers(labels) => {
                let label = |(place, &label): (usize, &i64)| {
                    let known =
                        u32::try_from(label).ok().filter(|&it| (it as usize) < classes.len());
                    known.ok_or_else(|| match label {
                        ..0 => refuse(place, format!("{label}, which is no class"), unlabelled),
                        _ if named.is_none() => {
                            let what = format!("{label}, too large for a class without a name");
                            refuse(place, what, "number the classes from 0, or write them as text")
                        }
                        _ => {
                            let what = format!("{label}, but there are {} classes", classes.len());
                            refuse(place, what, "correct the label, or the names of the classes")
                        }
                    })
                };
                labels.iter().enumerate().map(label).collect()
            }
            Self::Words(words) => {
                let label = |(place, word): (usize, &String)| {
                    let known = classes.binary_search(word).ok().map(|label| label as u32);
                    known.ok_or_else(|| {
                        let what = format!("`{word}`, a class without training samples");
                        let help =
                            "leave such samples out, or add some to those that are trained on";
                        refuse(place, what, help)
                    })
                };
                words.iter().enumerate().map(label).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use test_support::assert_refused;

    use super::*;

    fn labels(words: &[&str]) -> ClassLabels {
        ClassLabels::of_words(words.iter().map(|&word| word.to_owned()).collect())
    }

    #[test]
    fn words_are_numbers_only_if_all_are() {
        assert_eq!(labels(&["3", "0", "-1"]), ClassLabels::Numbers(vec![3, 0, -1]));
        assert!(labels(&["007", "1"]).are_words() && labels(&["7up", "1"]).are_words());
        let joined = ClassLabels::joined(vec![labels(&["1"]), labels(&["cat", "2"])]);
        assert_eq!(joined, labels(&["1", "cat", "2"]));
        assert_eq!(joined.classes(None, &[]), ["1", "2", "cat"]);
        let joined = ClassLabels::joined(vec![labels(&["1"]), labels(&["2"])]);
        assert_eq!((joined.len(), joined.in_words()), (2, "whole numbers"));
        assert_eq!(joined.classes(None, &[&joined, &labels(&["4"])]).len(), 5);
    }

    #[test]
    fn a_class_that_is_none_is_refused_with_its_place() {
        let refuse = |place, what: String, help: &str| Error::WithHelp {
            path: "x".into(),
            what: format!("{place}: {what}"),
            help: help.to_owned(),
        };
        let check = |words: &[&str], named: Option<&[String]>, part: &str| {
            let classes = labels(&["0", "1"]).classes(named, &[&labels(words)]);
            assert_refused(labels(words).among(&classes, named, "", refuse), part);
        };
        check(&["0", "-1"], None, "1: -1, which is no class");
        check(&["4000000000"], None, "0: 4000000000, too large for a class without a name");
        let names = ["a", "b"].map(str::to_owned);
        check(&["1", "2"], Some(&names), "1: 2, but there are 2 classes");
        check(&["0", "cat"], None, "1: `cat`, a class without training samples");
    }
}
