//! Number of ranks with which a run continues when some stay lost, and when it tries to have more
//! again. Pure.
//!
//! ```text
//!  4 ranks ──restarts spent──▶ 2 ──restarts spent──▶ 1 ──restarts spent──▶ the run fails
//!     ▲                        │ ▲                   │
//!     └───after a checkpoint───┘ └─after a checkpoint┘
//! ```
//!
//! Only an attempt shows whether a lost rank works again. A larger group that fails before its
//! first checkpoint is given up at once, and the next attempt waits for twice as many checkpoints.

/// Most checkpoints between two attempts to grow.
const MAX_CHECKPOINTS_BEFORE_GROWTH: u32 = 64;

/// The sizes that a run may have, as indices into a list of plans, largest first.
#[derive(Debug)]
pub(in crate::launch) struct GroupSizes {
    count: usize,
    index: usize,
    /// Checkpoints after which more ranks are tried.
    checkpoints_before_growth: u32,
    /// True if the group has grown to this size, and not saved a checkpoint since.
    is_on_trial: bool,
}

impl GroupSizes {
    /// At the largest of `count` sizes.
    pub(in crate::launch) fn new(count: usize) -> Self {
        Self { count, index: 0, checkpoints_before_growth: 1, is_on_trial: false }
    }

    /// Index of the present size.
    pub(in crate::launch) fn index(&self) -> usize {
        self.index
    }

    /// Checkpoints after which the group stops for a larger one; `None` at the largest size.
    pub(in crate::launch) fn grows_after(&self) -> Option<u32> {
        (self.index > 0).then_some(self.checkpoints_before_growth)
    }

    /// True if a failure now gives up this size at once.
    pub(in crate::launch) fn is_on_trial(&self) -> bool {
        self.is_on_trial
    }

    /// Records that a group of this size has saved a checkpoint.
    pub(in crate::launch) fn has_saved(&mut self) {
        self.is_on_trial = false;
    }

    /// Goes to the next larger size.
    pub(in crate::launch) fn grow(&mut self) {
        self.index = self.index.saturating_sub(1);
        self.is_on_trial = true;
    }

    /// Goes to the next smaller size; `false` if there is none.
    pub(in crate::launch) fn shrink(&mut self) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_shrinks_step_by_step_and_grows_step_by_step() {
        let mut sizes = GroupSizes::new(3);
        assert_eq!((sizes.index(), sizes.grows_after()), (0, None));
        assert!(sizes.shrink() && sizes.shrink() && !sizes.shrink());
        assert_eq!((sizes.index(), sizes.grows_after()), (2, Some(1)));
        sizes.grow();
        assert!(sizes.is_on_trial());
        sizes.has_saved();
        sizes.grow();
        assert_eq!((sizes.index(), sizes.grows_after()), (0, None));
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
        sizes.has_saved();
        sizes.shrink();
        assert_eq!(sizes.grows_after(), Some(1));
    }
}
