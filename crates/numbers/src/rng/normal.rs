//! Standard normal numbers without branches or calls, so that loops over them vectorise, and
//! without the mathematical library of the system, whose last digits differ from one to another.
//! Products are rounded before they are added, as every processor can.

use std::f64::consts::{LN_2, TAU};

/// sqrt(1/2), as bits.
const SQRT_HALF: u64 = 0x3FE6_A09E_667F_3BCD;
/// Terms of the series for logarithm and sine: the next are below 2^-53 of the sum.
const TERMS: usize = 11;

/// A standard normal number from two uniform numbers in [0, 1) (Box and Muller 1958).
#[inline(always)]
pub(super) fn normal(first: f64, second: f64) -> f64 {
    let turn = 0.25 - (second - second.round()).abs();
    (-2.0 * ln(1.0 - first)).sqrt() * sine_of_turn(turn)
}

/// The natural logarithm of a normal number above 0, with ln m = 2 atanh((m - 1) / (m + 1)) for the
/// mantissa m in [sqrt(1/2), sqrt(2)).
#[inline(always)]
fn ln(x: f64) -> f64 {
    const ODD: [f64; TERMS] = {
        let mut terms = [0.0; TERMS];
        let mut k = 0;
        while k < TERMS {
            terms[k] = 2.0 / (2 * k + 1) as f64;
            k += 1;
        }
        terms
    };
    let power = (x.to_bits().wrapping_sub(SQRT_HALF) as i64) >> 52;
    let m = f64::from_bits(x.to_bits().wrapping_sub((power as u64) << 52));
    let s = (m - 1.0) / (m + 1.0);
    let sum = ODD.iter().rev().fold(0.0, |sum: f64, term| sum * (s * s) + term);
    power as f64 * LN_2 + s * sum
}

/// sin(2 pi turn) of a turn in [-1/4, 1/4].
#[inline(always)]
fn sine_of_turn(turn: f64) -> f64 {
    /// 1 / ((2 k + 2) (2 k + 3)): ratio of a term of the series to the one before.
    const SHARES: [f64; TERMS] = {
        let mut shares = [0.0; TERMS];
        let mut k = 0;
        while k < TERMS {
            shares[k] = 1.0 / ((2 * k + 2) * (2 * k + 3)) as f64;
            k += 1;
        }
        shares
    };
    let x = TAU * turn;
    let sum = SHARES.iter().rev().fold(1.0, |sum: f64, share| 1.0 - x * x * share * sum);
    x * sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_exact_to_some_units_of_the_last_place() {
        let (mut worst_ln, mut worst_sine) = (0.0f64, 0.0f64);
        for i in 1..=200_000 {
            let x = f64::from(i) / 200_000.0;
            for x in [x, x * 1e-9] {
                worst_ln = worst_ln.max((ln(x) - x.ln()).abs() / x.ln().abs().max(1e-30));
            }
            let turn = (x - 0.5) / 2.0;
            worst_sine = worst_sine.max((sine_of_turn(turn) - (TAU * turn).sin()).abs());
        }
        println!("errors: logarithm {worst_ln:.1e} relative, sine {worst_sine:.1e}");
        assert!(worst_ln < 5e-16 && worst_sine < 5e-16);
        assert_eq!((ln(1.0), sine_of_turn(0.0)), (0.0, 0.0));
        assert!(ln(1.0 / (1u64 << 53) as f64) > -36.74);
    }

    #[test]
    fn ends_of_the_range_are_finite() {
        let largest = 1.0 - f64::EPSILON / 2.0;
        for (first, second) in [(0.0, 0.0), (largest, 0.0), (largest, 0.5), (0.5, largest)] {
            assert!(normal(first, second).is_finite());
        }
        assert!((8.5..8.6).contains(&normal(largest, 0.0)));
    }
}
