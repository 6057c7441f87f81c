//! Reduced gradients -> moved parameters, or the decision to leave them as they are.

use crate::engine::vote::{Totals, Vote};
use crate::engine::{Engine, Error};
use crate::nn::Param;
use crate::optim::{GradientNorm, Preparation, Rates, Update, clip_coefficient, ema_decay};
use crate::plan::OnNonFinite;
use crate::units::Rank;

/// Loss scale below which fp16 is given up.
const SCALE_FLOOR: f64 = 1.0 / (1 << 20) as f64;

impl Engine {
    /// What turns sums over passes, times the loss scale, into means over samples.
    pub(super) fn mean_factor(&self, totals: &Totals, loss_scale: f64) -> f32 {
        // Where nothing counts, the sums are zeros, and stay so.
        let weight = if totals.weight > 0.0 { totals.weight } else { 1.0 };
        let passes = weight / self.plan.batch.size.count() as f64;
        (1.0 / (passes * loss_scale)) as f32
    }

    /// Whether the parameters may move. A gradient that overflows while the loss is finite is the
    /// gradient scaler's business; everything else is `train.on_non_finite`'s.
    pub(super) fn decide(
        &mut self,
        step: u64,
        votes: &[Vote],
        totals: &Totals,
        norm: GradientNorm,
    ) -> Result<bool, Error> {
        let finite = totals.loss.is_finite() && norm.is_finite();
        let loss = totals.loss;
        // What is not finite has a policy of its own.
        if let Some(threshold) = self.plan.divergence_threshold
            && loss.is_finite()
            && loss > threshold
        {
            return Err(Error::Exploded { step, loss, threshold });
        }
        if let (Some(scaler), Some(plan)) = (&mut self.state.scaler, &self.plan.scaler) {
            scaler.update(plan, norm.is_finite());
            if scaler.scale < SCALE_FLOOR {
                return Err(Error::ScaleUnderflow { step, floor: SCALE_FLOOR });
            }
        }
        let scaler_handles = self.state.scaler.is_some() && totals.loss.is_finite();
        if finite || scaler_handles || self.plan.on_non_finite == OnNonFinite::Skip {
            return Ok(finite);
        }
        let what = if totals.loss.is_finite() { "the gradient" } else { "the loss" };
        Err(Error::NotFinite { what, step, culprit: self.culprit(votes) })
    }

    /// Where a value that is not finite was seen first.
    fn culprit(&self, votes: &[Vote]) -> String {
        let bad = |vote: &Vote| vote.passes.iter().any(|pass| !pass.loss().is_finite());
        let rank = votes.iter().position(bad).map(|rank| format!(" on rank {rank}"));
        let first = self.reducer.first_not_finite();
        let name = first.map(|parameter| {
            let name = self.params.parameters()[parameter].name();
            format!("; the first parameter with such a gradient is `{name}`")
        });
        rank.unwrap_or_default() + &name.unwrap_or_default()
    }

    /// Takes the mean, clips and moves every parameter but the `idle` ones, and all averages, in one pass over memory.
    pub(super) fn update(
        &mut self,
        step: u64,
        rates: Rates,
        (mean, norm): (f32, GradientNorm),
        idle: &[usize],
    ) -> Result<(), Error> {
        let (plan, count) = (&self.plan, self.state.updates + 1);
        let clip = plan.clip.norm.map_or(1.0, |limit| clip_coefficient(norm.norm(), limit));
        let limit = plan.clip.value.map_or(f32::INFINITY, |limit| limit as f32);
        let update = Update::new(self.optimizer.as_ref(), &plan.optimizer, rates)
            .prepared(Preparation { mean, clip: clip as f32, limit })
            .averaging(plan.ema.as_ref().map_or(1.0, |ema| ema_decay(ema, count)));
        let counts = self.counts(idle);
        let (params, moments) = (self.params.parameters(), &mut self.moments);
        let moved = self.reducer.update(&update, params, moments, &counts);
        let moved =
            moved.and_then(|()| self.reducer.average_buffers(&update, &self.params, moments));
        self.state.updates = count;
        for &parameter in idle {
            let name = params[parameter].name().to_owned();
            *self.state.missed.entry(name).or_default() += 1;
        }
        moved.map_err(|source| Error::Tensor { phase: "optimizer", step, source })
    }

    /// Which update of each parameter comes next, as PyTorch counts: those that it had no part in do not count. `None`
    /// for the `idle` ones.
    fn counts(&self, idle: &[usize]) -> Vec<Option<u64>> {
        let count = |(index, param): (usize, &Param)| {
            let missed = self.state.missed.get(param.name()).copied().unwrap_or(0);
            let next = (self.state.updates + 1).saturating_sub(missed).max(1);
            (!idle.contains(&index)).then_some(next)
        };
        self.params.parameters().iter().enumerate().map(count).collect()
    }

    /// Every parameter needs a gradient on every rank that had samples, unless unused ones are tolerated.
    pub(super) fn check_unused(&self, step: u64, votes: &[Vote]) -> Result<(), Error> {
        if self.plan.distributed.find_unused_parameters {
            return Ok(());
        }
        let leaves_some = |vote: &Vote| vote.had_samples() && !vote.unused.is_empty();
        let Some(rank) = votes.iter().position(leaves_some) else {
            return Ok(());
        };
        let name = |&parameter: &usize| self.params.parameters()[parameter].name().to_owned();
        let names = votes[rank].unused.iter().map(name).collect();
        Err(Error::Unused { step, rank: Rank(rank as u32), names })
    }

    /// Parameters that no rank with samples used: the optimizer leaves them alone, weight decay included, as DDP's.
    pub(super) fn unused_everywhere(votes: &[Vote]) -> Vec<usize> {
        let mut votes = votes.iter().filter(|vote| vote.had_samples());
        let mut unused = votes.next().map(|vote| vote.unused.clone()).unwrap_or_default();
        votes.for_each(|vote| unused.retain(|parameter| vote.unused.contains(parameter)));
        unused
    }
}
