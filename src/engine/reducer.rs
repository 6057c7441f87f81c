//! Gradients on their way from backward to the optimizer: hooks write them into buckets, and a
//! communication thread reduces full buckets while backward goes on.
//!
//! A bucket's memory is owned by whoever works on it: it is moved to the communication thread when its
//! last gradient is in, and comes back reduced. Buckets leave in a fixed order whatever the order of
//! gradients, so that all ranks reduce the same bucket at the same time.
//!
//! Over shards (DESIGN: the same bits at any world size) a rank adds its own shards' gradients in the
//! lower part of the fixed binary tree, like a binary counter; the collective continues the same tree
//! over ranks.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use candle_core::{Storage, Tensor, bail};

use crate::collective::{self, Collective, Segment};
use crate::engine::buckets::Layout;
use crate::engine::error::Error;
use crate::nn::GradientSink;

/// Collects and reduces the gradients of one step after another.
pub(crate) struct Reducer {
    store: Arc<Store>,
    reduced: Receiver<Reduced>,
    thread: Option<JoinHandle<()>>,
}

/// What the hooks write to.
struct Store {
    layout: Layout,
    /// Buckets leave as soon as they are full, or all at the end of the step.
    overlap: bool,
    state: Mutex<State>,
}

struct State {
    /// `None` while the communication thread has the bucket.
    segments: Vec<Option<Segment>>,
    /// `None` once the reducer is closing.
    full: Option<Sender<(usize, Segment)>>,
    /// First bucket that has not left yet.
    next: usize,
    /// Gradients that each bucket still waits for in the last pass.
    missing: Vec<usize>,
    /// Whether buckets may leave: in the last pass of the step.
    last_pass: bool,
    /// Parameters whose slot holds a gradient of this shard.
    written: Vec<bool>,
    /// Parameters that had a gradient in this step.
    used: Vec<bool>,
    /// Sums over this rank's earlier shards: (level in the tree, one vector per bucket).
    stack: Vec<(u32, Vec<Vec<f32>>)>,
}

struct Reduced {
    bucket: usize,
    segment: Segment,
    result: Result<(), collective::Error>,
}

impl Reducer {
    /// A reducer over `collective` for buckets of `layout`.
    ///
    /// # Errors
    ///
    /// The collective has no memory for the buckets, or no thread can be started.
    pub(crate) fn new(
        collective: &Arc<dyn Collective>,
        layout: Layout,
        overlap: bool,
    ) -> Result<Self, Error> {
        let segments = collective.segments(&layout.lengths)?;
        let (full, to_reduce) = channel();
        let (done, reduced) = channel();
        let thread = std::thread::Builder::new()
            .name("communication".into())
            .spawn({
                let collective = collective.clone();
                move || communicate(collective.as_ref(), &to_reduce, &done)
            })
            .map_err(Error::Thread)?;
        let (buckets, parameters) = (layout.buckets.len(), layout.slots.len());
        let state = State {
            segments: segments.into_iter().map(Some).collect(),
            full: Some(full),
            next: 0,
            missing: vec![0; buckets],
            last_pass: false,
            written: vec![false; parameters],
            used: vec![false; parameters],
            stack: Vec::new(),
        };
        let store = Arc::new(Store { layout, overlap, state: Mutex::new(state) });
        Ok(Self { store, reduced, thread: Some(thread) })
    }

    /// Where the parameters' hooks deliver.
    pub(crate) fn sink(&self) -> Arc<dyn GradientSink> {
        self.store.clone()
    }

    /// Opens a step.
    pub(crate) fn begin_step(&self) {
        let mut state = self.store.state();
        state.next = 0;
        state.last_pass = false;
        state.written.fill(false);
        state.used.fill(false);
        state.stack.clear();
    }

    /// Announces the last pass of the step: from now on buckets leave when they are full.
    pub(crate) fn begin_last_pass(&self) {
        let mut state = self.store.state();
        state.last_pass = self.store.overlap;
        let members = self.store.layout.buckets.iter().map(Vec::len);
        state.missing = members.collect();
    }

    /// Closes a shard that is not this rank's last: its sum goes one branch up the tree.
    pub(crate) fn end_shard(&self) {
        let mut state = self.store.state();
        let state = &mut *state;
        self.store.zero_unwritten(state, 0..self.store.layout.buckets.len());
        let mut sum: Vec<Vec<f32>> =
            state.segments.iter().flatten().map(|segment| segment.to_vec()).collect();
        let mut level = 0;
        while let Some((_, earlier)) = state.stack.pop_if(|(at, _)| *at == level) {
            sum.iter_mut().zip(&earlier).for_each(|(sum, earlier)| add(sum, earlier));
            level += 1;
        }
        state.stack.push((level, sum));
        state.written.fill(false);
    }

    /// Sends off what is left and waits for all buckets. Returns the time of the wait: communication
    /// that backward did not hide.
    ///
    /// # Errors
    ///
    /// A collective failed; the group is then unusable.
    pub(crate) fn finish_step(&self) -> Result<Duration, Error> {
        let started = Instant::now();
        {
            let mut state = self.store.state();
            while state.next < self.store.layout.buckets.len() {
                self.store.send_next(&mut state);
            }
        }
        for _ in 0..self.store.layout.buckets.len() {
            let Ok(Reduced { bucket, segment, result }) = self.reduced.recv() else {
                return Err(Error::ThreadGone);
            };
            self.store.state().segments[bucket] = Some(segment);
            result?;
        }
        Ok(started.elapsed())
    }

    /// Parameters (registration index) that had no gradient on this rank in the step.
    pub(crate) fn unused(&self) -> Vec<usize> {
        let state = self.store.state();
        (0..state.used.len()).filter(|&parameter| !state.used[parameter]).collect()
    }

    /// Gives the gradient of each parameter in registration order to `visit`.
    pub(crate) fn for_each_gradient(&self, mut visit: impl FnMut(usize, &mut [f32])) {
        let mut state = self.store.state();
        for (parameter, slot) in self.store.layout.slots.iter().enumerate() {
            if let Some(segment) = &mut state.segments[slot.bucket] {
                visit(parameter, &mut segment[slot.start..slot.start + slot.len]);
            }
        }
    }
}

impl Drop for Reducer {
    fn drop(&mut self) {
        // Without a sender the thread's loop ends.
        self.store.state().full = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was already seen as `ThreadGone`.
            drop(thread.join());
        }
    }
}

impl GradientSink for Store {
    fn accept(&self, index: usize, gradient: &Tensor) -> candle_core::Result<()> {
        let gradient = gradient.contiguous()?;
        let (storage, layout) = gradient.storage_and_layout();
        let (Storage::Cpu(storage), Some((start, end))) = (&*storage, layout.contiguous_offsets())
        else {
            bail!("gradients of CPU ranks are contiguous CPU tensors")
        };
        self.write(index, &storage.as_slice::<f32>()?[start..end])
    }
}

impl Store {
    fn write(&self, index: usize, gradient: &[f32]) -> candle_core::Result<()> {
        let slot = self.layout.slots[index];
        let mut state = self.state();
        let state = &mut *state;
        let Some(segment) = &mut state.segments[slot.bucket] else {
            bail!("parameter {index} delivered a second gradient in one pass")
        };
        let target = &mut segment[slot.start..slot.start + slot.len];
        if state.written[index] {
            add(target, gradient);
        } else {
            target.copy_from_slice(gradient);
        }
        state.written[index] = true;
        state.used[index] = true;
        if state.last_pass {
            state.missing[slot.bucket] -= 1;
            while state.missing.get(state.next) == Some(&0) {
                self.send_next(state);
            }
        }
        Ok(())
    }

    /// Hands the next bucket to the communication thread, after the lower part of the tree.
    fn send_next(&self, state: &mut State) {
        let bucket = state.next;
        self.zero_unwritten(state, bucket..bucket + 1);
        state.next += 1;
        let Some(mut segment) = state.segments[bucket].take() else { return };
        for (_, earlier) in state.stack.iter().rev() {
            add(&mut segment, &earlier[bucket]);
        }
        match &state.full {
            // A closed channel means the thread died; `finish_step` reports it.
            Some(full) => drop(full.send((bucket, segment))),
            None => state.segments[bucket] = Some(segment),
        }
    }

    /// Parameters that the loss did not reach count as zero, so that all ranks reduce the same.
    fn zero_unwritten(&self, state: &mut State, buckets: std::ops::Range<usize>) {
        for bucket in buckets {
            let Some(segment) = &mut state.segments[bucket] else { continue };
            for &parameter in &self.layout.buckets[bucket] {
                if !state.written[parameter] {
                    let slot = self.layout.slots[parameter];
                    segment[slot.start..slot.start + slot.len].fill(0.0);
                }
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is whole between statements; a panic elsewhere ends the process anyway.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Body of the communication thread: reduces buckets in the order in which they come.
fn communicate(
    collective: &dyn Collective,
    to_reduce: &Receiver<(usize, Segment)>,
    done: &Sender<Reduced>,
) {
    for (bucket, mut segment) in to_reduce {
        let result = collective.all_reduce(&mut segment);
        if done.send(Reduced { bucket, segment, result }).is_err() {
            return;
        }
    }
}

fn add(sum: &mut [f32], values: &[f32]) {
    sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
}
