//! Initial values of parameters.

use crate::ops::{build, vectorised};
use crate::rng::Key;

/// Distribution of a parameter's initial values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// All the same.
    Constant(f64),
    /// Uniform in [-bound, bound].
    Uniform(f64),
    /// Normal with mean 0 and this standard deviation.
    Normal(f64),
    /// A convolution of `taps` weights per channel whose first `inputs` outputs are its inputs as
    /// they are (`torch.nn.init.dirac_`); the others as [`Init::torch_default`].
    Dirac {
        /// Input channels.
        inputs: usize,
        /// Weights of a kernel; the middle one is 1.
        taps: usize,
    },
}

impl Init {
    /// He normal with fan-out, for a convolution (out, in, kh, kw): N(0, sqrt(2 / (out kh kw))).
    pub fn he_fan_out(shape: &[usize]) -> Self {
        let fan_out: usize = shape.iter().product::<usize>() / shape.get(1).copied().unwrap_or(1);
        Self::Normal((2.0 / fan_out as f64).sqrt())
    }

    /// PyTorch's default of `Linear` and `Conv`, weight and bias: U(+-1/sqrt(`fan_in`)).
    pub fn torch_default(fan_in: usize) -> Self {
        Self::Uniform(1.0 / (fan_in as f64).sqrt())
    }

    /// `n` values, of which each is drawn from its own place in the stream.
    pub(super) fn values(self, key: Key, n: usize) -> Vec<f32> {
        match self {
            Self::Constant(value) => vec![value as f32; n],
            Self::Uniform(bound) => drawn(
                n,
                #[inline(always)]
                move |i| 2.0 * bound * key.uniform(i) - bound,
            ),
            Self::Normal(std) => drawn(
                n,
                #[inline(always)]
                move |i| std * key.normal(2 * i),
            ),
            Self::Dirac { inputs, taps } => {
                let mut values = Self::torch_default(inputs * taps).values(key, n);
                for (output, kernels) in values.chunks_mut(inputs * taps).take(inputs).enumerate() {
                    kernels.fill(0.0);
                    kernels[output * taps + taps / 2] = 1.0;
                }
                values
            }
        }
    }
}

/// `draw(i)` for `i` below `n`, by all threads.
fn drawn(n: usize, draw: impl Fn(u64) -> f64 + Sync + Copy) -> Vec<f32> {
    build(n, |start, values| {
        vectorised(
            #[inline(always)]
            move || {
                for (i, value) in values.iter_mut().enumerate() {
                    *value = draw((start + i) as u64) as f32;
                }
            },
        );
    })
}
