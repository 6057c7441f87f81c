//! Inference of a target's type, a class or a number, from the cells of its column.

use std::collections::BTreeSet;

use crate::plan::Targets;
use crate::sources::tables::column::truth;

/// Most different whole numbers that are taken for classes.
const MAX_CLASSES: usize = 20;
/// Rows of each class from which on whole numbers are taken for classes.
const ROWS_OF_A_CLASS: usize = 5;

/// The cells of a target, as far as they say what it is.
#[derive(Clone, Debug, Default)]
pub struct TargetCells {
    rows: usize,
    words: bool,
    truths: bool,
    decimals: bool,
    /// Different whole numbers, up to one more than there may be classes.
    whole: BTreeSet<i64>,
}

impl TargetCells {
    /// One more cell, which is not empty.
    pub fn push(&mut self, cell: &str) {
        self.rows += 1;
        match cell.parse::<f64>() {
            Err(_) if truth(cell).is_some() => self.truths = true,
            Err(_) => self.words = true,
            // `1.0` is the class `1`; f64 holds integers up to 2^53 exactly.
            Ok(number) if number.fract() == 0.0 && number.abs() < 9e15 => {
                if self.whole.len() <= MAX_CLASSES {
                    self.whole.insert(number as i64);
                }
            }
            Ok(_) => self.decimals = true,
        }
    }

    /// True for classes: words, or a few whole numbers of which each is in several rows.
    pub fn are_classes(&self) -> bool {
        let n = self.whole.len();
        let are_few = (2..=MAX_CLASSES).contains(&n) && self.rows >= ROWS_OF_A_CLASS * n;
        self.words || self.truths || (are_few && !self.decimals)
    }

    /// True if they are 0 and 1, or truth values.
    pub fn are_flags(&self) -> bool {
        !self.words && !self.decimals && self.whole.iter().all(|n| [0, 1].contains(n))
    }

    /// The targets of these columns: several of 0 and 1 are labels.
    pub fn targets(columns: &[Self]) -> Targets {
        match columns {
            [one] if one.are_classes() => Targets::Classes,
            [_, _, ..] if columns.iter().all(Self::are_flags) => Targets::MultiLabel,
            _ => Targets::Numbers,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(cells: &[&str], times: usize) -> TargetCells {
        let mut found = TargetCells::default();
        (0..times).flat_map(|_| cells).for_each(|cell| found.push(cell));
        found
    }

    #[test]
    fn words_and_few_whole_numbers_are_classes() {
        assert!(cells(&["cat", "dog"], 1).are_classes());
        assert!(cells(&["0", "1", "2"], 10).are_classes());
        assert!(cells(&["0.0", "1"], 10).are_classes());
        assert!(!cells(&["0", "1", "2"], 2).are_classes(), "two rows of each");
        assert!(!cells(&["0.5", "1"], 50).are_classes());
        assert!(!cells(&["3"], 50).are_classes(), "one value");
        let many: Vec<String> = (0..30).map(|n| n.to_string()).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(!cells(&many, 50).are_classes());
    }

    #[test]
    fn several_columns_are_labels_or_numbers() {
        let flags = cells(&["0", "1"], 9);
        let numbers = cells(&["0.5", "1"], 9);
        assert_eq!(TargetCells::targets(&[flags.clone(), flags.clone()]), Targets::MultiLabel);
        assert_eq!(TargetCells::targets(&[flags.clone(), numbers]), Targets::Numbers);
        assert_eq!(TargetCells::targets(&[flags]), Targets::Classes);
    }
}
