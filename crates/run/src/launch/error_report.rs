//! An error of a rank, as sent to the parent and written to `rank-N.error.json`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::event::Phase;
use crate::units::Rank;
use crate::user_error::ExitCode;

/// Format version of [`ErrorReport`] and of a written failure.
pub(super) const FORMAT: u32 = 1;

/// An error of a rank, with all that the rank knows about it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ErrorReport {
    /// Format version.
    pub format: u32,
    pub rank: Rank,
    pub pid: u32,
    /// Name of its machine.
    pub host: String,
    /// Time on the machine's monotonic clock: orders the errors of its processes.
    pub monotonic: Duration,
    /// Wall-clock time.
    pub time: jiff::Timestamp,
    pub phase: Phase,
    /// Last step begun; 0 before the first.
    pub step: u64,
    /// Code that the process exits with.
    pub exit_code: ExitCode,
    pub blame: Blame,
    /// Ranks that this one waited for until its deadline.
    #[serde(default)]
    pub suspects: Vec<Rank>,
    /// True if memory, of the machine or of a device, ran out.
    #[serde(default)]
    pub out_of_memory: bool,
    pub message: String,
    /// Messages of the sources of the error, outermost first.
    pub causes: Vec<String>,
    /// `file:line`, where known.
    pub place: Option<String>,
    /// Remedy, where known.
    pub help: Option<String>,
}

/// Name of a rank's report, in the run's folder of logs.
pub(super) fn report_file(rank: Rank) -> String {
    format!("rank-{rank}.error.json")
}

/// Location of the cause of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Blame {
    /// This rank.
    Own,
    /// Another rank: a collective failed, which is the consequence of something else.
    Peer,
}

/// The machine's monotonic clock, which all its processes share.
pub(super) fn clock() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Name of this machine.
pub fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The messages of an error and of its sources, outermost first.
pub(super) fn chain(error: &(dyn std::error::Error + 'static)) -> Vec<String> {
    let all = std::iter::successors(Some(error), |error| error.source()).map(ToString::to_string);
    // A message that contains its cause is not followed by it.
    let is_new =
        |messages: &[String], cause: &str| messages.last().is_none_or(|last| !last.contains(cause));
    all.fold(Vec::new(), |mut messages, cause| {
        if is_new(&messages, &cause) {
            messages.push(cause);
        }
        messages
    })
}
