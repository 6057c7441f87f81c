//! `EpochDone` -> the numbers of all epochs so far. Part of the training state, so that a resumed run
//! ends with the history of an undisturbed one.

use serde::{Deserialize, Serialize};

use super::EpochDone;

/// One entry per epoch in each list; its written form is `training_history.json`, in the shape and order
/// that plotting scripts of PyTorch projects read.
///
/// `None` stands for what is absent (no evaluation in that epoch, no accuracy in a regression) or not
/// finite. Accuracies are in percent, 0 to 100. Wall-clock times are left out: they differ between runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct History {
    /// Mean over the epoch's steps of the global-batch mean.
    pub train_loss: Vec<Option<f64>>,
    /// Percent.
    pub train_acc: Vec<Option<f64>>,
    /// Of the last evaluation in the epoch.
    pub val_loss: Vec<Option<f64>>,
    /// Percent.
    pub val_acc: Vec<Option<f64>>,
    /// Used in the epoch's last step.
    pub learning_rate: Vec<Option<f64>>,
}

impl History {
    /// Adds an epoch.
    pub fn push(&mut self, epoch: &EpochDone) {
        self.train_loss.push(finite(Some(epoch.train_loss)));
        self.train_acc.push(percent(epoch.train_accuracy));
        self.val_loss.push(finite(epoch.val_loss));
        self.val_acc.push(percent(epoch.val_accuracy));
        self.learning_rate.push(finite(Some(epoch.lr)));
    }

    /// Number of epochs.
    pub fn len(&self) -> usize {
        self.train_loss.len()
    }

    /// Whether no epoch is over yet.
    pub fn is_empty(&self) -> bool {
        self.train_loss.is_empty()
    }

    /// Whether the model is a classifier, so that accuracies exist.
    pub fn has_accuracy(&self) -> bool {
        self.train_acc.iter().chain(&self.val_acc).any(Option::is_some)
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
    use super::*;

    #[test]
    fn accuracies_become_percent_and_what_is_not_finite_becomes_absent() {
        let mut history = History::default();
        assert!(history.is_empty());
        history.push(&EpochDone {
            epoch: 1,
            step: 10,
            train_loss: f64::NAN,
            train_accuracy: Some(0.25),
            val_loss: Some(1.5),
            val_accuracy: None,
            lr: 0.1,
            seconds: 3.0,
        });
        assert_eq!(history.train_loss, [None]);
        assert_eq!(history.train_acc, [Some(25.0)]);
        assert_eq!(history.val_loss, [Some(1.5)]);
        assert_eq!(history.val_acc, [None]);
        assert_eq!((history.len(), history.has_accuracy()), (1, true));
    }
}
