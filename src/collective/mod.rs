//! One tensor per rank -> their sum. One trait, backends `solo` and `shm`.
//!
//! Every rank makes the same calls in the same order. Every wait has a deadline; a failed collective
//! is final for its group. Sums are taken in f32 in a fixed binary tree over ranks, so that all ranks
//! hold the same bits.

use std::sync::Arc;

use crate::units::{Rank, WorldSize};

/// A group of ranks that exchange tensors.
pub trait Collective: Send + Sync {
    /// This rank.
    fn rank(&self) -> Rank;

    /// Number of ranks in the group.
    fn world_size(&self) -> WorldSize;

    /// Memory for gradients of the given lengths (f32 elements), zeroed; for `shm` a part of the mapping,
    /// so that a reduction is in place. Called once, with equal lengths on every rank.
    ///
    /// # Errors
    ///
    /// The mapping is smaller than the plan says, or the call is the second.
    fn segments(&self, lengths: &[usize]) -> Result<Vec<Segment>, Error>;

    /// Replaces the segment by its sum over all ranks, added in the fixed tree.
    ///
    /// # Errors
    ///
    /// A rank is gone, late, or makes another call.
    fn all_reduce(&self, segment: &mut Segment) -> Result<(), Error>;

    /// Replaces `bytes` by those of rank 0. Equal lengths on every rank.
    ///
    /// # Errors
    ///
    /// As [`Collective::all_reduce`].
    fn broadcast(&self, bytes: &mut [u8]) -> Result<(), Error>;

    /// Everyone's `mine`, in rank order. Lengths may differ.
    ///
    /// # Errors
    ///
    /// As [`Collective::all_reduce`].
    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error>;

    /// Waits until every rank is here.
    ///
    /// # Errors
    ///
    /// As [`Collective::all_reduce`].
    fn barrier(&self) -> Result<(), Error>;
}

/// Why a collective failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {}

/// Gradient memory that moves between the training thread and the communication thread.
pub struct Segment {
    _owner: Arc<dyn Send + Sync>,
}
