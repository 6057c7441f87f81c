//! The buckets in the CPU's memory: operations write gradients into them, and a bucket leaves when
//! its last one is in.

use std::sync::mpsc::Sender;
use std::sync::{Mutex, MutexGuard, PoisonError};

use candle_core::bail;
use rayon::prelude::*;

use crate::collective::GradientBuffer;
use crate::engine::reducer::buckets::Layout;
use crate::engine::reducer::progress::Progress;
use crate::failpoint;
use crate::ops::GradientSink;

/// Values that one thread copies or adds.
const PIECE: usize = 1 << 16;

/// What operations write to.
pub(super) struct Store {
    pub(super) layout: Layout,
    /// Buckets leave as soon as they are full, or all at the end of the step.
    pub(super) overlap: bool,
    pub(super) state: Mutex<State>,
}

/// A bucket that leaves.
pub(super) struct Full {
    pub(super) bucket: usize,
    pub(super) segment: GradientBuffer,
}

pub(super) struct State {
    /// `None` while the communication thread has the bucket.
    pub(super) segments: Vec<Option<GradientBuffer>>,
    /// `None` once the reducer is closing.
    pub(super) full: Option<Sender<Full>>,
    pub(super) progress: Progress,
    /// Sum of the squares of each parameter's reduced gradient.
    pub(super) squares: Vec<f64>,
    /// Sums over this rank's earlier shards: (level in the tree, one vector per bucket).
    pub(super) stack: Vec<(u32, Vec<Vec<f32>>)>,
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
    pub(super) fn close_next(&self, state: &mut State) -> Option<Full> {
        let bucket = state.progress.order[state.progress.next];
        self.zero_unwritten(state, bucket);
        state.progress.next += 1;
        let mut segment = state.segments[bucket].take()?;
        for (_, earlier) in state.stack.iter().rev() {
            add(&mut segment, &earlier[bucket]);
        }
        if failpoint::flips("gradient") {
            turn_bit(&mut segment[0], 22);
        }
        Some(Full { bucket, segment })
    }

    /// Parameters that the loss did not reach count as zero, so that all ranks reduce the same.
    pub(super) fn zero_unwritten(&self, state: &mut State, bucket: usize) {
        let Some(segment) = &mut state.segments[bucket] else { return };
        for &parameter in &self.layout.buckets[bucket] {
            if !state.progress.written[parameter] {
                let slot = self.layout.slots[parameter];
                segment[slot.start..slot.start + slot.len].fill(0.0);
            }
        }
    }

    /// Gives the place of parameter `index` to `change`, and whether nothing of this shard is there
    /// yet.
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

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // The state is whole between statements; a panic elsewhere ends the process anyway.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What memory that fails does to a number.
pub(super) fn turn_bit(value: &mut f32, bit: u32) {
    *value = f32::from_bits(value.to_bits() ^ 1 << bit);
}

pub(super) fn add(sum: &mut [f32], values: &[f32]) {
    sum.par_chunks_mut(PIECE).zip(values.par_chunks(PIECE)).for_each(|(sum, values)| {
        sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
    });
}

fn copy(to: &mut [f32], values: &[f32]) {
    let pieces = to.par_chunks_mut(PIECE).zip(values.par_chunks(PIECE));
    pieces.for_each(|(to, values)| to.copy_from_slice(values));
}
