//! Convolutions on the GPU, by cuDNN or, for groups of few channels, by our kernels: operands are
//! cast to the precision's type, the weight's channels go last.

use candle_core::{CudaStorage, DType, Result};

use super::cudnn::{self, Direction, Problem};
use super::gpu::{Gpu, Grid};
use super::grouped;
use super::kernel_args::{Address, args, product_dtype, suffix, whole};
use super::pointwise::{Cast, Finish, Kind, cast, finish, widened};
use crate::ops::conv::Geometry;
use crate::{Convolutions, Precision};

/// A convolution in all three directions.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Conv<'a> {
    pub(in crate::ops) gpu: &'a Gpu,
    pub(in crate::ops) geometry: &'a Geometry,
    pub(in crate::ops) precision: Precision,
    pub(in crate::ops) convolutions: Convolutions,
}

impl Conv<'_> {
    pub(super) fn dtype(&self) -> DType {
        product_dtype(self.precision)
    }

    fn problem(&self) -> Problem {
        let g = self.geometry;
        let sizes = |sizes: [usize; 4]| sizes.map(|size| size as i32);
        Problem {
            dtype: self.dtype(),
            exact: self.convolutions == Convolutions::Direct,
            x: sizes([g.n, g.ci, g.h, g.w]),
            w: sizes([g.co, g.group_inputs(), g.kh, g.kw]),
            y: sizes([g.n, g.co, g.oh, g.ow]),
            padding: g.padding.map(|size| size as i32),
            stride: g.stride.map(|size| size as i32),
            dilation: g.dilation.map(|size| size as i32),
            groups: g.groups as i32,
        }
    }

    /// x (n, h, w, ci), f32 or the precision's type, and weight (co, ci / groups, kh, kw), f32 ->
    /// (n, oh, ow, co) in the precision's type.
    pub(in crate::ops) fn forward(&self, x: Address, weight: Address) -> Result<CudaStorage> {
        let g = self.geometry;
        let x = self.cast(x, g.n * g.h * g.w * g.ci)?;
        let weight = self.channels_last(weight)?;
        let y = self.gpu.storage(self.dtype(), g.pixels() * g.co)?;
        self.run(Direction::Forward, [x.address()?, weight.address()?], whole(&y)?)?;
        Ok(y)
    }

    /// dy (n, oh, ow, co) -> (n, h, w, ci), in the precision's type.
    pub(in crate::ops) fn backward_data(
        &self,
        dy: Address,
        weight: Address,
    ) -> Result<CudaStorage> {
        let g = self.geometry;
        let dy = self.cast(dy, g.pixels() * g.co)?;
        let weight = self.channels_last(weight)?;
        let n = g.n * g.h * g.w * g.ci;
        let dx = self.gpu.storage(self.dtype(), n)?;
        self.run(Direction::Data, [weight.address()?, dy.address()?], whole(&dx)?)?;
        Ok(dx)
    }

    /// x and dy -> (co, ci / groups, kh, kw), f32.
    pub(in crate::ops) fn backward_filter(&self, x: Address, dy: Address) -> Result<CudaStorage> {
        let g = self.geometry;
        let x = self.cast(x, g.n * g.h * g.w * g.ci)?;
        let dy = self.cast(dy, g.pixels() * g.co)?;
        let dw = self.gpu.storage(self.dtype(), g.weight_len())?;
        self.run(Direction::Filter, [x.address()?, dy.address()?], whole(&dw)?)?;
        if g.taps() == 1 {
            return widened(self.gpu, dw, g.weight_len());
        }
        let out = self.gpu.storage(DType::F32, g.weight_len())?;
        self.reorder("weight_from_channels_last", whole(&dw)?, whole(&out)?)?;
        Ok(out)
    }

    /// The gradient of the bias: (co), f32.
    pub(in crate::ops) fn bias_gradient(&self, dy: Address) -> Result<CudaStorage> {
        let g = self.geometry;
        let dy = self.cast(dy, g.pixels() * g.co)?;
        super::columns::column_sums(self.gpu, dy.address()?, g.pixels(), g.co)
    }

    /// The transposed convolution of x (n, oh, ow, co), which is this one's way back, plus a bias
    /// (ci) -> (n, h, w, ci), f32.
    pub(in crate::ops) fn transposed(
        &self,
        x: Address,
        weight: Address,
        bias: Address,
    ) -> Result<CudaStorage> {
        let g = self.geometry;
        let n = g.n * g.h * g.w * g.ci;
        let spread = widened(self.gpu, self.backward_data(x, weight)?, n)?;
        let width = g.ci;
        let stride = g.ci;
        let kind = Kind::Identity;
        let dtype = DType::F32;
        let options = Finish { kind, width, stride, n, keeps: false, dtype };
        Ok(finish(self.gpu, &spread, Some(bias), options)?.0)
    }

    /// Gradients of x, weight and bias of [`Conv::transposed`], f32, from that of its output.
    pub(in crate::ops) fn transposed_gradients(
        &self,
        x: Address,
        weight: Address,
        dy: Address,
    ) -> Result<[CudaStorage; 3]> {
        let g = self.geometry;
        let rows = g.n * g.h * g.w;
        let cast = self.cast(dy, rows * g.ci)?;
        let dy = cast.address()?;
        let db = super::columns::column_sums(self.gpu, dy, rows, g.ci)?;
        let dw = self.backward_filter(dy, x)?;
        let dx = widened(self.gpu, self.forward(dy, weight)?, g.pixels() * g.co)?;
        Ok([dx, dw, db])
    }

    fn run(&self, direction: Direction, operands: [Address; 2], out: Address) -> Result<()> {
        if grouped::is_ours(self.geometry) {
            return grouped::run(self.gpu, direction, self.geometry, operands, out);
        }
        let addresses = operands.map(|operand| operand.at);
        if cudnn::run(self.gpu, direction, self.problem(), addresses, out.at)? {
            return Ok(());
        }
        grouped::run(self.gpu, direction, self.geometry, operands, out)
    }

    fn cast(&self, values: Address, n: usize) -> Result<Cast> {
        cast(self.gpu, values, self.dtype(), n)
    }

    /// The weight in the precision's type and cuDNN's order, which one tap is in anyway; in memory
    /// of its own, which begins where cuDNN reads fastest.
    fn channels_last(&self, weight: Address) -> Result<Cast> {
        if self.geometry.taps() == 1 && self.dtype() != weight.dtype {
            return self.cast(weight, self.geometry.weight_len());
        }
        let out = self.gpu.storage(self.dtype(), self.geometry.weight_len())?;
        self.reorder("weight_to_channels_last", weight, whole(&out)?)?;
        Ok(Cast::Made(out))
    }

    fn reorder(&self, kernel: &str, from: Address, to: Address) -> Result<()> {
        let g = self.geometry;
        let n = self.geometry.weight_len();
        let kernel = format!("{kernel}_{}", suffix(self.dtype())?);
        self.gpu.launch(&kernel, Grid::over(n), args![from, to, g.group_inputs(), g.taps(), n])
    }
}
