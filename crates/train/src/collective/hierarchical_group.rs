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
#[cfg(any(feature = "cuda", test))]
use crate::collective::device_group::{Control, LateRanks};
use crate::collective::inter_node_group::{InterNodeGroup, Topology};
use crate::collective::links::WaitHook;
use crate::collective::reduce::subtrees;
use crate::collective::shared_mapping::SharedFloats;
use crate::collective::shm::{LeaderReduction, Shm};
use crate::collective::{Collective, Elements, Error, GradientBuffer, Op};
use crate::units::{Rank, WorldSize};

/// Least additional time that leaders wait for each other; with a long timeout it is a quarter of
/// that.
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
        connect: impl FnOnce(Topology, Duration, Option<WaitHook>) -> Result<InterNodeGroup, Error>,
    ) -> Result<Self, Error> {
        let own = local.rank();
        let n = local.world_size();
        let first = Rank(rank.0 - own.0);
        let local = local.starting_at(first);
        let leader = || {
            let timeout = timeout + LEADER_MARGIN.max(timeout / 4);
            let topology = Topology { rank, world, local: n };
            connect(topology, timeout, Some(Box::new(local.watch())))
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
            leaders.notify(error);
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
            for range in &of_machines[leaders.machine()] {
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
impl Control for HierarchicalGroup {
    fn end(&self) -> Option<Error> {
        if let Some(error) = self.local.end() {
            let _ = self.within::<()>(Err(error.clone()));
            return Some(error);
        }
        let end = self.leaders.as_ref().and_then(Control::end);
        end.inspect(|error| self.local.end_for(error))
    }

    fn gives_up(&self) -> bool {
        self.local.gives_up()
    }

    fn begin_wait(&self) {
        self.local.begin_wait();
    }

    /// Nothing is known about other machines.
    fn late(&self) -> Option<LateRanks> {
        self.local.late().filter(|late| !late.missing.is_empty())
    }
}

/// The bytes of all ranks of a machine, each after its length.
fn pack(all: &[Vec<u8>]) -> Vec<u8> {
    let each =
        all.iter().flat_map(|bytes| [(bytes.len() as u64).to_le_bytes().to_vec(), bytes.clone()]);
    each.collect::<Vec<_>>().concat()
}

/// Unpacks bytes of [`pack`]; `None` if they are damaged.
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
mod tests {
    //! Ranks as threads: those of a machine share memory, and the first of each has connections.

    use std::sync::Arc;
    use std::time::Instant;

    use super::*;
    use crate::collective::inter_node_group::tests::{bits, peers, summed, tree, value};
    use crate::plan::Mapping;
    use crate::transport::shared_memory;

    const TIMEOUT: Duration = Duration::from_secs(30);
    const LENGTHS: [usize; 4] = [1, 7, 4097, 100_003];

    /// Machines, and ranks of each.
    type Shape = (u32, u32);

    fn size(n: u32) -> WorldSize {
        WorldSize::new(n).unwrap()
    }

    /// Runs `each` on all ranks as threads, and returns what they return in rank order.
    fn spawn<T: Send>(
        (machines, n): Shape,
        timeout: Duration,
        each: impl Fn(Arc<HierarchicalGroup>) -> T + Sync,
    ) -> Vec<T> {
        let mapping = Mapping::new(size(n), LENGTHS).total();
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for (machine, mut peers) in (0..).zip(peers(machines)) {
                let memory = shared_memory(mapping).unwrap();
                for peer in &mut peers {
                    peer.rank.0 *= n;
                }
                for own in 0..n {
                    let local = Shm::open(&memory, mapping, Rank(own), size(n), timeout).unwrap();
                    let (rank, world) = (Rank(machine * n + own), size(machines * n));
                    let peers = std::mem::take(&mut peers);
                    let group = HierarchicalGroup::open(
                        rank,
                        world,
                        local,
                        timeout,
                        |topology, wait, watch| {
                            InterNodeGroup::connected(topology, peers, wait, watch)
                        },
                    );
                    let (group, each) = (Arc::new(group.unwrap()), &each);
                    threads.push(scope.spawn(move || each(group)));
                }
            }
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn sums_have_the_bits_of_the_flat_tree_on_any_machines() {
        for shape in [(2, 2), (2, 3), (3, 2), (3, 3), (2, 4)] {
            let world = shape.0 * shape.1;
            let right: Vec<_> = LENGTHS.iter().map(|&n| tree(world, n)).collect();
            let sums = spawn(shape, TIMEOUT, |group| summed(&*group, &LENGTHS));
            assert!(sums.into_iter().all(|sums| sums == right), "{shape:?}");
        }
    }

    #[test]
    fn each_rank_gets_the_sum_of_its_own_part_with_the_bits_of_the_flat_tree() {
        for shape in [(2, 2), (2, 3)] {
            let (world, n) = (shape.0 * shape.1, LENGTHS[3]);
            let right = tree(world, n);
            let part = |rank: usize| vec![rank * 512..rank * 512 + 500, 9000 + rank..9001 + rank];
            let mut parts: Vec<Elements> = (0..world as usize).map(part).collect();
            parts[1] = Elements::new();
            let sums = spawn(shape, TIMEOUT, |group| {
                let (rank, mut segments) = (group.rank(), group.segments(&LENGTHS).unwrap());
                segments[3].iter_mut().enumerate().for_each(|(i, v)| *v = value(rank.0, i));
                group.reduce_scatter(&mut segments[3], &parts).unwrap();
                let mine = parts[rank.index()].iter();
                mine.map(|range| bits(&segments[3][range.clone()])).collect::<Vec<_>>()
            });
            for (found, part) in sums.into_iter().zip(&parts) {
                let right: Vec<_> =
                    part.iter().map(|range| right[range.clone()].to_vec()).collect();
                assert_eq!(found, right, "{shape:?}");
            }
        }
    }

    #[test]
    fn all_ranks_receive_the_broadcast_of_rank_0_and_what_all_ranks_gather() {
        for n in [0, 1, 700_001] {
            let content: Vec<u8> = (0..n).map(|i| (i % 251) as u8).collect();
            let right: Vec<Vec<u8>> =
                (0..6).map(|rank| vec![rank; rank as usize * n / 4]).collect();
            let received = spawn((2, 3), TIMEOUT, |group| {
                let rank = group.rank();
                let mut bytes = if rank.is_first() { content.clone() } else { vec![0; n] };
                group.broadcast(&mut bytes).unwrap();
                group.barrier().unwrap();
                (bytes, group.all_gather(&right[rank.index()]).unwrap())
            });
            assert!(received.iter().all(|got| got.0 == content && got.1 == right), "{n} bytes");
        }
    }

    #[test]
    fn a_rank_that_does_not_come_is_named_on_all_machines() {
        for late in [Rank(2), Rank(3)] {
            let (timeout, over) = (Duration::from_millis(300), std::sync::Barrier::new(4));
            let began = Instant::now();
            let errors = spawn((2, 2), timeout, |group| {
                if group.rank() == late {
                    over.wait();
                    return String::new();
                }
                let error = group.barrier().unwrap_err().to_string();
                over.wait();
                error
            });
            assert!(began.elapsed() < TIMEOUT);
            let named = format!("timed out waiting for rank {late} (in call 0)");
            for (rank, error) in (0..).map(Rank).zip(errors).filter(|(rank, _)| *rank != late) {
                assert!(error.contains(&named), "rank {rank}: {error}");
            }
        }
    }

    #[test]
    fn a_rank_that_aborts_tells_all_machines_why() {
        for by in [Rank(0), Rank(1), Rank(3)] {
            let errors = spawn((2, 2), TIMEOUT, |group| {
                group.barrier().unwrap();
                if group.rank() == by {
                    group.abort("`a.png` is truncated");
                }
                group.all_gather(b"vote").unwrap_err().to_string()
            });
            for error in errors {
                assert_eq!(error, format!("rank {by} ended the group: `a.png` is truncated"));
            }
        }
    }

    #[test]
    fn a_lost_leader_is_named_with_its_machine() {
        let errors = spawn((2, 2), TIMEOUT, |group| {
            group.barrier().unwrap();
            if group.rank() == Rank(2) {
                return None;
            }
            // Its parent, or its connection with it, tells rank 3 that it is gone.
            if group.rank() == Rank(3) {
                group.abort("rank 2 died");
            }
            Some(group.barrier().unwrap_err().to_string())
        });
        for error in errors[..2].iter().flatten() {
            assert!(error.contains("the connection to rank 2 on machine 1 ended"), "{error}");
        }
        assert!(errors[3].as_ref().is_some_and(|error| error.contains("rank 2 died")));
    }

    #[test]
    fn other_calls_and_lengths_are_named_across_machines() {
        let errors = spawn((2, 2), TIMEOUT, |group| {
            let mut bytes = vec![0; if group.rank().0 < 2 { 8 } else { 12 }];
            group.broadcast(&mut bytes).unwrap_err().to_string()
        });
        let right =
            "rank 0 is in `broadcast` (call 1, 8 B), but rank 2 is in `broadcast` (call 1, 12 B)";
        assert!(errors.iter().all(|error| error.contains(right)), "{errors:?}");
    }
}
