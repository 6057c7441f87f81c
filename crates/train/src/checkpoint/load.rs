//! Folder -> state.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use safetensors::tensor::TensorView;
use safetensors::{SafeTensorError, SafeTensors};

use crate::checkpoint::manifest::{self, Damage, FileEntry, Manifest, Part};
use crate::checkpoint::retention::{self, Candidate};
use crate::checkpoint::tensors::read_tensors;
use crate::checkpoint::verify::{OpenFiles, contents};
use crate::checkpoint::{Error, FILES, MODEL, OPTIMIZER, STATE, entries, links};
use crate::engine::TrainState;
use crate::event::{Best, TIE_BREAKER};
use crate::failpoint;
use crate::files::{self, NewFile};
use crate::nn::{Buffer, Params};
use crate::optim::ParameterState;
use crate::plan::{CheckpointPlan, Plan};

/// First parts of the names of averaged weights; a run keeps one average.
const AVERAGES: [&str; 3] = ["ema", "swa", "lookahead"];
/// Number of searches for a checkpoint while its run deletes those that were found.
const ATTEMPTS: u32 = 1000;

/// A checkpoint folder as it was found.
#[derive(Clone, Debug)]
pub struct CheckpointFolder {
    pub path: PathBuf,
    /// The step that its name says.
    pub step: u64,
    /// The manifest, if it can be read.
    pub manifest: Result<Manifest, Damage>,
}

/// A checkpoint whose manifest and progress were read and checked. Its tensors are still on disk,
/// and can be read even if its run deletes it meanwhile.
#[derive(Clone, Debug)]
pub struct OpenCheckpoint {
    pub path: PathBuf,
    pub manifest: Manifest,
    /// Progress.
    pub state: TrainState,
    /// Newer checkpoints that are damaged, newest first, where this one is the newest intact one.
    pub skipped: Vec<SkippedCheckpoint>,
    pub files: Arc<OpenFiles>,
}

/// A damaged checkpoint, in whose place an older one is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkippedCheckpoint {
    /// The step of its name.
    pub step: u64,
    pub damage: String,
}

impl OpenCheckpoint {
    /// The weights by the name that the system gives to what this process has open, which is there
    /// also when the checkpoint is deleted.
    pub fn open_weights(&self) -> Option<PathBuf> {
        let file = self.files.get(MODEL).ok()?;
        Some(PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd())))
    }
}

impl SkippedCheckpoint {
    /// The warning that the checkpoint of `step` is used in its place.
    pub fn words(&self, step: u64) -> String {
        let older = self.step.saturating_sub(step);
        let steps = if older == 1 { "step" } else { "steps" };
        format!("{}; using the one of step {step}, {older} {steps} older", self.damage)
    }
}

/// A run as it was when its newest whole checkpoint was written; the parameters are in place.
#[derive(Debug)]
pub struct Restored {
    /// Progress.
    pub state: TrainState,
    /// The optimizer's state, in registration order.
    pub optimizer_state: Vec<ParameterState>,
    /// Newer checkpoints that are damaged, newest first.
    pub skipped: Vec<SkippedCheckpoint>,
}

/// Returns all checkpoints of `folder`, oldest first. Where a copy of the run has folders instead
/// of links, one that is there under no other name counts too.
///
/// # Errors
///
/// The folder cannot be read. A folder that is not there holds no checkpoints.
pub fn all(folder: &Path) -> Result<Vec<CheckpointFolder>, Error> {
    let failed = |source| Error::Read { path: folder.to_owned(), source };
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if let (Some(step), true) = (step_of(&path), path.is_dir()) {
            let manifest = manifest::read(&path);
            // Its run may have deleted it meanwhile.
            if manifest.is_ok() || path.is_dir() {
                found.push(CheckpointFolder { path, step, manifest });
            }
        }
    }
    for path in links::copies(folder) {
        let Ok(manifest) = manifest::read(&path) else { continue };
        if !found.iter().any(|found| found.step == manifest.step) {
            found.push(CheckpointFolder { step: manifest.step, manifest: Ok(manifest), path });
        }
    }
    found.sort_by_key(|found| found.step);
    Ok(found)
}

/// The best checkpoint of `folder`, by its manifests; `None` where no best one is kept, or none was
/// evaluated.
pub fn best(folder: &Path, plan: &CheckpointPlan) -> Result<Option<OpenCheckpoint>, Error> {
    if plan.keep_best == 0 {
        return Ok(None);
    }
    retry_while_rotated(|| {
        let entries = ranked_by(&plan.monitor, folder, u64::MAX)?;
        let Some(best) = retention::best(plan, &entries) else { return Ok(None) };
        let mut all = all(folder)?.into_iter();
        all.find(|found| found.step == best.step).map(|found| open(&found.path)).transpose()
    })
}

/// Calls `find` on a folder in which the run may go on, and again where a checkpoint was deleted
/// while it was looked at.
fn retry_while_rotated<T>(mut find: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    for _ in 0..ATTEMPTS {
        match find() {
            Err(Error::Gone { .. }) => {}
            found => return found,
        }
    }
    find()
}

/// The best checkpoint of `folder`, or the newest where there is no best one.
pub fn best_or_newest(folder: &Path, plan: &CheckpointPlan) -> Result<OpenCheckpoint, Error> {
    best(folder, plan)?.map_or_else(|| newest(folder), Ok)
}

/// The newest checkpoint of `folder` of which every byte is what was written.
pub fn newest(folder: &Path) -> Result<OpenCheckpoint, Error> {
    let (opened, skipped) = newest_readable(folder, verify)?;
    Ok(OpenCheckpoint { skipped, ..opened })
}

/// The newest checkpoint beside a damaged one of which every byte is what was written.
pub(super) fn intact_beside(damaged: &Path) -> Option<PathBuf> {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let folder = damaged.parent()?;
    let damaged = real(damaged);
    let others = all(folder).ok()?.into_iter().rev().map(|found| found.path);
    others.filter(|path| real(path) != damaged).find(|path| verify(path).is_ok())
}

/// Puts the newest whole checkpoint of `folder` into `params`; `None` if there are no checkpoints.
///
/// # Errors
///
/// The errors of [`newest`] and [`restore`]; the parameters then have no meaning.
pub fn restore_newest(
    folder: &Path,
    plan: &Plan,
    params: &Params,
) -> Result<Option<Restored>, Error> {
    restore_newest_part(folder, plan, params, &|_| true)
}

/// Restores as [`restore_newest`], with the optimizer's state of only those parameters for which
/// `keeps` is true.
pub fn restore_newest_part(
    folder: &Path,
    plan: &Plan,
    params: &Params,
    keeps: &dyn Fn(usize) -> bool,
) -> Result<Option<Restored>, Error> {
    if all(folder)?.is_empty() {
        return Ok(None);
    }
    let ((mut state, optimizer_state), skipped) = newest_readable(folder, |path| {
        let opened = open(path)?;
        let optimizer_state = restore_part(&opened, plan, params, keeps)?;
        Ok((opened.state, optimizer_state))
    })?;
    if state.forget_other_metrics(plan) {
        state.best = best_until(folder, &plan.checkpoint, state.step)?;
    }
    Ok(Some(Restored { state, optimizer_state, skipped }))
}

/// Returns the best of the checkpoints of `folder` up to `step`, by their manifests.
pub fn best_until(folder: &Path, plan: &CheckpointPlan, step: u64) -> Result<Option<Best>, Error> {
    Ok(retention::best(plan, &ranked_by(&plan.monitor, folder, step)?))
}

/// The checkpoints of `folder` up to `step`, each with its value of the metric `monitor`, which may
/// not be the one by which it was ranked when it was made. Newer ones were passed over when the run
/// was resumed: they are damaged.
pub(crate) fn ranked_by(monitor: &str, folder: &Path, step: u64) -> Result<Vec<Candidate>, Error> {
    let entry = |CheckpointFolder { path, manifest, .. }: CheckpointFolder| {
        let manifest = manifest.ok().filter(|manifest| manifest.step <= step)?;
        let (metric, loss) = if manifest.monitor.as_deref() == Some(monitor) {
            (manifest.metric, manifest.loss)
        } else {
            let state = open(&path).ok().map(|opened| opened.state);
            let now = |metric| state.as_ref().and_then(|state| state.metric_now(metric));
            (now(monitor), now(TIE_BREAKER))
        };
        let [metric, loss] = [metric, loss].map(|value| value.filter(|value| value.is_finite()));
        Some(Candidate { step: manifest.step, metric, loss })
    };
    Ok(all(folder)?.into_iter().filter_map(entry).collect())
}

/// Returns the result of `read` for the newest checkpoint that is not damaged, and the damage of
/// those passed over.
fn newest_readable<T>(
    folder: &Path,
    mut read: impl FnMut(&Path) -> Result<T, Error>,
) -> Result<(T, Vec<SkippedCheckpoint>), Error> {
    retry_while_rotated(|| {
        let mut skipped = Vec::new();
        for found in all(folder)?.into_iter().rev() {
            match read(&found.path) {
                Ok(value) => return Ok((value, skipped)),
                Err(error) if error.is_damage() => {
                    skipped.push(SkippedCheckpoint { step: found.step, damage: error.to_string() });
                }
                Err(error) => return Err(error),
            }
        }
        let damaged = skipped.into_iter().map(|found| found.damage).collect();
        Err(Error::NoneUsable { folder: folder.to_owned(), damaged })
    })
}

/// The checkpoint in the folder `path`.
pub fn open(path: &Path) -> Result<OpenCheckpoint, Error> {
    if let Some(held) = held_checkpoint(path) {
        return Ok(held);
    }
    // The run may delete the folder, and make it again, at any moment.
    let folder = || path.metadata().ok().map(|found| (found.dev(), found.ino()));
    let before = folder();
    let opened = open_now(path);
    if before.is_none() || folder() != before {
        return Err(Error::Gone { path: path.to_owned() });
    }
    opened
}

fn open_now(path: &Path) -> Result<OpenCheckpoint, Error> {
    let damaged = Error::damaged(path);
    let manifest = manifest::read(path).map_err(&damaged)?;
    let files = OpenFiles::open(path, &manifest);
    let text = read_checked(&files, STATE, &manifest).map_err(damaged)?;
    let state = serde_json::from_slice(&text)
        .map_err(|error| misfit(&path.join(STATE), error.to_string()))?;
    let path = path.to_owned();
    let files = Arc::new(files);
    Ok(OpenCheckpoint { path, manifest, state, skipped: Vec::new(), files })
}

/// The checkpoint in the folder `path`, if all of its files have the sizes that they must have.
pub fn open_complete(path: &Path) -> Option<OpenCheckpoint> {
    let opened = open(path).ok()?;
    FILES.iter().all(|name| opened.files.get(name).is_ok()).then_some(opened)
}

/// Opens a checkpoint as [`open`], and checks every byte.
pub fn verify(path: &Path) -> Result<OpenCheckpoint, Error> {
    let opened = open(path)?;
    opened.files.verify(&opened.manifest).map_err(Error::damaged(path))?;
    Ok(opened)
}

/// The weights and buffers as the bytes of a safetensors file, checked; those below adapters, which
/// are in another file, as f32.
pub fn model(opened: &OpenCheckpoint) -> Result<Vec<u8>, Error> {
    let own = own_model(opened)?;
    match &opened.manifest.base {
        None => Ok(own),
        Some(base) => base.joined(&own),
    }
}

/// The weights and buffers that the checkpoint itself holds.
fn own_model(opened: &OpenCheckpoint) -> Result<Vec<u8>, Error> {
    read_checked(&opened.files, MODEL, &opened.manifest).map_err(Error::damaged(&opened.path))
}

/// The average of the weights that the checkpoint holds, if that is complete: `ema`, `swa` or
/// `lookahead`.
pub fn average(opened: &OpenCheckpoint) -> Option<&'static str> {
    let file = opened.manifest.files.get(OPTIMIZER);
    let is_kept = |average: &&str| {
        let is_one = |part: &Part| part.name.starts_with(&format!("{average}."));
        file.is_some_and(|file| file.parts.iter().any(is_one))
    };
    if opened.state.has_averages() { AVERAGES.into_iter().find(is_kept) } else { None }
}

/// Returns the bytes of [`model`], with the weights replaced by their averages where the run kept
/// some that are complete.
pub fn averaged_model(opened: &OpenCheckpoint) -> Result<Vec<u8>, Error> {
    averaged(opened, model(opened)?)
}

/// [`averaged_model`] without the weights below adapters.
pub fn averaged_adapters(opened: &OpenCheckpoint) -> Result<Vec<u8>, Error> {
    averaged(opened, own_model(opened)?)
}

/// `weights`, replaced by their averages where the run kept some that are complete.
fn averaged(opened: &OpenCheckpoint, weights: Vec<u8>) -> Result<Vec<u8>, Error> {
    let Some(kept) = average(opened) else { return Ok(weights) };
    let state = read_checked(&opened.files, OPTIMIZER, &opened.manifest)
        .map_err(Error::damaged(&opened.path))?;
    let fails =
        |file: &str, error: SafeTensorError| misfit(&opened.path.join(file), error.to_string());
    let state = SafeTensors::deserialize(&state).map_err(|error| fails(OPTIMIZER, error))?;
    let tensors = SafeTensors::deserialize(&weights).map_err(|error| fails(MODEL, error))?;
    let average = |name: &str| state.tensor(&format!("{kept}.{name}")).ok();
    let all = tensors.tensors();
    // Another name of a weight has the weight's bytes, but no average of its own.
    let meant = |name: &str, tensor: &TensorView<'_>| {
        let twin = |(other, view): &&(String, TensorView<'_>)| {
            average(other).is_some()
                && view.shape() == tensor.shape()
                && view.data() == tensor.data()
        };
        average(name).or_else(|| all.iter().find(twin).and_then(|(other, _)| average(other)))
    };
    let replaced: Vec<(&str, TensorView<'_>)> = all
        .iter()
        .map(|(name, tensor)| (name.as_str(), meant(name, tensor).unwrap_or(tensor.clone())))
        .collect();
    let format = [("format".to_owned(), "pt".to_owned())].into();
    safetensors::serialize(replaced, Some(format)).map_err(|error| fails(MODEL, error))
}

/// Reads a checkpoint's tensors into `params` and returns the optimizer's state: each tensor
/// once, straight to its place, where it is checked.
///
/// # Errors
///
/// A file is damaged; a tensor is missing, left over or of another shape: the checkpoint is another
/// experiment's; the weights below adapters are not there, or others. The parameters then have no
/// meaning.
pub fn restore(
    opened: &OpenCheckpoint,
    plan: &Plan,
    params: &Params,
) -> Result<Vec<ParameterState>, Error> {
    restore_part(opened, plan, params, &|_| true)
}

/// Restores as [`restore`], with the optimizer's state of only those parameters for which `keeps`
/// is true: that of others is not read, and empty.
pub fn restore_part(
    opened: &OpenCheckpoint,
    plan: &Plan,
    params: &Params,
    keeps: &dyn Fn(usize) -> bool,
) -> Result<Vec<ParameterState>, Error> {
    match &opened.manifest.base {
        Some(base) => base.load(params, plan.model.pretrained.as_deref())?,
        None => own_values(params)
            .map_err(|error| misfit(&opened.path.join(MODEL), error.to_string()))?,
    }
    let tensors = entries::of_model(params)
        .map_err(|error| misfit(&opened.path.join(MODEL), error.to_string()))?;
    read_tensors(opened, MODEL, tensors)?;
    let mut states = ParameterState::of_all(plan, params, opened.state.step);
    read_tensors(opened, OPTIMIZER, entries::of_optimizer_mut(params, plan, &mut states, keeps))?;
    // Zeros that nothing has touched take no memory until here.
    let others = 0..params.parameters().len();
    for index in others.filter(|&index| !keeps(index)) {
        states[index].tensors = Vec::new();
    }
    Ok(states)
}

/// Makes room in memory for values that were in another file.
fn own_values(params: &Params) -> candle_core::Result<()> {
    params.leave_base(&params.buffers().iter().map(Buffer::name).collect())
}

/// True if `path` is itself a checkpoint, whole or not, rather than a folder of checkpoints.
pub fn is_checkpoint(path: &Path) -> bool {
    path.is_dir() && (step_of(path).is_some() || path.join(manifest::MANIFEST).is_file())
}

/// The step that the name of a checkpoint's folder says.
pub(super) fn step_of(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.strip_prefix("step-")?.parse().ok()
}

pub(crate) fn entry<'a>(manifest: &'a Manifest, name: &str) -> Result<&'a FileEntry, Damage> {
    manifest.files.get(name).ok_or_else(|| Damage::Missing(name.to_owned()))
}

/// The contents of the file `name`: the bytes that are used are the bytes that were checked.
fn read_checked(files: &OpenFiles, name: &str, manifest: &Manifest) -> Result<Vec<u8>, Damage> {
    let entry = entry(manifest, name)?;
    let file = files.get(name)?;
    let mut bytes = vec![0; entry.bytes as usize];
    file.read_exact_at(&mut bytes, 0).map_err(|error| Damage::reading(name, &error))?;
    let mut rest = bytes.as_slice();
    for part in &entry.parts {
        let (these, after) = rest.split_at(part.bytes as usize);
        rest = after;
        if blake3::hash(these).to_hex().as_str() != part.blake3 {
            return Err(contents(name, entry, part));
        }
    }
    Ok(bytes)
}

pub(crate) fn misfit(path: &Path, why: String) -> Error {
    Error::Misfit { path: path.to_owned(), why }
}

/// Name of the folder, beside the checkpoints of a run, that holds the checkpoint of another run
/// from which its first weights are: the other run may delete its own at any moment.
pub const PIN: &str = "pretrained";

/// Checkpoints that this process keeps open.
static HELD: Mutex<Vec<OpenCheckpoint>> = Mutex::new(Vec::new());

/// Keeps a checkpoint open to the end of this process, so that it can be opened again by its path
/// also when it is deleted.
pub fn hold_checkpoint(opened: &OpenCheckpoint) {
    if held_checkpoint(&opened.path).is_none() {
        HELD.lock().unwrap_or_else(PoisonError::into_inner).push(opened.clone());
    }
}

/// Returns the checkpoint of this path, if it is kept open.
pub fn held_checkpoint(path: &Path) -> Option<OpenCheckpoint> {
    let all = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    all.iter().find(|opened| opened.path == path).cloned()
}

/// Makes `folder` the same checkpoint, which takes no space where the file system has hard links.
pub fn pin(opened: &OpenCheckpoint, folder: &Path) -> Result<(), Error> {
    files::write_folder_atomic(folder, |temporary| {
        each_file(opened, temporary, NewFile::link_or_copy)
    })
}

/// Makes `folder` a copy of the checkpoint, also if its run deletes it meanwhile.
pub fn copy(opened: &OpenCheckpoint, folder: &Path) -> Result<(), Error> {
    files::write_folder_atomic(folder, |temporary| {
        each_file(opened, temporary, NewFile::copy)?;
        failpoint::reach("checkpoint.copied");
        Ok(())
    })
}

/// Makes `folder` a checkpoint that came from elsewhere, once every byte of it is here and is what
/// the manifest says.
pub fn bring(opened: &OpenCheckpoint, folder: &Path) -> Result<(), Error> {
    files::write_folder_atomic(folder, |temporary| {
        each_file(opened, temporary, NewFile::link_or_copy)?;
        let here = OpenFiles::open(temporary, &opened.manifest);
        here.verify(&opened.manifest).map_err(Error::damaged(&opened.path))?;
        failpoint::reach("checkpoint.copied");
        Ok(())
    })
}

/// Makes each file of the checkpoint in `folder` by `make`, which gets the open file, its path and
/// the new path.
fn each_file(
    opened: &OpenCheckpoint,
    folder: &Path,
    make: impl Fn(&File, &Path, &Path) -> Result<(), files::Error>,
) -> Result<(), Error> {
    for name in FILES.into_iter().chain([manifest::MANIFEST]) {
        let file = opened.files.get(name).map_err(Error::damaged(&opened.path))?;
        make(file, &opened.path.join(name), &folder.join(name))?;
    }
    Ok(())
}
