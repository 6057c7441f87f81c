//! The verdict on a group -> the [`Failure`] that the user sees.

use crate::event::Phase;
use crate::launch::exit::Exit;
use crate::launch::failure::{Failure, LESS_MEMORY, Secondary};
use crate::launch::parent::group::{Fault, Group, Member};
use crate::launch::parent::stall::{Stall, StallKind};
use crate::plan::RunFolders;
use crate::units::Rank;
use crate::user_error::ExitCode;

impl Failure {
    /// A rank that failed by itself.
    pub(super) fn of_fault(run: &RunFolders, group: &Group, rank: Rank, fault: Fault) -> Box<Self> {
        let member = group.member(rank);
        let exit = member.exit.map(|(_, exit)| exit).filter(|_| !member.was_killed);
        if let Some(why) = group.lack_of_memory(rank) {
            let message = format!("rank {rank} ran out of memory");
            let failure = Self::new(run, rank, message, vec![why], ExitCode::Resource)
                .with_member(member, group);
            let help = Some(LESS_MEMORY.to_owned());
            return Box::new(Self { exit, out_of_memory: true, help, ..failure });
        }
        let (message, causes, code) = match (fault, &member.report) {
            (_, Some(report)) => (report.message.clone(), report.causes.clone(), report.exit_code),
            (Fault::Signal(signal), _) => (
                format!("rank {rank} {}", Exit::Signal(signal)),
                vec![signal_source(signal)],
                ExitCode::Peer,
            ),
            (Fault::ExitedEarly(code), _) => (
                format!("rank {rank} exited before the run ended"),
                vec![format!("its process exited with code {code} with work left to do")],
                ExitCode::Peer,
            ),
            (Fault::Code(code), _) => (
                format!("rank {rank} {}", Exit::Code(code)),
                vec!["it gave no reason: see its log".to_owned()],
                program_code(code),
            ),
            (Fault::Reported, None) => (format!("rank {rank} failed"), vec![], ExitCode::Bug),
        };
        let failure = Self::new(run, rank, message, causes, code).with_member(member, group);
        let out_of_memory = member.report.as_ref().is_some_and(|report| report.out_of_memory);
        Box::new(Self { exit, out_of_memory, ..failure })
    }

    /// A rank that is stopped while the others waited for it.
    pub(super) fn of_stopped(run: &RunFolders, group: &Group, rank: Rank) -> Box<Self> {
        let member = group.member(rank);
        let message = format!("rank {rank} (pid {}) is stopped (SIGSTOP)", member.pid);
        let why = "its process was stopped, and the other ranks could not continue without it";
        Box::new(
            Self::new(run, rank, message, vec![why.to_owned()], ExitCode::Peer)
                .with_member(member, group),
        )
    }

    /// A rank that held up the others.
    pub(super) fn of_stall(run: &RunFolders, group: &Group, stall: Stall) -> Box<Self> {
        let Stall { rank, kind, time } = stall;
        let member = group.member(rank);
        let (what, why) = match kind {
            StallKind::NoHeartbeat => {
                ("sent a heartbeat", "its process is frozen, or starved of cores")
            }
            StallKind::NoProgress => ("made progress", likely_cause(member.phase)),
            StallKind::Deadlock => ("made progress", likely_cause(Phase::Reducing)),
        };
        let (pid, seconds) = (member.pid, time.as_secs_f64());
        let message = format!("rank {rank} (pid {pid}) has not {what} for {seconds:.1} s");
        Box::new(
            Self::new(run, rank, message, vec![why.to_owned()], ExitCode::Peer)
                .with_member(member, group),
        )
    }

    /// A rank that others waited for until their deadline.
    pub(super) fn of_missed_deadline(run: &RunFolders, group: &Group, rank: Rank) -> Box<Self> {
        let member = group.member(rank);
        let message =
            format!("rank {rank} (pid {}) did not join the other ranks in time", member.pid);
        let why = vec![likely_cause(member.phase).to_owned()];
        Box::new(Self::new(run, rank, message, why, ExitCode::Peer).with_member(member, group))
    }

    fn with_member(self, member: &Member, group: &Group) -> Self {
        let others = group.ranks().filter(|(rank, _)| *rank != self.rank);
        let report = member.report.as_ref();
        Self {
            pid: Some(member.pid),
            phase: member.phase,
            step: member.step,
            place: report.and_then(|report| report.place.clone()),
            help: report.and_then(|report| report.help.clone()),
            secondary: others.map(|(rank, other)| secondary(rank, other)).collect(),
            ..self
        }
    }
}

fn secondary(rank: Rank, member: &Member) -> Secondary {
    let message = match (&member.report, member.exit) {
        (Some(report), _) => format!("reported: {}", report.message),
        (None, None) => {
            format!("cannot be killed (pid {}); the machine may need a restart", member.pid)
        }
        (None, Some(_)) if member.was_killed => "was terminated with the group".to_owned(),
        (None, Some((_, exit))) => exit.to_string(),
    };
    Secondary { rank, pid: member.pid, phase: member.phase, step: member.step, message }
}

/// What may keep a rank in this phase for ever.
fn likely_cause(phase: Phase) -> &'static str {
    match phase {
        Phase::Starting | Phase::Joining => "startup is stuck: a slow disk, or too few cores",
        Phase::LoadingData => {
            "its loader delivers no batch: an unresponsive file system, or a pipe or endless file"
        }
        Phase::Forward | Phase::Backward => {
            "its computation does not finish: too few cores, or a kernel or an operation that hangs"
        }
        Phase::Reducing => "deadlock: all ranks wait in collectives that none completes",
        Phase::Saving => "the disk of its checkpoints does not respond",
        Phase::Evaluating => "its evaluation does not finish: an operation, or a disk, that hangs",
        Phase::Optimizer | Phase::Finishing => {
            "it is stuck between steps: an unresponsive disk, or too few cores"
        }
    }
}

/// What may have sent a signal that was not ours.
fn signal_source(signal: i32) -> String {
    match signal {
        libc::SIGKILL => {
            "not by ddprun: the kernel sends it when memory runs out (see `dmesg`), or it was \
             killed manually"
        }
        libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGFPE | libc::SIGABRT => {
            "a crash in native code; a core dump may exist (see `coredumpctl`)"
        }
        _ => "not by ddprun: another process sent it",
    }
    .to_owned()
}

/// The program's exit code for that of a rank. An unknown one is a bug of ours (a panic exits with
/// 101).
fn program_code(code: i32) -> ExitCode {
    ExitCode::of_process(code)
        .filter(|code| (ExitCode::Refused..=ExitCode::Resource).contains(code))
        .unwrap_or(ExitCode::Bug)
}
