//! Latency and bandwidth of the collectives between processes; one JSON line per figure.
//!
//! ```text
//! cargo bench -p ddprun-benches --bench collectives [-- --ranks 2]    in shared memory
//! cargo bench -p ddprun-benches --bench collectives -- --tcp          two ranks over loopback, plain and encrypted
//! cargo bench -p ddprun-benches --bench collectives -- --small --ranks 64    what every step calls beside gradients
//! ```
//!
//! `cpu_us` is processor time of rank 0 per call, which more ranks than cores do not lengthen.
//! Timed as `benches/peers/bench_allreduce.py` times gloo: five times as many calls as fit 0.4 s, at most
//! 500, and the median of the five means. Rank 0 prints.
#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a benchmark may stop, prints, and tells its ranks who they are"
)]

use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ddprun::internals::collective::{self, Collective, GradientBuffer};
use ddprun::internals::transport;
use ddprun::plan::Mapping;
use ddprun::units::{Bytes, Rank, WorldSize};
use rustix::time::{ClockId, clock_gettime};

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
/// Variable that says whether ranks that are connected by TCP send `plain` or `encrypted` bytes.
const OVER_TCP: &str = "DDPRUN_BENCH_TCP";
const PLAIN: &str = "plain";

fn main() -> ExitCode {
    let world = WorldSize::new(ranks()).expect("`--ranks` is at least 1");
    match std::env::var(AS_RANK) {
        Ok(rank) => {
            let rank = Rank(rank.parse().expect("a rank"));
            match std::env::var(OVER_TCP) {
                Ok(how) => run_over_tcp(rank, &how),
                Err(_) => run(rank, world),
            }
            ExitCode::SUCCESS
        }
        Err(_) if std::env::args().any(|word| word == "--tcp") => start_over_tcp(),
        Err(_) => start(world),
    }
}

/// The sizes that are reduced: the first with `--small`.
fn sizes() -> &'static [usize] {
    let is_small = std::env::args().any(|word| word == "--small");
    if is_small { &SIZES[..1] } else { &SIZES }
}

/// `--ranks N`; two without it. Other words are cargo's.
fn ranks() -> u32 {
    let words: Vec<String> = std::env::args().collect();
    let at = words.iter().position(|word| word == "--ranks");
    at.and_then(|at| words.get(at + 1)).map_or(2, |n| n.parse().expect("`--ranks` is a number"))
}

fn mapping(world: WorldSize) -> Bytes {
    Mapping::new(world, sizes().iter().map(|bytes| bytes / 4)).total()
}

/// Starts all ranks with the mapping as their standard input, and waits for them.
fn start(world: WorldSize) -> ExitCode {
    let memory = transport::shared_memory(mapping(world)).expect("shared memory");
    let start = |rank| start_rank(rank, memory.try_clone().expect("a descriptor"), None);
    wait_for((0..world.get()).map(start).collect())
}

/// Starts two ranks with their ends of a connection as standard input, once for each way to send.
fn start_over_tcp() -> ExitCode {
    for how in [PLAIN, "encrypted"] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let one = TcpStream::connect(listener.local_addr().expect("a port")).expect("a connection");
        let (other, _) = listener.accept().expect("a connection");
        let ranks = (0..).zip([one, other]);
        let ended = wait_for(ranks.map(|(rank, end)| start_rank(rank, end, Some(how))).collect());
        if ended != ExitCode::SUCCESS {
            return ended;
        }
    }
    ExitCode::SUCCESS
}

fn start_rank(rank: u32, stdin: impl Into<OwnedFd>, over_tcp: Option<&str>) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("a path"));
    command.args(std::env::args_os().skip(1)).env(AS_RANK, rank.to_string());
    command.envs(over_tcp.map(|how| (OVER_TCP, how)));
    command.stdin(Stdio::from(stdin.into())).spawn().expect("a process")
}

fn wait_for(ranks: Vec<Child>) -> ExitCode {
    let failed = ranks.into_iter().any(|mut rank| !rank.wait().is_ok_and(|end| end.success()));
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn run_over_tcp(rank: Rank, how: &str) {
    let stream = TcpStream::from(rustix::io::dup(rustix::stdio::stdin()).expect("the connection"));
    let keys = (how != PLAIN).then_some([[1; 32], [2; 32]]);
    let group = collective::one_of_two_machines(rank, stream, keys, DEADLINE).expect("a group");
    let sizes = [4 << 10, 1 << 20, 44_706_000];
    let mut segments = group.segments(&sizes.map(|bytes| bytes / 4)).expect("memory");
    for (bytes, segment) in sizes.into_iter().zip(&mut segments) {
        segment.fill(1e-30);
        let name = format!("tcp_{how}_all_reduce");
        measure(&group, &name, bytes, &mut || group.all_reduce(segment).expect("all"));
    }
}

fn run(rank: Rank, world: WorldSize) {
    let fd = rustix::io::dup(rustix::stdio::stdin()).expect("the mapping");
    let group = collective::open_shm(&fd, mapping(world), rank, world, DEADLINE).expect("a group");
    let lengths: Vec<usize> = sizes().iter().map(|bytes| bytes / 4).collect();
    let mut segments = group.segments(&lengths).expect("memory");
    for (bytes, segment) in sizes().iter().zip(&mut segments) {
        all_reduce(&group, *bytes, segment);
    }
    let mut bytes = [0; 4 << 10];
    let vote = [b'.'; VOTE];
    measure(&group, "shm_broadcast", bytes.len(), &mut || {
        group.broadcast(&mut bytes).expect("all");
    });
    measure(&group, "shm_all_gather", VOTE, &mut || drop(group.all_gather(&vote).expect("all")));
    measure(&group, "shm_barrier", 0, &mut || group.barrier().expect("all"));
}

fn all_reduce(group: &Arc<dyn Collective>, bytes: usize, segment: &mut GradientBuffer) {
    segment.fill(1e-30);
    measure(group, "shm_all_reduce", bytes, &mut || group.all_reduce(segment).expect("all"));
}

/// Times `call` and prints the figure.
fn measure(group: &Arc<dyn Collective>, name: &str, bytes: usize, call: &mut dyn FnMut()) {
    let calls = agreed_calls(group, call);
    let used = cpu_us();
    let mut means: Vec<f64> = (0..REPETITIONS)
        .map(|_| {
            group.barrier().expect("all");
            let began = Instant::now();
            (0..calls).for_each(|_| call());
            1e6 * began.elapsed().as_secs_f64() / calls as f64
        })
        .collect();
    let used = (cpu_us() - used) / (REPETITIONS as u64 * calls) as f64;
    means.sort_by(f64::total_cmp);
    let (median, spread) = (means[REPETITIONS / 2], means[REPETITIONS - 1] - means[0]);
    if group.rank().is_first() {
        let line = serde_json::json!({
            "bench": name, "world": group.world_size(), "bytes": bytes, "iters": calls,
            "us": median, "best_us": means[0], "cpu_us": used, "algbw_GBps": bytes as f64 / median / 1e3,
            "spread": spread / median,
        });
        println!("{line}");
    }
}

/// Processor time of this process so far, microseconds.
fn cpu_us() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    1e6 * time.tv_sec as f64 + time.tv_nsec as f64 / 1e3
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
