//! `checkpoint.mirror`: a second place for a run, written beside the training.
//!
//! A mirror is a folder with the runs of a project:
//!
//! ```text
//! MIRROR/logs/<name>/<id>/...     MIRROR/checkpoints/<name>/<id>/step-00000300/...
//! ```
//!
//! One thread writes it, in the process that watches the ranks, whenever a checkpoint was saved:
//! first the records, then the checkpoints that it lacks, and only then those go that the run has
//! removed. So whatever is there at any moment can be resumed exactly. For a command the folder is
//! a temporary one of hard links, and the command is run after the records and after the
//! checkpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value, json};

use crate::checkpoint::{self, OpenCheckpoint};
use crate::config;
use crate::config::Loaded;
use crate::failpoint;
use crate::files;
use crate::plan::{MirrorPlan, Plan, RunFolders};
use crate::record::{HISTORY, to_stderr};
use crate::runs::LOGS;
use crate::session::beside::{CommandLimits, WaitEnd, run_command, wait_for_end};
use crate::user_error::{ErrorPage, ExitCode, with_causes};

/// The key of the mirror.
pub(crate) const KEY: &str = "checkpoint.mirror";
/// File in the run's logs with what the command prints.
const LOG: &str = "mirror.log";
/// Folder of checkpoints in a mirror.
const CHECKPOINTS: &str = "checkpoints";
/// Why a mirror is not complete whose wait the user has ended.
const BY_CTRL_C: &str = "ended by Ctrl-C";
/// Longest wait for a mirror that may be dead, before a run.
const RESPONSE_TIME: Duration = Duration::from_secs(10);

/// The places of a run in the mirror `root`: of its logs, and of its checkpoints.
pub(crate) fn places(root: &Path, name: &str, id: &str) -> (PathBuf, PathBuf) {
    let place = |folder: &str| root.join(folder).join(name).join(id);
    (place(LOGS), place(CHECKPOINTS))
}

/// Refuses a mirror that could never be written: a folder that is not there, cannot be written, or
/// is the run's own.
pub fn check_mirror(loaded: &Loaded) -> Result<(), ErrorPage> {
    let Some(text) = &loaded.experiment.checkpoint.mirror else { return Ok(()) };
    let config::Mirror::Folder(folder) = config::Mirror::of(text) else { return Ok(()) };
    let refuse = |code, what: String, help: &str| {
        Err(ErrorPage::of_problems(code, loaded.problem(KEY, what).help(help).into()))
    };
    let shown = folder.display();
    let looked = {
        let (folder, own) = (folder.clone(), own_folders(loaded));
        move || look(&folder, &own)
    };
    match files::within(RESPONSE_TIME, looked) {
        Some(Look::Fine) => Ok(()),
        Some(Look::Absent) => refuse(
            ExitCode::Refused,
            format!("the folder `{shown}` does not exist"),
            "mount it, or make it; a command has `{folder}` where it takes what is copied",
        ),
        Some(Look::NoFolder) => {
            refuse(ExitCode::Refused, format!("`{shown}` is a file, not a folder"), "name a folder")
        }
        Some(Look::Own) => refuse(
            ExitCode::Refused,
            format!("`{shown}` is a place of the run itself"),
            "name a folder on another disk, outside of `logging.dir` and `checkpoint.dir`",
        ),
        Some(Look::Unwritable(error)) => {
            let help = if error.is_out_of_space() {
                "make room there, or name another folder"
            } else {
                "make it writable, or name another folder"
            };
            refuse(ExitCode::Storage, with_causes(&error), help)
        }
        None => refuse(
            ExitCode::Storage,
            format!("`{shown}` does not respond within {} s", RESPONSE_TIME.as_secs()),
            "mount it again, or leave the key out",
        ),
    }
}

/// State of a folder that is to be a mirror.
enum Look {
    Fine,
    Absent,
    NoFolder,
    /// It is in a folder of runs, or holds it under the name that it has in a mirror.
    Own,
    Unwritable(files::Error),
}

/// The experiment's folders for logs and checkpoints, with their names in a mirror.
fn own_folders(loaded: &Loaded) -> [(PathBuf, &'static str); 2] {
    let experiment = &loaded.experiment;
    [(experiment.logging.dir.clone(), LOGS), (experiment.checkpoint.dir.clone(), CHECKPOINTS)]
}

fn look(folder: &Path, own: &[(PathBuf, &'static str); 2]) -> Look {
    if !folder.exists() {
        return Look::Absent;
    }
    if !folder.is_dir() {
        return Look::NoFolder;
    }
    let mirror = real(folder);
    let is_own = |(dir, name): &(PathBuf, &'static str)| {
        let dir = real(dir);
        mirror.starts_with(&dir) || real(&mirror.join(name)) == dir
    };
    if own.iter().any(is_own) {
        return Look::Own;
    }
    files::create_writable_folder(folder).map_or_else(Look::Unwritable, |()| Look::Fine)
}

/// A path with its links resolved, as far as it exists.
fn real(path: &Path) -> PathBuf {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let there = whole.ancestors().find_map(|above| Some((above, above.canonicalize().ok()?)));
    let Some((above, real)) = there else { return whole };
    let rest = whole.strip_prefix(above).unwrap_or(Path::new(""));
    if rest.as_os_str().is_empty() { real } else { real.join(rest) }
}

/// The mirror of a run that is under way.
pub(crate) struct Mirror {
    requests: MirrorRequests,
    writer: JoinHandle<()>,
    /// Set when the run stops waiting for the writer.
    is_given_up: Arc<AtomicBool>,
    progress: Arc<Mutex<Progress>>,
    plan: MirrorPlan,
    /// The run's folder of checkpoints.
    checkpoints: PathBuf,
}

/// The writer's queue, for all that hear of events.
#[derive(Clone)]
pub(crate) struct MirrorRequests(Sender<Request>);

/// What the writer is asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Request {
    /// To copy what is new.
    Update,
    /// To do so a last time.
    Finish,
}

/// How far the mirror is.
#[derive(Default)]
struct Progress {
    /// Step of the newest checkpoint that is there.
    step: Option<u64>,
    /// Why the last update failed.
    failure: Option<String>,
}

impl Mirror {
    /// The mirror of a run; `None` if it has none.
    pub(crate) fn start(plan: &Plan, run: &RunFolders) -> Option<Self> {
        let mirror = plan.mirror.clone()?;
        let is_given_up = Arc::new(AtomicBool::new(false));
        let progress = Arc::new(Mutex::new(Progress::default()));
        let (queue, requests) = channel();
        let writer = Writer::new(plan, &mirror, run, &is_given_up, &progress);
        let named = std::thread::Builder::new().name("mirror".into());
        let writer = match named.spawn(move || writer.run(&requests)) {
            Ok(writer) => writer,
            Err(error) => {
                to_stderr(&format!("warning: `{KEY}` is not written: no thread is left: {error}"));
                return None;
            }
        };
        let requests = MirrorRequests(queue);
        let checkpoints = run.checkpoints.clone();
        Some(Self { requests, writer, is_given_up, progress, plan: mirror, checkpoints })
    }

    pub(crate) fn requests(&self) -> &MirrorRequests {
        &self.requests
    }

    /// Copies what is new a last time, waits for it within its limit, and tells what the mirror has.
    pub(crate) fn end(self) {
        let Self { requests, writer, is_given_up, progress, plan, checkpoints } = self;
        let _ = requests.0.send(Request::Finish);
        let (place, seconds) = (&plan.place, plan.timeout.0.as_secs_f64());
        let words =
            format!("waiting for the mirror `{place}`, {seconds} s at most (Ctrl-C ends it)");
        let end = wait_for_end(&writer, &is_given_up, Some(plan.timeout.0), &words);
        let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
        let failure = match end {
            WaitEnd::Done if writer.join().is_err() => Some("its thread panicked".to_owned()),
            // The writer may see Ctrl-C, and end, before the wait looks again.
            WaitEnd::Done if is_given_up.load(Ordering::Relaxed) => {
                progress.failure.take().map(|_| BY_CTRL_C.to_owned())
            }
            WaitEnd::Done => progress.failure.take(),
            WaitEnd::GivenUp => Some(BY_CTRL_C.to_owned()),
            WaitEnd::OutOfTime => {
                Some(format!("not done within {seconds} s (`checkpoint.mirror_timeout`)"))
            }
        };
        // The writer may not have come to the newest one.
        let newest = checkpoint::all(&checkpoints).ok().and_then(|all| Some(all.last()?.step));
        let has = progress.step.map_or("nothing".to_owned(), |step| format!("step {step}"));
        match failure {
            Some(why) => {
                let at = newest.map_or(String::new(), |step| format!(" of step {step}"));
                to_stderr(&format!(
                    "warning: the mirror `{place}` is not complete: it has {has}{at}: {why}"
                ));
            }
            // One that is ahead was told before.
            None if progress.step.is_some() && progress.step == newest => {
                to_stderr(&format!("mirrored: {has} in `{place}`"));
            }
            None => {}
        }
    }
}

impl MirrorRequests {
    /// Takes note of an event that the first rank has recorded.
    pub(crate) fn on_event(&self, event: &Map<String, Value>) {
        if event.get("event").and_then(Value::as_str) == Some("saved") {
            // This fails only after a panic of the thread; the run goes on without a mirror.
            let _ = self.0.send(Request::Update);
        }
    }
}

/// The thread that writes a mirror.
struct Writer {
    place: String,
    name: String,
    run: RunFolders,
    target: Target,
    timeout: Duration,
    is_given_up: Arc<AtomicBool>,
    progress: Arc<Mutex<Progress>>,
    /// Steps of the checkpoints in the mirror that were copied, or read and found whole.
    intact: BTreeSet<u64>,
    /// Sizes and times of the records that were copied.
    copied: BTreeMap<PathBuf, (u64, SystemTime)>,
    /// True once a command has been given all checkpoints that there were.
    is_begun: bool,
    /// True once a failure was reported.
    is_reported: bool,
    /// True once it was said that the mirror is ahead of the run.
    is_ahead_reported: bool,
}

/// Where a mirror is written.
enum Target {
    /// A folder.
    Folder(PathBuf),
    /// A temporary folder, which the command copies; absent until it is made.
    Command { command: String, folder: Option<PathBuf> },
}

impl Writer {
    fn new(
        plan: &Plan,
        mirror: &MirrorPlan,
        run: &RunFolders,
        is_given_up: &Arc<AtomicBool>,
        progress: &Arc<Mutex<Progress>>,
    ) -> Self {
        let target = match config::Mirror::of(&mirror.place) {
            config::Mirror::Folder(folder) => Target::Folder(folder),
            config::Mirror::Command(command) => Target::Command { command, folder: None },
        };
        Self {
            place: mirror.place.clone(),
            name: plan.name.clone(),
            run: run.clone(),
            target,
            timeout: mirror.timeout.0,
            is_given_up: is_given_up.clone(),
            progress: progress.clone(),
            intact: BTreeSet::new(),
            copied: BTreeMap::new(),
            is_begun: false,
            is_reported: false,
            is_ahead_reported: false,
        }
    }

    fn run(mut self, requests: &Receiver<Request>) {
        // What a command has not been given would be removed from its place.
        let begun = self.begin();
        self.note(begun, true);
        while let Ok(first) = requests.recv() {
            let is_last = std::iter::once(first)
                .chain(requests.try_iter())
                .any(|request| request == Request::Finish);
            let updated = self.update(is_last);
            self.note(updated, !is_last);
            if is_last {
                break;
            }
        }
        if let Target::Command { folder: Some(folder), .. } = &self.target {
            drop(files::remove_leftover(folder));
        }
    }

    /// Keeps the result of an update; the first failure is reported if it is to be.
    fn note(&mut self, result: Result<(), String>, is_reported: bool) {
        if let Err(why) = &result
            && is_reported
            && !std::mem::replace(&mut self.is_reported, true)
        {
            to_stderr(&format!(
                "warning: the mirror `{}` is not written: {why}. It is tried again with each \
                 checkpoint; further failures are told at the end of the run",
                self.place
            ));
        }
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.failure = result.err();
    }

    /// Makes the folder of a command, with the checkpoints that there are.
    fn begin(&mut self) -> Result<(), String> {
        if matches!(self.target, Target::Command { .. }) {
            let (_, checkpoints) = self.places()?;
            let opened = self.checkpoints_here()?.1;
            opened.iter().try_for_each(|opened| self.copy_checkpoint(opened, &checkpoints))?;
        }
        self.is_begun = true;
        Ok(())
    }

    /// The places of the run's logs and checkpoints in the mirror.
    fn places(&mut self) -> Result<(PathBuf, PathBuf), String> {
        let root = match &mut self.target {
            Target::Folder(folder) | Target::Command { folder: Some(folder), .. } => folder.clone(),
            Target::Command { folder, .. } => {
                let made = files::create_scratch_folder(&self.run.checkpoints);
                folder.insert(made.map_err(|error| error.with_cause())?).clone()
            }
        };
        Ok(places(&root, &self.name, &self.run.id))
    }

    /// A share that is not mounted any more would be written to the disk below it: looked at before
    /// each checkpoint, as what lies between may take minutes.
    fn must_be_there(&self) -> Result<(), String> {
        match &self.target {
            Target::Folder(folder) if !folder.is_dir() => {
                Err(format!("`{}` is not there any more", folder.display()))
            }
            _ => Ok(()),
        }
    }

    /// Steps of the run's checkpoints, and those that can be read, oldest first.
    fn checkpoints_here(&self) -> Result<(Vec<u64>, Vec<OpenCheckpoint>), String> {
        let found = checkpoint::all(&self.run.checkpoints).map_err(|error| in_line(&error))?;
        let steps = found.iter().map(|found| found.step).collect();
        // The run may delete one meanwhile, which is then none of those that are kept.
        let opened = found.iter().filter_map(|found| checkpoint::open_complete(&found.path));
        Ok((steps, opened.collect()))
    }

    /// Makes the mirror what the run is now. What the run has removed goes from the place of a
    /// command with the next update, or at once with the last.
    fn update(&mut self, is_last: bool) -> Result<(), String> {
        if !self.is_begun {
            self.begin()?;
        }
        let (steps, opened) = self.checkpoints_here()?;
        let Some(newest) = opened.last().map(|opened| opened.manifest.step) else { return Ok(()) };
        let (logs, checkpoints) = self.places()?;
        self.must_be_there()?;
        let there = self.newest_intact(&checkpoints);
        if let Some(ahead) = there.filter(|step| *step > newest) {
            self.report_ahead(ahead, newest);
            return Ok(());
        }
        if there.is_some() {
            self.with_progress(|progress| progress.step = there);
        }
        self.must_be_there()?;
        for folder in [&logs, &checkpoints] {
            files::create_folder(folder).map_err(|error| error.with_cause())?;
            drop(files::remove_stale_temporaries(folder));
        }
        copy_records(&self.run.logs, &logs, &mut self.copied)?;
        failpoint::reach("mirror.records");
        self.push()?;
        for opened in &opened {
            self.copy_checkpoint(opened, &checkpoints)?;
        }
        failpoint::reach("mirror.checkpoints");
        self.push()?;
        self.with_progress(|progress| progress.step = Some(newest));
        let mut left = checkpoint::all(&checkpoints).map_err(|error| in_line(&error))?;
        left.retain(|found| !steps.contains(&found.step));
        for old in &left {
            files::remove_folder(&old.path).map_err(|error| error.with_cause())?;
        }
        if is_last && !left.is_empty() { self.push() } else { Ok(()) }
    }

    /// The step of the newest checkpoint in `folder` that is what was written. Each is read once.
    fn newest_intact(&mut self, folder: &Path) -> Option<u64> {
        let found = checkpoint::all(folder).ok()?;
        found.iter().rev().map(|found| found.step).find(|step| self.is_intact(folder, *step))
    }

    /// True if the mirror has the checkpoint of `step`, which is read unless it is known.
    fn is_intact(&mut self, folder: &Path, step: u64) -> bool {
        let path = folder.join(checkpoint::name(step));
        if self.intact.contains(&step) {
            return checkpoint::open_complete(&path).is_some();
        }
        let is_intact = checkpoint::verify(&path).is_ok();
        if is_intact {
            self.intact.insert(step);
        }
        is_intact
    }

    fn with_progress(&self, change: impl FnOnce(&mut Progress)) {
        change(&mut self.progress.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Says once that the mirror is left alone: what it has could not be resumed exactly with the
    /// records of an earlier step.
    fn report_ahead(&mut self, ahead: u64, newest: u64) {
        self.with_progress(|progress| progress.step = Some(ahead));
        if !std::mem::replace(&mut self.is_ahead_reported, true) {
            to_stderr(&format!(
                "note: the mirror `{}` has step {ahead} of this run, which is at step {newest} \
                 here: it is left as it is until the run is past it; `ddprun resume --from` would \
                 have continued from there",
                self.place
            ));
        }
    }

    /// Copies a checkpoint, unless it is there.
    fn copy_checkpoint(&mut self, opened: &OpenCheckpoint, folder: &Path) -> Result<(), String> {
        let step = opened.manifest.step;
        let path = folder.join(checkpoint::name(step));
        let is_same =
            checkpoint::open_complete(&path).is_some_and(|there| there.manifest == opened.manifest);
        if is_same && self.is_intact(folder, step) {
            return Ok(());
        }
        self.must_be_there()?;
        let copied = match &self.target {
            Target::Folder(_) => checkpoint::copy(opened, &path),
            Target::Command { .. } => checkpoint::pin(opened, &path),
        };
        copied.map_err(|error| in_line(&error))?;
        self.intact.insert(step);
        Ok(())
    }

    /// Runs the command, if there is one.
    fn push(&self) -> Result<(), String> {
        let Target::Command { command, folder: Some(folder) } = &self.target else { return Ok(()) };
        let log = self.run.logs.join(LOG);
        let limits = CommandLimits {
            log: &log,
            timeout: self.timeout,
            key: "checkpoint.mirror_timeout",
            is_given_up: &self.is_given_up,
        };
        let fields = json!({ "folder": folder, "name": self.name, "run": self.run.id });
        let fields = fields.as_object().cloned().unwrap_or_default();
        run_command(command, &fields, &limits)
            .map_err(|why| format!("its command {why}; `{}` has what it printed", log.display()))
    }
}

/// An error and its causes in one line.
fn in_line(error: &dyn std::error::Error) -> String {
    with_causes(error).replace("\n  why: ", ": ")
}

/// Copies the files of a run's logs that have changed since they were `copied`; those by which a
/// folder is known as a run last.
pub(crate) fn copy_records(
    from: &Path,
    to: &Path,
    copied: &mut BTreeMap<PathBuf, (u64, SystemTime)>,
) -> Result<(), String> {
    let mut records = records(from);
    records.sort_by_key(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        (name == HISTORY || name.starts_with("resolved."), path.clone())
    });
    for path in records {
        let found = path.metadata().and_then(|found| Ok((found.len(), found.modified()?)));
        let Ok(found) = found else { continue };
        if copied.get(&path) == Some(&found) {
            continue;
        }
        let place = to.join(path.strip_prefix(from).unwrap_or(&path));
        match files::create_parent(&place).and_then(|()| files::copy_atomic(&path, &place)) {
            // It was removed meanwhile.
            Err(_) if !path.exists() => {}
            copy => {
                copy.map_err(|error| error.with_cause())?;
                copied.insert(path, found);
            }
        }
    }
    Ok(())
}

/// The files of a run's logs, also in folders in it; locks, temporaries and links are none.
fn records(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let is_hidden = entry.file_name().to_string_lossy().starts_with('.');
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && !is_hidden => open.push(entry.path()),
                Ok(kind) if kind.is_file() && !is_hidden => found.push(entry.path()),
                _ => {}
            }
        }
    }
    found
}
