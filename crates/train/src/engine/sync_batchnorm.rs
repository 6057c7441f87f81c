//! `SyncBatchNorm` (`distributed.sync_batchnorm`): the passes of all shards that take their batch
//! statistics together.
//!
//! A rank runs its shards at once, each on a thread of its own. Where a layer needs the whole
//! batch, they call an all-gather (`shard_group.rs`) with those of the other ranks. A shard without
//! samples takes part until the others are through. Everything comes back in the order of the
//! shards, so the bits are those of any world size.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use candle_core::{Result, bail};
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::collective::{self, Collective};
use crate::data::{Batch, sampler::MicroBatch};
use crate::engine::batch_to_device::DeviceBatch;
use crate::engine::pass::Step;
use crate::engine::step::NextBatch;
use crate::engine::vote::PassReport;
use crate::engine::{Engine, Error};
use crate::event::{Phase, TimeShares};
use crate::nn::{Params, with_concurrent_pass};
use crate::ops::{BatchGroup, GradientSink, SyncGroup};
use crate::plan::Plan;

/// Stack of a shard's thread, as that of a rank's training thread: Candle walks its graph by
/// recursion.
const STACK_BYTES: usize = 512 << 20;

/// This rank's shards, in one pass after another.
pub(super) struct JointPasses {
    group: Arc<ShardGroup>,
    /// Threads of the shards but the first, which the training thread runs.
    pools: Vec<ThreadPool>,
}

impl JointPasses {
    /// Returns the joint passes that `plan` asks for; `None` if no layer takes statistics of more
    /// than one shard.
    pub(super) fn new(
        plan: &Plan,
        params: &Params,
        collective: &Arc<dyn Collective>,
    ) -> std::result::Result<Option<Self>, Error> {
        let shards = plan.batch.shards.count();
        let world = collective.world_size().count();
        let is_joint = plan.distributed.sync_batchnorm && shards.max(world) > 1;
        if !is_joint || params.least_rows().is_none() {
            return Ok(None);
        }
        let shards = (shards / world).max(1);
        let threads = (plan.distributed.threads_per_rank / shards).max(1);
        let pool = |shard| {
            let pool = ThreadPoolBuilder::new().num_threads(threads).stack_size(STACK_BYTES);
            let pool = pool.thread_name(move |index| format!("shard-{shard}-{index}")).build();
            pool.map_err(|error| Error::Thread(std::io::Error::other(error)))
        };
        let pools = (1..shards).map(pool).collect::<std::result::Result<_, _>>()?;
        let group = Arc::new(ShardGroup::new(shards, collective.clone()));
        Ok(Some(Self { group, pools }))
    }

    /// Shards of this rank.
    pub(super) fn shards(&self) -> usize {
        1 + self.pools.len()
    }

    /// The other parts of the batch, for the layers of this rank's `shard`.
    pub(super) fn group(&self, shard: usize) -> BatchGroup {
        Arc::new(Member { group: self.group.clone(), shard })
    }

    /// Ends the pass of this rank's `shard`, whose layers, if it had samples, have asked for all
    /// that they need.
    pub(super) fn finish(&self, shard: usize, had_samples: bool) -> Result<()> {
        let mine = if had_samples { Message::Done } else { Message::Absent };
        while self.group.all_gather(shard, mine.clone())?.iter().any(Message::is_statistics) {
            if had_samples {
                bail!("{OTHER_LAYERS}");
            }
        }
        Ok(())
    }

    /// Runs `work` for each shard of this rank, all at once. If one fails, the others do.
    pub(super) fn run<T: Send>(&self, work: impl Fn(usize) -> Result<T> + Sync) -> Result<Vec<T>> {
        let watched = |shard| {
            let abort = AbortOnDrop(&self.group);
            let done = with_concurrent_pass(shard, || work(shard));
            if done.is_ok() {
                std::mem::forget(abort);
            }
            done
        };
        let mut found = Vec::new();
        let mut failures = Vec::new();
        for done in run_at_once(&self.pools, &watched) {
            match done {
                Ok(done) => found.push(done),
                Err(error) => failures.push(error),
            }
        }
        // The others failed because it did.
        let cause = failures.iter().position(|error| !error.to_string().contains(ANOTHER_FAILED));
        match cause {
            Some(cause) => Err(failures.swap_remove(cause)),
            None => failures.pop().map_or(Ok(found), Err),
        }
    }
}

/// Aborts the group if its shard fails or panics, so that no other waits for it.
struct AbortOnDrop<'a>(&'a ShardGroup);

impl Drop for AbortOnDrop<'_> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// `work` of as many shards as there are pools, each in its pool, and of shard 0 on this thread.
fn run_at_once<T: Send>(pools: &[ThreadPool], work: &(impl Fn(usize) -> T + Sync)) -> Vec<T> {
    let Some((last, others)) = pools.split_last() else { return vec![work(0)] };
    let mut of_last = None;
    let mut all = last.in_place_scope(|scope| {
        scope.spawn(|_| of_last = Some(work(pools.len())));
        run_at_once(others, work)
    });
    all.extend(of_last);
    all
}

impl Engine {
    /// The passes of this rank, those of all of its shards at once: batch norms take their
    /// statistics together. Gradients are added in the order of [`Engine::forward_backward`].
    pub(super) fn shards_at_once(
        &mut self,
        step: &Step,
        micro_batches: &[MicroBatch],
        next: NextBatch<'_>,
    ) -> std::result::Result<Vec<PassReport>, Error> {
        let failed = Error::tensor("forward", step.number);
        let mut batches = Vec::with_capacity(micro_batches.len());
        for micro_batch in micro_batches {
            let batch = self.load(step, micro_batch, next)?;
            let placed = batch.map(|batch| Ok((self.batch_on_device(&batch)?, batch)));
            batches.push(placed.transpose().map_err(failed)?);
        }
        (self.observer)(step.number, Phase::Forward);
        // Backward is a part of it: the shards are not at the same place at the same time.
        let passed = self.timed(
            |time| &mut time.forward,
            |engine| engine.joint_passes(step, micro_batches, &batches),
        );
        self.count_waiting(|time| &mut time.forward);
        let (shards, reports) =
            passed.map_err(|source| self.pass_failed("forward", step.number, source))?;
        for (index, gradients) in shards.iter().enumerate() {
            if index + 1 == shards.len() {
                self.reducer.begin_last_pass();
            }
            let delivered = gradients.deliver(self.sink.as_ref());
            delivered.map_err(|source| self.pass_failed("backward", step.number, source))?;
            if index + 1 < shards.len() {
                self.reducer.end_shard()?;
            }
        }
        Ok(reports)
    }

    /// The gradients of each shard of this rank, and what its passes found.
    fn joint_passes(
        &self,
        step: &Step,
        micro_batches: &[MicroBatch],
        batches: &[Option<(DeviceBatch, Batch)>],
    ) -> Result<(Vec<Arc<ShardGradients>>, Vec<PassReport>)> {
        let Some(joint) = &self.joint else { return Ok((Vec::new(), Vec::new())) };
        let passes = self.passes(step.number, step.loss_scale);
        let gradients: Vec<Arc<ShardGradients>> =
            (0..joint.shards()).map(|_| Arc::default()).collect();
        let per_shard = micro_batches.len() / joint.shards();
        let mut reports = Vec::with_capacity(micro_batches.len());
        for pass in 0..per_shard {
            let found = joint.run(|shard| {
                let at = shard * per_shard + pass;
                let sink: Arc<dyn GradientSink> = gradients[shard].clone();
                let mut report = None;
                if let Some((placed, batch)) = &batches[at] {
                    let group = Some(joint.group(shard));
                    let found =
                        passes.forward(&micro_batches[at], batch, &placed.into(), &sink, group)?;
                    report = Some(passes.backward(found)?.with_unreadable(batch.unreadable));
                }
                joint.finish(shard, report.is_some())?;
                Ok(report)
            })?;
            reports.extend(found.into_iter().flatten());
        }
        Ok((gradients, reports))
    }

    /// Ends a pass whose statistics other ranks share.
    pub(super) fn finish_joint_pass(
        &mut self,
        step: &Step,
        had_samples: bool,
    ) -> std::result::Result<(), Error> {
        let Some(joint) = &self.joint else { return Ok(()) };
        (self.observer)(step.number, Phase::Reducing);
        let finished = joint.finish(0, had_samples);
        self.time.communication += joint.group.take_wait_time().as_secs_f64();
        finished.map_err(|source| self.pass_failed("joint", step.number, source))
    }

    /// Waiting for other ranks in a pass is communication, not computing.
    pub(super) fn count_waiting(&mut self, share: impl Fn(&mut TimeShares) -> &mut f64) {
        let Some(joint) = &self.joint else { return };
        let wait_time = joint.group.take_wait_time().as_secs_f64();
        *share(&mut self.time) -= wait_time;
        self.time.communication += wait_time;
    }

    /// Returns the cause of a failed pass: a rank that is gone rather than the operation that
    /// waited for it.
    pub(super) fn pass_failed(
        &self,
        phase: &'static str,
        step: u64,
        source: candle_core::Error,
    ) -> Error {
        match self.joint.as_ref().and_then(|joint| joint.group.failure()) {
            Some(failure) => Error::Collective(failure),
            None => Error::Tensor { phase, step, source },
        }
    }
}

/// The gradients of one shard while those of the shards before it are not complete.
#[derive(Default)]
pub(super) struct ShardGradients(Mutex<Vec<Option<Vec<f32>>>>);

impl ShardGradients {
    /// Hands them over to `sink`.
    pub(super) fn deliver(&self, sink: &dyn GradientSink) -> Result<()> {
        let all = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        for (index, gradient) in all.into_iter().enumerate() {
            if let Some(gradient) = gradient {
                sink.add(index, &gradient)?;
                sink.complete(index)?;
            }
        }
        Ok(())
    }
}

impl GradientSink for ShardGradients {
    fn add(&self, index: usize, gradient: &[f32]) -> Result<()> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() <= index {
            all.resize(index + 1, None);
        }
        match &mut all[index] {
            Some(sum) => sum.iter_mut().zip(gradient).for_each(|(sum, value)| *sum += value),
            none => *none = Some(gradient.to_vec()),
        }
        Ok(())
    }

    /// Nothing leaves before the whole shard is over.
    fn complete(&self, _: usize) -> Result<()> {
        Ok(())
    }
}

const OTHER_LAYERS: &str = "a shard takes batch statistics where another has finished its pass";
const ANOTHER_FAILED: &str = "another shard of this rank failed";

/// A shard's contribution to an all-gather.
#[derive(Clone, Debug, PartialEq)]
enum Message {
    /// Statistics of a layer.
    Statistics(Vec<f64>),
    /// Nothing: it has no samples.
    Absent,
    /// Nothing: its pass is over.
    Done,
}

impl Message {
    fn is_statistics(&self) -> bool {
        matches!(self, Self::Statistics(_))
    }

    /// Eight bytes that say what it is, and the values.
    fn write(&self, bytes: &mut Vec<u8>) {
        let (head, values): (u64, &[f64]) = match self {
            Self::Absent => (0, &[]),
            Self::Done => (1, &[]),
            Self::Statistics(values) => (2 + values.len() as u64, values),
        };
        bytes.extend(head.to_le_bytes());
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }

    /// The first message of `bytes`, which lose it.
    fn read(bytes: &mut &[u8]) -> Option<Self> {
        let mut next = || -> Option<[u8; 8]> {
            let (first, rest) = bytes.split_first_chunk()?;
            *bytes = rest;
            Some(*first)
        };
        Some(match u64::from_le_bytes(next()?) {
            0 => Self::Absent,
            1 => Self::Done,
            n => Self::Statistics(
                (2..n).map(|_| next().map(f64::from_le_bytes)).collect::<Option<_>>()?,
            ),
        })
    }
}

/// The shards of this rank, and the collective that reaches those of others.
struct ShardGroup {
    collective: Arc<dyn Collective>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Completed all-gathers.
    completed: u64,
    /// Contributions of this rank's shards that have arrived.
    arrived: Vec<Option<Message>>,
    /// Result of the last all-gather.
    gathered: Arc<[Message]>,
    /// True if the group was aborted: a shard or a rank failed.
    aborted: bool,
    failure: Option<collective::Error>,
    /// Time spent in the ranks' collective.
    wait_time: Duration,
}

impl ShardGroup {
    /// The group of a rank with so many shards.
    fn new(shards: usize, collective: Arc<dyn Collective>) -> Self {
        let state = State { arrived: vec![None; shards], ..State::default() };
        Self { collective, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Gathers the contributions of the shards of all ranks, `mine` among them, in their order.
    fn all_gather(&self, shard: usize, mine: Message) -> Result<Arc<[Message]>> {
        let mut state = self.state();
        let number = state.completed;
        state.arrived[shard] = Some(mine);
        if !state.aborted && state.arrived.iter().all(Option::is_some) {
            self.exchange(&mut state);
            self.changed.notify_all();
        }
        let is_pending = |state: &mut State| state.completed == number && !state.aborted;
        let state =
            self.changed.wait_while(state, is_pending).unwrap_or_else(PoisonError::into_inner);
        match &state.failure {
            _ if state.completed > number => Ok(state.gathered.clone()),
            Some(failure) => bail!("{failure}"),
            None => bail!("{ANOTHER_FAILED}"),
        }
    }

    fn exchange(&self, state: &mut State) {
        let started = Instant::now();
        let mut mine = Vec::new();
        let arrived = state.arrived.iter_mut().filter_map(Option::take);
        arrived.for_each(|message| message.write(&mut mine));
        let gathered = self.collective.all_gather(&mine);
        state.wait_time += started.elapsed();
        match gathered {
            Ok(ranks) => {
                let read = |rank: &Vec<u8>| {
                    let mut bytes = rank.as_slice();
                    std::iter::from_fn(|| Message::read(&mut bytes)).collect::<Vec<_>>()
                };
                state.gathered = ranks.iter().flat_map(read).collect();
                state.completed += 1;
            }
            Err(failure) => {
                state.failure = Some(failure);
                state.aborted = true;
            }
        }
    }

    /// The error with which other ranks could not be reached, if there was one.
    fn failure(&self) -> Option<collective::Error> {
        self.state().failure.clone()
    }

    /// Time that this rank has waited for others since the last call.
    fn take_wait_time(&self) -> Duration {
        std::mem::take(&mut self.state().wait_time)
    }

    /// Wakes the shards that wait; every all-gather from now on fails.
    fn abort(&self) {
        self.state().aborted = true;
        self.changed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A shard that panics has aborted the group.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One shard of the group, as its layers see it.
struct Member {
    group: Arc<ShardGroup>,
    shard: usize,
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member").field("shard", &self.shard).finish_non_exhaustive()
    }
}

impl SyncGroup for Member {
    fn all_gather(&self, mine: Vec<f64>) -> Result<Vec<Vec<f64>>> {
        let all = self.group.all_gather(self.shard, Message::Statistics(mine))?;
        if all.contains(&Message::Done) {
            bail!("{OTHER_LAYERS}");
        }
        let values = |message: &Message| match message {
            Message::Statistics(values) => Some(values.clone()),
            Message::Absent | Message::Done => None,
        };
        Ok(all.iter().filter_map(values).collect())
    }
}
