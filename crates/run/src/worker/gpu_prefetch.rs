//! Batches that are sent to the GPU before the training thread asks for them, by a thread of their
//! own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use crate::data::loader::{Loaded, Unreadable};
use crate::data::{Batch, Error};
use crate::engine::{DeviceTensors, Engine};
use crate::ops::cuda::{Gpu, H2dPrefetcher, InFlightTensor};

/// Gives one batch after another.
pub type Batches = Box<dyn FnMut() -> Result<Batch, Error>>;

/// `batches`, which never end, as `engine` gets those of a run: sent to its GPU ahead of time, if
/// it computes on one.
pub fn batches_of(
    engine: &Engine,
    mut batches: impl Iterator<Item = Batch> + Send + 'static,
) -> Result<Batches, Error> {
    let ended = || Error::Batch { what: "there is no batch left".into() };
    let Some((gpu, moves)) = engine.destination() else {
        return Ok(Box::new(move || batches.next().ok_or_else(ended)));
    };
    let loaded = batches.map(|batch| Ok(Loaded { batch, unreadable: Vec::new() }));
    let mut ahead = GpuPrefetcher::start(loaded, gpu, moves, Arc::default())?;
    Ok(Box::new(move || Ok(ahead.next().ok_or_else(ended)??.batch)))
}

/// The batches of a loader, one of which is always on its way.
pub(super) struct GpuPrefetcher {
    coming: Option<Receiver<Result<InFlight, Error>>>,
    thread: Option<JoinHandle<()>>,
    /// True while the training thread waits for a batch.
    is_waiting: Arc<AtomicBool>,
}

struct InFlight {
    batch: Batch,
    inputs: Option<InFlightTensor>,
    targets: Option<InFlightTensor>,
    unreadable: Vec<Unreadable>,
}

impl GpuPrefetcher {
    /// Starts the thread. `is_waiting` is true while the training thread waits.
    pub(super) fn start(
        loader: impl Iterator<Item = Result<Loaded, Error>> + Send + 'static,
        gpu: Gpu,
        moves: DeviceTensors,
        is_waiting: Arc<AtomicBool>,
    ) -> Result<Self, Error> {
        // One waits here, one is being sent, and one is in use.
        let (sender, coming) = sync_channel(1);
        let prefetcher = H2dPrefetcher::new(gpu).map_err(|error| failed(&error))?;
        let send = move || send_all(loader, prefetcher, moves, &sender);
        let thread = std::thread::Builder::new().name("batches".into()).spawn(send);
        let what = |error: std::io::Error| Error::Batch {
            what: format!("cannot start the thread: {error}"),
        };
        Ok(Self { coming: Some(coming), thread: Some(thread.map_err(what)?), is_waiting })
    }

    /// The next batch, on the GPU as far as it goes there.
    pub(super) fn next(&mut self) -> Option<Result<Loaded, Error>> {
        self.is_waiting.store(true, Ordering::Relaxed);
        let coming = self.coming.as_ref()?.recv().ok();
        self.is_waiting.store(false, Ordering::Relaxed);
        Some(coming?.and_then(InFlight::arrive))
    }
}

impl Drop for GpuPrefetcher {
    fn drop(&mut self) {
        // Without a receiver the thread ends after its batch.
        self.coming = None;
        if let Some(thread) = self.thread.take() {
            // A panic of it was seen as the end of the batches.
            drop(thread.join());
        }
    }
}

impl InFlight {
    fn arrive(self) -> Result<Loaded, Error> {
        let Self { mut batch, inputs, targets, unreadable } = self;
        for (place, coming) in [(&mut batch.inputs, inputs), (&mut batch.targets, targets)] {
            if let Some(coming) = coming {
                *place = coming.take().map_err(|error| failed(&error))?;
            }
        }
        Ok(Loaded { batch, unreadable })
    }
}

fn send_all(
    loader: impl Iterator<Item = Result<Loaded, Error>>,
    mut prefetcher: H2dPrefetcher,
    moves: DeviceTensors,
    to: &SyncSender<Result<InFlight, Error>>,
) {
    for loaded in loader {
        let under_way = loaded.and_then(|Loaded { batch, unreadable }| {
            let mut send = |moves: bool, tensor| moves.then(|| prefetcher.send(tensor)).transpose();
            let [inputs, targets] = moves.of(&batch);
            let inputs = send(inputs, &batch.inputs).map_err(|error| failed(&error))?;
            let targets = send(targets, &batch.targets).map_err(|error| failed(&error))?;
            Ok(InFlight { batch, inputs, targets, unreadable })
        });
        if to.send(under_way).is_err() {
            return;
        }
    }
}

fn failed(error: &candle_core::Error) -> Error {
    Error::Batch { what: format!("a batch did not reach the GPU: {error}") }
}
