//! A convolution whose result has the precision's own type.

use candle_core::{Result, Shape, Tensor};

use super::{Conv, ConvOptions, check_bias, conv2d};
use crate::Precision;
use crate::ops::chain;
use crate::ops::element::Numbers;
use crate::ops::precision::rounded;
use crate::ops::saved::Saved;
use crate::ops::storage::{read, read_numbers};
use crate::ops::weight::Weight;

/// [`conv2d`], but under bf16 on the CPU the result is a bf16 tensor, as under `torch.autocast`:
/// the same numbers in half of the memory. x may be one, too. Operations of [`crate::ops`] take it,
/// those of Candle may need [`crate::ops::widen()`].
pub fn autocast_conv2d(
    x: &Tensor,
    weight: &Weight,
    bias: Option<&Weight>,
    options: ConvOptions,
) -> Result<Tensor> {
    if !x.device().is_cpu() || options.precision != Precision::Bf16 {
        return conv2d(x, weight, bias, options);
    }
    let op = Conv::new_2d(x, weight, bias, options)?;
    let x = x.contiguous()?;
    let bias = check_bias(bias, op.geometry.co)?;
    let weight = weight.tensor();
    let y = read([weight, bias.unwrap_or(weight)], |[values, of_bias]| {
        read_numbers([&x], |[x]| Ok(op.half_values(x, values, bias.map(|_| of_bias))))
    })?;
    let shape = Shape::from(&*op.shape);
    let operands: Vec<&Tensor> = [&x, weight].into_iter().chain(bias).collect();
    chain::node(&operands, (y.storage(), shape), Box::new(op))
}

impl Conv {
    /// The values in bf16.
    fn half_values(&self, x: Numbers<'_>, weight: &[f32], bias: Option<&[f32]>) -> Saved {
        let x = self.algorithm.operand(x);
        let weight = self.algorithm.factor(weight);
        match bias {
            None => self.algorithm.forward_saved(&self.geometry, &x, &weight, |_| ()).0,
            Some(bias) => {
                let bias = rounded(bias, self.precision);
                self.algorithm.biased_saved(&self.geometry, &x, &weight, &bias)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use candle_core::{DType, Device, Var};
    use test_support::assert_refused;

    use super::*;
    use crate::Convolutions;
    use crate::ops::conv::{SlidingWindow, Window};
    use crate::ops::testing::{Collected, values};
    use crate::ops::weight::{GradientSink, Uses, WeightUse};
    use crate::ops::widen;

    type Convolution = fn(&Tensor, &Weight, Option<&Weight>, ConvOptions) -> Result<Tensor>;

    fn options(precision: Precision, window: Window, groups: usize) -> ConvOptions {
        let convolutions = Convolutions::Fast;
        ConvOptions { window: SlidingWindow::square(window), groups, precision, convolutions }
    }

    fn var(i: u64, shape: &[usize], dtype: DType) -> Var {
        let values = values("autocast", i, shape.iter().product());
        let values = rounded(&values, Precision::Bf16).into_owned();
        let values = Tensor::from_vec(values, shape, &Device::Cpu).unwrap();
        Var::from_tensor(&values.to_dtype(dtype).unwrap()).unwrap()
    }

    /// Results of sum(y r): y, and the gradients of x, weight and bias; x comes in as `held`.
    fn numbers(
        convolution: Convolution,
        [x, weight]: [[usize; 4]; 2],
        options: ConvOptions,
        has_bias: bool,
        held: DType,
    ) -> Vec<Vec<f32>> {
        let (x, channels) = (var(0, &x, held), weight[0]);
        let learnt = [var(1, &weight, DType::F32), var(2, &[channels], DType::F32)];
        let collected = Arc::new(Collected::default());
        let sink: Arc<dyn GradientSink> = collected.clone();
        let [weight, bias] =
            [0, 1].map(|i| Weight::learnt(&learnt[i], WeightUse::new(&sink, i, &Uses::default())));
        let y = convolution(&x, &weight, has_bias.then_some(&bias), options).unwrap();
        let r = var(3, y.dims(), DType::F32);
        let sum = widen(&y).unwrap().mul(&r).unwrap().sum_all().unwrap();
        let dx = sum.backward().unwrap().get(&x).unwrap().clone();
        assert_eq!(dx.dtype(), held);
        let learnt = (0..=usize::from(has_bias)).map(|i| collected.of(i).unwrap());
        let flat = |t: Tensor| t.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>();
        [y, dx].into_iter().chain(learnt).map(|t| flat(t).unwrap()).collect()
    }

    #[test]
    fn the_result_in_bf16_is_that_in_f32_and_so_are_gradients() {
        for (x, weight, stride, groups) in [
            ([2, 9, 7, 3], [8, 3, 2, 2], 1, 1),
            ([2, 9, 7, 20], [17, 20, 3, 3], 1, 1),
            ([40, 16, 16, 20], [17, 20, 1, 1], 1, 1),
            ([40, 16, 16, 3], [17, 3, 2, 2], 1, 1),
            ([40, 16, 16, 8], [6, 4, 3, 3], 1, 2),
            ([2, 9, 7, 20], [17, 20, 3, 3], 2, 1),
            ([2, 9, 7, 8], [6, 4, 3, 3], 1, 2),
            ([2, 9, 7, 16], [16, 1, 3, 3], 1, 16),
        ] {
            let options = options(Precision::Bf16, Window { stride, padding: 1 }, groups);
            for has_bias in [false, true] {
                let of = |convolution: Convolution, held| {
                    numbers(convolution, [x, weight], options, has_bias, held)
                };
                let wide = of(conv2d, DType::F32);
                assert_eq!(wide.len(), 3 + usize::from(has_bias));
                for held in [DType::F32, DType::BF16] {
                    assert!(of(autocast_conv2d, held) == wide, "{x:?} {weight:?} {has_bias}");
                }
            }
        }
    }

    #[test]
    fn only_bf16_changes_the_type_of_the_result() -> Result<()> {
        let x = var(0, &[1, 4, 4, 2], DType::F32);
        let weight = Weight::from(var(1, &[3, 2, 3, 3], DType::F32).as_tensor());
        for (precision, dtype) in [
            (Precision::Fp32, DType::F32),
            (Precision::Fp16, DType::F32),
            (Precision::Bf16, DType::BF16),
        ] {
            let options = options(precision, Window { stride: 1, padding: 0 }, 1);
            assert_eq!(autocast_conv2d(&x, &weight, None, options)?.dtype(), dtype);
            let of_two = Weight::from(var(2, &[2], DType::F32).as_tensor());
            assert_refused(
                autocast_conv2d(&x, &weight, Some(&of_two), options),
                "a bias of shape [2] for 3 channels",
            );
        }
        Ok(())
    }
}
