//! Who hears what a rank says: rank 0 speaks to the terminal and the run's files, the others to
//! their own log.

use std::path::PathBuf;

use crate::event::{Event, History};
use crate::plan::{Plan, RunFolders};
use crate::record::{Context, Error, RankLog, Recorder, Screen, Settings, Sink, device_line, line};
use crate::units::Rank;

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

impl RankLogger {
    /// The logger of `rank`, in a run that continues from `step`; `inherited` is the history that
    /// an old checkpoint holds, `metrics` what evaluations measure, and `sinks` what rank 0 writes
    /// beside the history.
    pub(crate) fn open(
        plan: &Plan,
        rank: Rank,
        run: &RunFolders,
        (step, inherited): (u64, History),
        (metrics, sinks): (Vec<String>, Vec<Box<dyn Sink>>),
    ) -> Result<Self, Error> {
        if rank.is_first() {
            let settings = Settings {
                run: run.clone(),
                sinks,
                screen: Screen::detect(no_color().as_deref()),
                inherited,
                resumed_from: step,
                total_steps: plan.length.total_steps,
                metrics,
            };
            return Ok(Self::First(Box::new(Recorder::open(settings)?)));
        }
        let mut log = RankLog::open(&run.logs, rank)?;
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

/// `NO_COLOR`, if it is set.
fn no_color() -> Option<String> {
    std::env::var_os("NO_COLOR").map(|value| value.to_string_lossy().into_owned())
}
