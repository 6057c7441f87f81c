//! Which samples of one set are trained on, and which are held back to validate and to test on.
//!
//! What belongs together (a sample, or all rows of a group) is dealt out as a whole. Without groups
//! each class is dealt out by itself, so that all parts have its share. The same seed gives the
//! same parts, whatever the run.

use crate::config::kind::Wrong;
use crate::rng::{self, Key, Purpose};

/// What is held back.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Holdout {
    /// Share to validate on.
    pub(crate) val_fraction: Option<f64>,
    /// Share to test on.
    pub(crate) test_fraction: Option<f64>,
    /// Parts, of which one validates, instead of a share.
    pub(crate) folds: Option<usize>,
    /// Which one, from 0.
    pub(crate) fold: Option<usize>,
    /// Seed of the parts.
    pub(crate) seed: u64,
}

/// What a sample is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Train,
    Val,
    Test,
}

impl Part {
    /// What its files are called in records.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Val => "val",
            Self::Test => "test",
        }
    }
}

impl Holdout {
    /// The rules between the keys, beside those that name the other parts: `val` and `test`, and
    /// whether they are given.
    pub(crate) fn check(
        &self,
        val: (&'static str, bool),
        test: (&'static str, bool),
    ) -> Vec<Wrong> {
        let mut wrong = Vec::new();
        let mut say =
            |key, with, what: &str| wrong.push(Wrong { key, with, what: what.to_owned() });
        let holds_val = self.val_fraction.is_some() || self.folds.is_some();
        if !val.1 && !holds_val {
            let what = "is missing: give it, or hold samples back with `val_fraction` or `folds`";
            say(val.0, &[], what);
        }
        if val.1 && self.val_fraction.is_some() {
            say("val_fraction", &[], &format!("does not go with `{}`", val.0));
        }
        if val.1 && self.folds.is_some() {
            say("folds", &[], &format!("does not go with `{}`", val.0));
        }
        if self.val_fraction.is_some() && self.folds.is_some() {
            say("folds", &["val_fraction"], "does not go with `val_fraction`");
        }
        if test.1 && self.test_fraction.is_some() {
            say("test_fraction", &[], &format!("does not go with `{}`", test.0));
        }
        match (self.fold, self.folds) {
            (Some(_), None) => say("fold", &["folds"], "needs `folds`, the number of parts"),
            (Some(fold), Some(folds)) if fold >= folds => {
                let what = format!("is {fold}, but the last of {folds} parts is {}", folds - 1);
                say("fold", &["folds"], &what);
            }
            _ => {}
        }
        if self.val_fraction.unwrap_or(0.0) + self.test_fraction.unwrap_or(0.0) >= 1.0 {
            let what = "leaves nothing to train on, with `test_fraction`";
            say("val_fraction", &["test_fraction"], what);
        }
        wrong
    }

    /// Whether any sample is held back.
    pub(crate) fn holds_something(&self) -> bool {
        self.val_fraction.is_some() || self.test_fraction.is_some() || self.folds.is_some()
    }

    /// ", 0.2 held back to validate"
    pub(crate) fn words(&self) -> String {
        let share = |share: Option<f64>, what: &str| {
            share.map_or(String::new(), |share| format!(", {share} held back to {what}"))
        };
        let fold = self.folds.map_or(String::new(), |folds| {
            format!(", fold {} of {folds} validates", self.fold.unwrap_or(0))
        });
        share(self.val_fraction, "validate") + &fold + &share(self.test_fraction, "test")
    }

    /// What each unit is for; `labels` holds the class of each.
    ///
    /// # Errors
    ///
    /// A part is asked for and gets nothing, in words.
    pub(crate) fn deal(&self, labels: &[u32]) -> Result<Vec<Part>, String> {
        let mut parts = vec![Part::Train; labels.len()];
        let classes = labels.iter().max().map_or(0, |&label| label + 1);
        let mut of_class: Vec<Vec<usize>> = vec![Vec::new(); classes as usize];
        labels.iter().zip(0..).for_each(|(&label, unit)| of_class[label as usize].push(unit));
        // Folds go round over all classes, so that they differ by one unit at most.
        let mut turn = 0;
        for (class, units) in of_class.iter().enumerate() {
            let key = Key::new(self.seed, Purpose::Shuffle, HOLDOUT, class as u64);
            let order = rng::permutation(key, units.len());
            let mut order = order.into_iter().map(|place| units[place as usize]);
            let share = |share: Option<f64>| (share.unwrap_or(0.0) * units.len() as f64).round();
            for unit in order.by_ref().take(share(self.test_fraction) as usize) {
                parts[unit] = Part::Test;
            }
            let val = share(self.val_fraction) as usize;
            for (place, unit) in order.enumerate() {
                let is_val = match self.folds {
                    Some(folds) => turn % folds == self.fold.unwrap_or(0),
                    None => place < val,
                };
                turn += 1;
                if is_val {
                    parts[unit] = Part::Val;
                }
            }
        }
        let is_wanted = [
            (Part::Train, true, "train"),
            (Part::Val, self.val_fraction.is_some() || self.folds.is_some(), "validate"),
            (Part::Test, self.test_fraction.is_some(), "test"),
        ];
        match is_wanted.iter().find(|(part, wanted, _)| *wanted && !parts.contains(part)) {
            Some((.., word)) => {
                Err(format!("{} samples or groups leave nothing to {word} on", labels.len()))
            }
            None => Ok(parts),
        }
    }
}

/// The epoch that no run reaches: keeps these draws from the orders of epochs.
const HOLDOUT: u64 = u64::MAX - 1;

#[cfg(test)]
mod tests {
    use super::*;

    /// 90 of class 0, 10 of class 1.
    fn labels() -> Vec<u32> {
        (0..100).map(|unit| u32::from(unit % 10 == 3)).collect()
    }

    fn count(parts: &[Part], part: Part, label: u32) -> usize {
        parts.iter().zip(labels()).filter(|&(&p, l)| p == part && l == label).count()
    }

    #[test]
    fn each_class_gives_its_share_to_each_part() {
        let holdout =
            Holdout { val_fraction: Some(0.2), test_fraction: Some(0.1), ..Holdout::default() };
        let parts = holdout.deal(&labels()).unwrap();
        for (part, expected) in [(Part::Train, [63, 7]), (Part::Val, [18, 2]), (Part::Test, [9, 1])]
        {
            assert_eq!([0, 1].map(|label| count(&parts, part, label)), expected);
        }
        assert_eq!(holdout.deal(&labels()).unwrap(), parts);
        let other = Holdout { seed: 1, ..holdout };
        assert_ne!(other.deal(&labels()).unwrap(), parts);
    }

    #[test]
    fn each_sample_validates_in_one_fold() {
        let mut times = vec![0; 100];
        for fold in 0..3 {
            let holdout = Holdout { folds: Some(3), fold: Some(fold), ..Holdout::default() };
            let parts = holdout.deal(&labels()).unwrap();
            times.iter_mut().zip(&parts).for_each(|(n, part)| *n += u32::from(*part == Part::Val));
            // As StratifiedKFold of scikit-learn: 33 or 34 in all, 3 or 4 of the rare class.
            assert!([33, 34].contains(&parts.iter().filter(|&&part| part == Part::Val).count()));
            assert!([3, 4].contains(&count(&parts, Part::Val, 1)));
        }
        assert!(times.iter().all(|&n| n == 1), "{times:?}");
    }

    #[test]
    fn folds_leave_what_is_to_test_on_untouched() {
        let of = |fold| Holdout {
            folds: Some(4),
            fold: Some(fold),
            test_fraction: Some(0.2),
            ..Holdout::default()
        };
        let tested = |fold| -> Vec<bool> {
            of(fold).deal(&labels()).unwrap().iter().map(|&part| part == Part::Test).collect()
        };
        assert_eq!(tested(0), tested(3));
        assert_eq!(tested(0).iter().filter(|&&is_test| is_test).count(), 20);
    }

    #[test]
    fn a_part_that_gets_nothing_is_refused() {
        let holdout = Holdout { val_fraction: Some(0.2), ..Holdout::default() };
        assert_eq!(
            holdout.deal(&[0, 1]).unwrap_err(),
            "2 samples or groups leave nothing to validate on"
        );
        assert!(holdout.deal(&[]).is_err());
    }

    #[test]
    fn keys_that_do_not_go_together_are_named() {
        let check = |holdout: Holdout, val, expected: &[&str]| {
            let wrong = holdout.check(("val_dir", val), ("test_dir", false));
            assert_eq!(wrong.iter().map(|wrong| wrong.key).collect::<Vec<_>>(), expected);
        };
        let none = Holdout::default();
        check(none, true, &[]);
        check(none, false, &["val_dir"]);
        check(Holdout { val_fraction: Some(0.1), ..none }, false, &[]);
        check(Holdout { val_fraction: Some(0.1), ..none }, true, &["val_fraction"]);
        check(Holdout { folds: Some(5), fold: Some(5), ..none }, false, &["fold"]);
        check(Holdout { fold: Some(1), ..none }, true, &["fold"]);
        let both = Holdout { val_fraction: Some(0.5), test_fraction: Some(0.5), ..none };
        check(both, false, &["val_fraction"]);
    }
}
