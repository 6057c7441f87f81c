//! State -> folder.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use safetensors::tensor::{Dtype, TensorView};

use crate::checkpoint::manifest::{FileEntry, MANIFEST, Manifest};
use crate::checkpoint::retention::{self, Entry};
use crate::checkpoint::{Error, FORMAT, load};
use crate::engine::TrainState;
use crate::event::Saved;
use crate::files;
use crate::nn::Params;
use crate::nn::state_dict::save_state_dict;
use crate::optim::Moments;
use crate::plan::Plan;
use crate::units::Bytes;

/// Everything that a checkpoint holds.
pub struct Snapshot<'a> {
    /// The plan of the run.
    pub plan: &'a Plan,
    /// Parameters and buffers.
    pub params: &'a Params,
    /// Optimizer state of each parameter in registration order.
    pub moments: &'a [Moments],
    /// Progress.
    pub state: &'a TrainState,
}

/// Writes `snapshot` into `folder` (the run's checkpoints), moves the links, and deletes the
/// checkpoints that `checkpoint.keep_last` and `keep_best` do not keep.
///
/// # Errors
///
/// The disk; older checkpoints and links then stand as before.
pub fn save(folder: &Path, snapshot: &Snapshot<'_>) -> Result<Saved, Error> {
    let started = Instant::now();
    let step = snapshot.state.step;
    let path = folder.join(name(step));
    let contents = encode(snapshot)?;
    let manifest = describe(snapshot, &contents);
    files::write_folder_atomic(&path, |temporary| {
        for (name, bytes) in &contents {
            files::write_atomic(&temporary.join(name), bytes)?;
        }
        let text =
            serde_json::to_vec_pretty(&manifest).map_err(|error| encode_error(step, &error))?;
        Ok::<_, Error>(files::write_atomic(&temporary.join(MANIFEST), &text)?)
    })?;
    let best = tidy(folder, snapshot, step)?;
    let size = contents.values().map(|bytes| bytes.len() as u64).sum();
    Ok(Saved { step, path, best, size: Bytes(size), seconds: started.elapsed().as_secs_f64() })
}

/// `step-00001000`
pub(crate) fn name(step: u64) -> String {
    format!("step-{step:08}")
}

fn encode(snapshot: &Snapshot<'_>) -> Result<BTreeMap<&'static str, Vec<u8>>, Error> {
    let step = snapshot.state.step;
    let model = save_state_dict(snapshot.params).map_err(|error| encode_error(step, &error))?;
    let state =
        serde_json::to_vec_pretty(snapshot.state).map_err(|error| encode_error(step, &error))?;
    Ok(BTreeMap::from([
        ("model.safetensors", model),
        ("optimizer.safetensors", encode_moments(snapshot)?),
        ("state.json", state),
    ]))
}

/// Moments under PyTorch's names: `exp_avg.layer1.0.conv1.weight`.
fn encode_moments(snapshot: &Snapshot<'_>) -> Result<Vec<u8>, Error> {
    let step = snapshot.state.step;
    let kinds = Moments::names(&snapshot.plan.optimizer.rule);
    let mut views = Vec::new();
    for (param, moments) in snapshot.params.parameters().iter().zip(snapshot.moments) {
        for (kind, values) in kinds.iter().zip([&moments.first, &moments.second]) {
            if values.is_empty() {
                continue;
            }
            let bytes = bytemuck::cast_slice(values);
            let view = TensorView::new(Dtype::F32, param.shape().to_vec(), bytes)
                .map_err(|error| encode_error(step, &error))?;
            views.push((format!("{kind}.{}", param.name()), view));
        }
    }
    safetensors::serialize(views, None).map_err(|error| encode_error(step, &error))
}

fn encode_error(step: u64, error: &dyn std::fmt::Display) -> Error {
    Error::Encode { step, why: error.to_string() }
}

fn describe(snapshot: &Snapshot<'_>, contents: &BTreeMap<&'static str, Vec<u8>>) -> Manifest {
    let state = snapshot.state;
    let files =
        contents.iter().map(|(&name, bytes)| (name.to_owned(), FileEntry::of(bytes))).collect();
    Manifest {
        format: FORMAT,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        step: state.step,
        metric: state.metric_now(&snapshot.plan.checkpoint.monitor),
        files,
        seal: String::new(),
    }
    .sealed()
}

/// Moves the links and deletes what is not kept. Returns whether `step` is the best.
fn tidy(folder: &Path, snapshot: &Snapshot<'_>, step: u64) -> Result<bool, Error> {
    let plan = &snapshot.plan.checkpoint;
    let entries: Vec<Entry> = load::all(folder)?
        .into_iter()
        .filter_map(|found| found.manifest.ok())
        .map(|manifest| Entry { step: manifest.step, metric: manifest.metric })
        .collect();
    let best = retention::best(plan, &entries);
    link(folder, "latest", step)?;
    if let Some(best) = best {
        link(folder, "best", best)?;
    }
    for step in retention::surplus(plan, &entries) {
        delete(&folder.join(name(step)))?;
    }
    Ok(best == Some(step))
}

/// Swaps `latest` and, for those who know the seeds' names, `checkpoint_latest`.
fn link(folder: &Path, kind: &str, step: u64) -> Result<(), Error> {
    let target = folder.join(name(step));
    files::swap_link(&folder.join(kind), &target)?;
    Ok(files::swap_link(&folder.join(format!("checkpoint_{kind}")), &target)?)
}

/// Deletes a checkpoint, its manifest first: half a checkpoint never looks whole.
fn delete(folder: &Path) -> Result<(), Error> {
    let failed = |path: PathBuf| move |source| Error::Read { path, source };
    let manifest = folder.join(MANIFEST);
    std::fs::remove_file(&manifest).map_err(failed(manifest))?;
    std::fs::remove_dir_all(folder).map_err(failed(folder.to_owned()))
}
