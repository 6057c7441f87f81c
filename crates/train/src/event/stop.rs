//! Requests to stop a run, and the exit code that it ends with then.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::user_error::ExitCode;

/// A request to stop a run: by its launcher, by a signal, or by a rank's clock. The strongest of
/// several requests counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Stop {
    /// The group is to come back with more ranks: finish the step, save, leave.
    Resize = 1,
    /// The time for the run is used up: save and end.
    EndOfTime,
    /// The launcher sends no heartbeat: finish the step, save, leave.
    Unwatched,
    /// SIGTERM, SIGUSR1, SIGHUP: finish the step, save, leave.
    Preempt,
    /// Ctrl-C: finish the step, save, leave.
    Interrupt,
    /// Ctrl-C again: finish the step, leave without saving.
    Abandon,
}

impl Stop {
    /// All, from the weakest to the strongest.
    const ALL: [Self; 6] = [
        Self::Resize,
        Self::EndOfTime,
        Self::Unwatched,
        Self::Preempt,
        Self::Interrupt,
        Self::Abandon,
    ];

    /// The request with this number; `None` for 0, which is none.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number).checked_sub(1)?).copied()
    }

    /// True if an evaluation is broken off for it, to be made when the run goes on: whoever asks
    /// may kill the process before it would be over.
    pub fn is_urgent(self) -> bool {
        self >= Self::Unwatched
    }

    /// Exit code of a rank that was stopped so.
    pub fn exit_code(self) -> ExitCode {
        match self {
            Self::Resize => ExitCode::Resized,
            Self::EndOfTime => ExitCode::Ok,
            Self::Unwatched | Self::Preempt => ExitCode::Preempted,
            Self::Interrupt | Self::Abandon => ExitCode::Interrupted,
        }
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Resize | Self::EndOfTime | Self::Preempt | Self::Interrupt => {
                "finish the step, save and exit"
            }
            Self::Unwatched => "save and exit, as the parent sends no heartbeat",
            Self::Abandon => "exit without saving",
        })
    }
}
