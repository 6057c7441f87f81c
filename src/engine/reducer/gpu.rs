//! Gradients in a GPU's memory: operations write them into buckets, a bucket whose last gradient is
//! in is summed over the ranks beside backward, and one launch updates all parameters.
//!
//! The order is that of the CPU's [`super::cpu`]: buckets leave in a fixed order, shards
//! are added in the lower part of the fixed tree. How ranks are added is NCCL's affair; through the
//! `shm` backend it is the tree again.

mod cpu_update;
mod store;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use candle_core::{DType, Device, Result, Tensor};

use crate::collective::{Collective, Segment};
use crate::engine::averaged_model::averaged_vars;
use crate::engine::error::Error;
use crate::engine::reducer::Reducer;
use crate::engine::reducer::buckets::Layout;
use crate::engine::reducer::host_staged::{Carry, HostStagedReducer, Sum};
use crate::engine::reducer::progress::Progress;
use crate::nn::{Param, Params};
use crate::ops::GradientSink;
use crate::ops::cuda::{
    Conditions, Found, Gpu, Ledger, Moment, Parameter, Staging, StepNumbers, Updater, exchange, put,
};
use crate::optim::{Moments, Update};
use crate::plan::OptimizerPlan;
pub(crate) use store::Marks;
use store::{State, Store};

/// The gradients of a rank that computes on a GPU, and the state of its optimizer.
pub(crate) struct GpuReducer {
    store: Arc<Store>,
    /// How gradients get to the other ranks, if not by NCCL.
    way: Option<String>,
    /// Two moments and the average of each parameter, where there are such.
    moments: Vec<[Option<Tensor>; 3]>,
    gpu: Gpu,
    updater: Updater,
    /// Whether the CPU moves the parameters.
    on_cpu: bool,
    /// The parameters that `updater` moves.
    trained: Vec<usize>,
    /// Moves the averages of frozen parameters and of buffers, where there are some.
    follower: Option<Updater>,
}

/// What a rank on a GPU holds the gradients and the optimizer's state of.
pub(crate) struct Held<'a> {
    pub(crate) layout: Layout,
    /// Whether buckets leave as soon as they are full.
    pub(crate) overlap: bool,
    pub(crate) plan: &'a OptimizerPlan,
    pub(crate) params: &'a Params,
    /// As the run begins or was restored.
    pub(crate) moments: &'a [Moments],
}

impl GpuReducer {
    /// Buckets of `layout` and the optimizer's state in the memory of `gpu`.
    pub(crate) fn new(
        gpu: &Gpu,
        collective: &Arc<dyn Collective>,
        Held { layout, overlap, plan, params: all, moments }: Held<'_>,
    ) -> std::result::Result<Self, Error> {
        let params = all.parameters();
        let failed = |source| Error::Tensor { phase: "first", step: 0, source };
        let device = gpu.device();
        let bucket = |&length: &usize| Tensor::zeros(length, DType::F32, &device);
        let buckets: Vec<Tensor> =
            layout.lengths.iter().map(bucket).collect::<Result<_>>().map_err(failed)?;
        let moments: Result<Vec<_>> =
            moments.iter().map(|of| on_device(of, plan, &device)).collect::<Result<_>>();
        let moments: Vec<_> = moments.map_err(failed)?;
        let trained: Vec<usize> =
            (0..params.len()).filter(|&index| plan.is_ever_trained(index)).collect();
        let of = OptimizerState { plan, params, moments: &moments };
        let updater = updater(gpu, &layout, &buckets, &of, &trained).map_err(failed)?;
        let follower = follower(gpu, all, &moments, &trained).map_err(failed)?;
        let (mut reducer, mut way) = (None, None);
        if collective.world_size().count() > 1 && collective.on_gpu().is_none() {
            let segments = collective.segments(&layout.lengths)?;
            let staging = Staging::new(gpu, segments, Segment::has_own_pages).map_err(failed)?;
            way = Some(staging.describe());
            let carrier = Carrier { staging, buckets: buckets.clone() };
            reducer = Some(HostStagedReducer::start(collective.clone(), carrier)?);
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
        let (collective, state) = (collective.clone(), Mutex::new(state));
        let store = Store { gpu: gpu.clone(), layout, overlap, collective, state };
        let (store, gpu) = (Arc::new(store), gpu.clone());
        let on_cpu = plan.on_cpu;
        Ok(Self { store, way, moments, gpu, updater, on_cpu, trained, follower })
    }

    fn reduce_rest(&self) -> std::result::Result<(), Error> {
        let failed = |source| Error::Tensor { phase: "reduction", step: 0, source };
        let mut state = self.store.state();
        let state = &mut *state;
        while state.progress.next < state.progress.order.len() {
            self.store.send_next(state).map_err(failed)?;
        }
        if let Some(failure) = state.failure.take() {
            return Err(failure.into());
        }
        if let Some(sums) = self.store.collective.on_gpu() {
            sums.finish()?;
        }
        if let Some(reducer) = &mut state.reducer {
            reducer.finish(|back| back.goes_before(&self.store.gpu).map_err(failed))?;
        }
        self.updater.note_squares(&state.ledger).map_err(failed)
    }
}

/// What is kept of a parameter on the GPU: the average alone if the CPU updates it.
fn on_device(
    moments: &Moments,
    plan: &OptimizerPlan,
    device: &Device,
) -> Result<[Option<Tensor>; 3]> {
    let tensor = |values: &[f32], is_here: bool| {
        let some = (is_here && !values.is_empty())
            .then(|| Tensor::from_slice(values, values.len(), device));
        some.transpose()
    };
    let [first, second] = [&moments.first, &moments.second].map(|of| tensor(of, !plan.on_cpu));
    Ok([first?, second?, tensor(&moments.average, true)?])
}

/// Parameters, and what their optimizer keeps of them.
struct OptimizerState<'a> {
    plan: &'a OptimizerPlan,
    params: &'a [Param],
    moments: &'a [[Option<Tensor>; 3]],
}

/// What moves the parameters that are `trained`.
fn updater(
    gpu: &Gpu,
    layout: &Layout,
    buckets: &[Tensor],
    state: &OptimizerState<'_>,
    trained: &[usize],
) -> Result<Updater> {
    let OptimizerState { plan, params, moments } = *state;
    let mut parameters = Vec::with_capacity(trained.len());
    for &index in trained {
        let (param, slot) = (&params[index], layout.slots[index]);
        parameters.push(Parameter {
            values: param.var()?,
            gradient: (&buckets[slot.bucket], slot.start),
            moments: moments[index].each_ref().map(Option::as_ref),
            decays: plan.group(index).is_some()
                || !(plan.no_decay_on_1d && param.shape().len() <= 1),
        });
    }
    Updater::new(gpu, &parameters)
}

/// What moves the averages of parameters that are not `trained`, and of buffers, which are kept
/// behind those of the parameters.
fn follower(
    gpu: &Gpu,
    params: &Params,
    moments: &[[Option<Tensor>; 3]],
    trained: &[usize],
) -> Result<Option<Updater>> {
    let behind = moments.iter().skip(params.parameters().len());
    let buffers = params.moving_buffers().zip(behind).map(|(buffer, of)| (buffer.var(), of));
    let parameters = params.parameters().iter().zip(moments).enumerate();
    let frozen = parameters.filter(|(index, _)| !trained.contains(index));
    let frozen = frozen.map(|(_, (param, of))| (param.var(), of));
    let mut followed = Vec::new();
    for (values, moments) in frozen.filter(|(_, [.., average])| average.is_some()).chain(buffers) {
        let values = values?;
        followed.push(Parameter {
            values,
            // None is looked at; the values stand for it.
            gradient: (values.as_tensor(), 0),
            moments: moments.each_ref().map(Option::as_ref),
            decays: false,
        });
    }
    if followed.is_empty() { Ok(None) } else { Updater::new(gpu, &followed).map(Some) }
}

/// Buckets of the GPU, and their way through the memory that the ranks share.
struct Carrier {
    staging: Staging<Segment>,
    buckets: Vec<Tensor>,
}

impl Carry for Carrier {
    type Moment = Moment;

    fn carry(
        &mut self,
        bucket: usize,
        ready: Moment,
        sum: Sum<'_>,
    ) -> std::result::Result<Moment, Error> {
        let carried = self.staging.visit(bucket, &self.buckets[bucket], &ready, sum);
        let failed = |source| Error::Tensor { phase: "reduction", step: 0, source };
        Ok(carried.map_err(failed)??)
    }
}

impl Reducer for GpuReducer {
    fn sink(&self) -> Arc<dyn GradientSink> {
        self.store.clone()
    }

    fn describe(&self) -> Option<String> {
        self.way.clone()
    }

    fn buckets(&self) -> Vec<Tensor> {
        self.store.state().buckets.clone()
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
        moments: &[Moments],
    ) -> Result<()> {
        let device = self.updater.device();
        let before: Vec<bool> =
            (0..trained.len()).map(|index| self.trained.contains(&index)).collect();
        for (index, home) in moments.iter().enumerate().take(trained.len()) {
            if trained[index] != before[index] {
                self.moments[index] = on_device(home, plan, &device)?;
            }
        }
        let mut state = self.store.state();
        let layout = &self.store.layout;
        state.progress.train_only(layout, trained);
        self.trained = (0..trained.len()).filter(|&index| trained[index]).collect();
        let of = OptimizerState { plan, params: params.parameters(), moments: &self.moments };
        self.updater = updater(&self.gpu, layout, &state.buckets, &of, &self.trained)?;
        self.follower = follower(&self.gpu, params, &self.moments, &self.trained)?;
        Ok(())
    }

    fn begin_step(&self) {
        let mut state = self.store.state();
        state.progress.begin_step();
        state.ledger.begin_step();
        state.decision = None;
        state.stack.clear();
    }

    fn next_pass(&self) -> Option<Result<Found>> {
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

    fn hear(&self) -> Result<Vec<[f64; 2]>> {
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
        let close = |source| Error::Tensor { phase: "end of a shard", step: 0, source };
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
        let state = self.store.state();
        let values: Result<Vec<Vec<f32>>> = state.buckets.iter().map(Tensor::to_vec1).collect();
        let values = values.ok()?;
        self.store.layout.slots.iter().zip(&state.progress.trained).position(
            |(slot, &is_trained)| {
                let gradient = &values[slot.bucket][slot.start..slot.start + slot.len];
                is_trained && gradient.iter().any(|value| !value.is_finite())
            },
        )
    }

    fn change_gradients(&self, change: &mut dyn FnMut(usize, &mut [f32])) -> Result<()> {
        for &index in &self.trained {
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
        moments: &mut [Moments],
        counts: &[Option<u64>],
    ) -> Result<()> {
        if update.plan().on_cpu {
            return self.update_on_cpu(update, params, moments, counts);
        }
        // A launch for the parameters of each group and count: most often, one for all.
        let plan = update.plan();
        let alike = |index: usize| (plan.group_of.get(index).copied(), counts[index]);
        let launches: BTreeSet<_> = self.trained.iter().map(|&index| alike(index)).collect();
        for launch in launches {
            let (group, count) = launch;
            let group = group.and_then(|group| plan.groups.get(group));
            let Some(rule) = update.on_gpu(count, group) else { continue };
            let (trained, state) = (&self.trained, self.store.state());
            let decision = state.decision.as_ref();
            self.updater.update(rule, decision, |place| alike(trained[place]) == launch)?;
        }
        Ok(())
    }

    fn begin_averages(&mut self, params: &Params, _moments: &mut [Moments]) -> Result<()> {
        let vars = averaged_vars(params, self.moments.len())?;
        for (var, [.., average]) in vars.into_iter().zip(&self.moments) {
            if let Some(average) = average {
                put(average, 0, var, false)?;
            }
        }
        Ok(())
    }

    fn average_buffers(
        &mut self,
        update: &Update<'_>,
        _: &Params,
        _: &mut [Moments],
    ) -> Result<()> {
        match (&mut self.follower, update.on_gpu(None, None)) {
            (Some(follower), Some(rule)) => {
                follower.update(rule, self.store.state().decision.as_ref(), |_| true)
            }
            _ => Ok(()),
        }
    }

    fn swap_averages(&mut self, params: &Params, _moments: &mut [Moments]) -> Result<()> {
        let vars = averaged_vars(params, self.moments.len())?;
        for (var, [.., average]) in vars.into_iter().zip(&self.moments) {
            if let Some(average) = average {
                exchange(var, average)?;
            }
        }
        Ok(())
    }

    fn take_over(&mut self, moments: &[Moments]) -> Result<()> {
        for (home, here) in moments.iter().zip(&self.moments) {
            let device = self.updater.device();
            let given = [&home.first, &home.second, &home.average];
            for (values, tensor) in given.into_iter().zip(here) {
                if let Some(tensor) = tensor.as_ref().filter(|_| !values.is_empty()) {
                    put(tensor, 0, &Tensor::from_slice(values, values.len(), &device)?, false)?;
                }
            }
        }
        Ok(())
    }

    fn bring_home(&self, moments: &mut [Moments]) -> Result<()> {
        for (home, here) in moments.iter_mut().zip(&self.moments) {
            let taken = [&mut home.first, &mut home.second, &mut home.average];
            for (values, tensor) in taken.into_iter().zip(here) {
                if let Some(tensor) = tensor {
                    *values = tensor.to_vec1()?;
                }
            }
        }
        Ok(())
    }
}
