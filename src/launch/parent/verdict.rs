//! A group that is over -> how its run ended, or which rank is the cause of its failure. Pure.

use crate::launch::error_report::Blame;
use crate::launch::parent::group::{Exit, Fault, Group, Member, RESIZED, Stop};
use crate::launch::parent::stall::{Kind, Stall};
use crate::units::Rank;

/// Code of ranks that left to come back with more.
const RESIZE: i32 = RESIZED as i32;

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
pub(in crate::launch) enum Verdict {
    /// As it should.
    Ended(Ended),
    /// Saved, to come back with more ranks.
    Resized,
    /// This rank failed first.
    Fault(Rank, Fault),
    /// This rank is stopped while the others waited for it.
    Frozen(Rank),
    /// This rank held up the others.
    Stalled(Stall),
    /// This rank did not come to a collective before its deadline, as another one says.
    Missed(Rank),
    /// Nothing failed here, but on another machine, which ended this group.
    Elsewhere,
}

impl Verdict {
    /// Whether something else, perhaps on another machine, is the cause.
    pub(in crate::launch) fn is_consequence(&self, group: &Group) -> bool {
        match self {
            Self::Fault(rank, _) => is_consequence(group.member(*rank)),
            Self::Elsewhere => true,
            _ => false,
        }
    }
}

/// Own faults count before failed collectives, which are consequences; among equals the earliest counts.
pub(in crate::launch) fn judge(group: &Group) -> Verdict {
    if group.is_abandoned() {
        return Verdict::Ended(Ended::Interrupted { saved: false });
    }
    if group.members.iter().all(has_saved_and_left) {
        return ended(group);
    }
    let members = || group.ranks();
    let faults = members().filter_map(|(rank, member)| Some((rank, member, member.fault()?)));
    let first =
        faults.min_by_key(|(rank, member, _)| (is_consequence(member), member.fault_time(), *rank));
    match first {
        Some((rank, member, fault)) if !is_consequence(member) => Verdict::Fault(rank, fault),
        None if group.has_failed_elsewhere() => Verdict::Elsewhere,
        None if group.stall().is_none() => ended(group),
        first => {
            let mut frozen = members().filter(|(_, member)| member.is_stopped && is_silent(member));
            let frozen = frozen.next().map(|(rank, _)| Verdict::Frozen(rank));
            let waiter = || first.map(|(rank, _, fault)| Verdict::Fault(rank, fault));
            frozen.or_else(|| held_up(group)).or_else(waiter).unwrap_or_else(|| ended(group))
        }
    }
}

/// Who held up the others, by what the parent saw and those who waited say.
fn held_up(group: &Group) -> Option<Verdict> {
    let reports = group.members.iter().filter_map(|member| member.report.as_ref());
    let is_silent =
        |asked: &&Rank| group.ranks().any(|(rank, member)| rank == **asked && is_silent(member));
    let missed = reports.flat_map(|report| &report.suspects).find(is_silent).copied();
    match (group.stall(), missed) {
        // All were waiting: those who gave up know better for whom.
        (Some(stall), Some(rank)) if stall.kind == Kind::Together => {
            Some(Verdict::Stalled(Stall { rank, ..stall }))
        }
        (Some(stall), _) => Some(Verdict::Stalled(stall)),
        (None, missed) => missed.map(Verdict::Missed),
    }
}

/// Whether a rank ended as all ranks do after a vote and a save. If all of them did, it does not matter that we were not
/// told: we may have been stopped, and they could not wait.
fn has_saved_and_left(member: &Member) -> bool {
    let left = matches!(member.exit, Some((_, Exit::Code(75))));
    left && member.report.is_none()
}

/// Whether a rank neither failed nor ended by itself.
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
        // Whoever was asked to leave for good meanwhile does not come back.
        (RESIZE, None | Some(Stop::Resize)) => return Verdict::Resized,
        (75 | 130 | RESIZE, Some(Stop::Abandon)) => Ended::Interrupted { saved: false },
        (75 | RESIZE, Some(Stop::Interrupt)) | (130, _) => Ended::Interrupted { saved: true },
        (75 | RESIZE, _) => Ended::Stopped,
        (9, _) => Ended::Missed,
        _ => Ended::Completed,
    })
}
