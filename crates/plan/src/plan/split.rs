//! The split of one data set into samples to train, to validate and to test on.
//!
//! A unit (a sample, or all rows of a group) is never divided. Without groups
//! a part has as many samples as scikit-learn's `train_test_split` gives it, and classes have their
//! shares of them as with its `stratify`. The same seed gives the same parts, whatever the run.

use serde::{Deserialize, Serialize};
use train_numbers::rng::{self, Key, Purpose};

use crate::config::schema::Data;

/// Training samples that are held back to validate or to test.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SplitPlan {
    /// Share to validate on.
    pub val_fraction: Option<f64>,
    /// Share to test on.
    pub test_fraction: Option<f64>,
    /// Number of folds, of which one validates, instead of a share.
    pub folds: Option<usize>,
    /// The fold that validates, from 0.
    pub fold: usize,
    /// Seed of the split.
    pub seed: u64,
}

/// Purpose of a sample.
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
    /// Name in the files of records.
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

    /// The split of `[data]`.
    pub fn of(data: &Data) -> Self {
        Self {
            val_fraction: data.val_fraction,
            test_fraction: data.test_fraction,
            folds: data.folds.map(|folds| folds as usize),
            fold: data.fold.unwrap_or(0) as usize,
            seed: data.split_seed,
        }
    }

    /// True if samples are held back to validate on.
    pub fn holds_val(&self) -> bool {
        self.val_fraction.is_some() || self.folds.is_some()
    }

    /// True if any sample is held back.
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

    /// Purpose of each unit, of which `labels` are the classes.
    pub fn deal(&self, labels: &[u32]) -> Result<Vec<Part>, String> {
        let mut parts = vec![Part::Train; labels.len()];
        let classes = labels.iter().max().map_or(0, |&label| label + 1);
        let mut of_class: Vec<Vec<usize>> = vec![Vec::new(); classes as usize];
        labels.iter().zip(0..).for_each(|(&label, unit)| of_class[label as usize].push(unit));
        let counts: Vec<usize> = of_class.iter().map(Vec::len).collect();
        let test = self.shares(self.test_fraction, labels.len(), &counts);
        let left: Vec<usize> = counts.iter().zip(&test).map(|(all, test)| all - test).collect();
        let val = self.shares(self.val_fraction, labels.len(), &left);
        // Folds go round over all classes, so that they differ by one unit at most.
        let mut turn = 0;
        for (class, units) in of_class.iter().enumerate() {
            let key = Key::new(self.seed, Purpose::Shuffle, HELD_BACK, class as u64);
            let order = rng::permutation(key, units.len());
            let mut order = order.into_iter().map(|place| units[place as usize]);
            for unit in order.by_ref().take(test[class]) {
                parts[unit] = Part::Test;
            }
            let val = val[class];
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

    /// Units of each class, which has `counts` units, that are held back for a fraction of `n`: the
    /// share of each class, rounded down, and one more of the classes that lose most by rounding,
    /// in random order where they lose the same (`_approximate_mode` of scikit-learn). One unit of
    /// each class is left to train on.
    fn shares(&self, fraction: Option<f64>, n: usize, counts: &[usize]) -> Vec<usize> {
        let all: usize = counts.iter().sum();
        let wanted = fraction.map_or(0, |fraction| (fraction * n as f64).ceil() as usize).min(all);
        let exact = |count: usize| wanted as f64 * count as f64 / all.max(1) as f64;
        let most = |class: usize| counts[class].saturating_sub(1);
        let mut shares: Vec<usize> = (0..counts.len())
            .map(|class| (exact(counts[class]).floor() as usize).min(most(class)))
            .collect();
        let key = Key::new(self.seed, Purpose::Shuffle, HELD_BACK, TIES);
        let mut order: Vec<usize> =
            rng::permutation(key, counts.len()).into_iter().map(|class| class as usize).collect();
        let loss = |class: usize| exact(counts[class]) - exact(counts[class]).floor();
        order.sort_by(|&a, &b| loss(b).total_cmp(&loss(a)));
        let mut missing = wanted - shares.iter().sum::<usize>();
        // More than one each only where a class gives less than its share.
        while missing > 0 {
            let before = missing;
            for &class in &order {
                if missing > 0 && shares[class] < most(class) {
                    shares[class] += 1;
                    missing -= 1;
                }
            }
            if missing == before {
                break;
            }
        }
        shares
    }

    /// Lengths of the parts of ordered samples: first those to train on, then to validate on, then
    /// to test on.
    pub fn cut(&self, n: usize, val_fraction: f64) -> Result<[usize; 3], String> {
        let share = |share: f64| (share * n as f64).round() as usize;
        let test = share(self.test_fraction.unwrap_or(0.0));
        let val = share(self.val_fraction.unwrap_or(val_fraction));
        let lengths = [n.saturating_sub(val + test), val, test];
        let given = |wanted| lengths[wanted as usize] > 0;
        self.complete(n, given).map(|()| lengths)
    }

    /// Refuses a split in which a part is empty.
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

    /// The setting that decides the size of the part.
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

/// An epoch that no run reaches: keeps these draws apart from the orders of epochs.
const HELD_BACK: u64 = u64::MAX - 1;
/// A class that no data set has: keeps the order of classes apart from those of their units.
const TIES: u64 = u64::MAX;

#[cfg(test)]
mod tests {
    use test_support::assert_refused;

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
    fn parts_have_the_sizes_of_scikit_learn_however_small_the_classes_are() {
        // train_test_split(rows, test_size=fraction, stratify=labels): the rows of the test part.
        for (classes, rows, fraction, expected) in
            [(100, 3, 0.2, 60), (100, 2, 0.2, 40), (100, 7, 0.2, 140), (3, 50, 0.25, 38)]
        {
            let labels: Vec<u32> = (0..classes * rows).map(|unit| unit / rows).collect();
            let split = SplitPlan { val_fraction: Some(fraction), ..SplitPlan::NONE };
            let parts = split.deal(&labels).unwrap();
            let of = |class: u32, wanted: Part| {
                let mut units = parts.iter().zip(&labels);
                units.by_ref().filter(|&(part, &label)| label == class && *part == wanted).count()
            };
            let val: Vec<usize> = (0..classes).map(|class| of(class, Part::Val)).collect();
            assert_eq!(val.iter().sum::<usize>(), expected, "{classes} x {rows}");
            let share = f64::from(rows) * fraction;
            assert!(val.iter().all(|&n| (n as f64 - share).abs() < 1.0), "{val:?}");
            assert!((0..classes).all(|class| of(class, Part::Train) > 0));
            let other = SplitPlan { seed: 1, ..split };
            assert_ne!(other.deal(&labels).unwrap(), parts);
        }
        let both =
            SplitPlan { val_fraction: Some(0.2), test_fraction: Some(0.2), ..SplitPlan::NONE };
        let labels: Vec<u32> = (0..300).map(|unit| unit / 3).collect();
        let parts = both.deal(&labels).unwrap();
        let n = |part| parts.iter().filter(|&&other| other == part).count();
        assert_eq!([n(Part::Train), n(Part::Val), n(Part::Test)], [180, 60, 60]);
    }

    #[test]
    fn the_only_unit_of_a_class_is_trained_on() {
        let labels = [0, 1, 2, 3, 4, 4, 4, 4, 4, 4];
        let split = SplitPlan { val_fraction: Some(0.4), ..SplitPlan::NONE };
        let parts = split.deal(&labels).unwrap();
        assert_eq!(parts.iter().filter(|&&part| part == Part::Val).count(), 4);
        assert!(parts[..4].iter().all(|&part| part == Part::Train));
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
        assert_refused(split.deal(&[]), "leaves nothing to train on: there are only 0 samples");
    }
}
