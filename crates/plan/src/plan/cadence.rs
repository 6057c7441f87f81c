//! When something happens that happens again and again.

use serde::{Deserialize, Serialize};

use crate::config::values::Every;

/// Something that happens every n steps, at the end of every n-th epoch, or never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cadence {
    /// Never.
    #[default]
    Never,
    /// After every n-th epoch (and at the end of the run).
    Epochs(u64),
    /// After every n-th step (and at the end of the run).
    Steps(u64),
}

impl From<Every> for Cadence {
    fn from(every: Every) -> Self {
        match every {
            Every::Never => Self::Never,
            Every::Epochs(n) => Self::Epochs(n),
            Every::Steps(n) => Self::Steps(n),
        }
    }
}

impl Cadence {
    /// Whether it happens after `step` (counted from 1), which is or is not the last of the
    /// `epoch`-th epoch.
    pub fn is_due(self, step: u64, epoch: u64, ends_epoch: bool) -> bool {
        match self {
            Self::Never => false,
            Self::Epochs(n) => ends_epoch && epoch.is_multiple_of(n),
            Self::Steps(n) => step.is_multiple_of(n),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cadence_counts_steps_or_whole_epochs() {
        let due = |cadence: Cadence| -> Vec<u64> {
            // Epochs of 4 steps.
            (1..=16).filter(|&step| cadence.is_due(step, step.div_ceil(4), step % 4 == 0)).collect()
        };
        assert!(due(Cadence::Never).is_empty());
        assert_eq!(due(Cadence::Steps(5)), [5, 10, 15]);
        assert_eq!(due(Cadence::Epochs(1)), [4, 8, 12, 16]);
        assert_eq!(due(Cadence::Epochs(2)), [8, 16]);
    }
}
