//! Ranks that another launcher started on several machines: the first of each machine meets those
//! of the others, for all ranks of its own, which wait for it (`local_rendezvous`).

use crate::launch::foreign::local_rendezvous::{Host, Shared};
use crate::launch::foreign::mpi::start_mpi;
use crate::launch::join::JoinError;
use crate::launch::machines::greeting::NodeRendezvousError;
use crate::launch::machines::meeting::NodeConfig;
use crate::launch::machines::node_rendezvous::join_nodes;
use crate::launch::prepared_run::{NoRun, NotPrepared, PreparedRun};
use crate::launch::rank::env::Foreign;
use crate::launch::rank::link::Link;
use crate::launch::rank::membership::Membership;
use crate::plan::{Plan, RankPlan};
use crate::transport::Peer;

/// The first rank of a machine, for which the others there wait.
pub(crate) struct FirstOfMachine<'a> {
    foreign: &'a Foreign,
    host: Host<'a>,
}

impl<'a> FirstOfMachine<'a> {
    /// Lets the other ranks of the machine connect, and wait for the run.
    ///
    /// # Errors
    ///
    /// Another process is this rank, or no socket is to be had.
    pub(crate) fn open<E>(foreign: &'a Foreign) -> Result<Self, JoinError<E>> {
        Ok(Self { foreign, host: Host::open(foreign)? })
    }

    /// Tells the other ranks of the machine that there is no run.
    pub(crate) fn refuse(&self, why: &impl NotPrepared) {
        self.host.refuse(NoRun::of(&format!("rank {}", self.foreign.rank), why));
    }

    /// Meets the first ranks of the other machines. Rank 0 prepares the run by `prepare`, as in
    /// [`join_nodes`].
    ///
    /// # Errors
    ///
    /// As [`join_nodes`]; the other ranks of the machine are told.
    pub(crate) fn meet<E: NotPrepared>(
        &self,
        config: &NodeConfig,
        plan: &Plan,
        prepare: impl FnOnce(Option<&str>) -> Result<PreparedRun, E>,
        report: &mut dyn FnMut(&str),
    ) -> Result<Met, NodeRendezvousError<E>> {
        let met = join_nodes(config, plan, &[], prepare, report);
        let (prepared, mut nodes) =
            met.inspect_err(|error| self.host.refuse(error.for_others()))?;
        Ok(Met { prepared, peers: nodes.take_peers() })
    }

    /// Sends the run to the other ranks of the machine, which has all that they need by now. All
    /// notice a later failure when connections break, as does the launcher.
    ///
    /// # Errors
    ///
    /// A rank of this machine does not come, MPI cannot be used, or no thread is to be had.
    pub(crate) fn welcome<E>(self, met: Met, say: fn(&str)) -> Result<Membership, JoinError<E>> {
        let Met { prepared, peers } = met;
        let Shared { memory: shm, peer_monitor } = self.host.welcome(&prepared, say)?;
        let PreparedRun { plan, folders: run, resume } = prepared;
        if plan.distributed.meets_by_mpi() {
            start_mpi(self.foreign)?;
        }
        let (rank, restarts) = (self.foreign.rank, self.foreign.restarts);
        let link = Link::open(None, None, peer_monitor, rank, run.logs.clone());
        let fail = |source| JoinError::Inherited { rank, what: "listen to signals", source };
        let link = link.map_err(fail)?;
        // The launcher does not tell why it started the group again.
        let rank_plan = RankPlan { plan, rank, run, resume, restarts, causes: vec![] };
        Ok(Membership { rank_plan, shm, peers, link })
    }
}

/// A machine that has met the others.
pub(crate) struct Met {
    /// What all train.
    pub(crate) prepared: PreparedRun,
    peers: Vec<Peer>,
}
