//! exp, erf, tanh and the logistic function in f32, without branches, so that loops over them
//! vectorise.
//!
//! Errors against f64 are those that the tests print: exp 1.2e-7 relative, erf, tanh and logistic
//! 2.5e-7 relative. NaN stays NaN.

/// 1.5 x 2^23: added to a number below 2^22, it leaves the nearest integer in the low bits.
const ROUND: f32 = 12_582_912.0;

/// e^x. Results below 2^-125 are 0.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    const MIN: f32 = -86.99;
    const MAX: f32 = 88.722_84;
    let rounded = x.clamp(MIN, MAX).mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = rounded - ROUND;
    // x - n ln 2, with ln 2 in two parts, the first of few bits, so that no digit is lost.
    let r = n.mul_add(-0.693_359_4, x);
    let r = n.mul_add(2.121_944_4e-4, r);
    // Cephes' expf: 1 + r + r^2 p(r) on [-ln 2 / 2, ln 2 / 2].
    let p = 1.987_569_1e-4f32.mul_add(r, 1.398_2e-3);
    let p = p.mul_add(r, 8.333_452e-3).mul_add(r, 4.166_579_6e-2);
    let p = p.mul_add(r, 0.166_666_66).mul_add(r, 0.5);
    let y = p.mul_add(r * r, r) + 1.0;
    // 2^(n - 1) always is a normal number, 2^n is not at the upper end.
    let half_power = f32::from_bits(rounded.to_bits().wrapping_add(126) << 23);
    let y = y * half_power * 2.0;
    let y = if x < MIN { 0.0 } else { y };
    if x > MAX { f32::INFINITY } else { y }
}

/// The error function (after N. Juffa's single-precision approximations, whose error is below one
/// unit in the last place).
#[inline(always)]
pub(super) fn erf(x: f32) -> f32 {
    let t = x.abs();
    let s = x * x;
    let tail = (-1.728_534_7e-5f32).mul_add(t, 3.831_97e-4);
    let tail = tail.mul_add(s, (-3.883_964_4e-3f32).mul_add(t, 2.425_462_2e-2));
    let tail = tail.mul_add(t, -0.106_777_88).mul_add(t, -0.634_846_7);
    let tail = tail.mul_add(t, -0.128_717_51).mul_add(t, -t);
    let tail = (1.0 - exp(tail)).copysign(x);
    let core = (-5.967_617e-4f32).mul_add(s, 4.991_194e-3).mul_add(s, -2.676_813_5e-2);
    let core = core.mul_add(s, 0.112_819_925).mul_add(s, -0.376_125_34).mul_add(s, 0.128_379_17);
    if t > 0.927_734_4 { tail } else { core.mul_add(x, x) }
}

/// The hyperbolic tangent.
#[inline(always)]
pub(super) fn tanh(x: f32) -> f32 {
    let t = x.abs();
    let s = x * x;
    let tail = (1.0 - 2.0 / (exp(2.0 * t) + 1.0)).copysign(x);
    // Cephes' tanhf.
    let core = (-5.704_988_7e-3f32).mul_add(s, 2.063_909e-2).mul_add(s, -5.373_971_6e-2);
    let core = core.mul_add(s, 0.133_314_42).mul_add(s, -0.333_332_8) * s;
    if t > 0.625 { tail } else { core.mul_add(x, x) }
}

/// 1 / (1 + e^-x).
#[inline(always)]
pub(super) fn logistic(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

#[cfg(test)]
mod tests {
    use super::super::simd::vectorised;
    use super::*;

    /// Largest error of `f` on a grid over [-bound, bound], relative to the exact value.
    #[track_caller]
    fn check(name: &str, f: impl Fn(f32) -> f32, exact: fn(f64) -> f64, bound: f32, limit: f64) {
        let n = 400_000;
        let points: Vec<f32> = (0..=n).map(|i| bound * (2.0 * i as f32 / n as f32 - 1.0)).collect();
        let values: Vec<f32> = vectorised(
            #[inline(always)]
            || points.iter().map(|&x| f(x)).collect(),
        );
        let error = |(&x, &y): (&f32, &f32)| {
            let exact = exact(f64::from(x));
            (f64::from(y) - exact).abs() / exact.abs().max(1e-30)
        };
        let worst = points.iter().zip(&values).map(error).fold(0.0, f64::max);
        println!("{name} on [-{bound}, {bound}]: relative error against f64 {worst:.2e}");
        assert!(worst < limit, "{name}: {worst:.2e}");
    }

    #[test]
    fn errors_against_f64_are_bounded() {
        check("exp", exp, f64::exp, 86.9, 1.2e-7);
        check("erf", erf, candle_core::cpu::erf::erf_f64, 6.0, 2.5e-7);
        check("tanh", tanh, f64::tanh, 12.0, 2.5e-7);
        check("logistic", logistic, |x| 1.0 / (1.0 + (-x).exp()), 80.0, 2.5e-7);
    }

    #[test]
    fn ends_of_the_range_are_exact_and_nan_stays() {
        assert_eq!(
            (exp(0.0), exp(f32::NEG_INFINITY), exp(f32::INFINITY)),
            (1.0, 0.0, f32::INFINITY)
        );
        assert_eq!((exp(-200.0), exp(89.0)), (0.0, f32::INFINITY));
        assert!((f64::from(exp(88.72)) / f64::from(88.72f32).exp() - 1.0).abs() < 1e-6);
        assert_eq!((erf(f32::INFINITY), erf(f32::NEG_INFINITY), erf(0.0)), (1.0, -1.0, 0.0));
        assert_eq!((tanh(f32::INFINITY), tanh(-200.0), tanh(0.0)), (1.0, -1.0, 0.0));
        assert_eq!((logistic(200.0), logistic(-200.0), logistic(0.0)), (1.0, 0.0, 0.5));
        for f in [exp, erf, tanh, logistic] {
            assert!(f(f32::NAN).is_nan());
        }
    }
}
