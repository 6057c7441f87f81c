//! Recordings: class folders of them, or manifests of `NeMo`.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::init::entries::Entries;
use crate::init::names;
use crate::init::recognised::{RecognisedData, Task, VAL_FRACTION, path};

/// Words for the part to validate on, in the place of `train` in the name of the part to train on.
const VAL: [&str; 6] = ["val", "valid", "validation", "dev", "test", "eval"];

/// True if a folder, or one in it, holds recordings.
pub(super) fn is_there(folder: &Path) -> bool {
    has_recordings(folder) || names::folders(folder).iter().any(|class| has_recordings(class))
}

/// Checks that `part` has recordings.
///
/// # Errors
///
/// The reason why it is of no use, in words.
pub(super) fn fits(part: &Path) -> Result<(), String> {
    if is_there(part) { Ok(()) } else { Err("it holds no recordings".to_owned()) }
}

pub(super) fn has_recordings(folder: &Path) -> bool {
    names::files(folder).iter().any(|file| is_recording(file))
}

fn is_recording(file: &Path) -> bool {
    ["wav", "flac", "ogg", "oga", "mp3"].contains(&&*names::ending(file))
}

/// A folder of recordings without a part to validate on.
pub(super) fn folder(at: &Path) -> RecognisedData {
    let classes = names::folders(at);
    // A folder of one folder has its classes in the names of the files.
    let root = match &classes[..] {
        [only] if !has_recordings(at) => only,
        _ => at,
    };
    let by_name = has_recordings(root);
    let options = [("train_dir", path(root)), ("val_fraction", VAL_FRACTION.into())];
    RecognisedData::new("speech", &options, Task::Speech { by_name })
}

/// The manifest to train on in a folder.
pub(super) fn manifest_in(folder: &Path) -> Option<PathBuf> {
    let is_manifest = |file: &PathBuf| {
        ["json", "jsonl"].contains(&&*names::ending(file)) && Entries::of(file) == Entries::Manifest
    };
    let mut all: Vec<PathBuf> =
        names::files(folder).into_iter().filter(|file| is_manifest(file)).collect();
    let train = all.iter().position(|file| names::name(file).contains("train"));
    match train {
        Some(train) => Some(all.swap_remove(train)),
        None if all.len() == 1 => all.pop(),
        None => None,
    }
}

/// A manifest to train on, with those that stand beside it under names like its own.
pub(super) fn manifest(at: &Path) -> RecognisedData {
    let beside = |part: &str| {
        let name = names::name(at);
        let other = at.with_file_name(name.replacen("train", part, 1));
        (name.contains("train") && other.is_file()).then(|| path(&other))
    };
    let val = match VAL.iter().find_map(|part| beside(part)) {
        Some(val) => ("val_manifest", val),
        None => ("val_fraction", Value::from(VAL_FRACTION)),
    };
    let mut options = vec![("train_manifest", path(at)), val];
    options.extend(beside("noise").map(|noise| ("noise_manifest", noise)));
    let by_name = false;
    RecognisedData::new("speech", &options, Task::Speech { by_name })
}
