//! Checks of trials before the first one runs.

use serde_json::Value;

use crate::config::sweep::Values;
use crate::config::values::Interval;
use crate::sweep::Error;
use crate::sweep::repeated_search::Repeated;
use crate::sweep::sampler::Tried;
use crate::sweep::trial::{Length, State, Trial};
use crate::sweep::trial_scheduler::session::{Session, has_checkpoint};
use crate::sweep::trial_scheduler::shown;

/// Number of trials checked before the first is started; later ones are checked at their start.
const MAX_CHECKED: usize = 1000;
/// Number of refused trials for which the values to blame are searched.
const MAX_NAMED: usize = 8;

impl Session<'_> {
    /// Checks every trial that is known before any result.
    pub(in crate::sweep::trial_scheduler) fn check_ahead(&mut self) -> Result<(), Error> {
        let first = self.trials.len() as u32 + 1;
        let left = self.total.saturating_sub(self.trials.len());
        let ahead: Vec<Values> = if let Some(points) = &self.points {
            points.iter().take(left).map(|point| self.first_of(point.clone())).collect()
        } else {
            // In a race, nothing is repeated before it has a result.
            let all = self.repeated.as_ref().filter(|repeated| !repeated.is_race());
            let repeats = all.map_or(1, Repeated::n);
            let n_start = self.order.sweep.search.start.len();
            let independent = self.method.n_independent().max(n_start).saturating_mul(repeats);
            let known = independent.saturating_sub(self.trials.len() + self.earlier.len());
            self.draws_ahead(first, left.min(known).min(MAX_CHECKED))?
        };
        let mut refused = Vec::new();
        let mut reasons = Vec::new();
        let mut lengths = Vec::new();
        for (number, values) in (first..).zip(ahead).take(MAX_CHECKED) {
            match self.trainer.check(&self.order.changes(&values)) {
                Ok(length) => lengths.push(length),
                Err(why) => {
                    let is_named = refused.len() < MAX_NAMED;
                    let named = if is_named { self.causes(&values) } else { values };
                    let indented = why.replace('\n', "\n      ");
                    refused.push(format!("trial {number} ({}): {indented}", shown(&named)));
                    reasons.push(why);
                }
            }
        }
        if lengths.is_empty()
            && let Some(why) = self.wrong_in_base(&reasons)
        {
            return Err(Error::Base { why });
        }
        if !refused.is_empty() {
            return Err(Error::Refused { trials: refused });
        }
        if self.trials.is_empty() { self.check_pruner(&lengths) } else { Ok(()) }
    }

    /// The values of `n` trials from `first` on, as drawn if all trials before them finish.
    fn draws_ahead(&self, first: u32, n: usize) -> Result<Vec<Values>, Error> {
        let mut trials = self.with_earlier(&self.trials);
        let mut tried = Tried::of(&trials, &self.base);
        let mut found = Vec::new();
        for number in (first..).take(n) {
            let Some(values) = self.draw(number, &trials, &tried)? else { break };
            tried.add(&values, &self.base);
            let length = Length { steps_per_epoch: 1, total_steps: 1 };
            let last = trials.len() as u32 + 1;
            trials.push(Trial::new(last, values.clone(), length));
            found.push(values);
        }
        Ok(found)
    }

    /// The problem of the base by itself, if it is also the problem of all trials.
    fn wrong_in_base(&self, reasons: &[String]) -> Option<String> {
        let first =
            reasons.first().filter(|first| reasons.iter().all(|reason| reason == *first))?;
        let why = self.trainer.check(&self.order.common_changes()).err()?;
        (why == *first).then_some(why)
    }

    /// Refuses a pruner that could stop none of the trials of these lengths.
    fn check_pruner(&mut self, lengths: &[Length]) -> Result<(), Error> {
        let Some(least) = self.ranking.pruner.least() else { return Ok(()) };
        let amount = |every: Interval| match every {
            Interval::Epochs(n) | Interval::Steps(n) => n,
            Interval::Never => 0,
        };
        let all = lengths.iter().map(|length| length.in_unit_of(least));
        let n_short = all.clone().filter(|length| amount(*length) < amount(least)).count();
        if n_short > 0 {
            self.notes.push(format!(
                "warning: {n_short} of {} trials end before `sweep.pruner.min_resource`, {least}, \
                 and are never pruned",
                lengths.len()
            ));
        }
        let longest = all.max_by_key(|length| amount(*length));
        let too_short = longest.filter(|longest| amount(*longest) < amount(least));
        too_short.map_or(Ok(()), |longest| Err(Error::NeverPruned { least, longest }))
    }

    /// If there is anything left to train, requires the data of the first trial that has trained:
    /// results on other data cannot be compared. A trial without a checkpoint begins again.
    pub(in crate::sweep::trial_scheduler) fn check_data(&self) -> Result<(), Error> {
        let order = self.order;
        let is_open = |trial: &Trial| trial.state == State::Running || order.retries(trial);
        let is_over = self.trials.len() >= self.total && !self.trials.iter().any(is_open);
        let was_trained = |trial: &&Trial| match trial.state {
            State::Failed => false,
            State::Running => has_checkpoint(&order.folders(trial.number)),
            State::Finished | State::Pruned | State::Diverged => true,
        };
        if is_over {
            return Ok(());
        }
        let Some(trial) = self.trials.iter().find(was_trained) else { return Ok(()) };
        let folders = order.folders(trial.number);
        let differences = self.trainer.other_data(&folders, &order.changes(&trial.values));
        if differences.is_empty() {
            return Ok(());
        }
        Err(Error::OtherData { folder: folders.logs, differences })
    }

    /// Values that prevent a trial from running: without any one of them it could run. All values
    /// if there is none.
    fn causes(&self, values: &Values) -> Values {
        let is_cause = |(key, _): &&(String, Value)| {
            let rest: Values = values.iter().filter(|(other, _)| other != key).cloned().collect();
            self.trainer.check(&self.order.changes(&rest)).is_ok()
        };
        let causes: Values = values.iter().filter(is_cause).cloned().collect();
        if causes.is_empty() { values.clone() } else { causes }
    }
}
