//! Gradients on their way from backward to the optimizer: operations write them into buckets, and a
//! communication thread reduces full buckets while backward goes on. They are sums;
//! `optimizer_step.rs` divides.
//!
//! A bucket's memory is owned by the thread that works on it: it is moved to the communication
//! thread when its last gradient is in, and comes back reduced. The training thread reduces the
//! last bucket itself, and whatever else did not leave during backward: it has nothing better to
//! do, and waking another thread twice costs more than a small bucket. Buckets leave in a fixed
//! order whatever the order of gradients, so that all ranks reduce the same bucket at the same
//! time.
//!
//! Over shards (DESIGN: the same bits at any world size) a rank adds its own shards' gradients in
//! the lower part of the fixed binary tree, like a binary counter; the collective continues the
//! same tree over ranks.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use candle_core::bail;
use rayon::prelude::*;

use crate::collective::{self, Collective, GradientBuffer};
use crate::engine::error::Error;
use crate::engine::ownership::{Division, Ownership, gather, is_mine};
use crate::engine::reducer::Reducer;
use crate::engine::reducer::buckets::{Layout, Slot};
use crate::engine::reducer::progress::Progress;
use crate::failpoint;
use crate::nn::{Param, Params, change_all};
use crate::ops::GradientSink;
use crate::optim::{
    ParameterState, ParameterUpdate, Update, shared_sum_of_squares, sum_of_squares,
};
use crate::plan::OptimizerPlan;
use crate::units::Rank;

/// Collects and reduces the gradients of one step after another.
pub(crate) struct CpuReducer {
    store: Arc<Store>,
    sums: BucketReduction,
    reduced: Receiver<ReducedBucket>,
    thread: Option<JoinHandle<()>>,
}

/// Owner of each parameter, and division of each bucket among the ranks.
struct ShardedBuckets {
    ownership: Arc<Ownership>,
    buckets: Vec<Division>,
}

struct ReducedBucket {
    bucket: usize,
    segment: GradientBuffer,
    /// Sums of squares of the members, in their order; zero for those that are not this rank's.
    result: Result<Vec<f64>, collective::Error>,
}

impl CpuReducer {
    /// A reducer over `collective` for buckets of `layout`, of which `ownership` says whose they
    /// are.
    pub(crate) fn new(
        collective: &Arc<dyn Collective>,
        layout: Layout,
        overlap: bool,
        ownership: Option<Arc<Ownership>>,
    ) -> Result<Self, Error> {
        let (layout, divided) = match ownership {
            None => (layout, None),
            Some(ownership) => {
                let (layout, buckets) = ownership.divide(layout);
                (layout, Some(Arc::new(ShardedBuckets { ownership, buckets })))
            }
        };
        let segments = collective.segments(&layout.lengths)?;
        let sums =
            BucketReduction { collective: collective.clone(), layout: layout.clone(), divided };
        let (full, to_reduce) = channel();
        let (done, reduced) = channel();
        let thread = std::thread::Builder::new()
            .name("communication".into())
            .spawn({
                let sums = sums.clone();
                move || communicate(&sums, &to_reduce, &done)
            })
            .map_err(Error::Thread)?;
        let state = State {
            progress: Progress::new(&layout),
            segments: segments.into_iter().map(Some).collect(),
            full: Some(full),
            squares: vec![0.0; layout.slots.len()],
            stack: Vec::new(),
        };
        let store = Arc::new(Store { layout, overlap, state: Mutex::new(state) });
        Ok(Self { store, sums, reduced, thread: Some(thread) })
    }

    fn take_back(
        &self,
        ReducedBucket { bucket, segment, result }: ReducedBucket,
    ) -> Result<(), Error> {
        let mut state = self.store.state();
        state.segments[bucket] = Some(segment);
        for (&parameter, squares) in self.store.layout.buckets[bucket].iter().zip(result?) {
            state.squares[parameter] = squares;
        }
        Ok(())
    }

    /// Calls `visit` with the reduced gradients of all parameters, in registration order; those of
    /// parameters that take no part, or are other ranks', are empty.
    fn gradients<T>(&self, visit: impl FnOnce(&[&[f32]]) -> T) -> T {
        let state = self.store.state();
        let gradient = |(index, (slot, &is_trained)): (usize, (&Slot, &bool))| {
            let segment = state.segments[slot.bucket].as_deref().unwrap_or_default();
            let is_here = is_trained && self.sums.is_mine(index);
            if is_here { &segment[slot.start..slot.start + slot.len] } else { &[] }
        };
        let slots = self.store.layout.slots.iter().zip(&state.progress.trained);
        let gradients: Vec<&[f32]> = slots.enumerate().map(gradient).collect();
        visit(&gradients)
    }
}

impl Reducer for CpuReducer {
    fn sink(&self) -> Arc<dyn GradientSink> {
        self.store.clone()
    }

    fn train_only(
        &mut self,
        _: &OptimizerPlan,
        trained: &[bool],
        _: &Params,
        _: &[ParameterState],
    ) -> candle_core::Result<()> {
        let mut state = self.store.state();
        state.progress.train_only(&self.store.layout, trained);
        state.squares.fill(0.0);
        Ok(())
    }

    fn begin_step(&self) {
        let mut state = self.store.state();
        state.progress.begin_step();
        state.stack.clear();
    }

    fn begin_last_pass(&self) {
        let Store { layout, overlap, .. } = &*self.store;
        self.store.state().progress.begin_last_pass(layout, *overlap);
    }

    fn end_shard(&self) -> Result<(), Error> {
        let mut state = self.store.state();
        let state = &mut *state;
        let mut sum = vec![Vec::new(); state.segments.len()];
        for place in 0..state.progress.order.len() {
            let bucket = state.progress.order[place];
            self.store.zero_unwritten(state, bucket);
            sum[bucket] = state.segments[bucket].as_deref().unwrap_or_default().to_vec();
        }
        let mut level = 0;
        while let Some((_, earlier)) = state.stack.pop_if(|(at, _)| *at == level) {
            sum.iter_mut().zip(&earlier).for_each(|(sum, earlier)| add(sum, earlier));
            level += 1;
        }
        state.stack.push((level, sum));
        state.progress.written.fill(false);
        Ok(())
    }

    fn finish_step(&self) -> Result<Duration, Error> {
        let started = Instant::now();
        let sent = self.store.state().progress.next;
        for _ in 0..sent {
            let reduced = self.reduced.recv().map_err(|_| Error::ThreadGone)?;
            self.take_back(reduced)?;
        }
        let order = self.store.state().progress.order.len();
        for _ in sent..order {
            // The lock is free while the segment is away.
            let left = self.store.close_next(&mut self.store.state());
            if let Some(full) = left {
                self.take_back(self.sums.reduce(full, shared_sum_of_squares))?;
            }
        }
        self.share_squares()?;
        if failpoint::flips("reduced")
            && let Some(segment) = &mut self.store.state().segments[0]
        {
            flip_bit(&mut segment[0], 22);
        }
        Ok(started.elapsed())
    }

    fn unused(&self) -> Vec<usize> {
        self.store.state().progress.unused()
    }

    fn squares(&self) -> f64 {
        self.store.state().squares.iter().sum()
    }

    fn first_not_finite(&self) -> Option<usize> {
        // Squares of f32 cannot overflow an f64 sum.
        self.store.state().squares.iter().position(|squares| !squares.is_finite())
    }

    fn change_gradients(
        &self,
        change: &mut dyn FnMut(usize, &mut [f32]),
    ) -> candle_core::Result<()> {
        let mut state = self.store.state();
        let State { segments, progress, .. } = &mut *state;
        for (index, slot) in self.store.layout.slots.iter().enumerate() {
            let is_here = progress.trained[index] && self.sums.is_mine(index);
            if let Some(segment) = segments[slot.bucket].as_mut()
                && is_here
            {
                change(index, &mut segment[slot.start..slot.start + slot.len]);
            }
        }
        Ok(())
    }

    fn update(
        &mut self,
        update: &Update<'_>,
        params: &[Param],
        states: &mut [ParameterState],
        counts: &[Option<u64>],
    ) -> candle_core::Result<()> {
        let vars: Vec<_> = params.iter().map(Param::var).collect::<Result<_, _>>()?;
        self.gradients(|gradients| {
            change_all(&vars, |values| {
                let all =
                    values.iter_mut().zip(gradients).zip(&mut *states).zip(params).zip(counts);
                // Those of other ranks come from them.
                let all = all.enumerate().filter(|(index, _)| self.sums.is_mine(*index));
                update.apply(all.map(|(index, ((((values, gradient), state), param), &count))| {
                    ParameterUpdate { values, gradient, state, index, shape: param.shape(), count }
                }));
                if failpoint::flips("weights") {
                    flip_bit(&mut values[0][0], 0);
                }
            })
        })?;
        if let Some(ParameterState { tensors, average }) = states.first_mut() {
            if let Some(tensor) = tensors.first_mut() {
                flip_bit_of(&mut tensor.values, "optimizer_state");
            }
            flip_bit_of(average, "averages");
        }
        Ok(())
    }

    fn share_updates(
        &mut self,
        update: &Update<'_>,
        params: &[Param],
        states: &mut [ParameterState],
    ) -> Result<(), Error> {
        self.share(update, params, states)
    }
}

impl Drop for CpuReducer {
    fn drop(&mut self) {
        // Without a sender the thread's loop ends.
        self.store.state().full = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was already seen as `ThreadGone`.
            drop(thread.join());
        }
    }
}

/// Body of the communication thread: reduces buckets in the order in which they come, and measures
/// them while they are in the cache and backward goes on.
fn communicate(
    sums: &BucketReduction,
    to_reduce: &Receiver<FullBucket>,
    done: &Sender<ReducedBucket>,
) {
    for full in to_reduce {
        if done.send(sums.reduce(full, sum_of_squares)).is_err() {
            return;
        }
    }
}

/// Sums buckets over the ranks.
#[derive(Clone)]
struct BucketReduction {
    collective: Arc<dyn Collective>,
    layout: Layout,
    /// `None` where every rank gets all sums.
    divided: Option<Arc<ShardedBuckets>>,
}

impl BucketReduction {
    /// True if this rank gets the sum of the parameter's gradients.
    fn is_mine(&self, parameter: usize) -> bool {
        is_mine(self.divided.as_ref().map(|divided| &*divided.ownership), parameter)
    }

    /// Sums one bucket over the ranks and measures its members, those that are this rank's, with
    /// `squares`.
    fn reduce(
        &self,
        FullBucket { bucket, mut segment }: FullBucket,
        squares: fn(&[f32]) -> f64,
    ) -> ReducedBucket {
        let divided = self.divided.as_ref();
        let division = divided.map(|divided| (&divided.buckets[bucket], &divided.ownership));
        let summed = match division {
            None => self.collective.all_reduce(&mut segment),
            Some((division, _)) => self.collective.reduce_scatter(&mut segment, &division.parts),
        };
        let of = |&parameter: &usize| {
            let Slot { start, len, .. } = self.layout.slots[parameter];
            if self.is_mine(parameter) { squares(&segment[start..start + len]) } else { 0.0 }
        };
        let result = summed.map(|()| self.layout.buckets[bucket].iter().map(of).collect());
        if let Some((division, _)) = division.filter(|(_, of)| of.frees_gradients)
            && result.is_ok()
        {
            segment.release(&division.others);
        }
        ReducedBucket { bucket, segment, result }
    }
}

/// Flips a bit of the first of `values`, if the fail point asks for it.
fn flip_bit_of(values: &mut [f32], point: &str) {
    if failpoint::flips(point)
        && let Some(value) = values.first_mut()
    {
        flip_bit(value, 0);
    }
}

/// Values that one thread copies or adds.
const PIECE: usize = 1 << 16;

/// The buckets, as backward writes to them.
struct Store {
    layout: Layout,
    /// Buckets leave as soon as they are full, or all at the end of the step.
    overlap: bool,
    state: Mutex<State>,
}

/// A bucket that leaves.
struct FullBucket {
    bucket: usize,
    segment: GradientBuffer,
}

struct State {
    /// `None` while the communication thread has the bucket.
    segments: Vec<Option<GradientBuffer>>,
    /// `None` once the reducer is closing.
    full: Option<Sender<FullBucket>>,
    progress: Progress,
    /// Sum of the squares of each parameter's reduced gradient.
    squares: Vec<f64>,
    /// Sums over this rank's earlier shards: (level in the tree, one vector per bucket).
    stack: Vec<(u32, Vec<Vec<f32>>)>,
}

impl GradientSink for Store {
    fn add(&self, index: usize, gradient: &[f32]) -> candle_core::Result<()> {
        self.change(
            index,
            |place, is_first| {
                if is_first { copy(place, gradient) } else { add(place, gradient) }
            },
        )
    }

    /// The first gradient of a shard is written where it stays. Another is made apart and added as
    /// a whole: its own sums must not depend on what was there.
    fn add_written(
        &self,
        index: usize,
        len: usize,
        write: &mut dyn FnMut(&mut [f32]),
    ) -> candle_core::Result<()> {
        self.change(index, |place, is_first| {
            if is_first {
                return write(place);
            }
            let mut more = vec![0.0; len];
            write(&mut more);
            add(place, &more);
        })
    }

    fn complete(&self, index: usize) -> candle_core::Result<()> {
        let mut state = self.state();
        state.progress.completed(self.layout.slots[index].bucket);
        while state.progress.may_send() {
            self.send_next(&mut state);
        }
        Ok(())
    }
}

impl Store {
    /// Hands the next bucket to the communication thread.
    fn send_next(&self, state: &mut State) {
        let Some(full) = self.close_next(state) else { return };
        match &state.full {
            // A closed channel means the thread died; `finish_step` reports it.
            Some(sender) => drop(sender.send(full)),
            None => state.segments[full.bucket] = Some(full.segment),
        }
    }

    /// Takes the next bucket, after the lower part of the tree.
    fn close_next(&self, state: &mut State) -> Option<FullBucket> {
        let bucket = state.progress.order[state.progress.next];
        self.zero_unwritten(state, bucket);
        state.progress.next += 1;
        let mut segment = state.segments[bucket].take()?;
        for (_, earlier) in state.stack.iter().rev() {
            add(&mut segment, &earlier[bucket]);
        }
        if failpoint::flips("gradient") {
            flip_bit(&mut segment[0], 22);
        }
        Some(FullBucket { bucket, segment })
    }

    /// Parameters that the loss did not reach count as zero, so that all ranks reduce the same.
    fn zero_unwritten(&self, state: &mut State, bucket: usize) {
        let Some(segment) = &mut state.segments[bucket] else { return };
        for &parameter in &self.layout.buckets[bucket] {
            if !state.progress.written[parameter] {
                let slot = self.layout.slots[parameter];
                segment[slot.start..slot.start + slot.len].fill(0.0);
            }
        }
    }

    /// Calls `change` with the memory of a parameter's gradient; its second argument is true if
    /// nothing of this shard is there yet.
    fn change(
        &self,
        index: usize,
        change: impl FnOnce(&mut [f32], bool),
    ) -> candle_core::Result<()> {
        let slot = self.layout.slots[index];
        let mut state = self.state();
        let state = &mut *state;
        let Some(segment) = &mut state.segments[slot.bucket] else {
            bail!("parameter {index} delivered a gradient after its last in one pass")
        };
        change(&mut segment[slot.start..slot.start + slot.len], !state.progress.written[index]);
        state.progress.wrote(index);
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is whole between statements; a panic elsewhere ends the process anyway.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Flips a bit, as failing memory does.
fn flip_bit(value: &mut f32, bit: u32) {
    *value = f32::from_bits(value.to_bits() ^ 1 << bit);
}

fn add(sum: &mut [f32], values: &[f32]) {
    sum.par_chunks_mut(PIECE).zip(values.par_chunks(PIECE)).for_each(|(sum, values)| {
        sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
    });
}

fn copy(to: &mut [f32], values: &[f32]) {
    let pieces = to.par_chunks_mut(PIECE).zip(values.par_chunks(PIECE));
    pieces.for_each(|(to, values)| to.copy_from_slice(values));
}

impl CpuReducer {
    /// Sends the sums of squares of this rank's parameters to the other ranks, and receives theirs.
    fn share_squares(&self) -> Result<(), Error> {
        let Some(ShardedBuckets { ownership, .. }) = self.sums.divided.as_deref() else {
            return Ok(());
        };
        let mut state = self.store.state();
        let squares = &mut state.squares;
        let mine: Vec<f64> =
            ownership.of(self.sums.collective.rank()).map(|parameter| squares[parameter]).collect();
        let all = self.sums.collective.all_gather(bytemuck::cast_slice(&mine))?;
        for (rank, bytes) in (0..).map(Rank).zip(&all) {
            let told = bytemuck::pod_collect_to_vec::<u8, f64>(bytes);
            for (parameter, told) in ownership.of(rank).zip(told) {
                squares[parameter] = told;
            }
        }
        Ok(())
    }

    /// Sends the parameters that this rank has moved to the others, receives theirs, and moves the
    /// averages of theirs, as if this rank had moved them.
    fn share(
        &self,
        update: &Update<'_>,
        params: &[Param],
        states: &mut [ParameterState],
    ) -> Result<(), Error> {
        let Some(ShardedBuckets { ownership, .. }) = self.sums.divided.as_deref() else {
            return Ok(());
        };
        let failed = Error::tensor("sharing", 0);
        let vars: Vec<_> =
            params.iter().map(Param::var).collect::<Result<_, _>>().map_err(failed)?;
        let trained = self.store.state().progress.trained.clone();
        let length = |(param, &is_trained): (&Param, &bool)| {
            if is_trained { param.elem_count() } else { 0 }
        };
        let lengths: Vec<usize> = params.iter().zip(&trained).map(length).collect();
        let owners: Vec<Rank> = (0..params.len()).map(|index| ownership.owner(index)).collect();
        let mut gathered = Ok(());
        change_all(&vars, |values| {
            let mut all: Vec<&mut [f32]> = values.iter_mut().map(Vec::as_mut_slice).collect();
            gathered = gather(self.sums.collective.as_ref(), &owners, &lengths, &mut all);
            let all = all.into_iter().zip(states).zip(params).enumerate();
            let others = all.filter(|(index, _)| gathered.is_ok() && !ownership.is_mine(*index));
            update.apply(others.map(|(index, ((values, state), param))| ParameterUpdate {
                values,
                gradient: &[],
                state,
                index,
                shape: param.shape(),
                count: None,
            }));
        })
        .map_err(failed)?;
        Ok(gathered?)
    }
}
