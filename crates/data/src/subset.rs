//! Some samples of a data set, as `torch.utils.data.Subset`.

use std::path::PathBuf;
use std::sync::Arc;

use crate::dataset::{Dataset, Target};
use crate::error::SampleError;
use crate::plan::shares;
use crate::rng::{self, Key, Purpose};

/// Some samples of a data set, in its order.
pub(crate) struct Subset {
    whole: Arc<dyn Dataset>,
    indices: Vec<u32>,
}

/// Chooses `n` of samples with these labels so that classes keep their shares: the same ones in any
/// run, and always part of any larger choice.
pub(crate) fn taken(labels: impl Iterator<Item = u32>, classes: usize, n: usize) -> Vec<u32> {
    let mut of_class: Vec<Vec<u32>> = vec![Vec::new(); classes.max(1)];
    for (index, label) in (0..).zip(labels) {
        of_class[label as usize].push(index);
    }
    let counts: Vec<u64> = of_class.iter().map(|indices| indices.len() as u64).collect();
    let taken = of_class.iter().zip(shares(&counts, n as u64)).zip(0..);
    let mut indices: Vec<u32> = taken
        .flat_map(|((all, n), class)| {
            let order = rng::permutation(Key::new(0, Purpose::Shuffle, SUBSET, class), all.len());
            order.into_iter().take(n as usize).map(|place| all[place as usize])
        })
        .collect();
    indices.sort_unstable();
    indices
}

impl Subset {
    /// `n` of all samples: those that are [`taken`].
    pub(crate) fn of(whole: Arc<dyn Dataset>, classes: usize, n: usize) -> Self {
        let labels = (0..whole.len()).map(|index| whole.label(index).unwrap_or(0));
        let indices = taken(labels, classes, n);
        Self { whole, indices }
    }

    fn place(&self, index: usize) -> usize {
        self.indices[index] as usize
    }
}

/// The epoch that no run reaches: keeps this choice from the orders of epochs.
const SUBSET: u64 = u64::MAX;

impl Dataset for Subset {
    fn len(&self) -> usize {
        self.indices.len()
    }

    fn shape(&self) -> &[usize] {
        self.whole.shape()
    }

    fn target_shape(&self) -> &[usize] {
        self.whole.target_shape()
    }

    fn classifies(&self) -> bool {
        self.whole.classifies()
    }

    fn label(&self, index: usize) -> Option<u32> {
        self.whole.label(self.place(index))
    }

    fn name(&self, index: usize) -> String {
        self.whole.name(self.place(index))
    }

    fn length(&self, index: usize) -> Option<usize> {
        self.whole.length(self.place(index))
    }

    fn segments(&self, index: usize) -> Option<Vec<usize>> {
        self.whole.segments(self.place(index))
    }

    fn origin(&self, index: usize) -> Option<(PathBuf, Option<u64>)> {
        self.whole.origin(self.place(index))
    }

    fn ends_by_itself(&self) -> bool {
        self.whole.ends_by_itself()
    }

    fn load(
        &self,
        index: usize,
        key: Option<Key>,
        values: &mut Vec<f32>,
    ) -> Result<Target, SampleError> {
        self.whole.load(self.place(index), key, values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sample i has the label i % 10 == 0.
    struct Rare;

    impl Dataset for Rare {
        fn len(&self) -> usize {
            1000
        }

        fn shape(&self) -> &[usize] {
            &[1]
        }

        fn classifies(&self) -> bool {
            true
        }

        fn label(&self, index: usize) -> Option<u32> {
            Some(u32::from(index.is_multiple_of(10)))
        }

        fn name(&self, index: usize) -> String {
            index.to_string()
        }

        fn load(
            &self,
            index: usize,
            _: Option<Key>,
            values: &mut Vec<f32>,
        ) -> Result<Target, SampleError> {
            values.push(index as f32);
            Ok(Target::Class(u32::from(index.is_multiple_of(10))))
        }
    }

    #[test]
    fn a_subset_keeps_the_shares_of_classes_and_is_a_part_of_a_larger_one() {
        let subset = |n| Subset::of(Arc::new(Rare), 2, n);
        let (some, more) = (subset(50), subset(200));
        assert_eq!((some.len(), more.len()), (50, 200));
        let rare = (0..50).filter(|&index| some.label(index) == Some(1)).count();
        assert_eq!(rare, 5);
        assert!(some.indices.is_sorted());
        assert!(some.indices.iter().all(|index| more.indices.contains(index)));
        let mut values = Vec::new();
        assert_eq!(some.load(7, None, &mut values).unwrap(), Target::Class(some.label(7).unwrap()));
        assert_eq!((values[0].to_string(), some.indices.len()), (some.name(7), 50));
    }
}
