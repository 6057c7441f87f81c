#![expect(unsafe_code, reason = "the memory that the ranks of a machine share")]
//! One descriptor -> the memory that all ranks share, and the only code that touches it.
//!
//! ```text
//! HEADER 64 KiB | rank 0: STAGING 1 MiB, gradients | rank 1: STAGING 1 MiB, gradients | ...
//! ```
//!
//! Words of the header are atomics. Staging and gradients are plain memory, ordered by
//! `shm_barrier`: between two barriers of all ranks, a range is written by at most one rank, and
//! read by others only if no rank writes it. The functions below that touch plain memory rely on
//! exactly that.

use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::mm::{MapFlags, ProtFlags};

use crate::collective::{Error, reduce};
use crate::plan::shm_layout::{HEADER_BYTES, STAGING_BYTES};
use crate::units::{Bytes, Rank, WorldSize};

/// Bytes before the first rank's area.
pub(super) const HEADER: usize = HEADER_BYTES as usize;
/// Bytes of each rank's staging area.
pub(super) const STAGING: usize = STAGING_BYTES as usize;

/// A mapping of the shared memory, unmapped when dropped.
pub(super) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    world: usize,
}

// SAFETY: the memory is accessed through atomics, or ordered by barriers (see the header); the
// pointer itself never changes.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `size` bytes of `fd` for `world` ranks.
    pub(super) fn open(fd: &OwnedFd, size: Bytes, world: WorldSize) -> Result<Self, Error> {
        let len =
            usize::try_from(size.0).map_err(|_| Error::mapping(format!("{size} do not fit")))?;
        let refused = |source| Error::Mapping {
            what: format!("{size} were refused"),
            source: Some(Arc::new(source)),
        };
        let held = fd.try_clone().and_then(|fd| File::from(fd).metadata()).map_err(refused)?.len();
        if held < size.0 || len < HEADER + world.count() * STAGING {
            let world = world.get();
            return Err(Error::mapping(format!(
                "it holds {} of the planned {size}, for {world} ranks",
                Bytes(held)
            )));
        }
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a null hint lets the kernel choose a free range.
        let base =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, prot, flags, fd.as_fd(), 0) }
                .map_err(|errno| refused(errno.into()))?;
        let base = NonNull::new(base.cast()).ok_or_else(|| Error::mapping("it is at address 0"))?;
        Ok(Self { base, len, world: world.count() })
    }

    /// Bytes of a rank's area, a whole number of cache lines.
    fn area(&self) -> usize {
        (self.len - HEADER) / self.world / 64 * 64
    }

    /// f32 elements of a rank's gradient area.
    pub(super) fn gradient_capacity(&self) -> usize {
        (self.area() - STAGING) / 4
    }

    /// An address inside the mapping.
    fn at(&self, offset: usize, len: usize) -> NonNull<u8> {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len), "inside the mapping");
        // SAFETY: `offset` is inside the mapping, as just checked.
        unsafe { self.base.add(offset) }
    }

    /// A 32-bit word of the header.
    pub(super) fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset < HEADER, "an aligned word of the header");
        // SAFETY: inside the mapping, aligned, lives as long as `self`, and only ever used as an
        // atomic.
        unsafe { self.at(offset, 4).cast().as_ref() }
    }

    /// A 64-bit word of the header.
    pub(super) fn long(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset < HEADER, "an aligned word of the header");
        // SAFETY: as for `word`.
        unsafe { self.at(offset, 8).cast().as_ref() }
    }

    /// Copies `bytes` into the staging area of `rank`, which no other rank accesses until the next
    /// barrier.
    pub(super) fn write_staging(&self, rank: Rank, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= STAGING, "inside the staging area");
        let to = self.at(HEADER + rank.index() * self.area() + offset, bytes.len());
        // SAFETY: in range, and no other rank touches this range until the next barrier.
        unsafe { to.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) }
    }

    /// Copies from the staging area of `rank`, which no rank writes until the next barrier.
    pub(super) fn read_staging(&self, rank: Rank, offset: usize, bytes: &mut [u8]) {
        assert!(offset + bytes.len() <= STAGING, "inside the staging area");
        let from = self.at(HEADER + rank.index() * self.area() + offset, bytes.len());
        // SAFETY: in range, and no rank writes this range until the next barrier.
        unsafe { from.copy_to_nonoverlapping(NonNull::from(&mut *bytes).cast(), bytes.len()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `base` and `len` are those of `mmap`; no borrow outlives `self`. An error would
        // mean that they are not, and leaves the mapping to the end of the process.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// A part of this rank's gradient area. Each range exists once: `Shm::segments` gives it out once.
pub(super) struct SharedFloats {
    mapping: Arc<Mapping>,
    rank: Rank,
    start: usize,
    len: usize,
}

impl SharedFloats {
    /// `len` elements from the `start`-th of the gradient area of `rank`.
    pub(super) fn new(
        mapping: &Arc<Mapping>,
        rank: Rank,
        start: usize,
        len: usize,
    ) -> Result<Self, Error> {
        let capacity = mapping.gradient_capacity();
        if start + len > capacity {
            let what = format!("gradients need more than the {capacity} elements per rank");
            return Err(Error::mapping(what));
        }
        Ok(Self { mapping: Arc::clone(mapping), rank, start, len })
    }

    /// True if it is a part of this mapping.
    pub(super) fn is_in(&self, mapping: &Arc<Mapping>) -> bool {
        Arc::ptr_eq(&self.mapping, mapping)
    }

    /// The elements.
    pub(super) fn as_slice(&self) -> &[f32] {
        let address = self.address(self.rank, 0, self.len);
        // SAFETY: in range, aligned, any bits are an f32; others write here only during `reduce`,
        // for which the owner of this part gives `&mut`.
        unsafe { std::slice::from_raw_parts(address.as_ptr(), self.len) }
    }

    /// The elements, to be written.
    pub(super) fn as_mut_slice(&mut self) -> &mut [f32] {
        let address = self.address(self.rank, 0, self.len);
        // SAFETY: as for `as_slice`; this part exists once, and is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(address.as_ptr(), self.len) }
    }

    /// Replaces the elements of `share` by their sum over all ranks, in every rank's area. Only
    /// between two barriers inside an `all_reduce`, and with shares that are disjoint between
    /// ranks.
    pub(super) fn reduce(&mut self, share: &Range<usize>) {
        reduce::tree_sum_everywhere(&mut self.of_all_ranks(share));
    }

    /// Reduces as [`SharedFloats::reduce`], but the sum is in this rank's area only; in the others
    /// the elements have no meaning afterwards.
    pub(super) fn reduce_here(&mut self, share: &Range<usize>) {
        let own = self.rank.index();
        reduce::tree_sum_at(&mut self.of_all_ranks(share), own);
    }

    /// Replaces the elements of `share` by the sums over `subtrees`, each in the area of the first
    /// of its ranks; in the others the elements have no meaning afterwards. As
    /// [`SharedFloats::reduce`].
    pub(super) fn reduce_subtrees(&mut self, share: &Range<usize>, subtrees: &[Range<usize>]) {
        let mut parts = self.of_all_ranks(share);
        for ranks in subtrees {
            reduce::tree_sum(&mut parts[ranks.clone()]);
        }
    }

    /// Elements in the area of `rank`, which no rank writes until the next barrier.
    pub(super) fn of_rank(&self, rank: Rank, elements: &Range<usize>) -> &[f32] {
        let address = self.address(rank, elements.start, elements.len());
        // SAFETY: in range and aligned; no rank writes there until the next barrier.
        unsafe { std::slice::from_raw_parts(address.as_ptr(), elements.len()) }
    }

    /// Copies elements from the area of `rank`, which no rank writes until the next barrier.
    pub(super) fn copy_from(&mut self, rank: Rank, elements: &Range<usize>) {
        if rank != self.rank {
            let from = self.address(rank, elements.start, elements.len());
            // SAFETY: in range and aligned; another rank's area, which no rank writes.
            let from = unsafe { std::slice::from_raw_parts(from.as_ptr(), elements.len()) };
            self.as_mut_slice()[elements.clone()].copy_from_slice(from);
        }
    }

    /// The elements of `share` of every rank, for a reduction.
    fn of_all_ranks(&mut self, share: &Range<usize>) -> Vec<&mut [f32]> {
        let part = |rank| {
            let address = self.address(Rank(rank), share.start, share.len());
            // SAFETY: in range and aligned; the areas of ranks are disjoint, the range belongs to
            // this rank's share, and all ranks are inside this call with their part borrowed
            // mutably.
            unsafe { std::slice::from_raw_parts_mut(address.as_ptr(), share.len()) }
        };
        (0..self.mapping.world as u32).map(part).collect()
    }

    /// Address of the elements `from..from + len` of this part in the area of `rank`.
    fn address(&self, rank: Rank, from: usize, len: usize) -> NonNull<f32> {
        let gradients = HEADER + rank.index() * self.mapping.area() + STAGING;
        self.mapping.at(gradients + 4 * (self.start + from), 4 * len).cast()
    }
}
