//! Activations, element by element: any shape, f32 or bf16, and on GPUs f16, which the result has,
//! too; with PyTorch's forms and gradients.

mod function;

use candle_core::{DType, Result, Shape, Tensor};
use half::bf16;

use super::chain;
use super::element::Element;
use super::half_precision::is_held_in_bf16;
use super::operation::{Gradients, Input, Operation};
use super::simd::{build, change_blocks, vectorised};
use super::storage::{overwrite, read_of};
pub(super) use function::{Function, Gelu, GeluTanh, Relu};
use function::{Hardsigmoid, Hardswish, LeakyRelu, Mish, Relu6, Sigmoid, Silu, Tanh};

/// max(x, 0). The gradient at 0 is 0, as in PyTorch (Candle's own gives 1).
pub fn relu(x: &Tensor) -> Result<Tensor> {
    apply(x, Relu)
}

/// x where it is positive, else `negative_slope` x: `torch.nn.LeakyReLU(negative_slope)`.
pub fn leaky_relu(x: &Tensor, negative_slope: f64) -> Result<Tensor> {
    apply(x, LeakyRelu(negative_slope as f32))
}

/// min(max(x, 0), 6): `torch.nn.ReLU6()`.
pub fn relu6(x: &Tensor) -> Result<Tensor> {
    apply(x, Relu6)
}

/// relu6(x + 3) / 6: `torch.nn.Hardsigmoid()`.
pub fn hardsigmoid(x: &Tensor) -> Result<Tensor> {
    apply(x, Hardsigmoid)
}

/// x relu6(x + 3) / 6 (Howard et al., 2019): `torch.nn.Hardswish()`.
pub fn hardswish(x: &Tensor) -> Result<Tensor> {
    apply(x, Hardswish)
}

/// x Φ(x), with the exact distribution function (Hendrycks and Gimpel, 2016): `torch.nn.GELU()`.
pub fn gelu(x: &Tensor) -> Result<Tensor> {
    apply(x, Gelu)
}

/// GELU by the tangent: x/2 (1 + tanh(sqrt(2/π) (x + 0.044715 x^3))):
/// `torch.nn.GELU(approximate="tanh")`.
pub fn gelu_tanh(x: &Tensor) -> Result<Tensor> {
    apply(x, GeluTanh)
}

/// x / (1 + e^-x): `torch.nn.SiLU()`.
pub fn silu(x: &Tensor) -> Result<Tensor> {
    apply(x, Silu)
}

/// x tanh(ln(1 + e^x)) (Misra, 2019): `torch.nn.Mish()`. Unlike Candle's own, its gradient is
/// finite wherever x is.
pub fn mish(x: &Tensor) -> Result<Tensor> {
    apply(x, Mish)
}

/// 1 / (1 + e^-x): `torch.sigmoid`.
pub fn sigmoid(x: &Tensor) -> Result<Tensor> {
    apply(x, Sigmoid)
}

/// The hyperbolic tangent: `torch.tanh`.
pub fn tanh(x: &Tensor) -> Result<Tensor> {
    apply(x, Tanh)
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
        build(x.len(), |start, y: &mut [E]| {
            let x = &x[start..][..y.len()];
            vectorised(
                #[inline(always)]
                || {
                    for (y, x) in y.iter_mut().zip(x) {
                        *y = E::nearest(function.value(x.wide()));
                    }
                },
            );
        })
    }

    /// The incoming gradient times the slope, where the incoming gradient was.
    fn pull<E: Element>(&self, x: &[E], dy: &mut [E]) {
        let function = self.0;
        change_blocks(dy, |start, dy| {
            let x = &x[start..][..dy.len()];
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

    use super::super::simd::BLOCK;
    use super::super::testing::{check_gradients, on_threads, values};
    use super::*;

    type Op = fn(&Tensor) -> Result<Tensor>;
    type Exact = fn(f64) -> f64;

    fn logistic_f64(x: f64) -> f64 {
        1.0 / (1.0 + (-x).exp())
    }

    /// Each function, and the same in f64.
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
            let x = Tensor::from_vec(wide(n), n, &Device::Cpu).unwrap();
            for (_, op, _) in functions() {
                let all = on_threads(3, || op(&x)).unwrap().to_vec1::<f32>().unwrap();
                let alone = op(&x.narrow(0, n - 1, 1).unwrap()).unwrap().to_vec1::<f32>().unwrap();
                prop_assert_eq!(all.last(), alone.last());
            }
        }
    }
}
