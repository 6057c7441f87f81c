//! Lookahead (`[lookahead]`): every `k` steps the slow weights, which are the averages, go a share
//! of their way to the fast ones, which then begin there again.

use candle_core::Result;

use crate::engine::averaged_model::averaged_vars;
use crate::engine::{Engine, Error};
use crate::nn::change_values;
use crate::optim::{follow_values, lookahead_share};

impl Engine {
    /// Lets fast and slow weights meet after a step where that is due.
    pub(super) fn look_ahead(&mut self) -> std::result::Result<(), Error> {
        let step = self.state.step;
        let last = self.plan.length.total_steps;
        let Some(plan) = self.plan.lookahead.filter(|plan| plan.is_due(step)) else {
            return Ok(());
        };
        self.bring_home()?;
        let met = self.meet_averages(lookahead_share(&plan, step, last) as f32);
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
