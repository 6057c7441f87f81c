//! Weighted random sampling, as `torch.utils.data.WeightedRandomSampler` with replacement.

use crate::dataset::Dataset;
use crate::plan::{DataPlan, Sampler};

/// Sums of the weights of the samples up to each one.
#[derive(Clone, Debug)]
pub struct SampleWeights(Vec<f64>);

impl SampleWeights {
    /// The planned weights; `None` if nothing is drawn. With "balanced" a sample weighs 1 /
    /// (samples of its class), with "weighted" as much as its class.
    pub fn of(plan: &DataPlan, dataset: &dyn Dataset) -> Option<Self> {
        if !plan.sampler.draws() {
            return None;
        }
        let label = |index| dataset.label(index).unwrap_or(0) as usize;
        let labels: Vec<usize> = (0..dataset.len()).map(label).collect();
        let mut counts = vec![0u64; plan.classes.len().max(1)];
        for &label in &labels {
            counts[label] += 1;
        }
        let weight = |&label: &usize| match plan.sampler {
            Sampler::Weighted => plan.class_weights[label],
            _ => 1.0 / counts[label] as f64,
        };
        Some(Self::new(labels.iter().map(weight)))
    }

    /// Sums up the weights of samples, none of them negative, not all 0.
    pub fn new(weights: impl Iterator<Item = f64>) -> Self {
        let mut sum = 0.0;
        let add = |weight: f64| {
            sum += weight;
            sum
        };
        Self(weights.map(add).collect())
    }

    /// The sample at `position`, from 0 to 1.
    pub fn draw(&self, position: f64) -> u32 {
        let place = position * self.0.last().copied().unwrap_or(0.0);
        // Rounding may give the whole sum, beyond the last sample that weighs something.
        let index = self.0.partition_point(|&sum| sum <= place);
        let last = || self.0.partition_point(|sum| Some(sum) < self.0.last());
        (if index < self.0.len() { index } else { last() }) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::{Key, Purpose};

    #[test]
    fn samples_come_as_often_as_they_weigh_and_never_without_weight() {
        let weights = [0.0, 3.0, 1.0, 0.0, 4.0, 0.0];
        let odds = SampleWeights::new(weights.into_iter());
        let key = Key::new(7, Purpose::Shuffle, 0, 1);
        let n = 80_000;
        let mut times = [0u32; 6];
        (0..n).for_each(|i| times[odds.draw(key.uniform(i)) as usize] += 1);
        for (times, weight) in times.into_iter().zip(weights) {
            let share = f64::from(times) / n as f64;
            assert!((share - weight / 8.0).abs() < 0.006, "{times} {weight}");
            assert_eq!(times == 0, weight == 0.0);
        }
        assert_eq!([0.0, 1.0 - f64::EPSILON, 1.0].map(|at| odds.draw(at)), [1, 4, 4]);
    }
}
