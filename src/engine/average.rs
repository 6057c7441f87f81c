//! The average of the weights (`[ema]`): what is evaluated, tested and sampled in the weights' place.

use candle_core::Result;

use crate::engine::{Engine, Error};
use crate::nn::{Param, Params, change_all};
use crate::optim::Moments;

/// Puts the averages in the place of the parameters, and the parameters in theirs. Without averages nothing happens.
pub(crate) fn swap_averages(params: &Params, moments: &mut [Moments]) -> Result<()> {
    if moments.iter().all(|moments| moments.average.is_empty()) {
        return Ok(());
    }
    let vars: Vec<_> = params.parameters().iter().map(Param::var).collect::<Result<_>>()?;
    change_all(&vars, |values| {
        for (values, moments) in values.iter_mut().zip(moments) {
            values.swap_with_slice(&mut moments.average);
        }
    })
}

impl Engine {
    /// Begins the averages at the parameters as they are.
    pub(super) fn begin_averages(&mut self) -> Result<()> {
        if self.plan.ema.is_none() {
            return Ok(());
        }
        self.reducer.begin_averages(self.params.parameters(), &mut self.moments)
    }

    /// Runs `work` with the averages as parameters.
    pub(super) fn averaged<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> Result<T> {
        self.reducer.swap_averages(&self.params, &mut self.moments)?;
        let result = work(self);
        self.reducer.swap_averages(&self.params, &mut self.moments)?;
        Ok(result)
    }

    /// Takes over the state of the optimizer, and the averages, of other parameters.
    ///
    /// # Errors
    ///
    /// The device's.
    pub fn adopt(&mut self, moments: Vec<Moments>) -> std::result::Result<(), Error> {
        let step = self.state.step;
        let taken = self.reducer.take_over(&moments);
        self.moments = moments;
        taken.map_err(|source| Error::Tensor { phase: "taking over", step, source })
    }
}
