//! Metrics of numbers: `val/mae`, `val/mse`, `val/rmse`, `val/r2`, and errors in the units of the
//! data, `val/mae_unscaled`, `val/rmse_unscaled`. The last three are computed from sums for each
//! column or series of a target.

use candle_core::{Device, Result, Tensor, bail};

use crate::metric::{Metric, MetricState, needs_numbers, needs_scaled};
use crate::ops::{score_mae, score_mse};
use crate::plan::{MetricContext, Mode};

/// [`Metric::state_name`] of the metrics computed from [`Errors`].
pub const ERRORS_STATE: &str = "errors";

/// Sums for each column of a target.
const SUMS: usize = 4;

/// Sums over the samples (and time steps) of one column, or series, of a target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Errors {
    n: f64,
    /// Sum of squared errors.
    squared: f64,
    /// Sum of the targets.
    sum: f64,
    /// Sum of the squared targets.
    squares: f64,
    /// Sum of absolute errors.
    absolute: f64,
}

impl Errors {
    /// Mean absolute error.
    pub fn mae(&self) -> f64 {
        self.absolute / self.n
    }

    /// Mean squared error.
    pub fn mse(&self) -> f64 {
        self.squared / self.n
    }

    /// Share of the variance that is explained.
    pub fn r2(&self) -> f64 {
        let Self { n, squared, sum, squares, .. } = *self;
        let spread = squares - sum * sum / n;
        // Rounding leaves a constant target with a tiny spread.
        if spread > squares * 1e-12 { 1.0 - squared / spread } else { f64::from(squared == 0.0) }
    }
}

/// A metric computed from [`Errors`].
#[derive(Debug)]
pub struct ErrorScore {
    name: &'static str,
    mode: Mode,
    /// Reason why it is undefined; `None` = it is defined.
    why_not: fn(&MetricContext) -> Option<String>,
    /// Value from the sums of all batches and the scales that the columns of a target were divided
    /// by; no scales = all 1.
    value: fn(&MetricState, &[f64]) -> f64,
}

impl Metric for ErrorScore {
    fn name(&self) -> &'static str {
        self.name
    }

    fn mode(&self) -> Mode {
        self.mode
    }

    fn why_not(&self, context: &MetricContext) -> Option<String> {
        (self.why_not)(context)
    }

    fn is_usual(&self) -> bool {
        false
    }

    fn state_name(&self) -> &'static str {
        ERRORS_STATE
    }

    fn measure(&self, outputs: &Tensor, targets: &Tensor) -> Result<MetricState> {
        measure(outputs, targets)
    }

    fn value(&self, all: &MetricState) -> f64 {
        (self.value)(all, &[])
    }

    fn value_unscaled(&self, all: &MetricState, scales: &[f64]) -> f64 {
        (self.value)(all, scales)
    }
}

/// The sums of a batch.
pub(super) fn measure(outputs: &Tensor, targets: &Tensor) -> Result<MetricState> {
    if outputs.dims() != targets.dims() || targets.rank() < 2 {
        bail!("predictions {:?} for targets {:?}", outputs.dims(), targets.dims());
    }
    let rows = |tensor: &Tensor| {
        let tensor = tensor.to_device(&Device::Cpu)?;
        tensor.flatten_to(tensor.rank() - 2)?.to_vec2::<f32>()
    };
    let outputs = rows(outputs)?;
    let targets = rows(targets)?;
    let mut sums = vec![0.0; 1 + SUMS * targets.first().map_or(0, Vec::len)];
    sums[0] = targets.len() as f64;
    for (output, target) in outputs.iter().zip(&targets) {
        let (sums, _) = sums[1..].as_chunks_mut::<SUMS>();
        for (sums, (y, t)) in sums.iter_mut().zip(output.iter().zip(target)) {
            let y = f64::from(*y);
            let t = f64::from(*t);
            let more = [(y - t) * (y - t), t, t * t, (y - t).abs()];
            sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
        }
    }
    Ok(MetricState::Sums(sums))
}

/// Errors of each column of a target; empty for an empty state.
pub fn of_targets(all: &MetricState) -> Vec<Errors> {
    let Some((&n, sums)) = all.sums().split_first() else { return Vec::new() };
    let (targets, _) = sums.as_chunks::<SUMS>();
    let errors = |&[squared, sum, squares, absolute]: &[f64; SUMS]| Errors {
        n,
        squared,
        sum,
        squares,
        absolute,
    };
    targets.iter().map(errors).collect()
}

/// Mean of `value(errors, scale)` over the columns of a target; NaN without columns.
fn mean(all: &MetricState, scales: &[f64], value: fn(&Errors, f64) -> f64) -> f64 {
    let targets = of_targets(all);
    let scale = |at: usize| scales.get(at).copied().unwrap_or(1.0);
    let values = targets.iter().enumerate().map(|(at, errors)| value(errors, scale(at)));
    values.sum::<f64>() / targets.len() as f64
}

/// Share of the variance of the targets that is explained: the mean over the columns (or series,
/// over samples and time steps), as scikit-learn's `r2_score`. It does not depend on the unit.
pub const R2: ErrorScore = ErrorScore {
    name: "r2",
    mode: Mode::Max,
    why_not: needs_numbers,
    value: |all, _| mean(all, &[], |errors, _| errors.r2()),
};

/// Mean absolute error, over samples and each sample's numbers.
#[derive(Debug)]
pub struct Mae;

impl Metric for Mae {
    fn name(&self) -> &'static str {
        "mae"
    }

    fn mode(&self) -> Mode {
        Mode::Min
    }

    fn why_not(&self, context: &MetricContext) -> Option<String> {
        needs_numbers(context)
    }

    fn measure(&self, outputs: &Tensor, targets: &Tensor) -> Result<MetricState> {
        Ok(MetricState::of_samples(&score_mae(outputs, targets)?))
    }
}

/// Mean absolute error of standardised numbers in the units of the data.
pub const MAE_UNSCALED: ErrorScore = ErrorScore {
    name: "mae_unscaled",
    mode: Mode::Min,
    why_not: needs_scaled,
    value: |all, scales| mean(all, scales, |errors, scale| scale * errors.mae()),
};

/// Mean squared error, over samples and each sample's numbers.
#[derive(Debug)]
pub struct Mse;

impl Metric for Mse {
    fn name(&self) -> &'static str {
        "mse"
    }

    fn mode(&self) -> Mode {
        Mode::Min
    }

    fn why_not(&self, context: &MetricContext) -> Option<String> {
        needs_numbers(context)
    }

    fn measure(&self, outputs: &Tensor, targets: &Tensor) -> Result<MetricState> {
        Ok(MetricState::of_samples(&score_mse(outputs, targets)?))
    }
}

/// Root of the mean squared error, in the unit of the targets.
#[derive(Debug)]
pub struct Rmse;

impl Metric for Rmse {
    fn name(&self) -> &'static str {
        "rmse"
    }

    fn mode(&self) -> Mode {
        Mode::Min
    }

    fn why_not(&self, context: &MetricContext) -> Option<String> {
        needs_numbers(context)
    }

    fn is_usual(&self) -> bool {
        false
    }

    fn state_name(&self) -> &'static str {
        Mse.state_name()
    }

    fn measure(&self, outputs: &Tensor, targets: &Tensor) -> Result<MetricState> {
        Mse.measure(outputs, targets)
    }

    fn value(&self, all: &MetricState) -> f64 {
        all.mean().sqrt()
    }
}

/// Root of the mean squared error of standardised numbers in the units of the data.
pub const RMSE_UNSCALED: ErrorScore = ErrorScore {
    name: "rmse_unscaled",
    mode: Mode::Min,
    why_not: needs_scaled,
    value: |all, scales| mean(all, scales, |errors, scale| scale * scale * errors.mse()).sqrt(),
};
