//! Inputs -> parts of them, each of whole batches: the same for any number of ranks.

use std::ops::Range;

use crate::data::{Inputs, Items};

/// Samples of a part: what is lost when a start is killed.
const PART_SAMPLES: usize = 4096;

/// The items of each part: whole batches of samples.
pub(super) fn parts(inputs: &Inputs, batch: usize) -> Vec<Range<usize>> {
    let most = (PART_SAMPLES / batch.max(1)).max(1) * batch.max(1);
    let n = inputs.items.len();
    if let Items::Files(_) = inputs.items {
        return (0..n.div_ceil(most)).map(|at| at * most..((at + 1) * most).min(n)).collect();
    }
    let mut found = Vec::new();
    let mut first = 0;
    let mut samples = 0;
    for at in 0..n {
        let more = inputs.items.get(at).samples.map_or(0, |samples| samples.len());
        if at > first && (samples + more > most || at - first >= most) {
            found.push(first..at);
            (first, samples) = (at, 0);
        }
        samples += more;
    }
    found.push(first..n);
    found
}
