//! How a process ended, and how a run did.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::user_error::ExitCode;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exited with code {code}"),
            Self::Signal(number) => match signal_hook::low_level::signal_name(*number) {
                Some(name) => write!(f, "was killed by {name}"),
                None => write!(f, "was killed by signal {number}"),
            },
        }
    }
}

/// How a run ended when nothing failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    pub fn exit_code(self) -> ExitCode {
        match self {
            Self::Completed => ExitCode::Ok,
            Self::Missed => ExitCode::Expectation,
            Self::Stopped => ExitCode::Preempted,
            Self::Interrupted { .. } => ExitCode::Interrupted,
        }
    }
}
