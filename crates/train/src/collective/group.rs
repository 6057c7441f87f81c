//! The interface of all backends, and the group of a single rank.

#[cfg(any(feature = "cuda", test))]
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

#[cfg(any(feature = "cuda", test))]
use candle_core::Tensor;

use crate::collective::{Elements, Error, GradientBuffer};
use crate::units::{Rank, WorldSize};

/// A group of ranks that exchange tensors.
pub trait Collective: Send + Sync {
    fn rank(&self) -> Rank;

    /// Number of ranks in the group.
    fn world_size(&self) -> WorldSize;

    /// Memory for gradients of the given lengths (f32 elements), zeroed; for `shm` a part of the
    /// mapping, so that a reduction is in place. Called once, with equal lengths on every rank.
    fn segments(&self, lengths: &[usize]) -> Result<Vec<GradientBuffer>, Error>;

    /// Replaces the segment by its sum over all ranks, added in the fixed tree of
    /// [`tree_sum`](crate::collective::tree_sum).
    fn all_reduce(&self, segment: &mut GradientBuffer) -> Result<(), Error>;

    /// Sums the segment over all ranks as [`Collective::all_reduce`], in the same tree, but each
    /// rank gets only the elements of its own of the `parts`, which are disjoint, one for each
    /// rank, and equal on all of them. The other elements have no meaning afterwards.
    fn reduce_scatter(
        &self,
        segment: &mut GradientBuffer,
        parts: &[Elements],
    ) -> Result<(), Error> {
        let _ = parts;
        self.all_reduce(segment)
    }

    /// Replaces `bytes` by those of rank 0. Equal lengths on every rank.
    fn broadcast(&self, bytes: &mut [u8]) -> Result<(), Error>;

    /// The `mine` of all ranks, in rank order. Lengths may differ.
    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error>;

    /// Mean seconds by which each rank joined an `all_reduce` later than the first, over those
    /// since the last call of this function. Empty if there were none, in a world of one, and where
    /// it is not measured.
    fn lags(&self) -> Vec<f64> {
        Vec::new()
    }

    /// Waits until every rank has joined.
    fn barrier(&self) -> Result<(), Error>;

    /// Describes how gradients are summed, if not by this program alone in f32: a library and its
    /// version, or a lower precision.
    fn describe(&self) -> Option<String> {
        None
    }

    /// Exchanges of tensors in the GPU's memory, if this group has them there.
    #[cfg(any(feature = "cuda", test))]
    fn on_gpu(&self) -> Option<&dyn OnGpu> {
        None
    }

    /// Ends the group: every present and later call, on every rank, returns [`Error::Aborted`] with
    /// this reason. The first reason stays. For a rank that cannot continue while others wait for
    /// it.
    fn abort(&self, reason: &str);

    /// Expires the deadline of this rank's present and later calls: they end the group and name the
    /// missing ranks. For a rank that was told to wait no longer.
    fn give_up(&self);
}

/// An exchange of all ranks over contiguous tensors in their GPUs' memory. They stay where they are
/// until later work has waited for it ([`OnGpu::join`]).
#[cfg(any(feature = "cuda", test))]
#[derive(Clone, Copy)]
pub enum DeviceExchange<'a> {
    /// The values, f32 or f64, become their sum over all ranks.
    AllReduce(&'a Tensor),
    /// [`Collective::reduce_scatter`] of f32 values.
    ReduceScatter {
        /// Has no meaning afterwards, except for `mine`.
        values: &'a Tensor,
        /// The part of each rank; equal on all of them.
        parts: &'a [Range<usize>],
        /// Destination of the sum of this rank's part: in `values`, or elsewhere.
        mine: &'a Tensor,
    },
    /// Each tensor, f32, becomes that of the rank beside it.
    AllGather(&'a [(Rank, Tensor)]),
}

/// Exchanges in the GPU's memory. Every rank makes the same calls in the same order.
#[cfg(any(feature = "cuda", test))]
pub trait OnGpu {
    /// Enqueues an exchange on the GPU, after all earlier work. Later work may overlap with it.
    fn enqueue(&self, exchange: DeviceExchange<'_>) -> Result<(), Error>;

    /// Makes later work of the GPU wait for all that was enqueued.
    fn join(&self) -> Result<(), Error>;

    /// Waits until all that was enqueued is complete.
    ///
    /// # Errors
    ///
    /// A rank is gone or late. The group has ended.
    fn finish(&self) -> Result<(), Error>;
}

/// Returns the group of rank 0 alone: sums are the values themselves.
pub fn alone() -> Arc<dyn Collective> {
    Arc::new(SoloGroup::default())
}

#[derive(Default)]
struct SoloGroup {
    given: AtomicBool,
    aborted: Mutex<Option<String>>,
}

impl SoloGroup {
    fn check(&self) -> Result<(), Error> {
        match &*self.aborted.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(reason) => Err(Error::Aborted { by: Rank(0), reason: reason.clone() }),
            None => Ok(()),
        }
    }
}

impl Collective for SoloGroup {
    fn rank(&self) -> Rank {
        Rank(0)
    }

    fn world_size(&self) -> WorldSize {
        WorldSize::ONE
    }

    fn segments(&self, lengths: &[usize]) -> Result<Vec<GradientBuffer>, Error> {
        if self.given.swap(true, Ordering::Relaxed) {
            return Err(Error::mapping("its segments were already given out"));
        }
        Ok(lengths.iter().enumerate().map(|(index, &n)| GradientBuffer::new(index, n)).collect())
    }

    fn all_reduce(&self, _segment: &mut GradientBuffer) -> Result<(), Error> {
        self.check()
    }

    fn broadcast(&self, _bytes: &mut [u8]) -> Result<(), Error> {
        self.check()
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        self.check()?;
        Ok(vec![mine.to_vec()])
    }

    fn barrier(&self) -> Result<(), Error> {
        self.check()
    }

    fn abort(&self, reason: &str) {
        let mut aborted = self.aborted.lock().unwrap_or_else(PoisonError::into_inner);
        aborted.get_or_insert_with(|| reason.to_owned());
    }

    /// A world of one never waits.
    fn give_up(&self) {}
}
