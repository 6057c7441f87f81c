//! A rendezvous of machines: the participants, their plan, and what they remember for the next one.

use serde::{Deserialize, Serialize};

use crate::launch::PreparedRun;
use crate::plan::Plan;
use crate::transport::auth::Key;
use crate::units::Rank;

/// This machine's part in a run over several.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Number of this machine; 0 has rank 0.
    pub node: u32,
    /// Number of machines.
    pub nodes: u32,
    /// Name or address of node 0.
    pub master: String,
    /// Port of node 0.
    pub port: u16,
    /// The secret that authenticates the machines.
    pub token: Key,
}

/// The ranks of one machine; all machines have equally many.
#[derive(Clone, Copy, Debug)]
pub(in crate::launch) struct NodeRanks {
    /// Index among the machines that take part.
    pub(in crate::launch) place: u32,
    pub(in crate::launch) ranks_per_node: u32,
}

impl NodeRanks {
    /// The first rank of the machine at `place`.
    pub(in crate::launch) fn first_of(self, place: u32) -> Rank {
        Rank(place * self.ranks_per_node)
    }
}

/// The state of a run over several machines, which each sends to the others when they meet again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::launch) struct Session {
    /// The run's id.
    pub(in crate::launch) run: String,
    /// Rendezvous so far, this one included: the machines meet for each start of the group.
    #[serde(rename = "meeting")]
    pub(in crate::launch) round: u32,
    pub(in crate::launch) past: RestartHistory,
    /// Numbers of the machines that take part, in the order of their ranks.
    pub(in crate::launch) present: Vec<u32>,
}

/// Restarts of the run, as far as its next start depends on them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::launch) struct RestartHistory {
    /// Causes of the restarts, oldest first.
    pub(in crate::launch) causes: Vec<String>,
    /// Restarts that count against `fault.max_restarts`.
    pub(in crate::launch) spent: u32,
    /// Reductions of the micro-batch size because memory ran out.
    pub(in crate::launch) shrunk: u32,
}

/// A machine's record of its last rendezvous.
#[derive(Clone, Debug)]
pub(in crate::launch) struct Rendezvous {
    pub(in crate::launch) config: NodeConfig,
    /// The run on all machines, with this machine's own choices.
    pub(in crate::launch) prepared: PreparedRun,
    /// The plans of fewer machines that the run may continue with.
    pub(in crate::launch) smaller: Vec<Plan>,
    pub(in crate::launch) session: Session,
}

impl Rendezvous {
    /// The plan of the machines that take part, with the current micro-batch size; `None` if there
    /// is none.
    pub(in crate::launch) fn plan(&self) -> Option<Plan> {
        let plan = self.plan_of(self.session.present.len())?.clone();
        (0..self.session.past.shrunk).try_fold(plan, |plan, _| plan.in_smaller_passes())
    }

    /// The plan of so many machines, with the micro-batch size that was asked for.
    pub(in crate::launch) fn plan_of(&self, machines: usize) -> Option<&Plan> {
        plan_for(std::iter::once(&self.prepared.plan).chain(&self.smaller), machines)
    }

    /// This machine's ranks.
    pub(in crate::launch) fn ranks(&self) -> NodeRanks {
        let nodes = self.config.nodes;
        let ranks_per_node = self.prepared.plan.distributed.world_size.get() / nodes;
        let place = self.session.present.iter().position(|node| *node == self.config.node);
        NodeRanks { place: place.unwrap_or(0) as u32, ranks_per_node }
    }
}

/// The plan for this number of machines.
pub(in crate::launch) fn plan_for<'a>(
    plans: impl IntoIterator<Item = &'a Plan>,
    machines: usize,
) -> Option<&'a Plan> {
    plans.into_iter().find(|plan| plan.distributed.nodes as usize == machines)
}

/// The newest of some sessions, the first of equals.
pub(in crate::launch) fn latest<'a>(
    sessions: impl Iterator<Item = &'a Session>,
) -> Option<&'a Session> {
    sessions.reduce(|a, b| {
        let age = |session: &Session| (session.round, session.past.causes.len());
        if age(b) > age(a) { b } else { a }
    })
}

/// The session that begins when node 0 and these others have met.
pub(in crate::launch) fn next(
    latest: Option<&Session>,
    prepared: &PreparedRun,
    others: impl Iterator<Item = u32>,
) -> Session {
    let present = std::iter::once(0).chain(others).collect();
    let round = latest.map_or(0, |session| session.round) + 1;
    let past = latest.map_or_else(RestartHistory::default, |session| session.past.clone());
    Session { run: prepared.folders.id.clone(), round, past, present }
}

/// Returns why a node with the session `theirs` cannot join node 0, with the session `own`, and the
/// nodes that have joined before. If a node 0 died during a rendezvous, some nodes are one ahead.
pub(in crate::launch) fn is_late(
    theirs: &Session,
    own: Option<&Session>,
    others: Option<&Session>,
) -> Option<String> {
    let oldest = own.map(|own| own.round).or(others.map(|it| it.round.saturating_sub(1)));
    let run = own.or(others).map(|session| &session.run);
    if run.is_some_and(|run| *run != theirs.run) {
        return Some(format!("it continues another run, {}", theirs.run));
    }
    oldest.filter(|oldest| theirs.round < *oldest).map(|_| {
        let round = theirs.round;
        format!(
            "it comes from meeting {round} of this run's machines, and they have met again since"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(run: &str, round: u32, restarts: usize) -> Session {
        let causes = vec!["a rank died".to_owned(); restarts];
        let past = RestartHistory { causes, ..RestartHistory::default() };
        Session { run: run.to_owned(), round, past, present: vec![0, 1] }
    }

    #[test]
    fn a_machine_that_was_lost_for_a_meeting_or_comes_from_another_run_is_refused() {
        let (first, second) = (session("r", 1, 1), session("r", 2, 2));
        assert_eq!(is_late(&second, Some(&second), None), None);
        let late = is_late(&first, Some(&second), None).unwrap();
        assert!(late.starts_with("it comes from meeting 1 of this run's machines"), "{late}");
        let other = is_late(&session("s", 2, 0), Some(&second), None).unwrap();
        assert_eq!(other, "it continues another run, s");
    }

    #[test]
    fn a_new_node_0_takes_the_word_of_the_others_the_newest_first() {
        let [first, second, third] = [1, 2, 3].map(|round| session("r", round, 1));
        assert_eq!(is_late(&first, None, None), None);
        // One of them may have met a node 0 that died meanwhile.
        assert_eq!(is_late(&second, None, Some(&third)), None);
        assert!(is_late(&first, None, Some(&third)).is_some());
        let longer = session("r", 2, 2);
        assert_eq!(latest([&first, &second, &longer].into_iter()), Some(&longer));
        assert_eq!(latest([&second].into_iter()), Some(&second));
    }
}
