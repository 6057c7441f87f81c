//! Folder -> state.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;

use crate::checkpoint::Error;
use crate::checkpoint::manifest::{self, Damage, Manifest};
use crate::engine::TrainState;
use crate::nn::Params;
use crate::nn::state_dict::{Strict, load_state_dict_bytes};
use crate::optim::Moments;
use crate::plan::Plan;

/// A checkpoint folder as it was found.
#[derive(Clone, Debug)]
pub struct Found {
    /// The folder.
    pub path: PathBuf,
    /// The step that its name says.
    pub step: u64,
    /// Its manifest, if it can be read.
    pub manifest: Result<Manifest, Damage>,
}

/// A checkpoint in memory, every byte checked.
#[derive(Clone, Debug)]
pub struct Restored {
    /// The folder.
    pub path: PathBuf,
    /// Progress.
    pub state: TrainState,
    /// Newer checkpoints that were passed over, and why.
    pub passed_over: Vec<String>,
    contents: BTreeMap<String, Vec<u8>>,
}

/// All checkpoints of `folder`, oldest first.
///
/// # Errors
///
/// The folder cannot be read. A folder that is not there holds no checkpoints.
pub fn all(folder: &Path) -> Result<Vec<Found>, Error> {
    let failed = |source| Error::Read { path: folder.to_owned(), source };
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let step = name.and_then(|name| name.strip_prefix("step-")?.parse().ok());
        if let (Some(step), true) = (step, path.is_dir()) {
            found.push(Found { manifest: manifest::read(&path), step, path });
        }
    }
    found.sort_by_key(|found| found.step);
    Ok(found)
}

/// The newest checkpoint of `folder` that is whole.
///
/// # Errors
///
/// There is none; each one's damage is named.
pub fn newest(folder: &Path) -> Result<Restored, Error> {
    let mut passed_over = Vec::new();
    for found in all(folder)?.into_iter().rev() {
        match open(&found.path) {
            Ok(restored) => return Ok(Restored { passed_over, ..restored }),
            Err(error) => passed_over.push(error.to_string()),
        }
    }
    Err(Error::NoneUsable { folder: folder.to_owned(), damaged: passed_over })
}

/// The checkpoint in the folder `path`.
///
/// # Errors
///
/// It is damaged, or its state cannot be read.
pub fn open(path: &Path) -> Result<Restored, Error> {
    let damaged = |damage| Error::Damaged { path: path.to_owned(), damage };
    let manifest = manifest::read(path).map_err(damaged)?;
    let contents = manifest::read_files(path, &manifest).map_err(damaged)?;
    let state = contents.get("state.json").map(Vec::as_slice).unwrap_or_default();
    let state = serde_json::from_slice(state)
        .map_err(|error| misfit(&path.join("state.json"), error.to_string()))?;
    Ok(Restored { path: path.to_owned(), state, passed_over: Vec::new(), contents })
}

/// Puts a checkpoint's tensors into `params` and returns the optimizer's moments.
///
/// # Errors
///
/// A tensor is missing or has another shape: the checkpoint is another experiment's.
pub fn restore(restored: &Restored, plan: &Plan, params: &Params) -> Result<Vec<Moments>, Error> {
    let bytes = |name: &str| restored.contents.get(name).map(Vec::as_slice).unwrap_or_default();
    let path = restored.path.join("model.safetensors");
    load_state_dict_bytes(params, &path, restored.model(), Strict::All)
        .map_err(|error| misfit(&path, error.to_string()))?;
    read_moments(&restored.path, bytes("optimizer.safetensors"), plan, params)
}

fn read_moments(
    folder: &Path,
    bytes: &[u8],
    plan: &Plan,
    params: &Params,
) -> Result<Vec<Moments>, Error> {
    let path = folder.join("optimizer.safetensors");
    let tensors =
        SafeTensors::deserialize(bytes).map_err(|error| misfit(&path, error.to_string()))?;
    let rule = &plan.optimizer.rule;
    let [first, second] = Moments::names(rule);
    let fill = |kind: &str, name: &str, values: &mut [f32]| -> Result<(), Error> {
        if values.is_empty() {
            return Ok(());
        }
        let key = format!("{kind}.{name}");
        let tensor = tensors.tensor(&key).map_err(|_| misfit(&path, format!("no `{key}`")))?;
        let target: &mut [u8] = bytemuck::cast_slice_mut(values);
        if tensor.data().len() != target.len() {
            return Err(misfit(&path, format!("`{key}` has shape {:?}", tensor.shape())));
        }
        target.copy_from_slice(tensor.data());
        Ok(())
    };
    let mut all = Vec::with_capacity(params.parameters().len());
    for param in params.parameters() {
        let mut moments = Moments::new(rule, param.elem_count());
        fill(first, param.name(), &mut moments.first)?;
        fill(second, param.name(), &mut moments.second)?;
        all.push(moments);
    }
    Ok(all)
}

fn misfit(path: &Path, why: String) -> Error {
    Error::Misfit { path: path.to_owned(), why }
}

/// Whether `path` is itself a checkpoint rather than a folder of checkpoints.
pub fn is_checkpoint(path: &Path) -> bool {
    path.join(manifest::MANIFEST).is_file()
}

impl Restored {
    /// The weights and buffers as a safetensors file.
    pub fn model(&self) -> &[u8] {
        self.contents.get("model.safetensors").map(Vec::as_slice).unwrap_or_default()
    }
}
