//! `val/rmse_unscaled`

use crate::metric::errors::{ErrorScore, mean};
use crate::metric::needs_scaled;
use crate::plan::Mode;

/// Root of the mean squared error of standardised numbers in the units of the data.
pub const RMSE_UNSCALED: ErrorScore = ErrorScore {
    name: "rmse_unscaled",
    mode: Mode::Min,
    why_not: needs_scaled,
    value: |all, scales| mean(all, scales, |errors, scale| scale * scale * errors.mse()).sqrt(),
};
