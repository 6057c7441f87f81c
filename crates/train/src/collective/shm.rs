//! The ranks of one machine through one shared mapping.
//!
//! Gradients live in the mapping, so a reduction is in place: after a barrier, rank r adds the r-th
//! share of the elements of all ranks and writes the sum to all of them, then there is another
//! barrier. In a `reduce_scatter` it adds the elements of its part, and the sum stays with it.
//! `broadcast` and `all_gather` go through the ranks' staging areas in pieces of half an
//! area: while one half is read, the other is written, so each piece costs one barrier. The halves
//! take turns over all calls, and the barrier that begins a call is that of its first piece.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[cfg(any(feature = "cuda", test))]
use crate::collective::MissingRank;
use crate::collective::call::lengths_tag;
#[cfg(any(feature = "cuda", test))]
use crate::collective::device_group::{Control, LateRanks};
use crate::collective::gradient_buffer::Memory;
use crate::collective::reduce::share;
use crate::collective::shared_mapping::{Mapping, STAGING, SharedFloats};
use crate::collective::shm_barrier::{self, MAX_WORLD, ShmBarrier};
use crate::collective::{Collective, Elements, Error, GradientBuffer, Op};
use crate::failpoint;
use crate::plan::shm_layout::ALIGNMENT;
use crate::units::{Bytes, Rank, WorldSize};

/// Bytes that are exchanged between two barriers.
const PIECE: usize = STAGING / 2;

/// A reduction with other machines.
pub(super) struct LeaderReduction<'a> {
    pub(super) op: Op,
    /// The parts of the tree that this machine sums alone, by its own numbers of its ranks.
    pub(super) subtrees: &'a [Range<usize>],
    /// The elements of which this rank gets the sum.
    pub(super) mine: &'a [Range<usize>],
}

/// One rank of the group.
pub(super) struct Shm {
    rank: Rank,
    world: WorldSize,
    /// Number of the first rank in messages.
    first: Rank,
    mapping: Arc<Mapping>,
    /// True if this rank shall wait no longer.
    gives_up: Arc<AtomicBool>,
    /// Held for a whole call: calls of different threads follow one another.
    state: Mutex<State>,
}

struct State {
    barrier: ShmBarrier,
    has_given_segments: bool,
    /// Pieces exchanged so far, equal on all ranks.
    pieces: usize,
    /// Reductions since the last call of `lags`, and each rank's sum of lags in nanoseconds.
    reductions: u64,
    lags: Vec<u64>,
}

impl State {
    /// Adds the lags of the reduction that has begun.
    fn add_lags(&mut self) {
        self.reductions += 1;
        self.lags.iter_mut().zip(self.barrier.lags()).for_each(|(sum, lag)| *sum += lag);
    }

    /// Offset of the next piece in the staging areas. At its barrier all ranks have read the last
    /// piece but one, which was at the same offset.
    fn next_half(&mut self) -> usize {
        self.pieces += 1;
        self.pieces % 2 * PIECE
    }
}

impl Shm {
    /// Maps the memory. Does not wait.
    pub(super) fn open(
        fd: &OwnedFd,
        size: Bytes,
        rank: Rank,
        world: WorldSize,
        timeout: Duration,
    ) -> Result<Self, Error> {
        if world.count() > MAX_WORLD || rank.0 >= world.get() {
            let what =
                format!("rank {rank} of {world} does not fit: there is room for {MAX_WORLD} ranks");
            return Err(Error::mapping(what));
        }
        let mapping = Arc::new(Mapping::open(fd, size, world)?);
        let gives_up = Arc::new(AtomicBool::new(false));
        let barrier =
            ShmBarrier::new(Arc::clone(&mapping), rank, world, timeout, Arc::clone(&gives_up));
        Ok(Self {
            rank,
            world,
            first: Rank(0),
            mapping,
            gives_up,
            state: Mutex::new(State {
                barrier,
                has_given_segments: false,
                pieces: 0,
                reductions: 0,
                lags: vec![0; world.count()],
            }),
        })
    }

    /// Sets the number of the first rank among those of all machines, by which errors name ranks.
    pub(super) fn starting_at(mut self, first: Rank) -> Self {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        state.barrier.name_from(first);
        self.first = first;
        self
    }

    /// Returns what a leader calls while it waits for other machines: it shows its own ranks that
    /// it is alive, and stops when one of them has ended the group.
    pub(super) fn watch(&self) -> impl Fn() -> Result<(), Error> + Send + Sync + use<> {
        let mapping = Arc::clone(&self.mapping);
        move || {
            shm_barrier::beat(&mapping);
            shm_barrier::end_of(&mapping).map_or(Ok(()), Err)
        }
    }

    /// Ends the group for the reason that another machine gave.
    pub(super) fn end_for(&self, error: &Error) {
        let (by, reason) = error.abort_reason(self.named());
        shm_barrier::end(&self.mapping, by, &reason);
    }

    /// Sums a segment over the subtrees of this machine; then the first rank exchanges the sums
    /// with other machines, which leaves those over all ranks in its area; and each rank takes its
    /// elements of them.
    pub(super) fn reduce_through_leader(
        &self,
        &LeaderReduction { op, subtrees, mine }: &LeaderReduction<'_>,
        segment: &mut GradientBuffer,
        exchange: impl FnOnce(&mut SharedFloats) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let len = segment.len();
        let index = segment.index as u64;
        let floats = self.own(segment)?;
        let mut state = self.state();
        let call = state.barrier.begin(op, 4 * len, index, 0)?;
        floats.reduce_subtrees(&share(len, self.rank.index(), self.world.count()), subtrees);
        state.barrier.wait(&call)?;
        failpoint::reach("collective");
        if self.rank.is_first() {
            exchange(floats)?;
        }
        state.barrier.wait(&call)?;
        for range in mine {
            floats.copy_from(Rank(0), range);
        }
        state.barrier.wait(&call)
    }

    /// This rank's number among those of all machines.
    fn named(&self) -> Rank {
        Rank(self.first.0 + self.rank.0)
    }

    /// The memory of a segment of this group.
    fn own<'a>(&self, segment: &'a mut GradientBuffer) -> Result<&'a mut SharedFloats, Error> {
        let Memory::Shared(floats) = &mut segment.memory else {
            return Err(Error::mapping("the segment is private memory"));
        };
        if !floats.is_in(&self.mapping) {
            return Err(Error::mapping("the segment belongs to another group"));
        }
        Ok(floats)
    }

    /// A panic inside a call leaves a group whose barriers disagree, which the next call notices.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `reduce` on the areas of all ranks while they wait for each other.
    fn reduction(
        &self,
        op: Op,
        segment: &mut GradientBuffer,
        reduce: impl FnOnce(&mut SharedFloats),
    ) -> Result<(), Error> {
        let len = segment.len();
        let index = segment.index as u64;
        let floats = self.own(segment)?;
        let mut state = self.state();
        let call = state.barrier.begin(op, 4 * len, index, 0)?;
        state.add_lags();
        failpoint::reach("collective");
        reduce(floats);
        state.barrier.wait(&call)
    }

    fn lay_out(&self, lengths: &[usize]) -> Result<Vec<GradientBuffer>, Error> {
        let mut start = 0;
        let mut segments = Vec::with_capacity(lengths.len());
        for (index, &len) in lengths.iter().enumerate() {
            let floats = SharedFloats::new(&self.mapping, self.rank, start, len)?;
            segments.push(GradientBuffer { memory: Memory::Shared(floats), index });
            start += len.next_multiple_of(ALIGNMENT);
        }
        Ok(segments)
    }
}

#[cfg(any(feature = "cuda", test))]
impl Control for Shm {
    fn end(&self) -> Option<Error> {
        shm_barrier::end_of(&self.mapping)
    }

    fn gives_up(&self) -> bool {
        self.gives_up.load(Ordering::SeqCst)
    }

    fn begin_wait(&self) {
        shm_barrier::begin_wait(&self.mapping, self.rank);
    }

    fn late(&self) -> Option<LateRanks> {
        let waits = |rank| shm_barrier::waits(&self.mapping, rank);
        let mine = waits(self.rank);
        let behind = (0..self.world.get()).map(Rank).filter(|rank| waits(*rank) < mine);
        let named =
            |rank: Rank| MissingRank { rank: Rank(self.first.0 + rank.0), begun: waits(rank) };
        Some(LateRanks { wait: mine, missing: behind.map(named).collect() })
    }
}

impl Collective for Shm {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn world_size(&self) -> WorldSize {
        self.world
    }

    fn segments(&self, lengths: &[usize]) -> Result<Vec<GradientBuffer>, Error> {
        let mut state = self.state();
        if std::mem::replace(&mut state.has_given_segments, true) {
            return Err(Error::mapping("its segments were already given out"));
        }
        let bytes = 4 * lengths.iter().sum::<usize>();
        state.barrier.begin(Op::Segments, bytes, lengths_tag(lengths), 0)?;
        self.lay_out(lengths)
    }

    fn all_reduce(&self, segment: &mut GradientBuffer) -> Result<(), Error> {
        let share = share(segment.len(), self.rank.index(), self.world.count());
        self.reduction(Op::AllReduce, segment, |floats| floats.reduce(&share))
    }

    fn reduce_scatter(
        &self,
        segment: &mut GradientBuffer,
        parts: &[Elements],
    ) -> Result<(), Error> {
        let mine = parts.get(self.rank.index()).map_or(&[][..], Vec::as_slice);
        self.reduction(Op::ReduceScatter, segment, |floats| {
            for range in mine {
                floats.reduce_here(range);
            }
        })
    }

    fn broadcast(&self, bytes: &mut [u8]) -> Result<(), Error> {
        let mut state = self.state();
        let len = bytes.len();
        let mut call = None;
        let mut from = 0;
        loop {
            let half = state.next_half();
            let piece = &mut bytes[from..(from + PIECE).min(len)];
            if self.rank.is_first() {
                self.mapping.write_staging(self.rank, half, piece);
            }
            call = Some(match call {
                Some(call) => state.barrier.wait(&call).map(|()| call)?,
                None => state.barrier.begin(Op::Broadcast, len, 0, 0)?,
            });
            if !self.rank.is_first() {
                self.mapping.read_staging(Rank(0), half, piece);
            }
            from += PIECE;
            if from >= len {
                return Ok(());
            }
        }
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let mut state = self.state();
        let mut all = vec![Vec::new(); self.world.count()];
        let mut call = None;
        let mut from = 0;
        loop {
            let half = state.next_half();
            let piece = |len: usize| from.min(len)..(from + PIECE).min(len);
            self.mapping.write_staging(self.rank, half, &mine[piece(mine.len())]);
            call = Some(match call {
                Some(call) => state.barrier.wait(&call).map(|()| call)?,
                None => state.barrier.begin(Op::AllGather, 0, 0, mine.len() as u64)?,
            });
            let mut longest = 0;
            for (rank, bytes) in (0..).map(Rank).zip(&mut all) {
                let len = state.barrier.own(rank) as usize;
                longest = longest.max(len);
                bytes.resize(piece(len).end, 0);
                self.mapping.read_staging(rank, half, &mut bytes[piece(len)]);
            }
            from += PIECE;
            if from >= longest {
                return Ok(all);
            }
        }
    }

    fn lags(&self) -> Vec<f64> {
        let mut state = self.state();
        let reductions = std::mem::take(&mut state.reductions);
        let mean = |sum: &mut u64| std::mem::take(sum) as f64 * 1e-9 / reductions as f64;
        let lags: Vec<f64> = state.lags.iter_mut().map(mean).collect();
        if reductions > 0 { lags } else { Vec::new() }
    }

    fn barrier(&self) -> Result<(), Error> {
        self.state().barrier.begin(Op::Barrier, 0, 0, 0).map(|_| ())
    }

    fn abort(&self, reason: &str) {
        // Not through the state, which a waiting thread of this rank may hold.
        shm_barrier::end(&self.mapping, self.named(), reason);
    }

    fn give_up(&self) {
        self.gives_up.store(true, Ordering::SeqCst);
        shm_barrier::wake_all(&self.mapping);
    }
}
