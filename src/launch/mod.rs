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

mod waker;
mod course;
#[cfg(test)]
mod damaged;
mod acceptor;
mod elastic;
mod failure;
mod peer_monitor;
mod foreign;
mod handshake;
mod identity;
mod inherit;
mod join;
mod kills;
mod launch_id;
mod launched;
mod link;
mod meet;
mod memory;
mod peer_connections;
mod nodes;
mod peer;
mod phase;
pub mod rank_env;
mod report;
mod restart;
mod run;
pub(crate) mod seal;
mod signals;
mod silence;
mod stall;
mod start;
mod supervise;
mod threads;
mod token;
mod verdict;
mod watch;
mod rank_status;
mod wire;

pub(crate) use course::instead;
pub use failure::{Failure, Secondary};
pub use foreign::Error as RendezvousError;
pub use join::{JoinError, Made, Membership, join};
pub use launch_id::{LaunchId, Launcher, launch_ids};
pub use launched::join_machines;
pub use link::Link;
pub use meet::{MeetError, meet};
pub use memory::shared_memory;
pub use nodes::{Nodes, Place};
pub use peer::Peer;
pub use phase::Phase;
pub use rank_env::Role;
pub use report::{Blame, ErrorReport};
pub use run::{Console, Note, Start, run, run_node};
pub use seal::{Key, Session};
pub(crate) use signals::Signals;
pub use start::Program;
pub use supervise::{Exit, RESIZED, Stop};
pub use threads::limit_threads;
pub use token::{TokenError, new_token, read_token};
pub use verdict::Ended;
pub use waker::Waker;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use wire::receive_both;
