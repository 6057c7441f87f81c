//! A group that is over -> how its run ended, or which rank is the cause of its failure. Pure.

use crate::launch::report::Blame;
use crate::launch::supervise::{Exit, Fault, Group, Member, Stop};
use crate::units::Rank;

/// How a run ended when nothing failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All steps are done.
    Completed,
    /// All steps are done, and an expectation was missed.
    Missed,
    /// Stopped by a signal, and saved.
    Stopped,
    /// Stopped by Ctrl-C.
    Interrupted {
        /// Whether the state was saved.
        saved: bool,
    },
}

impl Ended {
    /// The code that the program exits with.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Completed => 0,
            Self::Missed => 9,
            Self::Stopped => 75,
            Self::Interrupted { .. } => 130,
        }
    }
}

/// How a group ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// As it should.
    Ended(Ended),
    /// This rank failed first.
    Fault(Rank, Fault),
    /// This rank is stopped while the others waited for it.
    Frozen(Rank),
}

/// Own faults count before failed collectives, which are consequences; among equals the earliest counts.
pub(super) fn judge(group: &Group) -> Verdict {
    if group.is_abandoned() {
        return Verdict::Ended(Ended::Interrupted { saved: false });
    }
    let members = || (0..).map(Rank).zip(&group.members);
    let faults = members().filter_map(|(rank, member)| Some((rank, member, member.fault()?)));
    let first =
        faults.min_by_key(|(rank, member, _)| (is_consequence(member), member.fault_time(), *rank));
    let Some((rank, member, fault)) = first else { return Verdict::Ended(ended(group)) };
    let mut frozen = members().filter(|(_, member)| member.is_stopped && member.fault().is_none());
    match frozen.next() {
        Some((frozen, _)) if is_consequence(member) => Verdict::Frozen(frozen),
        _ => Verdict::Fault(rank, fault),
    }
}

fn is_consequence(member: &Member) -> bool {
    member.report.as_ref().is_some_and(|report| report.blame == Blame::Peer)
}

fn ended(group: &Group) -> Ended {
    let codes = group.members.iter().filter_map(|member| match member.exit {
        Some((_, Exit::Code(code))) => Some(code),
        _ => None,
    });
    // Rank 0 judges expectations; a vote to stop gives all ranks the same code.
    match (codes.max().unwrap_or(0), group.asked()) {
        (75 | 130, Some(Stop::Abandon)) => Ended::Interrupted { saved: false },
        (75, Some(Stop::Interrupt)) | (130, _) => Ended::Interrupted { saved: true },
        (75, _) => Ended::Stopped,
        (9, _) => Ended::Missed,
        _ => Ended::Completed,
    }
}
