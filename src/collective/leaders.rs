//! The leaders of several machines, a rank of each, with links between any two of them.
//!
//! A reduction has two exchanges: each leader sends every other its share of the elements, summed
//! over its machine as far as the tree allows, and adds its own share of all machines in the same
//! tree as in shared memory; then it sends its sums to all. With M machines that is 2S (M-1)/M
//! bytes out and as many in, over all links at once in both directions; where the ranks of a
//! machine are several subtrees, the first exchange sends one sum of each.
//!
//! What is small (votes, barriers) goes from each to each of up to eight machines. More use a tree
//! (`gather_tree`): everyone tells the leader above that it is here; then the bytes go up, and
//! those of all come down. Broadcasts go down the same tree.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::collective::call::lengths_tag;
use crate::collective::exchange::Connection;
use crate::collective::gather_tree::{self, FEW, children, depth, height, parent};
use crate::collective::links::{Exchange, Interrupts, Links, Meanwhile, Message};
use crate::collective::message::Target;
use crate::collective::reduce::share;
use crate::collective::segment::Memory;
use crate::collective::subtrees::{finish_tree, subtrees};
use crate::collective::{Call, Collective, Elements, Error, Op, Segment};
use crate::failpoint;
use crate::plan::AllReduce;
use crate::transport::Peer;
use crate::units::{Bytes, Rank, WorldSize};

/// Bytes that go down the tree at a time, while the next come.
const PIECE: usize = 4 << 20;
/// How much longer a leader waits for those that wait for others themselves, for each step to the
/// farthest: so that they have the time to name who is missing.
const STEP_MARGIN: Duration = Duration::from_secs(1);

/// A leader's place among all ranks.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) rank: Rank,
    pub(super) world: WorldSize,
    /// Ranks of each machine.
    pub(super) local: WorldSize,
}

impl Place {
    /// The first ranks of all machines.
    fn leaders(self) -> impl Iterator<Item = Rank> {
        (0..self.world.get()).step_by(self.local.count()).map(Rank)
    }

    /// Those of the other machines.
    pub(super) fn others(self) -> impl Iterator<Item = Rank> {
        self.leaders().filter(move |other| *other != self.rank)
    }
}

/// One leader of the group. Where every machine has one rank, all are leaders, and this is the
/// whole group.
pub(super) struct Leaders {
    rank: Rank,
    world: WorldSize,
    /// Number of this machine.
    place: usize,
    /// For each machine, the ranks at which the subtrees begin that it sums alone.
    starts: Vec<Vec<usize>>,
    /// Who adds up.
    adds: AllReduce,
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
    links: Box<dyn Links>,
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

    /// The sums of this leader's share, after [`Leaders::reduce_share`].
    pub(super) fn sums(&self) -> &[f32] {
        &self.parts[0]
    }
}

impl Leaders {
    /// Takes over the connections to all other ranks, each on a machine of its own. Does not wait.
    pub(super) fn open(
        rank: Rank,
        world: WorldSize,
        peers: Vec<Peer>,
        timeout: Duration,
    ) -> Result<Self, Error> {
        Self::connected(Place { rank, world, local: WorldSize::ONE }, peers, timeout, None)
    }

    /// The same for the first rank of a machine with `place.local` ranks, with connections to those
    /// of the other machines.
    pub(super) fn connected(
        place: Place,
        mut peers: Vec<Peer>,
        timeout: Duration,
        meanwhile: Option<Meanwhile>,
    ) -> Result<Self, Error> {
        peers.sort_by_key(|peer| peer.rank);
        if !peers.iter().map(|peer| peer.rank).eq(place.others()) {
            let Place { rank, world, .. } = place;
            let what = format!("rank {rank} of {world} has {} of them", peers.len());
            return Err(Error::Connections { what });
        }
        let connections: Vec<Connection> =
            peers.into_iter().map(Connection::open).collect::<Result<_, _>>().map_err(unusable)?;
        Self::linked(place, Box::new(connections), timeout, meanwhile)
    }

    /// The same with any links to the other leaders, in their order.
    pub(super) fn linked(
        place: Place,
        links: Box<dyn Links>,
        timeout: Duration,
        meanwhile: Option<Meanwhile>,
    ) -> Result<Self, Error> {
        let Place { rank, world, local } = place;
        let starts_of = |first: Rank| {
            let ranks = first.index()..(first.index() + local.count()).min(world.count());
            subtrees(world.count(), ranks).into_iter().map(|ranks| ranks.start).collect()
        };
        let starts: Vec<Vec<usize>> = place.leaders().map(starts_of).collect();
        let (seq, given, failed) = (0, false, None);
        let parts = vec![Vec::new(); starts.len()];
        let state = Mutex::new(State { links, seq, given, failed, parts });
        let (place, interrupts) =
            (rank.index() / local.count(), Interrupts::new().map_err(unusable)?);
        let adds = AllReduce::Tree;
        Ok(Self { rank, world, place, starts, adds, meanwhile, interrupts, timeout, state })
    }

    /// The same group, whose sums the library behind the links takes.
    pub(super) fn summing_by(mut self, adds: AllReduce) -> Self {
        self.adds = adds;
        self
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
            state.links.end_all(self.rank, error);
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

    /// The `round`-th exchange of a call, whose others may have to wait for some, so many steps
    /// away.
    fn round<'a>(&'a self, call: &'a Call, round: u64, steps: u32) -> Exchange<'a> {
        let Self { rank, ref interrupts, ref meanwhile, .. } = *self;
        let timeout = self.timeout + steps * STEP_MARGIN;
        Exchange { rank, call, round, interrupts, timeout, meanwhile: meanwhile.as_ref() }
    }

    /// The number of another machine among the links.
    fn link(&self, place: usize) -> usize {
        place - usize::from(place > self.place)
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
        let done = self.gather(&mut state, &call, None).map(drop);
        state.record(done)?;
        Ok(state)
    }

    /// The `mine` of all machines. `None`, on all, if all that counts is that all make this call.
    fn gather(
        &self,
        state: &mut State,
        call: &Call,
        mine: Option<&[u8]>,
    ) -> Result<Vec<Vec<u8>>, Error> {
        let mut all = vec![Vec::new(); self.machines()];
        if self.machines() <= FEW {
            let theirs = all.iter_mut().enumerate().filter(|(place, _)| *place != self.place);
            let both = |(place, bytes)| Message {
                peer: self.link(place),
                out: Some(mine.unwrap_or_default()),
                into: Some(Target::Vec(bytes)),
            };
            state.links.exchange(&self.round(call, 0, 0), theirs.map(both).collect())?;
            all[self.place] = mine.unwrap_or_default().to_vec();
            return Ok(all);
        }
        let told = self.gather_by_tree(state, call, mine)?;
        let damaged = || Error::Connections { what: "what machines told is damaged".to_owned() };
        for (place, bytes) in gather_tree::unpack(&told).ok_or_else(damaged)? {
            *all.get_mut(place).ok_or_else(damaged)? = bytes;
        }
        Ok(all)
    }

    /// The same through the tree, packed.
    fn gather_by_tree(
        &self,
        state: &mut State,
        call: &Call,
        mine: Option<&[u8]>,
    ) -> Result<Vec<u8>, Error> {
        let (me, machines) = (self.place, self.machines());
        let above = parent(me).map(|above| self.link(above));
        let below = children(me, machines);
        // First only who is here, so that a leader knows which of its children is not.
        let here = above.map(|peer| Message { peer, out: Some(&[]), into: None });
        let theirs = below.clone().map(|child| Message {
            peer: self.link(child),
            out: None,
            into: Some(Target::Slice(&mut [])),
        });
        let messages = here.into_iter().chain(theirs).collect();
        state.links.exchange(&self.round(call, 0, 0), messages)?;
        let mut told = vec![Vec::new(); below.len()];
        let theirs = below.clone().zip(&mut told).map(|(child, bytes)| Message {
            peer: self.link(child),
            out: None,
            into: Some(Target::Vec(bytes)),
        });
        let round = self.round(call, 1, height(me, machines));
        state.links.exchange(&round, theirs.collect())?;
        let own = mine.map_or(Vec::new(), |mine| gather_tree::pack(&[(me, mine.to_vec())]));
        let mut all = [own, told.concat()].concat();
        if let Some(peer) = above {
            let up = Message { peer, out: Some(&all), into: None };
            state.links.exchange(&round, vec![up])?;
            let round = self.round(call, 2, height(0, machines) + depth(me));
            all = Vec::new();
            let down = Message { peer, out: None, into: Some(Target::Vec(&mut all)) };
            state.links.exchange(&round, vec![down])?;
        }
        let down =
            below.map(|child| Message { peer: self.link(child), out: Some(&all), into: None });
        state.links.exchange(&self.round(call, 2, 0), down.collect())?;
        Ok(all)
    }

    /// Passes what comes from above on, piece by piece.
    fn broadcast_by_tree(
        &self,
        state: &mut State,
        call: &Call,
        bytes: &mut [u8],
    ) -> Result<(), Error> {
        let above = parent(self.place).map(|above| self.link(above));
        let (n, steps) = (bytes.len().div_ceil(PIECE).max(1), depth(self.place));
        for piece in 0..n {
            let range = piece * PIECE..((piece + 1) * PIECE).min(bytes.len());
            let piece_bytes = &mut bytes[range];
            let round = self.round(call, piece as u64, steps);
            if let Some(peer) = above {
                let into = Some(Target::Slice(&mut *piece_bytes));
                state.links.exchange(&round, vec![Message { peer, out: None, into }])?;
            }
            let down = children(self.place, self.machines()).map(|child| Message {
                peer: self.link(child),
                out: Some(&*piece_bytes),
                into: None,
            });
            state.links.exchange(&round, down.collect())?;
        }
        Ok(())
    }

    /// A sum that the library takes, once all are known to make this call.
    fn sum_by_library(&self, op: Op, values: &mut Vec<f32>, index: u64) -> Result<(), Error> {
        let mut state = self.synchronize(op, 4 * values.len(), index)?;
        let call = Call { seq: state.seq, op, bytes: Bytes(4 * values.len() as u64), tag: index };
        failpoint::reach("collective");
        let done = state.links.sum_by_library(&self.round(&call, 1, 0), values);
        state.record(done)
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
        let State { links, parts, .. } = state;
        for (part, starts) in parts.iter_mut().zip(&self.starts) {
            part.resize(starts.len() * len, 0.0);
        }
        parts[me].copy_from_slice(shares[me]);
        let mut messages = Vec::with_capacity(shares.len());
        for (place, part) in parts.iter_mut().enumerate().filter(|(place, _)| *place != me) {
            let out: Option<&[u8]> = Some(bytemuck::cast_slice(shares[place]));
            let into = Some(Target::Slice(bytemuck::cast_slice_mut(part)));
            messages.push(Message { peer: self.link(place), out, into });
        }
        let done = links.exchange(&self.round(call, 0, 0), messages);
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
        let State { links, parts, .. } = state;
        values[shares[me].clone()].copy_from_slice(&parts[0]);
        let out: Option<&[u8]> = Some(bytemuck::cast_slice(&parts[0]));
        let (mut messages, mut rest) = (Vec::new(), values);
        for (place, share) in shares.iter().enumerate() {
            let (theirs, after) = rest.split_at_mut(share.len());
            if place != me {
                let into = Some(Target::Slice(bytemuck::cast_slice_mut(theirs)));
                messages.push(Message { peer: self.link(place), out, into });
            }
            rest = after;
        }
        let done = links.exchange(&self.round(call, 1, 0), messages);
        state.record(done)
    }
}

#[cfg(any(feature = "cuda", test))]
impl crate::collective::device_group::Control for Leaders {
    fn end(&self) -> Option<Error> {
        // A thread that holds the connections is in a call, and finds out by itself.
        let mut state = self.state.try_lock().ok()?;
        let State { links, seq, failed, .. } = &mut *state;
        if failed.is_none() {
            let call = Call { seq: *seq, op: Op::SumOnDevices, bytes: Bytes(0), tag: 0 };
            let told =
                self.interrupts.reason().map(|reason| Error::Aborted { by: self.rank, reason });
            *failed = told.or_else(|| links.received_end(&call));
            if let Some(error) = failed {
                links.end_all(self.rank, error);
            }
        }
        failed.clone()
    }

    fn gives_up(&self) -> bool {
        self.interrupts.gives_up()
    }

    fn begin_wait(&self) {}

    fn late(&self) -> Option<crate::collective::device_group::Late> {
        None
    }
}

impl Collective for Leaders {
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
        if self.adds == AllReduce::Library {
            return self.sum_by_library(Op::AllReduce, values, index);
        }
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
        if self.adds == AllReduce::Library {
            return self.sum_by_library(Op::ReduceScatter, values, index);
        }
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
        let done = if self.machines() > FEW {
            self.broadcast_by_tree(&mut state, &call, bytes)
        } else if self.place == 0 {
            let both = |place| Message {
                peer: self.link(place),
                out: Some(&*bytes),
                into: Some(Target::Slice(&mut [])),
            };
            let messages = self.others().map(both).collect();
            state.links.exchange(&self.round(&call, 0, 0), messages)
        } else {
            let mut first = Some(bytes);
            let both = |place| Message {
                peer: self.link(place),
                out: Some(&[][..]),
                into: Some(Target::Slice(first.take().unwrap_or_default())),
            };
            // The first of the others is rank 0.
            let messages = self.others().map(both).collect();
            state.links.exchange(&self.round(&call, 0, 0), messages)
        };
        state.record(done)
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let (call, mut state) = self.begin(Op::AllGather, 0, 0)?;
        let done = self.gather(&mut state, &call, Some(mine));
        state.failed = done.as_ref().err().cloned();
        done
    }

    fn describe(&self) -> Option<String> {
        self.state().links.describe()
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

#[expect(clippy::needless_pass_by_value, reason = "fits `map_err`")]
fn unusable(error: std::io::Error) -> Error {
    Error::Connections { what: error.to_string() }
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
mod many_machines;
#[cfg(test)]
pub(super) mod tests;
