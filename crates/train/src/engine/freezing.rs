//! Which parameters are trained when: groups that are frozen, for the whole run or for a part of
//! it.
//!
//! A run has phases, which begin at step boundaries. In each, frozen parameters have no gradient,
//! no state of the optimizer, and their buckets are not reduced. All ranks enter a phase at the
//! same step: it follows from the plan.

use crate::engine::{Engine, Error};
use crate::optim::ParameterState;

impl Engine {
    /// Begins, or goes on, in the phase of the step after the finished ones; the optimizer's state
    /// is that phase's already.
    pub(super) fn freeze(&mut self) -> Result<(), Error> {
        self.trained = self.trained_now();
        self.train_only_these()
    }

    /// Enters the phase of the step after the finished ones, if it is another: what is unfrozen
    /// begins with new state, and counts its updates from 1; the state of what is frozen is let go.
    pub(super) fn freeze_and_unfreeze(&mut self) -> Result<(), Error> {
        let trained = self.trained_now();
        if trained == self.trained {
            return Ok(());
        }
        self.bring_home()?;
        let keeps: Vec<bool> = (0..trained.len()).map(|index| self.keeps(index)).collect();
        let plan = &self.plan.optimizer;
        let params = self.params.parameters().iter().enumerate().zip(&mut self.optimizer_state);
        for ((index, param), state) in params.filter(|((i, _), _)| trained[*i] != self.trained[*i])
        {
            let average = std::mem::take(&mut state.average);
            let fresh = if trained[index] && keeps[index] {
                ParameterState::zeros(plan, index, param.shape())
            } else {
                ParameterState::default()
            };
            *state = ParameterState { average, ..fresh };
            if trained[index] {
                self.state.missed.insert(param.name().to_owned(), self.state.updates);
            }
        }
        self.trained = trained;
        self.train_only_these()
    }

    fn trained_now(&self) -> Vec<bool> {
        let is_trained = |index| self.plan.optimizer.is_trained(index, self.state.step);
        (0..self.params.parameters().len()).map(is_trained).collect()
    }

    fn train_only_these(&mut self) -> Result<(), Error> {
        let Self { params, trained, optimizer_state, plan, .. } = self;
        params.train_only(|index| trained[index]);
        let chosen = self.reducer.train_only(&plan.optimizer, trained, params, optimizer_state);
        #[cfg(feature = "cuda")]
        {
            self.graph = crate::engine::graph_pass::GraphPass::new(&self.plan, &self.device);
        }
        let step = self.state.step;
        chosen.map_err(|source| Error::Tensor { phase: "unfreezing", step, source })
    }
}
