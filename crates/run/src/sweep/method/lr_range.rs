//! `sweep.method = "lr_range"`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Kind, OptionConflict};
use crate::sweep::method::Method;

/// one run whose learning rate rises by the same factor at each step: the learning-rate range test
/// (Smith 2017).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LrRange {
    /// first learning rate.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub min: f64,
    /// last learning rate.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub max: f64,
    /// steps from one to the other.
    #[schemars(range(min = 10, max = 100_000))]
    pub steps: u64,
}

impl Default for LrRange {
    fn default() -> Self {
        Self { min: 1e-6, max: 10.0, steps: 100 }
    }
}

impl Kind for LrRange {
    const NAME: &'static str = "lr_range";

    fn check(&self) -> Vec<OptionConflict> {
        let what = format!("must be less than the last rate, {}", self.max);
        let wrong = || OptionConflict { key: "min", with: &["max"], what };
        (self.max <= self.min).then(wrong).into_iter().collect()
    }
}

impl Method for LrRange {
    fn range_test(&self) -> Option<&LrRange> {
        Some(self)
    }
}
