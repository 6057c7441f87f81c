//! The checkpoints from which the trials of a sweep start: all from the same, also when the run
//! that the words name has a better one by now, or has deleted them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::checkpoint;
use crate::config::Loaded;
use crate::files;

/// File in the folder of a sweep: the words of `model.pretrained`, and their first meaning.
const FILE: &str = "pretrained.json";

/// Meaning of the words for checkpoints in a sweep.
pub(crate) struct SweepWeights {
    folder: PathBuf,
    known: Mutex<BTreeMap<String, FirstMeaning>>,
}

/// First meaning of a word.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct FirstMeaning {
    weights: PathBuf,
    /// The hash of a checkpoint; other weights have none.
    fingerprint: Option<String>,
}

impl FirstMeaning {
    /// Path of the weights: in their run or, if that has deleted them, in the `sweep`.
    fn found(&self, sweep: &Path) -> PathBuf {
        match &self.fingerprint {
            Some(fingerprint) if !is_there(&self.weights, fingerprint) => pin(sweep, fingerprint),
            _ => self.weights.clone(),
        }
    }

    /// Keeps a checkpoint in the folder of the `sweep`.
    fn keep(&self, sweep: &Path) -> Result<(), checkpoint::Error> {
        let Some(fingerprint) = &self.fingerprint else { return Ok(()) };
        let pin = pin(sweep, fingerprint);
        if is_there(&pin, fingerprint) {
            return Ok(());
        }
        checkpoint::pin(&checkpoint::open(&self.weights)?, &pin)
    }
}

/// Path at which the sweep keeps the checkpoint with this hash.
fn pin(sweep: &Path, fingerprint: &str) -> PathBuf {
    let short = fingerprint.get(..16).unwrap_or(fingerprint);
    sweep.join(checkpoint::PIN).join(short)
}

fn is_there(path: &Path, fingerprint: &str) -> bool {
    checkpoint::open(path).is_ok_and(|opened| opened.manifest.fingerprint() == fingerprint)
}

impl SweepWeights {
    /// Reads the meanings of the sweep in `folder`, as far as an earlier start has found them.
    pub(crate) fn of(folder: &Path) -> Self {
        let read = files::read(&folder.join(FILE)).ok();
        let known = read.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        Self { folder: folder.to_owned(), known: Mutex::new(known) }
    }

    /// Puts the first meaning of its word into the experiment of a trial, `find`s the rest, and
    /// remembers the meaning of a new word.
    pub(crate) fn hold<E>(
        &self,
        loaded: &mut Loaded,
        find: impl FnOnce(&mut Loaded) -> Result<(), E>,
    ) -> Result<(), E> {
        let asked = loaded.experiment.model.pretrained.clone();
        let Some(word) = asked.as_deref().and_then(Path::to_str) else { return find(loaded) };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(first) = known.get(word) {
            loaded.experiment.model.pretrained = Some(first.found(&self.folder));
            return find(loaded);
        }
        find(loaded)?;
        if let Some(weights) = loaded.experiment.model.pretrained.clone() {
            let found = loaded.pretrained.as_ref();
            let fingerprint = found.map(|found| found.fingerprint.clone());
            known.insert(word.to_owned(), FirstMeaning { weights, fingerprint });
        }
        Ok(())
    }

    /// Writes the meanings and keeps the checkpoints, for a later start. The folder of the sweep
    /// must exist.
    pub(crate) fn keep(&self) -> Result<(), checkpoint::Error> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.is_empty() {
            return Ok(());
        }
        let bytes = serde_json::to_vec_pretty(&*known).unwrap_or_default();
        let file = self.folder.join(FILE);
        if files::read(&file).is_ok_and(|kept| kept == bytes) {
            return Ok(());
        }
        known.values().try_for_each(|first| first.keep(&self.folder))?;
        Ok(files::write_atomic(&file, &bytes)?)
    }
}
