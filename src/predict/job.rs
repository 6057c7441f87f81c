//! Many inputs, part by part, on several ranks: what is done is kept in files, so that a second
//! start goes on.
//!
//! Ranks of one machine are threads, each with a model of its own and its share of the cores; with
//! GPUs each has the next one. Which rank takes a part does not matter for its rows.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::checkpoint::Opened;
use crate::data::{self, Inputs, Items};
use crate::files;
use crate::kinds::Kinds;
use crate::launch::exit_code as exit;
use crate::plan::Plan;
use crate::predict::cut::parts;
use crate::predict::error::Error;
use crate::predict::form::Form;
use crate::predict::format::Format;
use crate::predict::predictor::{Predictor, read};
use crate::predict::row::{Column, Value};
use crate::worker;

/// Version of a part's file.
const FORMAT: u32 = 1;
/// In the folder of parts: what they are parts of.
const JOB: &str = "job.json";

/// What is to be predicted.
pub(crate) struct Job<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) opened: &'a Opened,
    pub(crate) kinds: &'a Kinds,
    pub(crate) paths: &'a [PathBuf],
    pub(crate) ranks: usize,
    /// Most likely classes that are given.
    pub(crate) top: Option<usize>,
    /// The file to write, and whether what another job left may go; without one rows are returned.
    pub(crate) out: Option<(&'a Path, bool)>,
}

/// What a job says while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// So many items are to be predicted, of which so many were done by an earlier start.
    Began { items: usize, done: usize },
    /// So many more are done.
    Done(usize),
}

/// What came of a job.
pub(crate) struct Ended {
    /// Rows as a file, if none was to be written.
    pub(crate) text: Option<Vec<u8>>,
    pub(crate) rows: usize,
    /// Of these, rows that have an error, and the first of them: path, row and error.
    pub(crate) failed: usize,
    pub(crate) first: Vec<String>,
}

/// Rows with an error that are named.
const MAX_NAMED: usize = 10;

/// Identity of a job; a second start goes on only with the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Identity {
    format: u32,
    version: String,
    /// Of the checkpoint.
    weights: String,
    /// Of the inputs: their names, sizes and times.
    inputs: String,
    top: Option<usize>,
    batch_size: u32,
    precision: String,
}

/// Predicts all of it.
///
/// # Errors
///
/// The inputs or the output cannot be used, or the model fails; what is done is kept.
pub(crate) fn run(job: &Job<'_>, said: &(dyn Fn(Said) + Sync)) -> Result<Ended, Error> {
    let source = job.kinds.data.build(&job.plan.data.source.kind).map_err(data::Error::from)?;
    let inputs = read(source.as_ref(), job.plan, job.paths, &job.kinds.transforms)?;
    let form = Form::of(job.plan, &inputs, job.top)?;
    let parts = parts(&inputs, job.plan.val_batch_size.count());
    let format = job.out.map_or(Ok(Format::Csv), |(path, _)| Format::of(path))?;
    let identity = identity(job, &inputs)?;
    let folder = job.out.map(|(path, replaces)| own(&identity, path, replaces)).transpose()?;
    let done: Vec<Mutex<Option<Rows>>> =
        (0..parts.len()).map(|at| Mutex::new(folder.as_ref().and_then(|f| kept(f, at)))).collect();
    let is_done = |at: &usize| lock(&done[*at]).is_some();
    let before = (0..parts.len()).filter(is_done).map(|at| parts[at].len()).sum();
    said(Said::Began { items: inputs.items.len(), done: before });
    let work = Work { job, inputs: &inputs, form: &form, parts: &parts, folder: folder.as_deref() };
    work.on_ranks(&done, said)?;
    let mut ended = Ended { text: None, rows: 0, failed: 0, first: Vec::new() };
    let mut rows = Vec::new();
    for part in done {
        let part = part.into_inner().unwrap_or_else(PoisonError::into_inner);
        rows.extend(part.unwrap_or_default());
    }
    ended.count(&rows, &form.columns);
    let bytes = format.bytes(&form.columns, &rows)?;
    match (job.out, folder) {
        (Some((path, _)), Some(folder)) => {
            files::write_atomic(path, &bytes)?;
            files::remove_folder(&folder)?;
        }
        _ => ended.text = Some(bytes),
    }
    Ok(ended)
}

type Rows = Vec<Vec<Value>>;

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What all ranks share.
struct Work<'a> {
    job: &'a Job<'a>,
    inputs: &'a Inputs,
    form: &'a Form,
    parts: &'a [Range<usize>],
    folder: Option<&'a Path>,
}

impl Work<'_> {
    /// Has the ranks do what is not done.
    fn on_ranks(
        &self,
        done: &[Mutex<Option<Rows>>],
        said: &(dyn Fn(Said) + Sync),
    ) -> Result<(), Error> {
        let open: Vec<usize> = (0..done.len()).filter(|&at| lock(&done[at]).is_none()).collect();
        let ranks = self.job.ranks.clamp(1, open.len().max(1));
        let (next, is_over) = (AtomicUsize::new(0), AtomicBool::new(open.is_empty()));
        let rank = |rank: usize| -> Result<(), Error> {
            let live = || -> Result<(), Error> {
                let mut predictor = self.predictor(rank, ranks)?;
                let _threads =
                    (ranks > 1).then(|| worker::share_of_cores(predictor.plan())).transpose()?;
                while !is_over.load(Ordering::Relaxed) {
                    let Some(&at) = open.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
                    let items = self.parts[at].clone();
                    let n = items.len();
                    let rows = predictor.part(self.inputs, items, self.form)?;
                    if let Some(folder) = self.folder {
                        keep(folder, at, &rows)?;
                    }
                    *lock(&done[at]) = Some(rows);
                    said(Said::Done(n));
                }
                Ok(())
            };
            let lived = worker::on_large_stack(|| Ok(live())).map_err(Error::from).flatten();
            lived.inspect_err(|_| is_over.store(true, Ordering::Relaxed))
        };
        if is_over.load(Ordering::Relaxed) {
            return Ok(());
        }
        let rank = &rank;
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..ranks).map(|at| scope.spawn(move || rank(at))).collect();
            let panicked = || Error::new(exit::BUG, "ddprun has a bug: a thread panicked");
            let ended = all.into_iter().map(|rank| rank.join().unwrap_or_else(|_| Err(panicked())));
            ended.collect::<Vec<_>>().into_iter().collect()
        })
    }

    /// The model of a rank, on its device.
    fn predictor(&self, rank: usize, ranks: usize) -> Result<Predictor, Error> {
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
        Predictor::of(plan, self.job.opened, self.job.kinds)
    }
}

impl Ended {
    fn count(&mut self, rows: &Rows, columns: &[Column]) {
        let name = |row: &Vec<Value>| {
            let known = columns.iter().zip(row).filter(|(column, value)| {
                ["path", "row"].contains(&column.name.as_str()) && **value != Value::Nothing
            });
            let words: Vec<String> = known
                .map(|(column, value)| match column.name.as_str() {
                    "row" => format!("row {value}"),
                    _ => value.to_string(),
                })
                .collect();
            let why = row.last().map(ToString::to_string).unwrap_or_default();
            format!("{}: {why}", words.join(", "))
        };
        let has_failed = |row: &&Vec<Value>| row.last() != Some(&Value::Nothing);
        self.rows = rows.len();
        self.failed = rows.iter().filter(has_failed).count();
        self.first = rows.iter().filter(has_failed).take(MAX_NAMED).map(name).collect();
    }
}

/// The folder of the parts of `out`, which is this job's.
fn own(identity: &Identity, out: &Path, replaces: bool) -> Result<PathBuf, Error> {
    if out.exists() && !replaces {
        let what = format!("`{}` exists already", out.display());
        let help = "choose another file, or replace it with `--overwrite`";
        return Err(Error::new(exit::REFUSED, what).with_help(help));
    }
    let mut folder = out.as_os_str().to_owned();
    folder.push(".parts");
    let folder = PathBuf::from(folder);
    let text = serde_json::to_vec_pretty(identity).unwrap_or_default();
    match std::fs::read(folder.join(JOB)) {
        Ok(kept) if kept == text => return Ok(folder),
        Ok(_) if !replaces => {
            let what = format!(
                "`{}` holds parts of other predictions: of other inputs, weights or options",
                folder.display()
            );
            let help = "run the command that began them, or discard them with `--overwrite`";
            return Err(Error::new(exit::REFUSED, what).with_help(help));
        }
        Ok(_) => files::remove_folder(&folder)?,
        Err(_) => {}
    }
    files::create_writable_folder(&folder)?;
    files::write_atomic(&folder.join(JOB), &text)?;
    Ok(folder)
}

fn identity(job: &Job<'_>, found: &Inputs) -> Result<Identity, Error> {
    let mut inputs = blake3::Hasher::new();
    inputs.update(&found.items.len().to_le_bytes());
    if let Items::Files(files) = &found.items {
        for file in files {
            inputs.update(file.as_os_str().as_encoded_bytes());
            inputs.update(&[0]);
        }
    }
    for path in job.paths {
        inputs.update(path.as_os_str().as_encoded_bytes());
        inputs.update(&[0]);
        let failed = |error| {
            Error::from(data::Error::Io { action: "read", path: path.clone(), source: error })
        };
        let metadata = std::fs::metadata(path).map_err(failed)?;
        let changed = metadata.modified().ok();
        let since = changed.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
        inputs.update(&metadata.len().to_le_bytes());
        inputs.update(&since.unwrap_or_default().as_nanos().to_le_bytes());
    }
    Ok(Identity {
        format: FORMAT,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        weights: job.opened.manifest.fingerprint(),
        inputs: inputs.finalize().to_hex().to_string(),
        top: job.top,
        batch_size: job.plan.val_batch_size.get(),
        precision: format!("{:?}", job.plan.precision),
    })
}

fn part_file(folder: &Path, at: usize) -> PathBuf {
    folder.join(format!("part-{at:06}.json"))
}

/// Writes a part, whole or not at all.
fn keep(folder: &Path, at: usize, rows: &Rows) -> Result<(), Error> {
    let bytes = serde_json::to_vec(rows)
        .map_err(|error| Error::new(exit::BUG, format!("a part cannot be written: {error}")))?;
    Ok(files::write_atomic(&part_file(folder, at), &bytes)?)
}

/// A part that an earlier start has written.
fn kept(folder: &Path, at: usize) -> Option<Rows> {
    serde_json::from_slice(&std::fs::read(part_file(folder, at)).ok()?).ok()
}
