//! One rank of the group of all ranks that the launcher started.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::collective::call::lengths_tag;
use crate::collective::mpi::headers::{HEADER_BYTES, HEADER_TAG, compare, header, read_header};
use crate::collective::mpi::library::{Layout, Library, Transfer};
use crate::collective::mpi::wait::{BRIEFLY, BUSY, Interrupts, Wait, others, tell};
use crate::collective::mpi::world::{World, world};
use crate::collective::reduce::{share, tree_sum};
use crate::collective::segment::Memory;
use crate::collective::{Call, Collective, Error, Missing, Op, Segment};
use crate::failpoint;
use crate::units::{Bytes, Rank, WorldSize};

/// Elements that are summed at a time: MPI counts bytes in 32 bits.
const BLOCK: usize = 128 << 20;
/// Bytes that are broadcast at a time.
const PIECE: usize = 64 << 20;

/// One rank of the group.
pub(in crate::collective) struct Mpi {
    world: &'static World,
    interrupts: Interrupts,
    timeout: Duration,
    /// Held for a whole call: calls of different threads follow one another.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    seq: u64,
    given: bool,
    failed: Option<Error>,
    /// All ranks' elements of this rank's share.
    parts: Vec<f32>,
}

impl Mpi {
    /// The group of all ranks, after `start`. Does not wait.
    pub(in crate::collective) fn open(
        rank: Rank,
        size: WorldSize,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let refused = |what: &str| Error::Mpi { what: what.to_owned() };
        let world = world().ok_or_else(|| refused("this rank has not started it"))?;
        if (world.rank, world.size) != (rank, size) {
            let what =
                format!("this is rank {rank} of {size}, and not {} of {}", world.rank, world.size);
            return Err(refused(&what));
        }
        let (interrupts, state) = (Interrupts::default(), Mutex::default());
        Ok(Self { world, interrupts, timeout, state })
    }

    /// A panic inside a call leaves the group unusable, which the other ranks notice.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a call: compares it with those of all ranks, and then does `work` with the lengths of
    /// all ranks' data. A failed call ends the group.
    fn call<T>(
        &self,
        call: (Op, usize, u64),
        length: usize,
        work: impl FnOnce(&mut State, &Wait<'_>, &[usize]) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let (op, bytes, tag) = call;
        let mut state = self.state();
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        state.seq += 1;
        let call = Call { seq: state.seq, op, bytes: Bytes(bytes as u64), tag };
        let Self { world, ref interrupts, timeout, .. } = *self;
        let wait = Wait { world, interrupts, call: &call, timeout };
        let done = self.compare(&wait, length);
        let done = done.and_then(|lengths| work(&mut state, &wait, &lengths));
        if let Err(error) = &done {
            state.failed = Some(error.clone());
            tell(world, error);
        }
        done
    }

    /// Waits until all ranks have told which call they make; the lengths of their data.
    fn compare(&self, wait: &Wait<'_>, length: usize) -> Result<Vec<usize>, Error> {
        let (world, call) = (self.world, wait.call);
        let ranks: Vec<usize> = others(world).collect();
        let failed = |why: String| wait.failed(&why);
        let (mut sent, mut received) = (Vec::new(), Vec::new());
        for &other in &ranks {
            let library = world.library();
            received.push(library.receive(HEADER_BYTES, other, HEADER_TAG).map_err(failed)?);
            sent.push(library.send(header(call, length), other, HEADER_TAG).map_err(failed)?);
        }
        let missing = |open: &[usize]| {
            let begun = call.seq - 1;
            open.iter().map(|&at| Missing { rank: Rank(ranks[at] as u32), begun }).collect()
        };
        let received = wait.complete(received, BRIEFLY, missing)?;
        wait.complete(sent, BRIEFLY, missing)?;
        let mut lengths = vec![length; world.size.count()];
        for (&other, bytes) in ranks.iter().zip(&received) {
            let unread = || wait.failed(&format!("rank {other} sent what is no call"));
            let (theirs, length) = read_header(bytes).ok_or_else(unread)?;
            compare((world.rank, call), (Rank(other as u32), theirs))?;
            lengths[other] = length;
        }
        Ok(lengths)
    }

    /// Begins a transfer among all ranks and waits for it. All have joined the call: which of them
    /// is late is unknown.
    fn transfer<B>(
        &self,
        wait: &Wait<'_>,
        begin: impl FnOnce(&Library) -> Result<Transfer<B>, String>,
    ) -> Result<B, Error> {
        let transfer = begin(&self.world.library()).map_err(|why| wait.failed(&why))?;
        let done = wait.complete(vec![transfer], BUSY, |_| Vec::new())?;
        done.into_iter().next().ok_or_else(|| wait.failed("a transfer has no end"))
    }

    /// Replaces `n` values, from `from` on, by their sums.
    fn sum(
        &self,
        state: &mut State,
        wait: &Wait<'_>,
        values: &mut Vec<f32>,
        (from, n): (usize, usize),
    ) -> Result<(), Error> {
        let (me, world) = (self.world.rank.index(), self.world.size.count());
        let shares: Vec<usize> = (0..world).map(|rank| share(n, rank, world).len()).collect();
        let bytes = || Layout::of(shares.iter().map(|n| 4 * n));
        let failed = |why: String| wait.failed(&why);
        let mine = shares[me];
        let from_all = Layout::of(vec![4 * mine; world]).map_err(failed)?;
        let layouts = [bytes().map_err(failed)?, from_all];
        let mut parts = std::mem::take(&mut state.parts);
        parts.resize(mine * world, 0.0);
        let owned = std::mem::take(values);
        let scattered =
            self.transfer(wait, |library| library.all_to_all((owned, from), parts, layouts))?;
        let (owned, mut parts) = (scattered.values, scattered.parts);
        failpoint::reach("collective");
        if mine > 0 {
            tree_sum(&mut parts.chunks_exact_mut(mine).collect::<Vec<_>>());
        }
        let layout = bytes().map_err(failed)?;
        let gathered = self
            .transfer(wait, |library| library.all_gather((parts, mine), (owned, from), layout))?;
        *values = gathered.all;
        state.parts = gathered.mine;
        Ok(())
    }
}

impl Collective for Mpi {
    fn rank(&self) -> Rank {
        self.world.rank
    }

    fn world_size(&self) -> WorldSize {
        self.world.size
    }

    fn segments(&self, lengths: &[usize]) -> Result<Vec<Segment>, Error> {
        let bytes = 4 * lengths.iter().sum::<usize>();
        self.call((Op::Segments, bytes, lengths_tag(lengths)), 0, |state, wait, _| {
            if std::mem::replace(&mut state.given, true) {
                return Err(wait.failed("the segments were already given out"));
            }
            Ok(())
        })?;
        let segment = |(index, &n)| Segment { memory: Memory::Private(vec![0.0; n]), index };
        Ok(lengths.iter().enumerate().map(segment).collect())
    }

    fn all_reduce(&self, segment: &mut Segment) -> Result<(), Error> {
        let (len, index) = (segment.len(), segment.index as u64);
        let Memory::Private(values) = &mut segment.memory else {
            return Err(Error::Mpi { what: "the segment is shared memory".to_owned() });
        };
        let done = self.call((Op::AllReduce, 4 * len, index), 0, |state, wait, _| {
            let mut blocks = (0..len).step_by(BLOCK);
            blocks.try_for_each(|from| self.sum(state, wait, values, (from, BLOCK.min(len - from))))
        });
        // What a failed transfer holds on to is never given back.
        values.resize(len, 0.0);
        done
    }

    fn broadcast(&self, bytes: &mut [u8]) -> Result<(), Error> {
        self.call((Op::Broadcast, bytes.len(), 0), 0, |_, wait, _| {
            for piece in bytes.chunks_mut(PIECE) {
                let copy = piece.to_vec();
                let received = self.transfer(wait, |library| library.broadcast(copy))?;
                piece.copy_from_slice(&received);
            }
            Ok(())
        })
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        self.call((Op::AllGather, 0, 0), mine.len(), |_, wait, lengths| {
            let layout = Layout::of(lengths.iter().copied()).map_err(|why| wait.failed(&why))?;
            let (own, all) = (mine.to_vec(), vec![0_u8; lengths.iter().sum()]);
            let gathered = self.transfer(wait, |library| {
                library.all_gather((own, mine.len()), (all, 0), layout)
            })?;
            let mut rest = gathered.all.as_slice();
            let parts = lengths.iter().map(|&length| {
                let (part, after) = rest.split_at(length);
                rest = after;
                part.to_vec()
            });
            Ok(parts.collect())
        })
    }

    fn barrier(&self) -> Result<(), Error> {
        self.call((Op::Barrier, 0, 0), 0, |_, _, _| Ok(()))
    }

    fn describe(&self) -> Option<String> {
        let library = self.world.library();
        let (version, file) = (&library.version, library.file.display());
        Some(format!("gradients go through MPI: {version} ({file})"))
    }

    fn abort(&self, reason: &str) {
        self.interrupts.abort(reason);
        // A thread that is in a call tells the others. If none is, this one does.
        let Ok(mut state) = self.state.try_lock() else { return };
        if state.failed.is_none() {
            let error = Error::Aborted { by: self.world.rank, reason: reason.to_owned() };
            tell(self.world, &error);
            state.failed = Some(error);
        }
    }

    fn give_up(&self) {
        self.interrupts.give_up();
    }
}
