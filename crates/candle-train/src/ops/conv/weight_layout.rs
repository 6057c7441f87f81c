//! Orders of a weight's values. PyTorch's is (co, ci / groups, kh, kw).

use rayon::prelude::*;

use super::geometry::Geometry;

/// The weight of `group` as (kh, kw, ci, co), where ci and co are those of the group.
pub(super) fn to_hwio(g: &Geometry, weight: &[f32], group: usize) -> Vec<f32> {
    let (inputs, outputs, taps) = (g.group_inputs(), g.group_outputs(), g.taps());
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

/// PyTorch's order from that of all groups, (groups, kh, kw, ci, co).
pub(super) fn from_hwio(g: &Geometry, hwio: &[f32]) -> Vec<f32> {
    let (inputs, outputs, taps) = (g.group_inputs(), g.group_outputs(), g.taps());
    let mut weight = vec![0.0; hwio.len()];
    weight.par_chunks_mut(inputs * taps).enumerate().for_each(|(output, filter)| {
        let group = &hwio[output / outputs * inputs * outputs * taps..];
        for (input, filter) in filter.chunks_exact_mut(taps).enumerate() {
            for (tap, value) in filter.iter_mut().enumerate() {
                *value = group[(tap * inputs + input) * outputs + output % outputs];
            }
        }
    });
    weight
}

#[cfg(test)]
mod tests {
    use super::super::Sliding;
    use super::*;

    #[test]
    fn both_orders_hold_the_same_values() {
        let sliding = Sliding { stride: [1, 1], padding: [0, 0], dilation: [1, 1], groups: 3 };
        let g = Geometry::new((1, 4, 4, 6), (15, 2, 2, 3), sliding).unwrap();
        let weight: Vec<f32> = (0..g.weight_len()).map(|i| i as f32).collect();
        let hwio: Vec<f32> = (0..3).flat_map(|group| to_hwio(&g, &weight, group)).collect();
        // Group 1, tap (1, 2), input 1, output 4 is filter 9, input 1, tap 5.
        assert_eq!(hwio[60 + (5 * 2 + 1) * 5 + 4], ((9 * 2 + 1) * 6 + 5) as f32);
        assert_eq!(from_hwio(&g, &hwio), weight);
    }
}
