//! Numbers to compute with, and whether two ways of computing give the same.

use candle_train::rng::{Key, Purpose};

/// `n` numbers around 0 that differ by `stream`.
pub(crate) fn values(stream: u64, n: usize) -> Vec<f32> {
    let mut draws = Key::new(7, Purpose::Generate, stream, 0).stream();
    (0..n).map(|_| draws.normal() as f32).collect()
}

/// Whether all numbers agree to `limit` of the largest.
#[track_caller]
pub(crate) fn agree(name: &str, found: &[f32], expected: &[f32], limit: f32) {
    assert_eq!(found.len(), expected.len(), "{name}");
    let largest = expected.iter().fold(1e-3f32, |largest, v| largest.max(v.abs()));
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let same = (found - expected).abs() <= limit * largest;
        assert!(same, "{name}: element {i} is {found}, not {expected} (largest {largest})");
    }
}
