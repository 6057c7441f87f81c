//! A step on a GPU without waits: what passes find stays there until the update is under way, and
//! is read once.

use candle_core::{Result, Tensor};

use crate::engine::pass::{PassLoss, Passes, Step, correct};
use crate::engine::vote::{PassReport, Totals};
use crate::engine::{Engine, Error};
use crate::event::Phase;
use crate::loss::counted;
use crate::ops::count_right;
use crate::ops::cuda::{Conditions, PassNumbers};
use crate::optim::Preparation;
use crate::units::WorldSize;

impl Passes<'_> {
    /// The loss of a pass that weighs so much. Its value and the right answers are noted in
    /// `self.fixed.numbers`; nothing waits for them, unless the targets are mixtures of classes.
    pub(super) fn noted(
        &self,
        outputs: &Tensor,
        targets: &Tensor,
        weight: f64,
        numbers: &PassNumbers,
    ) -> Result<PassLoss> {
        let has_labels = self.plan.loss.has_classes() && !targets.dtype().is_float();
        let asked = if has_labels { counted(targets)? as u64 } else { 0 };
        let value = f64::NAN;
        let mut correct_of = [0, asked];
        if let Some(loss) = self.loss.scored(outputs, targets, weight, numbers)? {
            return Ok(PassLoss { loss, value, correct: correct_of });
        }
        let loss = self.loss.mean(outputs, targets)?;
        if has_labels {
            count_right(&outputs.detach(), targets, numbers)?;
        } else {
            correct_of = correct(&self.plan.loss, outputs, targets)?;
        }
        numbers.note(&loss.detach(), (!has_labels).then_some(correct_of[0]), weight)?;
        Ok(PassLoss { loss, value, correct: correct_of })
    }
}

impl Engine {
    /// Enqueues the update if nothing has to be known first, and then waits for what the passes
    /// found. Returns whether the update was enqueued.
    pub(super) fn update_ahead(
        &mut self,
        step: &Step,
        passes: &mut [PassReport],
    ) -> std::result::Result<bool, Error> {
        let is_queued = self.queue_update(step, passes)?;
        self.read_passes(step, passes)?;
        Ok(is_queued)
    }

    /// Enqueues the update of a rank that is alone, before the CPU knows what the passes found: the
    /// GPU itself decides whether parameters move, as [`Engine::check`] does afterwards. `false` =
    /// nothing was enqueued, because something has to be known first.
    fn queue_update(
        &mut self,
        step: &Step,
        passes: &[PassReport],
    ) -> std::result::Result<bool, Error> {
        let totals = Totals::over(passes.iter());
        let unused = self.reducer.unused();
        let plan = &self.plan;
        let may_miss = plan.distributed.find_unused_parameters;
        if self.collective.world_size() > WorldSize::ONE
            || passes.is_empty()
            || plan.clip.noise.is_some()
            || totals.unreadable > 0
            || (!may_miss && !unused.is_empty())
        {
            return Ok(false);
        }
        let mean = self.mean_factor(step, totals.weight);
        let conditions = Conditions {
            factor: mean.into(),
            most_norm: plan.clip.norm.unwrap_or(f64::INFINITY),
            most_loss: plan.divergence_threshold.unwrap_or(f64::INFINITY),
        };
        let limit = plan.clip.value.map_or(f32::INFINITY, |limit| limit as f32);
        let failed = Error::tensor("optimizer", step.number);
        if !self.reducer.decide(conditions, passes.len()).map_err(failed)? {
            return Ok(false);
        }
        (self.observer)(step.number, Phase::Optimizer);
        let preparation = Preparation { mean, clip: 1.0, limit };
        let queued = self.timed(
            |time| &mut time.optimizer,
            |engine| engine.optimizer_step(step.rates, preparation, &unused),
        );
        queued.map_err(failed).map(|()| true)
    }

    /// Waits for what the passes on a GPU found. The time of the wait is that of backward, in which
    /// the GPU spends most of it.
    fn read_passes(
        &mut self,
        step: &Step,
        passes: &mut [PassReport],
    ) -> std::result::Result<(), Error> {
        let results =
            self.timed(|time| &mut time.backward, |engine| engine.reducer.read_device_results());
        let failed = Error::tensor("backward", step.number);
        for (pass, found) in passes.iter_mut().zip(results.map_err(failed)?) {
            pass.set_results(found);
        }
        Ok(())
    }
}
