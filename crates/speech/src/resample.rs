//! Samples at one rate -> at another, as `torchaudio.functional.resample` does by default (with its
//! kernel in f64): the product with a sinc under Hann's window, six of its zeros wide, which passes
//! what lies below 99 % of the lower of the two limits.

use std::f64::consts::PI;

/// Zeros of the sinc on each side.
const ZEROS: f64 = 6.0;
/// Share of the band that is kept.
const ROLLOFF: f64 = 0.99;

/// Filter of one output sample: offset of the first tap from the sample's own position, and the
/// taps.
struct Kernel {
    first: isize,
    taps: Vec<f64>,
}

/// `samples` of `from` samples a second at `to` samples a second.
pub(crate) fn resampled(samples: Vec<f32>, from: u32, to: u32) -> Vec<f32> {
    if from == to {
        return samples;
    }
    let divisor = gcd(from, to);
    let from = (from / divisor) as usize;
    let to = (to / divisor) as usize;
    let n = (samples.len() * to).div_ceil(from);
    // Outputs whose place between two samples is the same share a kernel.
    let kernels: Vec<Kernel> = (0..to.min(n)).map(|phase| kernel(phase, from, to)).collect();
    let output = |i: usize| {
        let Kernel { first, taps } = &kernels[i % to];
        let start = (i / to * from) as isize + first;
        // Beyond both ends there is silence.
        let skipped = usize::try_from(-start).unwrap_or(0);
        let there = samples.get(usize::try_from(start).unwrap_or(0)..).unwrap_or(&[]);
        let products = taps.iter().skip(skipped).zip(there).map(|(tap, &v)| tap * f64::from(v));
        products.sum::<f64>() as f32
    };
    (0..n).map(output).collect()
}

/// The taps of output `phase` of each `to`, for which there are `from` inputs.
fn kernel(phase: usize, from: usize, to: usize) -> Kernel {
    let band = from.min(to) as f64 * ROLLOFF;
    let width = (ZEROS * from as f64 / band).ceil() as isize;
    let at = |input: isize| {
        let t = band * (input as f64 / from as f64 - phase as f64 / to as f64);
        let t = t.clamp(-ZEROS, ZEROS);
        let window = (t * PI / ZEROS / 2.0).cos().powi(2);
        let sinc = if t == 0.0 { 1.0 } else { (t * PI).sin() / (t * PI) };
        sinc * window * band / from as f64
    };
    // torchaudio's taps outside of the window are zeros; those near its place are all that count.
    let place = (phase * from / to) as isize;
    let first = place - width;
    Kernel { first, taps: (first..=place + width + 1).map(at).collect() }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{Resampled, golden};

    #[test]
    fn samples_are_torchaudios() {
        let golden = golden();
        for Resampled { from, to, n, first, last, energy } in &golden.resampled {
            let samples: Vec<f32> = (0..2000)
                .map(|i| {
                    (0.3 * (f64::from(i) * 0.05).sin() + 0.2 * (f64::from(i) * 0.31).cos()) as f32
                })
                .collect();
            let found = resampled(samples, *from, *to);
            assert_eq!(found.len(), *n, "{from} -> {to}");
            let near = |a: &[f32], b: &[f64]| {
                a.iter().zip(b).for_each(|(a, b)| {
                    assert!((f64::from(*a) - b).abs() < 1e-6, "{from} -> {to}: {a} {b}");
                });
            };
            near(&found[..first.len()], first);
            near(&found[n - last.len()..], last);
            let sum: f64 = found.iter().map(|&v| f64::from(v).powi(2)).sum();
            assert!((sum / energy - 1.0).abs() < 1e-5, "{from} -> {to}: {sum} {energy}");
        }
    }

    #[test]
    fn rates_without_a_common_divisor_cost_no_more_than_their_samples() {
        assert_eq!(resampled(vec![0.5; 1000], 767_999, 16_001).len(), 21);
        assert_eq!(resampled(vec![], 44_100, 16_000).len(), 0);
        let constant = resampled(vec![0.5; 4000], 8000, 16_000);
        assert!(constant[100..7900].iter().all(|v| (v - 0.5).abs() < 2e-3));
    }
}
