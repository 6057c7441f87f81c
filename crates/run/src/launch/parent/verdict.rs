//! A group that is over -> the end of its run, or the [`Failure`] that the user sees. Pure.

use crate::event::{Phase, Stop};
use crate::launch::error_report::Blame;
use crate::launch::failure::{Ended, Exit, Failure, LESS_MEMORY, Secondary};
use crate::launch::machines::nodes::Outcome;
use crate::launch::parent::group::{Fault, Group, Member};
use crate::launch::parent::stall::{Stall, StallKind};
use crate::plan::RunFolders;
use crate::units::Rank;
use crate::user_error::ExitCode;

/// Exit code of ranks that stopped to come back with more.
const RESIZE: i32 = ExitCode::Resized as i32;

/// The end of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Orderly.
    Ended(Ended),
    /// Saved, to come back with more ranks.
    Resized,
    /// This rank failed first.
    Fault(Rank, Fault),
    /// This rank is stopped (SIGSTOP) while the others waited for it.
    Stopped(Rank),
    /// This rank held up the others.
    Stalled(Stall),
    /// This rank did not come to a collective before its deadline, as another one reported.
    MissedDeadline(Rank),
    /// Nothing failed here, but on another machine, which ended this group.
    FailedElsewhere,
}

impl Verdict {
    /// The result that the parent reports.
    pub(super) fn outcome(self, run: &RunFolders, group: &Group) -> Result<Outcome, Box<Failure>> {
        Err(match self {
            Self::Ended(ended) => return Ok(Some(ended)),
            Self::Resized => return Ok(None),
            Self::FailedElsewhere => Failure::of_elsewhere(run, group.first),
            Self::Fault(rank, fault) => Failure::of_fault(run, group, rank, fault),
            Self::Stopped(rank) => Failure::of_stopped(run, group, rank),
            Self::Stalled(stall) => Failure::of_stall(run, group, stall),
            Self::MissedDeadline(rank) => Failure::of_missed_deadline(run, group, rank),
        })
    }

    /// True if something else, perhaps on another machine, is the cause.
    pub(super) fn is_consequence(&self, group: &Group) -> bool {
        match self {
            Self::Fault(rank, _) => is_consequence(group.member(*rank)),
            Self::FailedElsewhere => true,
            _ => false,
        }
    }
}

/// Own faults count before failed collectives, which are consequences; among equals the earliest
/// counts.
pub(super) fn judge(group: &Group) -> Verdict {
    if group.is_abandoned {
        return Verdict::Ended(Ended::Interrupted { saved: false });
    }
    if group.members.iter().all(has_saved_and_exited) {
        return ended(group);
    }
    let members = || group.ranks();
    let faults = members().filter_map(|(rank, member)| Some((rank, member, member.fault()?)));
    let first =
        faults.min_by_key(|(rank, member, _)| (is_consequence(member), member.fault_time(), *rank));
    match first {
        Some((rank, member, fault)) if !is_consequence(member) => Verdict::Fault(rank, fault),
        None if group.has_failed_elsewhere => Verdict::FailedElsewhere,
        None if group.stall.is_none() => ended(group),
        first => {
            let mut stopped =
                members().filter(|(_, member)| member.is_stopped && is_silent(member));
            let stopped = stopped.next().map(|(rank, _)| Verdict::Stopped(rank));
            let waiter = || first.map(|(rank, _, fault)| Verdict::Fault(rank, fault));
            stopped.or_else(|| held_up(group)).or_else(waiter).unwrap_or_else(|| ended(group))
        }
    }
}

/// The rank that held up the others, as the parent saw and the waiting ranks report.
fn held_up(group: &Group) -> Option<Verdict> {
    let reports = group.members.iter().filter_map(|member| member.report.as_ref());
    let is_silent =
        |asked: &&Rank| group.ranks().any(|(rank, member)| rank == **asked && is_silent(member));
    let missed = reports.flat_map(|report| &report.suspects).find(is_silent).copied();
    match (group.stall, missed) {
        // All were waiting: those that gave up know better for which rank.
        (Some(stall), Some(rank)) if stall.kind == StallKind::Deadlock => {
            Some(Verdict::Stalled(Stall { rank, ..stall }))
        }
        (Some(stall), _) => Some(Verdict::Stalled(stall)),
        (None, missed) => missed.map(Verdict::MissedDeadline),
    }
}

/// True if a rank exited in the way of ranks that voted to stop and saved. If all did, the run was
/// stopped, even if they could not report it because this process was stopped, too.
fn has_saved_and_exited(member: &Member) -> bool {
    let left = matches!(member.exit, Some((_, Exit::Code(75))));
    left && member.report.is_none()
}

/// True if a rank neither failed nor exited by itself.
fn is_silent(member: &Member) -> bool {
    member.fault().is_none()
}

fn is_consequence(member: &Member) -> bool {
    member.report.as_ref().is_some_and(|report| report.blame == Blame::Peer)
}

fn ended(group: &Group) -> Verdict {
    let codes = group.members.iter().filter_map(|member| match member.exit {
        Some((_, Exit::Code(code))) => Some(code),
        _ => None,
    });
    // Rank 0 judges expectations; a vote to stop gives all ranks the same code.
    Verdict::Ended(match (codes.max().unwrap_or(0), group.asked) {
        // A group that was asked to stop for good meanwhile does not come back.
        (RESIZE, None | Some(Stop::Resize)) => return Verdict::Resized,
        (75 | 130 | RESIZE, Some(Stop::Abandon)) => Ended::Interrupted { saved: false },
        (75 | RESIZE, Some(Stop::Interrupt)) | (130, _) => Ended::Interrupted { saved: true },
        (75 | RESIZE, _) => Ended::Stopped,
        (9, _) => Ended::Missed,
        _ => Ended::Completed,
    })
}

impl Failure {
    /// A rank that failed by itself.
    fn of_fault(run: &RunFolders, group: &Group, rank: Rank, fault: Fault) -> Box<Self> {
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
    fn of_stopped(run: &RunFolders, group: &Group, rank: Rank) -> Box<Self> {
        let member = group.member(rank);
        let message = format!("rank {rank} (pid {}) is stopped (SIGSTOP)", member.pid);
        let why = "its process was stopped, and the other ranks could not continue without it";
        Box::new(
            Self::new(run, rank, message, vec![why.to_owned()], ExitCode::Peer)
                .with_member(member, group),
        )
    }

    /// A rank that held up the others.
    fn of_stall(run: &RunFolders, group: &Group, stall: Stall) -> Box<Self> {
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
    fn of_missed_deadline(run: &RunFolders, group: &Group, rank: Rank) -> Box<Self> {
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

/// Likely cause of a rank that stays in this phase for ever.
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

/// Likely sender of a signal that was not ours.
fn signal_source(signal: i32) -> String {
    match signal {
        libc::SIGKILL => {
            "not by ddprun: the kernel sends it when memory runs out (see `dmesg`), or it was \
             killed manually"
        }
        libc::SIGBUS => {
            "a file that it had mapped was cut off, such as the weights below adapters, or native \
             code crashed"
        }
        libc::SIGSEGV | libc::SIGILL | libc::SIGFPE | libc::SIGABRT => {
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
