//! The leaders of several machines, a rank of each, with links between any two of them.
//!
//! `sums` adds up gradients; `words` is what is small, and what rank 0 tells all. Both exchange
//! messages over some of the links, in the rounds of a call.

mod sums;
mod words;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::collective::call::lengths_tag;
#[cfg(any(feature = "cuda", test))]
use crate::collective::device_group::{Control, LateRanks};
use crate::collective::exchange::Connection;
use crate::collective::links::{Exchange, Interrupts, Links, WaitHook};
use crate::collective::reduce::subtrees;
use crate::collective::{Call, Collective, Elements, Error, GradientBuffer, Op};
use crate::plan::AllReduce;
use crate::transport::Peer;
use crate::units::{Bytes, Rank, WorldSize};

/// Additional time that a leader waits for those that wait for others themselves, for each step to
/// the farthest: so that they have the time to name who is missing.
const STEP_MARGIN: Duration = Duration::from_secs(1);

/// A leader's rank, and how the ranks are distributed over machines.
#[derive(Clone, Copy)]
pub(super) struct Topology {
    pub(super) rank: Rank,
    pub(super) world: WorldSize,
    /// Ranks of each machine.
    pub(super) local: WorldSize,
}

impl Topology {
    /// The first ranks of all machines.
    fn leaders(self) -> impl Iterator<Item = Rank> {
        (0..self.world.get()).step_by(self.local.count()).map(Rank)
    }

    /// Returns the first ranks of the other machines.
    pub(super) fn others(self) -> impl Iterator<Item = Rank> {
        self.leaders().filter(move |other| *other != self.rank)
    }
}

/// One leader of the group. Where every machine has one rank, all are leaders, and this is the
/// whole group.
pub(super) struct InterNodeGroup {
    rank: Rank,
    world: WorldSize,
    /// Number of this machine.
    machine: usize,
    /// For each machine, the ranks at which the subtrees begin that it sums alone.
    starts: Vec<Vec<usize>>,
    /// Selects who adds up: we, or the library behind the links.
    adds: AllReduce,
    /// Present where its machine has more ranks.
    wait_hook: Option<WaitHook>,
    interrupts: Interrupts,
    timeout: Duration,
    /// Held for a whole call: calls of different threads follow one another.
    state: Mutex<State>,
}

/// State of a call.
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
    fn record<T>(&mut self, done: Result<T, Error>) -> Result<T, Error> {
        self.failed = done.as_ref().err().cloned();
        done
    }

    /// The sums of this leader's share, after [`InterNodeGroup::reduce_share`].
    pub(super) fn sums(&self) -> &[f32] {
        &self.parts[0]
    }
}

impl InterNodeGroup {
    /// Opens the group over connections to all other ranks, each on a machine of its own. Does not
    /// wait.
    pub(super) fn open(
        rank: Rank,
        world: WorldSize,
        peers: Vec<Peer>,
        timeout: Duration,
    ) -> Result<Self, Error> {
        Self::connected(Topology { rank, world, local: WorldSize::ONE }, peers, timeout, None)
    }

    /// Opens the group on the first rank of a machine with `topology.local` ranks, with connections
    /// to the first ranks of the other machines.
    pub(super) fn connected(
        topology: Topology,
        mut peers: Vec<Peer>,
        timeout: Duration,
        wait_hook: Option<WaitHook>,
    ) -> Result<Self, Error> {
        peers.sort_by_key(|peer| peer.rank);
        if !peers.iter().map(|peer| peer.rank).eq(topology.others()) {
            let Topology { rank, world, .. } = topology;
            let what = format!("rank {rank} of {world} has {} of them", peers.len());
            return Err(Error::Connections { what });
        }
        let connections: Vec<Connection> =
            peers.into_iter().map(Connection::open).collect::<Result<_, _>>().map_err(unusable)?;
        Self::linked(topology, Box::new(connections), timeout, wait_hook)
    }

    /// Opens the group over any links to the other leaders, in their order.
    pub(super) fn linked(
        topology: Topology,
        links: Box<dyn Links>,
        timeout: Duration,
        wait_hook: Option<WaitHook>,
    ) -> Result<Self, Error> {
        let Topology { rank, world, local } = topology;
        let starts_of = |first: Rank| {
            let ranks = first.index()..(first.index() + local.count()).min(world.count());
            subtrees(world.count(), ranks).into_iter().map(|ranks| ranks.start).collect()
        };
        let starts: Vec<Vec<usize>> = topology.leaders().map(starts_of).collect();
        let seq = 0;
        let given = false;
        let failed = None;
        let parts = vec![Vec::new(); starts.len()];
        let state = Mutex::new(State { links, seq, given, failed, parts });
        let machine = rank.index() / local.count();
        let interrupts = Interrupts::new().map_err(unusable)?;
        let adds = AllReduce::Tree;
        Ok(Self { rank, world, machine, starts, adds, wait_hook, interrupts, timeout, state })
    }

    /// Lets the library behind the links add up, if `adds` says so.
    #[cfg(feature = "mpi")]
    pub(super) fn summing_by(mut self, adds: AllReduce) -> Self {
        self.adds = adds;
        self
    }

    /// Number of machines.
    pub(super) fn machines(&self) -> usize {
        self.starts.len()
    }

    /// Number of this machine.
    pub(super) fn machine(&self) -> usize {
        self.machine
    }

    /// Tells the other machines why the group has ended, unless it has ended before.
    pub(super) fn notify(&self, error: &Error) {
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
        let Self { rank, ref interrupts, ref wait_hook, .. } = *self;
        let timeout = self.timeout + steps * STEP_MARGIN;
        Exchange { rank, call, round, interrupts, timeout, wait_hook: wait_hook.as_ref() }
    }

    /// The number of another machine among the links.
    fn link(&self, machine: usize) -> usize {
        machine - usize::from(machine > self.machine)
    }

    /// All machines but this one.
    fn others(&self) -> impl Iterator<Item = usize> {
        let me = self.machine;
        (0..self.machines()).filter(move |other| *other != me)
    }
}

#[cfg(any(feature = "cuda", test))]
impl Control for InterNodeGroup {
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

    fn late(&self) -> Option<LateRanks> {
        None
    }
}

impl Collective for InterNodeGroup {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn world_size(&self) -> WorldSize {
        self.world
    }

    fn segments(&self, lengths: &[usize]) -> Result<Vec<GradientBuffer>, Error> {
        let bytes = 4 * lengths.iter().sum::<usize>();
        let mut state = self.synchronize(Op::Segments, bytes, lengths_tag(lengths))?;
        if std::mem::replace(&mut state.given, true) {
            return Err(Error::Connections {
                what: "the segments were already given out".to_owned(),
            });
        }
        let segment = |(index, &n)| GradientBuffer::new(index, n);
        Ok(lengths.iter().enumerate().map(segment).collect())
    }

    fn all_reduce(&self, segment: &mut GradientBuffer) -> Result<(), Error> {
        self.sum(segment)
    }

    fn reduce_scatter(
        &self,
        segment: &mut GradientBuffer,
        parts: &[Elements],
    ) -> Result<(), Error> {
        self.sum_parts(segment, parts)
    }

    fn broadcast(&self, bytes: &mut [u8]) -> Result<(), Error> {
        self.send_to_all(bytes)
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let (call, mut state) = self.begin(Op::AllGather, 0, 0)?;
        let done = self.gather(&mut state, &call, Some(mine));
        state.record(done)
    }

    fn describe(&self) -> Option<String> {
        self.state().links.describe()
    }

    fn barrier(&self) -> Result<(), Error> {
        self.synchronize(Op::Barrier, 0, 0).map(|_| ())
    }

    fn abort(&self, reason: &str) {
        self.interrupts.abort(reason);
        self.notify(&Error::Aborted { by: self.rank, reason: reason.to_owned() });
    }

    fn give_up(&self) {
        self.interrupts.give_up();
    }
}

#[expect(clippy::needless_pass_by_value, reason = "fits `map_err`")]
fn unusable(error: std::io::Error) -> Error {
    Error::Connections { what: error.to_string() }
}

#[cfg(test)]
mod many_machines;
#[cfg(test)]
pub(super) mod tests;
