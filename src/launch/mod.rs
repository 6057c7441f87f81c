//! `Plan -> one process per rank`, watched to the end: first failure named, nobody left behind.
//!
//! ```text
//! Role::Parent                                    Role::Child (one process per rank)
//! run(plan) ──memfd, socket pair, `worker`──▶     join ──▶ Membership { rank_plan, shm, link }
//!    │  watch: pidfds, sockets, signals, /proc       │        link.progress(step, phase)
//!    │  ◀── progress, error reports ─────────────────┤        link.report(&link.describe(error, ..))
//!    │  ─── Stop ───────────────────────────────────▶│        link.stop_requested() -> vote -> save
//!    ▼                                               ▼        link.finish(), exit 0 | 75 | 130
//! Ok(Ended) | Err(Failure), after up to `max_restarts` new groups of each admitted size
//!
//! Role::Foreign (torchrun, srun, mpirun, PyTorchJob)
//! join(make) ── rank 0 makes the run and hands plan and memfd to the others over an abstract socket
//! ```
//!
//! No port is opened on one machine. Ranks die with the thread that called [`run()`] (the main thread), and
//! again with their control socket. Signals to one rank are a vote of all: `worker` exchanges
//! [`Link::stop_requested`] at each step's edge. A rank that fails reports once and exits with the code of its
//! report; what a collective says is [`Blame::Peer`], everything else [`Blame::Own`].

mod bell;
mod course;
#[cfg(test)]
mod damaged;
mod elastic;
mod failure;
mod foreign;
mod inherit;
mod join;
mod kills;
mod link;
mod memory;
mod phase;
pub mod rank_env;
mod report;
mod restart;
mod run;
mod signals;
mod silence;
mod stall;
mod start;
mod supervise;
mod verdict;
mod watch;
mod whereabouts;
mod wire;

pub use bell::Bell;
pub(crate) use course::instead;
pub use failure::{Failure, Secondary};
pub use foreign::Error as RendezvousError;
pub use join::{JoinError, Made, Membership, join};
pub use link::Link;
pub use memory::shared_memory;
pub use phase::Phase;
pub use rank_env::Role;
pub use report::{Blame, ErrorReport};
pub use run::{Console, Note, Start, run};
pub(crate) use signals::Signals;
pub use start::Program;
pub use supervise::{Exit, RESIZED, Stop};
pub use verdict::Ended;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use wire::receive_both;
