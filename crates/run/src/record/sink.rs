//! Sinks: outputs of a run beside its history and its logs, one source file each.

mod best_effort;
mod csv;
mod curves;
mod jsonl;
mod milestones;
mod tensorboard;
mod command;
mod mlflow;
mod wandb;

use std::fmt::Debug;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::config::kind::{Kind, SINKS};
use crate::event::{Finished, Unfinished};
use crate::plan::RunFolders;
use crate::record::Error;
use crate::registry::{Accepts, Family, Registered, Registry};

pub(super) use best_effort::{QueuedSink, TIME_AT_THE_END};
pub use command::Command;
pub use csv::{Csv, NAME as METRICS};
pub use curves::Curves;
pub(super) use jsonl::rare_events;
pub use jsonl::{Jsonl, Log, NAME as EVENTS, RunTime, Stamped, read as read_events};
pub use milestones::{Milestones, read_milestones, read_rank_stats};
pub use mlflow::Mlflow;
pub use tensorboard::Tensorboard;
pub use wandb::Wandb;

/// An output for the events of a run. Only rank 0 has sinks.
pub trait Sink: Debug + Send + Sync {
    /// Opens the sink for a start of the run.
    fn open(&self, start: &SinkStart) -> Result<Box<dyn OpenSink>, Error>;

    /// Delivery of events to this sink.
    fn delivery(&self) -> Delivery {
        Delivery::Lossless
    }
}

/// Delivery of events to a sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Every event, before the run goes on; an error ends the run. For files of the run's folder
    /// that must be as complete as a checkpoint.
    Lossless,
    /// From a queue, on a thread of the sink's own: no step waits. If the queue is full, events are
    /// dropped with a warning. A sink that fails or panics is given up with a warning. For outputs
    /// that may be slow or unreachable: a tracker behind a network.
    BestEffort,
}

/// A sink with its name in the configuration.
#[derive(Debug)]
pub struct NamedSink {
    /// Name in `logging.sinks`.
    pub name: String,
    pub sink: Box<dyn Sink>,
}

/// A start of a run: the first, or a resume.
#[derive(Clone, Debug, Default)]
pub struct SinkStart {
    /// The run's id and folders; that for logs exists.
    pub run: RunFolders,
    /// Name of the experiment.
    pub name: String,
    /// Name of the sweep, if the run is a trial.
    pub sweep: Option<String>,
    /// The run's tags at this start, sorted.
    pub tags: Vec<String>,
    /// The experiment with every key decided, as in `resolved.toml`.
    pub config: serde_json::Map<String, Value>,
    /// Step that the run resumes from, 0 for a fresh run: earlier output about later steps is void.
    pub resumed_from: u64,
    /// Unfinished work of that step.
    pub unfinished: Option<Unfinished>,
    /// Last step of the run.
    pub total_steps: u64,
    /// Metrics of evaluations beside the loss.
    pub metrics: Vec<String>,
}

/// An open sink. With [`Delivery::BestEffort`] it lives on its own thread, where it may take any
/// time.
pub trait OpenSink: Send {
    /// Receives an event.
    fn record(&mut self, stamped: &Stamped) -> Result<(), Error>;

    /// The file that grows with every event, if there is one. It must be on disk before a
    /// checkpoint is, since a resumed run does not repeat the events up to it. Used with lossless
    /// delivery only.
    fn file(&self) -> Option<&Path> {
        None
    }

    /// Syncs the received events to disk.
    fn sync(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Receives the end of this start, after its last event. With best-effort delivery only.
    fn finish(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// Label and path for the summary at the end of the run.
    fn summary_entry(&self, finished: &Finished) -> Option<(&'static str, PathBuf)>;
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

impl<K: Kind + Sink> Accepts<K> for SinkFamily {
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
        all.add::<Mlflow>();
        all.add::<Wandb>();
        all.add::<Command>();
        all
    }
}
