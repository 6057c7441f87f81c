//! Positions in time: rotary embeddings, moving averages, the loss over time and frequencies.

use std::cell::RefCell;
use std::collections::HashMap;

use candle_core::cuda_backend::DeviceId;
use candle_core::{CudaStorage, DType, Result, Shape, Tensor};

use super::gpu::{Gpu, Grid};
use super::kernel_args::{Address, args, of_tensor, whole};
use super::losses::{BLOCK, regression_sums};

/// Name of a table of constants, and the numbers that it is made of.
type TableKey = (&'static str, Vec<u64>);

/// The table of this name and these numbers, which an operation reads in each pass: made once for each
/// GPU of this thread, and kept in its memory.
pub(in crate::ops) fn table(
    gpu: &Gpu,
    key: TableKey,
    shape: impl Into<Shape>,
    make: impl FnOnce() -> Vec<f32>,
) -> Result<Tensor> {
    thread_local! {
        static TABLES: RefCell<HashMap<(DeviceId, TableKey), Tensor>> = RefCell::default();
    }
    TABLES.with_borrow_mut(|tables| {
        let key = (gpu.cuda().id(), key);
        if let Some(table) = tables.get(&key) {
            return Ok(table.clone());
        }
        let table = Tensor::from_vec(make(), shape, &gpu.device())?;
        tables.insert(key, table.clone());
        Ok(table)
    })
}

/// Heads of tokens and the angles by which their features are turned.
pub(in crate::ops) struct Rotation<'a> {
    /// Positions, width, features of a head.
    pub(in crate::ops) sizes: [usize; 3],
    /// (2, t, d / 2): cosines, then sines.
    pub(in crate::ops) angles: &'a Tensor,
    /// 1, or -1 for the way back.
    pub(in crate::ops) sign: f32,
}

impl Rotation<'_> {
    /// Turns `n` features, f32; `x` and `y` may be the same place.
    pub(in crate::ops) fn run(&self, gpu: &Gpu, [x, y]: [Address; 2], n: usize) -> Result<()> {
        let [t, width, d] = self.sizes;
        let angles = of_tensor(self.angles)?;
        let pairs = n / 2;
        let arguments = args![x, y, angles, self.sign, t, width, d, pairs];
        gpu.launch("rotary", Grid::over(pairs), arguments)
    }

    /// [`Rotation::run`] into memory of its own.
    pub(in crate::ops) fn apply(&self, gpu: &Gpu, x: Address, n: usize) -> Result<CudaStorage> {
        let y = gpu.storage(DType::F32, n)?;
        self.run(gpu, [x, whole(&y)?], n)?;
        Ok(y)
    }
}

/// The moving averages of the `n` values of rows of `c`.
pub(in crate::ops) fn moving_average(
    gpu: &Gpu,
    x: Address,
    window: usize,
    centred: bool,
    (c, n): (usize, usize),
) -> Result<CudaStorage> {
    let y = gpu.storage(DType::F32, n)?;
    let arguments = args![x, whole(&y)?, window, centred, c, n];
    gpu.launch("moving_average", Grid::over(n), arguments)?;
    Ok(y)
}

/// Forecasts (samples, steps, series) against the actual values, over time and in frequencies.
pub(in crate::ops) struct Spectra<'a> {
    pub(in crate::ops) sizes: [usize; 3],
    /// (steps, 2 frequencies): cosines, then negative sines.
    pub(in crate::ops) basis: &'a Tensor,
    /// Weight of one difference and of one coefficient.
    pub(in crate::ops) weights: (f64, f64),
}

impl Spectra<'_> {
    fn elements(&self) -> usize {
        self.sizes.iter().product()
    }

    fn frequencies(&self) -> usize {
        self.sizes[1] / 2 + 1
    }

    fn coefficients(&self) -> usize {
        self.sizes[0] * self.sizes[2] * self.frequencies()
    }

    /// (samples series, 2 frequencies)
    fn spectrum(&self, gpu: &Gpu, [p, t]: [Address; 2]) -> Result<Tensor> {
        let ([samples, steps, series], n) = (self.sizes, self.elements());
        let rows = gpu.tensor(DType::F32, (samples * series, steps))?;
        let arguments = args![p, t, of_tensor(&rows)?, steps, series, n];
        gpu.launch("series_differences", Grid::over(n), arguments)?;
        rows.matmul(self.basis)
    }

    /// The loss, a scalar.
    pub(in crate::ops) fn loss(&self, gpu: &Gpu, operands: [Address; 2]) -> Result<CudaStorage> {
        let n = self.elements();
        let coefficients = self.coefficients();
        let spectrum = self.spectrum(gpu, operands)?;
        let over_time = regression_sums(gpu, operands, true, BLOCK, n)?;
        let blocks = coefficients.div_ceil(BLOCK);
        let lengths = gpu.scratch(8 * blocks)?;
        let spectrum_at = of_tensor(&spectrum)?.into();
        let arguments = [
            spectrum_at,
            lengths.at(),
            self.frequencies().into(),
            BLOCK.into(),
            coefficients.into(),
        ];
        gpu.launch("spectrum_sums", Grid::rows(blocks), &arguments)?;
        let loss = gpu.storage(DType::F32, 1)?;
        let (of_time, of_frequency) = self.weights;
        let arguments = [
            over_time.at(),
            lengths.at(),
            whole(&loss)?.into(),
            of_time.into(),
            of_frequency.into(),
            n.div_ceil(BLOCK).into(),
            blocks.into(),
        ];
        gpu.launch("weighted_total", Grid::rows(1), &arguments)?;
        Ok(loss)
    }

    /// The gradient of the forecasts, given that of the loss.
    pub(in crate::ops) fn gradient(
        &self,
        gpu: &Gpu,
        [p, t, dy]: [Address; 3],
    ) -> Result<CudaStorage> {
        let ([_, steps, series], n) = (self.sizes, self.elements());
        let (of_time, of_frequency) = self.weights;
        let slopes = self.spectrum(gpu, [p, t])?;
        let coefficients = self.coefficients();
        let arguments =
            args![of_tensor(&slopes)?, dy, of_frequency, self.frequencies(), coefficients];
        gpu.launch("spectrum_slopes", Grid::over(coefficients), arguments)?;
        let back = slopes.matmul(&self.basis.t()?)?;
        let gradient = gpu.storage(DType::F32, n)?;
        let arguments =
            args![p, t, of_tensor(&back)?, dy, whole(&gradient)?, of_time, steps, series, n];
        gpu.launch("series_gradient", Grid::over(n), arguments)?;
        Ok(gradient)
    }
}
