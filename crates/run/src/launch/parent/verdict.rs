//! A group that is over -> how its run ended, or which rank is the cause of its failure. Pure.

use crate::event::Stop;
use crate::launch::error_report::Blame;
use crate::launch::exit::{Ended, Exit};
use crate::launch::parent::group::{Fault, Group, Member};
use crate::launch::parent::stall::{Stall, StallKind};
use crate::units::Rank;
use crate::user_error::ExitCode;

/// Exit code of ranks that stopped to come back with more.
const RESIZE: i32 = ExitCode::Resized as i32;

/// How a group ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::launch) enum Verdict {
    /// As it should.
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
    /// Whether something else, perhaps on another machine, is the cause.
    pub(in crate::launch) fn is_consequence(&self, group: &Group) -> bool {
        match self {
            Self::Fault(rank, _) => is_consequence(group.member(*rank)),
            Self::FailedElsewhere => true,
            _ => false,
        }
    }
}

/// Own faults count before failed collectives, which are consequences; among equals the earliest
/// counts.
pub(in crate::launch) fn judge(group: &Group) -> Verdict {
    if group.is_abandoned() {
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
        None if group.has_failed_elsewhere() => Verdict::FailedElsewhere,
        None if group.stall().is_none() => ended(group),
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
    match (group.stall(), missed) {
        // All were waiting: those that gave up know better for which rank.
        (Some(stall), Some(rank)) if stall.kind == StallKind::Deadlock => {
            Some(Verdict::Stalled(Stall { rank, ..stall }))
        }
        (Some(stall), _) => Some(Verdict::Stalled(stall)),
        (None, missed) => missed.map(Verdict::MissedDeadline),
    }
}

/// Whether a rank exited as all ranks do after a vote and a save. If all did, the run was stopped,
/// even if they could not report it because this process was stopped, too.
fn has_saved_and_exited(member: &Member) -> bool {
    let left = matches!(member.exit, Some((_, Exit::Code(75))));
    left && member.report.is_none()
}

/// Whether a rank neither failed nor exited by itself.
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
    Verdict::Ended(match (codes.max().unwrap_or(0), group.asked()) {
        // A group that was asked to stop for good meanwhile does not come back.
        (RESIZE, None | Some(Stop::Resize)) => return Verdict::Resized,
        (75 | 130 | RESIZE, Some(Stop::Abandon)) => Ended::Interrupted { saved: false },
        (75 | RESIZE, Some(Stop::Interrupt)) | (130, _) => Ended::Interrupted { saved: true },
        (75 | RESIZE, _) => Ended::Stopped,
        (9, _) => Ended::Missed,
        _ => Ended::Completed,
    })
}
