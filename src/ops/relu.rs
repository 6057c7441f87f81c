//! Rectifier: max(x, 0).

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};
use rayon::prelude::*;

use super::storage::{output, read, slice, tensor};

/// Values per task.
const BLOCK: usize = 1 << 14;

/// max(x, 0) of any shape, f32. The gradient at 0 is 0, as in PyTorch (Candle's own gives 1).
///
/// # Errors
///
/// Not f32, or not on the CPU.
pub fn relu(x: &Tensor) -> Result<Tensor> {
    x.contiguous()?.apply_op1(Relu)
}

struct Relu;

impl CustomOp1 for Relu {
    fn name(&self) -> &'static str {
        "relu"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let mut y = slice(x, layout)?.to_vec();
        // Not `max`, which would turn NaN into 0.
        y.par_chunks_mut(BLOCK).for_each(|block| {
            for value in block {
                *value = if *value < 0.0 { 0.0 } else { *value };
            }
        });
        Ok(output(y, layout.shape().clone()))
    }

    fn bwd(&self, x: &Tensor, y: &Tensor, dy: &Tensor) -> Result<Option<Tensor>> {
        read([y, dy], |[y, dy]| {
            let mut dx = dy.to_vec();
            dx.par_chunks_mut(BLOCK).zip(y.par_chunks(BLOCK)).for_each(|(dx, y)| {
                dx.iter_mut().zip(y).for_each(|(g, y)| *g = if *y > 0.0 { *g } else { 0.0 });
            });
            Ok(Some(tensor(dx, x.shape())?))
        })
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::super::testing::check_gradients;
    use super::*;

    #[test]
    fn outputs_and_gradients_equal_the_slow_ones() {
        check_gradients(
            &[&[7, 5]],
            |t| relu(&t[0]),
            |v| v[0].iter().map(|v| v.max(0.0)).collect(),
            1e-6,
        );
    }

    #[test]
    fn the_gradient_at_zero_is_zero_and_nan_stays_visible() -> Result<()> {
        let x = Var::from_vec(vec![0.0f32, 1.0, f32::NAN], 3, &Device::Cpu)?;
        let y = relu(&x)?;
        assert!(y.to_vec1::<f32>()?[2].is_nan());
        let gradients = y.sum_all()?.backward()?;
        assert_eq!(gradients.get(&x).unwrap().to_vec1::<f32>()?[..2], [0.0, 1.0]);
        Ok(())
    }
}
