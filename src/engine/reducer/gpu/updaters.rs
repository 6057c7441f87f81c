//! What moves the parameters on a GPU, and their averages.

use candle_core::{Device, Result, Tensor};

use super::memory::Buckets;
use crate::engine::ownership::{Ownership, is_mine};
use crate::engine::reducer::buckets::Layout;
use crate::nn::{Param, Params};
use crate::ops::cuda::{Gpu, Parameter, Updater};
use crate::optim::Moments;
use crate::plan::OptimizerPlan;

/// Two moments and the average of a parameter, where there are such.
pub(super) type Kept = [Option<Tensor>; 3];

/// What is kept of a parameter on the GPU: the average alone if the CPU updates it.
pub(super) fn on_device(moments: &Moments, plan: &OptimizerPlan, device: &Device) -> Result<Kept> {
    let tensor = |values: &[f32], is_here: bool| {
        let some = (is_here && !values.is_empty())
            .then(|| Tensor::from_slice(values, values.len(), device));
        some.transpose()
    };
    let [first, second] = [&moments.first, &moments.second].map(|of| tensor(of, !plan.on_cpu));
    Ok([first?, second?, tensor(&moments.average, true)?])
}

/// Parameters, what their optimizer keeps of them, and whose they are.
pub(super) struct OptimizerState<'a> {
    pub(super) plan: &'a OptimizerPlan,
    pub(super) params: &'a Params,
    pub(super) moments: &'a [Kept],
    pub(super) ownership: Option<&'a Ownership>,
}

impl OptimizerState<'_> {
    /// What moves those of the parameters that are `trained` which are this rank's; the others have
    /// a place in it, where other ranks note the squares of their gradients.
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
                moments: self.moments[index].each_ref().map(Option::as_ref),
                decays: self.plan.group(index).is_some()
                    || !(self.plan.no_decay_on_1d && param.shape().len() <= 1),
            });
        }
        Updater::new(gpu, &parameters)
    }

    /// What moves the averages of parameters that the updater does not move, and of buffers, which
    /// are kept behind those of the parameters.
    pub(super) fn follower(&self, gpu: &Gpu, trained: &[usize]) -> Result<Option<Updater>> {
        let parameters = self.params.parameters();
        let behind = self.moments.iter().skip(parameters.len());
        let buffers = self.params.moving_buffers().zip(behind);
        let buffers = buffers.map(|(buffer, of)| (buffer.var(), of));
        let is_moved = |index: &usize| trained.contains(index) && is_mine(self.ownership, *index);
        let others = parameters.iter().zip(self.moments).enumerate();
        let others = others.filter(|(index, _)| !is_moved(index));
        let others = others.map(|(_, (param, of)): (_, (&Param, _))| (param.var(), of));
        let mut followed = Vec::new();
        for (values, moments) in
            others.filter(|(_, [.., average])| average.is_some()).chain(buffers)
        {
            let values = values?;
            followed.push(Parameter {
                values,
                // None is looked at; the values stand for it.
                gradient: Some((values.as_tensor(), 0)),
                moments: moments.each_ref().map(Option::as_ref),
                decays: false,
            });
        }
        if followed.is_empty() { Ok(None) } else { Updater::new(gpu, &followed).map(Some) }
    }
}
