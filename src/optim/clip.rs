//! Scaling, measuring and clipping of gradients.

/// What the gradients of a step look like, measured over all parameters in registration order.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GradientNorm {
    squares: f64,
}

impl GradientNorm {
    /// The global L2 norm.
    pub fn norm(self) -> f64 {
        self.squares.sqrt()
    }

    /// Whether every gradient is finite: f32 squares cannot overflow an f64 sum.
    pub fn is_finite(self) -> bool {
        self.squares.is_finite()
    }

    /// Adds the gradients of one more parameter.
    pub fn add(&mut self, squares: f64) {
        self.squares += squares;
    }
}

/// Multiplies `gradient` by `factor` and returns the sum of the squares of the results. Lanes of a
/// fixed width make the order of additions the same everywhere, and let the compiler vectorise it.
pub fn scale_and_measure(gradient: &mut [f32], factor: f32) -> f64 {
    const LANES: usize = 16;
    let mut sums = [0f64; LANES];
    let mut chunks = gradient.chunks_exact_mut(LANES);
    for chunk in &mut chunks {
        for (value, sum) in chunk.iter_mut().zip(&mut sums) {
            *value *= factor;
            *sum += f64::from(*value) * f64::from(*value);
        }
    }
    for (value, sum) in chunks.into_remainder().iter_mut().zip(&mut sums) {
        *value *= factor;
        *sum += f64::from(*value) * f64::from(*value);
    }
    sums.iter().sum()
}

/// `min(1, limit / (norm + 1e-6))`, as `torch.nn.utils.clip_grad_norm_`.
///
/// ```
/// use ddprun::optim::clip_coefficient;
///
/// assert_eq!(clip_coefficient(0.5, 1.0), 1.0); // short enough
/// assert!((clip_coefficient(4.0, 1.0) - 0.25).abs() < 1e-6);
/// ```
pub fn clip_coefficient(norm: f64, limit: f64) -> f64 {
    (limit / (norm + 1e-6)).min(1.0)
}

/// Clamps each element to [-limit, limit], as `torch.nn.utils.clip_grad_value_`.
pub fn clip_values(gradient: &mut [f32], limit: f64) {
    let limit = limit as f32;
    for value in gradient {
        *value = value.clamp(-limit, limit);
    }
}
