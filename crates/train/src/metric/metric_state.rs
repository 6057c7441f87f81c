//! State of a metric over the batches of an evaluation.

use std::collections::BTreeMap;

/// State of a metric over one batch or several.
///
/// States are added in the order of the batches, whichever rank ran them, so a metric is bitwise
/// identical at any number of ranks. Sums and counts stay small; scores take eight bytes each on
/// every rank.
#[derive(Clone, Debug, PartialEq)]
pub enum MetricState {
    /// Sums that are added one by one.
    Sums(Vec<f64>),
    /// Number of samples for each pair [label, answer].
    Counts(BTreeMap<[u32; 2], u64>),
    /// Scores of each sample, and which of its classes are right.
    Scores(Scores),
}

/// The score of each class and whether it is right, sample after sample.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scores {
    /// Number of scores per sample.
    pub classes: usize,
    /// All scores; a larger one is surer.
    pub values: Vec<(f32, bool)>,
}

impl MetricState {
    /// `right` of `n` answers.
    pub fn of_answers(right: usize, n: usize) -> Self {
        Self::Sums(vec![right as f64, n as f64])
    }

    /// The mean of a batch times its number of samples, and that number.
    pub fn of_samples(values: &[f64]) -> Self {
        let count = values.len() as f64;
        Self::Sums(vec![values.iter().sum::<f64>() / count * count, count])
    }

    /// The first sum divided by the second; 0 for an empty state.
    pub fn mean(&self) -> f64 {
        match self.sums() {
            [sum, count, ..] => sum / count.max(1.0),
            _ => 0.0,
        }
    }

    /// The sums; empty for other states.
    pub fn sums(&self) -> &[f64] {
        if let Self::Sums(sums) = self { sums } else { &[] }
    }

    /// Adds the state of a later batch; one of another variant is ignored.
    pub fn add(&mut self, later: Self) {
        match (self, later) {
            (Self::Sums(sums), Self::Sums(more)) => {
                sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
            }
            (Self::Counts(counts), Self::Counts(more)) => {
                for (pair, n) in more {
                    *counts.entry(pair).or_default() += n;
                }
            }
            (Self::Scores(scores), Self::Scores(more)) => scores.values.extend(more.values),
            _ => {}
        }
    }

    /// Appends the state as words of 64 bits, for other ranks.
    pub fn write(&self, words: &mut Vec<u64>) {
        let pack = |[low, high]: [u32; 2]| u64::from(high) << 32 | u64::from(low);
        let (form, values): ([u32; 2], Vec<u64>) = match self {
            Self::Sums(sums) => ([0, 0], sums.iter().map(|sum| sum.to_bits()).collect()),
            Self::Counts(counts) => {
                ([1, 0], counts.iter().flat_map(|(pair, n)| [pack(*pair), *n]).collect())
            }
            Self::Scores(Scores { classes, values }) => {
                let word =
                    |(score, is_right): &(f32, bool)| pack([score.to_bits(), (*is_right).into()]);
                ([2, *classes as u32], values.iter().map(word).collect())
            }
        };
        words.extend([pack(form), values.len() as u64]);
        words.extend(values);
    }

    /// Reads one state off the front of `words`; `None` if there is none.
    pub(crate) fn read(words: &mut &[u64]) -> Option<Self> {
        let unpack = |word: u64| [word as u32, (word >> 32) as u32];
        let (&[form, n], rest) = words.split_first_chunk::<2>()?;
        let (values, rest) = rest.split_at_checked(usize::try_from(n).ok()?)?;
        *words = rest;
        match unpack(form) {
            [0, _] => Some(Self::Sums(values.iter().copied().map(f64::from_bits).collect())),
            [1, _] => {
                let (pairs, _) = values.as_chunks::<2>();
                Some(Self::Counts(pairs.iter().map(|&[pair, n]| (unpack(pair), n)).collect()))
            }
            [2, classes] => {
                let score = |&word: &u64| {
                    let [bits, is_right] = unpack(word);
                    (f32::from_bits(bits), is_right != 0)
                };
                let values = values.iter().map(score).collect();
                Some(Self::Scores(Scores { classes: classes as usize, values }))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_added() {
        let counts = |n| MetricState::Counts(BTreeMap::from([([3, u32::MAX], n)]));
        let scores = |n| {
            let values = [(-1.5, true), (f32::INFINITY, false)].repeat(n);
            MetricState::Scores(Scores { classes: 2, values })
        };
        let all = [
            MetricState::Sums(vec![0.1, f64::NAN]),
            counts(7),
            scores(2),
            MetricState::Sums(vec![]),
        ];
        let mut words = Vec::new();
        for kept in &all {
            kept.write(&mut words);
        }
        let mut rest = &words[..];
        let Some(MetricState::Sums(sums)) = MetricState::read(&mut rest) else { panic!() };
        assert!(sums[0] == 0.1 && sums[1].is_nan());
        let mut read: Vec<MetricState> =
            std::iter::from_fn(|| MetricState::read(&mut rest)).collect();
        assert_eq!(read, all[1..]);
        read[0].add(counts(5));
        read[1].add(scores(1));
        assert_eq!(read[..2], [counts(12), scores(3)]);
        assert_eq!(MetricState::read(&mut &words[..words.len() - 3][7..]), None);
    }
}
