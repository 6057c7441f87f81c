//! How ranks are asked to stop.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How ranks are asked to stop; the strongest request counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Stop {
    /// The group is to come back with more ranks: finish the step, save, exit with
    /// `ExitCode::Resized`.
    Resize = 1,
    /// The parent sends no heartbeat: finish the step, save, exit 75.
    Unwatched,
    /// SIGTERM, SIGUSR1, SIGHUP: finish the step, save, exit 75.
    Preempt,
    /// Ctrl-C: finish the step, save, exit 130.
    Interrupt,
    /// Ctrl-C again: finish the step, exit 130.
    Abandon,
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Resize | Self::Preempt | Self::Interrupt => "finish the step, save and exit",
            Self::Unwatched => "save and exit, as the parent sends no heartbeat",
            Self::Abandon => "exit without saving",
        })
    }
}
