//! Predicts many inputs, part by part, on several ranks. With a file to write, finished parts are
//! kept beside it, so that a second start continues; without one, rows are written as soon as those
//! before them are.
//!
//! Ranks that we start are threads, each with a model of its own and its share of the cores; with
//! GPUs each has the next one. Ranks of another launcher are processes, which share the work
//! through the folder of parts: each takes every n-th part, and then what a rank that is gone has
//! left. Which rank does a part does not matter for its rows.

use std::collections::BTreeMap;
use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

use crate::checkpoint::{self, OpenCheckpoint};
use crate::data::{self, InputItems, Inputs};
use crate::files;
use crate::kinds::Kinds;
use crate::launch::rank_env::ExternalRank;
use crate::plan::Plan;
use crate::predict::error::Error;
use crate::predict::form::Form;
use crate::predict::format::{Format, RowWriter};
use crate::predict::part_folder::{FORMAT, Identity, POLL, PartFolder};
use crate::predict::predictor::{Predictor, parts, read};
use crate::predict::row::{Column, JobSummary, Rows};
use crate::user_error::ExitCode;
use crate::worker;

/// Parts for each rank that may be done before the one whose rows are written next.
const PARTS_AHEAD: usize = 2;

/// A job of predictions.
pub(crate) struct Job<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) opened: &'a OpenCheckpoint,
    pub(crate) kinds: &'a Kinds,
    pub(crate) paths: &'a [PathBuf],
    /// Ranks of this process.
    pub(crate) ranks: usize,
    /// The rank of this process, if another launcher has started it; its work goes to a file.
    pub(crate) launched: Option<&'a ExternalRank>,
    /// Most likely classes that are given.
    pub(crate) top: Option<usize>,
    /// The file to write, and true if parts of another job may be discarded.
    pub(crate) out: Option<(&'a Path, bool)>,
    /// Format of rows that are not written to a file.
    pub(crate) form: Format,
}

/// Progress of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress<'a> {
    /// So many items are to be predicted, of which so many were done by an earlier start.
    Began { items: usize, done: usize },
    /// So many more are done.
    Done(usize),
    /// A note about the inputs.
    Noted(&'a str),
}

/// Runs a job; rows go to `stream` if no file is to be written. Returns `None` on a rank whose file
/// another one has joined.
///
/// # Errors
///
/// The inputs or the output cannot be used, or the model fails; what is done is kept.
pub(crate) fn run(
    job: &Job<'_>,
    stream: &mut (dyn Write + Send),
    report: &(dyn Fn(Progress<'_>) + Sync),
) -> Result<Option<JobSummary>, Error> {
    let format = job.out.map_or(Ok(job.form), |(path, _)| format_of(path))?;
    let source = job.kinds.data.build(&job.plan.data.source.kind).map_err(data::Error::from)?;
    let inputs = read(source.as_ref(), job.plan, job.paths, &job.kinds.transforms)?;
    inputs.notes.iter().for_each(|note| report(Progress::Noted(note)));
    let form = Form::of(job.plan, &inputs, job.top)?;
    let parts = parts(&inputs, job.plan.val_batch_size.count());
    let work = SharedWork { job, inputs: &inputs, form: &form, parts: &parts, report };
    match job.out {
        Some((path, replaces)) => work.to_file(format, path, replaces),
        None => work.to_stream(format, stream).map(Some),
    }
}

/// The form of the file that is to be written.
fn format_of(path: &Path) -> Result<Format, Error> {
    if path.is_dir() {
        let what = format!("`{}` is a folder", path.display());
        let help = format!("name a file, such as `{}`", path.join("predictions.csv").display());
        return Err(Error::new(ExitCode::Refused, what).with_help(help));
    }
    if path.parent().is_some_and(checkpoint::is_checkpoint) {
        let what = format!(
            "`{}` would lie in a checkpoint, which holds what ddprun wrote and nothing else",
            path.display()
        );
        let help = "name a file in another folder";
        return Err(Error::new(ExitCode::Refused, what).with_help(help));
    }
    Format::of(path)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// State that all ranks share.
struct SharedWork<'a> {
    job: &'a Job<'a>,
    inputs: &'a Inputs,
    form: &'a Form,
    parts: &'a [Range<usize>],
    report: &'a (dyn Fn(Progress<'_>) + Sync),
}

/// Rows that are written in the order of their parts.
struct OrderedRows<'a> {
    to: RowWriter<&'a mut (dyn Write + Send)>,
    /// The part that is written next.
    next: usize,
    /// Later ones that are done.
    pending: BTreeMap<usize, Rows>,
    summary: JobSummary,
}

impl OrderedRows<'_> {
    fn take(&mut self, at: usize, rows: Rows, columns: &[Column]) -> Result<(), Error> {
        self.pending.insert(at, rows);
        while let Some(rows) = self.pending.remove(&self.next) {
            self.summary.count(&rows, columns);
            self.to.write(rows)?;
            self.next += 1;
        }
        Ok(())
    }
}

impl SharedWork<'_> {
    fn to_stream(
        &self,
        format: Format,
        stream: &mut (dyn Write + Send),
    ) -> Result<JobSummary, Error> {
        let columns = &self.form.columns;
        let to = RowWriter::new(format, columns, stream)?;
        let summary = JobSummary::default();
        let written = Mutex::new(OrderedRows { to, next: 0, pending: BTreeMap::new(), summary });
        let moved = Condvar::new();
        let open: Vec<usize> = (0..self.parts.len()).collect();
        self.begin(&open);
        let most = PARTS_AHEAD * self.job.ranks.max(1);
        let may_begin = |at: usize| lock(&written).next + most > at;
        let wait = |at: usize, is_over: &AtomicBool| {
            while !may_begin(at) && !is_over.load(Ordering::Relaxed) {
                let (_written, _) = moved
                    .wait_timeout(lock(&written), POLL)
                    .unwrap_or_else(PoisonError::into_inner);
            }
        };
        let keep = |at, rows| {
            let taken = lock(&written).take(at, rows, columns);
            moved.notify_all();
            taken
        };
        self.on_ranks(&open, &wait, &keep)?;
        let OrderedRows { to, summary, .. } =
            written.into_inner().unwrap_or_else(PoisonError::into_inner);
        to.finish()?;
        Ok(summary)
    }

    fn to_file(
        &self,
        format: Format,
        out: &Path,
        replaces: bool,
    ) -> Result<Option<JobSummary>, Error> {
        self.refuse_input(out)?;
        let folder = PartFolder::of(out, replaces, self.parts.len());
        let identity = identity(self.job, self.inputs);
        let timeout = self.job.plan.distributed.timeout;
        match self.job.launched.filter(|place| !place.rank.is_first()) {
            None => folder.own(&identity)?,
            Some(_) if folder.wait_for(&identity, timeout)? => {}
            Some(_) => return Ok(None),
        }
        // One that was killed while it joined the file.
        drop(files::remove_temporaries_of(out));
        self.begin(&folder.open());
        // What was refused, such as a damaged checkpoint, leaves nothing to continue.
        self.all_shares(&folder).inspect_err(|_| {
            if self.job.launched.is_none() {
                folder.discard_if_empty();
            }
        })?;
        folder.join(format, &self.form.columns, timeout)
    }

    /// Refuses to put the predictions in the place of what is predicted, by whichever name.
    fn refuse_input(&self, out: &Path) -> Result<(), Error> {
        let identity = |path: &Path| path.metadata().map(|found| (found.dev(), found.ino())).ok();
        let Some(there) = identity(out) else { return Ok(()) };
        let is_there = |path: &Path| identity(path) == Some(there);
        let is_input = self.job.paths.iter().any(|path| is_there(path))
            || match &self.inputs.items {
                InputItems::Files(files) => files.iter().any(|file| is_there(file)),
                InputItems::Listed(items) => {
                    let mut files: Vec<&Path> = items.iter().map(|item| &*item.file).collect();
                    files.dedup();
                    files.into_iter().any(is_there)
                }
            };
        if !is_input {
            return Ok(());
        }
        let what = format!("`{}` is one of the inputs", out.display());
        Err(Error::new(ExitCode::Refused, what).with_help("choose another file to write"))
    }

    /// Reports the number of items.
    fn begin(&self, open: &[usize]) {
        let left: usize = open.iter().map(|&at| self.parts[at].len()).sum();
        let items = self.inputs.items.len();
        (self.report)(Progress::Began { items, done: items - left });
    }

    /// Does this rank's share of the parts, then those of ranks that are gone, until all are done.
    /// Ranks that have finished nothing for long are not waited for: a part that is done twice is
    /// the same.
    fn all_shares(&self, folder: &PartFolder<'_>) -> Result<(), Error> {
        let place = self.job.launched;
        let (rank, world) = place.map_or((0, 1), |at| (at.rank.index(), at.world.count()));
        let mut left = usize::MAX;
        let mut since = Instant::now();
        while left > 0 {
            let is_patient = since.elapsed() <= self.job.plan.distributed.timeout;
            for share in (0..world).map(|turn| (rank + turn) % world) {
                let claim = folder.claim(&format!("rank-{share}"))?;
                if claim.is_none() && world == 1 {
                    return Err(folder.in_use());
                }
                if claim.is_none() && is_patient {
                    continue;
                }
                let mut open = folder.open();
                open.retain(|at| at % world == share);
                self.on_ranks(&open, &|_, _| (), &|at, rows| folder.keep(at, &rows))?;
            }
            let now = folder.open().len();
            if now == left {
                std::thread::sleep(POLL);
            } else {
                (left, since) = (now, Instant::now());
            }
        }
        Ok(())
    }

    /// Lets the ranks of this process do the `open` parts, each after `wait`, and give their rows
    /// to `keep`.
    fn on_ranks(
        &self,
        open: &[usize],
        wait: &(dyn Fn(usize, &AtomicBool) + Sync),
        keep: &(dyn Fn(usize, Rows) -> Result<(), Error> + Sync),
    ) -> Result<(), Error> {
        if open.is_empty() {
            return Ok(());
        }
        let ranks = self.job.ranks.clamp(1, open.len());
        let next = AtomicUsize::new(0);
        let is_over = AtomicBool::new(false);
        let rank = |rank: usize| -> Result<(), Error> {
            let live = || -> Result<(), Error> {
                let (mut predictor, is_shared) = self.predictor(rank, ranks)?;
                let _threads =
                    is_shared.then(|| worker::share_of_cores(predictor.plan())).transpose()?;
                while !is_over.load(Ordering::Relaxed) {
                    let Some(&at) = open.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
                    wait(at, &is_over);
                    let items = self.parts[at].clone();
                    let n = items.len();
                    keep(at, predictor.part(self.inputs, items, self.form)?)?;
                    (self.report)(Progress::Done(n));
                }
                Ok(())
            };
            let lived = worker::on_large_stack(|| Ok(live())).map_err(Error::from).flatten();
            lived.inspect_err(|_| is_over.store(true, Ordering::Relaxed))
        };
        let rank = &rank;
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..ranks).map(|at| scope.spawn(move || rank(at))).collect();
            let panicked = || Error::new(ExitCode::Bug, "ddprun has a bug: a thread panicked");
            let ended = all.into_iter().map(|rank| rank.join().unwrap_or_else(|_| Err(panicked())));
            ended.collect::<Vec<_>>().into_iter().collect()
        })
    }

    /// The model of a rank, on its device, and whether it shares the cores with others.
    fn predictor(&self, rank: usize, ranks: usize) -> Result<(Predictor, bool), Error> {
        let place = self.job.launched.map(|at| (at.local_rank.index(), at.local_world.count()));
        let (rank, ranks) = place.unwrap_or((rank, ranks));
        let mut plan = self.job.plan.clone();
        let devices = &mut plan.distributed.devices;
        if !devices.is_empty() {
            let n = devices.len();
            devices.rotate_left(rank % n);
        }
        if ranks > 1 {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            plan.distributed.threads_per_rank = (cores / ranks).max(1);
        }
        Ok((Predictor::of(plan, self.job.opened, self.job.kinds)?, ranks > 1))
    }
}

fn identity(job: &Job<'_>, found: &Inputs) -> Identity {
    Identity {
        format: FORMAT,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        weights: job.opened.manifest.fingerprint(),
        inputs: digest(&found.items, job.paths),
        top: job.top,
        batch_size: job.plan.val_batch_size.get(),
        precision: format!("{:?}", job.plan.precision),
    }
}

/// Hash of the named paths, and of each input file in them. Other files in a folder do not count:
/// the output may be among them.
fn digest(items: &InputItems, paths: &[PathBuf]) -> String {
    let mut inputs = blake3::Hasher::new();
    inputs.update(&items.len().to_le_bytes());
    match items {
        InputItems::Files(files) => files.iter().for_each(|file| add_file(&mut inputs, file)),
        InputItems::Listed(items) => {
            // Those of a file follow each other.
            let mut files: Vec<&Path> = items.iter().map(|item| &*item.file).collect();
            files.dedup();
            for file in files {
                add_file(&mut inputs, file);
            }
        }
    }
    for path in paths {
        add_file(&mut inputs, path);
    }
    inputs.finalize().to_hex().to_string()
}

/// Adds the name of a file, its size and its time of modification; of a folder only the name.
fn add_file(inputs: &mut blake3::Hasher, file: &Path) {
    inputs.update(file.as_os_str().as_encoded_bytes());
    inputs.update(&[0]);
    let found = std::fs::metadata(file).ok().filter(std::fs::Metadata::is_file);
    let changed = found.as_ref().and_then(|found| found.modified().ok());
    let since = changed.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
    inputs.update(&found.map_or(0, |found| found.len()).to_le_bytes());
    inputs.update(&since.unwrap_or_default().as_nanos().to_le_bytes());
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::SystemTime;

    use super::*;
    use crate::data::InputItem;
    use crate::files;

    #[test]
    fn inputs_are_others_when_a_file_in_a_folder_was_changed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.csv");
        files::write_atomic(&file, b"1,2").unwrap();
        let paths = [folder.path().to_owned()];
        let item = InputItem::new(&file.as_path().into(), Some(1), 0..1);
        let forms = [InputItems::Files(vec![file.clone()]), InputItems::Listed(vec![item])];
        let digests = || forms.each_ref().map(|items| digest(items, &paths));
        let before = digests();
        files::create_folder(&folder.path().join("out.csv.parts")).unwrap();
        assert_eq!(digests(), before, "the output may be beside them");
        // In its place, so that the folder knows nothing of it.
        let opened = File::options().write(true).open(&file).unwrap();
        opened.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        let after = digests();
        assert!(after[0] != before[0] && after[1] != before[1]);
    }
}
