//! What follows a failure of a run over several machines: node 0 decides it, and all parents meet
//! again.
//!
//! ```text
//! node 0   ends its ranks ─▶ decides ─Next─▶ listens ─▶ all are there ─▶ starts its ranks
//! node k   ends its ranks ─▶ hears it, or that node 0 is gone ─▶ connects ─▶ starts its ranks
//! ```

use std::time::Duration;

use crate::launch::machines::next_meeting::{MeetAgainError, join_again};
use crate::launch::machines::nodes::Next;
use crate::launch::parent::options::Note;
use crate::launch::parent::recovery::{FailedAttempt, Recovery};
use crate::launch::parent::watch::StopSources;
use crate::launch::{Failure, Nodes};

/// How long a look at the stop requests takes.
const LOOK: Duration = Duration::from_millis(1);

/// What follows a failure, and after which wait. Of several machines node 0 decides it for all;
/// where it is gone, each of the others waits for it as if it had decided to go on.
///
/// # Errors
///
/// The failure is the end.
pub(super) fn after_failure(
    nodes: Option<&mut Nodes>,
    recovery: &mut Recovery,
    failed: FailedAttempt,
) -> Result<(Note, Duration), Box<Failure>> {
    let Some(nodes) = nodes.filter(|nodes| nodes.meet_again()) else {
        return recovery.after(failed);
    };
    if nodes.node() == 0 {
        let next = recovery.after(failed);
        nodes.announce(match next {
            Ok((Note::Shrunk { .. }, _)) => Next::Smaller,
            Ok((_, wait)) => Next::Again { wait },
            Err(_) => Next::Over,
        });
        return next;
    }
    match nodes.decision() {
        Some(next) => recovery.follow(failed, next),
        None => recovery.after(failed),
    }
}

/// Meets the other machines again, for the next start of the group.
///
/// # Errors
///
/// They do not come within `distributed.timeout`, do not fit any more, or this one is asked to
/// stop.
pub(super) fn meet_again(
    nodes: &mut Nodes,
    recovery: &Recovery,
    stops: &mut StopSources,
    on_note: &mut dyn FnMut(Note),
) -> Result<(), NotMet> {
    let mut is_called_off = || stops.is_requested_within(LOOK);
    let mut report = |line: &str| on_note(Note::Meeting { words: line.to_owned() });
    join_again(nodes, recovery.past(), &mut is_called_off, &mut report).map_err(NotMet)
}

/// Why the machines did not meet again.
pub(super) struct NotMet(MeetAgainError);

impl NotMet {
    /// The failure after which they wanted to meet, or that they did not.
    pub(super) fn ends(self, failure: Box<Failure>) -> Box<Failure> {
        let mut failure = failure;
        failure.causes.push(self.0.to_string());
        failure
    }
}
