//! The parts of a data set: those that it has by itself, and those that are held back of its
//! training samples.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::config::kind::{Choice, OptionConflict};
use crate::error::Error;
use crate::listing::paths::Paths;
use crate::plan::{Part, SplitPlan};
use crate::sources::source::OpenRequest;
use crate::{Dataset, Splits};

/// Training, validation and test samples.
#[derive(Clone, Debug, Default)]
pub struct Parts<T> {
    pub train: T,
    pub val: T,
    pub test: Option<T>,
}

/// Samples of which some can be held back.
pub trait Splittable: Default {
    fn units(&self) -> SplitUnits;

    /// Selects the samples at these indices, which ascend.
    #[must_use]
    fn only(&self, places: &[usize]) -> Self;
}

/// Smallest units that a split keeps together.
#[derive(Debug)]
pub enum SplitUnits {
    /// Single samples, each with its class, so that all parts have the same shares of classes.
    Samples(Vec<u32>),
    /// All samples of a group; the number of each sample's.
    Groups(Vec<u32>),
}

impl<T> Parts<T> {
    /// Puts `of` in the place of a part.
    pub fn put(&mut self, part: Part, of: T) {
        match part {
            Part::Train => self.train = of,
            Part::Val => self.val = of,
            Part::Test => self.test = Some(of),
        }
    }

    pub fn each(&self) -> impl Iterator<Item = (Part, &T)> {
        let test = self.test.as_ref().map(|test| (Part::Test, test));
        [(Part::Train, &self.train), (Part::Val, &self.val)].into_iter().chain(test)
    }

    /// The splits: each part opened by `open` with the transforms that the experiment has for it.
    pub fn open(
        self,
        reading: &OpenRequest<'_>,
        classes: Vec<String>,
        open: impl Fn(T, &[Choice]) -> Result<Arc<dyn Dataset>, Error>,
    ) -> Result<Splits, Error> {
        let evaluated = |part| open(part, reading.val_transforms);
        Ok(Splits {
            train: open(self.train, reading.train_transforms)?,
            val: evaluated(self.val)?,
            test: self.test.map(evaluated).transpose()?,
            classes,
        })
    }
}

/// Problems of other parts that are the one that is trained on.
pub(crate) fn parts_that_train<T: PartialEq>(
    train: (&'static [&'static str; 1], &T),
    others: [(&'static str, &Option<T>); 2],
) -> Vec<OptionConflict> {
    let ([name], trained) = train;
    let is_same = |(_, part): &(&str, &Option<T>)| part.as_ref() == Some(trained);
    let conflict = |(key, _)| {
        let what = format!("is `{name}`: its metrics would say nothing about new data");
        OptionConflict { key, with: train.0, what }
    };
    others.into_iter().filter(is_same).map(conflict).collect()
}

impl<T: Splittable> Parts<T> {
    /// Holds back of the training samples what `split` says. Where they validate, the part that did
    /// so before is to test on, if there is one and nothing else to test on.
    pub fn held_back(self, split: &SplitPlan) -> Result<Self, String> {
        if !split.holds_something() {
            return Ok(self);
        }
        let dealt = match self.train.units() {
            SplitUnits::Samples(labels) => split.deal(&labels)?,
            SplitUnits::Groups(of) => {
                let n = of.iter().max().map_or(0, |&group| group as usize + 1);
                let dealt = split.deal(&vec![0; n])?;
                of.iter().map(|&group| dealt[group as usize]).collect()
            }
        };
        let only = |wanted: Part| {
            let places = (0..dealt.len()).filter(|&place| dealt[place] == wanted);
            self.train.only(&places.collect::<Vec<usize>>())
        };
        let train = only(Part::Train);
        let held_test = split.test_fraction.map(|_| only(Part::Test));
        if !split.holds_val() {
            return Ok(Self { train, test: held_test.or(self.test), val: self.val });
        }
        let val = only(Part::Val);
        let fixed = (!self.val.units().is_empty()).then_some(self.val);
        Ok(Self { train, val, test: held_test.or(self.test).or(fixed) })
    }
}

impl SplitUnits {
    fn is_empty(&self) -> bool {
        match self {
            Self::Samples(of) | Self::Groups(of) => of.is_empty(),
        }
    }
}

/// The number of each sample's group; `None` where there are no groups.
pub fn numbered(groups: &[String]) -> Option<Vec<u32>> {
    let mut numbers: BTreeMap<&str, u32> = BTreeMap::new();
    let number = |group| {
        let next = numbers.len() as u32;
        *numbers.entry(group).or_insert(next)
    };
    (!groups.is_empty()).then(|| groups.iter().map(String::as_str).map(number).collect())
}

/// Samples in memory, each with its class.
pub(crate) trait Labelled: Default {
    fn len(&self) -> usize;

    fn label(&self, place: usize) -> u32;
}

/// Some samples of a whole that all parts share.
#[derive(Debug, Default)]
pub(crate) struct Selection<T> {
    pub(crate) whole: Arc<T>,
    pub(crate) places: Vec<u32>,
}

impl<T: Labelled> Selection<T> {
    pub(crate) fn all(whole: T) -> Self {
        Self { places: (0..whole.len() as u32).collect(), whole: Arc::new(whole) }
    }

    pub(crate) fn labels(&self) -> impl Iterator<Item = u32> {
        self.places.iter().map(|&place| self.whole.label(place as usize))
    }
}

impl<T: Labelled> Splittable for Selection<T> {
    fn units(&self) -> SplitUnits {
        SplitUnits::Samples(self.labels().collect())
    }

    fn only(&self, places: &[usize]) -> Self {
        Self { whole: Arc::clone(&self.whole), places: self.places.only(places) }
    }
}

/// The class of each sample.
impl Splittable for Vec<u32> {
    fn units(&self) -> SplitUnits {
        SplitUnits::Samples(self.clone())
    }

    fn only(&self, places: &[usize]) -> Self {
        places.iter().map(|&place| self[place]).collect()
    }
}

/// Indices of samples that have no classes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SampleIndices(pub Vec<u32>);

impl Splittable for SampleIndices {
    fn units(&self) -> SplitUnits {
        SplitUnits::Samples(vec![0; self.0.len()])
    }

    fn only(&self, places: &[usize]) -> Self {
        Self(self.0.only(places))
    }
}

/// Files, by their labels.
impl Splittable for Paths {
    fn units(&self) -> SplitUnits {
        SplitUnits::Samples(self.labels())
    }

    fn only(&self, places: &[usize]) -> Self {
        let mut only = Self::default();
        for (path, label) in places.iter().map(|&place| self.get(place)) {
            only.push_path(&path, label);
        }
        only
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fixed_validation_part_is_to_test_on_where_training_samples_validate() {
        let own = || Parts { train: vec![0, 0, 1, 1, 0, 1, 0, 1], val: vec![7, 8, 9], test: None };
        let split = SplitPlan { val_fraction: Some(0.25), ..SplitPlan::NONE };
        let parts = own().held_back(&split).unwrap();
        assert_eq!((parts.train.len(), parts.val), (6, vec![0, 1]));
        assert_eq!(parts.test, Some(vec![7, 8, 9]));
        let split = SplitPlan { test_fraction: Some(0.25), ..SplitPlan::NONE };
        let parts = own().held_back(&split).unwrap();
        assert_eq!(
            (parts.train.len(), parts.val, parts.test),
            (6, vec![7, 8, 9], Some(vec![0, 1]))
        );
        assert_eq!(own().held_back(&SplitPlan::NONE).unwrap().train.len(), 8);
    }

    /// Samples of three groups.
    #[derive(Default)]
    struct Grouped(Vec<u32>);

    impl Splittable for Grouped {
        fn units(&self) -> SplitUnits {
            SplitUnits::Groups(self.0.clone())
        }

        fn only(&self, places: &[usize]) -> Self {
            Self(self.0.only(places))
        }
    }

    #[test]
    fn a_group_is_held_back_as_a_whole() {
        let train = Grouped(vec![0, 1, 2, 0, 1, 2, 2]);
        let split = SplitPlan { folds: Some(3), fold: 1, ..SplitPlan::NONE };
        let parts = Parts { train, ..Parts::default() }.held_back(&split).unwrap();
        let (Grouped(train), Grouped(val)) = (parts.train, parts.val);
        assert_eq!(train.len() + val.len(), 7);
        assert!(val.iter().all(|group| !train.contains(group) && *group == val[0]));
        assert!(parts.test.is_none());
    }
}
