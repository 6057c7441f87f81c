//! The checkpoints from which the trials of a sweep start: all from the same, also when the run
//! that they are named by has a better one by now.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::config::Loaded;
use crate::files;

/// In the folder of a sweep: the words of `model.pretrained`, and what they meant at first.
const FILE: &str = "pretrained.json";

/// What the words for checkpoints mean in a sweep.
pub(super) struct SweepWeights {
    file: PathBuf,
    known: Mutex<BTreeMap<String, PathBuf>>,
}

impl SweepWeights {
    /// Those of the sweep in `folder`, as far as an earlier start has found them.
    pub(super) fn of(folder: &Path) -> Self {
        let file = folder.join(FILE);
        let read = std::fs::read(&file).ok();
        let known = read.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        Self { file, known: Mutex::new(known) }
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
        if let Some(folder) = known.get(word) {
            loaded.experiment.model.pretrained = Some(folder.clone());
            return find(loaded);
        }
        find(loaded)?;
        if let Some(found) = loaded.experiment.model.pretrained.clone() {
            known.insert(word.to_owned(), found);
        }
        Ok(())
    }

    /// Writes down what is known, for a later start; the folder of the sweep is there.
    pub(super) fn keep(&self) -> Result<(), files::Error> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.is_empty() {
            return Ok(());
        }
        let bytes = serde_json::to_vec_pretty(&*known).unwrap_or_default();
        if std::fs::read(&self.file).is_ok_and(|kept| kept == bytes) {
            return Ok(());
        }
        files::write_atomic(&self.file, &bytes)
    }
}
