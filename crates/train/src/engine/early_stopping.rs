//! Early stopping: evaluations since the watched metric was last better.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::plan::{EarlyStoppingPlan, Mode};

/// Progress of early stopping.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EarlyStopping {
    /// The metric that is watched; `None` before it was first measured.
    pub metric: Option<String>,
    /// Best value so far.
    pub best: Option<f64>,
    /// Evaluations since.
    pub bad: u64,
}

impl EarlyStopping {
    pub(super) fn observe(&mut self, plan: &EarlyStoppingPlan, metrics: &BTreeMap<String, f64>) {
        let Some(&value) = metrics.get(&plan.monitor) else { return };
        let margin = if plan.mode == Mode::Min { plan.min_delta } else { -plan.min_delta };
        self.metric = Some(plan.monitor.clone());
        let is_best = self.best.is_none_or(|best| plan.mode.is_better(value + margin, best));
        if value.is_finite() && is_best {
            (self.best, self.bad) = (Some(value), 0);
        } else {
            self.bad += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_stopping_counts_evaluations_without_enough_improvement() {
        let plan = EarlyStoppingPlan {
            monitor: "val/loss".into(),
            mode: Mode::Min,
            patience: 1,
            min_delta: 0.1,
        };
        let mut progress = EarlyStopping::default();
        let bad: Vec<u64> = [1.0, 0.95, 0.8, 0.75, 0.9]
            .map(|loss| {
                progress.observe(&plan, &BTreeMap::from([("val/loss".to_owned(), loss)]));
                progress.bad
            })
            .into();
        assert_eq!(bad, [0, 1, 0, 1, 2]);
        let mut progress = EarlyStopping::default();
        let bad = [f64::INFINITY, 2.0, 1.0].map(|loss| {
            progress.observe(&plan, &BTreeMap::from([("val/loss".to_owned(), loss)]));
            progress.bad
        });
        assert_eq!(bad, [1, 0, 0]);
    }
}
