//! A meeting of machines: who takes part, with which plan, and what they remember for the next one.

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
    /// Its port.
    pub port: u16,
    /// The secret that authenticates the machines.
    pub token: Key,
}

/// The ranks of one machine: as many on each.
#[derive(Clone, Copy, Debug)]
pub(in crate::launch) struct NodeRanks {
    /// Its place among the machines that take part.
    pub(in crate::launch) place: u32,
    pub(in crate::launch) ranks_per_node: u32,
}

impl NodeRanks {
    /// The first rank of the machine at `place`.
    pub(in crate::launch) fn first_of(self, place: u32) -> Rank {
        Rank(place * self.ranks_per_node)
    }
}

/// Where a run over several machines stands, as each of them tells the others when they meet again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::launch) struct Session {
    /// The run's id.
    pub(in crate::launch) run: String,
    /// Number of the meeting, from 1: the machines meet for each start of the group.
    pub(in crate::launch) meeting: u32,
    pub(in crate::launch) past: Past,
    /// Numbers of the machines that take part, in the order of their ranks.
    pub(in crate::launch) present: Vec<u32>,
}

/// What the run has been through, as far as its next start depends on it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::launch) struct Past {
    /// Why the group was started again, oldest first.
    pub(in crate::launch) causes: Vec<String>,
    /// Restarts that count against `fault.max_restarts`.
    pub(in crate::launch) spent: u32,
    /// How often passes became smaller because memory ran out.
    pub(in crate::launch) shrunk: u32,
}

/// What a machine knows of the meeting that it comes from.
#[derive(Clone, Debug)]
pub(in crate::launch) struct Meeting {
    pub(in crate::launch) config: NodeConfig,
    /// Of all machines, with what this one alone decides.
    pub(in crate::launch) prepared: PreparedRun,
    /// The plans of fewer machines that the run may continue with.
    pub(in crate::launch) smaller: Vec<Plan>,
    pub(in crate::launch) session: Session,
}

impl Meeting {
    /// The plan of the machines that take part, in passes as small as they have become; `None` if
    /// there is none.
    pub(in crate::launch) fn plan(&self) -> Option<Plan> {
        let plan = self.plan_of(self.session.present.len())?.clone();
        (0..self.session.past.shrunk).try_fold(plan, |plan, _| plan.in_smaller_passes())
    }

    /// The plan of so many machines, in passes as large as was asked for.
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

/// Of some plans that for so many machines.
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
        let age = |session: &Session| (session.meeting, session.past.causes.len());
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
    let meeting = latest.map_or(0, |session| session.meeting) + 1;
    let past = latest.map_or_else(Past::default, |session| session.past.clone());
    Session { run: prepared.folders.id.clone(), meeting, past, present }
}

/// Why a node that comes from `theirs` does not belong to what node 0, which comes from `own`, and
/// those who came before it continue. Where a node 0 has died while the machines met, some of them
/// are a meeting ahead.
pub(in crate::launch) fn is_late(
    theirs: &Session,
    own: Option<&Session>,
    others: Option<&Session>,
) -> Option<String> {
    let oldest = own.map(|own| own.meeting).or(others.map(|it| it.meeting.saturating_sub(1)));
    let run = own.or(others).map(|session| &session.run);
    if run.is_some_and(|run| *run != theirs.run) {
        return Some(format!("it continues another run, {}", theirs.run));
    }
    oldest.filter(|oldest| theirs.meeting < *oldest).map(|_| {
        let meeting = theirs.meeting;
        format!(
            "it comes from meeting {meeting} of this run's machines, and they have met again since"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(run: &str, meeting: u32, restarts: usize) -> Session {
        let causes = vec!["a rank died".to_owned(); restarts];
        let past = Past { causes, ..Past::default() };
        Session { run: run.to_owned(), meeting, past, present: vec![0, 1] }
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
        let [first, second, third] = [1, 2, 3].map(|meeting| session("r", meeting, 1));
        assert_eq!(is_late(&first, None, None), None);
        // One of them may have met a node 0 that died meanwhile.
        assert_eq!(is_late(&second, None, Some(&third)), None);
        assert!(is_late(&first, None, Some(&third)).is_some());
        let longer = session("r", 2, 2);
        assert_eq!(latest([&first, &second, &longer].into_iter()), Some(&longer));
        assert_eq!(latest([&second].into_iter()), Some(&second));
    }
}
