//! The ranks of several machines through one connection between any two of them.
//!
//! A reduction has two exchanges: each rank sends every other its share of the elements and adds its own share
//! of all ranks, in rank order, in the same tree as in shared memory; then it sends its sums to all. That is
//! 2S (W-1)/W bytes out and as many in, all connections at once in both directions.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[cfg(any(feature = "cuda", test))]
use crate::collective::lines::heard_end;
use crate::collective::lines::{Calls, Line, end_all, exchange};
use crate::collective::message::Target;
use crate::collective::reduce::{share, tree_sum};
use crate::collective::segment::Memory;
use crate::collective::{Call, Collective, Error, Op, Segment, lengths_tag};
use crate::failpoint;
use crate::transport::Peer;
use crate::units::{Bytes, Rank, WorldSize};

/// One rank of the group.
pub(super) struct Tcp {
    rank: Rank,
    world: WorldSize,
    calls: Calls,
    timeout: Duration,
    /// Held for a whole call: calls of different threads follow one another.
    state: Mutex<State>,
}

struct State {
    /// To all other ranks, in their order.
    lines: Vec<Line>,
    seq: u64,
    given: bool,
    failed: Option<Error>,
    /// This rank's share of the elements, as each rank has them.
    parts: Vec<Vec<f32>>,
}

impl Tcp {
    /// Takes the connections to all other ranks; waits for nobody.
    pub(super) fn open(
        rank: Rank,
        world: WorldSize,
        mut peers: Vec<Peer>,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let refused = |error: std::io::Error| Error::Lines { what: error.to_string() };
        peers.sort_by_key(|peer| peer.rank);
        let others = (0..world.get()).map(Rank).filter(|other| *other != rank);
        if !peers.iter().map(|peer| peer.rank).eq(others) {
            let what = format!("rank {rank} of {world} has {} of them", peers.len());
            return Err(Error::Lines { what });
        }
        let lines = peers.into_iter().map(Line::open).collect::<Result<_, _>>().map_err(refused)?;
        let (seq, given, failed) = (0, false, None);
        let parts = vec![Vec::new(); world.count()];
        let state = Mutex::new(State { lines, seq, given, failed, parts });
        Ok(Self { rank, world, calls: Calls::new().map_err(refused)?, timeout, state })
    }

    /// A panic inside a call leaves messages half sent, which the other ranks find out.
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

    /// An exchange of a call, after which the group has ended if it failed.
    fn exchange(
        &self,
        (lines, failed): (&mut [Line], &mut Option<Error>),
        (call, round): (&Call, u64),
        out: &[&[u8]],
        into: Vec<Target<'_>>,
    ) -> Result<(), Error> {
        let done =
            exchange(lines, (self.rank, call, round), out, into, (&self.calls, self.timeout));
        *failed = done.as_ref().err().cloned();
        done
    }

    /// All ranks but this one.
    fn others(&self) -> impl Iterator<Item = usize> {
        let me = self.rank.index();
        (0..self.world.count()).filter(move |other| *other != me)
    }

    /// A call that moves nothing.
    fn meet(&self, op: Op, bytes: usize, tag: u64) -> Result<MutexGuard<'_, State>, Error> {
        let (call, mut state) = self.begin(op, bytes, tag)?;
        let n = self.world.count() - 1;
        let into = (0..n).map(|_| Target::Slice(&mut [])).collect();
        let State { lines, failed, .. } = &mut *state;
        self.exchange((lines, failed), (&call, 0), &vec![&[][..]; n], into)?;
        Ok(state)
    }

    /// Everyone's elements of this rank's share, and their sum in the first part.
    fn add_up(
        &self,
        state: &mut State,
        call: &Call,
        values: &[f32],
        shares: &[Range<usize>],
    ) -> Result<(), Error> {
        let me = self.rank.index();
        let State { lines, failed, parts, .. } = state;
        for part in &mut *parts {
            part.resize(shares[me].len(), 0.0);
        }
        parts[me].copy_from_slice(&values[shares[me].clone()]);
        let out: Vec<&[u8]> = self
            .others()
            .map(|other| bytemuck::cast_slice(&values[shares[other].clone()]))
            .collect();
        let theirs = parts.iter_mut().enumerate().filter(|(rank, _)| *rank != me);
        let into = theirs.map(|(_, part)| Target::Slice(bytemuck::cast_slice_mut(part))).collect();
        self.exchange((lines, failed), (call, 0), &out, into)?;
        let mut parts: Vec<&mut [f32]> = parts.iter_mut().map(Vec::as_mut_slice).collect();
        tree_sum(&mut parts);
        Ok(())
    }

    /// This rank's sums to everyone, and everyone's into `values`.
    fn hand_out(
        &self,
        state: &mut State,
        call: &Call,
        values: &mut [f32],
        shares: &[Range<usize>],
    ) -> Result<(), Error> {
        let me = self.rank.index();
        let State { lines, failed, parts, .. } = state;
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
        self.exchange((lines, failed), (call, 1), &out, into)
    }
}

#[cfg(any(feature = "cuda", test))]
impl crate::collective::device_group::Control for Tcp {
    fn end(&self) -> Option<Error> {
        // Whoever holds the lines is in a call, and finds out by itself.
        let mut state = self.state.try_lock().ok()?;
        let State { lines, seq, failed, .. } = &mut *state;
        if failed.is_none() {
            let call = Call { seq: *seq, op: Op::SumOnDevices, bytes: Bytes(0), tag: 0 };
            let told = self.calls.reason().map(|reason| Error::Aborted { by: self.rank, reason });
            *failed = told.or_else(|| heard_end(lines, &call));
            if let Some(error) = failed {
                end_all(lines, self.rank, error);
            }
        }
        failed.clone()
    }

    fn gives_up(&self) -> bool {
        self.calls.gives_up()
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
        let mut state = self.meet(Op::Segments, bytes, lengths_tag(lengths))?;
        if std::mem::replace(&mut state.given, true) {
            return Err(Error::Lines { what: "the segments were already given out".to_owned() });
        }
        let segment = |(index, &n)| Segment { memory: Memory::Private(vec![0.0; n]), index };
        Ok(lengths.iter().enumerate().map(segment).collect())
    }

    fn all_reduce(&self, segment: &mut Segment) -> Result<(), Error> {
        let (len, index) = (segment.len(), segment.index as u64);
        let Memory::Private(values) = &mut segment.memory else {
            return Err(Error::Lines { what: "the segment is shared memory".to_owned() });
        };
        let (call, mut state) = self.begin(Op::AllReduce, 4 * len, index)?;
        let world = self.world.count();
        let shares: Vec<Range<usize>> = (0..world).map(|rank| share(len, rank, world)).collect();
        self.add_up(&mut state, &call, values, &shares)?;
        failpoint::reach("collective");
        self.hand_out(&mut state, &call, values, &shares)
    }

    fn broadcast(&self, bytes: &mut [u8]) -> Result<(), Error> {
        let (call, mut state) = self.begin(Op::Broadcast, bytes.len(), 0)?;
        let State { lines, failed, .. } = &mut *state;
        let n = lines.len();
        let nothing = || Target::Slice(&mut []);
        if self.rank.is_first() {
            let into = (0..n).map(|_| nothing()).collect();
            return self.exchange((lines, failed), (&call, 0), &vec![&*bytes; n], into);
        }
        // The first line is that to rank 0.
        let into = std::iter::once(Target::Slice(bytes)).chain((1..n).map(|_| nothing())).collect();
        self.exchange((lines, failed), (&call, 0), &vec![&[][..]; n], into)
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let (call, mut state) = self.begin(Op::AllGather, 0, 0)?;
        let State { lines, failed, .. } = &mut *state;
        let mut all = vec![Vec::new(); self.world.count()];
        let theirs = all.iter_mut().enumerate().filter(|(rank, _)| *rank != self.rank.index());
        let into = theirs.map(|(_, bytes)| Target::Vec(bytes)).collect();
        let out = vec![mine; lines.len()];
        self.exchange((lines, failed), (&call, 0), &out, into)?;
        all[self.rank.index()] = mine.to_vec();
        Ok(all)
    }

    fn barrier(&self) -> Result<(), Error> {
        self.meet(Op::Barrier, 0, 0).map(|_| ())
    }

    fn abort(&self, reason: &str) {
        self.calls.abort(reason);
        // Whoever holds the lines sees it, and tells the others; so do we if nobody holds them.
        let Ok(mut state) = self.state.try_lock() else { return };
        if state.failed.is_none() {
            let error = Error::Aborted { by: self.rank, reason: reason.to_owned() };
            end_all(&mut state.lines, self.rank, &error);
            state.failed = Some(error);
        }
    }

    fn give_up(&self) {
        self.calls.give_up();
    }
}

#[cfg(test)]
pub(super) mod tests;
