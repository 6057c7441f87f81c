//! One rank from its start to its exit code: the only place where the pieces of a rank are put
//! together.

#[cfg(feature = "cuda")]
pub mod gpu_prefetch;
mod build;
mod evaluation_details;
mod triggers;
mod failure;
mod batch_source;
mod rollout;
mod device;
mod sample;
mod prompt;
mod broadcast_state;
mod test;
mod train;
mod unreadable;
mod rank_logger;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::checkpoint;
use crate::collective::Collective;
use crate::data::{DataSource, SampleWeights, Splits};
use crate::engine::{Clock, Engine};
use crate::event::Event;
use crate::failpoint;
use crate::kinds::Kinds;
use crate::launch::{ErrorReport, Link, Membership, Phase, Stop, rank_env};
use crate::plan::{Plan, RankPlan, RunFolders};
use crate::record::RankLog;
use crate::units::Rank;
use crate::user_error::{ExitCode, UserError};
use device::GroupHandles;
use rank_logger::RankLogger;
use rollout::ObservationPreprocessor;
use train::Ending;

pub use build::{SingleProcessEngine, evaluate, single_process_engine};
pub use evaluation_details::{ClassDetails, Details, TargetDetails, WorstSample};
pub use failure::Error;
pub use prompt::{PromptFormat, parse_observations, refuse_observations};
pub(crate) use rank_logger::Listener;
pub use rollout::{Episode, Transition, simulated};
pub use sample::{Sampling, act, roll_out, sample};
pub use test::EvaluationResult;

/// Stack of the training thread: candle's `backward` recurses over the graph, and 10,000 chained
/// operations overflow the usual 2 MiB.
const STACK_BYTES: usize = 512 << 20;

/// Everything that one rank holds while it trains.
pub(crate) struct RankRun {
    plan: Arc<Plan>,
    rank: Rank,
    folders: RunFolders,
    engine: Engine,
    collective: Arc<dyn Collective>,
    source: Box<dyn DataSource>,
    splits: Splits,
    /// Absent unless a policy is trained.
    preprocessor: Option<ObservationPreprocessor>,
    /// Absent unless training samples are drawn by weight.
    sample_weights: Option<SampleWeights>,
    /// Present on rank 0.
    writer: Option<checkpoint::Writer>,
    logger: RankLogger,
    link: Arc<Link>,
    clock: Clock,
    /// Time spent by the starts before this one.
    spent_before: Duration,
    epoch_clock: Clock,
    /// Since the last recorded step, without evaluations and saves.
    pace_clock: Clock,
    paced_samples: u64,
    samples: u64,
}

/// Requests to stop by this rank's signals, its launcher and (on rank 0) its clock.
pub(crate) struct StopRequests {
    link: Arc<Link>,
    /// Time since this start.
    clock: Clock,
    /// Time that earlier starts have left for the run.
    left: Option<Duration>,
}

impl StopRequests {
    /// Returns the strongest request.
    pub(crate) fn now(&self) -> Option<Stop> {
        let is_late = |left: Duration| self.clock.seconds() >= left.as_secs_f64();
        let is_over = self.left.is_some_and(is_late);
        let time = is_over.then_some(Stop::EndOfTime);
        self.link.stop_requested().max(time)
    }
}

/// The end of a rank's process.
pub struct Outcome {
    pub code: ExitCode,
    /// The error, if any; the launcher knows it already.
    pub failure: Option<ErrorReport>,
}

/// Trains as `membership` says. Failures are reported to the launcher and written into the run
/// folder. `listener` hears what rank 0 records; else our own parent does, if it wants to.
pub fn run(membership: Membership, listener: Option<Listener>, kinds: &Kinds) -> Outcome {
    let Membership { rank_plan, shm, peers, link } = membership;
    let link = Arc::new(link);
    let listener = listener.or_else(|| {
        let link = link.clone();
        rank_env::tells_events().then(|| Listener::new(move |event| link.recorded(event)))
    });
    let rank = rank_plan.rank;
    let logs = rank_plan.run.logs.clone();
    let handles = GroupHandles { shm, peers };
    let result = on_large_stack(|| run_rank(rank_plan, handles, link.clone(), listener, kinds));
    match result {
        Ok(code) => {
            link.finish();
            failpoint::reach("exit");
            Outcome { code, failure: None }
        }
        Err(error) => {
            let mut report = link.describe(&error, error.exit_code(), error.blame());
            report.help = error.help().map(|help| of_run(&help, &logs));
            report.suspects = error.suspects();
            report.out_of_memory = error.is_out_of_memory();
            // A disk that takes no report must not hide the failure itself.
            drop(link.report(&report));
            drop(RankLog::open(&logs, rank).and_then(|mut log| log.say(&in_log(&report))));
            Outcome { code: error.exit_code(), failure: Some(report) }
        }
    }
}

/// Adds the name of the run to the commands in `help`.
fn of_run(help: &str, logs: &Path) -> String {
    help.replace("`ddprun resume", &format!("`ddprun resume {}", RunFolders::word(logs)))
}

/// The failure of a rank as its log has it.
fn in_log(report: &ErrorReport) -> String {
    let why = report.causes.iter().map(|cause| format!("\n  why: {cause}"));
    let help = report.help.iter().map(|help| format!("\n  do: {help}"));
    format!("error: {}{}", report.message, why.chain(help).collect::<String>())
}

/// Runs `work` on a thread with a stack for deep graphs. A panic in it is our bug.
pub fn on_large_stack<T: Send>(work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("training".into())
            .stack_size(STACK_BYTES)
            .spawn_scoped(scope, work)
            .map_err(|source| Error::Thread { what: "the training thread", source })?;
        thread.join().unwrap_or_else(|panic| Err(Error::from_panic(panic.as_ref())))
    })
}

fn run_rank(
    rank_plan: RankPlan,
    handles: GroupHandles,
    link: Arc<Link>,
    listener: Option<Listener>,
    kinds: &Kinds,
) -> Result<ExitCode, Error> {
    let _threads = share_of_cores(&rank_plan.plan)?;
    let mut run = build::build_run(rank_plan, handles, link, listener, kinds)?;
    let ending = train::train(&mut run).inspect_err(|error| {
        // The others wait for us: they shall hear at once, not at their deadline.
        run.collective.abort(&error.to_string());
    })?;
    Ok(match ending {
        Ending::Done(_) if run.missed_expectations().is_some() => ExitCode::Expectation,
        Ending::Done(_) => ExitCode::Ok,
        Ending::Left(stop) => stop.exit_code(),
    })
}

/// This rank's share of the cores: as many threads as the plan says, the calling one among them,
/// which does its part of each operation and wakes none where it is the only one. They end when the
/// pool is dropped.
pub fn share_of_cores(plan: &Plan) -> Result<ThreadPool, Error> {
    let pool = ThreadPoolBuilder::new().num_threads(plan.distributed.threads_per_rank);
    let pool = pool.thread_name(|index| format!("compute-{index}")).use_current_thread().build();
    pool.map_err(|error| {
        // The system's own words are further down.
        let why = std::error::Error::source(&error).and_then(|why| why.downcast_ref::<io::Error>());
        let source = why.and_then(io::Error::raw_os_error).map(io::Error::from_raw_os_error);
        let source = source.unwrap_or_else(|| io::Error::other(error));
        Error::Thread { what: "the threads that compute", source }
    })
}

impl RankRun {
    fn record(&mut self, event: &Event) -> Result<(), Error> {
        Ok(self.logger.record(event)?)
    }

    /// Tells the parent that this rank waits for the others from now on, so that it is not taken
    /// for the one that hangs.
    fn report_waiting(&self) {
        self.link.progress(self.engine.state().step, Phase::Reducing);
    }

    fn stop_requests(&self) -> StopRequests {
        let left = |budget: Duration| budget.saturating_sub(self.spent_before);
        let left = self.plan.length.time.filter(|_| self.rank.is_first()).map(left);
        StopRequests { link: self.link.clone(), clock: self.clock, left }
    }

    /// Time of this start and of those before it, up to their checkpoints, as far as `train.time`
    /// had them counted.
    fn spent(&self) -> Duration {
        self.spent_before + Duration::from_secs_f64(self.clock.seconds())
    }

    /// Samples per second since the last call.
    fn pace(&mut self) -> f64 {
        let samples = self.samples - self.paced_samples;
        let speed = samples as f64 / self.pace_clock.seconds().max(f64::MIN_POSITIVE);
        self.paced_samples = self.samples;
        self.pace_clock = Clock::start();
        speed
    }

    /// Begins a new stretch of training after an evaluation or a save.
    fn pause_pace(&mut self) {
        self.paced_samples = self.samples;
        self.pace_clock = Clock::start();
    }

    /// The `[expect]` entries that the run did not reach, in words.
    fn missed_expectations(&self) -> Option<String> {
        let state = self.engine.state();
        self.plan.missed_expectations(|metric| match &state.best {
            Some(best) if best.metric == metric => Some(best.value),
            _ => state.metrics.get(metric).copied(),
        })
    }
}
