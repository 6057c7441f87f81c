//! The checkpoints from which the trials of a sweep start: all from the same, also when the run
//! that they are named by has a better one by now, or has deleted them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::checkpoint;
use crate::config::Loaded;
use crate::files;

/// In the folder of a sweep: the words of `model.pretrained`, and what they meant at first.
const FILE: &str = "pretrained.json";

/// What the words for checkpoints mean in a sweep.
pub(super) struct SweepWeights {
    folder: PathBuf,
    known: Mutex<BTreeMap<String, First>>,
}

/// What a word meant at first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct First {
    weights: PathBuf,
    /// The hash of a checkpoint; other weights have none.
    fingerprint: Option<String>,
}

impl First {
    /// Where the weights are: in their run or, if that has deleted them, in the `sweep`.
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

/// Where the sweep keeps the checkpoint with this hash.
fn pin(sweep: &Path, fingerprint: &str) -> PathBuf {
    let short = fingerprint.get(..16).unwrap_or(fingerprint);
    sweep.join(checkpoint::PIN).join(short)
}

fn is_there(path: &Path, fingerprint: &str) -> bool {
    checkpoint::open(path).is_ok_and(|opened| opened.manifest.fingerprint() == fingerprint)
}

impl SweepWeights {
    /// Those of the sweep in `folder`, as far as an earlier start has found them.
    pub(super) fn of(folder: &Path) -> Self {
        let read = files::read(&folder.join(FILE)).ok();
        let known = read.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        Self { folder: folder.to_owned(), known: Mutex::new(known) }
    }

    /// Puts the checkpoint that its word meant at first into the experiment of a trial, `find`s the
    /// rest, and remembers what the word means now if it is new.
    pub(super) fn hold<E>(
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
            known.insert(word.to_owned(), First { weights, fingerprint });
        }
        Ok(())
    }

    /// Writes down what is known and keeps the checkpoints, for a later start; the folder of the
    /// sweep is there.
    pub(super) fn keep(&self) -> Result<(), checkpoint::Error> {
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
