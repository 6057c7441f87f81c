//! Orders of a weight's values. PyTorch's is (co, ci / groups, kh, kw).

use std::borrow::Cow;

use rayon::prelude::*;

use super::geometry::Geometry;
use crate::ops::scratch::zeros;

/// The weight of `group` as (kh, kw, ci, co), where ci and co are those of the group.
pub(super) fn to_hwio(g: &Geometry, weight: &[f32], group: usize) -> Vec<f32> {
    let inputs = g.group_inputs();
    let outputs = g.group_outputs();
    let taps = g.taps();
    let filters = &weight[group * inputs * outputs * taps..][..inputs * outputs * taps];
    let mut hwio = vec![0.0; filters.len()];
    for (output, filter) in filters.chunks_exact(inputs * taps).enumerate() {
        for (input, filter) in filter.chunks_exact(taps).enumerate() {
            for (tap, &value) in filter.iter().enumerate() {
                hwio[(tap * inputs + input) * outputs + output] = value;
            }
        }
    }
    hwio
}

/// Filters of one input and one output that are turned together: they stay in the first-level
/// cache.
const FILTERS: usize = 512;

/// (filters, taps) as (taps, filters).
pub(super) fn by_tap(weight: &[f32], taps: usize) -> Cow<'_, [f32]> {
    if taps == 1 {
        return Cow::Borrowed(weight);
    }
    let mut turned = zeros(weight.len());
    let of_taps = turned.chunks_exact_mut((weight.len() / taps).max(1));
    let mut of_taps: Vec<_> = of_taps.map(|of_tap| of_tap.chunks_mut(FILTERS)).collect();
    let pieces = |filters| {
        let of_taps: Vec<&mut [f32]> = of_taps.iter_mut().filter_map(Iterator::next).collect();
        (filters, of_taps)
    };
    let pieces: Vec<(&[f32], Vec<&mut [f32]>)> =
        weight.chunks(FILTERS * taps).map(pieces).collect();
    pieces.into_par_iter().for_each(|(filters, mut of_taps)| {
        for (i, filter) in filters.chunks_exact(taps).enumerate() {
            for (to, value) in of_taps.iter_mut().zip(filter) {
                to[i] = *value;
            }
        }
    });
    Cow::Owned(turned)
}

/// Outputs whose filters are written together, read as a cache line.
const OUTPUTS: usize = 16;

/// Converts (groups, kh, kw, ci, co) to PyTorch's order.
pub(super) fn from_hwio(g: &Geometry, hwio: &[f32]) -> Vec<f32> {
    let inputs = g.group_inputs();
    let outputs = g.group_outputs();
    let taps = g.taps();
    let group = (inputs * outputs * taps).max(1);
    let mut weight = zeros(hwio.len());
    let groups = weight.chunks_exact_mut(group).zip(hwio.chunks_exact(group));
    let pieces: Vec<(&[f32], usize, &mut [f32])> = groups
        .flat_map(|(filters, hwio)| {
            let some = filters.chunks_mut(OUTPUTS * inputs * taps).enumerate();
            some.map(move |(i, filters)| (hwio, i * OUTPUTS, filters))
        })
        .collect();
    pieces.into_par_iter().for_each(|(hwio, first, filters)| {
        let mut filters: Vec<&mut [f32]> = filters.chunks_exact_mut(inputs * taps).collect();
        for input in 0..inputs {
            for tap in 0..taps {
                let line = &hwio[(tap * inputs + input) * outputs + first..];
                for (filter, value) in filters.iter_mut().zip(line) {
                    filter[input * taps + tap] = *value;
                }
            }
        }
    });
    weight
}

#[cfg(test)]
mod tests {
    use super::super::geometry::Sliding;
    use super::*;

    #[test]
    fn all_orders_hold_the_same_values() {
        let sliding = Sliding { stride: [1, 1], padding: [0, 0], dilation: [1, 1], groups: 3 };
        let g = Geometry::new((1, 4, 4, 6), (15, 2, 2, 3), sliding).unwrap();
        let weight: Vec<f32> = (0..g.weight_len()).map(|i| i as f32).collect();
        let hwio: Vec<f32> = (0..3).flat_map(|group| to_hwio(&g, &weight, group)).collect();
        // Group 1, tap (1, 2), input 1, output 4 is filter 9, input 1, tap 5.
        assert_eq!(hwio[60 + (5 * 2 + 1) * 5 + 4], ((9 * 2 + 1) * 6 + 5) as f32);
        assert_eq!(from_hwio(&g, &hwio), weight);
        assert_eq!(by_tap(&weight, 6)[5 * 30 + 9 * 2 + 1], ((9 * 2 + 1) * 6 + 5) as f32);
    }
}
