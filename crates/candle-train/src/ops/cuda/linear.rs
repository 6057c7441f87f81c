//! Fully connected layers: cuBLAS through Candle, with f32 sums, and one kernel for bias and
//! activation.

use candle_core::backend::BackendStorage;
use candle_core::{CudaStorage, DType, Layout, Result, Shape, Storage, Tensor, bail};

use super::address::{Address, Half, of_tensor};
use super::columns::column_sums;
use super::gpu::{Gpu, whole, wrap};
use super::pointwise::{Finish, Kind, finish, unfinish};
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
    /// x (n, inputs) and weight (outputs, inputs), f32 -> (n, outputs), f32, and what entered the
    /// activation.
    pub(in crate::ops) fn forward(
        &self,
        gpu: &Gpu,
        [x, weight]: [&Tensor; 2],
        bias: Option<Address>,
    ) -> Result<(CudaStorage, Option<CudaStorage>)> {
        let dtype = Half::of(self.precision);
        let (n, inputs, outputs) = (self.n, self.inputs, self.outputs);
        let (x, weight) = (x.storage_and_layout(), weight.storage_and_layout());
        let (Storage::Cuda(x_values), Storage::Cuda(weight_values)) = (&*x.0, &*weight.0) else {
            bail!("a linear layer over tensors of different devices")
        };
        let z = if dtype == DType::F32 {
            let rows = Layout::contiguous_with_offset((n, inputs), x.1.start_offset());
            let columns = transposed(outputs, inputs, weight.1.start_offset());
            x_values.matmul(weight_values, (1, n, outputs, inputs), &rows, &columns)?
        } else {
            let x = x_values.to_dtype(x.1, dtype)?;
            let weight = weight_values.to_dtype(weight.1, dtype)?;
            let rows = Layout::contiguous((n, inputs));
            let columns = transposed(outputs, inputs, 0);
            x.matmul(&weight, (1, n, outputs, inputs), &rows, &columns)?
        };
        let options = Finish { kind: self.kind, width: outputs, n: n * outputs, keeps: self.keeps };
        finish(gpu, &z, bias, options)
    }

    /// Gradients of operands that are wanted. `before` is what entered the activation, if it was
    /// kept.
    pub(in crate::ops) fn backward(
        &self,
        gpu: &Gpu,
        [x, weight, y, dy]: [&Tensor; 4],
        before: Option<Address>,
        wants_bias: bool,
    ) -> Result<LinearGradients> {
        let dtype = Half::of(self.precision);
        let (n, inputs, outputs) = (self.n, self.inputs, self.outputs);
        let incoming = [of_tensor(dy)?, of_tensor(y)?];
        let dz = unfinish(gpu, incoming, before, self.kind, dtype, n * outputs)?;
        let bias = wants_bias.then(|| column_sums(gpu, whole(&dz)?, n, outputs)).transpose()?;
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
fn transposed(rows: usize, columns: usize, offset: usize) -> Layout {
    Layout::new(Shape::from((columns, rows)), vec![1, columns], offset)
}
