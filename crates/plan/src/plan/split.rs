//! Which samples of one set are trained on, and which are held back to validate and to test on.
//!
//! What belongs together (a sample, or all rows of a group) is dealt out as a whole. Without groups
//! each class is dealt out by itself, so that all parts have its share. The same seed gives the
//! same parts, whatever the run.

use serde::{Deserialize, Serialize};
use train_numbers::rng::{self, Key, Purpose};

use crate::config::schema::Data;

/// What is held back of the training samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SplitPlan {
    /// Share to validate on.
    pub val_fraction: Option<f64>,
    /// Share to test on.
    pub test_fraction: Option<f64>,
    /// Parts, of which one validates, instead of a share.
    pub folds: Option<usize>,
    /// Which one, from 0.
    pub fold: usize,
    /// Seed of the parts.
    pub seed: u64,
}

/// What a sample is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// To train on.
    Train,
    /// To validate on.
    Val,
    /// To test on when the training is over.
    Test,
}

impl Part {
    /// What its files are called in records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Val => "val",
            Self::Test => "test",
        }
    }
}

impl SplitPlan {
    /// Nothing is held back.
    pub const NONE: Self =
        Self { val_fraction: None, test_fraction: None, folds: None, fold: 0, seed: 0 };

    /// As asked.
    pub fn of(data: &Data) -> Self {
        Self {
            val_fraction: data.val_fraction,
            test_fraction: data.test_fraction,
            folds: data.folds.map(|folds| folds as usize),
            fold: data.fold.unwrap_or(0) as usize,
            seed: data.split_seed,
        }
    }

    /// Whether samples are held back to validate on.
    pub fn holds_val(&self) -> bool {
        self.val_fraction.is_some() || self.folds.is_some()
    }

    /// Whether any sample is held back.
    pub fn holds_something(&self) -> bool {
        self.holds_val() || self.test_fraction.is_some()
    }

    /// ", 0.2 held back to validate"
    pub fn words(&self) -> String {
        let share = |share: Option<f64>, what: &str| {
            share.map_or(String::new(), |share| format!(", {share} held back to {what}"))
        };
        let fold = self
            .folds
            .map_or(String::new(), |folds| format!(", fold {} of {folds} validates", self.fold));
        share(self.val_fraction, "validate") + &fold + &share(self.test_fraction, "test")
    }

    /// What each unit is for; `labels` holds the class of each.
    ///
    /// # Errors
    ///
    /// A part is asked for and gets nothing, in words.
    pub fn deal(&self, labels: &[u32]) -> Result<Vec<Part>, String> {
        let mut parts = vec![Part::Train; labels.len()];
        let classes = labels.iter().max().map_or(0, |&label| label + 1);
        let mut of_class: Vec<Vec<usize>> = vec![Vec::new(); classes as usize];
        labels.iter().zip(0..).for_each(|(&label, unit)| of_class[label as usize].push(unit));
        // Folds go round over all classes, so that they differ by one unit at most.
        let mut turn = 0;
        for (class, units) in of_class.iter().enumerate() {
            let key = Key::new(self.seed, Purpose::Shuffle, HELD_BACK, class as u64);
            let order = rng::permutation(key, units.len());
            let mut order = order.into_iter().map(|place| units[place as usize]);
            let share = |share: Option<f64>| (share.unwrap_or(0.0) * units.len() as f64).round();
            for unit in order.by_ref().take(share(self.test_fraction) as usize) {
                parts[unit] = Part::Test;
            }
            let val = share(self.val_fraction) as usize;
            for (place, unit) in order.enumerate() {
                let is_val = match self.folds {
                    Some(folds) => turn % folds == self.fold,
                    None => place < val,
                };
                turn += 1;
                if is_val {
                    parts[unit] = Part::Val;
                }
            }
        }
        let given = |wanted: Part| parts.contains(&wanted);
        self.complete(labels.len(), given).map(|()| parts)
    }

    /// The lengths of the parts of what has an order: first what is trained on, then what
    /// validates, then what tests.
    ///
    /// # Errors
    ///
    /// As [`SplitPlan::deal`].
    pub fn cut(&self, n: usize, val_fraction: f64) -> Result<[usize; 3], String> {
        let share = |share: f64| (share * n as f64).round() as usize;
        let test = share(self.test_fraction.unwrap_or(0.0));
        let val = share(self.val_fraction.unwrap_or(val_fraction));
        let lengths = [n.saturating_sub(val + test), val, test];
        let given = |wanted| lengths[wanted as usize] > 0;
        self.complete(n, given).map(|()| lengths)
    }

    /// Whether all parts that are asked for have got something.
    fn complete(&self, n: usize, given: impl Fn(Part) -> bool) -> Result<(), String> {
        let is_wanted = [
            (Part::Train, true, "train"),
            (Part::Val, self.holds_val(), "validate"),
            (Part::Test, self.test_fraction.is_some(), "test"),
        ];
        let empty = is_wanted.iter().find(|(part, wanted, _)| *wanted && !given(*part));
        let Some((part, _, word)) = empty else { return Ok(()) };
        let there = match n {
            1 => "there is only 1 sample or group".to_owned(),
            n => format!("there are only {n} samples or groups"),
        };
        Err(format!("{} leaves nothing to {word} on: {there}", self.cause(*part)))
    }

    /// What decides how much the part gets.
    fn cause(&self, part: Part) -> String {
        let fraction =
            |key: &str, share: Option<f64>| format!("`data.{key} = {}`", share.unwrap_or(0.0));
        match (part, self.folds) {
            (Part::Train, _) => "what is held back".to_owned(),
            (Part::Test, _) => fraction("test_fraction", self.test_fraction),
            (Part::Val, None) => fraction("val_fraction", self.val_fraction),
            (Part::Val, Some(folds)) => {
                format!("`data.folds = {folds}` with `data.fold = {}`", self.fold)
            }
        }
    }
}

/// The epoch that no run reaches: keeps these draws from the orders of epochs.
const HELD_BACK: u64 = u64::MAX - 1;

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
        let split =
            SplitPlan { val_fraction: Some(0.2), test_fraction: Some(0.1), ..SplitPlan::NONE };
        let parts = split.deal(&labels()).unwrap();
        for (part, expected) in [(Part::Train, [63, 7]), (Part::Val, [18, 2]), (Part::Test, [9, 1])]
        {
            assert_eq!([0, 1].map(|label| count(&parts, part, label)), expected);
        }
        assert_eq!(split.deal(&labels()).unwrap(), parts);
        let other = SplitPlan { seed: 1, ..split };
        assert_ne!(other.deal(&labels()).unwrap(), parts);
    }

    #[test]
    fn each_sample_validates_in_one_fold() {
        let mut times = vec![0; 100];
        for fold in 0..3 {
            let split = SplitPlan { folds: Some(3), fold, ..SplitPlan::NONE };
            let parts = split.deal(&labels()).unwrap();
            times.iter_mut().zip(&parts).for_each(|(n, part)| *n += u32::from(*part == Part::Val));
            // As StratifiedKFold of scikit-learn: 33 or 34 in all, 3 or 4 of the rare class.
            assert!([33, 34].contains(&parts.iter().filter(|&&part| part == Part::Val).count()));
            assert!([3, 4].contains(&count(&parts, Part::Val, 1)));
        }
        assert!(times.iter().all(|&n| n == 1), "{times:?}");
    }

    #[test]
    fn folds_leave_what_is_to_test_on_untouched() {
        let of =
            |fold| SplitPlan { folds: Some(4), fold, test_fraction: Some(0.2), ..SplitPlan::NONE };
        let tested = |fold| -> Vec<bool> {
            of(fold).deal(&labels()).unwrap().iter().map(|&part| part == Part::Test).collect()
        };
        assert_eq!(tested(0), tested(3));
        assert_eq!(tested(0).iter().filter(|&&is_test| is_test).count(), 20);
    }

    #[test]
    fn what_has_an_order_is_cut_at_its_end() {
        let split = SplitPlan { test_fraction: Some(0.2), ..SplitPlan::NONE };
        assert_eq!(split.cut(50, 0.1).unwrap(), [35, 5, 10]);
        let split = SplitPlan { val_fraction: Some(0.3), ..SplitPlan::NONE };
        assert_eq!(split.cut(50, 0.1).unwrap(), [35, 15, 0]);
        assert!(split.cut(1, 0.1).unwrap_err().contains("nothing to validate on"));
    }

    #[test]
    fn a_part_that_gets_nothing_is_refused() {
        let split = SplitPlan { val_fraction: Some(0.2), ..SplitPlan::NONE };
        assert_eq!(
            split.deal(&[0, 1]).unwrap_err(),
            "`data.val_fraction = 0.2` leaves nothing to validate on: there are only 2 samples or \
             groups"
        );
        let folds = SplitPlan { folds: Some(5), fold: 4, ..SplitPlan::NONE };
        let error = folds.deal(&[0]).unwrap_err();
        assert_eq!(
            error,
            "`data.folds = 5` with `data.fold = 4` leaves nothing to validate on: there is only 1 \
             sample or group"
        );
        assert!(split.deal(&[]).is_err());
    }
}
