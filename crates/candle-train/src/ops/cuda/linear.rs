//! Fully connected layers: cuBLAS through Candle, with f32 sums, and one kernel for bias and activation.

use candle_core::backend::BackendStorage;
use candle_core::{CudaStorage, DType, Layout, Result, Shape, Tensor};

use super::address::{Address, Half, of_tensor};
use super::columns::column_sums;
use super::gpu::{Gpu, whole, wrap};
use super::pointwise::{Kind, finish, unfinish};
use crate::Precision;

/// y = activation(x weight^T + bias) over `n` rows.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Linear {
    pub(in crate::ops) n: usize,
    pub(in crate::ops) inputs: usize,
    pub(in crate::ops) outputs: usize,
    pub(in crate::ops) kind: Kind,
    pub(in crate::ops) precision: Precision,
    /// Whether backward needs what entered the activation.
    pub(in crate::ops) keeps: bool,
}

/// Gradients, f32; those that are not wanted are absent.
pub(in crate::ops) struct LinearGradients {
    pub(in crate::ops) x: Option<Tensor>,
    pub(in crate::ops) weight: Option<Tensor>,
    pub(in crate::ops) bias: Option<Tensor>,
}

impl Linear {
    /// x (n, inputs) and weight (outputs, inputs), f32 -> (n, outputs), f32, and what entered the activation.
    pub(in crate::ops) fn forward(
        &self,
        x: (&CudaStorage, &Layout),
        weight: (&CudaStorage, &Layout),
        bias: Option<Address>,
    ) -> Result<(CudaStorage, Option<CudaStorage>)> {
        let (gpu, dtype) = (Gpu::of(x.0), Half::of(self.precision));
        let (n, inputs, outputs) = (self.n, self.inputs, self.outputs);
        let z = if dtype == DType::F32 {
            let rows = Layout::contiguous_with_offset((n, inputs), x.1.start_offset());
            let columns = transposed((outputs, inputs), weight.1.start_offset());
            x.0.matmul(weight.0, (1, n, outputs, inputs), &rows, &columns)?
        } else {
            let half = |(storage, layout): (&CudaStorage, &Layout)| storage.to_dtype(layout, dtype);
            let (x, weight) = (half(x)?, half(weight)?);
            let rows = Layout::contiguous((n, inputs));
            let columns = transposed((outputs, inputs), 0);
            x.matmul(&weight, (1, n, outputs, inputs), &rows, &columns)?
        };
        finish(&gpu, &z, bias, self.kind, (outputs, n * outputs), self.keeps)
    }

    /// Gradients of operands that are wanted. `before` is what entered the activation, if it was kept.
    pub(in crate::ops) fn backward(
        &self,
        [x, weight, y, dy]: [&Tensor; 4],
        before: Option<Address>,
        wants_bias: bool,
    ) -> Result<LinearGradients> {
        let (gpu, dtype) = (Gpu::of_tensor(dy)?, Half::of(self.precision));
        let (n, inputs, outputs) = (self.n, self.inputs, self.outputs);
        let dy = dy.contiguous()?;
        let incoming = [of_tensor(&dy)?, of_tensor(y)?];
        let dz = unfinish(&gpu, incoming, before, self.kind, dtype, n * outputs)?;
        let bias = wants_bias.then(|| column_sums(&gpu, whole(&dz)?, n, outputs)).transpose()?;
        let dz = wrap(dz, (n, outputs));
        let half = |t: &Tensor, shape: (usize, usize)| t.detach().reshape(shape)?.to_dtype(dtype);
        let of_weight = if weight.track_op() {
            Some(dz.t()?.matmul(&half(x, (n, inputs))?)?.to_dtype(DType::F32)?)
        } else {
            None
        };
        let of_x = if x.track_op() {
            let gradient = dz.matmul(&half(weight, (outputs, inputs))?)?;
            Some(gradient.to_dtype(DType::F32)?.reshape(x.shape())?)
        } else {
            None
        };
        let bias = bias.map(|bias| wrap(bias, outputs));
        Ok(LinearGradients { x: of_x, weight: of_weight, bias })
    }
}

/// The transpose of contiguous (rows, columns) at `offset`.
fn transposed((rows, columns): (usize, usize), offset: usize) -> Layout {
    Layout::new(Shape::from((columns, rows)), vec![1, columns], offset)
}
