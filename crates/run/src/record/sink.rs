//! Sinks: what a run writes about itself beside its history and its logs. Each is a file of its
//! own.

mod best_effort;
mod csv;
mod curves;
mod jsonl;
mod milestones;
mod tensorboard;

use std::fmt::Debug;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::config::kind::{Kind, SINKS};
use crate::event::{Finished, Unfinished};
use crate::plan::RunFolders;
use crate::record::Error;
use crate::registry::{Family, Registered, Registry, Takes};

pub(super) use best_effort::{QueuedSink, TIME_AT_THE_END};
pub use csv::{Csv, NAME as METRICS};
pub use curves::Curves;
pub(crate) use jsonl::RunTime;
pub(super) use jsonl::rare_events;
pub use jsonl::{Jsonl, Log, NAME as EVENTS, Stamped, read as read_events};
pub use milestones::{Milestones, read_milestones, read_rank_stats};
pub use tensorboard::Tensorboard;

/// A place for what a run says. Only rank 0 has sinks.
pub trait Sink: Debug + Send + Sync {
    /// Opens it for a part of the run.
    fn open(&self, start: &SinkStart) -> Result<Box<dyn OpenSink>, Error>;

    /// How events reach it.
    fn delivery(&self) -> Delivery {
        Delivery::Lossless
    }
}

/// How events reach a sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Each one, before the run goes on; an error ends the run. For files of the run's folder, which
    /// a checkpoint must not be without.
    Lossless,
    /// On a thread of the sink's own, from a queue: no step waits. Where the queue is full, events
    /// are dropped, which the run says. A sink that fails or panics is given up with a warning. For
    /// what may be slow or away: a tracker behind a network.
    BestEffort,
}

/// A sink by the name under which it was chosen.
#[derive(Debug)]
pub struct NamedSink {
    /// Its name in `logging.sinks`.
    pub name: String,
    pub sink: Box<dyn Sink>,
}

/// The part of a run that begins.
#[derive(Clone, Debug, Default)]
pub struct SinkStart {
    /// The run's id and folders; that for logs exists.
    pub run: RunFolders,
    /// Name of the experiment.
    pub name: String,
    /// The run's tags at this start, sorted.
    pub tags: Vec<String>,
    /// The experiment with every key decided, as in `resolved.toml`.
    pub config: serde_json::Map<String, Value>,
    /// Step that the run continues from, 0 at a fresh start: what was said of later steps does not
    /// count any more.
    pub resumed_from: u64,
    /// What is left to do of that step.
    pub unfinished: Option<Unfinished>,
    /// Last step of the run.
    pub total_steps: u64,
    /// Names of what evaluations measure beside the loss.
    pub metrics: Vec<String>,
}

/// A sink that takes events. One that is delivered to as well as it goes lives on its own thread,
/// and what it does there may take any time.
pub trait OpenSink: Send {
    /// Takes an event.
    fn record(&mut self, stamped: &Stamped) -> Result<(), Error>;

    /// The file that grows with every event, if there is one: it must be on disk before a
    /// checkpoint is, since a resumed run does not say again what was said up to it. Only a sink
    /// with lossless delivery is asked.
    fn file(&self) -> Option<&Path> {
        None
    }

    /// Puts on disk what it has taken.
    fn sync(&self) -> Result<(), Error> {
        Ok(())
    }

    /// What the last words of the run call it, and where it is.
    fn place(&self, finished: &Finished) -> Option<(&'static str, PathBuf)>;
}

/// `logging.sinks`
#[derive(Debug)]
pub enum SinkFamily {}

impl Family for SinkFamily {
    const TABLE: &'static str = SINKS;
    const NOUN: &'static str = "sink";
    const LISTS: &'static [&'static str] = &[SINKS];
    type Object = dyn Sink;
}

impl<K: Kind + Sink> Takes<K> for SinkFamily {
    fn boxed(kind: K) -> Box<dyn Sink> {
        Box::new(kind)
    }
}

/// Sinks that a program knows.
pub type Sinks = Registry<SinkFamily>;

/// The sinks that come with ddprun.
impl Registered for SinkFamily {
    fn registered() -> Sinks {
        let mut all = Sinks::empty();
        all.add::<Jsonl>();
        all.add::<Csv>();
        all.add::<Tensorboard>();
        all.add::<Curves>();
        all
    }
}
