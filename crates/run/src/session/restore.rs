//! `ddprun resume --from MIRROR`: a run of a mirror, brought to where it was, to go on here.
//!
//! Records come first, then checkpoints from the oldest to the newest, each under its name once
//! every byte is what its manifest says. So whenever this is cut short, the run here is none, or
//! goes on from an earlier step; the same command brings the rest.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::checkpoint::{self, OpenCheckpoint};
use crate::config::{Mirror, placeholders_in};
use crate::files::{self, RunLock};
use crate::plan::RunFolders;
use crate::record::{DATA, DESCRIPTION, RESOLVED, is_run, newest_start, of_start, to_stderr};
use crate::runs::{self, LOGS, StoredRun, warn_of_skipped};
use crate::session::beside::{variable, with_variables};
use crate::session::mirror::{copy_records, places};
use crate::session::run_folder::unwritable;
use crate::terminal::counted;
use crate::user_error::{ErrorPage, ExitCode};

/// Longest wait for another process that brings the same run, such as that of another machine.
const TURN: Duration = Duration::from_mins(10);
/// Runs that are named where none is meant.
const SHOWN: usize = 3;
/// Time between two looks whether it has.
const POLL: Duration = Duration::from_millis(100);

/// Brings the run that `word` names, or the newest, here from the mirror `from`, a folder or a
/// command, and returns its logs. Where the run is here already, and is as far as its mirror,
/// nothing is taken.
pub fn restore(from: &str, word: Option<&str>, strict: bool) -> Result<PathBuf, ErrorPage> {
    let source = MirrorSource::open(from)?;
    let run = MirroredRun::find(source.folder(), from, word)?;
    let Some(there) = run.newer_there(from)? else { return Ok(run.here.logs) };
    warn_of_skipped(&there, strict)?;
    let Some(_lock) = run.lock(there.manifest.step, from)? else { return Ok(run.here.logs) };
    run.bring_records()?;
    let n = run.bring_checkpoints(&there)?;
    let (shown, step) = (run.shown(), there.manifest.step);
    let n = counted(n, "checkpoint");
    to_stderr(&format!("taken from `{from}`: {shown} at step {step}, {n}"));
    Ok(run.here.logs)
}

/// The folder with the runs of a mirror.
enum MirrorSource {
    Folder(PathBuf),
    /// What a command has brought, which is removed with this value.
    Fetched(PathBuf),
}

impl MirrorSource {
    fn open(from: &str) -> Result<Self, ErrorPage> {
        if let Some(word) = placeholders_in(from).iter().find(|word| *word != "folder") {
            let what = format!("`--from`: there is no `{{{word}}}` here");
            return Err(ErrorPage::refused(what, "name the run itself in the command"));
        }
        if let Some((what, _)) = Mirror::fault(from) {
            let help = "write a command that copies from there into `{folder}`, such as \
                        `--from 'rclone copy REMOTE:BUCKET/PATH {folder}'`";
            return Err(ErrorPage::refused(format!("`--from {from}` {what}"), help));
        }
        match Mirror::of(from) {
            Mirror::Command(command) => Self::fetch(&command),
            Mirror::Folder(folder) if folder.is_dir() => Ok(Self::Folder(folder)),
            Mirror::Folder(folder) => {
                let what = format!("`--from`: there is no folder `{}`", folder.display());
                Err(ErrorPage::refused(what, "mount it, or check its name"))
            }
        }
    }

    /// Runs a command that fills a folder, beside which the run will be. What it prints is for the
    /// user.
    fn fetch(command: &str) -> Result<Self, ErrorPage> {
        let folder = files::create_scratch_folder(Path::new("mirror")).map_err(unwritable)?;
        let source = Self::Fetched(folder);
        let mut shell = Command::new("sh");
        // What ddprun prints to stdout is for programs.
        shell.arg("-c").arg(format!("{{ {}\n}} >&2", with_variables(command)));
        let ended = shell.env(variable("folder"), source.folder()).status();
        let failed = match ended {
            Ok(status) if status.success() => return Ok(source),
            Ok(status) => format!("ended with {status}"),
            Err(error) => format!("cannot be run: {error}"),
        };
        let page = format!("error: the command of `--from` {failed}: `{command}`");
        Err(ErrorPage::new(ExitCode::Storage, page).help("see what it printed above"))
    }

    fn folder(&self) -> &Path {
        match self {
            Self::Folder(folder) | Self::Fetched(folder) => folder,
        }
    }
}

impl Drop for MirrorSource {
    fn drop(&mut self) {
        if let Self::Fetched(folder) = self {
            drop(files::remove_leftover(folder));
        }
    }
}

/// A run in a mirror.
struct MirroredRun {
    name: String,
    logs: PathBuf,
    checkpoints: PathBuf,
    /// The folders that it has here.
    here: RunFolders,
}

impl MirroredRun {
    /// The run of the mirror `from`, whose files are in `root`, that `word` names.
    fn find(root: &Path, from: &str, word: Option<&str>) -> Result<Self, ErrorPage> {
        let logs = choose(root, from, word)?;
        let part = |n: usize| {
            let part = logs.ancestors().nth(n).and_then(Path::file_name).unwrap_or_default();
            part.to_string_lossy().into_owned()
        };
        let (id, name) = (part(0), part(1));
        let (_, checkpoints) = places(logs.ancestors().nth(3).unwrap_or(root), &name, &id);
        let here = StoredRun::read(&logs).map_err(|error| ErrorPage::from_error(&error))?.run;
        let is_named = |folder: &Path| folder.file_name().is_some_and(|name| name == id.as_str());
        if here.id != id || !is_named(&here.logs) || !is_named(&here.checkpoints) {
            let page = format!("error: `{}` says that it is another run", logs.display());
            return Err(ErrorPage::new(ExitCode::Checkpoint, page));
        }
        Ok(Self { name, logs, checkpoints, here })
    }

    /// `quickstart/20261123-134205-3f9a0`
    fn shown(&self) -> String {
        format!("{}/{}", self.name, self.here.id)
    }

    /// The step of the newest intact checkpoint that the run has here.
    fn newest_here(&self) -> Option<u64> {
        if !is_run(&self.here.logs) {
            return None;
        }
        checkpoint::newest(&self.here.checkpoints).ok().map(|newest| newest.manifest.step)
    }

    /// The newest intact checkpoint of the mirror; `None` if the run here is as far.
    fn newer_there(&self, from: &str) -> Result<Option<OpenCheckpoint>, ErrorPage> {
        let here = self.newest_here();
        // Not every byte of a far place is read if it makes no difference.
        let Some(complete) = newest_complete(&self.checkpoints) else {
            if let Some(step) = here {
                self.say_kept(step, from, None);
                return Ok(None);
            }
            let page = format!(
                "error: there is no complete checkpoint of `{}` in `{from}`\n  do: take an earlier \
                 run from there, or start a new one",
                self.shown()
            );
            return Err(ErrorPage::new(ExitCode::Checkpoint, page));
        };
        if let Some(step) = here.filter(|step| *step >= complete) {
            self.say_kept(step, from, Some(complete));
            return Ok(None);
        }
        let there = checkpoint::newest(&self.checkpoints);
        let there = there.map_err(|error| ErrorPage::from_error(&error))?;
        match here {
            Some(step) if step >= there.manifest.step => {
                self.say_kept(step, from, Some(there.manifest.step));
                Ok(None)
            }
            Some(step) => {
                let (run, newer) = (self.shown(), there.manifest.step);
                to_stderr(&format!("{run} is here with step {step}; `{from}` has step {newer}"));
                Ok(Some(there))
            }
            None => Ok(Some(there)),
        }
    }

    /// Says that nothing is taken from the mirror.
    fn say_kept(&self, step: u64, from: &str, there: Option<u64>) {
        let has = there.map_or("no checkpoint of it".to_owned(), |step| format!("step {step}"));
        let run = self.shown();
        to_stderr(&format!(
            "{run} is here with step {step}, and `{from}` has {has}: nothing is taken from there"
        ));
    }

    /// Takes possession of the run's folder here; `None` if another process has brought the run
    /// meanwhile, up to `step`.
    fn lock(&self, step: u64, from: &str) -> Result<Option<RunLock>, ErrorPage> {
        let began = Instant::now();
        files::create_folder(&self.here.logs).map_err(unwritable)?;
        loop {
            match RunLock::acquire(&self.here.logs) {
                Err(files::Error::InUse { .. }) if began.elapsed() < TURN => {}
                acquired => return acquired.map(Some).map_err(unwritable),
            }
            std::thread::sleep(POLL);
            if let Some(here) = self.newest_here().filter(|here| *here >= step) {
                self.say_kept(here, from, Some(step));
                return Ok(None);
            }
        }
    }

    /// Copies the records of the run. Starts that its mirror does not know were not as far.
    fn bring_records(&self) -> Result<(), ErrorPage> {
        let here = &self.here.logs;
        let known = newest_start(&self.logs);
        for start in (known + 1..=newest_start(here)).rev() {
            for name in [RESOLVED, DESCRIPTION, DATA] {
                let file = of_start(here, name, start);
                if file.exists() {
                    files::remove_file(&file).map_err(unwritable)?;
                }
            }
        }
        copy_records(&self.logs, here, &mut BTreeMap::new()).map_err(|why| {
            let help = "see to it, then the same command brings the rest";
            ErrorPage::new(ExitCode::Storage, format!("error: {why}")).help(help)
        })
    }

    /// Copies the checkpoints of the run up to `newest`, oldest first, and says how many.
    fn bring_checkpoints(&self, newest: &OpenCheckpoint) -> Result<u64, ErrorPage> {
        let found = checkpoint::all(&self.checkpoints);
        let found = found.map_err(|error| ErrorPage::from_error(&error))?;
        let last = newest.manifest.step;
        let mut n = 0;
        for found in found.into_iter().filter(|found| found.step <= last) {
            let path = self.here.checkpoints.join(checkpoint::name(found.step));
            let brought = checkpoint::open(&found.path).and_then(|there| {
                let is_here =
                    checkpoint::verify(&path).is_ok_and(|here| here.manifest == there.manifest);
                if is_here { Ok(()) } else { checkpoint::bring(&there, &path) }
            });
            match brought {
                Ok(()) => n += 1,
                Err(error) if found.step < last && !error.is_storage() => {
                    to_stderr(&format!("warning: {error}; it is left out"));
                }
                Err(error) => return Err(ErrorPage::from_error(&error)),
            }
        }
        Ok(n)
    }
}

/// The step of the newest checkpoint in `folder` whose files are all there.
fn newest_complete(folder: &Path) -> Option<u64> {
    let found = checkpoint::all(folder).ok()?;
    let mut complete =
        found.iter().rev().filter_map(|found| checkpoint::open_complete(&found.path));
    complete.next().map(|opened| opened.manifest.step)
}

/// The logs of the run that `word` names among those in `root`: of several of a name the newest.
fn choose(root: &Path, from: &str, word: Option<&str>) -> Result<PathBuf, ErrorPage> {
    let is_in_place = |logs: &&PathBuf| {
        let folder = logs.ancestors().nth(2).and_then(Path::file_name);
        folder.is_some_and(|name| name == LOGS)
    };
    let found = runs::find(root).runs;
    let all: Vec<&PathBuf> = found.iter().filter(is_in_place).collect();
    let word = word.map(|word| word.strip_prefix(runs::RUN).unwrap_or(word));
    let named = |is_meant: &dyn Fn(&Path, &str) -> bool| -> Vec<&PathBuf> {
        let is_meant = |logs: &&&PathBuf| word.is_none_or(|word| is_meant(logs, word));
        all.iter().filter(is_meant).copied().collect()
    };
    let by_name = named(&|logs, word| logs.parent().is_some_and(|it| it.ends_with(word)));
    let begins = |logs: &Path, word: &str| {
        let id = logs.file_name().and_then(|id| id.to_str()).unwrap_or_default();
        !word.is_empty() && (id.starts_with(word) || logs.ends_with(word))
    };
    let by_id = named(&begins);
    let newest = by_name.into_iter().max_by_key(|logs| logs.file_name());
    let only = if let [run] = by_id[..] { Some(run) } else { None };
    if let Some(run) = newest.or(only) {
        return Ok(run.clone());
    }
    let what = match word {
        Some(word) if by_id.is_empty() => format!("there is no run `{word}` in `{from}`"),
        Some(word) => format!("`{word}` is ambiguous: `{from}` has several such runs"),
        None => format!("there is no run in `{from}`"),
    };
    let shown = |logs: &&PathBuf| {
        let name = logs.parent().and_then(Path::file_name).unwrap_or_default();
        let id = logs.file_name().unwrap_or_default();
        format!("{}/{}", name.to_string_lossy(), id.to_string_lossy())
    };
    let names: Vec<String> = all.iter().rev().take(SHOWN).map(shown).collect();
    let help = if names.is_empty() {
        "name the folder of a `checkpoint.mirror`, which has `logs` and `checkpoints`".to_owned()
    } else {
        format!("choose one of {}", names.join(", "))
    };
    Err(ErrorPage::refused(what, help))
}
