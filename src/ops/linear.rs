//! Fully connected layer: y = x weight^T + bias.

use candle_core::{CpuStorage, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor, bail};
use rayon::prelude::*;

use super::bias::column_sums;
use super::gemm::{Matrix, Sums, Write, multiply};
use super::precision::{round, rounded};
use super::storage::{output, read, slice, tensor};
use crate::plan::Precision;

/// Output rows per matrix product.
const ROWS: usize = 64;

/// As `torch.nn.functional.linear`: x (n, in), weight (out, in), bias (out) -> (n, out), f32.
///
/// Under a half precision, operands, result and gradients are rounded to it.
///
/// # Errors
///
/// Shapes that do not fit.
pub fn linear(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    precision: Precision,
) -> Result<Tensor> {
    let ((n, inputs), (outputs, weight_inputs)) = (x.dims2()?, weight.dims2()?);
    if inputs != weight_inputs {
        bail!("a linear layer over {weight_inputs} features was given {inputs}");
    }
    let op = Linear { n, inputs, outputs, precision };
    let (x, weight) = (x.contiguous()?, weight.contiguous()?);
    match bias {
        None => x.apply_op2(&weight, op),
        Some(bias) if bias.dims() == [outputs] => x.apply_op3(&weight, &bias.contiguous()?, op),
        Some(bias) => bail!("a bias of shape {:?} for {outputs} outputs", bias.dims()),
    }
}

struct Linear {
    n: usize,
    inputs: usize,
    outputs: usize,
    precision: Precision,
}

impl Linear {
    fn forward(&self, x: &[f32], weight: &[f32], bias: Option<&[f32]>) -> Vec<f32> {
        let (x, weight) = (rounded(x, self.precision), rounded(weight, self.precision));
        let mut y = vec![0.0; self.n * self.outputs];
        if let Some(bias) = bias {
            let bias = rounded(bias, self.precision);
            y.chunks_exact_mut(self.outputs.max(1)).for_each(|row| row.copy_from_slice(&bias));
        }
        let x = Matrix::new(&x, self.n, self.inputs);
        let weight = Matrix::new(&weight, self.outputs, self.inputs).transposed();
        multiply_rows(&mut y, x, weight, self.outputs);
        round(&mut y, self.precision);
        y
    }

    fn backward(&self, x: &Tensor, weight: &Tensor, dy: &Tensor) -> Result<Gradients> {
        read([x, weight, dy], |[x_values, weight_values, dy]| {
            let dy = rounded(dy, self.precision);
            let dy_matrix = Matrix::new(&dy, self.n, self.outputs);
            let dx = if x.track_op() {
                let weight_values = rounded(weight_values, self.precision);
                let weight = Matrix::new(&weight_values, self.outputs, self.inputs);
                Some(self.gradient(x, dy_matrix, weight)?)
            } else {
                None
            };
            let dw = if weight.track_op() {
                let x_values = rounded(x_values, self.precision);
                let x = Matrix::new(&x_values, self.n, self.inputs);
                Some(self.gradient(weight, dy_matrix.transposed(), x)?)
            } else {
                None
            };
            Ok(Gradients { dx, dw, db: self.bias_gradient(&dy) })
        })
    }

    /// a b, with the shape of `like`, (rows, inputs).
    fn gradient(&self, like: &Tensor, a: Matrix<'_>, b: Matrix<'_>) -> Result<Tensor> {
        let mut gradient = vec![0.0; like.elem_count()];
        multiply_rows(&mut gradient, a, b, self.inputs);
        round(&mut gradient, self.precision);
        tensor(gradient, like.shape())
    }

    fn bias_gradient(&self, dy: &[f32]) -> Vec<f32> {
        let mut db = column_sums(dy, self.outputs);
        round(&mut db, self.precision);
        db
    }
}

struct Gradients {
    dx: Option<Tensor>,
    dw: Option<Tensor>,
    db: Vec<f32>,
}

/// out += a b, a fixed number of rows at a time.
fn multiply_rows(out: &mut [f32], a: Matrix<'_>, b: Matrix<'_>, cols: usize) {
    out.par_chunks_mut((ROWS * cols).max(1)).enumerate().for_each(|(block, out)| {
        let rows = a.row_block(block * ROWS, out.len() / cols);
        multiply(out, rows, b, Write::Add, Sums::Long);
    });
}

impl CustomOp2 for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let y = self.forward(slice(x, x_layout)?, slice(weight, weight_layout)?, None);
        Ok(output(y, (self.n, self.outputs)))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _y: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let gradients = self.backward(x, weight, dy)?;
        Ok((gradients.dx, gradients.dw))
    }
}

impl CustomOp3 for Linear {
    fn name(&self) -> &'static str {
        "linear-bias"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
        bias: &CpuStorage,
        bias_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let bias = slice(bias, bias_layout)?;
        let y = self.forward(slice(x, x_layout)?, slice(weight, weight_layout)?, Some(bias));
        Ok(output(y, (self.n, self.outputs)))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        _y: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let gradients = self.backward(x, weight, dy)?;
        let db = if bias.track_op() { Some(tensor(gradients.db, self.outputs)?) } else { None };
        Ok((gradients.dx, gradients.dw, db))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::check_gradients;
    use super::*;

    fn slow(x: &[f64], w: &[f64], b: Option<&Vec<f64>>, inputs: usize, outputs: usize) -> Vec<f64> {
        let n = x.len() / inputs;
        (0..n * outputs)
            .map(|i| {
                let (row, out) = (i / outputs, i % outputs);
                let dot: f64 = (0..inputs).map(|j| x[row * inputs + j] * w[out * inputs + j]).sum();
                dot + b.map_or(0.0, |b| b[out])
            })
            .collect()
    }

    #[test]
    fn outputs_and_gradients_equal_the_slow_ones() {
        for (n, inputs, outputs) in [(1, 1, 1), (1, 7, 3), (5, 2, 11), (67, 3, 2), (2, 3, 131)] {
            check_gradients(
                &[&[n, inputs], &[outputs, inputs], &[outputs]],
                |t| linear(&t[0], &t[1], Some(&t[2]), Precision::Fp32),
                |v| slow(&v[0], &v[1], Some(&v[2]), inputs, outputs),
                1e-5,
            );
            check_gradients(
                &[&[n, inputs], &[outputs, inputs]],
                |t| linear(&t[0], &t[1], None, Precision::Fp32),
                |v| slow(&v[0], &v[1], None, inputs, outputs),
                1e-5,
            );
        }
    }

    #[test]
    fn under_bf16_every_result_is_a_bf16_number() -> Result<()> {
        use super::super::testing::values;
        let x = tensor(values("x", 0, 15), (3, 5))?;
        let w = tensor(values("w", 0, 10), (2, 5))?;
        let y = linear(&x, &w, None, Precision::Bf16)?.flatten_all()?.to_vec1::<f32>()?;
        let exact = linear(&x, &w, None, Precision::Fp32)?.flatten_all()?.to_vec1::<f32>()?;
        assert!(y.iter().all(|v| v.to_bits().trailing_zeros() >= 16));
        assert!(y.iter().zip(&exact).all(|(a, b)| (a - b).abs() < 0.03));
        assert_ne!(y, exact);
        Ok(())
    }
}
