//! Updates of parameters on a GPU, and of their averages.

use std::collections::BTreeSet;

use candle_core::{Device, Result, Tensor};

use super::GpuReducer;
use super::memory::Buckets;
use crate::engine::ownership::{Ownership, is_mine};
use crate::engine::reducer::buckets::Layout;
use crate::nn::{Param, Params};
use crate::ops::cuda::{Gpu, Parameter, Updater, write_gradient};
use crate::optim::{ParameterState, ParameterUpdate, Update};
use crate::plan::OptimizerPlan;

/// The state of a parameter on a GPU.
pub(super) struct DeviceState {
    /// The optimizer's, in the order in which it names them; none if the CPU updates the parameter.
    pub(super) tensors: Vec<Tensor>,
    /// The average of the values, if there is one.
    pub(super) average: Option<Tensor>,
}

/// Copies the state of a parameter to the GPU: the average alone if the CPU updates it.
pub(super) fn on_device(
    state: &ParameterState,
    plan: &OptimizerPlan,
    device: &Device,
) -> Result<DeviceState> {
    let tensor = |values: &[f32]| Tensor::from_slice(values, values.len(), device);
    let is_here = !plan.on_cpu;
    let tensors = state.tensors.iter().filter(|_| is_here).map(|of| tensor(&of.values));
    let average = (!state.average.is_empty()).then(|| tensor(&state.average));
    Ok(DeviceState { tensors: tensors.collect::<Result<_>>()?, average: average.transpose()? })
}

/// Parameters, what their optimizer keeps of them, and whose they are.
pub(super) struct OptimizerState<'a> {
    pub(super) plan: &'a OptimizerPlan,
    pub(super) params: &'a Params,
    pub(super) states: &'a [DeviceState],
    pub(super) ownership: Option<&'a Ownership>,
}

impl OptimizerState<'_> {
    /// Returns the updater of this rank's `trained` parameters. Those of other ranks have a slot in
    /// it as well, where other ranks note the squares of their gradients.
    pub(super) fn updater(
        &self,
        gpu: &Gpu,
        layout: &Layout,
        buckets: &Buckets,
        trained: &[usize],
    ) -> Result<Updater> {
        let mut parameters = Vec::with_capacity(trained.len());
        for &index in trained {
            let param = &self.params.parameters()[index];
            let gradient = || buckets.summed_at(layout.slots[index]);
            parameters.push(Parameter {
                values: param.var()?,
                gradient: is_mine(self.ownership, index).then(gradient),
                state: &self.states[index].tensors,
                average: self.states[index].average.as_ref(),
                decays: self.plan.group(index).is_some()
                    || !(self.plan.no_decay_on_1d && param.shape().len() <= 1),
            });
        }
        Updater::new(gpu, &parameters)
    }

    /// Returns the updater of the averages of parameters that the other updater does not move, and
    /// of buffers, whose states follow those of the parameters.
    pub(super) fn follower(&self, gpu: &Gpu, trained: &[usize]) -> Result<Option<Updater>> {
        let parameters = self.params.parameters();
        let behind = self.states.iter().skip(parameters.len());
        let buffers = self.params.moving_buffers().zip(behind);
        let buffers = buffers.map(|(buffer, of)| (buffer.var(), of));
        let is_moved = |index: &usize| trained.contains(index) && is_mine(self.ownership, *index);
        let others = parameters.iter().zip(self.states).enumerate();
        let others = others.filter(|(index, _)| !is_moved(index));
        let others = others.map(|(_, (param, of)): (_, (&Param, _))| (param.var(), of));
        let mut followed = Vec::new();
        for (values, state) in others.filter(|(_, of)| of.average.is_some()).chain(buffers) {
            let values = values?;
            followed.push(Parameter {
                values,
                // None is looked at; the values stand for it.
                gradient: Some((values.as_tensor(), 0)),
                state: &[],
                average: state.average.as_ref(),
                decays: false,
            });
        }
        if followed.is_empty() { Ok(None) } else { Updater::new(gpu, &followed).map(Some) }
    }
}

impl GpuReducer {
    /// Moves the parameters of this rank that have a count (`ParameterUpdate::count`), and then the averages
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
            update.apply([ParameterUpdate {
                values: &mut values,
                gradient: &self.store.gradient(index)?,
                state,
                index,
                shape: param.shape(),
                count: counts[index],
            }]);
            state.average = average;
            write_gradient(var, 0, &Tensor::from_vec(values, var.shape(), var.device())?, false)?;
        }
        let follow = update.on_gpu(None, None);
        let here: BTreeSet<usize> = self.trained_here().collect();
        let trained = &self.trained;
        let updater = &mut self.updater;
        let is_here = |place: usize| here.contains(&trained[place]);
        follow.map_or(Ok(()), |rule| updater.update(rule, None, is_here))
    }
}
