//! Recovery from a failure: the same group again, a smaller one, smaller micro-batches, or the end of
//! the run. Pure.
//!
//! A run whose ranks stay lost continues with fewer, and tries to have more again later:
//!
//! ```text
//!  4 ranks ──restarts spent──▶ 2 ──restarts spent──▶ 1 ──restarts spent──▶ the run fails
//!     ▲                        │ ▲                   │
//!     └───after a checkpoint───┘ └─after a checkpoint┘
//! ```
//!
//! Only an attempt shows whether a lost rank works again. A larger group that fails before its
//! first checkpoint is given up at once, and the next attempt waits for twice as many checkpoints.

use std::time::Duration;

use crate::launch::Failure;
use crate::launch::machines::nodes::Decision;
use crate::launch::machines::rendezvous::RestartHistory;
use crate::launch::parent::options::LauncherEvent;
use crate::plan::{OnOom, Plan};
use crate::units::WorldSize;
use crate::user_error::ExitCode;

/// Most checkpoints between two attempts to grow.
const MAX_CHECKPOINTS_BEFORE_GROWTH: u32 = 64;
/// Longest wait before a restart.
const MAX_BACKOFF: Duration = Duration::from_secs(30);

/// A group that did not end as it should.
pub(super) struct FailedAttempt {
    pub(super) failure: Box<Failure>,
    /// Furthest step that a rank had begun.
    pub(super) step: u64,
    /// Checkpoints that it had saved.
    pub(super) saved: u32,
    /// True if not all of its ranks could be started.
    pub(super) never_started: bool,
    /// True if it had been asked to stop.
    pub(super) was_asked: bool,
}

/// The plans that a run may continue with, and what is left of its restarts.
pub(super) struct Recovery {
    /// One for each size, largest first.
    plans: Vec<Plan>,
    sizes: GroupSizes,
    budget: RestartBudget,
    /// Devices of the ranks that were lost.
    lost: Vec<String>,
}

impl Recovery {
    /// Recovery for a run with the plan of all ranks and those of fewer, largest first.
    pub(super) fn new(plan: &Plan, smaller: &[Plan]) -> Self {
        let plans: Vec<Plan> = std::iter::once(plan).chain(smaller).cloned().collect();
        let (sizes, budget) = (GroupSizes::new(plans.len()), RestartBudget::new(plan.max_restarts));
        Self { plans, sizes, budget, lost: vec![] }
    }

    /// Recovery for a run over several machines with the history `past`.
    pub(super) fn resumed(plan: &Plan, past: &RestartHistory) -> Self {
        let budget = RestartBudget { past: past.clone(), ..RestartBudget::new(plan.max_restarts) };
        Self { budget, ..Self::new(plan, &[]) }
    }

    /// The plan of the group to be started next.
    pub(super) fn plan(&self) -> &Plan {
        &self.plans[self.sizes.index]
    }

    /// Why the groups before ended, oldest first.
    pub(super) fn causes(&self) -> &[String] {
        &self.budget.past.causes
    }

    pub(super) fn past(&self) -> &RestartHistory {
        &self.budget.past
    }

    /// Checkpoints after which the group makes room for a larger one.
    pub(super) fn grows_after(&self) -> Option<u32> {
        self.sizes.grows_after()
    }

    /// The group has made room for a larger one.
    pub(super) fn grow(&mut self) -> LauncherEvent {
        let from = self.plan().world_size();
        self.sizes.grow();
        let to = self.plan().world_size();
        self.budget.renew(format!("{}: a checkpoint was on disk", describe_resize(to, from)));
        LauncherEvent::Resized { from, to, cause: None }
    }

    /// Decides how the run continues after a failure, and after which wait. A group has its
    /// restarts; then, or if it had just grown, or cannot even be started, a smaller one continues.
    /// One that ran out of memory continues with smaller micro-batches, if the experiment allows
    /// it.
    ///
    /// # Errors
    ///
    /// The failure is the end.
    pub(super) fn after(
        &mut self,
        failed: FailedAttempt,
    ) -> Result<(LauncherEvent, Duration), Box<Failure>> {
        if failed.was_asked || !is_retryable(failed.failure.code) {
            return Err(self.end(failed.failure));
        }
        if failed.saved > 0 {
            self.sizes.is_on_trial = false;
            if self.sizes.index == 0 {
                // The group of all ranks works again.
                self.lost.clear();
            }
        }
        if failed.failure.out_of_memory && self.plan().on_oom == OnOom::ShrinkBatch {
            // The same micro-batches would fail again. If there are none smaller, another restart
            // may still succeed.
            if let Some(smaller) = self.in_smaller_passes() {
                return Ok((self.shrink_micro_batches(smaller, failed.failure), Duration::ZERO));
            }
        }
        // What could not be started the first time will not start the next time either.
        let is_hopeless = failed.never_started && self.causes().is_empty();
        if !is_hopeless
            && !self.sizes.is_on_trial
            && let Some(wait) = self.budget.spend(&failed.failure, failed.step)
        {
            let (attempt, of) = (self.budget.past.spent, self.budget.allowed);
            return Ok((
                LauncherEvent::Restarting { attempt, of, wait, cause: failed.failure },
                wait,
            ));
        }
        self.shrink_group(failed.failure).map(|note| (note, Duration::ZERO))
    }

    /// Continues a run over several machines after a failure in the way that node 0 decided.
    ///
    /// # Errors
    ///
    /// The failure is the end.
    pub(super) fn follow(
        &mut self,
        failed: FailedAttempt,
        next: Decision,
    ) -> Result<(LauncherEvent, Duration), Box<Failure>> {
        let wait = match next {
            Decision::Over => return Err(self.end(failed.failure)),
            _ if failed.was_asked => return Err(self.end(failed.failure)),
            Decision::Again { wait } => wait,
            Decision::Smaller => match self.in_smaller_passes() {
                Some(smaller) => {
                    let note = self.shrink_micro_batches(smaller, failed.failure);
                    return Ok((note, Duration::ZERO));
                }
                // Node 0 has the same plan, and has made it smaller.
                None => return Err(self.end(failed.failure)),
            },
        };
        self.budget.follow(&failed.failure);
        let (attempt, of) = (self.budget.past.spent, self.budget.allowed);
        Ok((LauncherEvent::Restarting { attempt, of, wait, cause: failed.failure }, wait))
    }

    /// The machines that train have saved, to meet again with those that were away.
    pub(super) fn make_room(&mut self) {
        let cause = "a machine has come back: a checkpoint was on disk";
        self.budget.past.causes.push(cause.to_owned());
    }

    /// Takes over what the machines that have met, after `cause` if there was one, know of the
    /// restarts so far, and the plan of as many as there are.
    pub(super) fn adopt(
        &mut self,
        plan: &Plan,
        past: &RestartHistory,
        cause: Option<Box<Failure>>,
    ) -> Option<LauncherEvent> {
        self.budget.past.clone_from(past);
        let (from, to) = (self.plan().world_size(), plan.world_size());
        self.plans = vec![plan.clone()];
        (from != to).then_some(LauncherEvent::Resized { from, to, cause })
    }

    /// The restart that was to follow `failure` was called off.
    pub(super) fn call_off(&mut self, failure: Box<Failure>) -> Box<Failure> {
        self.budget.refund();
        self.end(failure)
    }

    /// The failure that is the end of the run, with those before it.
    pub(super) fn end(&self, failure: Box<Failure>) -> Box<Failure> {
        Box::new(Failure { history: self.causes().to_vec(), ..*failure })
    }

    fn in_smaller_passes(&self) -> Option<Vec<Plan>> {
        self.plans.iter().map(Plan::in_smaller_passes).collect()
    }

    fn shrink_micro_batches(&mut self, smaller: Vec<Plan>, cause: Box<Failure>) -> LauncherEvent {
        self.plans = smaller;
        let size = self.plan().batch.size;
        self.budget.shrink(format!("passes of {size}: {cause}"));
        LauncherEvent::Shrunk { size, cause }
    }

    fn shrink_group(&mut self, cause: Box<Failure>) -> Result<LauncherEvent, Box<Failure>> {
        let from = self.plan().world_size();
        let device = self.plan().distributed.devices.get(cause.rank.index()).cloned();
        if !self.sizes.shrink() {
            return Err(self.end(cause));
        }
        self.lost.extend(device);
        let devices = self.plans[0].distributed.devices.clone();
        for smaller in self.plans.iter_mut().skip(1) {
            *smaller = smaller.sparing(&devices, &self.lost);
        }
        let to = self.plan().world_size();
        self.budget.renew(format!("{}: {cause}", describe_resize(to, from)));
        Ok(LauncherEvent::Resized { from, to, cause: Some(cause) })
    }
}

/// "2 ranks instead of 4"
pub(crate) fn describe_resize(to: WorldSize, from: WorldSize) -> String {
    format!("{to} {} instead of {from}", if to == WorldSize::ONE { "rank" } else { "ranks" })
}

/// The sizes that a run may have, as indices into a list of plans, largest first.
#[derive(Debug)]
struct GroupSizes {
    count: usize,
    index: usize,
    /// Checkpoints after which more ranks are tried.
    checkpoints_before_growth: u32,
    /// True if the group has grown to this size, and not saved a checkpoint since: a failure now gives
    /// up this size at once.
    is_on_trial: bool,
}

impl GroupSizes {
    /// At the largest of `count` sizes.
    fn new(count: usize) -> Self {
        Self { count, index: 0, checkpoints_before_growth: 1, is_on_trial: false }
    }

    /// Checkpoints after which the group stops for a larger one; `None` at the largest size.
    fn grows_after(&self) -> Option<u32> {
        (self.index > 0).then_some(self.checkpoints_before_growth)
    }

    /// Goes to the next larger size.
    fn grow(&mut self) {
        self.index = self.index.saturating_sub(1);
        self.is_on_trial = true;
    }

    /// Goes to the next smaller size; `false` if there is none.
    fn shrink(&mut self) -> bool {
        let is_smaller = self.index + 1 < self.count;
        if is_smaller {
            self.index += 1;
        }
        if std::mem::take(&mut self.is_on_trial) {
            self.checkpoints_before_growth =
                (self.checkpoints_before_growth * 2).min(MAX_CHECKPOINTS_BEFORE_GROWTH);
        }
        is_smaller
    }
}

/// Restarts of one run: what is left of them, and why those before were needed.
#[derive(Debug)]
struct RestartBudget {
    allowed: u32,
    /// History of the run; `spent` counts restarts since the group has its present size.
    past: RestartHistory,
    /// Furthest step that any attempt has begun.
    furthest: u64,
    /// Failures in a row that reached no further step than those before them.
    without_progress: u32,
}

impl RestartBudget {
    fn new(allowed: u32) -> Self {
        Self { allowed, past: RestartHistory::default(), furthest: 0, without_progress: 0 }
    }

    /// Spends a restart on `failure` of a group that had begun `step`, and returns how long to wait
    /// before it; `None` if there is none left, or the failure would recur. A run that makes
    /// progress does not wait.
    fn spend(&mut self, failure: &Failure, step: u64) -> Option<Duration> {
        if self.past.spent >= self.allowed || !is_retryable(failure.code) {
            return None;
        }
        self.without_progress = if step > self.furthest { 0 } else { self.without_progress + 1 };
        self.furthest = self.furthest.max(step);
        self.follow(failure);
        Some(backoff(self.without_progress))
    }

    /// Spends a restart on `failure`, as another machine has decided it.
    fn follow(&mut self, failure: &Failure) {
        self.past.causes.push(failure.to_string());
        self.past.spent += 1;
    }

    /// Returns the last restart to the budget: it was called off.
    fn refund(&mut self) {
        self.past.causes.pop();
        self.past.spent = self.past.spent.saturating_sub(1);
    }

    /// Starts over for a group of another size, for which `cause` is the reason.
    fn renew(&mut self, cause: String) {
        self.past.causes.push(cause);
        (self.past.spent, self.without_progress) = (0, 0);
    }

    /// [`RestartBudget::renew`] for smaller passes.
    fn shrink(&mut self, cause: String) {
        self.renew(cause);
        self.past.shrunk += 1;
    }
}

/// Nothing, then seconds: 1, 2, 4 ... 30.
fn backoff(without_progress: u32) -> Duration {
    match without_progress.checked_sub(1) {
        None => Duration::ZERO,
        Some(doublings) => Duration::from_secs(1 << doublings.min(5)).min(MAX_BACKOFF),
    }
}

/// True if another attempt may succeed. A bad experiment, bad data, numbers that are not finite or
/// a bad checkpoint would fail again in the same way.
fn is_retryable(code: ExitCode) -> bool {
    let would_repeat = [ExitCode::Refused, ExitCode::Data, ExitCode::Numeric, ExitCode::Checkpoint];
    !would_repeat.contains(&code)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::plan::RunFolders;
    use crate::units::Rank;

    fn failure(code: ExitCode) -> Box<Failure> {
        let run = RunFolders { id: "r".into(), logs: PathBuf::new(), checkpoints: PathBuf::new() };
        Failure::of_start(&run, Rank(0), &std::io::ErrorKind::Other.into(), code)
    }

    #[test]
    fn a_run_that_makes_progress_restarts_at_once_and_one_that_does_not_waits_ever_longer() {
        let mut budget = RestartBudget::new(20);
        let steps = [0, 0, 9, 9, 9, 7, 9, 9, 9, 9, 9, 10];
        let waits =
            steps.map(|step| budget.spend(&failure(ExitCode::Peer), step).unwrap().as_secs());
        assert_eq!(waits, [1, 2, 0, 1, 2, 4, 8, 16, 30, 30, 30, 0]);
        assert_eq!(budget.past.causes.len(), steps.len());
    }

    #[test]
    fn a_budget_is_spent_and_a_restart_that_was_called_off_is_not() {
        let mut budget = RestartBudget::new(1);
        assert!(budget.spend(&failure(ExitCode::Peer), 1).is_some());
        budget.refund();
        assert!(budget.spend(&failure(ExitCode::Peer), 2).is_some());
        assert!(budget.spend(&failure(ExitCode::Peer), 3).is_none());
        assert_eq!((budget.past.spent, budget.past.causes.len()), (1, 1));
        budget.renew("with 2 ranks".to_owned());
        assert!(budget.spend(&failure(ExitCode::Peer), 3).is_some());
        assert_eq!((budget.past.spent, budget.past.causes.len()), (1, 3));
    }

    #[test]
    fn restarts_that_other_machines_know_of_are_spent_here_too() {
        let past = RestartHistory { causes: vec!["a".to_owned()], spent: 1, shrunk: 0 };
        let mut budget = RestartBudget { past: past.clone(), ..RestartBudget::new(3) };
        budget.follow(&failure(ExitCode::Peer));
        assert_eq!((budget.past.spent, budget.past.causes.len()), (2, 2));
        assert!(budget.spend(&failure(ExitCode::Peer), 1).is_some());
        assert!(budget.spend(&failure(ExitCode::Peer), 2).is_none());
        budget.past = past;
        assert!(budget.spend(&failure(ExitCode::Peer), 3).is_some());
        assert_eq!(budget.past.causes[0], "a");
    }

    #[test]
    fn only_retryable_failures_are_restarted() {
        let retried: Vec<u8> = (0..=255)
            .filter(|&code| (2..=8).contains(&code) || code == 70)
            .filter(|&code| {
                let code = ExitCode::try_from(code).unwrap();
                RestartBudget::new(1).spend(&failure(code), 1).is_some()
            })
            .collect();
        assert_eq!(retried, [5, 6, 8, 70]);
    }

    #[test]
    fn a_run_shrinks_step_by_step_and_grows_step_by_step() {
        let mut sizes = GroupSizes::new(3);
        assert_eq!((sizes.index, sizes.grows_after()), (0, None));
        assert!(sizes.shrink() && sizes.shrink() && !sizes.shrink());
        assert_eq!((sizes.index, sizes.grows_after()), (2, Some(1)));
        sizes.grow();
        assert!(sizes.is_on_trial);
        sizes.is_on_trial = false;
        sizes.grow();
        assert_eq!((sizes.index, sizes.grows_after()), (0, None));
    }

    #[test]
    fn failed_attempts_to_grow_become_rarer_and_successful_ones_do_not() {
        let mut sizes = GroupSizes::new(2);
        sizes.shrink();
        let mut waits = Vec::new();
        for _ in 0..8 {
            waits.extend(sizes.grows_after());
            sizes.grow();
            sizes.shrink();
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 64]);
        let mut sizes = GroupSizes::new(2);
        sizes.grow();
        sizes.is_on_trial = false;
        sizes.shrink();
        assert_eq!(sizes.grows_after(), Some(1));
    }
}
