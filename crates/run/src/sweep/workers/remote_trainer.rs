//! The leader's trainer: assigns each trial to a worker and waits for its end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::files;
use crate::plan::RunFolders;
use crate::sweep::request::{Cause, Job, Outcome, Trainer};
use crate::sweep::trial::Length;
use crate::sweep::trial_number;
use crate::sweep::workers::Timing;
use crate::sweep::workers::messages::Attempt;
use crate::sweep::workers::worker_pool::{AttemptState, WorkerPool};

/// Workers that may be lost with one trial; more suggest that the trial kills them.
const MAX_LOST: u32 = 3;

/// Trains trials on workers.
pub(super) struct RemoteTrainer<'a> {
    /// Checks whether a trial can be run.
    checks: &'a dyn Trainer,
    timing: Timing,
    pool: Mutex<PoolState>,
    /// Workers whose requests for an extension are settled.
    settled: BTreeSet<String>,
}

struct PoolState {
    pool: WorkerPool,
    looked: Instant,
    /// Workers that were lost with each trial.
    lost: BTreeMap<u32, u32>,
}

impl<'a> RemoteTrainer<'a> {
    pub(super) fn new(
        checks: &'a dyn Trainer,
        pool: WorkerPool,
        timing: Timing,
        settled: BTreeSet<String>,
    ) -> Self {
        let pool = Mutex::new(PoolState { pool, looked: Instant::now(), lost: BTreeMap::new() });
        Self { checks, timing, pool, settled }
    }

    /// The workers, as of at most one poll ago.
    fn pool(&self) -> MutexGuard<'_, PoolState> {
        let mut state = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        if state.looked.elapsed() >= self.timing.poll {
            // What cannot be read now is read at the next look; silence is noticed by the lease.
            drop(state.pool.look());
            state.looked = Instant::now();
        }
        state
    }

    /// Returns the attempt that an earlier leader began, or a new one as soon as a worker has room;
    /// `None` if the trial is stopped before that.
    fn begin(&self, trial: u32, job: &Job) -> Result<Option<(String, Attempt)>, files::Error> {
        loop {
            {
                let pool = &mut self.pool().pool;
                let begun = pool.begun(trial);
                let assigned = match begun {
                    None => pool.assign(trial, &job.changes, job.resume)?,
                    begun => begun,
                };
                if assigned.is_some() {
                    return Ok(assigned);
                }
            }
            if job.waker.take() {
                return Ok(None);
            }
            std::thread::sleep(self.timing.poll);
        }
    }

    /// Waits for the end of an attempt.
    fn wait(
        &self,
        (worker, attempt): &(String, Attempt),
        job: &Job,
        on_step: &mut dyn FnMut(u64),
    ) -> Result<Outcome, files::Error> {
        loop {
            let mut state = self.pool();
            match state.pool.attempt_state(worker, *attempt) {
                AttemptState::Ended(outcome) => {
                    state.pool.release(worker, *attempt, true)?;
                    // The worker leaves; the sweep goes on.
                    let is_stopped = outcome == Outcome::Stopped;
                    return Ok(if is_stopped { Outcome::Lost } else { outcome });
                }
                AttemptState::Silent => {
                    state.pool.release(worker, *attempt, true)?;
                    return Ok(state.lose(attempt.trial, worker));
                }
                AttemptState::Runs(step) => step.into_iter().for_each(&mut *on_step),
            }
            if job.waker.take() {
                if !job.is_pruned.load(Ordering::Acquire) {
                    // The leader leaves; the next one waits for this attempt.
                    return Ok(Outcome::Stopped);
                }
                state.pool.release(worker, *attempt, false)?;
            }
            drop(state);
            std::thread::sleep(self.timing.poll);
        }
    }
}

impl PoolState {
    /// Counts a worker that was lost with this trial.
    fn lose(&mut self, trial: u32, worker: &str) -> Outcome {
        let lost = self.lost.entry(trial).or_default();
        *lost += 1;
        if *lost < MAX_LOST {
            return Outcome::Lost;
        }
        let error = format!("{lost} workers were lost while they trained it, the last is {worker}");
        Outcome::Failed { error, cause: Cause::Other }
    }
}

impl Trainer for RemoteTrainer<'_> {
    fn check(&self, changes: &[String]) -> Result<Length, String> {
        self.checks.check(changes)
    }

    fn other_data(&self, folders: &RunFolders, changes: &[String]) -> Vec<String> {
        self.checks.other_data(folders, changes)
    }

    fn train(&self, job: &Job, on_step: &mut dyn FnMut(u64)) -> Outcome {
        let begun = trial_number(&job.folders.id).map(|trial| self.begin(trial, job));
        let ended = match begun {
            Some(Ok(Some(begun))) => self.wait(&begun, job, on_step),
            Some(Err(error)) => Err(error),
            None | Some(Ok(None)) => Ok(Outcome::Stopped),
        };
        let cause = Cause::Storage;
        ended.unwrap_or_else(|error| Outcome::Failed { error: error.to_string(), cause })
    }

    fn capacity(&self) -> Option<usize> {
        Some(self.pool().pool.slots())
    }

    fn is_under_way(&self, trial: u32) -> bool {
        self.pool().pool.begun(trial).is_some()
    }

    fn is_extended(&self) -> bool {
        self.pool().pool.extension(&self.settled).is_some()
    }
}
