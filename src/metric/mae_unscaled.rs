//! `val/mae_unscaled`

use crate::metric::errors::{ErrorScore, mean};
use crate::metric::needs_scaled;
use crate::plan::Mode;

/// Mean absolute error of standardised numbers in the units of the data.
pub const MAE_UNSCALED: ErrorScore = ErrorScore {
    name: "mae_unscaled",
    mode: Mode::Min,
    why_not: needs_scaled,
    value: |all, scales| mean(all, scales, |errors, scale| scale * errors.mae()),
};
