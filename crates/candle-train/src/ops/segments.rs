//! Samples that hold several texts, one behind the other.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{Result, bail};

/// Lengths of the texts in each sample of a batch, in their order. A text sees nothing of the
/// others, and its positions count from 0; what is behind the last one is padding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segments(Arc<[Vec<usize>]>);

impl Segments {
    /// The lengths of each sample's texts.
    pub fn new(lengths: Vec<Vec<usize>>) -> Self {
        Self(lengths.into())
    }

    /// Refuses texts that are not those of `n` samples of `length` places.
    pub(super) fn check(&self, n: usize, length: usize) -> Result<()> {
        let fits =
            |sample: &Vec<usize>| sample.iter().sum::<usize>() <= length && !sample.contains(&0);
        if self.0.len() != n || !self.0.iter().all(fits) {
            bail!("{n} samples of {length} places, in which texts of {:?} are", self.0);
        }
        Ok(())
    }

    /// Places of each text of a sample of `length` places, and of the padding behind them.
    pub(super) fn of(&self, sample: usize, length: usize) -> impl Iterator<Item = Range<usize>> {
        let lengths = self.0.get(sample).map(Vec::as_slice).unwrap_or_default();
        let padding = length - lengths.iter().sum::<usize>();
        let lengths = lengths.iter().copied().chain((padding > 0).then_some(padding));
        lengths.scan(0, |start, length| {
            *start += length;
            Some(*start - length..*start)
        })
    }

    /// The position in its text of each place of each sample of `length` places.
    pub fn positions(&self, length: usize) -> Vec<u32> {
        let texts = (0..self.0.len()).flat_map(|sample| self.of(sample, length));
        texts.flat_map(|text| 0..text.len() as u32).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_count_anew_in_each_text_and_in_the_padding() {
        let segments = Segments::new(vec![vec![3, 1], vec![5], vec![]]);
        let expected = [[0, 1, 2, 0, 0], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]];
        assert_eq!(segments.positions(5), expected.concat());
        assert_eq!(segments.of(0, 5).collect::<Vec<_>>(), [0..3, 3..4, 4..5]);
        assert!(segments.check(3, 5).is_ok());
        for (n, length) in [(2, 5), (3, 4)] {
            assert!(segments.check(n, length).is_err(), "{n} {length}");
        }
    }
}
