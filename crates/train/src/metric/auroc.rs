//! `val/auroc`

use crate::metric::scores::{RankingScore, ties};

/// Area under the receiver operating characteristic of each class against all others, and their
/// mean; classes that all samples have, or none, are left out.
pub const AUROC: RankingScore = RankingScore { name: "auroc", value: auroc };

/// The share of pairs of a sample with the class and one without it that are in the right order;
/// ties count half. Exact in integers. `None` without such pairs.
pub fn auroc(sorted: &[(f32, bool)]) -> Option<f64> {
    let mut halves = 0u128;
    let mut before = 0;
    let mut others = 0;
    for [right, wrong] in ties(sorted) {
        // Samples without the class that come before one with it are in the wrong order.
        halves += u128::from(right) * u128::from(2 * others + wrong);
        before += right;
        others += wrong;
    }
    let pairs = u128::from(before) * u128::from(others);
    (pairs > 0).then(|| 1.0 - halves as f64 / (2 * pairs) as f64)
}
