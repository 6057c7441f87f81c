//! A run on several machines: this machine's part of it (docs/machines.md).

use crate::cli::no_place::no_place;
use crate::cli::output::to_stderr;
use crate::cli::prepare::{OwnedRun, join_run};
use crate::cli::refusal::Refusal;
use crate::cli::relaunch;
use crate::cli::request::RunRequest;
use crate::cli::supervise::{Launched, take_part, watch};
use crate::files;
use crate::kinds::Kinds;
use crate::launch::exit_code as exit;
use crate::launch::rank_env::Foreign;
use crate::launch::{
    self, FirstOfMachine, JoinError, MpiJoinError, NoRun, NodeConfig, NodeRendezvousError,
    PreparedRun,
};
use crate::plan::RunFolders;
use crate::units::Rank;

/// This machine's part of a run: meets the others, and runs its own ranks. Node 0 makes the run's
/// folders.
pub(crate) fn train(
    place: &NodeConfig,
    request: &RunRequest,
    kinds: &Kinds,
) -> Result<Launched, Refusal> {
    let plan = &request.prepared.plan;
    let smaller = request.prepared.smaller(kinds)?;
    let mut owned = None;
    let make = make(request, &mut owned);
    let met = launch::join_nodes(place, plan, &smaller, make, &mut |line| to_stderr(line));
    let (prepared, mut nodes) = met.map_err(apart)?;
    let PreparedRun { plan, folders, resume } = prepared;
    let mut run = owned_or_joined(owned, &folders, request)?;
    run.is_resumed = resume;
    if place.node > 0 {
        let ranks: Vec<Rank> = nodes.ranks().collect();
        let names: Vec<String> = ranks.iter().map(ToString::to_string).collect();
        let (names, logs) = (names.join(", "), run.folders.logs.display());
        to_stderr(&format!(
            "node {} of {}: rank {names}; node 0 shows the progress; the logs of these ranks are \
             in {logs}",
            place.node, place.nodes
        ));
    }
    watch(plan, vec![], run, Some(&mut nodes))
}

/// The first rank of another launcher on this machine, which meets those of the other machines by
/// what `request` prepares. Rank 0 makes the run's folders.
pub(crate) fn train_launched(
    foreign: &Foreign,
    place: &NodeConfig,
    request: impl FnOnce() -> Result<RunRequest, Refusal>,
    kinds: &Kinds,
) -> Result<Launched, Refusal> {
    let opened = FirstOfMachine::open(foreign);
    let first = opened.map_err(|error: JoinError<Refusal>| no_place(&error))?;
    let request = request().inspect_err(|refusal| first.refuse(refusal))?;
    let plan = &request.prepared.plan;
    let mut owned = None;
    let make = make(&request, &mut owned);
    let met = first.meet(place, plan, make, &mut |line| to_stderr(line)).map_err(apart)?;
    // Rank 0 holds the run's lock as long as it lives.
    let run = owned_or_joined(owned, &met.prepared.folders, &request);
    let run = run.inspect_err(|refusal| first.refuse(refusal))?;
    let membership = first.welcome(met, to_stderr);
    let membership = membership.map_err(|error: JoinError<Refusal>| no_place(&error))?;
    Ok(take_part(membership, run, kinds))
}

/// A rank of an MPI launcher, which meets those of all machines by MPI. `request` is planned as if
/// each rank were on a machine of its own. Rank 0 makes the run's folders.
pub(crate) fn train_by_mpi(
    apart: &Foreign,
    mut request: RunRequest,
    kinds: &Kinds,
) -> Result<Launched, Refusal> {
    let timeout = request.prepared.plan.distributed.timeout;
    let foreign = launch::place_by_mpi(apart, timeout).map_err(apart_by_mpi)?;
    request.prepared.share_machines(&foreign, kinds)?;
    let mut owned = None;
    let make = make(&request, &mut owned);
    let plan = &request.prepared.plan;
    let membership = launch::join_by_mpi(&foreign, plan, || make(None)).map_err(apart_by_mpi)?;
    // Rank 0 holds the run's lock as long as it lives.
    let run = owned_or_joined(owned, &membership.rank_plan.run, &request)?;
    Ok(take_part(membership, run, kinds))
}

fn apart_by_mpi(error: MpiJoinError<Refusal>) -> Refusal {
    let (code, help) = match &error {
        MpiJoinError::Prepare(_) | MpiJoinError::Thread(_) => (exit::RESOURCE, None),
        MpiJoinError::Start(why) => (exit::REFUSED, Some(why.help())),
        MpiJoinError::Refused(why) => (
            why.exit_code,
            Some("give all ranks the same program, experiment and data at the same paths"),
        ),
        MpiJoinError::Group(_) | MpiJoinError::Machine(_) => (exit::PEER, None),
    };
    match error {
        MpiJoinError::Prepare(refusal) => refusal,
        MpiJoinError::Refused(why) if why.exit_code == exit::OK => nothing_to_do(&why),
        error => Refusal::of(code, &error, help.map(str::to_owned)),
    }
}

/// The first process of all has ended well without a run.
fn nothing_to_do(why: &NoRun) -> Refusal {
    Refusal::new(exit::OK, &why.reason)
}

/// Makes the run where this process is the first of all, and leaves it in `owned`; that with the id
/// which the other machines continue, if they have lost the one that had made it.
fn make<'a>(
    request: &'a RunRequest,
    owned: &'a mut Option<OwnedRun>,
) -> impl FnOnce(Option<&str>) -> Result<PreparedRun, Refusal> + 'a {
    move |continued| {
        let run = owned.insert(relaunch::open(request, continued)?);
        Ok(run.for_ranks(request.prepared.plan.clone()))
    }
}

/// The run that this process made, or its part of the run that the first one made.
fn owned_or_joined(
    owned: Option<OwnedRun>,
    folders: &RunFolders,
    request: &RunRequest,
) -> Result<OwnedRun, Refusal> {
    if let Some(run) = owned {
        return Ok(run);
    }
    let run = join_run(folders.clone(), &request.prepared, request.other_data())?;
    if files::lock_holder(&folders.logs).is_none() {
        // The folder is this machine's own, and the run is to be found again here too.
        relaunch::note(folders, &request.prepared)?;
    }
    Ok(run)
}

/// Why the machines did not meet.
pub(crate) fn apart(error: NodeRendezvousError<Refusal>) -> Refusal {
    let (code, help) = match error {
        NodeRendezvousError::Prepare(refusal) => return refusal,
        NodeRendezvousError::Refused(why) if why.exit_code == exit::OK => {
            return nothing_to_do(&why);
        }
        NodeRendezvousError::Refused(ref why) => (
            why.exit_code,
            "start the same program with the same experiment and flags on all machines",
        ),
        NodeRendezvousError::CalledOff { .. } => (exit::PEER, "start it again on all machines"),
        NodeRendezvousError::Unauthenticated { .. } => (
            exit::PEER,
            "copy node 0's token file to this machine, and make sure that nothing else uses the \
             port",
        ),
        NodeRendezvousError::Missing { .. }
        | NodeRendezvousError::Io { .. }
        | NodeRendezvousError::BrokenOff { .. } => (
            exit::PEER,
            "make sure that all machines were started and can reach each other, with no firewall \
             between them",
        ),
    };
    Refusal::of(code, &error, Some(help.to_owned()))
}
