//! `val/r2`

use crate::metric::errors::{ErrorScore, mean};
use crate::metric::needs_numbers;
use crate::plan::Mode;

/// Share of the variance of the targets that is explained: of each number of a target (each series,
/// over samples and time steps), and their mean, as scikit-learn's `r2_score`. It is the same in
/// any unit.
pub const R2: ErrorScore = ErrorScore {
    name: "r2",
    mode: Mode::Max,
    why_not: needs_numbers,
    value: |all, _| mean(all, &[], |errors, _| errors.r2()),
};
