//! Training: as the parent of all ranks, as one of its ranks, or as a rank of a foreign launcher.

use std::fmt;
use std::io;
use std::path::Path;

use crate::checkpoint;
use crate::cli::args::{Launch, Run};
use crate::cli::prepare::{OwnedRun, Prepared, open_run, prepare};
use crate::cli::{Refusal, to_stderr};
use crate::files;
use crate::launch::{self, Console, JoinError, Note, Program, Role, Start};
use crate::model::Registry;
use crate::plan::{Plan, RunFolders, Sink};
use crate::report;
use crate::units::Rank;
use crate::worker::{self, exit};

/// `ddprun x.toml [key=value ...]`
pub(crate) fn train(args: &Run, registry: &Registry) -> Result<u8, Refusal> {
    one_machine(&args.launch)?;
    let path = args.experiment.clone().unwrap_or_default();
    let make = |role: &Role| {
        let prepared = prepare(&path, &args.all_changes(), role, registry)?;
        let run = open_run(&prepared)?;
        Ok((prepared, run))
    };
    start(make, false, registry)
}

/// Runs what `make` prepares: with ranks of our own, or as a rank of the launcher that started us. Only
/// one process makes the run.
pub(crate) fn start(
    make: impl FnOnce(&Role) -> Result<(Prepared, OwnedRun), Refusal>,
    resume: bool,
    registry: &Registry,
) -> Result<u8, Refusal> {
    let role = role()?;
    if let Role::Foreign(_) = role {
        return foreign(make, resume, &role, registry);
    }
    let (prepared, mut run) = make(&role)?;
    let smaller = prepared.smaller(registry)?;
    supervise(&prepared.plan, smaller, &mut run, resume)
}

/// What started this process.
fn role() -> Result<Role, Refusal> {
    launch::rank_env::from_environment().map_err(|error| Refusal::of(exit::REFUSED, &error, None))
}

/// Refuses several machines: they need a backend that this build does not have.
pub(crate) fn one_machine(launch: &Launch) -> Result<(), Refusal> {
    if launch.nnodes == 1 {
        return Ok(());
    }
    let page = format!(
        "error: `--nnodes {}` needs `nccl` or `mpi`, which this build does not have\n  \
         do: use `--nnodes 1`; ranks of one machine share memory",
        launch.nnodes
    );
    Err(Refusal::new(exit::REFUSED, page))
}

/// Starts the ranks of `plan`, or of the `smaller` ones if they do not last, and watches them to the end.
fn supervise(
    plan: &Plan,
    smaller: Vec<Plan>,
    run: &mut OwnedRun,
    resume: bool,
) -> Result<u8, Refusal> {
    let program = Program::this().map_err(|error| Refusal::of(exit::RESOURCE, &error, None))?;
    let start = Start { resume, program, console: Console::Terminal, smaller, bell: None };
    let ended = launch::run(plan, &run.folders, &start, &mut |note| announce(&note));
    run.settle();
    for folder in [&run.folders.checkpoints, &run.folders.logs] {
        // Of ranks that were killed while they wrote; what cannot be removed now is in nobody's way.
        drop(files::remove_stale_temporaries(folder));
    }
    draw(plan, &run.folders);
    match ended {
        Ok(ended) => Ok(ended.exit_code()),
        Err(failure) => {
            let saved = saved(&run.folders.checkpoints);
            Err(Refusal::new(failure.exit_code(), failure.block(&saved)))
        }
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
        Note::Continued { rank, .. } => to_stderr(&format!("rank {rank} runs again")),
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
                launch::instead(*to, *from)
            ));
        }
        Note::Started { .. } | Note::Progress { .. } => {}
    }
}

/// Draws the curves of whatever the run has recorded. A run without a finished epoch has none, and a
/// picture that cannot be drawn must not hide how the run ended.
pub(crate) fn draw(plan: &Plan, folders: &RunFolders) {
    if !plan.logging.sinks.contains(&Sink::Curves) {
        return;
    }
    match report::read(&folders.logs) {
        Ok(records) if !records.history.is_empty() => {
            let best = report::best_epoch(&records.history, &plan.checkpoint);
            let drawn = report::curves::write(&records.history, best, &folders.logs, &plan.name);
            if let Err(error) = drawn {
                to_stderr(&format!("warning: {error}"));
            }
        }
        _ => {}
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
pub(crate) fn worker(registry: &Registry) -> Result<u8, Refusal> {
    let role = role()?;
    let membership = launch::join(&role, || Err(Never)).map_err(|error| no_place(&error))?;
    Ok(worker::run(membership, registry).code)
}

/// Only rank 0 of a foreign launcher makes a run; `worker` never does.
struct Never;

impl fmt::Display for Never {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`ddprun worker` is started by ddprun itself")
    }
}

/// A rank of torchrun, srun or mpirun: rank 0 makes the run, all train, nobody watches but the launcher.
fn foreign(
    make: impl FnOnce(&Role) -> Result<(Prepared, OwnedRun), Refusal>,
    resume: bool,
    role: &Role,
    registry: &Registry,
) -> Result<u8, Refusal> {
    // Rank 0 holds the run's lock as long as it lives.
    let mut owned = None;
    let joined = launch::join(role, || {
        let (prepared, run) = make(role)?;
        let told = (prepared.plan, run.folders.clone(), resume);
        owned = Some(run);
        Ok::<_, Refusal>(told)
    });
    let membership = match joined {
        Err(JoinError::Make(refusal)) => return Err(refusal),
        joined => joined.map_err(|error| no_place(&error))?,
    };
    let plan = membership.rank_plan.plan.clone();
    let (rank, folders) = (membership.rank_plan.rank, membership.rank_plan.run.clone());
    let outcome = worker::run(membership, registry);
    if rank == Rank(0) {
        draw(&plan, &folders);
    }
    if let Some(failure) = outcome.failure {
        let help = failure.help.map_or(String::new(), |help| format!("\n  do: {help}"));
        to_stderr(&format!("error: rank {rank}: {}{help}", failure.message));
    }
    Ok(outcome.code)
}

fn no_place<E: fmt::Display>(error: &JoinError<E>) -> Refusal {
    let code = match error {
        JoinError::Make(_)
        | JoinError::NotARank
        | JoinError::SeveralMachines { .. }
        | JoinError::OtherWorld { .. } => exit::REFUSED,
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

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.page)
    }
}
