//! Attention on a GPU against the CPU's.

use ddprun::ops::{self, Attention};
use ddprun::plan::Precision;
use ddprun::rng::{Key, Purpose};

use crate::{ALL, Twin, tolerance};

#[test]
fn gpu_attention() {
    let key = Key::new(1, Purpose::Dropout, 2, 3);
    for precision in ALL {
        for (causal, dropout) in [(false, None), (true, None), (true, Some((0.2, key)))] {
            let options = Attention { heads: 4, causal, dropout, precision };
            let tolerance = 3.0 * tolerance(precision);
            let name = format!("causal {causal} dropout {} {precision:?}", dropout.is_some());
            let twin = Twin { operands: &[&[2, 19, 96]], weights: &[], tolerance };
            twin.check(&format!("attention_packed {name}"), &|x, _| {
                ops::attention_packed(&x[0], options)
            });
            let shape: &[usize] = &[2, 19, 32];
            let twin = Twin { operands: &[shape, shape, shape], weights: &[], tolerance };
            twin.check(&format!("attention {name}"), &|x, _| {
                ops::attention(&x[0], &x[1], &x[2], options)
            });
        }
    }
}

/// Widths of a head and lengths for which half precision has kernels that write no scores: whole
/// tiles of 64 and the rests of some, fewer queries than keys, and more.
#[test]
fn gpu_attention_without_scores() {
    let key = Key::new(1, Purpose::Dropout, 2, 3);
    for precision in [Precision::Bf16, Precision::Fp16] {
        let tolerance = 3.0 * tolerance(precision);
        for (d, t, s) in [(32, 70, 70), (64, 128, 128), (64, 200, 77), (64, 5, 130), (128, 97, 97)]
        {
            for (causal, dropout) in
                [(false, None), (true, None), (false, Some((0.2, key))), (true, Some((0.2, key)))]
            {
                let options = Attention { heads: 3, causal, dropout, precision };
                let kind = if causal { "causal" } else { "whole" };
                let name =
                    format!("{t} x {s} x {d} {kind} {:?} {precision:?}", dropout.map(|d| d.0));
                let (queries, keys): (&[usize], &[usize]) = (&[2, t, 3 * d], &[2, s, 3 * d]);
                let twin = Twin { operands: &[queries, keys, keys], weights: &[], tolerance };
                twin.check(&format!("attention {name}"), &|x, _| {
                    ops::attention(&x[0], &x[1], &x[2], options)
                });
                if t == s {
                    let twin = Twin { operands: &[&[2, t, 9 * d]], weights: &[], tolerance };
                    twin.check(&format!("attention_packed {name}"), &|x, _| {
                        ops::attention_packed(&x[0], options)
                    });
                }
            }
        }
    }
}
