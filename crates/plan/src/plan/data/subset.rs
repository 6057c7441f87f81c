//! Part of the training samples, in which classes keep their shares.

use crate::config::Experiment;
use crate::plan::DataFacts;

/// How many of the training samples are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Limit {
    /// All.
    #[default]
    All,
    /// So many.
    Samples(usize),
    /// A part of them, from 0 to 1.
    Fraction(f64),
}

impl Limit {
    /// What `data.limit` or `data.fraction` says.
    pub fn of(experiment: &Experiment) -> Self {
        let samples = experiment.data.limit.map(|limit| Self::Samples(limit as usize));
        samples.or(experiment.data.fraction.map(Self::Fraction)).unwrap_or_default()
    }

    /// How many of `all` are taken; `None` if all are.
    pub fn samples(self, all: usize) -> Option<usize> {
        let n = match self {
            Self::All => return None,
            Self::Samples(n) => n,
            Self::Fraction(share) => (all as f64 * share).round() as usize,
        };
        Some(n.max(1)).filter(|&n| n < all)
    }
}

impl DataFacts {
    /// Counts only as many training samples as the experiment takes.
    pub fn limit(&mut self, limit: Limit) {
        let all = self.n_train;
        let Some(n) = limit.samples(all) else { return };
        self.notes.push(format!("{n} of {all} training samples are taken"));
        if self.multi_label {
            // Samples are taken whatever their classes are.
            let share = |count: &mut u64| *count = *count * n as u64 / all as u64;
            self.class_counts.iter_mut().for_each(share);
        } else if !self.class_counts.is_empty() {
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
