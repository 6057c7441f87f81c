//! A folder -> the runs and sweeps below it, and everything that was run there, read by several
//! threads.

use std::fs;
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use super::sweeps::trial_summaries;
use super::{Error, Summary, SweepSummary, summary, sweep_summary};
use crate::record;
use crate::sweep;

/// Levels of folders down to a run: `projects/project/logs/<name>/<run>`.
const MAX_DEPTH: usize = 4;

/// Folders of runs and sweeps, each sorted by its path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FolderScan {
    /// Runs other than trials; if the folder is a sweep itself, all runs in it.
    pub runs: Vec<PathBuf>,
    pub sweeps: Vec<PathBuf>,
}

/// Finds runs and sweeps in `folder`, which may be one itself. Links are not followed, and
/// unreadable folders count as empty.
pub fn find(folder: &Path) -> FolderScan {
    let mut found = FolderScan::default();
    if is_sweep(folder) {
        found.runs = runs_in(folder);
        found.sweeps.push(folder.to_owned());
        return found;
    }
    look_into(folder, MAX_DEPTH, &mut found);
    found.runs.sort();
    found.sweeps.sort();
    found
}

/// The trials of the sweep in `folder`, sorted by their numbers.
pub fn trials(folder: &Path) -> Vec<PathBuf> {
    runs_in(folder).into_iter().filter(|path| sweep::is_trial(path)).collect()
}

/// Runs other than trials in the folder of a sweep: an earlier ddprun let an experiment have the
/// name of a sweep.
pub fn other_runs(folder: &Path) -> Vec<PathBuf> {
    runs_in(folder).into_iter().filter(|path| !sweep::is_trial(path)).collect()
}

fn runs_in(folder: &Path) -> Vec<PathBuf> {
    let mut runs: Vec<PathBuf> = inside(folder).filter(|path| record::is_run(path)).collect();
    runs.sort();
    runs
}

fn look_into(folder: &Path, depth: usize, found: &mut FolderScan) {
    if is_sweep(folder) {
        found.sweeps.push(folder.to_owned());
        found.runs.extend(other_runs(folder));
    } else if record::is_run(folder) {
        found.runs.push(folder.to_owned());
    } else if depth > 0 {
        inside(folder).for_each(|path| look_into(&path, depth - 1, found));
    }
}

fn is_sweep(folder: &Path) -> bool {
    folder.join(sweep::JOURNAL).is_file()
}

/// The folders in a folder, without links and hidden ones.
fn inside(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let shown = folders.filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."));
    shown.map(|entry| entry.path())
}

/// Runs and sweeps below a folder.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Listing {
    /// Runs, oldest first; the trials, if the folder is a sweep's own.
    pub runs: Vec<Summary>,
    /// Sweeps, oldest first.
    pub sweeps: Vec<SweepSummary>,
    /// Folders of runs and sweeps that cannot be read.
    pub unreadable: Vec<Unreadable>,
}

/// A run or sweep that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    pub folder: PathBuf,
    pub why: String,
}

impl Listing {
    /// True if nothing was found.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.sweeps.is_empty() && self.unreadable.is_empty()
    }

    fn keep<T>(&mut self, read: Vec<(PathBuf, Result<T, Error>)>) -> Vec<T> {
        let mut whole = Vec::new();
        for (folder, read) in read {
            match read {
                Ok(value) => whole.push(value),
                // It was removed while we looked.
                Err(_) if !folder.exists() => {}
                Err(error) => self.unreadable.push(Unreadable { folder, why: in_words(&error) }),
            }
        }
        whole
    }
}

/// The error and its cause.
pub fn in_words(error: &dyn std::error::Error) -> String {
    let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("{error}{cause}")
}

/// Reads all runs and sweeps below `folder`, which may be one itself.
pub fn list(folder: &Path) -> Listing {
    let FolderScan { runs, sweeps } = find(folder);
    let mut listing = Listing::default();
    let is_sweep = sweeps.first().is_some_and(|sweep| sweep == folder);
    let read = if is_sweep { trial_summaries(folder) } else { in_parallel(runs, summary) };
    listing.runs = listing.keep(read);
    listing.sweeps = listing.keep(in_parallel(sweeps, sweep_summary));
    listing.runs.sort_by(|a, b| (a.started, &a.id).cmp(&(b.started, &b.id)));
    listing.sweeps.sort_by(|a, b| (a.started, &a.name).cmp(&(b.started, &b.name)));
    listing
}

/// Reads each folder, in their order.
fn in_parallel<T: Send>(
    folders: Vec<PathBuf>,
    read: impl Fn(&Path) -> Result<T, Error> + Sync,
) -> Vec<(PathBuf, Result<T, Error>)> {
    let read = |folder: PathBuf| {
        let result = read(&folder);
        (folder, result)
    };
    folders.into_par_iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files;
    use crate::record::RESOLVED;

    #[test]
    fn runs_and_sweeps_are_found_from_the_project_down_and_links_are_not_followed() {
        let project = tempfile::tempdir().unwrap();
        let at = |path: &str| project.path().join(path);
        let make = |path: &str, file: &str| {
            files::create_folder(&at(path)).unwrap();
            files::write_atomic(&at(path).join(file), b"").unwrap();
        };
        make("logs/a/20260101-b", RESOLVED);
        make("logs/a/20260101-a", RESOLVED);
        make("logs/tune", sweep::JOURNAL);
        make("logs/tune/trial-0002", RESOLVED);
        make("logs/a/no-run", "notes.txt");
        make("logs/.hidden/20260101-c", RESOLVED);
        std::os::unix::fs::symlink(at("logs/a"), at("logs/b")).unwrap();
        let expected = FolderScan {
            runs: vec![at("logs/a/20260101-a"), at("logs/a/20260101-b")],
            sweeps: vec![at("logs/tune")],
        };
        assert_eq!(find(project.path()), expected);
        assert_eq!(find(&at("logs")), expected);
        assert_eq!(find(&at("logs/a")).runs, expected.runs);
        let trials = vec![at("logs/tune/trial-0002")];
        assert_eq!(
            find(&at("logs/tune")),
            FolderScan { runs: trials, sweeps: vec![at("logs/tune")] }
        );
        assert_eq!(find(&at("logs/a/20260101-a")).runs, [at("logs/a/20260101-a")]);
        assert_eq!(find(&at("nowhere")), FolderScan::default());

        make("logs/tune/20260101-d", RESOLVED);
        let other = at("logs/tune/20260101-d");
        assert!(find(&at("logs")).runs.contains(&other), "beside the sweep of its name");
        assert_eq!(other_runs(&at("logs/tune")), [other]);
        assert_eq!(super::trials(&at("logs/tune")), [at("logs/tune/trial-0002")]);
    }
}
