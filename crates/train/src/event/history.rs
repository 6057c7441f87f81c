//! `EpochDone` -> the numbers of all epochs so far.

use serde::{Deserialize, Serialize};

use super::EpochDone;

/// One entry per epoch in each list; its written form is `training_history.json`, in the shape and
/// order that plotting scripts of PyTorch projects read.
///
/// `None` stands for what is absent (no evaluation in that epoch, no accuracy in a regression) or
/// not finite. Accuracies are in percent, 0 to 100. Wall-clock times are left out: they differ
/// between runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct History {
    /// Mean over the epoch's samples, or over what of them counts in the loss.
    pub train_loss: Vec<Option<f64>>,
    /// Percent.
    pub train_acc: Vec<Option<f64>>,
    /// Loss of the last evaluation in the epoch.
    pub val_loss: Vec<Option<f64>>,
    /// Percent.
    pub val_acc: Vec<Option<f64>>,
    /// Used in the epoch's last step.
    pub learning_rate: Vec<Option<f64>>,
}

impl History {
    /// The history of these epochs.
    pub fn of<'a>(epochs: impl IntoIterator<Item = &'a EpochDone>) -> Self {
        let mut history = Self::default();
        epochs.into_iter().for_each(|epoch| history.push(epoch));
        history
    }

    /// Adds an epoch. One that was cut short by the end of a run, and went on when the run did, has
    /// only its newest numbers; epochs whose records are lost have no entry.
    pub fn push(&mut self, epoch: &EpochDone) {
        let before = epoch.epoch.saturating_sub(1) as usize;
        let add = |column: &mut Vec<Option<f64>>, value| {
            column.truncate(before);
            column.push(value);
        };
        add(&mut self.train_loss, finite(Some(epoch.train_loss)));
        add(&mut self.train_acc, percent(epoch.train_accuracy));
        add(&mut self.val_loss, finite(epoch.val_loss));
        add(&mut self.val_acc, percent(epoch.val_accuracy));
        add(&mut self.learning_rate, finite(Some(epoch.lr)));
    }

    /// Number of epochs.
    pub fn len(&self) -> usize {
        self.train_loss.len()
    }

    /// True if no epoch is over yet.
    pub fn is_empty(&self) -> bool {
        self.train_loss.is_empty()
    }
}

fn percent(share: Option<f64>) -> Option<f64> {
    finite(share.map(|share| 100.0 * share))
}

fn finite(value: Option<f64>) -> Option<f64> {
    value.filter(|value| value.is_finite())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn accuracies_become_percent_and_what_is_not_finite_becomes_absent() {
        let mut history = History::default();
        assert!(history.is_empty());
        history.push(&EpochDone {
            train_accuracy: Some(0.25),
            val_loss: Some(1.5),
            val_accuracy: None,
            ..epoch(1, f64::NAN)
        });
        assert_eq!(history.train_loss, [None]);
        assert_eq!(history.train_acc, [Some(25.0)]);
        assert_eq!(history.val_loss, [Some(1.5)]);
        assert_eq!(history.val_acc, [None]);
        assert_eq!(history.len(), 1);
    }

    fn epoch(epoch: u64, train_loss: f64) -> EpochDone {
        EpochDone {
            epoch,
            step: 10 * epoch,
            train_loss,
            train_accuracy: None,
            val_loss: None,
            val_accuracy: Some(0.5),
            metrics: BTreeMap::new(),
            lr: 0.1,
            seconds: 1.0,
        }
    }

    #[test]
    fn an_epoch_that_went_on_after_its_first_end_is_there_once() {
        let history = History::of(&[epoch(1, 3.0), epoch(2, 2.0), epoch(2, 1.5), epoch(4, 1.0)]);
        assert_eq!(history.train_loss, [Some(3.0), Some(1.5), Some(1.0)]);
        assert_eq!(history.val_acc.len(), 3);
    }
}
