//! Statistics of a batch that several processes hold parts of, as `torch.nn.SyncBatchNorm` takes
//! them: in forward each part's mean and squared deviations are merged, in backward its sums over
//! rows are added, in the order of the parts.

use std::fmt::Debug;
use std::sync::Arc;

use candle_core::{Result, bail};

use super::BatchStatistics;

/// The parts of a batch that are normalised together: what PyTorch calls the process group. All
/// parts run the same layers in the same order.
pub trait SyncGroup: Debug + Send + Sync {
    /// `mine` and what the other parts gave in the same call, in an order that is the same for all
    /// of them.
    fn all_gather(&self, mine: Vec<f64>) -> Result<Vec<Vec<f64>>>;
}

/// A group that operations keep until their backward.
pub type BatchGroup = Arc<dyn SyncGroup>;

/// Mean and sum of squared deviations of each channel.
pub(in crate::ops) struct Moments {
    pub(super) rows: usize,
    pub(super) channels: Vec<[f64; 2]>,
}

impl Moments {
    /// Moments of no rows.
    fn none(c: usize) -> Self {
        Self { rows: 0, channels: vec![[0.0; 2]; c] }
    }

    /// Moments of all rows of `parts`, taken in their order.
    pub(in crate::ops) fn of_all(c: usize, parts: impl IntoIterator<Item = Self>) -> Self {
        let mut total = Self::none(c);
        parts.into_iter().for_each(|part| total.merge(&part));
        total
    }

    /// Takes in those of other rows (Chan et al., 1983).
    fn merge(&mut self, other: &Self) {
        let count = self.rows as f64;
        let n = other.rows as f64;
        for (total, other) in self.channels.iter_mut().zip(&other.channels) {
            let delta = other[0] - total[0];
            total[0] += delta * n / (count + n);
            total[1] += other[1] + delta * delta * count * n / (count + n);
        }
        self.rows += other.rows;
    }

    pub(in crate::ops) fn statistics(&self) -> BatchStatistics {
        let variance = |channel: &[f64; 2]| (channel[1] / self.rows as f64) as f32;
        BatchStatistics::new(
            self.channels.iter().map(|channel| channel[0] as f32).collect(),
            self.channels.iter().map(variance).collect(),
            self.rows,
        )
    }

    fn to_message(&self) -> Vec<f64> {
        std::iter::once(self.rows as f64).chain(self.channels.iter().flatten().copied()).collect()
    }

    fn of_message(message: &[f64]) -> Result<Self> {
        let Some((&rows, channels)) = message.split_first() else {
            bail!("statistics without a number of rows")
        };
        Ok(Self { rows: rows as usize, channels: channels.as_chunks().0.to_vec() })
    }

    /// Moments of all parts of the batch.
    fn joint(&self, group: &BatchGroup) -> Result<Self> {
        let mut joint = Self::none(self.channels.len());
        for part in group.all_gather(self.to_message())? {
            let part = Self::of_message(&part)?;
            if part.channels.len() != joint.channels.len() {
                bail!(
                    "statistics of {} and of {} channels",
                    self.channels.len(),
                    part.channels.len()
                );
            }
            joint.merge(&part);
        }
        Ok(joint)
    }
}

/// The rows that a layer took its statistics of.
pub(super) struct Extent {
    /// Rows of all parts.
    pub(super) rows: usize,
    group: Option<BatchGroup>,
}

impl Extent {
    /// The rows at hand, or, with a group, those of all its parts; and their moments.
    pub(super) fn of(mine: Moments, group: Option<&BatchGroup>) -> Result<(Moments, Self)> {
        let moments = match group {
            Some(group) => mine.joint(group)?,
            None => mine,
        };
        let rows = moments.rows;
        if rows < 2 {
            bail!("batch normalisation needs more than one value per channel to train, got {rows}");
        }
        Ok((moments, Self { rows, group: group.cloned() }))
    }

    /// The sum of `sums` over all parts.
    pub(super) fn sum(&self, sums: Vec<f64>) -> Result<Vec<f64>> {
        let Some(group) = &self.group else { return Ok(sums) };
        let mut total = vec![0.0; sums.len()];
        for part in group.all_gather(sums)? {
            if part.len() != total.len() {
                bail!("sums of {} and of {} values", total.len(), part.len());
            }
            total.iter_mut().zip(part).for_each(|(total, part)| *total += part);
        }
        Ok(total)
    }
}
