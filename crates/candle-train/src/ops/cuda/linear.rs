//! Fully connected layers: products by cuBLAS with f32 sums, and one kernel for bias and
//! activation.

use candle_core::{CudaStorage, DType, Result, Tensor};

use super::columns::column_sums;
use super::gpu::{Gpu, Grid, wrap};
use super::kernel_args::{Address, args, of_tensor, product_dtype, suffix, whole};
use super::pointwise::{Cast, Finish, Kind, Unfinish, cast, finish, unfinish};
use super::product::{Rows, product};
use crate::Precision;

/// Rows of 16-bit numbers that begin at multiples of 16 bytes: otherwise cuBLAS takes kernels for
/// any address, which need four times as long.
const ALIGNED: usize = 8;

/// y = activation(x weight^T + bias) over `n` rows.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Linear {
    pub(in crate::ops) n: usize,
    pub(in crate::ops) inputs: usize,
    pub(in crate::ops) outputs: usize,
    pub(in crate::ops) kind: Kind,
    pub(in crate::ops) precision: Precision,
    /// True if backward needs the input of the activation.
    pub(in crate::ops) keeps: bool,
}

/// Gradients, that of x in its type and those of weights f32; those that are not wanted are absent.
pub(in crate::ops) struct LinearGradients {
    pub(in crate::ops) x: Option<Tensor>,
    pub(in crate::ops) weight: Option<Tensor>,
    pub(in crate::ops) bias: Option<Tensor>,
}

impl Linear {
    /// x (n, inputs), f32 or the precision's type, and weight (outputs, inputs), f32 -> (n,
    /// outputs), f32, or behind an activation the precision's type; and what entered the
    /// activation.
    pub(in crate::ops) fn forward(
        &self,
        gpu: &Gpu,
        [x, weight]: [&Tensor; 2],
        bias: Option<Address>,
    ) -> Result<(CudaStorage, Option<CudaStorage>)> {
        let n = self.n;
        let inputs = self.inputs;
        let outputs = self.outputs;
        let x = cast(gpu, of_tensor(x)?, self.dtype(), n * inputs)?;
        let x = Rows { values: x.address()?, stride: inputs };
        let weight = self.padded_weight(gpu, of_tensor(weight)?)?;
        let weight = Rows { values: weight.address()?, stride: inputs };
        let multiply = |z: &CudaStorage, width: usize| {
            let z = Rows { values: whole(z)?, stride: width };
            product(gpu, [x.plain(), weight.transposed()], z, [n, width, inputs])
        };
        if self.is_plain() && bias.is_none() {
            let y = gpu.storage(DType::F32, n * outputs)?;
            multiply(&y, outputs)?;
            return Ok((y, None));
        }
        let z = gpu.storage(self.dtype(), n * self.width())?;
        multiply(&z, self.width())?;
        let options = Finish {
            kind: self.kind,
            width: outputs,
            stride: self.width(),
            n: n * outputs,
            keeps: self.keeps,
            dtype: if self.kind == Kind::Identity { DType::F32 } else { self.dtype() },
        };
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
        let n = self.n;
        let inputs = self.inputs;
        let outputs = self.outputs;
        let width = self.width();
        let dz = self.incoming(gpu, [of_tensor(dy)?, of_tensor(y)?], before)?;
        let dz = dz.address()?;
        let bias = wants_bias.then(|| column_sums(gpu, dz, n, width)).transpose()?;
        let bias = bias.map(|bias| wrap(bias, width).narrow(0, 0, outputs)).transpose()?;
        let dz = Rows { values: dz, stride: width };
        let of_weight = if weight.track_op() {
            let x = cast(gpu, of_tensor(x)?, self.dtype(), n * inputs)?;
            let x = Rows { values: x.address()?, stride: inputs };
            let gradient = gpu.storage(DType::F32, outputs * inputs)?;
            let out = Rows { values: whole(&gradient)?, stride: inputs };
            product(gpu, [dz.transposed(), x.plain()], out, [outputs, inputs, n])?;
            Some(wrap(gradient, (outputs, inputs)))
        } else {
            None
        };
        let of_x = if x.track_op() {
            let weight = self.padded_weight(gpu, of_tensor(weight)?)?;
            let weight = Rows { values: weight.address()?, stride: inputs };
            let gradient = gpu.storage(x.dtype(), n * inputs)?;
            let out = Rows { values: whole(&gradient)?, stride: inputs };
            product(gpu, [dz.plain(), weight.plain()], out, [n, inputs, width])?;
            Some(wrap(gradient, x.shape()))
        } else {
            None
        };
        Ok(LinearGradients { x: of_x, weight: of_weight, bias })
    }

    fn dtype(&self) -> DType {
        product_dtype(self.precision)
    }

    /// Columns of the product in memory: more than there are outputs where those are no multiple of
    /// [`ALIGNED`], as the 50257 words of GPT-2.
    fn width(&self) -> usize {
        match self.dtype() {
            DType::F32 => self.outputs,
            _ => self.outputs.next_multiple_of(ALIGNED),
        }
    }

    /// True if the product is the result, before a bias.
    fn is_plain(&self) -> bool {
        self.kind == Kind::Identity && self.width() == self.outputs
    }

    /// The gradient (n, width) of what entered the activation, in the precision's type.
    fn incoming(&self, gpu: &Gpu, [dy, y]: [Address; 2], before: Option<Address>) -> Result<Cast> {
        let n = self.n * self.width();
        if self.is_plain() {
            return cast(gpu, dy, self.dtype(), n);
        }
        let width = self.outputs;
        let stride = self.width();
        let options = Unfinish { kind: self.kind, dtype: self.dtype(), width, stride, n };
        let dz = unfinish(gpu, [dy, y], before, options)?;
        Ok(Cast::Made(dz))
    }

    /// The weight (width, inputs) in the precision's type, with rows of zeros at its end.
    fn padded_weight(&self, gpu: &Gpu, weight: Address) -> Result<Cast> {
        let n = self.outputs * self.inputs;
        let all = self.width() * self.inputs;
        if n == all {
            return cast(gpu, weight, self.dtype(), n);
        }
        let out = gpu.storage(self.dtype(), all)?;
        let kernel = format!("narrow_padded_{}", suffix(self.dtype())?);
        gpu.launch(&kernel, Grid::over(all.div_ceil(4)), args![weight, whole(&out)?, n, all])?;
        Ok(Cast::Made(out))
    }
}
