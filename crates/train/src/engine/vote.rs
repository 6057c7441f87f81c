//! Messages between ranks, once per step: JSON of about 60 bytes, and about 125 more for each pass,
//! that makes loss, accuracy and every decision the same on all of them.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::collective::Collective;
use crate::engine::error::Error;
use crate::engine::rank_stats::RankReport;
use crate::event::Stop;
use crate::units::Rank;

/// One rank's part of a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Vote {
    pub(crate) passes: Vec<PassReport>,
    /// Parameters (registration index) without a gradient.
    pub(crate) unused: Vec<usize>,
    /// Request by its signals or its clock; the strongest one of all ranks counts.
    pub(crate) stop_request: Option<Stop>,
    /// Microseconds that it waited for its data.
    pub(crate) waited: u64,
    /// Rank 0's: whether all shall tell what they have done with the next step.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) asks: bool,
    /// Statistics so far, if rank 0 asked for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) done: Option<RankReport>,
}

impl Vote {
    /// True if the rank made a pass: the incomplete last step of an epoch may have fewer samples
    /// than there are ranks.
    pub(crate) fn had_samples(&self) -> bool {
        !self.passes.is_empty()
    }
}

/// Sums over the samples of one pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PassReport {
    /// Position among all passes of the step or evaluation.
    pub(crate) index: usize,
    pub(crate) samples: u64,
    /// Weight of the loss relative to that of other passes: the samples, except for labels that do
    /// not count; as bits.
    weight: u64,
    /// Mean loss as the bits of an f64: JSON has no NaN.
    loss: u64,
    /// Right answers, and how many were asked for.
    pub(crate) correct: [u64; 2],
    /// Samples that could not be read.
    unreadable: u64,
}

impl PassReport {
    pub(crate) fn new(index: usize, samples: u64, loss: f64, correct: [u64; 2]) -> Self {
        let weight = (samples as f64).to_bits();
        let loss = loss.to_bits();
        Self { index, samples, weight, loss, correct, unreadable: 0 }
    }

    /// Sets a weight of the loss other than the number of samples.
    pub(crate) fn with_weight(self, weight: f64) -> Self {
        Self { weight: weight.to_bits(), ..self }
    }

    /// Sets the loss and the right answers, once they are known.
    #[cfg(feature = "cuda")]
    pub(crate) fn set_results(&mut self, [loss, right]: [f64; 2]) {
        self.loss = loss.to_bits();
        self.correct[0] = right as u64;
    }

    /// Sets the number of samples that could not be read.
    pub(crate) fn with_unreadable(self, unreadable: u64) -> Self {
        Self { unreadable, ..self }
    }

    fn weight(&self) -> f64 {
        f64::from_bits(self.weight)
    }

    pub(crate) fn loss(&self) -> f64 {
        f64::from_bits(self.loss)
    }
}

/// Sums over all passes of all ranks, added in the order of the passes, so that the world size does
/// not change a bit.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Totals {
    /// Mean loss over all that counts.
    pub(crate) loss: f64,
    /// Total weight: the samples, except for labels that do not count.
    pub(crate) weight: f64,
    /// Right answers, and how many were asked for.
    pub(crate) correct: [u64; 2],
    pub(crate) samples: u64,
    /// Samples that could not be read.
    pub(crate) unreadable: u64,
}

/// Votes and totals of a step, once gradients are reduced; equal on all ranks.
pub(crate) struct ReducedStep {
    /// By rank.
    pub(crate) votes: Vec<Vote>,
    pub(crate) totals: Totals,
}

impl Totals {
    pub(crate) fn over<'a>(passes: impl Iterator<Item = &'a PassReport>) -> Self {
        let mut passes: Vec<_> = passes.collect();
        passes.sort_by_key(|pass| pass.index);
        let samples: u64 = passes.iter().map(|pass| pass.samples).sum();
        let weight: f64 = passes.iter().map(|pass| pass.weight()).sum();
        let mean = |value: &dyn Fn(&PassReport) -> f64| {
            let sum: f64 = passes.iter().map(|pass| value(pass) * pass.weight()).sum();
            if weight > 0.0 { sum / weight } else { sum }
        };
        Self {
            loss: mean(&PassReport::loss),
            weight,
            correct: [0, 1].map(|i| passes.iter().map(|pass| pass.correct[i]).sum()),
            samples,
            unreadable: passes.iter().map(|pass| pass.unreadable).sum(),
        }
    }
}

/// Everyone's `mine`, in rank order.
pub fn exchange<T: Serialize + DeserializeOwned>(
    collective: &dyn Collective,
    mine: &T,
) -> Result<Vec<T>, Error> {
    let read_error = |rank: usize| move |source| Error::Vote { rank: Rank(rank as u32), source };
    let own = collective.rank().index();
    let bytes = serde_json::to_vec(mine).map_err(read_error(own))?;
    let all = collective.all_gather(&bytes)?;
    all.iter()
        .enumerate()
        .map(|(rank, bytes)| serde_json::from_slice(bytes).map_err(read_error(rank)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_do_not_depend_on_which_rank_ran_a_pass() {
        let passes: Vec<PassReport> =
            (0..7).map(|i| PassReport::new(i, 3, 1.0 / (i as f64 + 3.0), [1, 3])).collect();
        let mut shuffled = passes.clone();
        shuffled.swap(0, 5);
        shuffled.swap(2, 6);
        assert_eq!(Totals::over(passes.iter()), Totals::over(shuffled.iter()));
        assert_eq!(Totals::over(passes.iter()).samples, 21);
    }

    #[test]
    fn a_loss_counts_as_much_as_the_labels_behind_it() {
        let passes = [(4.0, 0.5), (1.0, 1.5)]
            .map(|(loss, weight)| PassReport::new(0, 2, loss, [0, 1]).with_weight(weight));
        let totals = Totals::over(passes.iter());
        assert_eq!((totals.loss, totals.weight, totals.samples), (1.75, 2.0, 4));
        let nothing = [PassReport::new(0, 2, 0.0, [0, 0]).with_weight(0.0)];
        assert_eq!(Totals::over(nothing.iter()).loss, 0.0);
    }

    #[test]
    fn a_loss_that_is_not_a_number_survives_the_exchange() {
        let report = PassReport::new(0, 1, f64::NAN, [0, 1]);
        let text = serde_json::to_string(&report).unwrap();
        let read: PassReport = serde_json::from_str(&text).unwrap();
        assert!(read.loss().is_nan());
    }
}
