//! The ranks of several machines through one connection between any two of them.
//!
//! A reduction has two exchanges: each rank sends every other its share of the elements and adds
//! its own share of all ranks, in rank order, in the same tree as in shared memory; then it sends
//! its sums to all. That is 2S (W-1)/W bytes out and as many in, all connections at once in both
//! directions.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::collective::call::lengths_tag;
#[cfg(any(feature = "cuda", test))]
use crate::collective::exchange::received_end;
use crate::collective::exchange::{Connection, Exchange, Interrupts, end_all, exchange};
use crate::collective::message::Target;
use crate::collective::reduce::{share, tree_sum};
use crate::collective::segment::Memory;
use crate::collective::{Call, Collective, Elements, Error, Op, Segment};
use crate::failpoint;
use crate::transport::Peer;
use crate::units::{Bytes, Rank, WorldSize};

/// One rank of the group.
pub(super) struct Tcp {
    rank: Rank,
    world: WorldSize,
    interrupts: Interrupts,
    timeout: Duration,
    /// Held for a whole call: calls of different threads follow one another.
    state: Mutex<State>,
}

struct State {
    /// To all other ranks, in their order.
    connections: Vec<Connection>,
    seq: u64,
    given: bool,
    failed: Option<Error>,
    /// This rank's share of the elements, as each rank has them.
    parts: Vec<Vec<f32>>,
}

impl State {
    /// A failed exchange ends the group.
    fn record(&mut self, done: Result<(), Error>) -> Result<(), Error> {
        self.failed = done.as_ref().err().cloned();
        done
    }
}

impl Tcp {
    /// Takes over the connections to all other ranks. Does not wait.
    pub(super) fn open(
        rank: Rank,
        world: WorldSize,
        mut peers: Vec<Peer>,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let refused = |error: std::io::Error| Error::Connections { what: error.to_string() };
        peers.sort_by_key(|peer| peer.rank);
        let others = (0..world.get()).map(Rank).filter(|other| *other != rank);
        if !peers.iter().map(|peer| peer.rank).eq(others) {
            let what = format!("rank {rank} of {world} has {} of them", peers.len());
            return Err(Error::Connections { what });
        }
        let connections =
            peers.into_iter().map(Connection::open).collect::<Result<_, _>>().map_err(refused)?;
        let (seq, given, failed) = (0, false, None);
        let parts = vec![Vec::new(); world.count()];
        let state = Mutex::new(State { connections, seq, given, failed, parts });
        Ok(Self { rank, world, interrupts: Interrupts::new().map_err(refused)?, timeout, state })
    }

    /// A panic inside a call leaves messages half sent, which the other ranks notice.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a call.
    fn begin(
        &self,
        op: Op,
        bytes: usize,
        tag: u64,
    ) -> Result<(Call, MutexGuard<'_, State>), Error> {
        let mut state = self.state();
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        state.seq += 1;
        Ok((Call { seq: state.seq, op, bytes: Bytes(bytes as u64), tag }, state))
    }

    /// The `round`-th exchange of a call.
    fn round<'a>(&'a self, call: &'a Call, round: u64) -> Exchange<'a> {
        let Self { rank, ref interrupts, timeout, .. } = *self;
        Exchange { rank, call, round, interrupts, timeout }
    }

    /// All ranks but this one.
    fn others(&self) -> impl Iterator<Item = usize> {
        let me = self.rank.index();
        (0..self.world.count()).filter(move |other| *other != me)
    }

    /// A call that moves no data.
    fn synchronize(&self, op: Op, bytes: usize, tag: u64) -> Result<MutexGuard<'_, State>, Error> {
        let (call, mut state) = self.begin(op, bytes, tag)?;
        let n = self.world.count() - 1;
        let into = (0..n).map(|_| Target::Slice(&mut [])).collect();
        let done = exchange(&self.round(&call, 0), &mut state.connections, &vec![&[][..]; n], into);
        state.record(done)?;
        Ok(state)
    }

    /// Sends the elements of each rank's share to it, receives all ranks' elements of this rank's
    /// share, and leaves their sum in the first part.
    fn reduce_share(&self, state: &mut State, call: &Call, shares: &[&[f32]]) -> Result<(), Error> {
        let me = self.rank.index();
        let State { connections, parts, .. } = state;
        for part in &mut *parts {
            part.resize(shares[me].len(), 0.0);
        }
        parts[me].copy_from_slice(shares[me]);
        let out: Vec<&[u8]> =
            self.others().map(|other| bytemuck::cast_slice(shares[other])).collect();
        let theirs = parts.iter_mut().enumerate().filter(|(rank, _)| *rank != me);
        let into = theirs.map(|(_, part)| Target::Slice(bytemuck::cast_slice_mut(part))).collect();
        let done = exchange(&self.round(call, 0), connections, &out, into);
        state.record(done)?;
        let mut parts: Vec<&mut [f32]> = state.parts.iter_mut().map(Vec::as_mut_slice).collect();
        tree_sum(&mut parts);
        Ok(())
    }

    /// Sends this rank's sums to all ranks, and receives theirs into `values`.
    fn gather_shares(
        &self,
        state: &mut State,
        call: &Call,
        values: &mut [f32],
        shares: &[Range<usize>],
    ) -> Result<(), Error> {
        let me = self.rank.index();
        let State { connections, parts, .. } = state;
        values[shares[me].clone()].copy_from_slice(&parts[0]);
        let (mut into, mut rest) = (Vec::new(), values);
        for (rank, share) in shares.iter().enumerate() {
            let (theirs, after) = rest.split_at_mut(share.len());
            if rank != me {
                into.push(Target::Slice(bytemuck::cast_slice_mut(theirs)));
            }
            rest = after;
        }
        let out = vec![bytemuck::cast_slice(&parts[0]); into.len()];
        let done = exchange(&self.round(call, 1), connections, &out, into);
        state.record(done)
    }
}

#[cfg(any(feature = "cuda", test))]
impl crate::collective::device_group::Control for Tcp {
    fn end(&self) -> Option<Error> {
        // A thread that holds the connections is in a call, and finds out by itself.
        let mut state = self.state.try_lock().ok()?;
        let State { connections, seq, failed, .. } = &mut *state;
        if failed.is_none() {
            let call = Call { seq: *seq, op: Op::SumOnDevices, bytes: Bytes(0), tag: 0 };
            let told =
                self.interrupts.reason().map(|reason| Error::Aborted { by: self.rank, reason });
            *failed = told.or_else(|| received_end(connections, &call));
            if let Some(error) = failed {
                end_all(connections, self.rank, error);
            }
        }
        failed.clone()
    }

    fn gives_up(&self) -> bool {
        self.interrupts.gives_up()
    }
}

impl Collective for Tcp {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn world_size(&self) -> WorldSize {
        self.world
    }

    fn segments(&self, lengths: &[usize]) -> Result<Vec<Segment>, Error> {
        let bytes = 4 * lengths.iter().sum::<usize>();
        let mut state = self.synchronize(Op::Segments, bytes, lengths_tag(lengths))?;
        if std::mem::replace(&mut state.given, true) {
            return Err(Error::Connections {
                what: "the segments were already given out".to_owned(),
            });
        }
        let segment = |(index, &n)| Segment { memory: Memory::Private(vec![0.0; n]), index };
        Ok(lengths.iter().enumerate().map(segment).collect())
    }

    fn all_reduce(&self, segment: &mut Segment) -> Result<(), Error> {
        let (len, index) = (segment.len(), segment.index as u64);
        let values = private(segment)?;
        let (call, mut state) = self.begin(Op::AllReduce, 4 * len, index)?;
        let world = self.world.count();
        let shares: Vec<Range<usize>> = (0..world).map(|rank| share(len, rank, world)).collect();
        let of_each: Vec<&[f32]> = shares.iter().map(|share| &values[share.clone()]).collect();
        self.reduce_share(&mut state, &call, &of_each)?;
        failpoint::reach("collective");
        self.gather_shares(&mut state, &call, values, &shares)
    }

    fn reduce_scatter(&self, segment: &mut Segment, parts: &[Elements]) -> Result<(), Error> {
        let (len, index) = (segment.len(), segment.index as u64);
        let values = private(segment)?;
        let (call, mut state) = self.begin(Op::ReduceScatter, 4 * len, index)?;
        let packed = |ranges: &Elements| -> Vec<f32> {
            ranges.iter().flat_map(|range| &values[range.clone()]).copied().collect()
        };
        let packed: Vec<Vec<f32>> = parts.iter().map(packed).collect();
        let of_each: Vec<&[f32]> = packed.iter().map(Vec::as_slice).collect();
        self.reduce_share(&mut state, &call, &of_each)?;
        failpoint::reach("collective");
        let mut sums = state.parts[0].as_slice();
        for range in &parts[self.rank.index()] {
            let (these, after) = sums.split_at(range.len());
            values[range.clone()].copy_from_slice(these);
            sums = after;
        }
        Ok(())
    }

    fn broadcast(&self, bytes: &mut [u8]) -> Result<(), Error> {
        let (call, mut state) = self.begin(Op::Broadcast, bytes.len(), 0)?;
        let n = state.connections.len();
        let nothing = || Target::Slice(&mut []);
        if self.rank.is_first() {
            let into = (0..n).map(|_| nothing()).collect();
            let out = vec![&*bytes; n];
            let done = exchange(&self.round(&call, 0), &mut state.connections, &out, into);
            return state.record(done);
        }
        // The first connection is that to rank 0.
        let into = std::iter::once(Target::Slice(bytes)).chain((1..n).map(|_| nothing())).collect();
        let out = vec![&[][..]; n];
        let done = exchange(&self.round(&call, 0), &mut state.connections, &out, into);
        state.record(done)
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let (call, mut state) = self.begin(Op::AllGather, 0, 0)?;
        let mut all = vec![Vec::new(); self.world.count()];
        let theirs = all.iter_mut().enumerate().filter(|(rank, _)| *rank != self.rank.index());
        let into = theirs.map(|(_, bytes)| Target::Vec(bytes)).collect();
        let out = vec![mine; state.connections.len()];
        let done = exchange(&self.round(&call, 0), &mut state.connections, &out, into);
        state.record(done)?;
        all[self.rank.index()] = mine.to_vec();
        Ok(all)
    }

    fn barrier(&self) -> Result<(), Error> {
        self.synchronize(Op::Barrier, 0, 0).map(|_| ())
    }

    fn abort(&self, reason: &str) {
        self.interrupts.abort(reason);
        // A thread that holds the connections tells the others. If none does, this one does.
        let Ok(mut state) = self.state.try_lock() else { return };
        if state.failed.is_none() {
            let error = Error::Aborted { by: self.rank, reason: reason.to_owned() };
            end_all(&mut state.connections, self.rank, &error);
            state.failed = Some(error);
        }
    }

    fn give_up(&self) {
        self.interrupts.give_up();
    }
}

/// Where a segment of such a group lives.
fn private(segment: &mut Segment) -> Result<&mut Vec<f32>, Error> {
    match &mut segment.memory {
        Memory::Private(values) => Ok(values),
        Memory::Shared(_) => {
            Err(Error::Connections { what: "the segment is shared memory".to_owned() })
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
