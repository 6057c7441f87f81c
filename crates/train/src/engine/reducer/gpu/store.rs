//! The buckets in a GPU's memory: operations write gradients into them, and a bucket leaves when
//! its last one is in.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_core::{DType, Result, Tensor, bail};

use super::memory::Buckets;
use crate::collective::{self, Collective, GradientBuffer};
use crate::engine::error::Error;
use crate::engine::graph_capture::{Kind, kind_of_pass};
use crate::engine::reducer::buckets::{Layout, Slot};
use crate::engine::reducer::host_staged::{BucketCarrier, HostStagedReducer, Sum};
use crate::engine::reducer::progress::Progress;
use crate::ops::GradientSink;
use crate::ops::cuda::{Decision, Gpu, Ledger, Staging, StreamEvent, clear, write_gradient};

/// The buckets, as backward writes to them.
pub(super) struct Store {
    pub(super) gpu: Gpu,
    pub(super) layout: Layout,
    pub(super) overlap: bool,
    pub(super) collective: Arc<dyn Collective>,
    pub(super) state: Mutex<State>,
}

pub(super) struct State {
    /// For a group that cannot sum on GPUs. It ends before the buckets that it carries.
    pub(super) reducer: Option<HostStagedReducer<BucketInTransit>>,
    pub(super) buckets: Buckets,
    pub(super) progress: Progress,
    /// Losses and other results of the step's passes.
    pub(super) ledger: Ledger,
    /// The GPU's decision about the update of the step, if it takes one.
    pub(super) decision: Option<Decision>,
    /// Sum of the squares of all reduced gradients, once it was read.
    pub(super) squares: f64,
    /// Sums over this rank's earlier shards: (level in the tree, a tensor of each bucket that is
    /// reduced).
    pub(super) stack: Vec<(u32, BTreeMap<usize, Tensor>)>,
    /// Error of a bucket that could not leave; returned at the end of the step.
    pub(super) failure: Option<collective::Error>,
}

/// Bookkeeping on the CPU about the gradients of the current pass.
#[derive(Clone)]
pub(crate) struct Marks(pub(super) Progress);

impl Marks {
    /// Returns the kind of the next pass, if it is one that can be replayed.
    pub(in crate::engine) fn kind(&self) -> Option<Kind> {
        let Progress { written, trained, .. } = &self.0;
        let written = written.iter().zip(trained).filter(|(_, is_trained)| **is_trained);
        kind_of_pass(&written.map(|(&written, _)| written).collect::<Vec<bool>>())
    }
}

impl GradientSink for Store {
    fn add(&self, index: usize, gradient: &[f32]) -> Result<()> {
        let device = self.gpu.device();
        self.add_tensor(index, &Tensor::from_slice(gradient, gradient.len(), &device)?)
    }

    fn add_tensor(&self, index: usize, gradient: &Tensor) -> Result<()> {
        let slot = self.layout.slots[index];
        let mut state = self.state();
        if state.progress.order[..state.progress.next].contains(&slot.bucket) {
            bail!("parameter {index} delivered a gradient after its last in one pass");
        }
        if gradient.elem_count() != slot.len || gradient.dtype() != DType::F32 {
            bail!("a gradient {:?} for {} elements, f32", gradient.shape(), slot.len);
        }
        let is_more = state.progress.written[index];
        write_gradient(&state.buckets.whole(slot.bucket)?, slot.start, gradient, is_more)?;
        state.progress.wrote(index);
        Ok(())
    }

    fn complete(&self, index: usize) -> Result<()> {
        let mut state = self.state();
        state.progress.completed(self.layout.slots[index].bucket);
        while state.progress.may_send() {
            self.send_next(&mut state)?;
        }
        Ok(())
    }
}

impl Store {
    /// Takes the next bucket through the lower part of the tree, and enqueues its sum over the
    /// ranks.
    pub(super) fn send_next(&self, state: &mut State) -> Result<()> {
        let bucket = state.progress.order[state.progress.next];
        self.zero_unwritten(state, bucket)?;
        state.progress.next += 1;
        let values = state.buckets.whole(bucket)?;
        for (_, earlier) in state.stack.iter().rev() {
            write_gradient(&values, 0, &earlier[&bucket], true)?;
        }
        if state.failure.is_some() {
            return Ok(());
        }
        let State { reducer, buckets, failure, .. } = state;
        if let Some(gpus) = self.collective.on_gpu() {
            // With its memory given back only now, one bucket is summed while the next one fills.
            let freed = buckets.free(|| gpus.join());
            *failure = freed.and_then(|()| gpus.enqueue(buckets.sum(bucket, &values))).err();
            buckets.left(bucket);
        } else if let Some(reducer) = reducer {
            reducer.send(bucket, BucketInTransit { event: StreamEvent::now(&self.gpu)?, values });
            if buckets.carry_off(bucket) {
                reducer.take_arrived(|back| back.arrive(&self.gpu));
            }
        }
        Ok(())
    }

    pub(super) fn close_shard(&self, state: &mut State) -> Result<()> {
        let mut sum = BTreeMap::new();
        for bucket in state.progress.order.clone() {
            self.zero_unwritten(state, bucket)?;
            sum.insert(bucket, state.buckets.whole(bucket)?.copy()?);
        }
        let mut level = 0;
        while let Some((_, earlier)) = state.stack.pop_if(|(at, _)| *at == level) {
            for (bucket, earlier) in &earlier {
                write_gradient(&sum[bucket], 0, earlier, true)?;
            }
            level += 1;
        }
        state.stack.push((level, sum));
        state.progress.written.fill(false);
        Ok(())
    }

    /// Parameters that the loss did not reach count as zero, so that all ranks reduce the same.
    fn zero_unwritten(&self, state: &mut State, bucket: usize) -> Result<()> {
        let values = state.buckets.whole(bucket)?;
        let unwritten = self.layout.buckets[bucket].iter().filter(|&&p| !state.progress.written[p]);
        for &parameter in unwritten {
            let slot = self.layout.slots[parameter];
            clear(&values, slot.start, slot.len)?;
        }
        Ok(())
    }

    /// The summed gradient of a parameter of this rank. Waits for the GPU.
    pub(super) fn gradient(&self, index: usize) -> Result<Vec<f32>> {
        let slot = self.layout.slots[index];
        let (values, start) = self.summed_at(slot);
        values.narrow(0, start, slot.len)?.to_vec1()
    }

    /// Replaces the summed gradient of a parameter of this rank.
    pub(super) fn set_gradient(&self, index: usize, gradient: &[f32]) -> Result<()> {
        let slot = self.layout.slots[index];
        let (values, start) = self.summed_at(slot);
        write_gradient(
            &values,
            start,
            &Tensor::from_slice(gradient, slot.len, values.device())?,
            false,
        )
    }

    fn summed_at(&self, slot: Slot) -> (Tensor, usize) {
        let state = self.state();
        let (values, start) = state.buckets.summed_at(slot);
        (values.clone(), start)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // The state is whole between statements; a panic elsewhere ends the process anyway.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Carries buckets through the memory that the ranks share.
pub(super) struct StagingCarrier {
    pub(super) staging: Staging<GradientBuffer>,
    /// Elements of each bucket that come back, and the tensor that they go to.
    pub(super) back: Vec<(Range<usize>, Tensor)>,
}

/// A bucket in transit, and a moment: when it may be read, or when its sums are back.
pub(super) struct BucketInTransit {
    pub(super) event: StreamEvent,
    pub(super) values: Tensor,
}

impl BucketInTransit {
    /// Makes later work wait until the sums are back.
    pub(super) fn arrive(self, gpu: &Gpu) -> std::result::Result<(), Error> {
        self.event.goes_before(gpu).map_err(Error::tensor("reduction", 0))
    }
}

impl BucketCarrier for StagingCarrier {
    type Event = BucketInTransit;

    fn carry(
        &mut self,
        bucket: usize,
        BucketInTransit { event: moment, values }: BucketInTransit,
        sum: Sum<'_>,
    ) -> std::result::Result<BucketInTransit, Error> {
        let carried = self.staging.visit(bucket, (&values, &moment), &self.back[bucket], sum);
        let moment = carried.map_err(Error::tensor("reduction", 0))??;
        Ok(BucketInTransit { event: moment, values })
    }
}
