//! Batches of a loader for the engine, with unreadable samples collected for a warning.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::data::loader::{Loader, Request, Settings, Unreadable};
use crate::data::sampler::{Chunk, evaluation_chunks};
use crate::data::{Batch, Dataset, Error};
use crate::engine::{Engine, Split};
use crate::launch::Link;
use crate::plan::Plan;
use crate::units::Rank;
#[cfg(feature = "cuda")]
use crate::worker::gpu_prefetch::GpuPrefetcher;

/// Unreadable samples that are named; more are only counted.
pub(crate) const MAX_NAMED_SAMPLES: usize = 10;

/// Batches of the passes that were asked for, in their order.
pub(crate) struct BatchSource {
    source: Source,
    unreadable: Vec<Unreadable>,
    /// True while the training thread waits for a batch.
    is_waiting: Arc<AtomicBool>,
}

/// Origin of batches.
enum Source {
    Loader(Loader),
    #[cfg(feature = "cuda")]
    GpuPrefetcher(GpuPrefetcher),
}

impl BatchSource {
    /// The batches of `loader`.
    pub(crate) fn new(loader: Loader) -> Self {
        let is_waiting = Arc::new(AtomicBool::new(true));
        Self { source: Source::Loader(loader), unreadable: Vec::new(), is_waiting }
    }

    /// Sends batches to the GPU of `engine` ahead of time, if it computes on one.
    #[cfg(feature = "cuda")]
    pub(crate) fn for_engine(mut self, engine: &Engine) -> Result<Self, Error> {
        let Some((gpu, moves)) = engine.destination() else { return Ok(self) };
        if let Source::Loader(loader) = self.source {
            self.is_waiting.store(false, Ordering::Relaxed);
            self.source = Source::GpuPrefetcher(GpuPrefetcher::start(
                loader,
                gpu,
                moves,
                self.is_waiting.clone(),
            )?);
        }
        Ok(self)
    }

    /// Batches stay where they are: without CUDA models compute on the CPU.
    #[cfg(not(feature = "cuda"))]
    #[expect(clippy::unnecessary_wraps, reason = "as with the feature")]
    pub(crate) fn for_engine(self, _engine: &Engine) -> Result<Self, Error> {
        Ok(self)
    }

    /// Lets `link` know that samples are being read while the training thread waits for them.
    pub(crate) fn observed_by(mut self, link: &Arc<Link>) -> Self {
        let link = Arc::clone(link);
        let is_waiting = Arc::clone(&self.is_waiting);
        let moves = move || {
            if is_waiting.load(Ordering::Relaxed) {
                link.still_moving();
            }
        };
        match &mut self.source {
            Source::Loader(loader) => loader.observe(moves),
            // It has the loader already.
            #[cfg(feature = "cuda")]
            Source::GpuPrefetcher(_) => {}
        }
        self
    }

    /// The chunks of `split` that `rank` evaluates, and their batches.
    pub(crate) fn of_split(
        plan: &Plan,
        split: Split,
        data: Arc<dyn Dataset>,
        rank: Rank,
    ) -> Result<(Vec<Chunk>, Self), Error> {
        let n = split.samples(plan);
        let world = plan.distributed.world_size;
        let chunks: Vec<Chunk> = evaluation_chunks(n, plan.val_batch_size, world, rank).collect();
        let request =
            |chunk: &Chunk| Request { samples: chunk.samples.clone(), ..Request::default() };
        let requests: Vec<Request> = chunks.iter().map(request).collect();
        let settings = Settings::new(&plan.data, plan.seed);
        let loader = Loader::start(data, requests.into_iter(), settings)?;
        Ok((chunks, Self::new(loader)))
    }

    /// The next batch.
    pub(crate) fn next(&mut self) -> Result<Batch, Error> {
        let ended = || Error::Batch { what: "more passes than were requested".into() };
        let next = match &mut self.source {
            Source::Loader(loader) => loader.next(),
            #[cfg(feature = "cuda")]
            Source::GpuPrefetcher(ahead) => ahead.next(),
        };
        let loaded = next.ok_or_else(ended)??;
        let room = MAX_NAMED_SAMPLES.saturating_sub(self.unreadable.len());
        self.unreadable.extend(loaded.unreadable.into_iter().take(room));
        Ok(loaded.batch)
    }

    /// The first samples that could not be read, at most [`MAX_NAMED_SAMPLES`].
    pub(crate) fn unreadable(&self) -> &[Unreadable] {
        &self.unreadable
    }
}
