//! Stochastic weight averaging: when the weights are averaged, and the learning rate meanwhile.

use serde::{Deserialize, Serialize};

use crate::config::schema::AnnealStrategy;
use crate::config::values::Every;
use crate::config::{Loaded, Problem};
use crate::plan::arithmetic::shown;
use crate::plan::batch::counted;
use crate::plan::{BatchPlan, Cadence, LengthPlan, OptimizerPlan, scale_lr};

/// The plain average of the weights at the end of some epochs or steps (Izmailov et al. 2018).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SwaPlan {
    /// Steps before it.
    pub start: u64,
    /// After which steps the weights join the average.
    pub every: Cadence,
    /// The learning rate from the start on, if it is not the schedule's.
    pub rate: Option<SwaRate>,
}

/// A learning rate that goes from the schedule's to another one, and stays there, as
/// `torch.optim.swa_utils.SWALR`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SwaRate {
    /// Where it goes, after scaling by the global batch size.
    pub lr: f64,
    /// In how many epochs.
    pub anneal_epochs: u64,
    /// On which way.
    pub anneal_strategy: AnnealStrategy,
}

impl SwaPlan {
    /// Whether the weights after `step` steps join the average.
    pub fn is_due(&self, step: u64, steps_per_epoch: u64) -> bool {
        let ends_epoch = step.is_multiple_of(steps_per_epoch.max(1));
        let epoch = step / steps_per_epoch.max(1);
        step > self.start && self.every.is_due(step, epoch, ends_epoch)
    }

    /// The first such step.
    fn first(&self, steps_per_epoch: u64) -> u64 {
        let unit = match self.every {
            Cadence::Epochs(n) => n.saturating_mul(steps_per_epoch),
            Cadence::Steps(n) => n,
            Cadence::Never => u64::MAX,
        };
        (self.start / unit.max(1) + 1).saturating_mul(unit)
    }

    /// ", averaged over epochs after 160 steps"
    pub(crate) fn line(&self) -> String {
        let every = match self.every {
            Cadence::Epochs(1) => "each epoch".to_owned(),
            Cadence::Epochs(n) => format!("every {n} epochs"),
            Cadence::Steps(1) => "each step".to_owned(),
            Cadence::Steps(n) => format!("every {n} steps"),
            Cadence::Never => String::new(),
        };
        let rate = self.rate.map_or(String::new(), |SwaRate { lr, anneal_epochs, .. }| {
            let epochs = counted(anneal_epochs, "epoch", "epochs");
            format!(", to lr {} within {epochs}", shown(lr))
        });
        format!(", averaged: SWA {every} after step {}{rate}", self.start)
    }
}

/// The average as asked, if one is.
pub(crate) fn decide(
    loaded: &Loaded,
    length: &LengthPlan,
    batch: &BatchPlan,
    optimizer: &OptimizerPlan,
) -> Result<Option<SwaPlan>, Problem> {
    let asked = &loaded.experiment.swa;
    let per_epoch = length.steps_per_epoch;
    let start = match asked.start {
        None | Some(Every::Never) => return Ok(None),
        Some(Every::Epochs(n)) => n.saturating_mul(per_epoch),
        Some(Every::Steps(n)) => n,
    };
    let scaled = |lr| scale_lr(optimizer.scaling, lr, optimizer.base_batch_size, batch.global);
    let rate = asked.lr.map(|lr| SwaRate {
        lr: scaled(lr),
        anneal_epochs: asked.anneal_epochs.unwrap_or(10),
        anneal_strategy: asked.anneal_strategy.unwrap_or_default(),
    });
    let every = asked.every.map_or(Cadence::Epochs(1), Cadence::from);
    let plan = SwaPlan { start, every, rate };
    let first = plan.first(per_epoch);
    let total = length.total_steps;
    if length.is_bounded() && first > total {
        let what =
            format!("the first weights to average are those of step {first}, the run has {total}");
        return Err(loaded.problem("swa.start", what).help("start earlier, or train longer"));
    }
    Ok(Some(plan))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_join_after_the_start_at_the_ends_of_epochs_or_at_steps() {
        let due = |start, every| -> Vec<u64> {
            let plan = SwaPlan { start, every, rate: None };
            let due: Vec<u64> = (1..=24).filter(|&step| plan.is_due(step, 4)).collect();
            assert_eq!(due.first().copied(), Some(plan.first(4)).filter(|&first| first <= 24));
            due
        };
        assert_eq!(due(8, Cadence::Epochs(1)), [12, 16, 20, 24]);
        assert_eq!(due(9, Cadence::Epochs(2)), [16, 24]);
        assert_eq!(due(0, Cadence::Epochs(3)), [12, 24]);
        assert_eq!(due(10, Cadence::Steps(5)), [15, 20]);
        assert!(due(24, Cadence::Steps(5)).is_empty());
    }
}
