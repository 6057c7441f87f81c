//! `val/average_precision`

use crate::metric::scores::{RankingScore, ties};

/// Mean precision over the samples of a class, from the surest to the least sure, and the mean of
/// the classes that occur.
pub const AVERAGE_PRECISION: RankingScore =
    RankingScore { name: "average_precision", value: average_precision };

/// The sum of each gain of recall times the precision there. `None` without samples of the class.
pub fn average_precision(sorted: &[(f32, bool)]) -> Option<f64> {
    let all = sorted.iter().filter(|(_, is_right)| *is_right).count() as f64;
    let (mut found, mut asked, mut sum) = (0, 0, 0.0);
    for [right, wrong] in ties(sorted) {
        found += right;
        asked += right + wrong;
        sum += right as f64 / all * (found as f64 / asked as f64);
    }
    (all > 0.0).then_some(sum)
}
