//! Assignment of gradients to buckets, as DDP builds them.
//!
//! Walking parameters in reverse registration order (the order in which backward finishes them), a
//! bucket closes as soon as its size reaches the limit: 1 MiB for the first, so that communication
//! starts early, 25 MiB for the others (`torch/csrc/distributed/c10d/reducer.cpp`,
//! `compute_bucket_assignment_by_size`).
//!
//! Parameters that are trained in different parts of a run never share a bucket: a bucket is
//! reduced as a whole, or not at all. Those that are never trained have no place.

use std::collections::BTreeMap;

use crate::nn::{Param, Params};
use crate::plan::shm_layout::ALIGNMENT;
use crate::plan::{ParameterGroup, Plan};
use crate::units::Bytes;

/// Place of one parameter's gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Index of the bucket.
    pub bucket: usize,
    /// First element within the bucket.
    pub start: usize,
    /// Elements of the parameter.
    pub len: usize,
}

/// Assignment of parameters to buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Parameters of each bucket, in the order in which they lie there: that in which their
    /// gradients become ready, unless [`Layout::sorted`] made it another.
    pub buckets: Vec<Vec<usize>>,
    /// Elements of each bucket, padding included.
    pub lengths: Vec<usize>,
    /// Place of each parameter, by registration index.
    pub slots: Vec<Slot>,
}

impl Layout {
    /// Buckets in reverse registration order, the order in which backward finishes parameters:
    /// those of each phase apart.
    pub(crate) fn of(plan: &Plan, params: &Params) -> Self {
        let sizes: Vec<usize> = params.parameters().iter().map(Param::elem_count).collect();
        let mut orders: BTreeMap<(u64, Option<u64>), Vec<usize>> = BTreeMap::new();
        for index in (0..sizes.len()).rev().filter(|&index| plan.optimizer.is_ever_trained(index)) {
            let times = |group: &ParameterGroup| (group.unfreezes_at, group.freezes_at);
            let times = plan.optimizer.group(index).map_or((0, None), times);
            orders.entry(times).or_default().push(index);
        }
        let orders: Vec<Vec<usize>> = orders.into_values().collect();
        Self::new(&sizes, &orders, plan.distributed.first_bucket_cap, plan.distributed.bucket_cap)
    }

    /// Assigns parameters with `sizes` elements to buckets: those of each of `orders` in their
    /// order, and apart from the others.
    pub fn new(sizes: &[usize], orders: &[Vec<usize>], first_cap: Bytes, cap: Bytes) -> Self {
        let buckets = assign(sizes, orders, first_cap, cap);
        let mut slots = vec![Slot { bucket: 0, start: 0, len: 0 }; sizes.len()];
        buckets.iter().flatten().for_each(|&parameter| slots[parameter].len = sizes[parameter]);
        Self { lengths: vec![0; buckets.len()], buckets, slots }.placed()
    }

    /// Returns the same buckets, in which parameters with the same `key` lie side by side.
    #[must_use]
    pub fn sorted<K: Ord>(mut self, key: impl Fn(usize) -> K) -> Self {
        self.buckets.iter_mut().for_each(|members| members.sort_by_key(|&index| key(index)));
        self.placed()
    }

    fn placed(mut self) -> Self {
        let Self { buckets, lengths, slots } = &mut self;
        for (bucket, (members, length)) in buckets.iter().zip(lengths).enumerate() {
            let mut start = 0;
            for &parameter in members {
                let len = slots[parameter].len;
                slots[parameter] = Slot { bucket, start, len };
                start += len.next_multiple_of(ALIGNMENT);
            }
            *length = start;
        }
        self
    }

    /// The buckets that hold parameters which are trained.
    pub fn trained(&self, trained: &[bool]) -> Vec<usize> {
        let is_trained = |bucket: &usize| self.buckets[*bucket].iter().any(|&index| trained[index]);
        (0..self.buckets.len()).filter(is_trained).collect()
    }
}

/// Members of each bucket.
fn assign(sizes: &[usize], orders: &[Vec<usize>], first_cap: Bytes, cap: Bytes) -> Vec<Vec<usize>> {
    let mut buckets = Vec::new();
    for order in orders {
        let mut open = Vec::new();
        let mut filled = Bytes(0);
        for &parameter in order {
            open.push(parameter);
            filled = Bytes(filled.0 + Bytes::of_f32(sizes[parameter]).0);
            let limit = if buckets.is_empty() { first_cap } else { cap };
            if filled >= limit {
                buckets.push(std::mem::take(&mut open));
                filled = Bytes(0);
            }
        }
        if !open.is_empty() {
            buckets.push(open);
        }
    }
    buckets
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: Bytes = Bytes(1 << 20);
    const MIB25: Bytes = Bytes(25 << 20);

    #[test]
    fn pytorchs_example_gives_pytorchs_buckets() {
        let sizes = [300_000, 100, 262_144, 10, 7_000_000, 1, 5];
        let order: Vec<usize> = (0..7).collect();
        let layout = Layout::new(&sizes, &[order], MIB, MIB25);
        assert_eq!(layout.buckets, [vec![0], vec![1, 2, 3, 4], vec![5, 6]]);
    }

    #[test]
    fn what_is_trained_at_other_times_has_buckets_of_its_own_and_what_never_is_has_none() {
        let orders = [vec![4, 1], vec![3, 2]];
        let layout = Layout::new(&[7, 1, 2, 3, 4], &orders, MIB, MIB25);
        assert_eq!(layout.buckets, orders);
        assert_eq!(layout.slots[0], Slot { bucket: 0, start: 0, len: 0 });
    }

    proptest! {
        #[test]
        fn slots_are_disjoint_aligned_and_hold_every_parameter(
            sizes in prop::collection::vec(0usize..5000, 0..40),
            cap in 1u64..40_000,
        ) {
            let order: Vec<usize> = (0..sizes.len()).rev().collect();
            let layout = Layout::new(&sizes, std::slice::from_ref(&order), Bytes(cap / 2), Bytes(cap));
            let mut end = vec![0; layout.lengths.len()];
            for &parameter in layout.buckets.iter().flatten() {
                let slot = layout.slots[parameter];
                prop_assert_eq!(slot.start % ALIGNMENT, 0);
                prop_assert!(slot.start >= end[slot.bucket]);
                end[slot.bucket] = slot.start + slot.len;
                prop_assert!(end[slot.bucket] <= layout.lengths[slot.bucket]);
                prop_assert_eq!(slot.len, sizes[parameter]);
            }
            prop_assert_eq!(layout.buckets.concat(), order);
        }
    }
}
