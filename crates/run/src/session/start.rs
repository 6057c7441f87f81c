//! A start of ranks: as their launcher on this machine or on one of several, or as one of them
//! under a foreign launcher.

use std::fmt;
use std::time::Duration;

use crate::config::values::Auto;
use crate::kinds::Kinds;
use crate::launch::rank_env::{ExternalRank, mpi_launcher};
use crate::launch::{self, JoinError, NodeConfig, PrepareError, RankWait, Role};
use crate::plan::MpiFacts;
use crate::record::to_stderr;
use crate::session::nodes::{self, join_page};
use crate::session::prepare::{LaunchOrigin, Prepared};
use crate::session::request::RunRequest;
use crate::session::run_folder::OwnedRun;
use crate::session::supervise::{Launched, take_part, watch};
use crate::terminal::counted;
use crate::user_error::{ErrorPage, ExitCode};

/// Runs what `make` prepares, in this `role`: with ranks of our own, on this machine or on several,
/// or as a rank of the launcher that started us. Only one process makes the run; `timeout` is
/// `distributed.timeout`, as far as the others know it.
pub fn launch(
    place: Option<NodeConfig>,
    role: &Role,
    make: impl FnOnce(LaunchOrigin<'_>) -> Result<RunRequest, ErrorPage>,
    timeout: &dyn Fn() -> Option<Duration>,
    kinds: &Kinds,
) -> Result<Launched, ErrorPage> {
    match (role, place) {
        (Role::Foreign(launched), None) => match nodes::launched_place(launched)? {
            Some(place) if launched.is_first_of_machine() => nodes::train_launched(
                launched,
                &place,
                || make(LaunchOrigin { role, nodes: place.nodes }),
                kinds,
            ),
            None if launched.world != launched.local_world && mpi_launcher().is_some() => {
                // Which ranks share a machine is found out by MPI, once a plan uses it.
                let apart = launched.apart();
                let role = Role::Foreign(apart.clone());
                let request = make(LaunchOrigin { role: &role, nodes: apart.nodes() })?;
                if request.prepared.plan.distributed.meets_by_mpi() {
                    nodes::train_by_mpi(&apart, request, kinds)
                } else {
                    Err(several_machines(launched, &request))
                }
            }
            _ => foreign(make, role, launched, timeout, kinds),
        },
        (Role::Foreign(_), Some(_)) => {
            let page = "error: another launcher has started this process, and `--nnodes` asks for \
                        several machines\n  do: start `ddprun --nnodes` on each machine by \
                        itself, without a launcher";
            Err(ErrorPage::new(ExitCode::Refused, page))
        }
        (_, Some(place)) => {
            let request = make(LaunchOrigin { role, nodes: place.nodes })?;
            if let Some(shards) = shards_of_world(&request.prepared).filter(|_| place.node == 0) {
                let world = request.prepared.plan.distributed.world_size.get();
                to_stderr(&format!("{} in all: {shards}", counted(world.into(), "rank")));
            }
            nodes::train(&place, &request, kinds)
        }
        (_, None) => {
            let request = make(LaunchOrigin { role, nodes: 1 })?;
            let run = request.open(None)?;
            let smaller = request.prepared.smaller(kinds)?;
            let Prepared { plan, source, .. } = request.prepared;
            let mut launched = watch(plan, smaller, run, None)?;
            launched.sample_tokens = source.sample_tokens();
            Ok(launched)
        }
    }
}

/// Ranks on several machines whose plan does not use MPI, and which were given no token.
fn several_machines(launched: &ExternalRank, request: &RunRequest) -> ErrorPage {
    let ExternalRank { world, local_world, .. } = *launched;
    let error = JoinError::<Never>::SeveralMachines { world, local_world };
    let why = match &request.prepared.facts.mpi {
        Some(MpiFacts::Unusable { why, .. }) => format!("\n  why: {why}"),
        _ => String::new(),
    };
    ErrorPage::new(ExitCode::Refused, format!("error: {error}{why}"))
}

/// Only rank 0 of a foreign launcher makes a run; `worker` never does.
pub struct Never;

impl fmt::Display for Never {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`ddprun worker` is started by ddprun itself")
    }
}

impl PrepareError for Never {}

/// A rank of torchrun, srun or mpirun: rank 0 makes the run, all train, only the launcher watches.
fn foreign(
    make: impl FnOnce(LaunchOrigin<'_>) -> Result<RunRequest, ErrorPage>,
    role: &Role,
    place: &ExternalRank,
    timeout: &dyn Fn() -> Option<Duration>,
    kinds: &Kinds,
) -> Result<Launched, ErrorPage> {
    let mut wait = RankWait { say: to_stderr, ..RankWait::default() };
    if !place.is_first_of_machine() {
        wait.longest = timeout().unwrap_or(wait.longest);
    }
    // Rank 0 holds the run's lock as long as it lives.
    let mut owned = None;
    let joined = launch::join_within(role, wait, || {
        let request = make(LaunchOrigin { role, nodes: 1 })?;
        say_overridden(place, &request.prepared);
        let run = owned.insert(request.open(None)?);
        Ok::<_, ErrorPage>(run.for_ranks(request.prepared.plan))
    });
    let membership = match joined {
        Err(JoinError::Prepare(refusal)) => return Err(refusal),
        joined => joined.map_err(|error| join_page(&error))?,
    };
    let run = owned.unwrap_or_else(|| OwnedRun::of_another(membership.rank_plan.run.clone()));
    Ok(take_part(membership, run, kinds))
}

/// Prints that the launcher's number of ranks counts, and not the experiment's.
fn say_overridden(place: &ExternalRank, prepared: &Prepared) {
    let (devices, world) = (&prepared.loaded.experiment.distributed.devices, place.world.get());
    if let Some(devices) = devices.count().filter(|devices| *devices != world) {
        let ranks = counted(world.into(), "rank");
        let shards =
            shards_of_world(prepared).map_or(String::new(), |shards| format!("; {shards}"));
        to_stderr(&format!(
            "the launcher started {ranks}, which overrides `distributed.devices = \
             {devices}`{shards}"
        ));
    }
}

/// A line about `distributed.shards = "auto"`, for several machines or a launcher, which decide the
/// number of ranks.
fn shards_of_world(prepared: &Prepared) -> Option<String> {
    let shards = prepared.plan.batch.shards.get();
    let is_auto = prepared.loaded.experiment.distributed.shards == Auto::Auto;
    is_auto.then(|| format!("`distributed.shards = \"auto\"` is {shards}, one for each rank"))
}
