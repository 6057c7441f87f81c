//! The ranks of an MPI launcher on several machines find each other by MPI itself, without a port
//! or a token.
//!
//! ```text
//! all ─▶ all     RankPlacement             (all-gather)
//! all ─▶ all     Hello {version, plan}   (all-gather)
//! rank 0 ─▶ all  Answer                  (broadcast: its length, then itself)
//! ```
//!
//! Then those of a machine share memory, if the launcher numbers ranks machine by machine, as many
//! on each ([`are_by_machine`]).

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::collective::mpi::{StartError, start};
use crate::collective::{self, Collective};
use crate::launch::error_report::host;
use crate::launch::foreign::local_rendezvous::{self, Host, LocalGroup, RankWait, RendezvousError};
use crate::launch::machines::compatibility;
use crate::launch::messages::{NoRun, PrepareError, PreparedRun};
use crate::launch::rank::env::{ExternalRank, mpi_launcher};
use crate::launch::rank::link::Membership;
use crate::launch::rank::peer_monitor::PeerMonitor;
use crate::plan::Plan;
use crate::transport::build_id;
use crate::units::{Rank, WorldSize};

/// Longest wait of a rank for rank 0 to prepare the run, which may have to generate data.
const PREPARE_TIMEOUT: Duration = Duration::from_mins(15);

/// A failed rendezvous by MPI.
#[derive(Debug, thiserror::Error)]
pub enum MpiJoinError<E> {
    /// This is rank 0, and it could not prepare the run. The others were told.
    #[error(transparent)]
    Prepare(E),
    /// MPI cannot be used.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A rank is gone, or late.
    #[error(transparent)]
    Group(#[from] collective::Error),
    /// The ranks of this machine did not find each other.
    #[error(transparent)]
    Machine(#[from] RendezvousError),
    /// The ranks do not fit together, or there is no run.
    #[error("{0}")]
    Refused(NoRun),
    /// No thread is left.
    #[error("this rank cannot listen to signals: {0}")]
    Thread(std::io::Error),
}

/// A rank's contribution to the first all-gather.
#[derive(Serialize, Deserialize)]
struct Hello {
    version: String,
    host: String,
    plan: serde_json::Value,
}

/// Rank 0's answer.
#[derive(Serialize, Deserialize)]
enum Answer {
    Welcome(Box<PreparedRun>),
    Refused(NoRun),
}

/// Initialises MPI in a rank that an MPI launcher started.
pub(in crate::launch) fn start_mpi(foreign: &ExternalRank) -> Result<(), StartError> {
    let launcher = mpi_launcher().ok_or(StartError::NoLauncher)?;
    start(&launcher, foreign.rank, foreign.world)
}

/// Starts MPI in this rank, and finds out together with all others which of them share a machine.
/// No rank waits longer than `timeout` for another.
///
/// # Errors
///
/// See [`MpiJoinError`].
pub fn place_by_mpi<E>(
    foreign: &ExternalRank,
    timeout: Duration,
) -> Result<ExternalRank, MpiJoinError<E>> {
    start_mpi(foreign)?;
    let group = collective::open_mpi(foreign.rank, foreign.world, timeout)?;
    let mine = serde_json::to_vec(&RankPlacement::of(foreign)).unwrap_or_default();
    let all = group.all_gather(&mine)?;
    let all: Option<Vec<_>> = all.iter().map(|one| serde_json::from_slice(one).ok()).collect();
    // Another version of ddprun is named later.
    let by_machine = all.is_some_and(|all| are_by_machine(&all));
    Ok(ExternalRank { by_machine, ..foreign.clone() })
}

/// Joins this rank with those of all machines, after [`place_by_mpi`]. Rank 0 prepares the run by
/// `prepare` once all plans are known to be the same, and sends it to the others.
///
/// # Errors
///
/// See [`MpiJoinError`].
pub fn join_by_mpi<E: PrepareError>(
    foreign: &ExternalRank,
    plan: &Plan,
    prepare: impl FnOnce() -> Result<PreparedRun, E>,
) -> Result<Membership, MpiJoinError<E>> {
    let ExternalRank { rank, world, .. } = *foreign;
    let timeout = plan.distributed.timeout;
    let group = collective::open_mpi(rank, world, timeout)?;
    let prepares = collective::open_mpi(rank, world, timeout + PREPARE_TIMEOUT)?;
    let plan_as_json = serde_json::to_value(plan).unwrap_or_default();
    let hello = Hello { version: build_id().to_owned(), host: host(), plan: plan_as_json };
    let hellos = group.all_gather(&serde_json::to_vec(&hello).unwrap_or_default())?;
    let answer = if rank.is_first() {
        let (answer, failed) = answer(&hellos, plan, prepare);
        let mut bytes = serde_json::to_vec(&answer).unwrap_or_default();
        prepares.broadcast(&mut (bytes.len() as u64).to_le_bytes())?;
        prepares.broadcast(&mut bytes)?;
        if let Some(error) = failed {
            return Err(MpiJoinError::Prepare(error));
        }
        answer
    } else {
        receive(prepares.as_ref())?
    };
    let prepared = match answer {
        Answer::Welcome(prepared) => *prepared,
        Answer::Refused(why) => return Err(MpiJoinError::Refused(why)),
    };
    let LocalGroup { memory, peer_monitor } = share_machine(foreign, &prepared)?;
    let prepared = PreparedRun { plan: compatibility::adapted(&prepared.plan, plan), ..prepared };
    let membership = Membership::of_foreign(foreign, prepared, memory, vec![], peer_monitor);
    membership.map_err(MpiJoinError::Thread)
}

/// Shares memory with the other ranks of this machine, if there are any.
fn share_machine(
    foreign: &ExternalRank,
    prepared: &PreparedRun,
) -> Result<LocalGroup, RendezvousError> {
    if foreign.machine().count == WorldSize::ONE {
        return Ok(LocalGroup { memory: None, peer_monitor: PeerMonitor::default() });
    }
    if foreign.is_first_of_machine() {
        return Host::open(foreign)?.welcome(prepared, |_| ());
    }
    let longest = prepared.plan.distributed.timeout;
    local_rendezvous::join(foreign, RankWait { longest, ..RankWait::default() })
        .map(|(_, shared)| shared)
}

/// Rank 0's answer, and why it has no run.
fn answer<E: PrepareError>(
    hellos: &[Vec<u8>],
    plan: &Plan,
    prepare: impl FnOnce() -> Result<PreparedRun, E>,
) -> (Answer, Option<E>) {
    let mut others = hellos.iter().enumerate().skip(1);
    if let Some(reason) = others.find_map(|(rank, hello)| objection(rank, hello, plan)) {
        return (Answer::Refused(NoRun::unfit(reason)), None);
    }
    match prepare() {
        Ok(prepared) => (Answer::Welcome(Box::new(prepared)), None),
        Err(error) => (Answer::Refused(NoRun::of("rank 0", &error)), Some(error)),
    }
}

/// The reason why a rank does not belong to this run, if any.
fn objection(rank: usize, hello: &[u8], plan: &Plan) -> Option<String> {
    let Ok(hello) = serde_json::from_slice::<Hello>(hello) else {
        return Some(format!("rank {rank} is another version of ddprun than rank 0"));
    };
    let why = if hello.version == build_id() {
        compatibility::objection(plan, &hello.plan)
    } else {
        Some(format!("it is ddprun {}, but rank 0 is {}", hello.version, build_id()))
    };
    why.map(|why| format!("rank {rank} ({}): {why}", hello.host))
}

/// Another rank waits for rank 0 to prepare the run.
fn receive<E>(group: &dyn Collective) -> Result<Answer, MpiJoinError<E>> {
    let mut length = [0; 8];
    group.broadcast(&mut length)?;
    let mut bytes = vec![0; u64::from_le_bytes(length) as usize];
    group.broadcast(&mut bytes)?;
    let unread = |error| {
        MpiJoinError::Refused(NoRun::unfit(format!("rank 0's answer cannot be read: {error}")))
    };
    serde_json::from_slice(&bytes).map_err(unread)
}

/// The place that the launcher gave to a rank, and the machine that the rank finds itself on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RankPlacement {
    local_rank: Rank,
    local_world: WorldSize,
    /// Equal on ranks that can reach each other by a socket in memory.
    machine: String,
}

impl RankPlacement {
    fn of(foreign: &ExternalRank) -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let network = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
        let machine = format!("{}/{}/{}", host(), boot.trim(), network.display());
        let ExternalRank { local_rank, local_world, .. } = *foreign;
        Self { local_rank, local_world, machine }
    }
}

/// True if the launcher numbered the ranks (`all`, in their order) machine by machine, equally many
/// on each, and ranks of one machine agree on which one it is.
fn are_by_machine(all: &[RankPlacement]) -> bool {
    let Some(count) = all.first().map(|first| first.local_world.count()) else { return false };
    let is_in_place = |(rank, own): (usize, &RankPlacement)| {
        own.local_world.count() == count
            && own.local_rank.index() == rank % count
            && own.machine == all[rank - rank % count].machine
    };
    count > 1 && all.len().is_multiple_of(count) && all.iter().enumerate().all(is_in_place)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranks by their number on their machine, those of it, and its name.
    fn are(all: &[(u32, u32, &str)]) -> bool {
        let place = |&(local_rank, local_world, machine): &(u32, u32, &str)| RankPlacement {
            local_rank: Rank(local_rank),
            local_world: WorldSize::new(local_world).unwrap(),
            machine: machine.to_owned(),
        };
        are_by_machine(&all.iter().map(place).collect::<Vec<_>>())
    }

    #[test]
    fn ranks_share_memory_if_all_machines_have_as_many_in_order() {
        assert!(are(&[(0, 2, "a"), (1, 2, "a"), (0, 2, "b"), (1, 2, "b")]));
        assert!(are(&[(0, 3, "a"), (1, 3, "a"), (2, 3, "a")]));
        assert!(!are(&[(0, 2, "a"), (0, 2, "b"), (1, 2, "a"), (1, 2, "b")]), "by turns");
        assert!(!are(&[(0, 2, "a"), (1, 2, "a"), (0, 1, "b")]), "fewer on the last");
        assert!(!are(&[(0, 2, "a"), (1, 2, "c"), (0, 2, "b"), (1, 2, "b")]), "of two machines");
        assert!(!are(&[(0, 1, "a"), (0, 1, "b")]), "one on each");
        assert!(!are(&[]));
    }
}
