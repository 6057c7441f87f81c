//! Latency and bandwidth of the `shm` collectives between processes; one JSON line per figure.
//!
//! ```text
//! cargo bench --bench collectives [-- --ranks 2]
//! ```
//!
//! Timed as `benches/peers/allreduce.py` times gloo: five times as many calls as fit 0.4 s, at most
//! 500, and the median of the five means. Rank 0 prints.
#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a benchmark may stop, prints, and tells its ranks who they are"
)]

use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ddprun::internals::collective::{self, Collective, Segment};
use ddprun::internals::transport;
use ddprun::plan::{BackendPlan, Mapping};
use ddprun::units::{Rank, WorldSize};

/// As the command `ddprun`.
#[global_allocator]
static ALLOCATOR: ddprun::memory::Allocator = ddprun::memory::Allocator;

/// Bytes that are reduced; 44.7 MB are the gradients of ResNet-18.
const SIZES: [usize; 6] = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 44_706_000, 256 << 20];
/// Bytes of what ranks tell each other at the end of a step.
const VOTE: usize = 150;
const REPETITIONS: usize = 5;
const DEADLINE: Duration = Duration::from_mins(1);
const AS_RANK: &str = "DDPRUN_BENCH_RANK";

fn main() -> ExitCode {
    let world = WorldSize::new(ranks()).expect("`--ranks` is at least 1");
    match std::env::var(AS_RANK) {
        Ok(rank) => {
            run(Rank(rank.parse().expect("a rank")), world);
            ExitCode::SUCCESS
        }
        Err(_) => start(world),
    }
}

/// `--ranks N`; two without it. Other words are cargo's.
fn ranks() -> u32 {
    let words: Vec<String> = std::env::args().collect();
    let at = words.iter().position(|word| word == "--ranks");
    at.and_then(|at| words.get(at + 1)).map_or(2, |n| n.parse().expect("`--ranks` is a number"))
}

fn backend(world: WorldSize) -> BackendPlan {
    BackendPlan::Shm { mapping: Mapping::new(world, SIZES.map(|bytes| bytes / 4)).total() }
}

/// Starts all ranks with the mapping as their standard input, and waits for them.
fn start(world: WorldSize) -> ExitCode {
    let BackendPlan::Shm { mapping } = backend(world) else { return ExitCode::FAILURE };
    let memory = transport::shared_memory(mapping).expect("shared memory");
    let program = std::env::current_exe().expect("a path");
    let start = |rank: u32| {
        let mut command = Command::new(&program);
        command.args(std::env::args_os().skip(1)).env(AS_RANK, rank.to_string());
        command.stdin(memory.try_clone().expect("a descriptor")).spawn().expect("a process")
    };
    let ranks: Vec<_> = (0..world.get()).map(start).collect();
    let failed = ranks.into_iter().any(|mut rank| !rank.wait().is_ok_and(|end| end.success()));
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn run(rank: Rank, world: WorldSize) {
    let fd = rustix::io::dup(rustix::stdio::stdin()).expect("the mapping");
    let group = collective::open(backend(world), rank, world, Some(fd), DEADLINE).expect("a group");
    let lengths = SIZES.map(|bytes| bytes / 4);
    let mut segments = group.segments(&lengths).expect("memory");
    for (bytes, segment) in SIZES.into_iter().zip(&mut segments) {
        all_reduce(&group, bytes, segment);
    }
    let mut bytes = [0; 4 << 10];
    let vote = [b'.'; VOTE];
    measure(&group, "broadcast", bytes.len(), &mut || group.broadcast(&mut bytes).expect("all"));
    measure(&group, "all_gather", VOTE, &mut || drop(group.all_gather(&vote).expect("all")));
    measure(&group, "barrier", 0, &mut || group.barrier().expect("all"));
}

fn all_reduce(group: &Arc<dyn Collective>, bytes: usize, segment: &mut Segment) {
    segment.fill(1e-30);
    measure(group, "all_reduce", bytes, &mut || group.all_reduce(segment).expect("all"));
}

/// Times `call` and prints the figure.
fn measure(group: &Arc<dyn Collective>, name: &str, bytes: usize, call: &mut dyn FnMut()) {
    let calls = agreed_calls(group, call);
    let mut means: Vec<f64> = (0..REPETITIONS)
        .map(|_| {
            group.barrier().expect("all");
            let began = Instant::now();
            (0..calls).for_each(|_| call());
            1e6 * began.elapsed().as_secs_f64() / calls as f64
        })
        .collect();
    means.sort_by(f64::total_cmp);
    let (median, spread) = (means[REPETITIONS / 2], means[REPETITIONS - 1] - means[0]);
    if group.rank().is_first() {
        let line = serde_json::json!({
            "bench": format!("shm_{name}"), "world": group.world_size(), "bytes": bytes, "iters": calls,
            "us": median, "best_us": means[0], "algbw_GBps": bytes as f64 / median / 1e3,
            "spread": spread / median,
        });
        println!("{line}");
    }
}

/// As many calls as fit 0.4 s on rank 0, at least 2 and at most 500.
fn agreed_calls(group: &Arc<dyn Collective>, call: &mut dyn FnMut()) -> u64 {
    (0..3).for_each(|_| call());
    group.barrier().expect("all");
    let began = Instant::now();
    call();
    let calls = (0.4 / began.elapsed().as_secs_f64()).clamp(2.0, 500.0) as u64;
    let mut bytes = calls.to_le_bytes();
    group.broadcast(&mut bytes).expect("all");
    u64::from_le_bytes(bytes)
}
