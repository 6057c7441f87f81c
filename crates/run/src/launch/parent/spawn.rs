//! `Plan` -> running processes: one per rank, each with a socket to us and the shared mapping.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::failpoint;
use crate::files;
use crate::launch::error_report::report_file;
use crate::launch::messages::ToRank;
use crate::launch::parent::oom_kills;
use crate::launch::parent::options::{Console, Program, Start};
use crate::launch::rank::env::{CONTROL_FD, PEER_FDS, SHM_FD, STATUS_FD};
use crate::launch::rank::inherit::{self, CANDLE_THREADS, RAYON_THREADS};
use crate::launch::rank::status::RankStatus;
use crate::launch::{Failure, Nodes};
use crate::plan::{Plan, RankPlan, RunFolders};
use crate::transport::channel::{Channel, poll};
use crate::transport::{Peer, PeerDescription, missing_call, shared_memory};
use crate::units::Rank;
use crate::user_error::ExitCode;

/// Longest wait for a killed process to exit when it is dropped.
const KILL_TIMEOUT: Duration = Duration::from_secs(1);

/// Time after which a rank is killed that was stopped before it runs.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// Output of a rank 0 that does not print on a terminal.
const CONSOLE_LOG: &str = "console.log";

/// A running rank. Killed and reaped when dropped.
pub(super) struct Process {
    pub(super) rank: Rank,
    pub(super) child: Child,
    pub(super) pidfd: OwnedFd,
    pub(super) channel: Channel,
    /// Shared by the group.
    pub(super) status: Arc<RankStatus>,
}

impl Process {
    /// Kills it; a process that is gone is not an error.
    pub(super) fn kill(&self) {
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        // Not `wait`: a process in an uninterruptible call would block us for ever.
        let _ = poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(KILL_TIMEOUT));
        let _ = self.child.try_wait();
    }
}

/// Starts all ranks of the plan, or those of this machine among several, and sends each its plan. A
/// group that is started again, because of the last of `causes`, continues from the newest
/// checkpoint. If one cannot be started, none is left.
pub(super) fn spawn_all(
    plan: &Plan,
    run: &RunFolders,
    start: &Start,
    causes: &[String],
    nodes: Option<&mut Nodes>,
) -> Result<Vec<Process>, Box<Failure>> {
    let fail =
        |rank| move |error: io::Error| Failure::of_start(run, rank, &error, ExitCode::Resource);
    let fail_log =
        |rank| move |error: io::Error| Failure::of_start(run, rank, &error, ExitCode::Storage);
    let mapping = plan.distributed.mapping();
    let memory = mapping.map(shared_memory).transpose().map_err(fail(Rank(0)))?;
    let status = RankStatus::new(plan.distributed.world_size).map_err(fail(Rank(0)))?;
    let status = Arc::new(status);
    let mut processes = Vec::new();
    let world = plan.distributed.world_size.get();
    let (ranks, node): (Vec<Rank>, _) = match &nodes {
        Some(nodes) => (nodes.ranks().collect(), nodes.place()),
        None => ((0..world).map(Rank).collect(), 0),
    };
    let local_world = ranks.len();
    let mut peers = nodes.map_or(vec![], Nodes::take_peers);
    for (local_rank, rank) in ranks.into_iter().enumerate() {
        let log = open_log(run, rank, start.console).map_err(fail_log(rank))?;
        // A rank that was killed may have left half a report; one that stays does no harm.
        drop(files::remove_temporaries_of(&run.logs.join(report_file(rank))));
        let rank_plan = RankPlan {
            plan: plan.clone(),
            rank,
            run: run.clone(),
            resume: start.resume || !causes.is_empty(),
            restarts: causes.len() as u32,
            causes: causes.to_vec(),
        };
        let resources = RankResources {
            local_rank,
            local_world,
            node,
            memory: memory.as_ref(),
            // The first one speaks with the other machines.
            peers: std::mem::take(&mut peers),
            status: &status,
            log,
        };
        let process = spawn(rank_plan, &start.program, resources).map_err(fail(rank))?;
        processes.push(process);
        failpoint::reach("spawn");
    }
    Ok(processes)
}

/// Resources of a rank beside its plan.
struct RankResources<'a> {
    /// Index among the ranks of this machine.
    local_rank: usize,
    local_world: usize,
    node: u32,
    memory: Option<&'a OwnedFd>,
    peers: Vec<Peer>,
    status: &'a Arc<RankStatus>,
    /// File for its output; `None`: our own terminal.
    log: Option<File>,
}

fn spawn(
    rank_plan: RankPlan,
    program: &Program,
    resources: RankResources<'_>,
) -> io::Result<Process> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut command = Command::new(&program.path);
    command.args(&program.args).envs(program.env.iter().map(|(name, value)| (name, value)));
    set_torch_environment(&mut command, &rank_plan, &resources);
    let RankResources { memory, peers, status, log, .. } = resources;
    command.env(CONTROL_FD, theirs.as_raw_fd().to_string());
    match memory {
        Some(fd) => command.env(SHM_FD, fd.as_raw_fd().to_string()),
        None => command.env_remove(SHM_FD),
    };
    command.env(STATUS_FD, status.as_fd().as_raw_fd().to_string());
    let (peers, sockets): (Vec<_>, Vec<_>) = peers.into_iter().map(PeerDescription::of).unzip();
    let peer_fds: Vec<_> = sockets.iter().map(AsRawFd::as_raw_fd).collect();
    let numbers: Vec<String> = peer_fds.iter().map(ToString::to_string).collect();
    if numbers.is_empty() {
        command.env_remove(PEER_FDS);
    } else {
        command.env(PEER_FDS, numbers.join(","));
    }
    command.stdin(Stdio::null());
    if let Some(log) = log {
        command.stdout(log.try_clone()?).stderr(log);
    }
    let fds = [theirs.as_raw_fd(), status.as_fd().as_raw_fd()]
        .into_iter()
        .chain(memory.map(AsRawFd::as_raw_fd))
        .chain(peer_fds);
    inherit::prepare(&mut command, fds.collect());
    let child = inherit::spawn(&mut command, START_TIMEOUT)?;
    oom_kills::prefer(child.id());
    let pidfd = rustix::process::pidfd_open(Pid::from_child(&child), PidfdFlags::empty())
        .map_err(|errno| missing_call("pidfd_open", "5.3", errno))?;
    let (rank, channel, status) = (rank_plan.rank, Channel::new(ours)?, Arc::clone(status));
    let mut process = Process { rank, child, pidfd, channel, status };
    process.channel.send(&ToRank::Plan(Box::new(rank_plan)))?;
    if !peers.is_empty() {
        // Keys go through the socket: other processes of the same user can read a process's
        // environment.
        process.channel.send(&ToRank::Peers(peers))?;
    }
    Ok(process)
}

/// The file for a rank's output; none for a rank 0 that prints on our own terminal.
fn open_log(run: &RunFolders, rank: Rank, console: Console) -> io::Result<Option<File>> {
    let name = match (rank.is_first(), console) {
        (true, Console::Terminal) => return Ok(None),
        (true, Console::File) => CONSOLE_LOG.to_owned(),
        (false, _) => format!("rank-{rank}.log"),
    };
    open_output(&run.logs.join(name)).map(Some)
}

/// Opens a file to which a program's output is appended.
pub(crate) fn open_output(path: &Path) -> io::Result<File> {
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("`{}`: {error}", path.display()));
    OpenOptions::new().create(true).append(true).open(path).map_err(named)
}

/// The environment that torchrun gives its ranks. No port is opened: `MASTER_PORT` is for programs
/// that want one.
fn set_torch_environment(
    command: &mut Command,
    rank_plan: &RankPlan,
    resources: &RankResources<'_>,
) {
    let RankPlan { plan, rank, run, restarts, .. } = rank_plan;
    for (name, value) in [
        ("RANK", rank.to_string()),
        ("LOCAL_RANK", resources.local_rank.to_string()),
        ("WORLD_SIZE", plan.distributed.world_size.to_string()),
        ("LOCAL_WORLD_SIZE", resources.local_world.to_string()),
        ("GROUP_RANK", resources.node.to_string()),
        ("MASTER_ADDR", "127.0.0.1".to_owned()),
        ("MASTER_PORT", "29500".to_owned()),
        ("TORCHELASTIC_RUN_ID", run.id.clone()),
        ("TORCHELASTIC_RESTART_COUNT", restarts.to_string()),
        ("TORCHELASTIC_MAX_RESTARTS", plan.max_restarts.to_string()),
        (RAYON_THREADS, plan.distributed.threads_per_rank.to_string()),
        (CANDLE_THREADS.0, CANDLE_THREADS.1.to_owned()),
    ] {
        command.env(name, value);
    }
    if plan.distributed.nccl_shares_a_gpu() {
        command.env("NCCL_MULTI_RANK_GPU_ENABLE", "1");
    }
}
