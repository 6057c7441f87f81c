//! The average of the weights (`[ema]`, `[swa]`, `[lookahead]`): what is evaluated, tested and
//! sampled in the weights' place.
//!
//! With `ema.use_buffers` the running statistics have averages too, behind those of the parameters.
//! Running statistics are rank 0's until they are broadcast, and so are their averages.

use candle_core::{Result, Var};

use crate::engine::{Engine, Error, TrainState};
use crate::nn::{Buffer, Param, Params, change_all, change_values};
use crate::optim::{Moments, Update};

/// What `moments` are kept of: parameters, then, if there are as many, moving buffers.
pub(super) fn averaged_vars(params: &Params, moments: usize) -> Result<Vec<&Var>> {
    let parameters = params.parameters().iter().map(Param::var);
    parameters.chain(params.moving_buffers().map(Buffer::var)).take(moments).collect()
}

/// Puts the averages in the place of what they are of, and that in theirs. Without averages nothing
/// happens.
pub(crate) fn swap_averages(params: &Params, moments: &mut [Moments]) -> Result<()> {
    if moments.iter().all(|moments| moments.average.is_empty()) {
        return Ok(());
    }
    change_all(&averaged_vars(params, moments.len())?, |values| {
        for (values, moments) in values.iter_mut().zip(moments) {
            values.swap_with_slice(&mut moments.average);
        }
    })
}

/// Moves the averages of the buffers, where there are some.
pub(super) fn average_buffers(
    update: &Update<'_>,
    params: &Params,
    moments: &mut [Moments],
) -> Result<()> {
    let behind = moments.iter_mut().skip(params.parameters().len());
    params.moving_buffers().zip(behind).try_for_each(|(buffer, moments)| {
        change_values(buffer.var()?, |values| update.follow(&mut moments.average, values))
    })
}

impl Engine {
    /// Begins the averages at the parameters, and buffers, as they are.
    pub(super) fn begin_averages(&mut self) -> Result<()> {
        if self.plan.average().is_none() {
            return Ok(());
        }
        self.reducer.begin_averages(&self.params, &mut self.moments)
    }

    /// Runs `work` with the averages as parameters, if they are complete.
    pub(super) fn averaged<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> Result<T> {
        if self.state.has_averages() { self.with_averages(work) } else { Ok(work(self)) }
    }

    /// Runs `work` with the averages as parameters.
    pub(super) fn with_averages<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> Result<T> {
        self.reducer.swap_averages(&self.params, &mut self.moments)?;
        let result = work(self);
        self.reducer.swap_averages(&self.params, &mut self.moments)?;
        Ok(result)
    }

    /// Takes over the state of the optimizer, and the averages, of other parameters, which `of` is
    /// the state of.
    pub fn adopt(
        &mut self,
        of: &TrainState,
        moments: Vec<Moments>,
    ) -> std::result::Result<(), Error> {
        let step = self.state.step;
        self.state.swa = of.swa;
        let taken = self.reducer.take_over(&moments);
        (self.moments, self.home) = (moments, Some(step));
        self.release_moments();
        taken.map_err(|source| Error::Tensor { phase: "taking over", step, source })
    }
}
