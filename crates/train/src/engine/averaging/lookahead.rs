//! Lookahead (`[lookahead]`): every `k` steps the slow weights, which are the averages, go a share
//! of their way to the fast ones, which then begin there again.

use candle_core::Result;

use crate::engine::averaging::averaged_vars;
use crate::engine::{Engine, Error};
use crate::nn::change_values;
use crate::optim::follow_values;
use crate::plan::LookaheadPlan;

impl Engine {
    /// Lets fast and slow weights meet after a step where that is due.
    pub(in crate::engine) fn look_ahead(&mut self) -> std::result::Result<(), Error> {
        let step = self.state.step;
        let last = self.plan.length.total_steps;
        let Some(plan) = self.plan.lookahead.filter(|plan| plan.is_due(step)) else {
            return Ok(());
        };
        self.bring_home()?;
        let met = self.meet_averages(share(&plan, step, last) as f32);
        met.map_err(|source| Error::Tensor { phase: "lookahead", step, source })
    }

    fn meet_averages(&mut self, share: f32) -> Result<()> {
        let vars = averaged_vars(&self.params, self.optimizer_state.len())?;
        for (var, state) in vars.into_iter().zip(&mut self.optimizer_state) {
            change_values(var, |values| {
                follow_values(&mut state.average, values, share);
                values.copy_from_slice(&state.average);
            })?;
        }
        self.reducer.take_over(&self.optimizer_state)
    }
}

/// The share of their way that the slow weights go to the fast ones after `step` steps of `last`: `alpha`, or, with a `power`, from all of it
/// in the beginning down to `alpha` in the end.
fn share(plan: &LookaheadPlan, step: u64, last: u64) -> f64 {
    let done = (step as f64 / last.max(1) as f64).min(1.0);
    1.0 - (1.0 - plan.alpha) * plan.power.map_or(1.0, |power| done.powf(power))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_falls_to_alpha_as_in_airbench94() {
        // 1 - 0.95^5 (step / 100)^3
        let plan = LookaheadPlan { k: 5, alpha: 1.0 - 0.95_f64.powi(5), power: Some(3.0) };
        for (step, expected) in [(5, 0.999_903_277), (50, 0.903_277_382), (100, 0.226_219_062)] {
            assert!((share(&plan, step, 100) - expected).abs() < 1e-8, "{step}");
        }
        let constant = LookaheadPlan { power: None, alpha: 0.5, ..plan };
        assert_eq!(share(&constant, 5, 100), 0.5);
        assert!(constant.is_due(10) && !constant.is_due(11));
    }
}
