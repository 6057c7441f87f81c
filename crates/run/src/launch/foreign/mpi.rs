//! The ranks of an MPI launcher on several machines find each other by MPI itself, without a port
//! or a token.
//!
//! ```text
//! all ─▶ all     Whereabouts             (all-gather)
//! all ─▶ all     Hello {version, plan}   (all-gather)
//! rank 0 ─▶ all  Answer                  (broadcast: its length, then itself)
//! ```
//!
//! Then those of a machine share memory, if the launcher numbers ranks machine by machine, as many
//! on each (`whereabouts`).

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::collective::mpi::{StartError, start};
use crate::collective::{self, Collective};
use crate::launch::error_report::host;
use crate::launch::foreign::local_rendezvous::{self, Host, RankWait, RendezvousError, Shared};
use crate::launch::foreign::whereabouts::{Whereabouts, are_by_machine};
use crate::launch::machines::compatibility;
use crate::launch::prepared_run::{NoRun, NotPrepared, PreparedRun};
use crate::launch::rank::env::{Foreign, mpi_launcher};
use crate::launch::rank::link::Link;
use crate::launch::rank::membership::Membership;
use crate::launch::rank::peer_monitor::PeerMonitor;
use crate::plan::{Plan, RankPlan};
use crate::transport::build_id;
use crate::units::WorldSize;

/// Longest wait of a rank for rank 0 to prepare the run, which may have to generate data.
const PREPARE_TIMEOUT: Duration = Duration::from_mins(15);

/// Why the ranks did not find each other.
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

/// What each rank tells.
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
pub(in crate::launch) fn start_mpi(foreign: &Foreign) -> Result<(), StartError> {
    let launcher = mpi_launcher().ok_or(StartError::NoLauncher)?;
    start(&launcher, foreign.rank, foreign.world)
}

/// Starts MPI in this rank, and finds out together with all others which of them share a machine.
/// No rank waits longer than `timeout` for another.
///
/// # Errors
///
/// As [`MpiJoinError`].
pub fn place_by_mpi<E>(foreign: &Foreign, timeout: Duration) -> Result<Foreign, MpiJoinError<E>> {
    start_mpi(foreign)?;
    let group = collective::open_mpi(foreign.rank, foreign.world, timeout)?;
    let mine = serde_json::to_vec(&Whereabouts::of(foreign)).unwrap_or_default();
    let all = group.all_gather(&mine)?;
    let all: Option<Vec<_>> = all.iter().map(|one| serde_json::from_slice(one).ok()).collect();
    // Another version of ddprun is named later.
    let by_machine = all.is_some_and(|all| are_by_machine(&all));
    Ok(Foreign { by_machine, ..foreign.clone() })
}

/// Joins this rank with those of all machines, after [`place_by_mpi`]. Rank 0 prepares the run by
/// `prepare` once all plans are known to be the same, and sends it to the others.
///
/// # Errors
///
/// As [`MpiJoinError`].
pub fn join_by_mpi<E: NotPrepared>(
    foreign: &Foreign,
    plan: &Plan,
    prepare: impl FnOnce() -> Result<PreparedRun, E>,
) -> Result<Membership, MpiJoinError<E>> {
    let Foreign { rank, world, restarts, .. } = *foreign;
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
    let Shared { memory: shm, peer_monitor } = share_machine(foreign, &prepared)?;
    let PreparedRun { plan: first, folders: run, resume } = prepared;
    let plan = compatibility::adapted(&first, plan);
    let link = Link::open(None, None, peer_monitor, rank, run.logs.clone());
    let link = link.map_err(MpiJoinError::Thread)?;
    // The launcher does not tell why it started the group again.
    let rank_plan = RankPlan { plan, rank, run, resume, restarts, causes: vec![] };
    Ok(Membership { rank_plan, shm, peers: vec![], link })
}

/// What the ranks of this machine share.
fn share_machine(foreign: &Foreign, prepared: &PreparedRun) -> Result<Shared, RendezvousError> {
    if foreign.machine().count == WorldSize::ONE {
        return Ok(Shared { memory: None, peer_monitor: PeerMonitor::default() });
    }
    if foreign.is_first_of_machine() {
        return Host::open(foreign)?.welcome(prepared, |_| ());
    }
    let longest = prepared.plan.distributed.timeout;
    local_rendezvous::join(foreign, RankWait { longest, ..RankWait::default() })
        .map(|(_, shared)| shared)
}

/// Rank 0's answer, and why it has no run.
fn answer<E: NotPrepared>(
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

/// Why a rank does not belong to this run, if so.
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
