//! Norms of gradients, and clipping.

use rayon::prelude::*;

use crate::ops::vectorised;

/// Independent running sums of a block.
const LANES: usize = 16;
/// Elements per partial sum. Blocks begin at a parameter's first element, so that the sum depends
/// neither on buckets nor on threads.
const BLOCK: usize = 1 << 13;

/// Global L2 norm of the gradients of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GradientNorm(f64);

impl GradientNorm {
    /// Norm of gradients whose squares sum to `squares`, after multiplication by `factor`.
    pub fn new(squares: f64, factor: f64) -> Self {
        Self(squares.sqrt() * factor)
    }

    pub fn norm(self) -> f64 {
        self.0
    }

    /// True if every gradient is finite, in f32 and after the multiplication too: none is larger
    /// than the norm. Squares of f32 cannot overflow an f64 sum.
    pub fn is_finite(self) -> bool {
        self.0 <= f64::from(f32::MAX)
    }
}

/// Sum of the squares of one parameter's `gradient`, in f64 and in a fixed order; not finite if one
/// element is not.
pub fn sum_of_squares(gradient: &[f32]) -> f64 {
    gradient.chunks(BLOCK).map(block_squares).sum()
}

/// [`sum_of_squares`] by all threads of the pool, bitwise identical.
pub fn shared_sum_of_squares(gradient: &[f32]) -> f64 {
    let sums: Vec<f64> = gradient.par_chunks(BLOCK).map(block_squares).collect();
    sums.iter().sum()
}

fn block_squares(block: &[f32]) -> f64 {
    vectorised(
        #[inline(always)]
        || squares(block),
    )
}

#[inline(always)]
fn squares(block: &[f32]) -> f64 {
    let mut sums = [0f64; LANES];
    let (rows, rest) = block.as_chunks::<LANES>();
    for row in rows {
        // A new array for each row: it stays in registers.
        let mut next = sums;
        for i in 0..LANES {
            next[i] += f64::from(row[i]) * f64::from(row[i]);
        }
        sums = next;
    }
    for (sum, &value) in sums.iter_mut().zip(rest) {
        *sum += f64::from(value) * f64::from(value);
    }
    sums.iter().sum()
}

/// Scaling and clipping of a gradient before the update: clamp(gradient x mean x clip, -limit,
/// limit).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Preparation {
    /// Turns a sum over passes into a mean over samples.
    pub mean: f32,
    /// [`clip_coefficient`] of the whole gradient.
    pub clip: f32,
    /// Largest element, as `torch.nn.utils.clip_grad_value_`; infinite for none.
    pub limit: f32,
}

impl Default for Preparation {
    /// No scaling and no clipping.
    fn default() -> Self {
        Self { mean: 1.0, clip: 1.0, limit: f32::INFINITY }
    }
}

impl Preparation {
    #[inline(always)]
    pub(crate) fn of(self, gradient: f32) -> f32 {
        (gradient * self.mean * self.clip).max(-self.limit).min(self.limit)
    }
}

/// `min(1, limit / (norm + 1e-6))`, as `torch.nn.utils.clip_grad_norm_`.
///
/// ```
/// use ddprun_train::optim::clip_coefficient;
///
/// assert_eq!(clip_coefficient(0.5, 1.0), 1.0); // short enough
/// assert!((clip_coefficient(4.0, 1.0) - 0.25).abs() < 1e-6);
/// ```
pub fn clip_coefficient(norm: f64, limit: f64) -> f64 {
    (limit / (norm + 1e-6)).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_of_squares_is_exact_to_f64_whatever_the_length() {
        for n in [0, 1, 15, 16, 17, BLOCK - 1, BLOCK, 3 * BLOCK + 5] {
            let values: Vec<f32> = (0..n).map(|i| (i as f32 * 0.7).sin()).collect();
            let exact: f64 = values.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
            let sum = sum_of_squares(&values);
            assert!((sum - exact).abs() <= 1e-12 * exact, "{n} elements");
            assert_eq!(sum.to_bits(), shared_sum_of_squares(&values).to_bits());
        }
    }

    #[test]
    fn one_element_that_is_not_finite_or_becomes_so_is_seen() {
        let norm = |value: f32, factor| {
            let mut values = vec![1.0; 20_000];
            values[16_387] = value;
            GradientNorm::new(sum_of_squares(&values), factor)
        };
        assert!(norm(1e30, 1.0).is_finite() && !norm(1e30, 1e9).is_finite());
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(!norm(value, 0.5).is_finite());
        }
    }
}
