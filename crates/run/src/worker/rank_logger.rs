//! Who hears what a rank says: rank 0 speaks to the terminal and the run's files, the others to
//! their own log.

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

/// Hears what a run records, as `events.jsonl` has it.
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

    fn place(&self, _: &Finished) -> Option<(&'static str, PathBuf)> {
        None
    }
}

/// Where a rank's events go.
pub(crate) enum RankLogger {
    /// Rank 0's.
    First(Box<Recorder>),
    /// Any other rank's.
    Other {
        /// `rank-N.log`
        log: RankLog,
        /// What lines need to know of the run.
        context: Context,
    },
}

/// What the first rank of a run writes.
pub(crate) struct LoggerSettings {
    /// The part of the run that begins.
    pub(crate) start: SinkStart,
    /// What is written beside the history.
    pub(crate) sinks: Vec<NamedSink>,
}

impl RankLogger {
    /// The logger of `rank`; `logger` counts if that is the first.
    pub(crate) fn open(plan: &Plan, rank: Rank, logger: LoggerSettings) -> Result<Self, Error> {
        if rank.is_first() {
            let LoggerSettings { start, sinks } = logger;
            let settings = Settings {
                start,
                sinks,
                screen: Screen::detect(rank_env::no_color().as_deref()),
                steps_per_epoch: plan.length.steps_per_epoch,
            };
            return Ok(Self::First(Box::new(Recorder::open(settings)?)));
        }
        let mut log = RankLog::open(&logger.start.run.logs, rank)?;
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

    /// Says it.
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
