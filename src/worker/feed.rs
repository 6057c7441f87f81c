//! A loader as the engine wants it: batch after batch, with what was replaced kept for a warning.

use crate::data::loader::Loader;
use crate::data::{Batch, Error};

/// Batches of the passes that were asked for, in their order.
pub(crate) struct Feed {
    loader: Loader,
    warnings: Vec<String>,
}

impl Feed {
    /// The batches of `loader`.
    pub(crate) fn new(loader: Loader) -> Self {
        Self { loader, warnings: Vec::new() }
    }

    /// The next batch.
    pub(crate) fn next(&mut self) -> Result<Batch, Error> {
        let ended = || Error::Batch { what: "more passes than were requested".into() };
        let loaded = self.loader.next().ok_or_else(ended)??;
        self.warnings.extend(loaded.substituted);
        Ok(loaded.batch)
    }

    /// Messages about unreadable samples so far.
    pub(crate) fn warnings(self) -> Vec<String> {
        self.warnings
    }
}
