//! The log of a rank: rank 0 writes to the terminal and the run's files, the others to a log of
//! their own.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::event::{Event, Finished};
use crate::launch::rank_env;
use crate::plan::Plan;
use crate::record::{
    Context, Error, NamedSink, OpenSink, RankLog, Recorder, Screen, Settings, Sink, SinkStart,
    Stamped, device_line, line,
};
use crate::units::Rank;

/// Receives the events that a run records, as `events.jsonl` has them.
#[derive(Clone)]
pub struct Listener(Arc<dyn Fn(Map<String, Value>) + Send + Sync>);

impl Listener {
    pub(crate) fn new(hear: impl Fn(Map<String, Value>) + Send + Sync + 'static) -> Self {
        Self(Arc::new(hear))
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Listener")
    }
}

impl Sink for Listener {
    fn open(&self, _: &SinkStart) -> Result<Box<dyn OpenSink>, Error> {
        Ok(Box::new(self.clone()))
    }
}

impl OpenSink for Listener {
    fn record(&mut self, stamped: &Stamped) -> Result<(), Error> {
        let object = stamped.object();
        (self.0)(object.map_err(|reason| Error::Encode { what: "an event", reason })?);
        Ok(())
    }

    fn summary_entry(&self, _: &Finished) -> Option<(&'static str, PathBuf)> {
        None
    }
}

/// Destination of a rank's events.
pub(crate) enum RankLogger {
    /// The recorder of rank 0.
    First(Box<Recorder>),
    /// The log of another rank.
    Other {
        /// `rank-N.log`
        log: RankLog,
        /// Facts about the run that lines need.
        context: Context,
    },
}

impl RankLogger {
    /// The logger of `rank`; `sinks`, beside the history, are those of rank 0.
    pub(crate) fn open(
        plan: &Plan,
        rank: Rank,
        start: SinkStart,
        sinks: Vec<NamedSink>,
    ) -> Result<Self, Error> {
        if rank.is_first() {
            let settings = Settings {
                start,
                sinks,
                screen: Screen::detect(rank_env::no_color().as_deref()),
                steps_per_epoch: plan.length.steps_per_epoch,
            };
            return Ok(Self::First(Box::new(Recorder::open(settings)?)));
        }
        let mut log = RankLog::open(&start.run.logs, rank)?;
        let world = plan.distributed.world_size.count();
        let device = plan.distributed.devices.get(rank.index()).map_or("cpu", String::as_str);
        log.say(&device_line(device, rank.index(), world))?;
        Ok(Self::Other { log, context: Context::default() })
    }

    /// The files that must be on disk before a checkpoint is.
    pub(crate) fn growing(&self) -> Vec<PathBuf> {
        match self {
            Self::First(recorder) => recorder.growing(),
            Self::Other { .. } => Vec::new(),
        }
    }

    /// Moves the bar to a step that is not recorded, of this loss.
    pub(crate) fn advance(&mut self, step: u64, loss: f64) {
        if let Self::First(recorder) = self {
            recorder.advance(step, loss);
        }
    }

    /// Moves the bar of an evaluation, of which so many of so many batches are done.
    pub(crate) fn evaluating(&mut self, what: &str, done: u64, batches: u64) {
        if let Self::First(recorder) = self {
            recorder.evaluating(what, done, batches);
        }
    }

    pub(crate) fn record(&mut self, event: &Event) -> Result<(), Error> {
        match self {
            Self::First(recorder) => recorder.record(event),
            Self::Other { log, context } => {
                if let Event::Started(started) = event {
                    *context = Context::of(started);
                    // The log of rank 0 has it.
                    return Ok(());
                }
                line(event, context).map_or(Ok(()), |text| log.say(&text))
            }
        }
    }
}
