//! The leader's trainer: it gives each trial to a worker and waits for its end.

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
use crate::sweep::workers::worker_pool::{Standing, WorkerPool};

/// Workers that may be lost with one trial: more says that the trial kills them.
const MAX_LOST: u32 = 3;

/// Trains by others.
pub(super) struct RemoteTrainer<'a> {
    /// Decides whether a trial can be run.
    checks: &'a dyn Trainer,
    timing: Timing,
    crew: Mutex<Watched>,
    /// Workers whose requests for another search are settled.
    heard: BTreeSet<String>,
}

struct Watched {
    crew: WorkerPool,
    looked: Instant,
    /// Workers that were lost with each trial.
    lost: BTreeMap<u32, u32>,
}

impl<'a> RemoteTrainer<'a> {
    pub(super) fn new(
        checks: &'a dyn Trainer,
        crew: WorkerPool,
        timing: Timing,
        heard: BTreeSet<String>,
    ) -> Self {
        let crew = Mutex::new(Watched { crew, looked: Instant::now(), lost: BTreeMap::new() });
        Self { checks, timing, crew, heard }
    }

    /// The workers, as they were at most one poll ago.
    fn crew(&self) -> MutexGuard<'_, Watched> {
        let mut watched = self.crew.lock().unwrap_or_else(PoisonError::into_inner);
        if watched.looked.elapsed() >= self.timing.poll {
            // What cannot be read now is read at the next look; silence is noticed by the lease.
            drop(watched.crew.look());
            watched.looked = Instant::now();
        }
        watched
    }

    /// The attempt that an earlier leader began, or a new one as soon as a worker has room; `None`
    /// if the trial is stopped before that.
    fn begin(&self, trial: u32, job: &Job) -> Result<Option<(String, Attempt)>, files::Error> {
        loop {
            {
                let crew = &mut self.crew().crew;
                let begun = crew.begun(trial);
                let assigned = match begun {
                    None => crew.assign(trial, &job.changes, job.resume)?,
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
            let mut watched = self.crew();
            match watched.crew.standing(worker, *attempt) {
                Standing::Ended(outcome) => {
                    watched.crew.release(worker, *attempt, true)?;
                    // The worker leaves; the sweep goes on.
                    let is_stopped = outcome == Outcome::Stopped;
                    return Ok(if is_stopped { Outcome::Lost } else { outcome });
                }
                Standing::Silent => {
                    watched.crew.release(worker, *attempt, true)?;
                    return Ok(watched.lose(attempt.trial, worker));
                }
                Standing::Runs(step) => step.into_iter().for_each(&mut *on_step),
            }
            if job.waker.take() {
                if !job.is_pruned.load(Ordering::Acquire) {
                    // The leader leaves; the next one waits for this attempt.
                    return Ok(Outcome::Stopped);
                }
                watched.crew.release(worker, *attempt, false)?;
            }
            drop(watched);
            std::thread::sleep(self.timing.poll);
        }
    }
}

impl Watched {
    /// A worker was lost with this trial.
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
        Some(self.crew().crew.slots())
    }

    fn is_under_way(&self, trial: u32) -> bool {
        self.crew().crew.begun(trial).is_some()
    }

    fn is_extended(&self) -> bool {
        self.crew().crew.extension(&self.heard).is_some()
    }
}
