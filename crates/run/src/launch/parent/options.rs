//! Options for starting a run, and the notes that its parent sends while it runs.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::launch::rank::env::TELL_EVENTS;
use crate::launch::{Failure, Phase, Stop};
use crate::plan::Plan;
use crate::transport::Waker;
use crate::units::{BatchSize, Rank, WorldSize};

/// Options for starting a run.
#[derive(Clone, Debug)]
pub struct Start {
    /// True if ranks continue from the newest checkpoint of the run.
    pub resume: bool,
    pub program: Program,
    pub console: Console,
    /// Plans of the smaller groups that the run may continue with, largest first.
    pub smaller: Vec<Plan>,
    /// Woken by another thread to stop this run; it then ends as after a SIGTERM.
    pub waker: Option<Arc<Waker>>,
}

/// Output of rank 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Console {
    /// On the terminal of its parent.
    Terminal,
    /// Into `console.log` of the run.
    File,
}

/// The program that a rank executes.
#[derive(Clone, Debug)]
pub struct Program {
    /// The binary.
    pub path: PathBuf,
    pub args: Vec<OsString>,
    /// Variables beside the launcher's own.
    pub env: Vec<(OsString, OsString)>,
}

impl Program {
    /// This binary, as `ddprun worker`.
    ///
    /// # Errors
    ///
    /// The system does not tell its path.
    pub fn this() -> io::Result<Self> {
        let path = std::env::current_exe()?;
        // A binary that was rebuilt meanwhile no longer has a path, but can still be executed.
        let path = if path.exists() { path } else { PathBuf::from("/proc/self/exe") };
        Ok(Self { path, args: vec!["worker".into()], env: vec![] })
    }

    /// The same program, whose rank 0 sends the events that it records to its parent.
    #[must_use]
    pub fn telling_events(mut self) -> Self {
        self.env.push((TELL_EVENTS.into(), "1".into()));
        self
    }
}

/// An event of the launcher while it watches its ranks.
#[derive(Clone, Debug, PartialEq)]
pub enum LauncherEvent {
    /// A rank's process exists.
    Started { rank: Rank, pid: u32 },
    /// The run has recorded an event, as `events.jsonl` has it; if ranks were asked to send them
    /// ([`Program::telling_events`]).
    Recorded(Map<String, Value>),
    /// Step and phase of a rank; each is looked at a few times a second.
    Progress {
        rank: Rank,
        /// Last step begun.
        step: u64,
        phase: Phase,
    },
    /// A rank is stopped (SIGSTOP); the others will wait for it until their deadline.
    Stopped { rank: Rank, pid: u32 },
    /// It runs again.
    Continued { rank: Rank, pid: u32 },
    /// All ranks were asked to stop.
    Stopping { stop: Stop },
    /// The group failed and will be started again from the newest checkpoint.
    Restarting {
        /// From 1.
        attempt: u32,
        /// Attempts that the plan allows.
        of: u32,
        /// Time until then.
        wait: Duration,
        /// Why it failed.
        cause: Box<Failure>,
    },
    /// The machines of the run meet again.
    Rendezvous {
        /// Whom this one waits for, and where.
        words: String,
    },
    /// A rank ran out of memory: the run continues from its newest checkpoint with smaller
    /// micro-batches, and more of them.
    Shrunk {
        /// Samples of a micro-batch from now on.
        size: BatchSize,
        cause: Box<Failure>,
    },
    /// The run continues from its newest checkpoint with another number of ranks.
    Resized {
        from: WorldSize,
        to: WorldSize,
        /// Why it has fewer; absent if it has more.
        cause: Option<Box<Failure>>,
    },
}
