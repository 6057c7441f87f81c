//! The memory of a GPU's buckets, and where the sums end up that this rank needs of them.
//!
//! Without owners both are the same. Where parameters have owners, a rank gets the sums of its own;
//! with `distributed.zero_stage = 2` these lie apart, so that a bucket's memory is free once
//! it is summed. A bucket that is one rank's as a whole stays in place there.

use std::ops::Range;

use candle_core::{DType, Device, Tensor};

use crate::collective::DeviceExchange;
use crate::engine::ownership::{Division, Ownership};
use crate::engine::reducer::buckets::{Layout, Slot};
use crate::plan::shm_layout::ALIGNMENT;
use crate::units::Rank;

/// Buckets in a GPU's memory, f32.
pub(super) struct Buckets {
    device: Device,
    lengths: Vec<usize>,
    /// `None` = not in memory now.
    whole: Vec<Option<Tensor>>,
    /// This rank's part of each bucket: a range of elements, and the tensor that receives their
    /// sums. Each tensor stays where it is for the whole run.
    mine: Vec<(Range<usize>, Tensor)>,
    /// The part of each rank of each bucket, where they have parts.
    parts: Option<Vec<Vec<Range<usize>>>>,
    /// True for each bucket that is freed once it is summed.
    frees: Vec<bool>,
    /// Buckets that are being summed, and are freed then.
    leaving: Vec<Tensor>,
}

impl Buckets {
    /// Zeroed buckets of `layout`, divided among the ranks or not.
    pub(super) fn new(
        device: &Device,
        layout: &Layout,
        divided: Option<(&Ownership, &[Division])>,
        rank: Rank,
    ) -> candle_core::Result<Self> {
        let zeros = |length: usize| Tensor::zeros(length, DType::F32, device);
        let may_free = divided.is_some_and(|(ownership, _)| ownership.frees_gradients);
        let parts = divided.map(|(_, divisions)| {
            divisions.iter().map(|division| division.parts.concat()).collect::<Vec<_>>()
        });
        let mut whole = Vec::new();
        let mut mine = Vec::new();
        let mut frees = Vec::new();
        for (bucket, &length) in layout.lengths.iter().enumerate() {
            let part =
                parts.as_ref().map_or(0..length, |parts| parts[bucket][rank.index()].clone());
            let is_all_mine = part.len().next_multiple_of(ALIGNMENT) == length;
            frees.push(may_free && !is_all_mine);
            if frees[bucket] {
                // No rank's part is an allocation of nothing.
                mine.push((part.clone(), zeros(part.len().max(1))?.narrow(0, 0, part.len())?));
                whole.push(None);
            } else {
                let values = zeros(length)?;
                mine.push((part.clone(), values.narrow(0, part.start, part.len())?));
                whole.push(Some(values));
            }
        }
        let device = device.clone();
        let lengths = layout.lengths.clone();
        Ok(Self { device, lengths, whole, mine, parts, frees, leaving: Vec::new() })
    }

    /// A bucket, zeroed where it is new.
    pub(super) fn whole(&mut self, bucket: usize) -> candle_core::Result<Tensor> {
        if let Some(values) = &self.whole[bucket] {
            return Ok(values.clone());
        }
        let values = Tensor::zeros(self.lengths[bucket], DType::F32, &self.device)?;
        Ok(self.whole[bucket].insert(values).clone())
    }

    /// The buckets that are in memory.
    pub(super) fn all(&self) -> impl Iterator<Item = &Tensor> {
        self.whole.iter().flatten()
    }

    /// The elements of a bucket that this rank needs the sums of, and where these go.
    pub(super) fn mine(&self, bucket: usize) -> (Range<usize>, Tensor) {
        self.mine[bucket].clone()
    }

    /// Returns the tensor that holds the summed gradient of a parameter of this rank, and its first
    /// element there.
    pub(super) fn summed_at(&self, slot: Slot) -> (&Tensor, usize) {
        let (elements, values) = &self.mine[slot.bucket];
        (values, slot.start - elements.start)
    }

    /// Returns the exchange that sums the `values` of a bucket on the GPUs.
    pub(super) fn sum<'a>(&'a self, bucket: usize, values: &'a Tensor) -> DeviceExchange<'a> {
        match &self.parts {
            None => DeviceExchange::AllReduce(values),
            Some(parts) => {
                let mine = &self.mine[bucket].1;
                DeviceExchange::ReduceScatter { values, parts: &parts[bucket], mine }
            }
        }
    }

    /// Moves a bucket whose sum is enqueued to those that are freed then.
    pub(super) fn left(&mut self, bucket: usize) {
        if self.frees[bucket] {
            self.leaving.extend(self.whole[bucket].take());
        }
    }

    /// Gives up the memory of a bucket that leaves through the host, if it is freed then; returns
    /// true if it is.
    pub(super) fn carry_off(&mut self, bucket: usize) -> bool {
        if self.frees[bucket] {
            self.whole[bucket] = None;
        }
        self.frees[bucket]
    }

    /// Frees the buckets that have left: `join` lets later work, which may get their memory, wait
    /// for their sums.
    pub(super) fn free<E>(&mut self, join: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        if !self.leaving.is_empty() {
            join()?;
            self.leaving.clear();
        }
        Ok(())
    }
}
