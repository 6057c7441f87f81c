//! Images (n, h, w, c): orders of axes, f32, and pooling, f32 or in half precision.

use candle_core::{CudaStorage, DType, Result};

use super::gpu::{Gpu, Grid};
use super::kernel_args::{Address, Arg, args, suffix, whole};

/// Most images of one launch.
const MAX_IMAGES: usize = 65_535;

/// Transposes each of `images` matrices (rows, columns).
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

/// Sizes and windows of a pooling.
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

    /// Enqueues the instance of `kernel` for a type of values, with a block for each of `rows` rows
    /// of pixels.
    fn launch(
        &self,
        gpu: &Gpu,
        kernel: &str,
        dtype: DType,
        rows: usize,
        places: &[Arg],
    ) -> Result<()> {
        let Self { h, w, c, oh, ow, kernel: size, stride, padding, .. } = *self;
        let kernel = format!("{kernel}_{}", suffix(dtype)?);
        let arguments = [places, args![h, w, c, oh, ow, size, stride, padding]].concat();
        gpu.launch(&kernel, Grid::rows(rows), &arguments)
    }

    /// The largest value of each window, in x's type, and its place in it.
    pub(in crate::ops) fn maxima(
        &self,
        gpu: &Gpu,
        x: Address,
    ) -> Result<(CudaStorage, CudaStorage)> {
        let n = self.outputs();
        let y = gpu.storage(x.dtype, n)?;
        let chosen = gpu.storage(DType::U32, n)?;
        let places = args![x, whole(&y)?, whole(&chosen)?];
        self.launch(gpu, "max_pool", x.dtype, self.n * self.oh, places)?;
        Ok((y, chosen))
    }

    /// The mean of each window, in x's type.
    pub(in crate::ops) fn means(&self, gpu: &Gpu, x: Address) -> Result<CudaStorage> {
        let y = gpu.storage(x.dtype, self.outputs())?;
        let places = args![x, whole(&y)?];
        self.launch(gpu, "average_pool", x.dtype, self.n * self.oh, places)?;
        Ok(y)
    }

    /// The gradient of x, in dy's type: to the pixels that were `chosen`, or in equal shares.
    pub(in crate::ops) fn gradient(
        &self,
        gpu: &Gpu,
        dy: Address,
        chosen: Option<Address>,
    ) -> Result<CudaStorage> {
        let dx = gpu.storage(dy.dtype, self.n * self.h * self.w * self.c)?;
        let places = args![dy, chosen, whole(&dx)?];
        self.launch(gpu, "pool_gradient", dy.dtype, self.n * self.h, places)?;
        Ok(dx)
    }
}

/// The mean over the pixels of each image (pixels, c), f32.
pub(in crate::ops) fn global_average(
    gpu: &Gpu,
    x: Address,
    images: usize,
    (pixels, c): (usize, usize),
) -> Result<CudaStorage> {
    let n = images * c;
    let y = gpu.storage(DType::F32, n)?;
    let kernel = format!("global_average_pool_{}", suffix(x.dtype)?);
    gpu.launch(&kernel, Grid::over(n), args![x, whole(&y)?, pixels, c, n])?;
    Ok(y)
}

/// Gradient of [`global_average`], as `dtype`, from dy, f32.
pub(in crate::ops) fn global_average_gradient(
    gpu: &Gpu,
    dy: Address,
    dtype: DType,
    images: usize,
    (pixels, c): (usize, usize),
) -> Result<CudaStorage> {
    let n = images * pixels * c;
    let dx = gpu.storage(dtype, n)?;
    let kernel = format!("global_average_pool_gradient_{}", suffix(dtype)?);
    gpu.launch(&kernel, Grid::over(n), args![dy, whole(&dx)?, pixels, c, n])?;
    Ok(dx)
}
