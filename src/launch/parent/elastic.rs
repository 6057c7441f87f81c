//! How many ranks a run goes on with when some stay lost, and when it tries to have more again. Pure.
//!
//! ```text
//!  4 ranks ──restarts spent──▶ 2 ──restarts spent──▶ 1 ──restarts spent──▶ the run fails
//!     ▲                        │ ▲                   │
//!     └───after a checkpoint───┘ └─after a checkpoint┘
//! ```
//!
//! Nobody but the rank itself can tell whether it works again, so the larger group is tried: one that fails before
//! its first checkpoint is given up at once, and the next try waits for twice as many checkpoints.

/// Most checkpoints between two tries.
const LONGEST: u32 = 64;

/// The sizes that a run may have, largest first, by their places in a list of plans.
#[derive(Debug)]
pub(in crate::launch) struct Sizes {
    count: usize,
    at: usize,
    /// Checkpoints after which more ranks are tried.
    patience: u32,
    /// Whether this size was grown to, and has not saved anything yet.
    is_on_trial: bool,
}

impl Sizes {
    /// At the largest of `count` sizes.
    pub(in crate::launch) fn new(count: usize) -> Self {
        Self { count, at: 0, patience: 1, is_on_trial: false }
    }

    /// Place of the present size.
    pub(in crate::launch) fn at(&self) -> usize {
        self.at
    }

    /// Checkpoints after which the group shall stop for a larger one; `None` at the largest size.
    pub(in crate::launch) fn grows_after(&self) -> Option<u32> {
        (self.at > 0).then_some(self.patience)
    }

    /// Whether a failure now gives up this size at once.
    pub(in crate::launch) fn is_on_trial(&self) -> bool {
        self.is_on_trial
    }

    /// Takes in that a group of this size has saved its work.
    pub(in crate::launch) fn has_saved(&mut self) {
        self.is_on_trial = false;
    }

    /// Goes to the next larger size.
    pub(in crate::launch) fn grow(&mut self) {
        self.at = self.at.saturating_sub(1);
        self.is_on_trial = true;
    }

    /// Goes to the next smaller size; `false` if there is none.
    pub(in crate::launch) fn shrink(&mut self) -> bool {
        let is_smaller = self.at + 1 < self.count;
        if is_smaller {
            self.at += 1;
        }
        if std::mem::take(&mut self.is_on_trial) {
            self.patience = (self.patience * 2).min(LONGEST);
        }
        is_smaller
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_shrinks_step_by_step_and_grows_step_by_step() {
        let mut sizes = Sizes::new(3);
        assert_eq!((sizes.at(), sizes.grows_after()), (0, None));
        assert!(sizes.shrink() && sizes.shrink() && !sizes.shrink());
        assert_eq!((sizes.at(), sizes.grows_after()), (2, Some(1)));
        sizes.grow();
        assert!(sizes.is_on_trial());
        sizes.has_saved();
        sizes.grow();
        assert_eq!((sizes.at(), sizes.grows_after()), (0, None));
    }

    #[test]
    fn tries_that_fail_become_rarer_and_those_that_last_do_not() {
        let mut sizes = Sizes::new(2);
        sizes.shrink();
        let mut waits = Vec::new();
        for _ in 0..8 {
            waits.extend(sizes.grows_after());
            sizes.grow();
            sizes.shrink();
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 64]);
        let mut sizes = Sizes::new(2);
        sizes.grow();
        sizes.has_saved();
        sizes.shrink();
        assert_eq!(sizes.grows_after(), Some(1));
    }
}
