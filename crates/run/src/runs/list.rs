//! A folder -> everything that was run below it, read by several threads.

use std::path::{Path, PathBuf};

use super::find::{Found, find};
use super::sweeps::trial_summaries;
use super::{Error, Summary, SweepSummary, summary, sweep_summary};

/// Runs and sweeps below a folder.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Listing {
    /// The runs, the oldest first; of a sweep's own folder, its trials.
    pub runs: Vec<Summary>,
    /// The sweeps, the oldest first.
    pub sweeps: Vec<SweepSummary>,
    /// What looks like a run or a sweep and cannot be read.
    pub unreadable: Vec<Unreadable>,
}

/// A run or sweep that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    pub folder: PathBuf,
    pub why: String,
}

impl Listing {
    /// Whether nothing was found.
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

fn in_words(error: &dyn std::error::Error) -> String {
    let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("{error}{cause}")
}

/// All runs and sweeps below `folder`, which may be one itself.
pub fn list(folder: &Path) -> Listing {
    let Found { runs, sweeps } = find(folder);
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
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let share = folders.len().div_ceil(threads).max(1);
    let read_all = |share: &[PathBuf]| share.iter().map(|folder| read(folder)).collect();
    let results: Vec<Vec<Result<T, Error>>> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            folders.chunks(share).map(|share| scope.spawn(|| read_all(share))).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    });
    folders.into_iter().zip(results.into_iter().flatten()).collect()
}
