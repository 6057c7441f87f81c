//! Removes runs, each with its logs and its checkpoints, and nothing else.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::checkpoint::{self, Contents};
use crate::files::{self, RunLock};
use crate::record::{self, to_stderr};
use crate::runs::{
    self, RUN, checkpoints_folder, checkpoints_of, other_owner, project_of, weights_before,
};
use crate::sweep;
use crate::terminal::counted;
use crate::user_error::{ErrorPage, ExitCode};

/// Foreign files that are named.
const SHOWN: usize = 3;

/// A run to remove.
struct Target {
    /// Folder of logs.
    logs: PathBuf,
    /// Folder of checkpoints, if it exists and is another one.
    checkpoints: Option<PathBuf>,
    /// True for a sweep, whose trials are runs of their own.
    is_sweep: bool,
}

impl Target {
    /// The sweep of which it is a trial.
    fn sweep(&self) -> Option<&Path> {
        let is_sweep =
            |folder: &&Path| folder.join(sweep::JOURNAL).is_file() || sweep::is_range_test(folder);
        self.logs.parent().filter(|_| !self.is_sweep).filter(is_sweep)
    }
}

/// A removal of folders that are reported one by one.
pub struct Removal<'a> {
    /// Only looks, and reports what would be removed.
    pub dry_run: bool,
    /// Receives each removed folder, as seen from here, and its bytes on the disk.
    pub report: &'a mut dyn FnMut(&Path, u64) -> Result<(), ErrorPage>,
}

impl Removal<'_> {
    /// Removes the runs and sweeps that `words` name: all of them, or none. Returns the bytes that
    /// are freed.
    pub fn remove_runs(&mut self, words: &[String]) -> Result<u64, ErrorPage> {
        let mut targets: Vec<Target> = Vec::new();
        for word in words {
            for run in targets_named(word)? {
                if !targets.iter().any(|other| other.logs == run.logs) {
                    targets.push(run);
                }
            }
        }
        targets.iter().try_for_each(|run| is_not_needed(run, &targets))?;
        // A sweep that runs compares its trials, goes on with them and draws them.
        let sweeps = targets.iter().filter_map(Target::sweep);
        let folders: BTreeSet<&Path> = targets.iter().map(|run| &*run.logs).chain(sweeps).collect();
        let locks = folders.into_iter().map(|folder| lock(folder, self.dry_run));
        let locks = locks.collect::<Result<Vec<_>, _>>()?;
        targets.retain(|run| {
            let is_there = run.logs.exists();
            if !is_there {
                let run = from_here(&run.logs);
                to_stderr(&format!("note: `{}` was removed by another process", run.display()));
            }
            is_there
        });
        let beside: BTreeSet<PathBuf> =
            targets.iter().flat_map(|run| folders_of(&run.logs)).collect();
        let mut freed = 0;
        for run in &targets {
            freed += self.remove(run)?;
        }
        drop(locks);
        // What an `rm` has left that was killed goes with the next one.
        let above = |run: &Target| {
            let all = run.logs.ancestors().nth(if run.is_sweep { 1 } else { 2 });
            all.filter(|all| all.ends_with(runs::LOGS)).map(Path::to_owned)
        };
        let mut left: BTreeSet<PathBuf> = beside.iter().flat_map(|it| left_in(it)).collect();
        let all: BTreeSet<PathBuf> = targets.iter().filter_map(above).collect();
        left.extend(all.into_iter().flat_map(|logs| leftovers(&logs)));
        Ok(freed + self.remove_leftovers(left)?)
    }

    /// Removes what an interrupted removal has left. Returns the bytes that are freed.
    pub fn remove_leftovers(
        &mut self,
        left: impl IntoIterator<Item = PathBuf>,
    ) -> Result<u64, ErrorPage> {
        let mut freed = 0;
        for folder in left {
            let size = size(&folder);
            if !self.dry_run {
                files::remove_leftover(&folder).map_err(|error| unwritable(&error))?;
                // It may have been the last thing in it.
                files::remove_empty_parent(&folder);
            }
            self.say_removed(&folder, size)?;
            freed += size;
        }
        Ok(freed)
    }

    /// Removes the run's folders, and those above that are then empty. Returns the bytes that they
    /// took.
    fn remove(&mut self, run: &Target) -> Result<u64, ErrorPage> {
        let mut freed = 0;
        // What is left after a kill between the two is still a run.
        if let Some(folder) = &run.checkpoints {
            freed += self.remove_checkpoints(folder)?;
        }
        let size = if run.is_sweep { size_of_files(&run.logs) } else { size(&run.logs) };
        if !self.dry_run {
            remove_whole(&run.logs)?;
        }
        self.say_removed(&run.logs, size)?;
        Ok(freed + size)
    }

    /// Removes the files of checkpoints, and the folder unless it holds anything else. Returns the
    /// bytes that they took.
    fn remove_checkpoints(&mut self, folder: &Path) -> Result<u64, ErrorPage> {
        let Contents { own, folders, foreign } =
            checkpoint::contents(folder, &[runs::LINK_TO_LOGS]);
        if foreign.is_empty() {
            let size = size(folder);
            if !self.dry_run {
                remove_whole(folder)?;
            }
            self.say_removed(folder, size)?;
            return Ok(size);
        }
        let size = own.iter().map(|path| size_of(path)).sum();
        if !self.dry_run {
            for path in &own {
                let is_folder = path.symlink_metadata().is_ok_and(|found| found.is_dir());
                let remove = if is_folder { files::remove_folder } else { files::remove_file };
                remove(path).map_err(|error| not_removed(folder, error))?;
            }
            // Those with foreign files stay.
            for folder in &folders {
                files::remove_empty_folder(folder);
            }
        }
        let names = foreign.iter().take(SHOWN).filter_map(|path| path.strip_prefix(folder).ok());
        let names: Vec<String> = names.map(|name| format!("`{}`", name.display())).collect();
        let more = foreign.len().saturating_sub(SHOWN);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        to_stderr(&format!(
            "note: `{}` stays: it also holds {}{more}, which no checkpoint consists of",
            from_here(folder).display(),
            names.join(", ")
        ));
        self.say_removed(folder, size)?;
        Ok(size)
    }

    fn say_removed(&mut self, folder: &Path, size: u64) -> Result<(), ErrorPage> {
        (self.report)(&from_here(folder), size)
    }
}

/// Folders that an `rm` was removing when it was killed: of the runs below `logs`, and of their
/// checkpoints, which are beside it or where the runs say.
pub fn leftovers(logs: &Path) -> BTreeSet<PathBuf> {
    let beside = logs.with_file_name("checkpoints");
    let usual = [logs, beside.as_path()].into_iter().flat_map(files::folders_with_itself);
    let runs::FolderScan { runs, sweeps } = runs::find(logs);
    let trials = sweeps.iter().flat_map(|sweep| runs::trials(sweep));
    let named: Vec<PathBuf> =
        runs.into_iter().chain(trials).flat_map(|run| folders_of(&run)).collect();
    let folders: BTreeSet<PathBuf> = usual.chain(named).collect();
    folders.iter().flat_map(|folder| left_in(folder)).collect()
}

/// Leftovers in one folder, each under one name.
fn left_in(folder: &Path) -> Vec<PathBuf> {
    let whole = |left: PathBuf| left.canonicalize().unwrap_or(left);
    files::stale_folders(folder).into_iter().map(|left| from_here(&whole(left))).collect()
}

/// The folders that hold the logs of a run, and its checkpoints, below its project.
fn folders_of(run: &Path) -> Vec<PathBuf> {
    let both = [Some(run.to_owned()), checkpoints_folder(run)].into_iter().flatten();
    let holders = both.filter_map(|folder| folder.parent().map(Path::to_owned));
    holders.map(|folder| from_here(&folder)).collect()
}

/// The run that `word` names; of a sweep its trials, and then itself.
fn targets_named(word: &str) -> Result<Vec<Target>, ErrorPage> {
    let word = word.strip_prefix(RUN).unwrap_or(word);
    let sweep = runs::find_sweep(Path::new(word));
    let Some(sweep) = sweep.or_else(|| runs::find_range_test(Path::new(word))) else {
        let found = runs::named_run(Some(word))?;
        is_no_link(&found)?;
        names_one(word, &found)?;
        return Ok(vec![target_of(&found)?]);
    };
    is_no_link(&sweep)?;
    is_sweep_alone(word, &sweep)?;
    let trials = runs::trials(&sweep);
    let mut all = trials.iter().map(|trial| target_of(trial)).collect::<Result<Vec<_>, _>>()?;
    let logs = sweep.canonicalize().map_err(|reason| gone(&sweep, reason))?;
    all.push(Target { logs, checkpoints: None, is_sweep: true });
    Ok(all)
}

/// Refuses the name that a sweep shares with runs of an experiment.
fn is_sweep_alone(word: &str, sweep: &Path) -> Result<(), ErrorPage> {
    let others = runs::other_runs(sweep);
    if others.is_empty() {
        return Ok(());
    }
    let what = format!(
        "`{word}` is a sweep, but its folder also holds {}:{}",
        match others.len() {
            1 => "a run".to_owned(),
            n => format!("{n} runs"),
        },
        list(&others)
    );
    let help = "remove or move these runs first, each by its id";
    Err(ErrorPage::refused(what, help))
}

/// A line for each run.
fn list(runs: &[PathBuf]) -> String {
    let lines: Vec<String> = runs.iter().map(|run| format!("\n  {}", run.display())).collect();
    lines.concat()
}

/// Refuses a link, which is not what it leads to.
fn is_no_link(found: &Path) -> Result<(), ErrorPage> {
    if found.is_symlink() {
        let what = format!("`{}` is a link", found.display());
        let help = "name the folder that it leads to, or remove the link";
        return Err(ErrorPage::refused(what, help));
    }
    Ok(())
}

/// The files of the run in the folder `found`.
fn target_of(found: &Path) -> Result<Target, ErrorPage> {
    let logs = found.canonicalize().map_err(|reason| gone(found, reason))?;
    let checkpoints = checkpoints_of(&logs)?.filter(|folder| folder != &logs);
    let checkpoints = checkpoints.filter(|folder| !are_of_another(folder, &logs));
    if let Some(folder) = &checkpoints {
        is_within_project(folder, &logs)?;
    }
    if let Some(folder) = &checkpoints
        && (folder.file_name() != logs.file_name() || logs.starts_with(folder))
    {
        let what = format!("`{}` may hold files of other runs, too", folder.display());
        return Err(ErrorPage::refused(what, "remove this run's files by hand"));
    }
    Ok(Target { logs, checkpoints, is_sweep: false })
}

/// Refuses checkpoints that are elsewhere: the description of a run that came from somebody else
/// may name any folder.
fn is_within_project(checkpoints: &Path, logs: &Path) -> Result<(), ErrorPage> {
    let Some(project) = project_of(logs) else { return Ok(()) };
    if checkpoints.starts_with(&project) && checkpoints != project {
        return Ok(());
    }
    let what = format!(
        "the checkpoints of `{}` are in `{}`, outside of the project `{}`",
        from_here(logs).display(),
        checkpoints.display(),
        project.display()
    );
    let help = "if they are this run's, remove that folder by hand, and then the run";
    Err(ErrorPage::refused(what, help))
}

/// True if the checkpoints belong to another run and the folder `logs` is a copy of its logs;
/// prints a note then.
fn are_of_another(checkpoints: &Path, logs: &Path) -> bool {
    let owner = other_owner(checkpoints, logs);
    if let Some(owner) = &owner {
        to_stderr(&format!(
            "note: `{}` is a copy of `{}`, whose checkpoints stay",
            from_here(logs).display(),
            from_here(owner).display()
        ));
    }
    owner.is_some()
}

/// An experiment's name means its newest run everywhere else; what is removed is named exactly.
fn names_one(word: &str, found: &Path) -> Result<(), ErrorPage> {
    let id = found.file_name().unwrap_or_default().to_string_lossy();
    let last = Path::new(word).file_name().map(OsStr::to_string_lossy).unwrap_or_default();
    let folder = found.parent().unwrap_or(found);
    let is_id = !last.is_empty() && id.starts_with(&*last) && !folder.ends_with(&*last);
    let siblings = runs::find(folder).runs;
    if is_id || record::is_run(Path::new(word)) || siblings.len() <= 1 {
        return Ok(());
    }
    let what = format!("`{word}` has {} runs:{}", siblings.len(), list(&siblings));
    Err(ErrorPage::refused(what, "name one of them by its id"))
}

/// Refuses a run from whose checkpoints another run has started.
fn is_not_needed(run: &Target, targets: &[Target]) -> Result<(), ErrorPage> {
    let Some(checkpoints) = &run.checkpoints else { return Ok(()) };
    let Some(all) = run.logs.parent().and_then(Path::parent) else { return Ok(()) };
    let found = runs::find(all);
    let trials = found.sweeps.iter().flat_map(|sweep| runs::trials(sweep));
    for other in found.runs.iter().cloned().chain(trials) {
        let goes_too = targets.iter().any(|run| run.logs == other);
        let weights = weights_before(&other).filter(|weights| weights.starts_with(checkpoints));
        if let Some(weights) = weights.filter(|_| !goes_too) {
            let what = format!("`{}` started from `{}`", other.display(), weights.display());
            return Err(ErrorPage::refused(what, "remove that run, too, or keep both"));
        }
    }
    Ok(())
}

/// Keeps others from starting the run while it is removed. A dry run only looks.
fn lock(folder: &Path, is_dry: bool) -> Result<Option<RunLock>, ErrorPage> {
    let held = |holder: &str| {
        let what = format!("`{}` is in use by {holder}", from_here(folder).display());
        ErrorPage::refused(what, "wait for that process, or stop it")
    };
    // One of them may be about to take the lead.
    let workers = sweep::count_workers(folder);
    if workers > 0 && files::lock_holder(folder).is_none() {
        return Err(held(&counted(workers as u64, "worker")));
    }
    if is_dry {
        return files::lock_holder(folder).map_or(Ok(None), |holder| Err(held(&holder)));
    }
    match RunLock::to_remove(folder) {
        Ok(lock) => Ok(lock),
        Err(files::Error::InUse { holder, .. }) => Err(held(&holder)),
        Err(error) => Err(unwritable(&error)),
    }
}

fn unwritable(error: &files::Error) -> ErrorPage {
    let help = error.help_or("make the folders of this run, and those that they are in, writable");
    ErrorPage::of(ExitCode::Storage, error).help(help)
}

/// Removes a folder, and the one above if nothing else is in it: another run keeps it.
fn remove_whole(folder: &Path) -> Result<(), ErrorPage> {
    files::remove_folder(folder).map_err(|error| not_removed(folder, error))?;
    files::remove_empty_parent(folder);
    Ok(())
}

/// A path below the current folder, relative to it.
fn from_here(path: &Path) -> PathBuf {
    let here = std::env::current_dir().and_then(fs::canonicalize).unwrap_or_default();
    let is_below = here.parent().is_some();
    path.strip_prefix(&here).ok().filter(|_| is_below).unwrap_or(path).to_owned()
}

/// Bytes on the disk of the files in a folder, without those of folders in it.
fn size_of_files(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let files = entries.filter_map(|entry| entry.metadata().ok()).filter(|found| !found.is_dir());
    files.map(|found| 512 * found.blocks()).sum()
}

/// Bytes on the disk of what is in a folder; links count as themselves.
fn size(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| size_of(&entry.path())).sum()
}

fn size_of(path: &Path) -> u64 {
    match path.symlink_metadata() {
        Ok(found) if found.is_dir() => size(path),
        Ok(found) => 512 * found.blocks(),
        Err(_) => 0,
    }
}

/// Another `rm` of the same run may be faster.
fn not_removed(folder: &Path, error: files::Error) -> ErrorPage {
    match error {
        files::Error::Io { reason, .. } if reason.kind() == std::io::ErrorKind::NotFound => {
            gone(folder, reason)
        }
        error => unwritable(&error),
    }
}

/// A run that was there a moment ago cannot be found.
fn gone(run: &Path, reason: std::io::Error) -> ErrorPage {
    if reason.kind() == std::io::ErrorKind::NotFound {
        let page = format!("error: `{}` was removed by another process", run.display());
        return ErrorPage::new(ExitCode::Refused, page);
    }
    ErrorPage::of(ExitCode::Storage, &files::Error::io("find", run)(reason))
}
