//! Sinks: what a run writes about itself beside its history and its logs. Each is a file of its
//! own.

mod csv;
mod curves;
mod jsonl;
mod milestones;
mod tensorboard;

use std::fmt::Debug;
use std::path::{Path, PathBuf};

use crate::config::kind::{Kind, SINKS};
use crate::event::{Finished, Unfinished};
use crate::record::Error;
use crate::registry::{Family, Member, Registry};

pub use csv::{Csv, NAME as METRICS};
pub use curves::Curves;
pub(super) use jsonl::rare_events;
pub use jsonl::{Jsonl, Log, NAME as EVENTS, Stamped, read as read_events};
pub(crate) use milestones::{Milestones, read_milestones, read_rank_stats};
pub use tensorboard::Tensorboard;

/// A place for what a run says. Only rank 0 has sinks.
pub trait Sink: Debug + Send + Sync {
    /// Opens it for a part of the run.
    fn open(&self, start: &SinkStart<'_>) -> Result<Box<dyn OpenSink>, Error>;
}

/// The part of a run that begins.
#[derive(Clone, Copy, Debug)]
pub struct SinkStart<'a> {
    /// The run's folder for logs; it exists.
    pub logs: &'a Path,
    /// Step that the run continues from, 0 at a fresh start: what was said of later steps does not
    /// count any more.
    pub resumed_from: u64,
    /// What is left to do of that step.
    pub unfinished: Option<Unfinished>,
    /// Last step of the run.
    pub total_steps: u64,
    /// Names of what evaluations measure beside the loss.
    pub metrics: &'a [String],
}

/// A sink that takes events.
pub trait OpenSink: Send {
    /// Takes an event.
    fn record(&mut self, stamped: &Stamped) -> Result<(), Error>;

    /// The file that grows with every event, if there is one: it must be on disk before a
    /// checkpoint is, since a resumed run does not say again what was said up to it.
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
    type Object = dyn Sink;
}

impl<K: Kind + Sink> Member<SinkFamily> for K {
    fn boxed(self) -> Box<dyn Sink> {
        Box::new(self)
    }
}

/// Sinks that a program knows.
pub type Sinks = Registry<SinkFamily>;

impl Default for Sinks {
    /// Those that come with ddprun.
    fn default() -> Self {
        let mut all = Self::empty();
        all.add::<Jsonl>();
        all.add::<Csv>();
        all.add::<Tensorboard>();
        all.add::<Curves>();
        all
    }
}
