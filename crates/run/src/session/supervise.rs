//! A run's ranks, from their start to the run's last output: as the parent of all, or as one of
//! them.

use std::path::Path;

use serde_json::json;

use crate::checkpoint;
use crate::config::kind::Kind;
use crate::files;
use crate::kinds::Kinds;
use crate::launch::{self, Console, LauncherEvent, Membership, Nodes, Program, Start, Stop};
use crate::plan::{Plan, RunFolders};
use crate::record::{Curves, JsonStream, is_json, print_error, screen, to_stderr};
use crate::report;
use crate::session::run_folder::OwnedRun;
use crate::session::side_tasks::SideTasks;
use crate::units::Rank;
use crate::user_error::{ErrorPage, ExitCode};
use crate::worker::{self, Listener};

/// A launch that is over.
pub struct Launched {
    plan: Plan,
    run: OwnedRun,
    end: LaunchEnd,
    side_tasks: SideTasks,
    /// Tokens that are sampled after a run that succeeded.
    pub sample_tokens: Option<u32>,
}

impl Launched {
    /// The run's folder for logs.
    pub fn logs(&self) -> &Path {
        &self.run.folders.logs
    }
}

/// The end of the ranks, and the role of this process.
enum LaunchEnd {
    /// The parent of the ranks of this machine.
    Watched { ended: Result<launch::Ended, Box<launch::Failure>>, node: u32 },
    /// A rank, which only its launcher watched.
    TookPart { rank: Rank, outcome: worker::Outcome },
}

impl LaunchEnd {
    /// The failure in a line: "rank 1 (step 3, forward): out of memory".
    fn failure(&self) -> Option<String> {
        match self {
            Self::Watched { ended, .. } => ended.as_ref().err().map(ToString::to_string),
            Self::TookPart { rank, outcome } => {
                let failure = outcome.failure.as_ref()?;
                Some(format!("rank {rank}: {}", failure.message))
            }
        }
    }
}

/// Starts the ranks of `plan`, or of the `smaller` ones if they do not last, and watches them to
/// the end; beside those of other machines, if there are `nodes`.
pub(crate) fn watch(
    plan: Plan,
    smaller: Vec<Plan>,
    mut run: OwnedRun,
    nodes: Option<&mut Nodes>,
) -> Result<Launched, ErrorPage> {
    let node = nodes.as_ref().map_or(0, |nodes| nodes.node());
    let side_tasks =
        if node == 0 { SideTasks::start(&plan, &run.folders) } else { SideTasks::default() };
    let program = side_tasks.listen_to(program()?);
    let listener = side_tasks.listener();
    let stream = JsonStream::open();
    let (resume, console) = (run.is_resumed, Console::Terminal);
    let start = Start { resume, program, console, smaller, waker: None };
    let mut hear = |event: LauncherEvent| match event {
        LauncherEvent::Recorded(event) => {
            listener.on_event(&event);
            if let Some(stream) = &stream {
                stream.event(event, None);
            }
        }
        note => announce(&note, stream.as_ref()),
    };
    let ended = match nodes {
        Some(nodes) => launch::run_node(&plan, &run.folders, &start, nodes, &mut hear),
        None => launch::run(&plan, &run.folders, &start, &mut hear),
    };
    // A rank that was killed leaves its bar.
    screen().erase_bars();
    drop(stream);
    run.wait_for_writer();
    let end = LaunchEnd::Watched { ended, node };
    Ok(Launched { plan, run, end, side_tasks, sample_tokens: None })
}

/// The program of the ranks; with `--json` they send the events that they record.
pub fn program() -> Result<Program, ErrorPage> {
    let program = Program::this().map_err(|error| ErrorPage::of(ExitCode::Resource, &error))?;
    Ok(if is_json() { program.telling_events() } else { program })
}

/// Trains as one rank, which only its launcher watches.
pub(crate) fn take_part(membership: Membership, run: OwnedRun, kinds: &Kinds) -> Launched {
    let (plan, rank) = (membership.rank_plan.plan.clone(), membership.rank_plan.rank);
    let stream = JsonStream::open();
    let side_tasks =
        if rank.is_first() { SideTasks::start(&plan, &run.folders) } else { SideTasks::default() };
    let (told, side) = (stream.as_ref().map(JsonStream::listener), side_tasks.listener());
    let listener = (told.is_some() || !side_tasks.is_empty()).then(|| {
        Listener::new(move |event| {
            side.on_event(&event);
            if let Some(tell) = &told {
                tell(event);
            }
        })
    });
    let outcome = worker::run(membership, listener, kinds);
    drop(stream);
    let end = LaunchEnd::TookPart { rank, outcome };
    Launched { plan, run, end, side_tasks, sample_tokens: None }
}

/// Completes the records of the run, and returns its exit code.
///
/// # Errors
///
/// The failure of the run.
pub fn conclude(launched: Launched) -> Result<ExitCode, ErrorPage> {
    let Launched { plan, run, end, side_tasks, .. } = launched;
    let failure = end.failure();
    let concluded = completed(&plan, &run, end);
    if side_tasks.is_empty() {
        return concluded;
    }
    // The user is not to wait for them to see how it ended.
    let code = concluded.unwrap_or_else(|page| {
        print_error(&page);
        page.code()
    });
    side_tasks.end(code, failure.as_deref());
    Ok(code)
}

/// Completes the records of the run, and returns its exit code.
fn completed(plan: &Plan, run: &OwnedRun, end: LaunchEnd) -> Result<ExitCode, ErrorPage> {
    let code = match end {
        LaunchEnd::TookPart { rank, outcome } => {
            if rank.is_first() {
                draw(plan, &run.folders);
            }
            say_failure(rank, &outcome);
            return Ok(outcome.code);
        }
        // The run's files are node 0's, also where both see the same folder.
        LaunchEnd::Watched { ended, node: 1.. } => exit_code(ended, || "see node 0".to_owned()),
        LaunchEnd::Watched { ended, node: 0 } => {
            let is_failure = ended.is_err();
            let tidy = {
                let (plan, folders) = (plan.clone(), run.folders.clone());
                move || {
                    clear(&folders);
                    draw(&plan, &folders);
                }
            };
            if is_failure {
                // The failure may be a disk that hangs.
                files::within(files::DISK_TIMEOUT, tidy);
            } else {
                tidy();
            }
            let checkpoints = run.folders.checkpoints.clone();
            exit_code(ended, || {
                let saved = files::within(files::DISK_TIMEOUT, move || saved(&checkpoints));
                saved.unwrap_or_else(|| "not known: the disk does not respond".to_owned())
            })
        }
    }?;
    if code == ExitCode::Expectation {
        let page = "error: a metric missed its `[expect]` value (exit code 9)";
        print_error(&ErrorPage::new(code, page));
    }
    Ok(code)
}

/// The exit code, or the failure with the checkpoint that was `saved`.
fn exit_code(
    ended: Result<launch::Ended, Box<launch::Failure>>,
    saved: impl FnOnce() -> String,
) -> Result<ExitCode, ErrorPage> {
    ended
        .map(launch::Ended::exit_code)
        .map_err(|failure| ErrorPage::new(failure.exit_code(), failure.block(&saved())))
}

fn say_failure(rank: Rank, outcome: &worker::Outcome) {
    if let Some(failure) = &outcome.failure {
        let help = failure.help.as_ref().map_or(String::new(), |help| format!("\n  do: {help}"));
        let page = format!("error: rank {rank}: {}{help}", failure.message);
        print_error(&ErrorPage::new(outcome.code, page));
    }
}

/// Removes what ranks that were killed left half-written; what cannot be removed now does no harm.
pub fn clear(folders: &RunFolders) {
    for folder in [&folders.checkpoints, &folders.logs] {
        drop(files::remove_stale_temporaries(folder));
    }
}

/// Prints notes of the parent that no rank can print.
fn announce(event: &LauncherEvent, stream: Option<&JsonStream>) {
    let Some(words) = words(event) else { return };
    if let Some(stream) = stream {
        stream.say("note", json!({ "message": words }));
    }
    to_stderr(&words);
}

fn words(event: &LauncherEvent) -> Option<String> {
    Some(match event {
        LauncherEvent::Stopped { rank, pid } => {
            format!("warning: rank {rank} (pid {pid}) is stopped; the others wait for it")
        }
        LauncherEvent::Continued { rank, .. } => format!("rank {rank} is running again"),
        LauncherEvent::Stopping { stop: Stop::Abandon } => {
            "stopping at the end of this step, without saving ...".to_owned()
        }
        LauncherEvent::Stopping { .. } => "stopping at the end of this step ...".to_owned(),
        LauncherEvent::Restarting { attempt, of, wait, cause } => {
            let wait = match wait.as_secs() {
                0 => String::new(),
                seconds => format!(" in {seconds} s"),
            };
            let cause = failed(cause.rank, &cause.message);
            format!("restart {attempt} of {of}{wait}, from the newest checkpoint: {cause}")
        }
        LauncherEvent::Rendezvous { words } => words.clone(),
        LauncherEvent::Shrunk { size, cause } => {
            let samples = if size.get() == 1 { "sample" } else { "samples" };
            format!(
                "continuing from the newest checkpoint with micro-batches of {size} {samples} and \
                 more accumulation steps: {}",
                cause.message
            )
        }
        LauncherEvent::Resized { from, to, cause } => {
            let why = cause.as_ref().map_or("a checkpoint is on disk".to_owned(), |cause| {
                failed(cause.rank, &cause.message)
            });
            let sizes = launch::describe_resize(*to, *from);
            format!("{sizes}, from the newest checkpoint: {why}")
        }
        LauncherEvent::Started { .. }
        | LauncherEvent::Progress { .. }
        | LauncherEvent::Recorded(_) => return None,
    })
}

/// The end of a rank in words: "rank 1 was killed by SIGKILL", "rank 1 failed: ...".
fn failed(rank: Rank, message: &str) -> String {
    if message.starts_with(&format!("rank {rank} ")) {
        return message.to_owned();
    }
    format!("rank {rank} failed: {message}")
}

/// Completes what the run has recorded: the history, which a killed rank leaves some seconds old,
/// and the curves. A run without a finished epoch or step has none, and a file that cannot be
/// written must not hide how the run ended.
pub fn draw(plan: &Plan, folders: &RunFolders) {
    let Ok(records) = report::read(&folders.logs) else { return };
    let mut done = report::complete_history(&folders.logs, &records);
    if plan.logging.sinks.iter().any(|sink| sink.name == Curves::NAME) {
        done = done.and(report::draw(&folders.logs, &records, &plan.checkpoint));
    }
    if let Err(error) = done {
        to_stderr(&format!("warning: {error}"));
    }
}

/// The newest whole checkpoint in words.
fn saved(checkpoints: &Path) -> String {
    match checkpoint::newest(checkpoints) {
        Ok(newest) => format!("step {} in `{}`", newest.state.step, newest.path.display()),
        Err(checkpoint::Error::NoneUsable { damaged, .. }) if !damaged.is_empty() => {
            "no intact checkpoint".into()
        }
        Err(_) => "nothing yet".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_failed_is_named_once() {
        let killed = "rank 1 was killed by SIGKILL";
        assert_eq!(failed(Rank(1), killed), killed);
        assert_eq!(failed(Rank(1), "out of memory"), "rank 1 failed: out of memory");
        assert_eq!(failed(Rank(1), "rank 10 is gone"), "rank 1 failed: rank 10 is gone");
    }
}
