//! Metrics of preferences, by TRL's names: `val/rewards/chosen`, `val/rewards/rejected`,
//! `val/rewards/margins`, `val/rewards/accuracies`. All are computed from the same sums.

use std::sync::Arc;

use candle_core::{Result, Tensor, bail};

use crate::loss::Loss;
use crate::metric::{Metric, MetricState};
use crate::plan::{MetricContext, Mode, Targets};

/// [`Metric::state_name`] of all of them.
const REWARDS_STATE: &str = "rewards";

/// A mean over pairs of answers of the rewards that the loss gives them.
#[derive(Clone, Debug)]
pub struct Reward {
    of: RewardOf,
    loss: Option<Arc<dyn Loss>>,
}

/// What is averaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RewardOf {
    Chosen,
    Rejected,
    /// The chosen answer's less the rejected one's.
    Margin,
    /// 1 where the chosen answer's is the larger one.
    Right,
}

impl Reward {
    /// The four metrics.
    pub fn all() -> [Self; 4] {
        [RewardOf::Chosen, RewardOf::Rejected, RewardOf::Margin, RewardOf::Right]
            .map(|of| Self { of, loss: None })
    }
}

impl Metric for Reward {
    fn name(&self) -> &'static str {
        match self.of {
            RewardOf::Chosen => "rewards/chosen",
            RewardOf::Rejected => "rewards/rejected",
            RewardOf::Margin => "rewards/margins",
            RewardOf::Right => "rewards/accuracies",
        }
    }

    fn mode(&self) -> Mode {
        if self.of == RewardOf::Rejected { Mode::Min } else { Mode::Max }
    }

    fn why_not(&self, context: &MetricContext) -> Option<String> {
        let what = "needs pairs of answers and a loss of preferences, such as `dpo`";
        (context.targets != Targets::Preferences).then(|| what.to_owned())
    }

    fn state_name(&self) -> &'static str {
        REWARDS_STATE
    }

    fn of_loss(&self, loss: &Arc<dyn Loss>) -> Option<Arc<dyn Metric>> {
        Some(Arc::new(Self { loss: Some(loss.clone()), ..self.clone() }))
    }

    fn measure(&self, outputs: &Tensor, targets: &Tensor) -> Result<MetricState> {
        let Some(loss) = &self.loss else { bail!("rewards without a loss that gives them") };
        let rewards = loss.rewards(outputs, targets)?;
        let sum = |at: usize| rewards.iter().map(|pair| pair[at]).sum::<f64>();
        let right = rewards.iter().filter(|[chosen, rejected]| chosen > rejected).count();
        Ok(MetricState::Sums(vec![sum(0), sum(1), right as f64, rewards.len() as f64]))
    }

    fn value(&self, all: &MetricState) -> f64 {
        let &[chosen, rejected, right, pairs] = all.sums() else { return f64::NAN };
        let sum = match self.of {
            RewardOf::Chosen => chosen,
            RewardOf::Rejected => rejected,
            RewardOf::Margin => chosen - rejected,
            RewardOf::Right => right,
        };
        if pairs > 0.0 { sum / pairs } else { f64::NAN }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::loss::Dpo;

    #[test]
    fn rewards_are_means_over_pairs_and_equal_ones_are_not_right() {
        let loss: Arc<dyn Loss> = Arc::new(Dpo::default());
        let outputs = Tensor::new(&[[-10f32, -40.0], [-5.0, -5.0]], &Device::Cpu).unwrap();
        let targets =
            Tensor::new(&[[-20f32, -20.0, 1.0, 1.0], [-5.0, -5.0, 1.0, 1.0]], &Device::Cpu);
        let targets = targets.unwrap();
        let value = |metric: Reward| {
            let metric = metric.of_loss(&loss).unwrap();
            metric.value(&metric.measure(&outputs, &targets).unwrap())
        };
        let found = Reward::all().map(value);
        let expected = [0.5, -1.0, 1.5, 0.5];
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{found:?}");
        assert!(Reward::all()[0].value(&MetricState::Sums(vec![])).is_nan());
    }
}
