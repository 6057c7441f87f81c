//! The budget of restarts of a group that failed, and the wait before each. Pure.

use std::time::Duration;

use crate::launch::Failure;
use crate::launch::machines::rendezvous::RestartHistory;
use crate::user_error::ExitCode;

/// Longest wait before a restart.
const MAX_BACKOFF: Duration = Duration::from_secs(30);

/// Restarts of one run: what is left of them, and why those before were needed.
#[derive(Debug)]
pub(in crate::launch) struct RestartBudget {
    allowed: u32,
    /// History of the run; `spent` counts restarts since the group has its present size.
    past: RestartHistory,
    /// Furthest step that any attempt has begun.
    furthest: u64,
    /// Failures in a row that reached no further step than those before them.
    without_progress: u32,
}

impl RestartBudget {
    pub(in crate::launch) fn new(allowed: u32) -> Self {
        Self { allowed, past: RestartHistory::default(), furthest: 0, without_progress: 0 }
    }

    /// The budget that is left after `past`.
    pub(in crate::launch) fn after(allowed: u32, past: &RestartHistory) -> Self {
        Self { past: past.clone(), ..Self::new(allowed) }
    }

    /// Restarts of the group in its present size.
    pub(in crate::launch) fn spent(&self) -> u32 {
        self.past.spent
    }

    /// Restarts that are allowed in all.
    pub(in crate::launch) fn allowed(&self) -> u32 {
        self.allowed
    }

    /// Why the group was started again, oldest first.
    pub(in crate::launch) fn causes(&self) -> &[String] {
        &self.past.causes
    }

    pub(in crate::launch) fn past(&self) -> &RestartHistory {
        &self.past
    }

    /// Spends a restart on `failure` of a group that had begun `step`, and returns how long to wait
    /// before it; `None` if there is none left, or the failure would recur. A run that makes
    /// progress does not wait.
    pub(in crate::launch) fn spend(&mut self, failure: &Failure, step: u64) -> Option<Duration> {
        if self.past.spent >= self.allowed || !is_retryable(failure.code) {
            return None;
        }
        self.without_progress = if step > self.furthest { 0 } else { self.without_progress + 1 };
        self.furthest = self.furthest.max(step);
        self.follow(failure);
        Some(backoff(self.without_progress))
    }

    /// Spends a restart on `failure`, as another machine has decided it.
    pub(in crate::launch) fn follow(&mut self, failure: &Failure) {
        self.past.causes.push(failure.to_string());
        self.past.spent += 1;
    }

    /// Takes over what all machines know of the restarts so far.
    pub(in crate::launch) fn adopt(&mut self, past: &RestartHistory) {
        self.past = past.clone();
    }

    /// Returns the last restart to the budget: it was called off.
    pub(in crate::launch) fn refund(&mut self) {
        self.past.causes.pop();
        self.past.spent = self.past.spent.saturating_sub(1);
    }

    /// Starts over for a group of another size, for which `cause` is the reason.
    pub(in crate::launch) fn renew(&mut self, cause: String) {
        self.note(cause);
        (self.past.spent, self.without_progress) = (0, 0);
    }

    /// [`RestartBudget::renew`] for smaller passes.
    pub(in crate::launch) fn shrink(&mut self, cause: String) {
        self.renew(cause);
        self.past.shrunk += 1;
    }

    /// The group starts again, for which `cause` is the reason and no restart is spent.
    pub(in crate::launch) fn note(&mut self, cause: String) {
        self.past.causes.push(cause);
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
pub(in crate::launch) fn is_retryable(code: ExitCode) -> bool {
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
        assert_eq!(budget.causes().len(), steps.len());
    }

    #[test]
    fn a_budget_is_spent_and_a_restart_that_was_called_off_is_not() {
        let mut budget = RestartBudget::new(1);
        assert!(budget.spend(&failure(ExitCode::Peer), 1).is_some());
        budget.refund();
        assert!(budget.spend(&failure(ExitCode::Peer), 2).is_some());
        assert!(budget.spend(&failure(ExitCode::Peer), 3).is_none());
        assert_eq!((budget.spent(), budget.causes().len()), (1, 1));
        budget.renew("with 2 ranks".to_owned());
        assert!(budget.spend(&failure(ExitCode::Peer), 3).is_some());
        assert_eq!((budget.spent(), budget.causes().len()), (1, 3));
    }

    #[test]
    fn restarts_that_other_machines_know_of_are_spent_here_too() {
        let past = RestartHistory { causes: vec!["a".to_owned()], spent: 1, shrunk: 0 };
        let mut budget = RestartBudget::after(3, &past);
        budget.follow(&failure(ExitCode::Peer));
        assert_eq!((budget.spent(), budget.causes().len()), (2, 2));
        assert!(budget.spend(&failure(ExitCode::Peer), 1).is_some());
        assert!(budget.spend(&failure(ExitCode::Peer), 2).is_none());
        budget.adopt(&past);
        assert!(budget.spend(&failure(ExitCode::Peer), 3).is_some());
        assert_eq!(budget.causes()[0], "a");
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
}
