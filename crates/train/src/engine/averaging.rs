//! The average of the weights (`[ema]`, `[swa]`, `[lookahead]`): what is evaluated, tested and
//! sampled in the weights' place.
//!
//! With `ema.use_buffers` the running statistics have averages too, behind those of the parameters.
//! Running statistics are rank 0's until they are broadcast, and so are their averages.

mod lookahead;
mod swa;

use candle_core::{Result, Var};

use crate::engine::{Engine, Error, TrainState};
use crate::nn::{Buffer, Param, Params, change_all, change_values};
use crate::optim::{ParameterState, Update};

pub(super) use swa::swa_lr;

/// What so many states are kept of: parameters, then, if there are as many, moving buffers.
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

    /// Takes over the state of the optimizer, and the averages, of other parameters, which `of` is
    /// the state of.
    pub fn adopt(
        &mut self,
        of: &TrainState,
        optimizer_state: Vec<ParameterState>,
    ) -> std::result::Result<(), Error> {
        let step = self.state.step;
        self.state.swa = of.swa;
        let taken = self.reducer.take_over(&optimizer_state);
        (self.optimizer_state, self.home) = (optimizer_state, Some(step));
        self.release_optimizer_state();
        taken.map_err(|source| Error::Tensor { phase: "taking over", step, source })
    }
}
