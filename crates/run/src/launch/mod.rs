//! `Plan -> one process per rank`, watched to the end: the first failure is named, and no process
//! is left behind.
//!
//! ```text
//! Role::Parent                                    Role::Child (one process per rank)
//! run(plan) ──memfd, socket pair, `worker`──▶     join ──▶ Membership { rank_plan, shm, link }
//!    │  watch: pidfds, sockets, signals, /proc       │        link.progress(step, phase)
//!    │  ◀── progress, error reports ─────────────────┤        link.report(&link.describe(error, ..))
//!    │  ─── Stop ───────────────────────────────────▶│        link.stop_requested() -> vote -> save
//!    ▼                                               ▼        link.finish(), exit 0 | 75 | 130
//! Ok(Ended) | Err(Failure), after up to `max_restarts` new groups of each allowed size
//!
//! Role::Foreign (torchrun, srun, mpirun, PyTorchJob)
//! join(prepare) ── rank 0 prepares the run and sends plan and memfd to the others over an abstract socket
//! ```
//!
//! Several machines (`--nnodes`): their parents find each other first (`machines`) and connect all
//! ranks; then each parent runs its own ranks, `run_node`, and tells the others how they end. After
//! a failure node 0 decides whether all meet again, for the next attempt.
//!
//! On one machine no port is opened. Ranks die with the thread that called [`run()`] (the main
//! thread), and when their control socket closes. A signal to one rank stops all: `worker` votes on
//! [`Link::stop_requested`] at the end of each step. A rank that fails reports once and exits with
//! the code of its report. A failed collective is [`Blame::Peer`], every other error
//! [`Blame::Own`].

mod error_report;
mod early_signals;
mod signals;
mod messages;
mod failure;
mod rank;
mod machines;
mod foreign;
mod join;
mod parent;

pub use crate::event::{Phase, Stop};
pub(crate) use early_signals::uninterrupted;
pub use error_report::{Blame, ErrorReport, host};
pub(crate) use failure::LESS_MEMORY;
pub use failure::{Ended, Exit, Failure};
#[cfg(test)]
pub(crate) use foreign::launch_id::Launcher;
pub(crate) use foreign::launch_id::{LaunchId, launch_ids};
pub(crate) use foreign::local_rendezvous::{RankWait, RendezvousError};
pub use foreign::mpi::{MpiJoinError, join_by_mpi, place_by_mpi};
pub use join::join;
pub(crate) use join::{FirstOfMachine, JoinError, join_within};
pub(crate) use machines::joining::NodeRendezvousError;
pub use machines::node_rendezvous::{join_nodes, join_nodes_again};
pub use machines::nodes::Nodes;
pub use machines::rendezvous::NodeConfig;
pub use messages::PreparedRun;
#[cfg(any(test, feature = "fuzzing"))]
pub use messages::receive_both;
pub(crate) use messages::{NoRun, PrepareError};
pub use parent::options::{Console, LauncherEvent, Program, Start};
pub(crate) use parent::recovery::describe_resize;
pub use parent::run::{run, run_node};
pub(crate) use parent::spawn::open_output;
pub use rank::env as rank_env;
pub use rank::env::Role;
pub use rank::inherit::{hide_backtraces_of_errors, limit_threads};
pub use rank::link::{Link, Membership};
pub use signals::{Signals, end_before_start, learn_ends_of_children};
