//! What lies between operations in half precision, against f32 on the CPU.

use candle_core::{DType, Result, Tensor, Var};
use ddprun::ops::{self, Activation, ConvNorm, LinearActivation, Weight, Window};
use ddprun::plan::Precision;

use crate::{Twin, conv, gpu, tolerance, values};

const HALVES: [(Precision, DType); 2] =
    [(Precision::Bf16, DType::BF16), (Precision::Fp16, DType::F16)];

/// x in half precision where that is a GPU's.
fn half(x: &Tensor, dtype: DType) -> Result<Tensor> {
    if x.device().is_cuda() { x.to_dtype(dtype) } else { Ok(x.clone()) }
}

/// A 3 x 3 convolution with a norm, of three weights.
fn layer(
    x: &Tensor,
    residual: Option<&Tensor>,
    weights: &[Weight],
    precision: Precision,
) -> Result<Tensor> {
    let [weight, gamma, beta]: &[Weight; 3] = weights.try_into().unwrap();
    let options = conv(1, 1, 1, precision);
    let (affine, activation) = ([gamma, beta], Activation::Identity);
    let layer = ConvNorm { weight, affine, options, activation, eps: 1e-5, group: None };
    Ok(ops::conv_batch_norm(x, residual, &layer)?.0)
}

/// An operation of these operands and weights, in a precision, between which values have a type.
type Op<'a> = &'a dyn Fn(&[Tensor], &[Weight], Precision, DType) -> Result<Tensor>;

/// Checks `op`, which is told the type of half precision, of images and of the weights of two
/// layers.
fn check(name: &str, op: Op<'_>) {
    for (precision, dtype) in HALVES {
        let (shape, kernel): (&[usize], &[usize]) = (&[4, 9, 9, 16], &[16, 16, 3, 3]);
        let twin = Twin {
            operands: &[shape, shape],
            weights: &[kernel, &[16], &[16], kernel, &[16], &[16]],
            tolerance: 4.0 * tolerance(precision),
        };
        twin.check(&format!("{name} {precision:?}"), &|x, w| op(x, w, precision, dtype));
    }
}

#[test]
fn gpu_half_precision_between_two_layers() {
    check("two layers, residual f32", &|x, w, precision, _| {
        let y = layer(&x[0], Some(&x[1]), &w[..3], precision)?;
        layer(&y, Some(&x[1]), &w[3..], precision)
    });
    check("two layers, residual half", &|x, w, precision, dtype| {
        let y = layer(&half(&x[0], dtype)?, None, &w[..3], precision)?;
        layer(&y, Some(&half(&x[1], dtype)?), &w[3..], precision)
    });
    // The first layer's result is the residual, too: gradients are added.
    check("a block of a chain", &|x, w, precision, _| {
        ops::chain(&x[0], |x| {
            let y = layer(x, None, &w[..3], precision)?;
            layer(&y, Some(&y), &w[3..], precision)
        })
    });
}

#[test]
fn gpu_half_precision_that_others_widen() {
    // Neither a shortcut nor a softmax takes half precision.
    check("a shortcut of a chain", &|x, w, precision, _| {
        ops::chain(&x[0], |x| {
            let y = layer(x, None, &w[..3], precision)?;
            layer(&y, Some(&ops::padded_shortcut(&y, 1, 16)?), &w[3..], precision)
        })
    });
    check("a shortcut in the graph", &|x, w, precision, _| {
        let y = layer(&x[0], None, &w[..3], precision)?;
        layer(&y, Some(&ops::padded_shortcut(&y, 1, 16)?), &w[3..], precision)
    });
    check("rows", &|x, w, precision, _| {
        ops::chain(&x[0], |x| ops::softmax(&layer(x, None, &w[..3], precision)?))
    });
}

#[test]
fn gpu_half_precision_of_sums_norms_and_pools() {
    let window = Window { stride: 2, padding: 1 };
    for (precision, dtype) in HALVES {
        let shape: &[usize] = &[3, 12, 11, 20];
        let twin =
            Twin { operands: &[shape, shape], weights: &[], tolerance: tolerance(precision) };
        let check = |name: &str, op: &dyn Fn(&Tensor, &Tensor) -> Result<Tensor>| {
            twin.check(&format!("{name} {dtype:?}"), &|x, _| {
                op(&half(&x[0], dtype)?, &half(&x[1], dtype)?)
            });
        };
        check("average_pool2d", &|x, _| ops::average_pool2d(x, 3, window));
        check("global_average_pool", &|x, _| ops::global_average_pool(x));
        check("silu", &|x, _| ops::silu(x));
        check("a sum", &|x, y| ops::add(x, y));
        check("a sum of f32 and half", &|x, y| ops::add(&ops::widen(x)?, y));
        let twin = Twin { weights: &[&[20], &[20]], tolerance: 2.0 * tolerance(precision), ..twin };
        twin.check(&format!("batch_norm {dtype:?}"), &|x, w| {
            let (x, residual) = (half(&x[0], dtype)?, half(&x[1], dtype)?);
            let affine = [&w[0], &w[1]];
            let (identity, eps) = (Activation::Identity, 1e-5);
            Ok(ops::batch_norm(&x, affine, Some(&residual), identity, eps)?.0)
        });
    }
}

/// Equal maxima are rounded alike, so the maxima of rounded values are compared.
#[test]
fn gpu_half_precision_of_maxima() {
    let Some(device) = gpu("maxima in half precision") else { return };
    let (shape, window) = ((3, 12, 11, 20), Window { stride: 2, padding: 1 });
    let x = Tensor::from_vec(values(1, 3 * 12 * 11 * 20), shape, &device).unwrap();
    for (_, dtype) in HALVES {
        let narrow = Var::from_tensor(&x.to_dtype(dtype).unwrap()).unwrap();
        let wide = Var::from_tensor(&narrow.to_dtype(DType::F32).unwrap()).unwrap();
        let run = |x: &Var| {
            let y = ops::max_pool2d(x, 3, window).unwrap();
            assert_eq!(y.dtype(), x.dtype());
            let gradients = y.sum_all().unwrap().backward().unwrap();
            let gradient = gradients.get(x).unwrap();
            assert_eq!(gradient.dtype(), x.dtype());
            [y.detach(), gradient.clone()].map(|t| crate::flat(&t.to_dtype(DType::F32).unwrap()))
        };
        assert_eq!(run(&narrow), run(&wide), "{dtype:?}");
    }
}

#[test]
fn gpu_half_precision_of_a_layer_and_of_what_widens_it() {
    let Some(device) = gpu("types of half precision") else { return };
    for (precision, dtype) in HALVES {
        let var = |stream: u64, shape: &[usize]| {
            Var::from_vec(values(stream, shape.iter().product()), shape, &device).unwrap()
        };
        let weights: Vec<Weight> = [(2, &[16, 16, 3, 3][..]), (3, &[16]), (4, &[16])]
            .map(|(stream, shape)| Weight::from(&var(stream, shape).as_detached_tensor()))
            .into();
        let x = var(1, &[4, 9, 9, 16]);
        let y = layer(&x, None, &weights, precision).unwrap();
        assert_eq!(y.dtype(), dtype);
        let y = Var::from_tensor(&y.detach()).unwrap();
        let wide = ops::padded_shortcut(&y, 1, 16).unwrap();
        assert_eq!(wide.dtype(), DType::F32);
        let gradients = wide.sum_all().unwrap().backward().unwrap();
        assert_eq!(gradients.get(&y).unwrap().dtype(), dtype);
        assert_eq!(ops::global_average_pool(&y).unwrap().dtype(), DType::F32);
    }
}

#[test]
fn gpu_half_precision_behind_an_activation_and_losses_that_refuse_it() {
    let Some(device) = gpu("half precision behind an activation") else { return };
    let tensor = |stream: u64, shape: &[usize]| {
        Tensor::from_vec(values(stream, shape.iter().product()), shape, &device).unwrap()
    };
    for (precision, dtype) in HALVES {
        // Outputs that are a multiple of 8, and others.
        for outputs in [16, 10] {
            let x = Var::from_tensor(&tensor(1, &[5, 12])).unwrap();
            let weight = Weight::from(&tensor(2, &[outputs, 12]));
            let bias = Weight::from(&tensor(3, &[outputs]));
            let linear = |activation| {
                ops::linear_activated(&x, &weight, Some(&bias), activation, precision).unwrap()
            };
            assert_eq!(linear(LinearActivation::Identity).dtype(), DType::F32);
            let y = linear(LinearActivation::Relu);
            assert_eq!(y.dtype(), dtype);
            let target = tensor(4, &[5, outputs]);
            assert!(ops::score_mse(&y, &target).is_err(), "{dtype:?} read as f32");
            let found = ops::score_mse(&ops::widen(&y).unwrap(), &target).unwrap();
            assert_eq!(found.len(), 5);
            let gradients = ops::mse(&y, &target).unwrap().backward().unwrap();
            assert_eq!(gradients.get(&x).unwrap().dtype(), DType::F32);
        }
    }
}
