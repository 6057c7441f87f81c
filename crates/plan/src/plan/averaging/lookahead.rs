//! Lookahead: how often slow weights meet the fast ones, and where.

use serde::{Deserialize, Serialize};

use crate::config::{Loaded, Problem};
use crate::plan::LengthPlan;
use crate::plan::arithmetic::shown;

/// Slow weights that fast ones come back to (Zhang et al. 2019).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LookaheadPlan {
    /// Steps between two meetings.
    pub k: u64,
    /// The share of their way to the fast ones that slow weights go.
    pub alpha: f64,
    /// How the share falls to `alpha` over the run; absent = it is `alpha`.
    pub power: Option<f64>,
}

impl LookaheadPlan {
    /// Whether they meet after `step` steps.
    pub fn is_due(&self, step: u64) -> bool {
        step.is_multiple_of(self.k.max(1))
    }

    /// ", lookahead every 5 steps by 0.5"
    pub(crate) fn line(&self) -> String {
        let power = self.power.map_or(String::new(), |power| format!(" (power {})", shown(power)));
        format!(", lookahead every {} steps by {}{power}", self.k, shown(self.alpha))
    }
}

/// Lookahead as asked, if it is.
pub(crate) fn decide(
    loaded: &Loaded,
    length: &LengthPlan,
) -> Result<Option<LookaheadPlan>, Problem> {
    let asked = &loaded.experiment.lookahead;
    let Some(k) = asked.k else { return Ok(None) };
    if asked.power.is_some() && !length.is_bounded() {
        let what = "needs a last step, which `train.time` alone does not give";
        let help = "give `train.epochs` or `train.steps`, or leave it out";
        return Err(loaded.problem("lookahead.power", what.to_owned()).help(help));
    }
    Ok(Some(LookaheadPlan { k, alpha: asked.alpha.unwrap_or(0.5), power: asked.power }))
}
