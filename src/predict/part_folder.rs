//! `FILE.parts`: the finished parts of a job, until `FILE` is joined from them.
//!
//! ```text
//! job.json         the job of the parts: a start goes on only with the same
//! part-000000.json rows
//! rank-0.lock      held by the process that does this share; free as soon as that is gone
//! join.lock        held by the process that joins the file
//! ```
//!
//! The ranks of a launcher share the folder, so they need no connection between them, and a rank
//! that is killed loses only a part.

use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::files::{self, AtomicFile, RunLock};
use crate::predict::error::Error;
use crate::predict::format::{Format, RowWriter};
use crate::predict::row::{Column, JobSummary, Rows};
use crate::user_error::ExitCode;

/// Version of a part's file.
pub(super) const FORMAT: u32 = 1;
/// The job that the parts belong to.
const JOB: &str = "job.json";
/// Time between two looks at the work of other ranks.
pub(super) const POLL: Duration = Duration::from_millis(20);

/// Identity of a job; a second start goes on only with the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Identity {
    pub(super) format: u32,
    pub(super) version: String,
    /// Fingerprint of the checkpoint.
    pub(super) weights: String,
    /// Hash of the inputs: their names, sizes and times.
    pub(super) inputs: String,
    pub(super) top: Option<usize>,
    pub(super) batch_size: u32,
    pub(super) precision: String,
}

/// The folder of the parts of one job.
pub(super) struct PartFolder<'a> {
    path: PathBuf,
    out: &'a Path,
    /// True if an existing file may be replaced.
    replaces: bool,
    /// Number of parts.
    n: usize,
}

impl<'a> PartFolder<'a> {
    /// The folder of `n` parts of the file `out`, which need not exist.
    pub(super) fn of(out: &'a Path, replaces: bool, n: usize) -> Self {
        let mut path = out.as_os_str().to_owned();
        path.push(".parts");
        Self { path: path.into(), out, replaces, n }
    }

    /// Makes it this job's, with what an earlier start has done.
    pub(super) fn own(&self, identity: &Identity) -> Result<(), Error> {
        self.refuse_existing()?;
        self.refuse_foreign()?;
        let text = identity.text();
        match files::read(&self.path.join(JOB)) {
            Ok(kept) if kept == text => return Ok(()),
            Ok(_) if !self.replaces && self.has_parts() => {
                let what = format!(
                    "`{}` holds parts of other predictions: of other inputs, weights or options",
                    self.path.display()
                );
                let help = "run the command that began them, or discard them with `--overwrite`";
                return Err(Error::new(ExitCode::Refused, what).with_help(help));
            }
            // Without its first file, it is what a start left that was killed while it began or
            // while it cleared up.
            _ if self.path.is_dir() => {
                let _ours = self.claim("rank-0")?.ok_or_else(|| self.in_use())?;
                self.clear()?;
            }
            _ => {}
        }
        files::create_writable_folder(&self.path)?;
        Ok(files::write_atomic(&self.path.join(JOB), &text)?)
    }

    /// Refuses a folder that holds anything but parts: it is somebody's, even with `--overwrite`.
    fn refuse_foreign(&self) -> Result<(), Error> {
        let foreign = match std::fs::symlink_metadata(&self.path) {
            Err(_) => return Ok(()),
            Ok(found) if !found.is_dir() => Some(format!("`{}`", self.path.display())),
            Ok(_) => self.foreign().map(|path| format!("`{}`", path.display())),
        };
        let Some(foreign) = foreign else { return Ok(()) };
        let what = format!("{foreign} is none of the parts of predictions that ddprun writes");
        let help = "move it elsewhere, or choose another file to write";
        Err(Error::new(ExitCode::Refused, what).with_help(help))
    }

    /// A file in the folder that is not of a job.
    fn foreign(&self) -> Option<PathBuf> {
        let entries = std::fs::read_dir(&self.path).into_iter().flatten().flatten();
        let is_own = |entry: &std::fs::DirEntry| {
            let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
            is_file && entry.file_name().to_str().is_some_and(is_name)
        };
        let others = entries.filter(|entry| !is_own(entry)).map(|entry| entry.path());
        let job = self.path.join(JOB);
        let is_job = |bytes: Vec<u8>| serde_json::from_slice::<Identity>(&bytes).is_ok();
        let is_other = files::read(&job).is_ok_and(|bytes| !is_job(bytes));
        others.chain(is_other.then_some(job)).min()
    }

    /// Removes the files of a job, and the folder if nothing else is in it. Its first file goes
    /// first: others see by it that all is over.
    fn clear(&self) -> Result<(), Error> {
        let gone = |error: files::Error| match error {
            files::Error::Io { reason, .. } if reason.kind() == ErrorKind::NotFound => Ok(()),
            error => Err(Error::from(error)),
        };
        files::remove_file(&self.path.join(JOB)).or_else(gone)?;
        for entry in std::fs::read_dir(&self.path).into_iter().flatten().flatten() {
            if entry.file_name().to_str().is_some_and(is_name) {
                files::remove_file(&entry.path()).or_else(gone)?;
            }
        }
        // Another rank may be keeping a part that nobody needs any more.
        files::remove_empty_folder(&self.path);
        Ok(())
    }

    /// True if there is something to continue.
    fn has_parts(&self) -> bool {
        (0..self.n.max(1)).any(|at| self.part(at).is_file())
    }

    /// Removes it if no part is done; one that cannot be removed does no harm.
    pub(super) fn discard_if_empty(&self) {
        let is_ours = || matches!(self.claim("rank-0"), Ok(Some(_)));
        if !self.has_parts() && self.path.is_dir() && is_ours() {
            drop(self.clear());
        }
    }

    /// Waits until rank 0 has made it this job's; false if all is done already.
    pub(super) fn wait_for(&self, identity: &Identity, timeout: Duration) -> Result<bool, Error> {
        let began = Instant::now();
        let text = identity.text();
        loop {
            if files::read(&self.path.join(JOB)).is_ok_and(|kept| kept == text) {
                return Ok(true);
            }
            let is_late = began.elapsed() > timeout;
            // The others were done before this rank came, or rank 0 refuses to replace the file.
            if self.out.exists() && (is_late || !self.replaces && self.is_over()) {
                return Ok(false);
            }
            if is_late {
                let what = format!("rank 0 has not begun `{}`", self.path.display());
                let help = "give all ranks the same folder, also those of other machines";
                return Err(Error::new(ExitCode::Peer, what).with_help(help));
            }
            std::thread::sleep(POLL);
        }
    }

    /// True if the file was joined, and the folder is gone.
    pub(super) fn is_over(&self) -> bool {
        !self.path.join(JOB).exists()
    }

    /// The right to do what `name` stands for, until it is dropped; `None` while another process
    /// has it, or when all is over.
    pub(super) fn claim(&self, name: &str) -> Result<Option<RunLock>, Error> {
        match RunLock::acquire_named(&self.path, &format!("{name}.lock")) {
            Ok(lock) => Ok(Some(lock)),
            Err(files::Error::InUse { .. }) => Ok(None),
            Err(_) if self.is_over() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The error while another process does the same.
    pub(super) fn in_use(&self) -> Error {
        let what = format!("another process writes `{}`", self.out.display());
        Error::new(ExitCode::Storage, what).with_help("wait for it, or stop it")
    }

    /// The parts that are still to be done.
    pub(super) fn open(&self) -> Vec<usize> {
        let is_open = |at: &usize| !self.part(*at).is_file();
        if self.is_over() { Vec::new() } else { (0..self.n).filter(is_open).collect() }
    }

    /// Keeps the rows of a part: all of them or none.
    pub(super) fn keep(&self, at: usize, rows: &Rows) -> Result<(), Error> {
        let bytes = serde_json::to_vec(rows).map_err(|error| {
            Error::new(ExitCode::Bug, format!("a part cannot be written: {error}"))
        })?;
        match files::write_atomic(&self.part(at), &bytes) {
            Err(error) if !self.is_over() => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Joins the file from all parts, one after the other, and removes them; `None` if another
    /// process has done so.
    pub(super) fn join(
        &self,
        format: Format,
        columns: &[Column],
        timeout: Duration,
    ) -> Result<Option<JobSummary>, Error> {
        let began = Instant::now();
        let lock = loop {
            match self.claim("join")? {
                _ if self.is_over() => return Ok(None),
                Some(lock) => break lock,
                None if began.elapsed() > timeout => {
                    let what =
                        format!("another rank does not end to join `{}`", self.out.display());
                    return Err(Error::new(ExitCode::Peer, what));
                }
                None => std::thread::sleep(POLL),
            }
        };
        self.refuse_existing()?;
        let mut summary = JobSummary::default();
        let mut to = RowWriter::new(format, columns, AtomicFile::create(self.out)?)?;
        for at in 0..self.n {
            let rows = self.rows(at)?;
            summary.count(&rows, columns);
            to.write(rows)?;
        }
        to.finish()?.complete()?;
        self.clear()?;
        drop(lock);
        Ok(Some(summary))
    }

    fn rows(&self, at: usize) -> Result<Rows, Error> {
        let path = self.part(at);
        let mut bytes = Vec::new();
        let read = files::open(&path).and_then(|mut file| file.read_to_end(&mut bytes));
        let rows = read
            .map_err(|error| error.to_string())
            .and_then(|_| serde_json::from_slice(&bytes).map_err(|error| error.to_string()));
        rows.map_err(|why| {
            let what = format!("`{}` cannot be used: {why}", path.display());
            Error::new(ExitCode::Storage, what).with_help("remove it, and run the command again")
        })
    }

    fn part(&self, at: usize) -> PathBuf {
        self.path.join(format!("part-{at:06}.json"))
    }

    fn refuse_existing(&self) -> Result<(), Error> {
        if self.replaces || self.out.symlink_metadata().is_err() {
            return Ok(());
        }
        let what = format!("`{}` exists already", self.out.display());
        let help = "choose another file, or replace it with `--overwrite`";
        Err(Error::new(ExitCode::Refused, what).with_help(help))
    }
}

/// True if a file of this name may belong to a job.
fn is_name(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let numbered = |before: &str, after: &str| {
        name.strip_prefix(before).and_then(|name| name.strip_suffix(after)).is_some_and(is_number)
    };
    name == JOB
        || name == "join.lock"
        || numbered("rank-", ".lock")
        || numbered("part-", ".json")
        || files::is_temporary(name)
}

impl Identity {
    fn text(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(self).unwrap_or_default()
    }
}
