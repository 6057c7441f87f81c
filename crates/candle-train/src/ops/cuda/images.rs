//! Images (n, h, w, c): orders of axes and pooling, f32.

use candle_core::{CudaStorage, DType, Result};

use super::address::Address;
use super::gpu::{Arg, Gpu, Grid, args, whole};

/// Most images of one launch.
const MAX_IMAGES: usize = 65_535;

/// Each of `images` matrices (rows, columns) transposed.
pub(in crate::ops) fn transpose(
    gpu: &Gpu,
    x: Address,
    images: usize,
    (rows, columns): (usize, usize),
) -> Result<CudaStorage> {
    let y = gpu.storage(DType::F32, images * rows * columns)?;
    let out = whole(&y)?;
    let stride = 4 * (rows * columns) as u64;
    for first in (0..images).step_by(MAX_IMAGES) {
        let skipped = first as u64 * stride;
        let grid = Grid::tiles(rows, columns, (images - first).min(MAX_IMAGES));
        let places = [x, out].map(|address| Arg::Address(address.at + skipped));
        let [from, to] = places;
        gpu.launch("transpose_images", grid, &[from, to, rows.into(), columns.into()])?;
    }
    Ok(y)
}

/// Where the windows of a pooling lie.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Pool {
    pub(in crate::ops) n: usize,
    pub(in crate::ops) h: usize,
    pub(in crate::ops) w: usize,
    pub(in crate::ops) c: usize,
    pub(in crate::ops) oh: usize,
    pub(in crate::ops) ow: usize,
    pub(in crate::ops) kernel: usize,
    pub(in crate::ops) stride: usize,
    pub(in crate::ops) padding: usize,
}

impl Pool {
    fn outputs(&self) -> usize {
        self.n * self.oh * self.ow * self.c
    }

    fn sizes(&self, n: usize) -> [Arg; 9] {
        let Self { h, w, c, oh, ow, kernel, stride, padding, .. } = *self;
        [h, w, c, oh, ow, kernel, stride, padding, n].map(Arg::from)
    }

    /// The largest value of each window, and its place in it.
    pub(in crate::ops) fn maxima(
        &self,
        gpu: &Gpu,
        x: Address,
    ) -> Result<(CudaStorage, CudaStorage)> {
        let n = self.outputs();
        let (y, chosen) = (gpu.storage(DType::F32, n)?, gpu.storage(DType::U32, n)?);
        let places = [x.into(), whole(&y)?.into(), whole(&chosen)?.into()];
        gpu.launch("max_pool", Grid::over(n), &[&places[..], &self.sizes(n)].concat())?;
        Ok((y, chosen))
    }

    /// The mean of each window.
    pub(in crate::ops) fn means(&self, gpu: &Gpu, x: Address) -> Result<CudaStorage> {
        let n = self.outputs();
        let y = gpu.storage(DType::F32, n)?;
        let places = [x.into(), whole(&y)?.into()];
        gpu.launch("average_pool", Grid::over(n), &[&places[..], &self.sizes(n)].concat())?;
        Ok(y)
    }

    /// The gradient of x: to the pixels that were `chosen`, or in equal shares.
    pub(in crate::ops) fn gradient(
        &self,
        gpu: &Gpu,
        dy: Address,
        chosen: Option<Address>,
    ) -> Result<CudaStorage> {
        let n = self.n * self.h * self.w * self.c;
        let dx = gpu.storage(DType::F32, n)?;
        let places = [dy.into(), chosen.into(), whole(&dx)?.into()];
        gpu.launch("pool_gradient", Grid::over(n), &[&places[..], &self.sizes(n)].concat())?;
        Ok(dx)
    }
}

/// The mean over the pixels of each image (pixels, c).
pub(in crate::ops) fn global_average(
    gpu: &Gpu,
    x: Address,
    images: usize,
    (pixels, c): (usize, usize),
) -> Result<CudaStorage> {
    let n = images * c;
    let y = gpu.storage(DType::F32, n)?;
    gpu.launch("global_average_pool", Grid::over(n), args![x, whole(&y)?, pixels, c, n])?;
    Ok(y)
}

/// Its gradient.
pub(in crate::ops) fn global_average_gradient(
    gpu: &Gpu,
    dy: Address,
    images: usize,
    (pixels, c): (usize, usize),
) -> Result<CudaStorage> {
    let n = images * pixels * c;
    let dx = gpu.storage(DType::F32, n)?;
    let arguments = args![dy, whole(&dx)?, pixels, c, n];
    gpu.launch("global_average_pool_gradient", Grid::over(n), arguments)?;
    Ok(dx)
}
