//! A run on several machines: this machine's part of it (docs/machines.md).

use std::path::Path;
use std::{fmt, io};

use crate::files;
use crate::kinds::Kinds;
use crate::launch::rank_env::ExternalRank;
use crate::launch::{
    self, FirstOfMachine, JoinError, MpiJoinError, NoRun, NodeConfig, NodeRendezvousError,
    PreparedRun, RendezvousError,
};
use crate::plan::RunFolders;
use crate::record::to_stderr;
use crate::session::request::{self, RunRequest};
use crate::session::run_folder::{OwnedRun, join_run};
use crate::session::supervise::{Launched, take_part, watch};
use crate::transport::{self, Key};
use crate::units::Rank;
use crate::user_error::{ErrorPage, ExitCode, UserError};

/// The place of the machine of a rank that another launcher started beside ranks of other machines,
/// if they may meet.
pub(crate) fn launched_place(foreign: &ExternalRank) -> Result<Option<NodeConfig>, ErrorPage> {
    let Some(endpoint) = &foreign.rendezvous else { return Ok(None) };
    let (node, nodes, port) = (foreign.node(), foreign.nodes(), endpoint.port);
    let token = read_token(&endpoint.token_file)?;
    Ok(Some(NodeConfig { node, nodes, master: endpoint.master.clone(), port, token }))
}

/// The token that authenticates the machines of a run.
pub fn read_token(file: &Path) -> Result<Key, ErrorPage> {
    transport::read_token(file).map_err(|error| {
        let help = "generate one with `ddprun token FILE`; run `chmod 600` on copies";
        ErrorPage::of(ExitCode::Refused, &error).help(help)
    })
}

/// This machine's part of a run: meets the others, and runs its own ranks. Node 0 makes the run's
/// folders.
pub(crate) fn train(
    place: &NodeConfig,
    request: &RunRequest,
    kinds: &Kinds,
) -> Result<Launched, ErrorPage> {
    let plan = &request.prepared.plan;
    let smaller = request.prepared.smaller(kinds)?;
    let mut owned = None;
    let make = make(request, &mut owned);
    let met = launch::join_nodes(place, plan, &smaller, make, &mut |line| to_stderr(line));
    let (prepared, mut nodes) = met.map_err(rendezvous_page)?;
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
    foreign: &ExternalRank,
    place: &NodeConfig,
    request: impl FnOnce() -> Result<RunRequest, ErrorPage>,
    kinds: &Kinds,
) -> Result<Launched, ErrorPage> {
    let opened = FirstOfMachine::open(foreign);
    let first = opened.map_err(|error: JoinError<ErrorPage>| join_page(&error))?;
    let request = request().inspect_err(|refusal| first.refuse(refusal))?;
    let plan = &request.prepared.plan;
    let mut owned = None;
    let make = make(&request, &mut owned);
    let met =
        first.meet(place, plan, make, &mut |line| to_stderr(line)).map_err(rendezvous_page)?;
    // Rank 0 holds the run's lock as long as it lives.
    let run = owned_or_joined(owned, &met.prepared.folders, &request);
    let run = run.inspect_err(|refusal| first.refuse(refusal))?;
    let membership = first.welcome(met, to_stderr);
    let membership = membership.map_err(|error: JoinError<ErrorPage>| join_page(&error))?;
    Ok(take_part(membership, run, kinds))
}

/// A rank of an MPI launcher, which meets those of all machines by MPI. `request` is planned as if
/// each rank were on a machine of its own. Rank 0 makes the run's folders.
pub(crate) fn train_by_mpi(
    apart: &ExternalRank,
    mut request: RunRequest,
    kinds: &Kinds,
) -> Result<Launched, ErrorPage> {
    let timeout = request.prepared.plan.distributed.timeout;
    let foreign = launch::place_by_mpi(apart, timeout).map_err(mpi_join_page)?;
    request.prepared.share_machines(&foreign, kinds)?;
    let mut owned = None;
    let make = make(&request, &mut owned);
    let plan = &request.prepared.plan;
    let membership = launch::join_by_mpi(&foreign, plan, || make(None)).map_err(mpi_join_page)?;
    // Rank 0 holds the run's lock as long as it lives.
    let run = owned_or_joined(owned, &membership.rank_plan.run, &request)?;
    Ok(take_part(membership, run, kinds))
}

fn mpi_join_page(error: MpiJoinError<ErrorPage>) -> ErrorPage {
    let (code, help) = match &error {
        MpiJoinError::Prepare(_) | MpiJoinError::Thread(_) => (ExitCode::Resource, None),
        MpiJoinError::Start(why) => (ExitCode::Refused, why.help()),
        MpiJoinError::Refused(why) => (
            why.exit_code,
            Some(
                "give all ranks the same program, experiment and data at the same paths".to_owned(),
            ),
        ),
        MpiJoinError::Group(_) | MpiJoinError::Machine(_) => (ExitCode::Peer, None),
    };
    match error {
        MpiJoinError::Prepare(refusal) => refusal,
        MpiJoinError::Refused(why) if why.exit_code == ExitCode::Ok => nothing_to_do(&why),
        error => {
            let page = ErrorPage::of(code, &error);
            help.into_iter().fold(page, ErrorPage::help)
        }
    }
}

/// The first process of all has ended well without a run.
fn nothing_to_do(why: &NoRun) -> ErrorPage {
    ErrorPage::new(ExitCode::Ok, &why.reason)
}

/// Makes the run where this process is the first of all, and leaves it in `owned`; that with the id
/// which the other machines continue, if they have lost the one that had made it.
fn make<'a>(
    request: &'a RunRequest,
    owned: &'a mut Option<OwnedRun>,
) -> impl FnOnce(Option<&str>) -> Result<PreparedRun, ErrorPage> + 'a {
    move |continued| {
        let run = owned.insert(request.open(continued)?);
        Ok(run.for_ranks(request.prepared.plan.clone()))
    }
}

/// The run that this process made, or its part of the run that the first one made.
fn owned_or_joined(
    owned: Option<OwnedRun>,
    folders: &RunFolders,
    request: &RunRequest,
) -> Result<OwnedRun, ErrorPage> {
    if let Some(run) = owned {
        return Ok(run);
    }
    let run = join_run(folders.clone(), &request.prepared, request.other_data())?;
    if files::lock_holder(&folders.logs).is_none() {
        // The folder is this machine's own, and the run is to be found again here too.
        request::write_launches(folders, &request.prepared)?;
    }
    Ok(run)
}

/// The error page for machines that did not meet.
pub fn rendezvous_page(error: NodeRendezvousError<ErrorPage>) -> ErrorPage {
    let (code, help) = match error {
        NodeRendezvousError::Prepare(refusal) => return refusal,
        NodeRendezvousError::Refused(why) if why.exit_code == ExitCode::Ok => {
            return nothing_to_do(&why);
        }
        NodeRendezvousError::Refused(ref why) => (
            why.exit_code,
            "start the same program with the same experiment and flags on all machines",
        ),
        NodeRendezvousError::CalledOff { .. } => (ExitCode::Peer, "start it again on all machines"),
        NodeRendezvousError::Unauthenticated { .. } => (
            ExitCode::Peer,
            "copy node 0's token file to this machine, and make sure that nothing else uses the \
             port",
        ),
        NodeRendezvousError::Missing { .. }
        | NodeRendezvousError::Io { .. }
        | NodeRendezvousError::BrokenOff { .. } => (
            ExitCode::Peer,
            "make sure that all machines were started and can reach each other, with no firewall \
             between them",
        ),
    };
    ErrorPage::of(code, &error).help(help)
}

/// The error page for a rank that does not find its group.
pub fn join_page<E: fmt::Display>(error: &JoinError<E>) -> ErrorPage {
    let code = match error {
        JoinError::Prepare(_)
        | JoinError::NotARank
        | JoinError::SeveralMachines { .. }
        | JoinError::OtherWorld { .. }
        | JoinError::Mpi(_) => ExitCode::Refused,
        // Rank 0 says why.
        JoinError::Rendezvous(RendezvousError::Refused(why)) => why.exit_code,
        JoinError::Inherited { source, .. } if is_lack(source) => ExitCode::Resource,
        JoinError::Inherited { .. } | JoinError::Rendezvous(_) => ExitCode::Peer,
    };
    let why = match error {
        JoinError::Inherited { source, .. } => format!("\n  why: {source}"),
        JoinError::Rendezvous(RendezvousError::Missing { .. }) => {
            "\n  do: look in the output of the launcher and of the other ranks for why they did \
             not start, or wait longer with a larger `distributed.timeout`"
                .to_owned()
        }
        JoinError::Mpi(error) => format!("\n  do: {}", error.help().unwrap_or_default()),
        _ => String::new(),
    };
    if code == ExitCode::Ok {
        // There is nothing to do.
        return ErrorPage::new(code, error.to_string());
    }
    ErrorPage::new(code, format!("error: {error}{why}"))
}

/// True if the system has no thread, descriptor or memory left.
fn is_lack(error: &io::Error) -> bool {
    let lacks = [libc::EAGAIN, libc::ENOMEM, libc::EMFILE, libc::ENFILE];
    error.raw_os_error().is_some_and(|errno| lacks.contains(&errno))
}
