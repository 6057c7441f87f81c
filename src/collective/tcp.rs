//! The leaders of several machines, a rank of each, through one connection between any two of them.
//!
//! A reduction has two exchanges: each leader sends every other its share of the elements, summed
//! over its machine as far as the tree allows, and adds its own share of all machines in the same
//! tree as in shared memory; then it sends its sums to all. With M machines that is 2S (M-1)/M
//! bytes out and as many in, all connections at once in both directions; where the ranks of a
//! machine are several subtrees, the first exchange sends one sum of each.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::collective::call::lengths_tag;
#[cfg(any(feature = "cuda", test))]
use crate::collective::exchange::received_end;
use crate::collective::exchange::{Connection, Exchange, Interrupts, Meanwhile, end_all, exchange};
use crate::collective::message::Target;
use crate::collective::reduce::share;
use crate::collective::segment::Memory;
use crate::collective::subtrees::{finish_tree, subtrees};
use crate::collective::{Call, Collective, Elements, Error, Op, Segment};
use crate::failpoint;
use crate::transport::Peer;
use crate::units::{Bytes, Rank, WorldSize};

/// A leader's place among all ranks.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) rank: Rank,
    pub(super) world: WorldSize,
    /// Ranks of each machine.
    pub(super) local: WorldSize,
}

/// One leader of the group. Where every machine has one rank, all are leaders, and this is the
/// whole group.
pub(super) struct Tcp {
    rank: Rank,
    world: WorldSize,
    /// Number of this machine.
    place: usize,
    /// For each machine, the ranks at which the subtrees begin that it sums alone.
    starts: Vec<Vec<usize>>,
    /// Where its machine has more ranks.
    meanwhile: Option<Meanwhile>,
    interrupts: Interrupts,
    timeout: Duration,
    /// Held for a whole call: calls of different threads follow one another.
    state: Mutex<State>,
}

/// What a call works on.
pub(super) struct State {
    /// To all other leaders, in their order.
    connections: Vec<Connection>,
    seq: u64,
    given: bool,
    failed: Option<Error>,
    /// This leader's share of the elements, as each machine has summed them.
    parts: Vec<Vec<f32>>,
}

impl State {
    /// A failed exchange ends the group.
    fn record(&mut self, done: Result<(), Error>) -> Result<(), Error> {
        self.failed = done.as_ref().err().cloned();
        done
    }

    /// The sums of this leader's share, after [`Tcp::reduce_share`].
    pub(super) fn sums(&self) -> &[f32] {
        &self.parts[0]
    }
}

impl Tcp {
    /// Takes over the connections to all other ranks, each on a machine of its own. Does not wait.
    pub(super) fn open(
        rank: Rank,
        world: WorldSize,
        peers: Vec<Peer>,
        timeout: Duration,
    ) -> Result<Self, Error> {
        Self::open_leader(Place { rank, world, local: WorldSize::ONE }, peers, timeout, None)
    }

    /// The same for the first rank of a machine with `local` ranks, with connections to those of
    /// the other machines.
    pub(super) fn open_leader(
        Place { rank, world, local }: Place,
        mut peers: Vec<Peer>,
        timeout: Duration,
        meanwhile: Option<Meanwhile>,
    ) -> Result<Self, Error> {
        let refused = |error: std::io::Error| Error::Connections { what: error.to_string() };
        peers.sort_by_key(|peer| peer.rank);
        let leaders = || (0..world.get()).step_by(local.count());
        let others = leaders().map(Rank).filter(|other| *other != rank);
        if !peers.iter().map(|peer| peer.rank).eq(others) {
            let what = format!("rank {rank} of {world} has {} of them", peers.len());
            return Err(Error::Connections { what });
        }
        let starts_of = |first: u32| {
            let first = first as usize;
            let ranks = first..(first + local.count()).min(world.count());
            subtrees(world.count(), ranks).into_iter().map(|ranks| ranks.start).collect()
        };
        let starts: Vec<Vec<usize>> = leaders().map(starts_of).collect();
        let connections =
            peers.into_iter().map(Connection::open).collect::<Result<_, _>>().map_err(refused)?;
        let (seq, given, failed) = (0, false, None);
        let parts = vec![Vec::new(); starts.len()];
        let state = Mutex::new(State { connections, seq, given, failed, parts });
        let (place, interrupts) =
            (rank.index() / local.count(), Interrupts::new().map_err(refused)?);
        Ok(Self { rank, world, place, starts, meanwhile, interrupts, timeout, state })
    }

    /// Number of machines.
    pub(super) fn machines(&self) -> usize {
        self.starts.len()
    }

    /// Number of this machine.
    pub(super) fn place(&self) -> usize {
        self.place
    }

    /// Tells the other machines why the group has ended, unless it has ended before.
    pub(super) fn tell(&self, error: &Error) {
        // A thread that holds the connections is in a call, and finds out by itself.
        let Ok(mut state) = self.state.try_lock() else { return };
        if state.failed.is_none() {
            end_all(&mut state.connections, self.rank, error);
            state.failed = Some(error.clone());
        }
    }

    /// A panic inside a call leaves messages half sent, which the other ranks notice.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a call.
    pub(super) fn begin(
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
        let Self { rank, ref interrupts, timeout, ref meanwhile, .. } = *self;
        Exchange { rank, call, round, interrupts, timeout, meanwhile: meanwhile.as_ref() }
    }

    /// All machines but this one.
    fn others(&self) -> impl Iterator<Item = usize> {
        let me = self.place;
        (0..self.machines()).filter(move |other| *other != me)
    }

    /// The elements of `0..len` that each machine reduces.
    pub(super) fn shares(&self, len: usize) -> Vec<Range<usize>> {
        let machines = self.machines();
        (0..machines).map(|place| share(len, place, machines)).collect()
    }

    /// A call that moves no data.
    pub(super) fn synchronize(
        &self,
        op: Op,
        bytes: usize,
        tag: u64,
    ) -> Result<MutexGuard<'_, State>, Error> {
        let (call, mut state) = self.begin(op, bytes, tag)?;
        let n = self.machines() - 1;
        let into = (0..n).map(|_| Target::Slice(&mut [])).collect();
        let done = exchange(&self.round(&call, 0), &mut state.connections, &vec![&[][..]; n], into);
        state.record(done)?;
        Ok(state)
    }

    /// Sends each machine the elements of its share, one after the other the sums over the subtrees
    /// of this machine; receives those of all machines of this one's share, and leaves their sum in
    /// [`State::sums`].
    pub(super) fn reduce_share(
        &self,
        state: &mut State,
        call: &Call,
        shares: &[&[f32]],
    ) -> Result<(), Error> {
        let (me, len) = (self.place, shares[self.place].len() / self.starts[self.place].len());
        let State { connections, parts, .. } = state;
        for (part, starts) in parts.iter_mut().zip(&self.starts) {
            part.resize(starts.len() * len, 0.0);
        }
        parts[me].copy_from_slice(shares[me]);
        let out: Vec<&[u8]> =
            self.others().map(|other| bytemuck::cast_slice(shares[other])).collect();
        let theirs = parts.iter_mut().enumerate().filter(|(place, _)| *place != me);
        let into = theirs.map(|(_, part)| Target::Slice(bytemuck::cast_slice_mut(part))).collect();
        let done = exchange(&self.round(call, 0), connections, &out, into);
        state.record(done)?;
        if len > 0 {
            let mut sums: Vec<&mut [f32]> =
                state.parts.iter_mut().flat_map(|part| part.chunks_exact_mut(len)).collect();
            finish_tree(self.world.count(), &self.starts.concat(), &mut sums);
        }
        state.parts[0].truncate(len);
        Ok(())
    }

    /// Sends this leader's sums to all, and receives theirs into `values`.
    pub(super) fn gather_shares(
        &self,
        state: &mut State,
        call: &Call,
        values: &mut [f32],
        shares: &[Range<usize>],
    ) -> Result<(), Error> {
        let me = self.place;
        let State { connections, parts, .. } = state;
        values[shares[me].clone()].copy_from_slice(&parts[0]);
        let (mut into, mut rest) = (Vec::new(), values);
        for (place, share) in shares.iter().enumerate() {
            let (theirs, after) = rest.split_at_mut(share.len());
            if place != me {
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
        let shares = self.shares(len);
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
        let mut sums = state.sums();
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
        let mut all = vec![Vec::new(); self.machines()];
        let theirs = all.iter_mut().enumerate().filter(|(place, _)| *place != self.place);
        let into = theirs.map(|(_, bytes)| Target::Vec(bytes)).collect();
        let out = vec![mine; state.connections.len()];
        let done = exchange(&self.round(&call, 0), &mut state.connections, &out, into);
        state.record(done)?;
        all[self.place] = mine.to_vec();
        Ok(all)
    }

    fn barrier(&self) -> Result<(), Error> {
        self.synchronize(Op::Barrier, 0, 0).map(|_| ())
    }

    fn abort(&self, reason: &str) {
        self.interrupts.abort(reason);
        self.tell(&Error::Aborted { by: self.rank, reason: reason.to_owned() });
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
