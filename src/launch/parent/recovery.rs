//! The way of a run over its failures: the same group again, a smaller one, smaller passes, or the end. Pure.

use std::time::Duration;

use crate::launch::parent::elastic::Sizes;
use crate::launch::parent::restart::{Budget, may_pass};
use crate::launch::{Failure, Note};
use crate::plan::{OnOom, Plan};
use crate::units::WorldSize;

/// A group that did not end as it should.
pub(in crate::launch) struct Failed {
    pub(in crate::launch) failure: Box<Failure>,
    /// Furthest step that a rank had begun.
    pub(in crate::launch) step: u64,
    /// Checkpoints that it had saved.
    pub(in crate::launch) saved: u32,
    /// Whether not all of its ranks could be started.
    pub(in crate::launch) never_started: bool,
    /// Whether it had been asked to leave.
    pub(in crate::launch) was_asked: bool,
}

/// Where a run stands.
pub(in crate::launch) struct Course {
    /// Of each size, largest first.
    plans: Vec<Plan>,
    sizes: Sizes,
    budget: Budget,
    /// Devices of the ranks that were lost.
    lost: Vec<String>,
}

impl Course {
    /// At the beginning, with the plan of all ranks and those of fewer, largest first.
    pub(in crate::launch) fn new(plan: &Plan, smaller: &[Plan]) -> Self {
        let plans: Vec<Plan> = std::iter::once(plan).chain(smaller).cloned().collect();
        let (sizes, budget) = (Sizes::new(plans.len()), Budget::new(plan.max_restarts));
        Self { plans, sizes, budget, lost: vec![] }
    }

    /// The plan of the group to be started next.
    pub(in crate::launch) fn plan(&self) -> &Plan {
        &self.plans[self.sizes.at()]
    }

    /// Why the groups before ended, oldest first.
    pub(in crate::launch) fn causes(&self) -> &[String] {
        self.budget.causes()
    }

    /// Checkpoints after which the group makes room for a larger one.
    pub(in crate::launch) fn grows_after(&self) -> Option<u32> {
        self.sizes.grows_after()
    }

    /// The group has made room for a larger one.
    pub(in crate::launch) fn grow(&mut self) -> Note {
        let from = self.plan().world_size();
        self.sizes.grow();
        let to = self.plan().world_size();
        self.budget.renew(format!("{}: a checkpoint was on disk", instead(to, from)));
        Note::Resized { from, to, cause: None }
    }

    /// What follows a failure, and after which wait: a group has its restarts; then, or if it was only tried, or cannot
    /// even be started, a smaller one goes on. One that ran out of memory goes on in smaller passes, if that was asked
    /// for.
    ///
    /// # Errors
    ///
    /// The failure is the end.
    pub(in crate::launch) fn after(
        &mut self,
        failed: Failed,
    ) -> Result<(Note, Duration), Box<Failure>> {
        if failed.was_asked || !may_pass(failed.failure.code) {
            return Err(self.end(failed.failure));
        }
        if failed.saved > 0 {
            self.sizes.has_saved();
            if self.sizes.at() == 0 {
                // With all of them.
                self.lost.clear();
            }
        }
        if failed.failure.out_of_memory && self.plan().on_oom == OnOom::ShrinkBatch {
            // The same passes would fail again; with none smaller, perhaps something else takes less next time.
            if let Some(smaller) = self.plans.iter().map(Plan::in_smaller_passes).collect() {
                return Ok((self.shrink_passes(smaller, failed.failure), Duration::ZERO));
            }
        }
        // What could not be started the first time will not start the next time either.
        let is_hopeless = failed.never_started && self.causes().is_empty();
        if !is_hopeless
            && !self.sizes.is_on_trial()
            && let Some(wait) = self.budget.spend(&failed.failure, failed.step)
        {
            let (attempt, of) = (self.budget.spent(), self.budget.allowed());
            return Ok((Note::Restarting { attempt, of, wait, cause: failed.failure }, wait));
        }
        self.shrink_group(failed.failure).map(|note| (note, Duration::ZERO))
    }

    /// The restart that was to follow `failure` was called off.
    pub(in crate::launch) fn call_off(&mut self, failure: Box<Failure>) -> Box<Failure> {
        self.budget.take_back();
        self.end(failure)
    }

    fn end(&self, failure: Box<Failure>) -> Box<Failure> {
        Box::new(Failure { history: self.causes().to_vec(), ..*failure })
    }

    fn shrink_passes(&mut self, smaller: Vec<Plan>, cause: Box<Failure>) -> Note {
        self.plans = smaller;
        let size = self.plan().batch.size;
        self.budget.renew(format!("passes of {size}: {cause}"));
        Note::Shrunk { size, cause }
    }

    fn shrink_group(&mut self, cause: Box<Failure>) -> Result<Note, Box<Failure>> {
        let from = self.plan().world_size();
        let device = self.plan().distributed.devices.get(cause.rank.index()).cloned();
        if !self.sizes.shrink() {
            return Err(self.end(cause));
        }
        self.lost.extend(device);
        let devices = self.plans[0].distributed.devices.clone();
        for smaller in self.plans.iter_mut().skip(1) {
            *smaller = smaller.sparing(&devices, &self.lost);
        }
        let to = self.plan().world_size();
        self.budget.renew(format!("{}: {cause}", instead(to, from)));
        Ok(Note::Resized { from, to, cause: Some(cause) })
    }
}

/// "2 ranks instead of 4"
pub(crate) fn instead(to: WorldSize, from: WorldSize) -> String {
    format!("{to} {} instead of {from}", if to == WorldSize::ONE { "rank" } else { "ranks" })
}
