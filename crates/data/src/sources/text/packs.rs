//! Several entries in a sample, one behind the other: less padding, and samples of about the same
//! length.

use std::collections::BTreeMap;

use crate::error::SampleError;
use crate::rng::Key;
use crate::sources::text::samples::{Samples, filled_up};
use crate::{Dataset, Target};

/// Samples that are packs of others. Which ones are together follows from their lengths alone, so
/// that it is the same in all epochs, on all ranks and after a resume.
pub(super) struct Packs {
    samples: Samples,
    /// Numbers of the samples in each pack, in their order.
    packs: Vec<Vec<u32>>,
}

impl Packs {
    /// Packs `samples`; what cannot be read or is empty is left out.
    pub(super) fn new(samples: Samples) -> Self {
        let lengths: Vec<usize> = (0..samples.len()).map(|index| samples.used(index)).collect();
        let packs = packed(&lengths, samples.shape()[0]);
        Self { samples, packs }
    }

    fn lengths(&self, index: usize) -> Vec<usize> {
        self.packs[index].iter().map(|&sample| self.samples.used(sample as usize)).collect()
    }
}

/// Puts each of the `lengths` that is not 0 into the pack of at most `capacity` in which it leaves
/// the least room, the longest first ("best fit decreasing"). Packs are in the order of their first
/// members.
fn packed(lengths: &[usize], capacity: usize) -> Vec<Vec<u32>> {
    let mut order: Vec<u32> = (0..lengths.len() as u32).collect();
    order.retain(|&index| lengths[index as usize] > 0);
    order.sort_by_key(|&index| (usize::MAX - lengths[index as usize], index));
    let mut packs: Vec<Vec<u32>> = Vec::new();
    // Packs by the room that is left.
    let mut rooms: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for index in order {
        let length = lengths[index as usize];
        let fitting = rooms.range_mut(length..).next();
        let fitting = fitting.and_then(|(&room, packs)| Some((room, packs.pop()?)));
        let (room, pack) = fitting.unwrap_or_else(|| {
            packs.push(Vec::new());
            (capacity, packs.len() - 1)
        });
        if rooms.get(&room).is_some_and(Vec::is_empty) {
            rooms.remove(&room);
        }
        packs[pack].push(index);
        rooms.entry(room.saturating_sub(length)).or_default().push(pack);
    }
    for pack in &mut packs {
        pack.sort_unstable();
    }
    packs.sort_unstable();
    packs
}

impl Dataset for Packs {
    fn len(&self) -> usize {
        self.packs.len()
    }

    fn shape(&self) -> &[usize] {
        self.samples.shape()
    }

    fn target_shape(&self) -> &[usize] {
        self.samples.target_shape()
    }

    fn classifies(&self) -> bool {
        true
    }

    fn name(&self, index: usize) -> String {
        let pack = &self.packs[index];
        let first = self.samples.name(pack[0] as usize);
        match pack.len() - 1 {
            0 => first,
            more => format!("{first} and {more} more"),
        }
    }

    fn length(&self, index: usize) -> Option<usize> {
        Some(self.lengths(index).iter().sum())
    }

    fn segments(&self, index: usize) -> Option<Vec<usize>> {
        Some(self.lengths(index))
    }

    fn load(
        &self,
        index: usize,
        _: Option<Key>,
        values: &mut Vec<f32>,
    ) -> Result<Target, SampleError> {
        let (mut seen, mut next) = (Vec::new(), Vec::new());
        for &sample in &self.packs[index] {
            let (of_seen, of_next) = self.samples.tokens(sample as usize)?;
            seen.extend(of_seen);
            next.extend(of_next);
        }
        if seen.len() > self.shape()[0] {
            let reason = format!("{} tokens are one pack", seen.len());
            let path = self.samples.path().to_owned();
            return Err(SampleError::Decode { path, reason });
        }
        let (seen, next) = filled_up(seen, next, self.shape()[0], self.samples.end());
        values.extend(seen.into_iter().map(|token| token as f32));
        Ok(Target::Classes(next))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_longest_come_first_and_each_goes_where_the_least_room_is_left() {
        // 7 + 3, 6 + 4 and 5 + 2 of 10; what is empty is nowhere.
        assert_eq!(packed(&[3, 7, 0, 6, 5, 4, 2], 10), [vec![0, 1], vec![3, 5], vec![4, 6]]);
        assert_eq!(packed(&[10, 10], 10), [[0], [1]]);
        assert!(packed(&[0, 0], 10).is_empty());
    }

    proptest! {
        #[test]
        fn each_is_in_one_pack_and_no_pack_is_too_long(
            lengths in proptest::collection::vec(0_usize..=32, 0..200),
        ) {
            let packs = packed(&lengths, 32);
            let mut all: Vec<u32> = packs.concat();
            all.sort_unstable();
            let used: Vec<u32> =
                (0..lengths.len() as u32).filter(|&i| lengths[i as usize] > 0).collect();
            prop_assert_eq!(all, used);
            let of = |pack: &Vec<u32>| pack.iter().map(|&i| lengths[i as usize]).sum::<usize>();
            prop_assert!(packs.iter().all(|pack| (1..=32).contains(&of(pack))));
            // No two packs fit into one.
            let mut sums: Vec<usize> = packs.iter().map(of).collect();
            sums.sort_unstable();
            prop_assert!(sums.len() < 2 || sums[0] + sums[1] > 32);
        }
    }
}
