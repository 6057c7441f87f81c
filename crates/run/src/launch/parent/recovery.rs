//! Recovery from a failure: the same group again, a smaller one, smaller micro-batches, or the end
//! of the run. Pure.

use std::time::Duration;

use crate::launch::Failure;
use crate::launch::machines::nodes::Next;
use crate::launch::machines::rendezvous::RestartHistory;
use crate::launch::parent::elastic::GroupSizes;
use crate::launch::parent::options::Note;
use crate::launch::parent::restart::{RestartBudget, is_retryable};
use crate::plan::{OnOom, Plan};
use crate::units::WorldSize;

/// A group that did not end as it should.
pub(in crate::launch) struct FailedAttempt {
    pub(in crate::launch) failure: Box<Failure>,
    /// Furthest step that a rank had begun.
    pub(in crate::launch) step: u64,
    /// Checkpoints that it had saved.
    pub(in crate::launch) saved: u32,
    /// True if not all of its ranks could be started.
    pub(in crate::launch) never_started: bool,
    /// True if it had been asked to stop.
    pub(in crate::launch) was_asked: bool,
}

/// The plans that a run may continue with, and what is left of its restarts.
pub(in crate::launch) struct Recovery {
    /// One for each size, largest first.
    plans: Vec<Plan>,
    sizes: GroupSizes,
    budget: RestartBudget,
    /// Devices of the ranks that were lost.
    lost: Vec<String>,
}

impl Recovery {
    /// Recovery for a run with the plan of all ranks and those of fewer, largest first.
    pub(in crate::launch) fn new(plan: &Plan, smaller: &[Plan]) -> Self {
        let plans: Vec<Plan> = std::iter::once(plan).chain(smaller).cloned().collect();
        let (sizes, budget) = (GroupSizes::new(plans.len()), RestartBudget::new(plan.max_restarts));
        Self { plans, sizes, budget, lost: vec![] }
    }

    /// Recovery for a run over several machines with the history `past`.
    pub(in crate::launch) fn resumed(plan: &Plan, past: &RestartHistory) -> Self {
        Self { budget: RestartBudget::after(plan.max_restarts, past), ..Self::new(plan, &[]) }
    }

    /// The plan of the group to be started next.
    pub(in crate::launch) fn plan(&self) -> &Plan {
        &self.plans[self.sizes.index()]
    }

    /// Why the groups before ended, oldest first.
    pub(in crate::launch) fn causes(&self) -> &[String] {
        self.budget.causes()
    }

    pub(in crate::launch) fn past(&self) -> &RestartHistory {
        self.budget.past()
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
        self.budget.renew(format!("{}: a checkpoint was on disk", describe_resize(to, from)));
        Note::Resized { from, to, cause: None }
    }

    /// Decides how the run continues after a failure, and after which wait. A group has its
    /// restarts; then, or if it had just grown, or cannot even be started, a smaller one continues.
    /// One that ran out of memory continues with smaller micro-batches, if the experiment allows
    /// it.
    ///
    /// # Errors
    ///
    /// The failure is the end.
    pub(in crate::launch) fn after(
        &mut self,
        failed: FailedAttempt,
    ) -> Result<(Note, Duration), Box<Failure>> {
        if failed.was_asked || !is_retryable(failed.failure.code) {
            return Err(self.end(failed.failure));
        }
        if failed.saved > 0 {
            self.sizes.has_saved();
            if self.sizes.index() == 0 {
                // The group of all ranks works again.
                self.lost.clear();
            }
        }
        if failed.failure.out_of_memory && self.plan().on_oom == OnOom::ShrinkBatch {
            // The same micro-batches would fail again. If there are none smaller, another restart
            // may still succeed.
            if let Some(smaller) = self.in_smaller_passes() {
                return Ok((self.shrink_micro_batches(smaller, failed.failure), Duration::ZERO));
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

    /// Continues a run over several machines after a failure in the way that node 0 decided.
    ///
    /// # Errors
    ///
    /// The failure is the end.
    pub(in crate::launch) fn follow(
        &mut self,
        failed: FailedAttempt,
        next: Decision,
    ) -> Result<(Note, Duration), Box<Failure>> {
        let wait = match next {
            Decision::Over => return Err(self.end(failed.failure)),
            _ if failed.was_asked => return Err(self.end(failed.failure)),
            Decision::Again { wait } => wait,
            Decision::Smaller => match self.in_smaller_passes() {
                Some(smaller) => {
                    let note = self.shrink_micro_batches(smaller, failed.failure);
                    return Ok((note, Duration::ZERO));
                }
                // Node 0 has the same plan, and has made it smaller.
                None => return Err(self.end(failed.failure)),
            },
        };
        self.budget.follow(&failed.failure);
        let (attempt, of) = (self.budget.spent(), self.budget.allowed());
        Ok((Note::Restarting { attempt, of, wait, cause: failed.failure }, wait))
    }

    /// The machines that train have saved, to meet again with those that were away.
    pub(in crate::launch) fn make_room(&mut self) {
        self.budget.note("a machine has come back: a checkpoint was on disk".to_owned());
    }

    /// Takes over what the machines that have met, after `cause` if there was one, know of the
    /// restarts so far, and the plan of as many as there are.
    pub(in crate::launch) fn adopt(
        &mut self,
        plan: &Plan,
        past: &RestartHistory,
        cause: Option<Box<Failure>>,
    ) -> Option<Note> {
        self.budget.adopt(past);
        let (from, to) = (self.plan().world_size(), plan.world_size());
        self.plans = vec![plan.clone()];
        (from != to).then_some(Note::Resized { from, to, cause })
    }

    /// The restart that was to follow `failure` was called off.
    pub(in crate::launch) fn call_off(&mut self, failure: Box<Failure>) -> Box<Failure> {
        self.budget.refund();
        self.end(failure)
    }

    /// The failure that is the end of the run, with those before it.
    pub(in crate::launch) fn end(&self, failure: Box<Failure>) -> Box<Failure> {
        Box::new(Failure { history: self.causes().to_vec(), ..*failure })
    }

    fn in_smaller_passes(&self) -> Option<Vec<Plan>> {
        self.plans.iter().map(Plan::in_smaller_passes).collect()
    }

    fn shrink_micro_batches(&mut self, smaller: Vec<Plan>, cause: Box<Failure>) -> Note {
        self.plans = smaller;
        let size = self.plan().batch.size;
        self.budget.shrink(format!("passes of {size}: {cause}"));
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
        self.budget.renew(format!("{}: {cause}", describe_resize(to, from)));
        Ok(Note::Resized { from, to, cause: Some(cause) })
    }
}

/// "2 ranks instead of 4"
pub(crate) fn describe_resize(to: WorldSize, from: WorldSize) -> String {
    format!("{to} {} instead of {from}", if to == WorldSize::ONE { "rank" } else { "ranks" })
}
