//! Activations, element by element: any shape, f32 or bf16, and on GPUs f16, which the result has,
//! too; with PyTorch's forms and gradients.

use candle_core::{DType, Result, Shape, Tensor};
use half::bf16;
use rayon::prelude::*;

use super::chain;
use super::element::Element;
use super::math::{self, erf, exp, logistic};
use super::operation::{Gradients, Input, Operation};
use super::scratch::{filled_blocks, lengths};
use super::simd::{BLOCK, vectorised};
use super::storage::{overwrite, read_of};
use super::widen::is_held_in_bf16;

/// max(x, 0). The gradient at 0 is 0, as in PyTorch (Candle's own gives 1).
///
/// # Errors
///
/// Not f32, or not on the CPU.
pub fn relu(x: &Tensor) -> Result<Tensor> {
    apply(x, Relu)
}

/// x where it is positive, else `negative_slope` x: `torch.nn.LeakyReLU(negative_slope)`.
///
/// # Errors
///
/// As [`relu`].
pub fn leaky_relu(x: &Tensor, negative_slope: f64) -> Result<Tensor> {
    apply(x, LeakyRelu(negative_slope as f32))
}

/// min(max(x, 0), 6): `torch.nn.ReLU6()`.
///
/// # Errors
///
/// As [`relu`].
pub fn relu6(x: &Tensor) -> Result<Tensor> {
    apply(x, Relu6)
}

/// relu6(x + 3) / 6: `torch.nn.Hardsigmoid()`.
///
/// # Errors
///
/// As [`relu`].
pub fn hardsigmoid(x: &Tensor) -> Result<Tensor> {
    apply(x, Hardsigmoid)
}

/// x relu6(x + 3) / 6 (Howard et al., 2019): `torch.nn.Hardswish()`.
///
/// # Errors
///
/// As [`relu`].
pub fn hardswish(x: &Tensor) -> Result<Tensor> {
    apply(x, Hardswish)
}

/// x Φ(x), with the exact distribution function (Hendrycks and Gimpel, 2016): `torch.nn.GELU()`.
///
/// # Errors
///
/// As [`relu`].
pub fn gelu(x: &Tensor) -> Result<Tensor> {
    apply(x, Gelu)
}

/// GELU by the tangent: x/2 (1 + tanh(sqrt(2/π) (x + 0.044715 x^3))):
/// `torch.nn.GELU(approximate="tanh")`.
///
/// # Errors
///
/// As [`relu`].
pub fn gelu_tanh(x: &Tensor) -> Result<Tensor> {
    apply(x, GeluTanh)
}

/// x / (1 + e^-x): `torch.nn.SiLU()`.
///
/// # Errors
///
/// As [`relu`].
pub fn silu(x: &Tensor) -> Result<Tensor> {
    apply(x, Silu)
}

/// x tanh(ln(1 + e^x)) (Misra, 2019): `torch.nn.Mish()`. Unlike Candle's own, its gradient is
/// finite wherever x is.
///
/// # Errors
///
/// As [`relu`].
pub fn mish(x: &Tensor) -> Result<Tensor> {
    apply(x, Mish)
}

/// 1 / (1 + e^-x): `torch.sigmoid`.
///
/// # Errors
///
/// As [`relu`].
pub fn sigmoid(x: &Tensor) -> Result<Tensor> {
    apply(x, Sigmoid)
}

/// The hyperbolic tangent: `torch.tanh`.
///
/// # Errors
///
/// As [`relu`].
pub fn tanh(x: &Tensor) -> Result<Tensor> {
    apply(x, Tanh)
}

/// A function of one number. Both methods are `#[inline(always)]` and free of branches.
pub(super) trait Function: Copy + Send + Sync + 'static {
    /// By which GPUs find their kernel, too.
    const NAME: &'static str;

    fn value(self, x: f32) -> f32;

    /// The derivative at x.
    fn slope(self, x: f32) -> f32;

    /// The gradient of x, given that of the value.
    #[inline(always)]
    fn gradient(self, x: f32, g: f32) -> f32 {
        g * self.slope(x)
    }

    /// The number that the function has beside x, as GPUs are told it.
    #[cfg(feature = "cuda")]
    fn parameter(self) -> f32 {
        0.0
    }
}

#[derive(Clone, Copy)]
struct Relu;

impl Function for Relu {
    const NAME: &'static str = "relu";

    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        // Not `max`, which would turn NaN into 0.
        if x < 0.0 { 0.0 } else { x }
    }

    #[inline(always)]
    fn slope(self, x: f32) -> f32 {
        if x > 0.0 { 1.0 } else { 0.0 }
    }

    #[inline(always)]
    fn gradient(self, x: f32, g: f32) -> f32 {
        // Not a product, which would turn an infinite gradient into NaN where the unit is closed.
        if x > 0.0 { g } else { 0.0 }
    }
}

#[derive(Clone, Copy)]
struct LeakyRelu(f32);

impl Function for LeakyRelu {
    const NAME: &'static str = "leaky-relu";

    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        if x > 0.0 { x } else { x * self.0 }
    }

    #[inline(always)]
    fn slope(self, x: f32) -> f32 {
        if x > 0.0 { 1.0 } else { self.0 }
    }

    #[cfg(feature = "cuda")]
    fn parameter(self) -> f32 {
        self.0
    }
}

/// min(max(x, 0), 6); NaN stays NaN.
#[inline(always)]
fn from_0_to_6(x: f32) -> f32 {
    let x = if x < 0.0 { 0.0 } else { x };
    if x > 6.0 { 6.0 } else { x }
}

#[derive(Clone, Copy)]
struct Relu6;

impl Function for Relu6 {
    const NAME: &'static str = "relu6";

    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        from_0_to_6(x)
    }

    #[inline(always)]
    fn slope(self, x: f32) -> f32 {
        if x > 0.0 && x < 6.0 { 1.0 } else { 0.0 }
    }

    #[inline(always)]
    fn gradient(self, x: f32, g: f32) -> f32 {
        if x > 0.0 && x < 6.0 { g } else { 0.0 }
    }
}

#[derive(Clone, Copy)]
struct Hardsigmoid;

impl Function for Hardsigmoid {
    const NAME: &'static str = "hardsigmoid";

    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        from_0_to_6(x + 3.0) / 6.0
    }

    #[inline(always)]
    fn slope(self, x: f32) -> f32 {
        if x > -3.0 && x < 3.0 { 1.0 / 6.0 } else { 0.0 }
    }
}

#[derive(Clone, Copy)]
struct Hardswish;

impl Function for Hardswish {
    const NAME: &'static str = "hardswish";

    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        x * from_0_to_6(x + 3.0) / 6.0
    }

    #[inline(always)]
    fn slope(self, x: f32) -> f32 {
        let inside = x / 3.0 + 0.5;
        let above = if x < 3.0 { inside } else { 1.0 };
        if x > -3.0 { above } else { 0.0 }
    }
}

#[derive(Clone, Copy)]
struct Gelu;

impl Gelu {
    /// The normal distribution function.
    #[inline(always)]
    fn distribution(x: f32) -> f32 {
        0.5 + 0.5 * erf(x * std::f32::consts::FRAC_1_SQRT_2)
    }
}

impl Function for Gelu {
    const NAME: &'static str = "gelu";

    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        x * Self::distribution(x)
    }

    #[inline(always)]
    fn slope(self, x: f32) -> f32 {
        let density = 0.398_942_3 * exp(-0.5 * x * x);
        x.mul_add(density, Self::distribution(x))
    }
}

#[derive(Clone, Copy)]
struct GeluTanh;

impl GeluTanh {
    const CUBIC: f32 = 0.044_715;
    /// sqrt(2 / π)
    const SCALE: f32 = 0.797_884_6;

    #[inline(always)]
    fn tangent(x: f32) -> f32 {
        math::tanh(Self::SCALE * x * (Self::CUBIC * x).mul_add(x, 1.0))
    }
}

impl Function for GeluTanh {
    const NAME: &'static str = "gelu-tanh";

    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        0.5 * x * (1.0 + Self::tangent(x))
    }

    #[inline(always)]
    fn slope(self, x: f32) -> f32 {
        let tangent = Self::tangent(x);
        let inner = Self::SCALE * (3.0 * Self::CUBIC * x).mul_add(x, 1.0);
        0.5 * (1.0 + tangent) + 0.5 * x * (1.0 - tangent * tangent) * inner
    }
}

#[derive(Clone, Copy)]
struct Silu;

impl Function for Silu {
    const NAME: &'static str = "silu";

    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        x * logistic(x)
    }

    #[inline(always)]
    fn slope(self, x: f32) -> f32 {
        let gate = logistic(x);
        gate * x.mul_add(1.0 - gate, 1.0)
    }
}

#[derive(Clone, Copy)]
struct Mish;

impl Mish {
    /// tanh(ln(1 + e^x)) = ((1 + e^x)^2 - 1) / ((1 + e^x)^2 + 1), which is 1 to f32 from x = 10 on.
    #[inline(always)]
    fn gate(x: f32) -> f32 {
        let e = exp(if x > 20.0 { 20.0 } else { x });
        let n = e * (e + 2.0);
        n / (n + 2.0)
    }
}

impl Function for Mish {
    const NAME: &'static str = "mish";

    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        x * Self::gate(x)
    }

    #[inline(always)]
    fn slope(self, x: f32) -> f32 {
        let gate = Self::gate(x);
        gate + x * (1.0 - gate * gate) * logistic(x)
    }
}

#[derive(Clone, Copy)]
struct Sigmoid;

impl Function for Sigmoid {
    const NAME: &'static str = "sigmoid";

    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        logistic(x)
    }

    #[inline(always)]
    fn slope(self, x: f32) -> f32 {
        let y = logistic(x);
        y * (1.0 - y)
    }
}

#[derive(Clone, Copy)]
struct Tanh;

impl Function for Tanh {
    const NAME: &'static str = "tanh";

    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        math::tanh(x)
    }

    #[inline(always)]
    fn slope(self, x: f32) -> f32 {
        let y = math::tanh(x);
        1.0 - y * y
    }
}

fn apply<F: Function>(x: &Tensor, function: F) -> Result<Tensor> {
    let function = Elementwise(function);
    if is_held_in_bf16(x) {
        return chain::apply_held(x, function, |function, y| {
            (function.values(y), x.shape().clone())
        });
    }
    chain::apply([x], function)
}

pub(super) struct Elementwise<F>(pub(super) F);

impl<F: Function> Elementwise<F> {
    fn values<E: Element>(&self, x: &[E]) -> Vec<E> {
        let function = self.0;
        let ([y], _) = filled_blocks(&lengths(x.len(), BLOCK), |index, [y]: [&mut [E]; 1]| {
            let x = &x[index * BLOCK..][..y.len()];
            vectorised(
                #[inline(always)]
                || {
                    for (y, x) in y.iter_mut().zip(x) {
                        *y = E::nearest(function.value(x.wide()));
                    }
                },
            );
        });
        y
    }

    /// The incoming gradient times the slope, where the incoming gradient was.
    fn pull<E: Element>(&self, x: &[E], dy: &mut [E]) {
        let function = self.0;
        dy.par_chunks_mut(BLOCK).enumerate().for_each(|(index, dy)| {
            let x = &x[index * BLOCK..][..dy.len()];
            vectorised(
                #[inline(always)]
                || {
                    for (g, x) in dy.iter_mut().zip(x) {
                        *g = E::nearest(function.gradient(x.wide(), g.wide()));
                    }
                },
            );
        });
    }
}

impl<F: Function> Operation for Elementwise<F> {
    type Operands<T> = [T; 1];

    const NAME: &'static str = F::NAME;

    fn forward(&self, [x]: [Input<'_>; 1]) -> Result<(Vec<f32>, Shape)> {
        Ok((self.values(x.values), x.shape.clone()))
    }

    fn backward(&self, [x]: [&Tensor; 1], _: &Tensor, dy: Tensor) -> Gradients<Self> {
        match dy.dtype() {
            DType::BF16 => read_of([x], |[x]: [&[bf16]; 1]| overwrite(&dy, |dy| self.pull(x, dy))),
            _ => read_of([x], |[x]: [&[f32]; 1]| overwrite(&dy, |dy| self.pull(x, dy))),
        }?;
        Ok([Some(dy)])
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};
    use proptest::prelude::*;

    use super::super::testing::{check_gradients, values};
    use super::*;

    type Op = fn(&Tensor) -> Result<Tensor>;
    type Exact = fn(f64) -> f64;

    fn logistic_f64(x: f64) -> f64 {
        1.0 / (1.0 + (-x).exp())
    }

    /// Each function, and what it is in f64.
    fn functions() -> Vec<(&'static str, Op, Exact)> {
        vec![
            ("relu", relu, |x| x.max(0.0)),
            ("leaky_relu", |x| leaky_relu(x, 0.2), |x| if x > 0.0 { x } else { 0.2 * x }),
            ("relu6", relu6, |x| x.clamp(0.0, 6.0)),
            ("hardsigmoid", hardsigmoid, |x| (x + 3.0).clamp(0.0, 6.0) / 6.0),
            ("hardswish", hardswish, |x| x * (x + 3.0).clamp(0.0, 6.0) / 6.0),
            ("gelu", gelu, |x| x * 0.5 * (1.0 + candle_core::cpu::erf::erf_f64(x / 2f64.sqrt()))),
            ("gelu_tanh", gelu_tanh, |x| {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
                0.5 * x * (1.0 + inner.tanh())
            }),
            ("silu", silu, |x| x * logistic_f64(x)),
            ("mish", mish, |x| x * x.exp().ln_1p().tanh()),
            ("sigmoid", sigmoid, logistic_f64),
            ("tanh", tanh, f64::tanh),
        ]
    }

    /// 6 times values in [-1, 1).
    fn wide(n: usize) -> Vec<f32> {
        values("wide", 0, n).iter().map(|v| 6.0 * v).collect()
    }

    #[test]
    fn bf16_gives_the_same_numbers_as_f32_rounded() -> Result<()> {
        let n = 2 * BLOCK + 3;
        let x = Tensor::from_vec(wide(n), n, &Device::Cpu)?.to_dtype(DType::BF16)?;
        let r = Tensor::from_vec(values("r", 1, n), n, &Device::Cpu)?.to_dtype(DType::BF16)?;
        for (name, op, _) in functions() {
            let results = |dtype| {
                let x = Var::from_tensor(&x.to_dtype(dtype)?)?;
                let y = op(&x)?;
                assert_eq!(y.dtype(), dtype);
                let gradients = (&y * r.to_dtype(dtype)?)?.sum_all()?.backward()?;
                let flat = |t: &Tensor| t.to_dtype(DType::BF16)?.to_vec1::<bf16>();
                Ok::<_, candle_core::Error>([flat(&y)?, flat(gradients.get(&x).unwrap())?])
            };
            assert!(results(DType::BF16)? == results(DType::F32)?, "{name}");
        }
        Ok(())
    }

    #[test]
    fn outputs_and_gradients_equal_the_slow_ones() {
        for (_, op, exact) in functions() {
            check_gradients(
                &[&[7, 5]],
                |t| op(&t[0]),
                |v| v[0].iter().map(|&x| exact(x)).collect(),
                1e-6,
            );
        }
    }

    #[test]
    fn errors_against_f64_are_bounded_far_from_zero() -> Result<()> {
        let x = Var::from_vec(wide(5003), 5003, &Device::Cpu)?;
        for (name, op, exact) in functions() {
            let y = op(&x)?;
            let grads = y.sum_all()?.backward()?;
            let grads = grads.get(&x).unwrap().to_vec1::<f32>()?;
            let (mut of_y, mut of_slope) = (0f64, 0f64);
            for ((x, y), slope) in wide(5003).iter().zip(y.to_vec1::<f32>()?).zip(grads) {
                let x = f64::from(*x);
                let exact_slope = (exact(x + 1e-5) - exact(x - 1e-5)) / 2e-5;
                of_y = of_y.max((f64::from(y) - exact(x)).abs() / (1.0 + x.abs()));
                of_slope = of_slope.max((f64::from(slope) - exact_slope).abs());
            }
            println!("{name}: error against f64 {of_y:.1e}, of the slope {of_slope:.1e}");
            assert!(of_y < 2e-7 && of_slope < 2e-6, "{name}");
        }
        Ok(())
    }

    /// `torch.nn.functional.{gelu, silu, mish}` of PyTorch 2.15 at these points.
    #[test]
    fn known_values_are_those_of_pytorch() -> Result<()> {
        let x = Tensor::new(&[-1.0f32, 0.5, 2.0], &Device::Cpu)?;
        let check = |op: Op, expected: [f32; 3]| -> Result<()> {
            for (y, expected) in op(&x)?.to_vec1::<f32>()?.iter().zip(expected) {
                assert!((y - expected).abs() < 2e-6, "{y} {expected}");
            }
            Ok(())
        };
        check(gelu, [-0.158_655_25, 0.345_731_23, 1.954_499_7])?;
        check(gelu_tanh, [-0.158_808_01, 0.345_714, 1.954_597_7])?;
        check(silu, [-0.268_941_43, 0.311_229_67, 1.761_594_2])?;
        check(mish, [-0.303_401_47, 0.375_245_24, 1.943_959])
    }

    /// The gradients of `torch.nn.functional.{leaky_relu, relu6, hardsigmoid, hardswish}` of
    /// PyTorch 2.15.
    #[test]
    fn gradients_at_the_corners_are_those_of_pytorch() -> Result<()> {
        let x = Var::from_vec(vec![-3.0f32, 0.0, 3.0, 6.0], 4, &Device::Cpu)?;
        let check = |op: Op, expected: [f32; 4]| -> Result<()> {
            let gradients = op(&x)?.sum_all()?.backward()?;
            assert_eq!(gradients.get(&x).unwrap().to_vec1::<f32>()?, expected);
            Ok(())
        };
        check(|x| leaky_relu(x, 0.25), [0.25, 0.25, 1.0, 1.0])?;
        check(relu6, [0.0, 0.0, 1.0, 0.0])?;
        check(hardsigmoid, [0.0, 1.0 / 6.0, 0.0, 0.0])?;
        check(hardswish, [0.0, 0.5, 1.0, 1.0])
    }

    #[test]
    fn the_rectifiers_gradient_at_zero_is_zero_and_nan_stays_visible() -> Result<()> {
        let x = Var::from_vec(vec![0.0f32, 1.0, f32::NAN], 3, &Device::Cpu)?;
        for (name, op, _) in functions() {
            assert!(op(&x)?.to_vec1::<f32>()?[2].is_nan(), "{name}");
        }
        let gradients = relu(&x)?.sum_all()?.backward()?;
        assert_eq!(gradients.get(&x).unwrap().to_vec1::<f32>()?[..2], [0.0, 1.0]);
        Ok(())
    }

    #[test]
    fn gradients_stay_finite_for_large_numbers() -> Result<()> {
        let x = Var::from_vec(vec![-3e4f32, -100.0, 100.0, 3e4], 4, &Device::Cpu)?;
        for (name, op, _) in functions() {
            let gradients = op(&x)?.sum_all()?.backward()?;
            let slopes = gradients.get(&x).unwrap().to_vec1::<f32>()?;
            assert!(slopes.iter().all(|slope| slope.is_finite()), "{name}: {slopes:?}");
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn an_element_does_not_depend_on_its_neighbours_nor_on_threads(n in 1usize..3000) {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
            let x = Tensor::from_vec(wide(n), n, &Device::Cpu).unwrap();
            for (_, op, _) in functions() {
                let all = pool.install(|| op(&x)).unwrap().to_vec1::<f32>().unwrap();
                let alone = op(&x.narrow(0, n - 1, 1).unwrap()).unwrap().to_vec1::<f32>().unwrap();
                prop_assert_eq!(all.last(), alone.last());
            }
        }
    }
}
