//! A loader as the engine wants it: batch after batch, with what was replaced kept for a warning.

use std::sync::Arc;

use crate::data::loader::{Loader, Request, Settings};
use crate::data::sampler::{Chunk, evaluation_chunks};
use crate::data::{Batch, Dataset, Error};
use crate::engine::Split;
use crate::launch::Link;
use crate::plan::Plan;
use crate::units::Rank;

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

    /// Lets `link` know that samples are being read while the training thread waits for them.
    pub(crate) fn observed_by(mut self, link: &Arc<Link>) -> Self {
        let link = Arc::clone(link);
        self.loader.observe(move || link.still_moving());
        self
    }

    /// The chunks of `split` that `rank` evaluates, and their batches.
    pub(crate) fn of_split(
        plan: &Plan,
        split: Split,
        data: Arc<dyn Dataset>,
        rank: Rank,
    ) -> Result<(Vec<Chunk>, Self), Error> {
        let (n, world) = (split.samples(plan), plan.distributed.world_size);
        let chunks: Vec<Chunk> = evaluation_chunks(n, plan.val_batch_size, world, rank).collect();
        let request = |chunk: &Chunk| Request { samples: chunk.samples.clone(), epoch: None };
        let requests: Vec<Request> = chunks.iter().map(request).collect();
        let settings = Settings::new(&plan.data, plan.seed);
        let loader = Loader::start(data, requests.into_iter(), settings)?;
        Ok((chunks, Self::new(loader)))
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
