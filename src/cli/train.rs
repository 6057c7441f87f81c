//! Training: as the parent of all ranks, as one of its ranks, or as a rank of a foreign launcher.

use std::fmt;
use std::io;
use std::path::Path;

use crate::checkpoint;
use crate::cli::args::{Launch, Run};
use crate::cli::going_on::GoingOn;
use crate::cli::kept::OtherData;
use crate::cli::prepare::{Origin, OwnedRun, Prepared, open_run, prepare, warn_about};
use crate::cli::{Refusal, machines, relaunch, sample, to_stderr};
use crate::config::kind::Kind;
use crate::files;
use crate::kinds::Kinds;
use crate::launch::rank_env::Foreign;
use crate::launch::{
    self, Console, JoinError, Membership, Nodes, Note, PreparedRun, Program, RendezvousError, Role,
    Start, Stop,
};
use crate::plan::{Plan, RunFolders};
use crate::record::Curves;
use crate::report;
use crate::units::Rank;
use crate::worker::{self, exit};

/// `ddprun x.toml [key=value ...]`
pub(crate) fn train(args: &Run, kinds: &Kinds) -> Result<u8, Refusal> {
    let path = args.experiment.clone().unwrap_or_default();
    let make = |origin: Origin<'_>| {
        let prepared = prepare(&path, &args.all_changes(), origin, kinds)?;
        warn_about(&prepared);
        Ok(Asked { prepared, going_on: None })
    };
    start(&args.launch, &role()?, make, kinds)
}

/// What is to be run.
pub(crate) struct Asked {
    pub(crate) prepared: Prepared,
    /// The run that goes on; a new one has no folders yet.
    pub(crate) going_on: Option<GoingOn>,
}

impl Asked {
    /// Makes the run's folders, or takes possession of those of the run that goes on: as was asked, or because a launcher
    /// has started its ranks again. Says whether it goes on.
    pub(crate) fn open(&self, kinds: &Kinds) -> Result<(OwnedRun, bool), Refusal> {
        let (prepared, launches) = (&self.prepared, launch::launch_ids());
        let going_on = match &self.going_on {
            Some(run) => Some(run.clone()),
            None => relaunch::begun(prepared, &launches, kinds)?.map(GoingOn::of),
        };
        let goes_on = going_on.is_some();
        let run = match going_on {
            Some(run) => run.own(prepared)?,
            None => open_run(prepared)?,
        };
        relaunch::note(&run.folders, &launches, prepared)?;
        Ok((run, goes_on))
    }

    /// What to do about data other than those that the run began with.
    pub(crate) fn other_data(&self) -> OtherData {
        self.going_on.as_ref().map_or(OtherData::Refused, |run| run.data)
    }
}

/// Runs what `make` prepares, in this `role`: with ranks of our own, on this machine or on several, or as a rank of the launcher that
/// started us. Only one process makes the run.
pub(crate) fn start(
    launch: &Launch,
    role: &Role,
    make: impl FnOnce(Origin<'_>) -> Result<Asked, Refusal>,
    kinds: &Kinds,
) -> Result<u8, Refusal> {
    let place = machines::place(launch)?;
    match (role, place) {
        (Role::Foreign(launched), None) => match machines::launched_place(launched)? {
            Some(place) => {
                let asked = make((role, place.nodes))?;
                machines::train_launched(launched, &place, &asked, kinds)
            }
            None => foreign(make, (role, launched), kinds),
        },
        (Role::Foreign(_), Some(_)) => {
            let page = "error: another launcher has started this process, and `--nnodes` asks for several machines\n  \
                do: start `ddprun --nnodes` on each machine by itself, without a launcher";
            Err(Refusal::new(exit::REFUSED, page))
        }
        (_, Some(place)) => machines::train(&place, &make((role, place.nodes))?, kinds),
        (_, None) => {
            let asked = make((role, 1))?;
            let (mut run, resume) = asked.open(kinds)?;
            let smaller = asked.prepared.smaller(kinds)?;
            let plan = &asked.prepared.plan;
            let code = supervise(plan, smaller, &mut run, resume, None)?;
            let tokens = asked.prepared.source.sample_tokens();
            if let Some(tokens) = tokens.filter(|_| code == 0) {
                sample::at_the_end(tokens, &run.folders.logs, kinds);
            }
            Ok(code)
        }
    }
}

/// What started this process.
pub(crate) fn role() -> Result<Role, Refusal> {
    launch::rank_env::from_environment().map_err(|error| Refusal::of(exit::REFUSED, &error, None))
}

/// Starts the ranks of `plan`, or of the `smaller` ones if they do not last, and watches them to the end; beside those of
/// other machines, if there are `nodes`.
pub(crate) fn supervise(
    plan: &Plan,
    smaller: Vec<Plan>,
    run: &mut OwnedRun,
    resume: bool,
    mut nodes: Option<&mut Nodes>,
) -> Result<u8, Refusal> {
    let program = Program::this().map_err(|error| Refusal::of(exit::RESOURCE, &error, None))?;
    let start = Start { resume, program, console: Console::Terminal, smaller, waker: None };
    let mut hear = |note: Note| announce(&note);
    let ended = match nodes.as_deref_mut() {
        Some(nodes) => launch::run_node(plan, &run.folders, &start, nodes, &mut hear),
        None => launch::run(plan, &run.folders, &start, &mut hear),
    };
    run.settle();
    if nodes.is_some_and(|nodes| nodes.node() > 0) {
        // The run's files are node 0's, also where both see the same folder.
        let blocked = |failure: Box<launch::Failure>| {
            Refusal::new(failure.exit_code(), failure.block("see node 0"))
        };
        return ended.map(launch::Ended::exit_code).map_err(blocked);
    }
    clear(&run.folders);
    draw(plan, &run.folders);
    match ended {
        Ok(ended) => Ok(ended.exit_code()),
        Err(failure) => {
            let saved = saved(&run.folders.checkpoints);
            Err(Refusal::new(failure.exit_code(), failure.block(&saved)))
        }
    }
}

/// Removes what ranks that were killed left half-written; what cannot be removed now does no harm.
pub(crate) fn clear(folders: &RunFolders) {
    for folder in [&folders.checkpoints, &folders.logs] {
        drop(files::remove_stale_temporaries(folder));
    }
}

/// Says on the terminal what the parent sees and no rank can say.
fn announce(note: &Note) {
    match note {
        Note::Stopped { rank, pid } => {
            to_stderr(&format!(
                "warning: rank {rank} (pid {pid}) is stopped; the others wait for it"
            ));
        }
        Note::Continued { rank, .. } => to_stderr(&format!("rank {rank} is running again")),
        Note::Stopping { stop: Stop::Abandon } => {
            to_stderr("stopping at the end of this step, without saving ...");
        }
        Note::Stopping { .. } => to_stderr("stopping at the end of this step ..."),
        Note::Restarting { attempt, of, wait, cause } => {
            let wait = match wait.as_secs() {
                0 => String::new(),
                seconds => format!(" in {seconds} s"),
            };
            to_stderr(&format!(
                "restart {attempt} of {of}{wait}, from the newest checkpoint: rank {} failed: {}",
                cause.rank, cause.message
            ));
        }
        Note::Shrunk { size, cause } => {
            to_stderr(&format!(
                "passes of {size} {} from now on, and more of them, from the newest checkpoint: {}",
                if size.get() == 1 { "sample" } else { "samples" },
                cause.message
            ));
        }
        Note::Resized { from, to, cause } => {
            let why = cause.as_ref().map_or("a checkpoint is on disk".to_owned(), |cause| {
                format!("rank {} failed: {}", cause.rank, cause.message)
            });
            to_stderr(&format!(
                "{}, from the newest checkpoint: {why}",
                launch::describe_resize(*to, *from)
            ));
        }
        Note::Started { .. } | Note::Progress { .. } => {}
    }
}

/// Completes what the run has recorded: the history, which a killed rank leaves some seconds old, and the curves. A run
/// without a finished epoch or step has none, and a file that cannot be written must not hide how the run ended.
pub(crate) fn draw(plan: &Plan, folders: &RunFolders) {
    let Ok(records) = report::read(&folders.logs) else { return };
    let progress = records.progress();
    let mut done = report::settle(&folders.logs, &records);
    let wants_curves = plan.logging.sinks.iter().any(|sink| sink == Curves::NAME);
    if wants_curves && !progress.is_empty() {
        let best = progress.best(&plan.checkpoint);
        done = done.and(report::curves::write(&progress, best, &folders.logs, &plan.name));
    }
    if let Err(error) = done {
        to_stderr(&format!("warning: {error}"));
    }
}

/// The newest whole checkpoint in words.
fn saved(checkpoints: &Path) -> String {
    match checkpoint::newest(checkpoints) {
        Ok(newest) => format!("step {} in `{}`", newest.state.step, newest.path.display()),
        Err(_) => "nothing yet".into(),
    }
}

/// `ddprun worker`: a rank that our own parent started.
pub(crate) fn worker(kinds: &Kinds) -> Result<u8, Refusal> {
    let role = role()?;
    let membership = launch::join(&role, || Err(Never)).map_err(|error| no_place(&error))?;
    Ok(worker::run(membership, kinds).code)
}

/// Only rank 0 of a foreign launcher makes a run; `worker` never does.
struct Never;

impl fmt::Display for Never {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`ddprun worker` is started by ddprun itself")
    }
}

/// A rank of torchrun, srun or mpirun: rank 0 makes the run, all train, only the launcher watches.
fn foreign(
    make: impl FnOnce(Origin<'_>) -> Result<Asked, Refusal>,
    (role, place): (&Role, &Foreign),
    kinds: &Kinds,
) -> Result<u8, Refusal> {
    // Rank 0 holds the run's lock as long as it lives.
    let mut owned = None;
    let joined = launch::join(role, || {
        let asked = make((role, 1))?;
        say_overridden(place, &asked.prepared);
        let (run, resume) = asked.open(kinds)?;
        let (plan, folders) = (asked.prepared.plan, run.folders.clone());
        owned = Some(run);
        Ok::<_, Refusal>(PreparedRun { plan, folders, resume })
    });
    let membership = match joined {
        Err(JoinError::Prepare(refusal)) => return Err(refusal),
        joined => joined.map_err(|error| no_place(&error))?,
    };
    Ok(take_part(membership, kinds))
}

/// Says that the launcher's number of ranks counts, and not the experiment's.
fn say_overridden(place: &Foreign, prepared: &Prepared) {
    let (devices, world) = (&prepared.loaded.experiment.distributed.devices, place.world.get());
    if let Some(devices) = devices.count().filter(|devices| *devices != world) {
        let ranks = if world == 1 { "rank" } else { "ranks" };
        to_stderr(&format!(
            "the launcher started {world} {ranks}, which overrides `distributed.devices = {devices}`"
        ));
    }
}

/// Trains as one rank, which only its launcher watches.
pub(crate) fn take_part(membership: Membership, kinds: &Kinds) -> u8 {
    let plan = membership.rank_plan.plan.clone();
    let (rank, folders) = (membership.rank_plan.rank, membership.rank_plan.run.clone());
    let outcome = worker::run(membership, kinds);
    if rank == Rank(0) {
        draw(&plan, &folders);
    }
    if let Some(failure) = outcome.failure {
        let help = failure.help.map_or(String::new(), |help| format!("\n  do: {help}"));
        to_stderr(&format!("error: rank {rank}: {}{help}", failure.message));
    }
    outcome.code
}

fn no_place<E: fmt::Display>(error: &JoinError<E>) -> Refusal {
    let code = match error {
        JoinError::Prepare(_)
        | JoinError::NotARank
        | JoinError::SeveralMachines { .. }
        | JoinError::OtherWorld { .. }
        // Rank 0 says why.
        | JoinError::Rendezvous(RendezvousError::Refused { .. }) => exit::REFUSED,
        JoinError::Inherited { source, .. } if is_lack(source) => exit::RESOURCE,
        JoinError::Inherited { .. } | JoinError::Rendezvous(_) => exit::PEER,
    };
    let why = match error {
        JoinError::Inherited { source, .. } => format!("\n  why: {source}"),
        _ => String::new(),
    };
    Refusal::new(code, format!("error: {error}{why}"))
}

/// Whether the system has no thread, descriptor or memory left for us.
fn is_lack(error: &io::Error) -> bool {
    let lacks = [libc::EAGAIN, libc::ENOMEM, libc::EMFILE, libc::ENFILE];
    error.raw_os_error().is_some_and(|errno| lacks.contains(&errno))
}

impl std::error::Error for Refusal {}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.page)
    }
}
