//! Gradients in a GPU's memory: operations write them into buckets, a bucket whose last gradient is
//! in is summed over the ranks beside backward, and one launch updates all parameters.
//!
//! The order is that of the CPU's [`super::cpu`]: buckets leave in a fixed order, shards
//! are added in the lower part of the fixed tree. How ranks are added is NCCL's affair; through the
//! `shm` backend it is the tree again. Where parameters have owners, each rank gets the sums of its
//! own, and moves them (`sharing.rs`).

mod memory;
mod sharing;
mod store;
mod updaters;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use candle_core::{Result, Tensor};

use crate::collective::{Collective, GradientBuffer};
use crate::engine::averaging::averaged_vars;
use crate::engine::error::Error;
use crate::engine::ownership::{Ownership, is_mine};
use crate::engine::reducer::Reducer;
use crate::engine::reducer::buckets::Layout;
use crate::engine::reducer::host_staged::HostStagedReducer;
use crate::engine::reducer::progress::Progress;
use crate::nn::{Param, Params};
use crate::ops::GradientSink;
use crate::ops::cuda::{
    Conditions, Gpu, Ledger, PassNumbers, Staging, StepNumbers, Updater, swap_values,
    write_gradient,
};
use crate::optim::{ParameterState, Update};
use crate::plan::OptimizerPlan;
use memory::Buckets;
pub(crate) use store::Marks;
use store::{BucketInTransit, StagingCarrier, State, Store};
use updaters::{DeviceState, OptimizerState, on_device};

/// The gradients of a rank that computes on a GPU, and the state of its optimizer.
pub(crate) struct GpuReducer {
    store: Arc<Store>,
    /// Description of the path of gradients to the other ranks, if not through NCCL.
    transport: Option<String>,
    states: Vec<DeviceState>,
    gpu: Gpu,
    /// `None` without `distributed.zero_stage`.
    ownership: Option<Arc<Ownership>>,
    updater: Updater,
    /// True if the CPU updates the parameters.
    on_cpu: bool,
    /// The parameters that `updater` knows.
    trained: Vec<usize>,
    /// Moves the averages of what `updater` does not move, where there are some.
    follower: Option<Updater>,
}

impl GpuReducer {
    /// Allocates buckets of `layout`, and the optimizer's state, in the memory of `gpu`. With
    /// `overlap` buckets leave as soon as they are full. `states` are those at the start or the
    /// resume of the run, only of the parameters that this rank owns.
    pub(crate) fn new(
        gpu: &Gpu,
        collective: &Arc<dyn Collective>,
        layout: Layout,
        overlap: bool,
        plan: &OptimizerPlan,
        params: &Params,
        states: &[ParameterState],
        ownership: Option<Arc<Ownership>>,
    ) -> std::result::Result<Self, Error> {
        let failed = Error::tensor("first", 0);
        let device = gpu.device();
        let (layout, divisions) = match &ownership {
            Some(ownership) => ownership.divide(layout),
            None => (layout, Vec::new()),
        };
        let divided = ownership.as_deref().map(|ownership| (ownership, &divisions[..]));
        let buckets = Buckets::new(&device, &layout, divided, collective.rank()).map_err(failed)?;
        let states: Result<Vec<_>> =
            states.iter().map(|state| on_device(state, plan, &device)).collect();
        let states = states.map_err(failed)?;
        let trained: Vec<usize> =
            (0..params.parameters().len()).filter(|&index| plan.is_ever_trained(index)).collect();
        let of = OptimizerState { plan, params, states: &states, ownership: ownership.as_deref() };
        let updater = of.updater(gpu, &layout, &buckets, &trained).map_err(failed)?;
        let follower = of.follower(gpu, &trained).map_err(failed)?;
        let mut reducer = None;
        let mut transport = None;
        if collective.world_size().count() > 1 && collective.on_gpu().is_none() {
            let segments = collective.segments(&layout.lengths)?;
            let staging =
                Staging::new(gpu, segments, GradientBuffer::has_own_pages).map_err(failed)?;
            transport = Some(staging.describe());
            let back = (0..layout.lengths.len()).map(|bucket| buckets.mine(bucket)).collect();
            let parts = divisions.into_iter().map(|division| division.parts).collect();
            let parts = ownership.is_some().then_some(parts);
            let carrier = StagingCarrier { staging, back };
            reducer = Some(HostStagedReducer::start(collective.clone(), parts, carrier)?);
        }
        let state = State {
            reducer,
            buckets,
            progress: Progress::new(&layout),
            ledger: Ledger::new(gpu).map_err(failed)?,
            decision: None,
            squares: 0.0,
            stack: Vec::new(),
            failure: None,
        };
        let collective = collective.clone();
        let state = Mutex::new(state);
        let store = Store { gpu: gpu.clone(), layout, overlap, collective, state };
        let store = Arc::new(store);
        let gpu = gpu.clone();
        let on_cpu = plan.on_cpu;
        Ok(Self { store, transport, states, gpu, ownership, updater, on_cpu, trained, follower })
    }

    /// Sums the buckets that have not left, and waits for all.
    fn reduce_rest(&self) -> std::result::Result<(), Error> {
        let failed = Error::tensor("reduction", 0);
        let mut state = self.store.state();
        let state = &mut *state;
        while state.progress.next < state.progress.order.len() {
            self.store.send_next(state).map_err(failed)?;
        }
        if let Some(failure) = state.failure.take() {
            return Err(failure.into());
        }
        if let Some(reducer) = &mut state.reducer {
            reducer.finish(|back: BucketInTransit| back.arrive(&self.store.gpu))?;
        }
        self.measure()?;
        if let Some(gpus) = self.store.collective.on_gpu() {
            gpus.finish()?;
            state.buckets.free(|| Ok::<_, Error>(()))?;
        }
        self.updater.note_squares(&state.ledger).map_err(failed)
    }

    /// The parameters that take part in the step and are this rank's.
    fn trained_here(&self) -> impl Iterator<Item = usize> {
        let ownership = self.ownership.as_deref();
        self.trained.iter().copied().filter(move |&index| is_mine(ownership, index))
    }
}

impl Reducer for GpuReducer {
    fn sink(&self) -> Arc<dyn GradientSink> {
        self.store.clone()
    }

    fn describe(&self) -> Option<String> {
        self.transport.clone()
    }

    fn buckets(&self) -> Vec<Tensor> {
        self.store.state().buckets.all().cloned().collect()
    }

    fn marks(&self) -> Option<Marks> {
        Some(Marks(self.store.state().progress.clone()))
    }

    fn set_marks(&self, marks: &Marks) {
        let Progress { next, missing, written, used, .. } = marks.0.clone();
        let mut state = self.store.state();
        let now = &mut state.progress;
        (now.next, now.missing, now.written, now.used) = (next, missing, written, used);
    }

    fn train_only(
        &mut self,
        plan: &OptimizerPlan,
        trained: &[bool],
        params: &Params,
        states: &[ParameterState],
    ) -> Result<()> {
        let device = self.updater.device();
        let before: Vec<bool> =
            (0..trained.len()).map(|index| self.trained.contains(&index)).collect();
        for (index, home) in states.iter().enumerate().take(trained.len()) {
            if trained[index] != before[index] {
                self.states[index] = on_device(home, plan, &device)?;
            }
        }
        let mut state = self.store.state();
        let layout = &self.store.layout;
        state.progress.train_only(layout, trained);
        self.trained = (0..trained.len()).filter(|&index| trained[index]).collect();
        let states = &self.states[..];
        let ownership = self.ownership.as_deref();
        let of = OptimizerState { plan, params, states, ownership };
        self.updater = of.updater(&self.gpu, layout, &state.buckets, &self.trained)?;
        self.follower = of.follower(&self.gpu, &self.trained)?;
        Ok(())
    }

    fn begin_step(&self) {
        let mut state = self.store.state();
        state.progress.begin_step();
        state.ledger.begin_step();
        state.decision = None;
        state.stack.clear();
    }

    fn next_pass(&self) -> Option<Result<PassNumbers>> {
        Some(self.store.state().ledger.next_pass())
    }

    fn decide(&self, conditions: Conditions, passes: usize) -> Result<bool> {
        let mut state = self.store.state();
        if self.on_cpu || state.ledger.passes() != passes {
            return Ok(false);
        }
        state.decision = Some(state.ledger.decide(conditions)?);
        Ok(true)
    }

    fn read_device_results(&self) -> Result<Vec<[f64; 2]>> {
        let mut state = self.store.state();
        let StepNumbers { squares, passes } = state.ledger.read()?;
        state.squares = squares;
        Ok(passes)
    }

    fn begin_last_pass(&self) {
        let Store { layout, overlap, .. } = &*self.store;
        self.store.state().progress.begin_last_pass(layout, *overlap);
    }

    fn end_shard(&self) -> std::result::Result<(), Error> {
        let mut state = self.store.state();
        let close = Error::tensor("end of a shard", 0);
        self.store.close_shard(&mut state).map_err(close)
    }

    fn finish_step(&self) -> std::result::Result<Duration, Error> {
        let started = Instant::now();
        self.reduce_rest()?;
        Ok(started.elapsed())
    }

    fn unused(&self) -> Vec<usize> {
        self.store.state().progress.unused()
    }

    fn squares(&self) -> f64 {
        self.store.state().squares
    }

    fn first_not_finite(&self) -> Option<usize> {
        let place = self.updater.first_not_finite().ok()??;
        self.trained.get(place).copied()
    }

    fn change_gradients(&self, change: &mut dyn FnMut(usize, &mut [f32])) -> Result<()> {
        for index in self.trained_here() {
            let mut gradient = self.store.gradient(index)?;
            change(index, &mut gradient);
            self.store.set_gradient(index, &gradient)?;
        }
        Ok(())
    }

    fn update(
        &mut self,
        update: &Update<'_>,
        params: &[Param],
        states: &mut [ParameterState],
        counts: &[Option<u64>],
    ) -> Result<()> {
        if update.plan().on_cpu {
            return self.update_on_cpu(update, params, states, counts);
        }
        // A launch for the parameters of each group and count: most often, one for all.
        let plan = update.plan();
        let alike = |index: usize| (plan.group_of.get(index).copied(), counts[index]);
        let launches: BTreeSet<_> = self.trained_here().map(alike).collect();
        for launch in launches {
            let (group, count) = launch;
            let group = group.and_then(|group| plan.groups.get(group));
            let Some(rule) = update.on_gpu(count, group) else { continue };
            let trained = &self.trained;
            let ownership = self.ownership.as_deref();
            let state = self.store.state();
            self.updater.update(rule, state.decision.as_ref(), |place| {
                is_mine(ownership, trained[place]) && alike(trained[place]) == launch
            })?;
        }
        Ok(())
    }

    fn begin_averages(&mut self, params: &Params, _: &mut [ParameterState]) -> Result<()> {
        let vars = averaged_vars(params, self.states.len())?;
        for (var, state) in vars.into_iter().zip(&self.states) {
            if let Some(average) = &state.average {
                write_gradient(average, 0, var, false)?;
            }
        }
        Ok(())
    }

    fn average_buffers(
        &mut self,
        update: &Update<'_>,
        _: &Params,
        _: &mut [ParameterState],
    ) -> Result<()> {
        // Where parameters have owners, averages follow when all are there.
        if self.ownership.is_some() { Ok(()) } else { self.follow(update) }
    }

    fn share_updates(
        &mut self,
        update: &Update<'_>,
        params: &[Param],
        _: &mut [ParameterState],
    ) -> std::result::Result<(), Error> {
        self.share(params)?;
        let failed = Error::tensor("sharing", 0);
        self.follow(update).map_err(failed)
    }

    fn swap_averages(&mut self, params: &Params, _: &mut [ParameterState]) -> Result<()> {
        let vars = averaged_vars(params, self.states.len())?;
        for (var, state) in vars.into_iter().zip(&self.states) {
            if let Some(average) = &state.average {
                swap_values(var, average)?;
            }
        }
        Ok(())
    }

    fn take_over(&mut self, states: &[ParameterState]) -> Result<()> {
        let device = self.updater.device();
        let give = |values: &[f32], tensor: &Tensor| {
            write_gradient(tensor, 0, &Tensor::from_slice(values, values.len(), &device)?, false)
        };
        for (home, here) in states.iter().zip(&self.states) {
            for (of, tensor) in home.tensors.iter().zip(&here.tensors) {
                give(&of.values, tensor)?;
            }
            if let Some(average) = &here.average {
                give(&home.average, average)?;
            }
        }
        Ok(())
    }

    fn copy_optimizer_state_to_host(&self, states: &mut [ParameterState]) -> Result<()> {
        for (home, here) in states.iter_mut().zip(&self.states) {
            for (of, tensor) in home.tensors.iter_mut().zip(&here.tensors) {
                of.values = tensor.to_vec1()?;
            }
            if let Some(average) = &here.average {
                home.average = average.to_vec1()?;
            }
        }
        Ok(())
    }
}
