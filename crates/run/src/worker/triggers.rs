//! Decisions at step boundaries: is something due, is the run over? Pure.

use crate::engine::TrainState;
use crate::event::Reason;
use crate::plan::{Interval, LengthPlan, Plan};

/// Returns the reason why a run that continues from `state` is over already, if it is: the plan may
/// have changed since it was saved.
pub(crate) fn over(state: &TrainState, plan: &Plan) -> Option<Reason> {
    if state.step >= plan.length.total_steps {
        return Some(Reason::Completed);
    }
    if plan.length.time.is_some_and(|budget| state.time_spent() >= budget) {
        return Some(Reason::OutOfTime);
    }
    state.is_stuck(plan).then_some(Reason::EarlyStopped)
}

/// A message for a run that is over, with the keys that would continue it.
pub(crate) fn nothing_left(reason: Reason, state: &TrainState) -> String {
    let step = state.step;
    match reason {
        Reason::EarlyStopped => format!(
            "already stopped early after step {step}; raise `early_stopping.patience` to continue"
        ),
        Reason::OutOfTime => {
            format!(
                "the time limit was already reached after step {step}; raise `train.time` to \
                 continue"
            )
        }
        Reason::Completed | Reason::Stopped | Reason::Abandoned => format!(
            "already complete: all {step} steps are done; raise `train.epochs` or `train.steps` \
             to continue"
        ),
    }
}

/// Position of a finished step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepBoundary {
    /// Finished steps.
    pub(crate) step: u64,
    /// Epoch of the last step, from 1.
    pub(crate) epoch: u64,
    /// Steps of that epoch that are done.
    pub(crate) step_in_epoch: u64,
    /// True if the step was the last of its epoch.
    pub(crate) ends_epoch: bool,
    /// True if the step was the last of the run.
    pub(crate) ends_run: bool,
}

impl StepBoundary {
    /// The boundary after `step` finished steps (at least one).
    pub(crate) fn after(step: u64, length: &LengthPlan) -> Self {
        let before = step.saturating_sub(1);
        let step_in_epoch = before % length.steps_per_epoch + 1;
        Self {
            step,
            epoch: before / length.steps_per_epoch + 1,
            step_in_epoch,
            ends_epoch: step_in_epoch == length.steps_per_epoch,
            ends_run: step >= length.total_steps,
        }
    }

    /// True if `cadence` falls on this boundary, or the run ends here and `cadence` is not `Never`.
    pub(crate) fn is_due(&self, cadence: Interval) -> bool {
        let at_end = self.ends_run && cadence != Interval::Never;
        at_end || cadence.is_due(self.step, self.epoch, self.ends_epoch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: LengthPlan = LengthPlan { steps_per_epoch: 5, total_steps: 12, time: None };

    fn due(cadence: Interval) -> Vec<u64> {
        (1..=12).filter(|&step| StepBoundary::after(step, &LENGTH).is_due(cadence)).collect()
    }

    #[test]
    fn cadences_fall_on_their_boundaries_and_on_the_end() {
        assert_eq!(due(Interval::Epochs(1)), [5, 10, 12]);
        assert_eq!(due(Interval::Epochs(2)), [10, 12]);
        assert_eq!(due(Interval::Steps(4)), [4, 8, 12]);
        assert!(due(Interval::Never).is_empty());
    }

    #[test]
    fn a_boundary_knows_its_epoch() {
        let boundary = StepBoundary::after(10, &LENGTH);
        assert_eq!((boundary.epoch, boundary.step_in_epoch, boundary.ends_epoch), (2, 5, true));
        let boundary = StepBoundary::after(11, &LENGTH);
        assert_eq!((boundary.epoch, boundary.step_in_epoch, boundary.ends_epoch), (3, 1, false));
    }
}
