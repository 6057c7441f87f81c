//! Our side: plans the work and starts its ranks as `ddprun` does. Each has the real engine, a real
//! collective, and samples in memory; rank 0 prints a JSON line.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use candle_core::Device;
use ddprun::collective::{self, Backends, Collective, JoiningRank};
use ddprun::data::sampler::EpochOrder;
use ddprun::engine::Engine;
use ddprun::internals::launch::{self, Console, Ended, Membership, PreparedRun, Program};
use ddprun::kinds::Kinds;
use ddprun::plan::{Plan, RunFolders};
use ddprun::units::Rank;

use crate::work::{BATCHES, Shape, Work};

/// Stack for candle's recursion in `backward`.
const STACK_BYTES: usize = 512 << 20;

/// Measurement that the parent asks of its ranks.
#[derive(Clone, Copy)]
pub(crate) struct Task {
    /// Timed stretches of steps; 0 ends after the first step.
    pub(crate) repetitions: usize,
    /// Seconds of each.
    pub(crate) seconds: f64,
}

/// Runs `task` in `shape`; rank 0 prints its line to our standard output.
pub(crate) fn train(work: &'static Work, shape: &Shape, task: Task) -> ExitCode {
    let plan = work.plan(shape, &Kinds::default());
    let folder = std::env::temp_dir().join(format!("ddprun-peers-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    let (id, checkpoints) = ("peers".to_owned(), folder.clone());
    let folders = RunFolders { id, logs: folder.clone(), checkpoints };
    let (repetitions, seconds) = (task.repetitions.to_string(), task.seconds.to_string());
    let words =
        ["worker", work.name, "--repetitions", &repetitions, "--seconds", &seconds].map(Into::into);
    let path = std::env::current_exe().expect("a path");
    let program = Program { path, args: words.into(), env: vec![] };
    let start = launch::Start {
        resume: false,
        program,
        console: Console::Terminal,
        smaller: vec![],
        waker: None,
    };
    let ended = launch::run(&plan, &folders, &start, &mut |_| ());
    if let Err(failure) = &ended {
        eprintln!("{failure}; see {}", folder.display());
        return ExitCode::FAILURE;
    }
    // A folder that stays is no failure of the measurement.
    drop(std::fs::remove_dir_all(&folder));
    if matches!(ended, Ok(Ended::Completed)) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs the rank that this process is.
pub(crate) fn run(work: &'static Work, task: Task) {
    let role = launch::rank_env::from_environment().expect("a launcher");
    let none = || Err::<PreparedRun, String>("only the parent makes a plan".into());
    let Membership { rank_plan, shm, link, .. } = launch::join(&role, none).expect("a place");
    let (plan, rank) = (Arc::new(rank_plan.plan), rank_plan.rank);
    let threads = plan.distributed.threads_per_rank;
    let distributed = &plan.distributed;
    let joining = JoiningRank::new(distributed, rank, shm);
    let group = collective::join(&Backends::default(), joining).expect("a group");
    group.barrier().expect("all ranks");
    let start = Start { to_barrier: since_start(), idle_rss_mb: resident("VmRSS") };
    let train = move || {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).use_current_thread();
        let _pool = pool.build().expect("threads");
        Trainer::new(work, plan, rank, group).measure(task, &start);
    };
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(train);
    thread.expect("a thread").join().expect("the training ends");
    link.finish();
}

/// The way to the first meeting of all ranks.
struct Start {
    to_barrier: Option<f64>,
    idle_rss_mb: f64,
}

struct Trainer {
    work: &'static Work,
    plan: Arc<Plan>,
    rank: Rank,
    group: Arc<dyn Collective>,
    engine: Engine,
    order: EpochOrder,
    batches: Vec<ddprun::data::Batch>,
    steps: usize,
}

impl Trainer {
    fn new(work: &'static Work, plan: Arc<Plan>, rank: Rank, group: Arc<dyn Collective>) -> Self {
        let components = Kinds::default().components(&plan, &Device::Cpu).expect("a model");
        let engine = Engine::new(plan.clone(), components, group.clone(), None);
        let world = plan.distributed.world_size;
        let order = EpochOrder::new(&plan.data, &plan.batch, world, plan.seed, 0);
        let (engine, batches) = (engine.expect("an engine"), vec![]);
        let mut trainer = Self { work, plan, rank, group, engine, order, batches, steps: 0 };
        trainer.have_batches(1);
        trainer
    }

    /// Makes the batches that are missing of `n`.
    fn have_batches(&mut self, n: usize) {
        let size = self.plan.batch.size.count();
        let batch = |index| self.work.batch(size, self.rank.0, index).expect("a batch");
        let more: Vec<_> = (self.batches.len()..n).map(batch).collect();
        self.batches.extend(more);
    }

    fn step(&mut self) {
        let passes = self.order.passes(self.steps % self.order.steps(), self.rank);
        let batch = &self.batches[self.steps % self.batches.len()];
        self.engine.step(&passes, &mut || Ok(batch.clone()), &|| None).expect("a step");
        self.steps += 1;
    }

    /// Seconds of `steps` steps, begun by all ranks together.
    fn seconds(&mut self, steps: u64) -> f64 {
        self.group.barrier().expect("all ranks");
        let began = Instant::now();
        (0..steps).for_each(|_| self.step());
        began.elapsed().as_secs_f64()
    }

    /// As many steps as fit `seconds` by rank 0's estimate, at least 2.
    fn agreed(&self, seconds: f64, one: f64) -> u64 {
        let mut bytes = ((seconds / one) as u64).max(2).to_le_bytes();
        self.group.broadcast(&mut bytes).expect("all ranks");
        u64::from_le_bytes(bytes)
    }

    fn measure(mut self, task: Task, start: &Start) {
        self.step();
        let to_first_step = since_start();
        let mut stretches = Vec::new();
        let communication = self.engine.time().communication;
        let before = self.steps;
        if task.repetitions > 0 {
            self.have_batches(BATCHES);
            let one = self.seconds(2) / 2.0;
            self.seconds(self.agreed(task.seconds / 2.0, one));
            let steps = self.agreed(task.seconds, one);
            let stretch = |_| 1e3 * self.seconds(steps) / steps as f64;
            stretches = (0..task.repetitions).map(stretch).collect();
        }
        let timed = (self.steps - before).max(1) as f64;
        let communication = 1e3 * (self.engine.time().communication - communication) / timed;
        stretches.sort_by(f64::total_cmp);
        let line = serde_json::json!({
            "bench": "train", "model": self.work.name, "world": self.group.world_size(),
            "threads": self.plan.distributed.threads_per_rank, "dtype": self.plan.precision,
            "ms_per_step": stretches.get(stretches.len() / 2), "segs_ms": stretches,
            "communication_ms": communication, "to_barrier_s": start.to_barrier,
            "total_to_first_step": to_first_step, "idle_rss_mb": start.idle_rss_mb,
            "peak_rss_mb": resident("VmHWM"),
        });
        if self.rank.is_first() {
            println!("{line}");
        }
    }
}

/// Seconds since `T0`, in seconds of the epoch, which whoever started us has set.
fn since_start() -> Option<f64> {
    let start: f64 = std::env::var("T0").ok()?.parse().ok()?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok()?;
    Some(now.as_secs_f64() - start)
}

/// A size in `/proc/self/status`, MB.
fn resident(name: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    let kib = line.split_whitespace().nth(1).and_then(|kib| kib.parse::<f64>().ok());
    kib.unwrap_or(f64::NAN) * 1024.0 / 1e6
}
