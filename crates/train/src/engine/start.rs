//! Start of the ranks: the same model everywhere, with rank 0's values.

use std::sync::Arc;

use candle_core::Device;
use serde::{Deserialize, Serialize};

use crate::collective::{self, Collective};
use crate::engine::error::Error;
#[cfg(feature = "cuda")]
use crate::engine::graph_pass::GraphPass;
use crate::engine::ownership::Ownership;
use crate::engine::rank_consistency::{Difference, EVERYTHING, LastCompared};
use crate::engine::rank_stats::StatsClock;
#[cfg(feature = "cuda")]
use crate::engine::reducer::GpuReducer;
use crate::engine::reducer::buckets::Layout;
use crate::engine::reducer::{CpuReducer, Reducer};
use crate::engine::straggler::Stragglers;
use crate::engine::sync_batchnorm::JointPasses;
use crate::engine::{Components, Engine, TrainState, vote};
use crate::event::TimeShares;
use crate::model::base_hash;
use crate::nn::{Params, change_values};
use crate::optim::ParameterState;
use crate::plan::Plan;
use crate::units::{Rank, WorldSize};

impl Engine {
    /// An engine of a single rank, at the beginning of a run.
    pub fn solo(plan: Arc<Plan>, components: Components) -> Result<Self, Error> {
        Self::new(plan, components, collective::alone(), None)
    }

    /// An engine at the beginning of a run, or at `restored`'s place in it. Compares that place,
    /// and names and shapes of all parameters, with rank 0's, then takes over rank 0's values.
    pub fn new(
        plan: Arc<Plan>,
        components: Components,
        collective: Arc<dyn Collective>,
        restored: Option<(TrainState, Vec<ParameterState>)>,
    ) -> Result<Self, Error> {
        let Components { model, params, loss, metrics, optimizer, scheduler } = components;
        let is_new = restored.is_none();
        let start = restored.as_ref().map_or(0, |(state, _)| state.step);
        same_start(collective.as_ref(), &params, model.reference(), start)?;
        let (state, mut optimizer_state) = restored
            .unwrap_or_else(|| (TrainState::new(&plan), ParameterState::of_all(&plan, &params, 0)));
        let layout = Layout::of(&plan, &params);
        let device = device(&params);
        let joint = JointPasses::new(&plan, &params, &collective)?;
        let ownership = Ownership::new(&plan, &params, collective.rank(), collective.world_size());
        let ownership = ownership.map(Arc::new);
        if let Some(ownership) = &ownership {
            ownership.release(&mut optimizer_state);
        }
        let reducer =
            reducer(&plan, &params, &collective, layout, ownership.clone(), &optimizer_state)?;
        let sink = reducer.sink();
        #[cfg(feature = "cuda")]
        let graph = GraphPass::new(&plan, &device);
        let time = TimeShares::default();
        let observer = Box::new(|_, _| ());
        let world = collective.world_size();
        let watches = collective.rank().is_first() && world > WorldSize::ONE;
        let mut engine = Self {
            plan,
            model,
            params,
            loss,
            metrics,
            most_worst: 0,
            optimizer,
            scheduler,
            optimizer_state,
            collective,
            ownership,
            reducer,
            device,
            sink,
            state,
            time,
            observer,
            trained: Vec::new(),
            compared: LastCompared::default(),
            host_state_step: None,
            stragglers: watches.then(|| Stragglers::new(world.count())),
            straggler: None,
            stats: StatsClock::start(),
            joint,
            #[cfg(feature = "cuda")]
            graph,
            notice: None,
        };
        engine.freeze()?;
        engine.broadcast_parameters()?;
        engine.broadcast_buffers()?;
        if is_new {
            let tensor_error = Error::tensor("averaged", 0);
            engine.begin_averages().map_err(tensor_error)?;
        }
        engine.broadcast_frozen()?;
        if !is_new {
            engine.same_restored()?;
        }
        Ok(engine)
    }

    /// Refuses ranks that restored something else than rank 0: what is not broadcast would stay
    /// different.
    fn same_restored(&mut self) -> Result<(), Error> {
        let Some(Difference { what, ranks }) = self.difference(&EVERYTHING)? else {
            return Ok(());
        };
        let is_mine = ranks.contains(&self.collective.rank());
        Err(Error::RestoredDiffers { step: self.state.step, what, ranks, is_mine })
    }

    /// Broadcasts the parameters of rank 0.
    pub fn broadcast_parameters(&self) -> Result<(), Error> {
        self.params.parameters().iter().try_for_each(|param| self.broadcast(param.var()))
    }

    /// Broadcasts the running statistics of rank 0, which follow the first shard.
    pub fn broadcast_buffers(&self) -> Result<(), Error> {
        self.params.moving_buffers().try_for_each(|buffer| self.broadcast(buffer.var()))
    }

    /// Broadcasts the frozen parameters of rank 0, once; those of a file, which every rank has read
    /// and compared, are not.
    fn broadcast_frozen(&self) -> Result<(), Error> {
        let own = self.params.own_buffers().into_iter();
        own.filter(|buffer| buffer.is_frozen()).try_for_each(|buffer| self.broadcast(buffer.var()))
    }

    fn broadcast(&self, var: candle_core::Result<&candle_core::Var>) -> Result<(), Error> {
        let tensor_error = Error::tensor("broadcast", 0);
        let mut result = Ok(());
        change_values(var.map_err(tensor_error)?, |values| {
            result = self.collective.broadcast(bytemuck::cast_slice_mut(values));
        })
        .map_err(tensor_error)?;
        Ok(result?)
    }
}

/// The device of the parameters; the CPU for a model without any.
fn device(params: &Params) -> Device {
    let first = params.parameters().first().and_then(|param| param.var().ok());
    first.map_or(Device::Cpu, |var| var.device().clone())
}

/// Returns the reducer for the device of the parameters; its buckets are divided among the ranks if
/// there is an `ownership`.
fn reducer(
    plan: &Plan,
    params: &Params,
    collective: &Arc<dyn Collective>,
    layout: Layout,
    ownership: Option<Arc<Ownership>>,
    states: &[ParameterState],
) -> Result<Box<dyn Reducer>, Error> {
    let overlap = plan.distributed.overlap;
    // Statistics go through the group in the middle of backward: with a second thread, in an order
    // that differs by rank.
    let is_shared = plan.distributed.sync_batchnorm;
    #[cfg(feature = "cuda")]
    if let Some(var) = params.parameters().first().and_then(|param| param.var().ok())
        && var.device().is_cuda()
    {
        let failed = Error::tensor("first", 0);
        let gpu = crate::ops::cuda::Gpu::of_tensor(var).map_err(failed)?;
        // Alone there is nothing to overlap with, and a pass that is recorded must not depend on
        // its place in the step.
        let overlap = overlap
            && collective.world_size() > WorldSize::ONE
            && (!is_shared || collective.on_gpu().is_some())
            && !crate::plan::cuda_graph::is_wanted(plan);
        let plan = &plan.optimizer;
        let reducer =
            GpuReducer::new(&gpu, collective, layout, overlap, plan, params, states, ownership)?;
        return Ok(Box::new(reducer));
    }
    let _ = (params, states);
    Ok(Box::new(CpuReducer::new(collective, layout, overlap && !is_shared, ownership)?))
}

/// A rank's first message to the others, before anything is trained.
#[derive(Serialize, Deserialize)]
struct Introduction {
    /// Finished steps.
    step: u64,
    /// Names and shapes of its parameters and buffers, and the hash of weights below adapters.
    tensors: Vec<String>,
}

/// Refuses ranks that start after another step than rank 0, or whose parameters or buffers differ
/// in name, shape or order from rank 0's.
fn same_start(
    collective: &dyn Collective,
    params: &Params,
    reference: Option<&Params>,
    step: u64,
) -> Result<(), Error> {
    let parameters = params.parameters().iter().map(|p| (p.name(), p.shape()));
    let buffers = params.buffers().iter().map(|b| (b.name(), b.shape()));
    let tensors = parameters.chain(buffers).map(|(name, shape)| format!("`{name}` {shape:?}"));
    let mut tensors: Vec<String> = tensors.collect();
    if collective.world_size() > WorldSize::ONE {
        let bases = [params.base(), reference.and_then(Params::base)].into_iter().flatten();
        tensors.extend(bases.map(|base| format!("weights with the hash {:.16}", base_hash(&base))));
    }
    let all = vote::exchange(collective, &Introduction { step, tensors })?;
    let first = &all[0];
    for (rank, other) in (0..).map(Rank).zip(&all) {
        if let Some(difference) = first_difference(&first.tensors, &other.tensors) {
            return Err(Error::ModelDiffers { rank, difference });
        }
        if other.step != first.step {
            let is_mine = rank == collective.rank();
            return Err(Error::StartDiffers { rank, step: other.step, first: first.step, is_mine });
        }
    }
    Ok(())
}

fn first_difference(ours: &[String], theirs: &[String]) -> Option<String> {
    let differs = (0..ours.len().max(theirs.len())).find(|&i| ours.get(i) != theirs.get(i))?;
    let show = |list: &[String]| list.get(differs).cloned().unwrap_or_else(|| "nothing".into());
    Some(format!("{} instead of {}", show(theirs), show(ours)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_parameter_that_differs_is_named() {
        let list = |names: &[&str]| names.iter().map(|&n| n.to_owned()).collect::<Vec<_>>();
        let ours = list(&["`a` [2]", "`b` [3]"]);
        assert_eq!(first_difference(&ours, &ours), None);
        let shorter = first_difference(&ours, &list(&["`a` [2]"]));
        assert_eq!(shorter.as_deref(), Some("nothing instead of `b` [3]"));
    }
}
