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
//! Several machines (`--nnodes`): their parents meet first (`meet`), connect all ranks to each other, and then each runs
//! its own, `run_node`, and tells the others how it ends.
//!
//! No port is opened on one machine. Ranks die with the thread that called [`run()`] (the main thread), and
//! again with their control socket. Signals to one rank are a vote of all: `worker` exchanges
//! [`Link::stop_requested`] at each step's edge. A rank that fails reports once and exits with the code of its
//! report; what a collective says is [`Blame::Peer`], everything else [`Blame::Own`].

mod phase;
mod error_report;
mod signals;
mod messages;
mod rank;
mod failure;
mod machines;
mod foreign;
mod join;
mod parent;

pub use error_report::{Blame, ErrorReport};
pub use failure::{Failure, Secondary};
pub use foreign::launch_id::{LaunchId, Launcher, launch_ids};
pub use foreign::local_rendezvous::Error as RendezvousError;
pub use foreign::multi_machine::join_machines;
pub use join::{JoinError, Made, Membership, join};
pub use machines::node_rendezvous::{MeetError, meet};
pub use machines::nodes::{Nodes, Place};
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use messages::receive_both;
pub use parent::group::{Exit, RESIZED, Stop};
pub(crate) use parent::recovery::instead;
pub use parent::run::{Console, Note, Start, run, run_node};
pub use parent::spawn::Program;
pub use parent::verdict::Ended;
pub use phase::Phase;
pub use rank::env as rank_env;
pub use rank::env::Role;
pub use rank::inherit::hide_backtraces_of_errors;
pub use rank::link::Link;
pub use rank::threads::limit_threads;
pub(crate) use signals::Signals;
