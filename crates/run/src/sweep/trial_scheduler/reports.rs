//! What follows from the reports and the ends of trials.

use std::sync::atomic::Ordering;

use crate::failpoint;
use crate::sweep::journal::Journal;
use crate::sweep::request::{Cause, Outcome};
use crate::sweep::trial::{State, Trial};
use crate::sweep::trial_scheduler::session::Session;
use crate::sweep::{Error, cleanup, pruner};

impl Session<'_> {
    /// Reads what running trials have reported, and gives up those that are not worth it.
    pub(super) fn listen(&mut self, journal: &mut Journal) -> Result<(), Error> {
        for index in 0..self.running.len() {
            let running = &mut self.running[index];
            if running.is_cut {
                continue;
            }
            running.tail.poll()?;
            let number = running.number;
            let Some(at) = self.trials.iter().position(|trial| trial.number == number) else {
                continue;
            };
            self.trials[at].reports.clone_from(&running.tail.reports);
            self.judge(journal, index, at)?;
        }
        Ok(())
    }

    /// Decides about each report of a running trial once. Either decision is written down before
    /// anything follows from it: one that was kept is not asked again after a restart, when it
    /// would be compared with other trials.
    fn judge(&mut self, journal: &mut Journal, index: usize, at: usize) -> Result<(), Error> {
        let goal = self.ranking.goal;
        let pruner = self.ranking.pruner.clone();
        while self.running[index].seen < self.trials[at].reports.len() {
            let seen = self.running[index].seen;
            self.running[index].seen += 1;
            let report = self.trials[at].reports[seen];
            self.view.reported(self.trials[at].number, &report);
            if pruner.is_off() || report.step <= self.trials[at].kept {
                continue;
            }
            let (before, rest) = self.trials.split_at(at);
            let Some((trial, after)) = rest.split_first() else { return Ok(()) };
            let others: Vec<&Trial> = before.iter().chain(after).collect();
            let running = pruner::Running { goal, trial, index: seen, others: &others };
            if pruner::is_cut(pruner.as_ref(), &running) {
                return self.give_up(journal, index, at);
            }
            self.trials[at].kept = report.step;
            journal.kept(&self.trials[at])?;
        }
        Ok(())
    }

    /// Gives up a running trial at the report that was seen last: it has ended as soon as that is
    /// written down.
    fn give_up(&mut self, journal: &mut Journal, index: usize, at: usize) -> Result<(), Error> {
        failpoint::reach("sweep.prune");
        let running = &mut self.running[index];
        let trial = &mut self.trials[at];
        trial.reports.truncate(running.seen);
        (trial.state, trial.seconds) = (State::Pruned, running.seconds());
        journal.ended(trial, self.order.sweep.search.goal)?;
        failpoint::reach("sweep.pruned");
        running.is_cut = true;
        running.job.is_pruned.store(true, Ordering::Release);
        running.job.waker.wake();
        Ok(())
    }

    /// What follows from the end of a trial's ranks. Returns whether it was stopped by a signal of
    /// its own.
    pub(super) fn over(
        &mut self,
        journal: &mut Journal,
        number: u32,
        outcome: Outcome,
    ) -> Result<bool, Error> {
        self.listen(journal)?;
        let Some(index) = self.running.iter().position(|running| running.number == number) else {
            return Ok(false);
        };
        let running = self.running.remove(index);
        let Some(trial) = self.trials.iter_mut().find(|trial| trial.number == number) else {
            return Ok(false);
        };
        if running.is_cut {
            if !self.order.sweep.keep_pruned_checkpoints {
                cleanup::remove_checkpoints(&running.job.folders);
            }
            self.view.ended(trial.number, &self.trials);
            return Ok(false);
        }
        let metric = &self.order.sweep.search.metric;
        let (state, error) = match outcome {
            Outcome::Stopped => {
                trial.seconds = running.tail.seconds().unwrap_or(trial.seconds);
                self.view.interrupted(trial);
                return Ok(true);
            }
            Outcome::Lost => {
                trial.seconds = running.tail.seconds().unwrap_or(trial.seconds);
                self.view.lost(trial);
                return Ok(false);
            }
            Outcome::Done if trial.reports.is_empty() => {
                (State::Failed, Some(format!("the run never reported `{metric}`")))
            }
            Outcome::Done => (State::Finished, None),
            Outcome::Failed { error, cause: Cause::Diverged } => (State::Diverged, Some(error)),
            Outcome::Failed { error, cause } => {
                trial.lacked_storage = cause == Cause::Storage;
                (State::Failed, Some(error))
            }
        };
        (trial.state, trial.error, trial.seconds) = (state, error, running.seconds());
        let trial = trial.clone();
        self.close(journal, &trial)?;
        Ok(false)
    }

    pub(super) fn close(&mut self, journal: &mut Journal, trial: &Trial) -> Result<(), Error> {
        failpoint::reach("sweep.end");
        journal.ended(trial, self.order.sweep.search.goal)?;
        failpoint::reach("sweep.ended");
        self.view.ended(trial.number, &self.trials);
        Ok(())
    }
}
