//! Reduced gradients -> moved parameters, or the decision to leave them as they are: unscale,
//! check, clip, update. The arithmetic of clipping is in `optim::clip`.
//!
//! Parameters can be frozen for the whole run or for a part of it. A run has phases, which begin at
//! step boundaries. In each, frozen parameters have no gradient and no optimizer state, and their
//! buckets are not reduced. All ranks enter a phase at the same step: it follows from the plan.

use rayon::prelude::*;

use crate::engine::pass::Step;
use crate::engine::vote::{ReducedStep, Vote};
use crate::engine::{Engine, Error};
use crate::event::Phase;
use crate::nn::Param;
use crate::optim::{
    GradientNorm, Optimizer, ParameterState, Preparation, Rates, Update, clip_coefficient,
};
use crate::plan::{OnNonFinite, Plan};
use crate::rng::{Key, Purpose, name_hash};
use crate::units::Rank;

/// The mean gradient over all samples of a step.
pub(super) struct MeanGradient {
    /// Factor that makes means of the reduced gradients.
    pub(super) factor: f32,
    /// Before clipping.
    pub(super) norm: GradientNorm,
}

impl Engine {
    /// The reduced gradients are sums over passes, times the loss scale. What makes means over
    /// samples of them is applied by [`Engine::update`], in the same pass over memory.
    pub(super) fn unscale(&self, step: &Step, reduced: &ReducedStep) -> MeanGradient {
        let factor = self.mean_factor(step, reduced.totals.weight);
        MeanGradient { factor, norm: GradientNorm::new(self.reducer.squares(), f64::from(factor)) }
    }

    /// Returns the factor that makes means of a step's sums, from the total weight of its passes.
    pub(super) fn mean_factor(&self, step: &Step, weight: f64) -> f32 {
        // Where nothing counts, the sums are zeros, and stay so.
        let weight = if weight > 0.0 { weight } else { 1.0 };
        let passes = weight / self.plan.batch.size.count() as f64;
        (1.0 / (passes * step.loss_scale)) as f32
    }

    /// True if the parameters may move; `false` skips the update.
    pub(super) fn check(
        &mut self,
        step: &Step,
        reduced: &ReducedStep,
        gradient: &MeanGradient,
    ) -> Result<bool, Error> {
        self.check_unused(step.number, &reduced.votes)?;
        self.check_readable(&reduced.totals)?;
        self.check_divergence(step.number, reduced.totals.loss)?;
        self.check_finite(step.number, reduced, gradient)
    }

    fn check_divergence(&self, step: u64, loss: f64) -> Result<(), Error> {
        match self.plan.divergence_threshold {
            // What is not finite has a policy of its own.
            Some(threshold) if loss.is_finite() && loss > threshold => {
                Err(Error::Exploded { step, loss, threshold })
            }
            _ => Ok(()),
        }
    }

    /// A gradient that overflows while the loss is finite is the gradient scaler's business;
    /// everything else is `train.on_non_finite`'s.
    fn check_finite(
        &mut self,
        step: u64,
        ReducedStep { votes, totals }: &ReducedStep,
        gradient: &MeanGradient,
    ) -> Result<bool, Error> {
        let finite = totals.loss.is_finite() && gradient.norm.is_finite();
        self.move_loss_scale(step, gradient.norm.is_finite())?;
        let scaler_handles = self.state.scaler.is_some() && totals.loss.is_finite();
        if finite || scaler_handles || self.plan.on_non_finite == OnNonFinite::Skip {
            return Ok(finite);
        }
        let what = if totals.loss.is_finite() { "the gradient" } else { "the loss" };
        Err(Error::NotFinite { what, step, culprit: self.culprit(votes) })
    }

    /// Describes the rank and the parameter in which a value that is not finite was seen first.
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

    /// Returns what [`Engine::update`] does with each gradient before it is used: scaling to the
    /// mean, clipping by the norm of all, clipping by value.
    pub(super) fn clip(&self, gradient: &MeanGradient) -> Preparation {
        let plan = &self.plan.clip;
        let clip = plan.norm.map_or(1.0, |limit| clip_coefficient(gradient.norm.norm(), limit));
        let limit = plan.value.map_or(f32::INFINITY, |limit| limit as f32);
        Preparation { mean: gradient.factor, clip: clip as f32, limit }
    }

    /// Prepares the gradients and adds the noise of `train.gradient_noise`, if there is any;
    /// returns the preparation that the update still has to do.
    fn add_noise(&self, preparation: Preparation) -> candle_core::Result<Preparation> {
        let Some(first) = self.plan.clip.noise else { return Ok(preparation) };
        let deviation = (first / (1.0 + self.state.step as f64).powf(0.55)).sqrt();
        self.reducer.change_gradients(&mut |index, gradient| {
            let name = name_hash(self.params.parameters()[index].name());
            let key = Key::new(self.plan.seed, Purpose::GradientNoise, self.state.step, name);
            gradient.par_iter_mut().enumerate().for_each(|(element, value)| {
                let noise = deviation * key.normal(2 * element as u64);
                *value = preparation.of(*value) + noise as f32;
            });
        })?;
        Ok(Preparation::default())
    }

    /// Prepares gradients and moves every parameter that was used, and all averages, in one pass
    /// over memory.
    pub(super) fn update(
        &mut self,
        step: &Step,
        reduced: &ReducedStep,
        preparation: Preparation,
    ) -> Result<(), Error> {
        (self.observer)(step.number, Phase::Optimizer);
        let unused = unused_everywhere(&reduced.votes);
        self.timed(
            |time| &mut time.optimizer,
            |engine| {
                let remaining = engine.add_noise(preparation)?;
                engine.optimizer_step(step.rates, remaining, &unused)
            },
        )
        .map_err(Error::tensor("optimizer", step.number))?;
        self.count_update(&reduced.votes);
        self.timed(
            |time| &mut time.communication,
            |engine| engine.share_updates(step.number, step.rates),
        )
    }

    pub(super) fn optimizer_step(
        &mut self,
        rates: Rates,
        preparation: Preparation,
        unused: &[usize],
    ) -> candle_core::Result<()> {
        let plan = &self.plan;
        let count = self.state.updates + 1;
        let update = planned_update(self.optimizer.as_ref(), plan, rates, preparation, count);
        let counts = self.counts(unused);
        let params = self.params.parameters();
        let states = &mut self.optimizer_state;
        let moved = self.reducer.update(&update, params, states, &counts);
        moved.and_then(|()| self.reducer.average_buffers(&update, &self.params, states))
    }

    /// Counts an update, and the parameters that it left out.
    pub(super) fn count_update(&mut self, votes: &[Vote]) {
        self.state.updates += 1;
        for parameter in unused_everywhere(votes) {
            let name = self.params.parameters()[parameter].name().to_owned();
            *self.state.missed.entry(name).or_default() += 1;
        }
    }

    /// Returns the number of each parameter's next update, counted as PyTorch does: updates that it
    /// had no part in do not count. `None` for `unused` and frozen parameters.
    fn counts(&self, unused: &[usize]) -> Vec<Option<u64>> {
        let count = |(index, param): (usize, &Param)| {
            let missed = self.state.missed.get(param.name()).copied().unwrap_or(0);
            let next = (self.state.updates + 1).saturating_sub(missed).max(1);
            (self.trained[index] && !unused.contains(&index)).then_some(next)
        };
        self.params.parameters().iter().enumerate().map(count).collect()
    }

    /// Every parameter needs a gradient on every rank that had samples, unless unused ones are
    /// tolerated.
    fn check_unused(&self, step: u64, votes: &[Vote]) -> Result<(), Error> {
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
}

/// The `count`-th update of a run.
pub(super) fn planned_update<'a>(
    rule: &'a dyn Optimizer,
    plan: &'a Plan,
    rates: Rates,
    preparation: Preparation,
    count: u64,
) -> Update<'a> {
    Update::new(rule, &plan.optimizer, rates)
        .prepared(preparation)
        .averaging(plan.ema.as_ref().map_or(1.0, |ema| ema.decay_at(count)))
}

/// Parameters that no rank with samples used: the optimizer leaves them alone, weight decay
/// included, as DDP's.
fn unused_everywhere(votes: &[Vote]) -> Vec<usize> {
    let mut votes = votes.iter().filter(|vote| vote.had_samples());
    let mut unused = votes.next().map(|vote| vote.unused.clone()).unwrap_or_default();
    votes.for_each(|vote| unused.retain(|parameter| vote.unused.contains(parameter)));
    unused
}

impl Engine {
    /// Begins, or goes on, in the phase of the step after the finished ones; the optimizer's state
    /// is that phase's already.
    pub(super) fn freeze(&mut self) -> Result<(), Error> {
        self.trained = self.trained_now();
        self.train_only_these()
    }

    /// Enters the phase of the step after the finished ones, if it is another: what is unfrozen
    /// begins with new state, and counts its updates from 1; the state of what is frozen is let go.
    pub(super) fn freeze_and_unfreeze(&mut self) -> Result<(), Error> {
        let trained = self.trained_now();
        if trained == self.trained {
            return Ok(());
        }
        self.copy_optimizer_state_to_host()?;
        let keeps: Vec<bool> = (0..trained.len()).map(|index| self.keeps(index)).collect();
        let plan = &self.plan.optimizer;
        let params = self.params.parameters().iter().enumerate().zip(&mut self.optimizer_state);
        for ((index, param), state) in params.filter(|((i, _), _)| trained[*i] != self.trained[*i])
        {
            let average = std::mem::take(&mut state.average);
            let fresh = if trained[index] && keeps[index] {
                ParameterState::zeros(plan, index, param.shape())
            } else {
                ParameterState::default()
            };
            *state = ParameterState { average, ..fresh };
            if trained[index] {
                self.state.missed.insert(param.name().to_owned(), self.state.updates);
            }
        }
        self.trained = trained;
        self.train_only_these()
    }

    fn trained_now(&self) -> Vec<bool> {
        let is_trained = |index| self.plan.optimizer.is_trained(index, self.state.step);
        (0..self.params.parameters().len()).map(is_trained).collect()
    }

    fn train_only_these(&mut self) -> Result<(), Error> {
        let Self { params, trained, optimizer_state, plan, .. } = self;
        params.train_only(|index| trained[index]);
        let chosen = self.reducer.train_only(&plan.optimizer, trained, params, optimizer_state);
        #[cfg(feature = "cuda")]
        {
            self.graph = crate::engine::graph_pass::GraphPass::new(&self.plan, &self.device);
        }
        let step = self.state.step;
        chosen.map_err(Error::tensor("unfreezing", step))
    }
}
