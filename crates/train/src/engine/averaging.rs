//! The average of the weights (`[ema]`, `[swa]`, `[lookahead]`): what is evaluated, tested and
//! sampled in the weights' place.
//!
//! With `ema.use_buffers` the running statistics have averages too, after those of the parameters.
//! Running statistics are rank 0's until they are broadcast, and so are their averages.
//!
//! Lookahead's averages are its slow weights: every `k` steps they move a fraction of the way to
//! the weights, which then continue from there.

use candle_core::{Result, Var};

use crate::engine::{Engine, Error, TrainState};
use crate::nn::{Buffer, Param, Params, change_all, change_values};
use crate::optim::{ParameterState, Update, follow_values};
use crate::plan::LookaheadPlan;

/// Returns the variables that `n_states` averages belong to: parameters, then, if there are as
/// many, moving buffers.
pub(super) fn averaged_vars(params: &Params, n_states: usize) -> Result<Vec<&Var>> {
    let parameters = params.parameters().iter().map(Param::var);
    parameters.chain(params.moving_buffers().map(Buffer::var)).take(n_states).collect()
}

/// Puts the averages in the place of what they are of, and that in theirs. Without averages nothing
/// happens.
pub fn swap_averages(params: &Params, states: &mut [ParameterState]) -> Result<()> {
    if states.iter().all(|state| state.average.is_empty()) {
        return Ok(());
    }
    change_all(&averaged_vars(params, states.len())?, |values| {
        for (values, state) in values.iter_mut().zip(states) {
            values.swap_with_slice(&mut state.average);
        }
    })
}

/// Moves the averages of the buffers, where there are some.
pub(super) fn average_buffers(
    update: &Update<'_>,
    params: &Params,
    states: &mut [ParameterState],
) -> Result<()> {
    let behind = states.iter_mut().skip(params.parameters().len());
    params.moving_buffers().zip(behind).try_for_each(|(buffer, state)| {
        change_values(buffer.var()?, |values| update.follow(&mut state.average, values))
    })
}

impl Engine {
    /// Begins the averages at the parameters, and buffers, as they are.
    pub(super) fn begin_averages(&mut self) -> Result<()> {
        if self.plan.average().is_none() {
            return Ok(());
        }
        self.reducer.begin_averages(&self.params, &mut self.optimizer_state)
    }

    /// Runs `work` with the averages as parameters, if they are complete.
    pub(super) fn averaged<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> Result<T> {
        if self.state.has_averages() { self.with_averages(work) } else { Ok(work(self)) }
    }

    /// Runs `work` with the averages as parameters.
    pub(super) fn with_averages<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> Result<T> {
        self.reducer.swap_averages(&self.params, &mut self.optimizer_state)?;
        let result = work(self);
        self.reducer.swap_averages(&self.params, &mut self.optimizer_state)?;
        Ok(result)
    }

    /// Adopts the optimizer state and the averages of other parameters, which belong to the train
    /// state `of`.
    pub fn load_optimizer_state(
        &mut self,
        of: &TrainState,
        optimizer_state: Vec<ParameterState>,
    ) -> std::result::Result<(), Error> {
        let step = self.state.step;
        self.state.swa = of.swa;
        let taken = self.reducer.take_over(&optimizer_state);
        (self.optimizer_state, self.host_state_step) = (optimizer_state, Some(step));
        self.release_optimizer_state();
        taken.map_err(Error::tensor("taking over", step))
    }

    /// Moves the slow weights of lookahead after a step where that is due, and sets the weights to
    /// them.
    pub(super) fn look_ahead(&mut self) -> std::result::Result<(), Error> {
        let step = self.state.step;
        let last = self.plan.length.total_steps;
        let Some(plan) = self.plan.lookahead.filter(|plan| plan.is_due(step)) else {
            return Ok(());
        };
        self.copy_optimizer_state_to_host()?;
        let met = self.meet_averages(share(&plan, step, last) as f32);
        met.map_err(Error::tensor("lookahead", step))
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

/// Returns the fraction of the way that the slow weights move to the fast ones after `step` steps
/// of `last`: `alpha`, or, with a `power`, from all of it in the beginning down to `alpha` in the
/// end.
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
