//! The update of parameters on a GPU by a rule that has no kernel: their values and gradients are
//! copied to the CPU, where the optimizer's state stays, and the new values back.

use std::collections::BTreeSet;

use candle_core::{Result, Tensor};

use super::GpuReducer;
use crate::nn::Param;
use crate::ops::cuda::put;
use crate::optim::{ParameterState, Part, Update};

impl GpuReducer {
    /// Moves the parameters of this rank that have a count (`Part::count`), and then the averages
    /// of all that it has, which are on the GPU.
    pub(super) fn update_on_cpu(
        &mut self,
        update: &Update<'_>,
        params: &[Param],
        states: &mut [ParameterState],
        counts: &[Option<u64>],
    ) -> Result<()> {
        let moved: Vec<usize> =
            self.trained_here().filter(|&index| counts[index].is_some()).collect();
        for index in moved {
            let param = &params[index];
            let state = &mut states[index];
            let var = param.var()?;
            let mut values: Vec<f32> = var.flatten_all()?.to_vec1()?;
            let average = std::mem::take(&mut state.average);
            update.apply([Part {
                values: &mut values,
                gradient: &self.store.gradient(index)?,
                state,
                index,
                shape: param.shape(),
                count: counts[index],
            }]);
            state.average = average;
            put(var, 0, &Tensor::from_vec(values, var.shape(), var.device())?, false)?;
        }
        let follow = update.on_gpu(None, None);
        let here: BTreeSet<usize> = self.trained_here().collect();
        let trained = &self.trained;
        let updater = &mut self.updater;
        let is_here = |place: usize| here.contains(&trained[place]);
        follow.map_or(Ok(()), |rule| updater.update(rule, None, is_here))
    }
}
