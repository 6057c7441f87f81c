//! State -> folder.

use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::checkpoint::manifest::{FileEntry, MANIFEST, Manifest, Part};
use crate::checkpoint::retention;
use crate::checkpoint::state_copy::{FileCopy, Snapshot, StateCopy};
use crate::checkpoint::{Error, FORMAT, links, load};
use crate::event::Saved;
use crate::failpoint;
use crate::files::{self, NewFile};
use crate::plan::CheckpointPlan;
use crate::units::Bytes;

/// Destination of a run's checkpoints.
#[derive(Clone, Debug)]
pub struct Destination {
    /// The run's checkpoints.
    pub folder: PathBuf,
    /// Number of checkpoints that stay, and the metric that ranks them.
    pub plan: CheckpointPlan,
    /// Files that say what was done: they reach the disk before a checkpoint gets its name, because
    /// a resumed run does not say it again.
    pub records: Vec<PathBuf>,
}

/// A checkpoint that was written.
#[derive(Debug)]
pub struct WrittenCheckpoint {
    pub(crate) path: PathBuf,
    /// True if no checkpoint is better.
    pub(crate) best: bool,
    /// Error with which an older checkpoint could not be deleted.
    pub(crate) surplus: Option<String>,
}

/// Writes `snapshot` into `folder` (the run's checkpoints), moves the links, and deletes the
/// checkpoints that `checkpoint.keep_last` and `keep_best` do not keep. Returns when all of it is
/// on disk.
///
/// # Errors
///
/// The disk; older checkpoints and links then stand as before.
pub fn save(folder: &Path, snapshot: &Snapshot<'_>) -> Result<Saved, Error> {
    let started = Instant::now();
    let mut copied = StateCopy::default();
    copied.take(snapshot)?;
    let stall_seconds = started.elapsed().as_secs_f64();
    let plan = snapshot.plan.checkpoint.clone();
    let destination = Destination { folder: folder.to_owned(), plan, records: vec![] };
    let WrittenCheckpoint { path, best, surplus } = destination.write(&copied)?;
    let seconds = started.elapsed().as_secs_f64();
    let step = copied.step;
    let size = Bytes(copied.size());
    Ok(Saved { step, path, best, size, seconds, stall_seconds, replaced: 0, surplus })
}

/// `step-00001000`
pub fn name(step: u64) -> String {
    format!("step-{step:08}")
}

impl Destination {
    /// Makes a checkpoint of `copied`.
    pub fn write(&self, copied: &StateCopy) -> Result<WrittenCheckpoint, Error> {
        if let Some(name) = copied.not_finite() {
            // It would take the place of one that is good.
            return Err(Error::NotFinite { step: copied.step, name: name.to_owned() });
        }
        let path = self.folder.join(name(copied.step));
        files::write_folder_atomic(&path, |temporary| {
            write_files(temporary, copied)?;
            self.records.iter().try_for_each(|record| Ok::<_, Error>(files::sync(record)?))?;
            failpoint::reach("checkpoint.rename");
            Ok::<_, Error>(())
        })?;
        failpoint::reach("checkpoint.renamed");
        self.rotate(copied.step)
    }

    /// Does what was left to do for the checkpoint of `step`, from which a run continues: its
    /// writer may have been killed before the links were moved, and it may be the last of the run.
    pub(crate) fn finish_interrupted(&self, step: u64) -> Result<(), Error> {
        links::heal(&self.folder)?;
        if self.folder.join(name(step)).is_dir() {
            self.rotate(step)?;
        }
        Ok(())
    }

    /// Moves the links to the checkpoint of `step`, and deletes what is not kept. What cannot be
    /// deleted now (a file that another program has open on NFS, a folder of a lower layer of
    /// overlayfs) is tried again after the next checkpoint.
    fn rotate(&self, step: u64) -> Result<WrittenCheckpoint, Error> {
        let mut entries = load::ranked_by(&self.plan.monitor, &self.folder, step)?;
        // A damaged copy under another name has no place among them.
        entries.retain(|entry| self.folder.join(name(entry.step)).is_dir());
        let best = retention::best(&self.plan, &entries).map(|best| best.step);
        links::link(&self.folder, "latest", step)?;
        if let Some(best) = best {
            links::link(&self.folder, "best", best)?;
        }
        files::sync(&self.folder)?;
        failpoint::reach("checkpoint.rotate");
        // What an earlier attempt has left is tried again.
        drop(files::remove_stale_temporaries(&self.folder));
        let mut surplus = None;
        for old in retention::surplus(&self.plan, &entries) {
            let removed = files::remove_folder(&self.folder.join(name(old)));
            surplus = surplus.or(removed.err().map(|error| error.with_cause()));
        }
        Ok(WrittenCheckpoint {
            path: self.folder.join(name(step)),
            best: best == Some(step),
            surplus,
        })
    }
}

/// Writes all files into `folder`, the manifest last, and waits until they are on disk.
fn write_files(folder: &Path, copied: &StateCopy) -> Result<(), Error> {
    let mut manifest = Manifest {
        format: FORMAT,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        step: copied.step,
        metric: copied.metric,
        monitor: Some(copied.monitor.clone()),
        loss: copied.loss,
        base: copied.base.clone(),
        files: std::collections::BTreeMap::new(),
    };
    let mut written = Vec::new();
    for (name, copy) in copied.files() {
        let mut file = NewFile::create(&folder.join(name))?;
        failpoint::reach("checkpoint.write");
        manifest.files.insert(name.to_owned(), write_parts(&mut file, copy)?);
        written.push(file);
    }
    failpoint::reach("checkpoint.manifest");
    let mut file = NewFile::create(&folder.join(MANIFEST))?;
    file.write(&manifest.sealed()?)?;
    written.push(file);
    failpoint::reach("checkpoint.sync");
    Ok(files::sync_together(&written)?)
}

/// Writes a file and hashes each part as it goes by, while the disk is at work on the parts before
/// it.
fn write_parts(file: &mut NewFile, copy: &FileCopy) -> Result<FileEntry, Error> {
    let mut parts = Vec::new();
    for (name, bytes) in copy.parts() {
        file.write(bytes)?;
        parts.push(Part::of(name, bytes));
    }
    Ok(FileEntry::of(parts))
}
