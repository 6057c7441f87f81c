//! Part of the training samples, in which classes keep their shares.

use crate::config::Experiment;
use crate::plan::DataFacts;

impl DataFacts {
    /// Counts only as many training samples as `data.limit` or `data.fraction` says.
    pub fn limit(&mut self, experiment: &Experiment) {
        let all = self.n_train;
        let limit = experiment.data.limit.map(|limit| limit as usize);
        let share = experiment.data.fraction.map(|share| (all as f64 * share).round() as usize);
        let Some(n) = limit.or(share).map(|n| n.max(1)).filter(|&n| n < all) else { return };
        self.notes.push(format!("{n} of {all} training samples are taken"));
        if !self.class_counts.is_empty() {
            self.class_counts = shares(&self.class_counts, n as u64);
        }
        (self.n_train, self.subset_of) = (n, Some(all));
    }
}

/// `n` dealt out to classes of such `counts`, in proportion: the largest remainders are rounded up,
/// of equal ones those of lower labels.
pub fn shares(counts: &[u64], n: u64) -> Vec<u64> {
    let all = u128::from(counts.iter().sum::<u64>().max(1));
    let exact = |&count: &u64| u128::from(count) * u128::from(n);
    let mut shares: Vec<u64> = counts.iter().map(|count| (exact(count) / all) as u64).collect();
    let mut order: Vec<usize> = (0..counts.len()).collect();
    order.sort_by_key(|&class| std::cmp::Reverse(exact(&counts[class]) % all));
    let rest = n.saturating_sub(shares.iter().sum()) as usize;
    order.iter().take(rest).for_each(|&class| shares[class] += 1);
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_keep_their_shares() {
        assert_eq!(shares(&[50, 30, 20], 10), [5, 3, 2]);
        assert_eq!(shares(&[1, 1, 1], 2), [1, 1, 0]);
        assert_eq!(shares(&[90, 6, 4], 10), [9, 1, 0]);
        assert_eq!(shares(&[3, 0, 5], 8), [3, 0, 5]);
        assert_eq!(shares(&[], 0), [0u64; 0]);
        assert_eq!(shares(&[u64::MAX / 2, 1], 4), [4, 0]);
    }
}
