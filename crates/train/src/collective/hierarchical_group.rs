//! The ranks of several machines: those of one machine through shared memory, and the first of
//! each, its leader, with the leaders of the others.
//!
//! | call | within the machine | between leaders |
//! |---|---|---|
//! | `all_reduce`, `reduce_scatter` | sums over subtrees; then all copy the result | as in `leaders` |
//! | `broadcast` | from the leader | before it |
//! | `all_gather` | to the leader, and from it | between the two |
//! | `barrier`, `segments` | before, and for a barrier after it | a message |
//!
//! While leaders exchange, the other ranks wait in a barrier of their machine, whose deadline
//! begins again at each sign of life of the leader. A failure of one group ends the other: the
//! leader passes it on. Leaders wait a little longer for each other than ranks of a machine do, so
//! that a machine whose rank is missing has the time to name it.

use std::borrow::Cow;
use std::ops::Range;
use std::time::Duration;

use crate::collective::call::lengths_tag;
use crate::collective::inter_node_group::{InterNodeGroup, Place};
use crate::collective::links::Meanwhile;
use crate::collective::shared_mapping::SharedFloats;
use crate::collective::shm::{LeaderReduction, Shm};
use crate::collective::subtrees::subtrees;
use crate::collective::{Collective, Elements, Error, GradientBuffer, Op};
use crate::units::{Rank, WorldSize};

/// How much longer leaders wait for each other at least; a quarter of a long timeout.
const LEADER_MARGIN: Duration = Duration::from_secs(2);

/// One rank of the group.
pub(super) struct HierarchicalGroup {
    rank: Rank,
    world: WorldSize,
    local: Shm,
    leaders: Option<InterNodeGroup>,
    /// The parts of the tree that this machine sums alone, by its own numbers of its ranks.
    subtrees: Vec<Range<usize>>,
}

impl HierarchicalGroup {
    /// Joins the group of the machine, `local` of which is this rank, and as the leader that of all
    /// leaders, by `connect`. Does not wait.
    pub(super) fn open(
        rank: Rank,
        world: WorldSize,
        local: Shm,
        timeout: Duration,
        connect: impl FnOnce(Place, Duration, Option<Meanwhile>) -> Result<InterNodeGroup, Error>,
    ) -> Result<Self, Error> {
        let own = local.rank();
        let n = local.world_size();
        let first = Rank(rank.0 - own.0);
        let local = local.starting_at(first);
        let leader = || {
            let timeout = timeout + LEADER_MARGIN.max(timeout / 4);
            let place = Place { rank, world, local: n };
            connect(place, timeout, Some(Box::new(local.watch())))
        };
        let leaders = own.is_first().then(leader).transpose()?;
        let ranks = first.index()..first.index() + n.count();
        let by_local = |ranks: Range<usize>| ranks.start - first.index()..ranks.end - first.index();
        let subtrees = subtrees(world.count(), ranks).into_iter().map(by_local).collect();
        Ok(Self { rank, world, local, leaders, subtrees })
    }

    /// The end of a call of the machine's group, whose failure the leader tells the others.
    fn within<T>(&self, done: Result<T, Error>) -> Result<T, Error> {
        if let (Err(error), Some(leaders)) = (&done, &self.leaders) {
            leaders.tell(error);
        }
        done
    }

    /// A call of the leaders' group, whose failure ends that of the machine.
    fn between<T>(
        &self,
        call: impl FnOnce(&InterNodeGroup) -> Result<T, Error>,
    ) -> Result<Option<T>, Error> {
        let done = self.leaders.as_ref().map(call).transpose();
        done.inspect_err(|error| self.local.end_for(error))
    }

    /// A reduction, of which this rank takes `mine`; `exchange` is the leader's part.
    fn reduce(
        &self,
        op: Op,
        segment: &mut GradientBuffer,
        mine: &[Range<usize>],
        exchange: impl FnOnce(&InterNodeGroup, &mut SharedFloats) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let parts = LeaderReduction { op, subtrees: &self.subtrees, mine };
        self.within(self.local.reduce_through_leader(&parts, segment, |floats| {
            self.between(|leaders| exchange(leaders, floats)).map(drop)
        }))
    }

    /// The sums of this machine over its subtrees, of some elements each, one after the other.
    fn packed<'a>(&self, floats: &'a SharedFloats, elements: &[Range<usize>]) -> Cow<'a, [f32]> {
        let of = |ranks: &Range<usize>, range| floats.of_rank(Rank(ranks.start as u32), range);
        if let ([ranks], [range]) = (self.subtrees.as_slice(), elements) {
            return of(ranks, range).into();
        }
        let sums = self.subtrees.iter();
        let sums = sums.flat_map(|ranks| elements.iter().map(move |range| of(ranks, range)));
        sums.collect::<Vec<_>>().concat().into()
    }
}

impl Collective for HierarchicalGroup {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn world_size(&self) -> WorldSize {
        self.world
    }

    fn segments(&self, lengths: &[usize]) -> Result<Vec<GradientBuffer>, Error> {
        let segments = self.within(self.local.segments(lengths))?;
        let bytes = 4 * lengths.iter().sum::<usize>();
        let tag = lengths_tag(lengths);
        self.between(|leaders| leaders.synchronize(Op::Segments, bytes, tag).map(drop))?;
        Ok(segments)
    }

    fn all_reduce(&self, segment: &mut GradientBuffer) -> Result<(), Error> {
        let len = segment.len();
        let tag = segment.index() as u64;
        self.reduce(Op::AllReduce, segment, std::slice::from_ref(&(0..len)), |leaders, floats| {
            let shares = leaders.shares(len);
            let (call, mut state) = leaders.begin(Op::AllReduce, 4 * len, tag)?;
            let packed: Vec<Cow<'_, [f32]>> = shares
                .iter()
                .map(|share| self.packed(floats, std::slice::from_ref(share)))
                .collect();
            let out: Vec<&[f32]> = packed.iter().map(|sums| &**sums).collect();
            leaders.reduce_share(&mut state, &call, &out)?;
            drop(packed);
            leaders.gather_shares(&mut state, &call, floats.as_mut_slice(), &shares)
        })
    }

    fn reduce_scatter(
        &self,
        segment: &mut GradientBuffer,
        parts: &[Elements],
    ) -> Result<(), Error> {
        let len = segment.len();
        let tag = segment.index() as u64;
        let mine = parts.get(self.rank.index()).map_or(&[][..], Vec::as_slice);
        self.reduce(Op::ReduceScatter, segment, mine, |leaders, floats| {
            let of_machines: Vec<Elements> =
                parts.chunks(self.local.world_size().count()).map(<[Elements]>::concat).collect();
            let (call, mut state) = leaders.begin(Op::ReduceScatter, 4 * len, tag)?;
            let packed: Vec<Cow<'_, [f32]>> =
                of_machines.iter().map(|elements| self.packed(floats, elements)).collect();
            let out: Vec<&[f32]> = packed.iter().map(|sums| &**sums).collect();
            leaders.reduce_share(&mut state, &call, &out)?;
            drop(packed);
            let mut sums = state.sums();
            for range in &of_machines[leaders.place()] {
                let (these, after) = sums.split_at(range.len());
                floats.as_mut_slice()[range.clone()].copy_from_slice(these);
                sums = after;
            }
            Ok(())
        })
    }

    fn broadcast(&self, bytes: &mut [u8]) -> Result<(), Error> {
        self.between(|leaders| leaders.broadcast(bytes))?;
        self.within(self.local.broadcast(bytes))
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let own = self.within(self.local.all_gather(mine))?;
        let all = self.between(|leaders| leaders.all_gather(&pack(&own)))?;
        let mut bytes = all.map(|all| all.concat()).unwrap_or_default();
        let mut length = (bytes.len() as u64).to_le_bytes();
        self.within(self.local.broadcast(&mut length))?;
        bytes.resize(u64::from_le_bytes(length) as usize, 0);
        self.within(self.local.broadcast(&mut bytes))?;
        let damaged = || Error::Connections { what: "what ranks gathered is damaged".to_owned() };
        unpack(&bytes).filter(|all| all.len() == self.world.count()).ok_or_else(damaged)
    }

    fn barrier(&self) -> Result<(), Error> {
        self.within(self.local.barrier())?;
        self.between(InterNodeGroup::barrier)?;
        self.within(self.local.barrier())
    }

    fn describe(&self) -> Option<String> {
        self.leaders.as_ref().and_then(InterNodeGroup::describe)
    }

    fn abort(&self, reason: &str) {
        self.local.abort(reason);
        if let Some(leaders) = &self.leaders {
            leaders.abort(reason);
        }
    }

    fn give_up(&self) {
        self.local.give_up();
        if let Some(leaders) = &self.leaders {
            leaders.give_up();
        }
    }
}

#[cfg(any(feature = "cuda", test))]
impl crate::collective::device_group::Control for HierarchicalGroup {
    fn end(&self) -> Option<Error> {
        use crate::collective::device_group::Control;
        if let Some(error) = Control::end(&self.local) {
            let _ = self.within::<()>(Err(error.clone()));
            return Some(error);
        }
        let told = self.leaders.as_ref().and_then(Control::end);
        told.inspect(|error| self.local.end_for(error))
    }

    fn gives_up(&self) -> bool {
        crate::collective::device_group::Control::gives_up(&self.local)
    }

    fn begin_wait(&self) {
        crate::collective::device_group::Control::begin_wait(&self.local);
    }

    /// Of other machines nothing is known.
    fn late(&self) -> Option<crate::collective::device_group::Late> {
        let here = crate::collective::device_group::Control::late(&self.local);
        here.filter(|late| !late.missing.is_empty())
    }
}

/// The bytes of all ranks of a machine, each after its length.
fn pack(all: &[Vec<u8>]) -> Vec<u8> {
    let each =
        all.iter().flat_map(|bytes| [(bytes.len() as u64).to_le_bytes().to_vec(), bytes.clone()]);
    each.collect::<Vec<_>>().concat()
}

/// What [`pack`] has packed.
fn unpack(mut bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut all = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk::<8>() {
        let (one, rest) =
            rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
        all.push(one.to_vec());
        bytes = rest;
    }
    bytes.is_empty().then_some(all)
}

#[cfg(test)]
mod tests;
