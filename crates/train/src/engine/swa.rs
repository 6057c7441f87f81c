//! Stochastic weight averaging (`[swa]`): the weights of some steps join a plain average, as
//! `AveragedModel` has it; when training is over, batch norms get the statistics of the averaged
//! weights, as `update_bn` has it.
//!
//! Each shard takes the plain average over its passes, and these are averaged in the order of the
//! shards, each by its passes: the same bits at any world size. One shard gives PyTorch's numbers.

use std::collections::BTreeMap;
use std::f64::consts::PI;

use candle_core::{Result, Tensor};

use crate::data::Batch;
use crate::data::sampler::MicroBatch;
use crate::engine::batch_to_device::DeviceBatch;
use crate::engine::pass::Passes;
use crate::engine::step::NextBatch;
use crate::engine::vote::exchange;
use crate::engine::{Engine, Error};
use crate::event::{Phase, Stop};
use crate::failpoint;
use crate::nn::{Buffer, ForwardContext, Mode, Params, Track, change_values};
use crate::ops::BatchGroup;
use crate::optim::follow_values;
use crate::plan::{AnnealStrategy, SwaPlan, SwaRate};

/// Values of all moving buffers, in registration order.
type Values = Vec<Vec<f32>>;

impl Engine {
    /// Adds the weights after a step to the average, where that is due.
    pub(super) fn average_weights(&mut self) -> std::result::Result<(), Error> {
        let (Some(plan), Some(mut swa)) = (self.plan.swa, self.state.swa) else { return Ok(()) };
        let step = self.state.step;
        // More steps were asked for than there were when it was complete.
        swa.is_complete = false;
        if plan.is_due(step, self.plan.length.steps_per_epoch) {
            self.copy_optimizer_state_to_host()?;
            swa.averaged += 1;
            let moved = self.join_average(share(swa.averaged) as f32);
            moved.map_err(Error::tensor("averaged", step))?;
        }
        self.state.swa = Some(swa);
        Ok(())
    }

    fn join_average(&mut self, share: f32) -> Result<()> {
        for (param, state) in self.params.parameters().iter().zip(&mut self.optimizer_state) {
            change_values(param.var()?, |values| {
                follow_values(&mut state.average, values, share);
            })?;
        }
        self.reducer.take_over(&self.optimizer_state)
    }

    /// True if there is an average that lacks only its statistics: [`Engine::update_bn`] completes
    /// it.
    pub fn has_open_average(&self) -> bool {
        self.state.swa.is_some_and(|swa| swa.averaged > 0 && !swa.is_complete)
    }

    /// Measures the batch norms' statistics of the averaged weights over `steps`, which are this
    /// rank's passes of an epoch. From now on the average is what is evaluated.
    ///
    /// # Errors
    ///
    /// A tensor operation, a sample or another rank failed; [`Error::BrokenOff`] on all ranks once
    /// `stop_requested` of any of them says so: then the average stays open.
    pub fn update_bn(
        &mut self,
        steps: &mut dyn Iterator<Item = Vec<MicroBatch>>,
        next: NextBatch<'_>,
        stop_requested: &dyn Fn() -> Option<Stop>,
    ) -> std::result::Result<(), Error> {
        let step = self.state.step;
        let failed = Error::tensor("update_bn", step);
        if self.params.moving_buffers().next().is_some() {
            self.broadcast_buffers()?;
            let trained = values(&self.params).map_err(failed)?;
            let measured = self.with_averages(|engine| {
                let before = values(&engine.params).map_err(failed)?;
                // What is no statistic stays as it is.
                put(&engine.params, &trained).map_err(failed)?;
                let mut running = RunningStatistics::default();
                for (number, micro_batches) in (step + 1..).zip(steps) {
                    if let Some(stop) = engine.urgent_request(stop_requested)? {
                        put(&engine.params, &before).map_err(failed)?;
                        return Err(Error::BrokenOff(stop));
                    }
                    engine.measure(number, &micro_batches, next, &mut running)?;
                }
                let all = running.finish(&engine.params).map_err(failed)?;
                let mean = engine.mean_over_shards(&all, &trained)?;
                put(&engine.params, &mean).map_err(failed)
            });
            measured.map_err(failed)??;
            // The optimizer's state has changed where it is.
            self.host_state_step = None;
        }
        if let Some(swa) = &mut self.state.swa {
            swa.is_complete = true;
        }
        Ok(())
    }

    /// The most urgent of what all ranks are asked for, if it cannot wait; equal on all ranks.
    fn urgent_request(
        &self,
        stop_requested: &dyn Fn() -> Option<Stop>,
    ) -> std::result::Result<Option<Stop>, Error> {
        (self.observer)(self.state.step, Phase::Reducing);
        let all = exchange(self.collective.as_ref(), &stop_requested())?;
        Ok(all.into_iter().flatten().max().filter(|stop: &Stop| stop.is_urgent()))
    }

    /// The passes of a step; those that share their statistics at once.
    fn measure(
        &mut self,
        number: u64,
        micro_batches: &[MicroBatch],
        next: NextBatch<'_>,
        running: &mut RunningStatistics,
    ) -> std::result::Result<(), Error> {
        let failed = Error::tensor("update_bn", number);
        let mut placed = Vec::new();
        for micro_batch in micro_batches {
            (self.observer)(self.state.step, Phase::LoadingData);
            failpoint::reach("update_bn");
            let batch = if micro_batch.samples.is_empty() { None } else { Some(next()?) };
            let batch = batch.map(|batch| Ok((self.batch_on_device(&batch)?, batch))).transpose();
            (self.observer)(self.state.step, Phase::Forward);
            let batch = batch.map_err(failed)?;
            if self.joint.is_some() {
                placed.push(batch);
            } else if let Some(batch) = batch {
                let n = running.enter(micro_batch.shard, &self.params).map_err(failed)?;
                let done =
                    forward_for_statistics(&self.passes(number, 1.0), micro_batch, &batch, None, n);
                done.map_err(failed)?;
            }
        }
        let measured = self.measure_together(number, micro_batches, &placed, running);
        measured.map_err(|source| self.pass_failed("update_bn", number, source))
    }

    /// The passes of all shards that take their statistics together, which are then those of the
    /// first shard.
    fn measure_together(
        &self,
        number: u64,
        micro_batches: &[MicroBatch],
        placed: &[Option<LoadedBatch>],
        running: &mut RunningStatistics,
    ) -> Result<()> {
        let Some(joint) = &self.joint else { return Ok(()) };
        let passes = self.passes(number, 1.0);
        let per_shard = micro_batches.len() / joint.shards();
        for pass in 0..per_shard {
            let is_first = micro_batches[pass].shard == 0 && placed[pass].is_some();
            let n = if is_first { running.enter(0, &self.params)? } else { 0 };
            joint.run(|shard| {
                let at = shard * per_shard + pass;
                if let Some(batch) = &placed[at] {
                    let n = if shard == 0 { n } else { 0 };
                    forward_for_statistics(
                        &passes,
                        &micro_batches[at],
                        batch,
                        Some(joint.group(shard)),
                        n,
                    )?;
                }
                joint.finish(shard, placed[at].is_some())
            })?;
        }
        Ok(())
    }

    /// The mean over the shards of all ranks, each as often as it has passes; `otherwise` where
    /// there are none.
    fn mean_over_shards(
        &self,
        mine: &[ShardStatistics],
        otherwise: &Values,
    ) -> std::result::Result<Values, Error> {
        let words: Vec<u64> = mine.iter().flat_map(ShardStatistics::words).collect();
        let all = self.collective.all_gather(bytemuck::cast_slice(&words))?;
        let lengths: Vec<usize> = otherwise.iter().map(Vec::len).collect();
        let n: usize = lengths.iter().sum();
        let mut shards = BTreeMap::new();
        for bytes in all {
            let words: Vec<u64> = bytemuck::pod_collect_to_vec(&bytes);
            for shard in words.chunks_exact(2 + n) {
                shards.insert(shard[0], shard[1..].to_vec());
            }
        }
        let passes: u64 = shards.values().map(|shard| shard[0]).sum();
        if passes == 0 {
            return Ok(otherwise.clone());
        }
        let element = |at: usize| {
            let parts = shards.values().map(|s| s[0] as f64 * f64::from_bits(s[1 + at]));
            (parts.sum::<f64>() / passes as f64) as f32
        };
        let mut elements = (0..n).map(element);
        Ok(lengths.iter().map(|&length| elements.by_ref().take(length).collect()).collect())
    }
}

/// A batch, and its inputs and targets where the model computes.
type LoadedBatch = (DeviceBatch, Batch);

/// A forward pass in training mode without gradients, the `n`-th of its shard; 0 = its statistics
/// are not looked at.
fn forward_for_statistics(
    passes: &Passes<'_>,
    micro_batch: &MicroBatch,
    (placed, batch): &LoadedBatch,
    group: Option<BatchGroup>,
    n: u64,
) -> Result<()> {
    let mut context =
        ForwardContext { activation_checkpointing: false, ..passes.context(micro_batch, group) };
    if let Mode::Train { track, .. } = &mut context.mode {
        *track = if n > 0 { Track::Average(n) } else { Track::Nothing };
    }
    passes.model.compare(&placed.inputs, &placed.targets, &passes.draws(batch), &context)?;
    Ok(())
}

/// Statistics of one shard.
struct ShardStatistics {
    shard: usize,
    passes: u64,
    values: Values,
}

impl ShardStatistics {
    fn words(&self) -> impl Iterator<Item = u64> {
        let values = self.values.iter().flatten().map(|&value| f64::from(value).to_bits());
        [self.shard as u64, self.passes].into_iter().chain(values)
    }
}

/// The shards of this rank; the values of the one at hand are in the buffers.
#[derive(Default)]
struct RunningStatistics {
    shards: Vec<ShardStatistics>,
    at: usize,
}

impl RunningStatistics {
    /// Puts the values of `shard` into the buffers. Returns which of its passes comes next, from 1.
    fn enter(&mut self, shard: usize, params: &Params) -> Result<u64> {
        let known = self.shards.iter().position(|of| of.shard == shard);
        let next = known.unwrap_or(self.shards.len());
        if next != self.at
            && let Some(left) = self.shards.get_mut(self.at)
        {
            left.values = values(params)?;
        }
        match known {
            None => self.shards.push(ShardStatistics { shard, passes: 0, values: Values::new() }),
            Some(known) if known != self.at => put(params, &self.shards[known].values)?,
            Some(_) => {}
        }
        self.at = next;
        self.shards[next].passes += 1;
        Ok(self.shards[next].passes)
    }

    /// Returns all shards.
    fn finish(mut self, params: &Params) -> Result<Vec<ShardStatistics>> {
        if let Some(left) = self.shards.get_mut(self.at) {
            left.values = values(params)?;
        }
        Ok(self.shards)
    }
}

fn values(params: &Params) -> Result<Values> {
    params.moving_buffers().map(|buffer| buffer.var()?.flatten_all()?.to_vec1()).collect()
}

fn put(params: &Params, values: &Values) -> Result<()> {
    params.moving_buffers().zip(values).try_for_each(|(buffer, values): (&Buffer, _)| {
        let var = buffer.var()?;
        var.set(&Tensor::from_slice(values, buffer.shape(), var.device())?)
    })
}

/// Share of the weights in the plain average that they are the `count`-th to join (from 1).
fn share(count: u64) -> f64 {
    1.0 / count.max(1) as f64
}

/// The learning rate of the step after `done` finished ones, as `torch.optim.swa_utils.SWALR` has
/// it: `from` is the schedule's at the start of the averaging. `None` before it, and where the
/// schedule goes on.
pub(super) fn swa_lr(plan: &SwaPlan, done: u64, steps_per_epoch: u64, from: f64) -> Option<f64> {
    let SwaRate { lr, anneal_epochs, anneal_strategy } = plan.rate?;
    let epochs = done.checked_sub(plan.start)? / steps_per_epoch.max(1);
    let t = if anneal_epochs == 0 { 1.0 } else { epochs as f64 / anneal_epochs as f64 }.min(1.0);
    let alpha = match anneal_strategy {
        AnnealStrategy::Cos => (1.0 - (PI * t).cos()) / 2.0,
        AnnealStrategy::Linear => t,
    };
    Some(lr * alpha + from * (1.0 - alpha))
}
