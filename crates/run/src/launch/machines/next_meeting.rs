//! The parents of several machines meet again for the next start of the group: after a failure, or
//! because one that was away has come.
//!
//! They meet where they met first. A machine whose parent has died may come as a new one, started
//! by the same command; also node 0, which the others then tell which run they continue.

use std::convert::Infallible;
use std::time::Instant;

use crate::launch::machines::greeting::{NodeRendezvousError, Place, STOPPED};
use crate::launch::machines::meeting::{Meeting, Past, Session};
use crate::launch::machines::node_rendezvous::meet;
use crate::launch::machines::nodes::{Nodes, RemoteNode};
use crate::launch::machines::waiting::{LOOK_INTERVAL, Waiting};
use crate::launch::{NoRun, PreparedRun};

/// Why the machines did not meet again.
pub(crate) type MeetAgainError = NodeRendezvousError<Infallible>;

/// As `join_again`, where nothing has failed and nothing is told.
///
/// # Errors
///
/// As `join_again`.
pub fn join_nodes_again(nodes: &mut Nodes) -> Result<(), MeetAgainError> {
    join_again(nodes, &Past::default(), &mut || false, &mut |_| ())
}

/// Connects the machines again, and puts the new connections into `nodes`. `past` is what the
/// run has been through with what comes now; afterwards it is what node 0 knows.
///
/// # Errors
///
/// A machine does not come within `distributed.timeout`, or does not fit any more.
pub(in crate::launch) fn join_again(
    nodes: &mut Nodes,
    past: &Past,
    is_called_off: &mut dyn FnMut() -> bool,
    report: &mut dyn FnMut(&str),
) -> Result<(), MeetAgainError> {
    let Meeting { config, prepared, smaller, session, .. } = nodes.meeting().clone();
    let session = Session { past: past.clone(), ..session };
    let prepared = PreparedRun { resume: true, ..prepared };
    let longest = prepared.plan.distributed.timeout;
    let mut door = nodes.take_door();
    let mut earlier = nodes.take_remotes();
    let node_0_stops = |earlier: &mut [RemoteNode]| {
        config.node != 0 && earlier.iter_mut().any(RemoteNode::calls_off)
    };
    let mut stops = || node_0_stops(&mut earlier) || is_called_off();
    let mut waiting =
        Waiting { until: Instant::now() + longest, longest, is_called_off: &mut stops };
    let error = loop {
        let again = || Ok::<_, Infallible>(prepared.clone());
        let plan = &prepared.plan;
        let place = Place { config: &config, plan, smaller: &smaller, session: Some(&session) };
        let met = meet(place, door.take(), |_| again(), &mut waiting, report);
        match met {
            Ok((_, met)) => {
                *nodes = met;
                return Ok(());
            }
            // A machine may have died while the others met.
            Err(error) if error.may_pass() && !waiting.is_over() => {
                if (waiting.is_called_off)() {
                    break NodeRendezvousError::CalledOff { node: config.node };
                }
                std::thread::sleep(LOOK_INTERVAL);
            }
            Err(error) => break error,
        }
    };
    let is_over = node_0_stops(&mut earlier);
    nodes.put_back(earlier);
    Err(if is_over { NodeRendezvousError::Refused(NoRun::unfit(STOPPED)) } else { error })
}
