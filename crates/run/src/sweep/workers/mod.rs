//! A sweep shared by several machines: each runs the same command in a folder that all of them see,
//! without a server.
//!
//! ```text
//! all       Worker ◀─ commands.jsonl ──┐
//!           Worker ── reports.jsonl ──▶│ WorkerPool ◀── RemoteTrainer ◀── trial_scheduler::run
//!                                      └ in the worker that holds the sweep's lock
//! ```
//!
//! The worker that holds the lock of the sweep's folder leads: it alone draws, prunes and journals,
//! as in a sweep of one machine, so values bind late and each trial ends once. If it ends, the lock
//! is free and another worker leads; trials in progress are not disturbed. A worker is lost if the
//! lock of its folder is free, or if it is silent for [`Timing::lease`]; others resume its trials.
//! A worker whose command asks for more than the sweep has sends the request to the leader, which
//! extends the sweep.

mod messages;
mod worker_pool;
mod remote_trainer;
mod worker;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::config::sweep::Sweep;
use crate::files::{self, LineFile, RunLock, lock_holder};
use crate::launch::Signals;
use crate::sweep::journal::{self, JournalState};
use crate::sweep::request::{SweepEnd, SweepRequest, Trainer};
use crate::sweep::trial::State;
use crate::sweep::workers::messages::{Extension, REPORTS, Report, send};
use crate::sweep::workers::remote_trainer::RemoteTrainer;
use crate::sweep::workers::worker::Worker;
use crate::sweep::workers::worker_pool::WorkerPool;
use crate::sweep::{Error, trial_scheduler};
use crate::terminal::counted;

/// Name of the folder of the workers' files, in that of the sweep.
pub(crate) const FOLDER: &str = "workers";

/// Intervals at which workers write and read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    /// Interval between two reads of a file.
    poll: Duration,
    /// Maximum interval between two reports of a live worker.
    beat: Duration,
    /// Silence after which a worker counts as lost.
    lease: Duration,
}

impl Timing {
    /// Few reads for a network file system, and short compared to a trial.
    const SHARED: Self = Self {
        poll: Duration::from_millis(200),
        beat: Duration::from_secs(2),
        lease: Duration::from_secs(30),
    };
}

/// Joins the sweep that all machines share which call this with the same order in the same folder.
/// `name` identifies this worker; `say` receives messages for the user while another machine leads.
/// Returns when all trials have ended, or a signal stops this worker.
pub fn run(
    order: SweepRequest<'_>,
    trainer: &dyn Trainer,
    name: &str,
    say: &(dyn Fn(&str) + Sync),
) -> Result<(SweepEnd, JournalState), Error> {
    SharedSweep { order, trainer, name, say, timing: Timing::SHARED }.run()
}

/// Counts the live workers of the sweep in `folder`.
pub fn count(folder: &Path) -> usize {
    let entries = std::fs::read_dir(folder.join(FOLDER)).into_iter().flatten().flatten();
    entries.filter(|entry| lock_holder(&entry.path()).is_some()).count()
}

/// The part of one worker in a shared sweep.
struct SharedSweep<'a> {
    order: SweepRequest<'a>,
    trainer: &'a dyn Trainer,
    name: &'a str,
    say: &'a (dyn Fn(&str) + Sync),
    timing: Timing,
}

impl SharedSweep<'_> {
    fn run(&self) -> Result<(SweepEnd, JournalState), Error> {
        // Refuses another sweep before this machine trains for it.
        let mut request = ExtensionRequest::Unknown;
        self.compare(&mut request)?;
        let sweep = self.current(request)?;
        if let Some(finished) =
            self.finished(&SweepRequest { sweep: &sweep, ..self.order }, None)?
        {
            return Ok(finished);
        }
        let folder = self.workers_folder().join(self.name);
        let is_leaving = AtomicBool::new(false);
        let is_leading = AtomicBool::new(false);
        let quiet = |words: &str| {
            if !is_leading.load(Ordering::Acquire) {
                (self.say)(words);
            }
        };
        let order = self.order;
        let trainer = self.trainer;
        let timing = self.timing;
        let worker = Worker { order, trainer, timing, is_leaving: &is_leaving, say: &quiet };
        let membership = worker.join(&folder)?;
        let ended = std::thread::scope(|scope| {
            let serves = scope.spawn(|| worker.run(membership));
            let ended = self.lead_or_follow(&is_leading, &|| serves.is_finished(), request);
            is_leaving.store(true, Ordering::Release);
            let served = serves.join().unwrap_or(Ok(()));
            served.and(ended)
        });
        // One that stops or has lost its disk is waited for.
        let is_over = match &ended {
            Ok((SweepEnd::Done { .. } | SweepEnd::Reached | SweepEnd::NoneBetter, _)) => true,
            Ok(_) => false,
            Err(error) => error.is_refusal(),
        };
        if is_over {
            self.clear();
        }
        ended
    }

    /// Removes the files of workers that are gone, this one included. Live workers have not ended
    /// yet, or have more to do. Files that cannot be removed do no harm.
    fn clear(&self) {
        let folder = self.workers_folder();
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            // The lock is held until the folder is gone: a worker that joins by this name waits.
            if let Ok(Some(_lock)) = RunLock::to_remove(&entry.path()) {
                drop(files::remove_folder(&entry.path()));
            }
        }
        files::remove_empty_folder(&folder);
        // That of a sweep which never began.
        files::remove_empty_folder(&self.order.folder());
    }

    fn workers_folder(&self) -> PathBuf {
        self.order.folder().join(FOLDER)
    }

    /// The end of the sweep, if all trials have ended for good. Trials that could not write are
    /// retried, unless another worker has led since this one joined: it has retried them.
    fn finished(
        &self,
        order: &SweepRequest<'_>,
        leader: Option<&String>,
    ) -> Result<Option<(SweepEnd, JournalState)>, Error> {
        let finished = trial_scheduler::finished(order)?;
        let is_for_good = |(_, story): &(SweepEnd, JournalState)| {
            leader.is_some() || !story.trials.iter().any(|trial| self.order.retries(trial))
        };
        Ok(finished.filter(is_for_good))
    }

    /// Leads if no one does, and waits otherwise, until all trials have ended or a signal comes.
    fn lead_or_follow(
        &self,
        is_leading: &AtomicBool,
        has_failed: &dyn Fn() -> bool,
        mut request: ExtensionRequest,
    ) -> Result<(SweepEnd, JournalState), Error> {
        let mut preemption =
            Signals::of_preemption().map_err(Error::system("listen to signals"))?;
        let mut interruption =
            Signals::of_interruption().map_err(Error::system("listen to signals"))?;
        let mut leader = None;
        let mut refused = BTreeSet::new();
        loop {
            let folder = self.order.folder();
            // Before it leads: leader and worker may have been told to stop together.
            let interrupted = interruption.take() > 0;
            let is_stopped = interrupted || preemption.take() > 0 || has_failed();
            let stopped = is_stopped.then_some(SweepEnd::Stopped { interrupted });
            let out_of_time = self.order.is_out_of_time().then_some(SweepEnd::OutOfTime);
            if let Some(ended) = stopped.or(out_of_time) {
                let story = journal::read(&folder)?;
                let story = story.ok_or(Error::NoSweep { folder })?;
                return Ok((ended, story));
            }
            match lock_holder(&folder) {
                None => {
                    let sweep = self.current(request)?;
                    let order = SweepRequest { sweep: &sweep, ..self.order };
                    if let Some(finished) = self.finished(&order, leader.as_ref())? {
                        return Ok(finished);
                    }
                    match self.lead(is_leading, &mut request, &mut refused) {
                        Err(error) if is_in_use(&error) => {}
                        Ok((SweepEnd::Extended, _)) => continue,
                        ended => return ended,
                    }
                }
                Some(holder) if leader.as_ref() != Some(&holder) => {
                    (self.say)(&format!(
                        "worker {} of sweep `{}`, led by {holder}; {} concurrent trials here",
                        self.name,
                        folder.display(),
                        self.order.concurrent()
                    ));
                    leader = Some(holder);
                    self.follow(&mut request)?;
                }
                Some(_) => self.follow(&mut request)?,
            }
            std::thread::sleep(self.timing.beat);
        }
    }

    /// Compares the request of this worker's command with the sweep, once that is journalled.
    fn compare(&self, request: &mut ExtensionRequest) -> Result<(), Error> {
        if *request == ExtensionRequest::Unknown
            && let Some(story) = journal::read(&self.order.folder())?
        {
            let is_more = trial_scheduler::extends(self.order, self.trainer, &story)?;
            *request = if is_more { ExtensionRequest::Needed } else { ExtensionRequest::Met };
        }
        Ok(())
    }

    /// Sends the request of this worker's command to the leader if needed.
    fn follow(&self, request: &mut ExtensionRequest) -> Result<(), Error> {
        self.compare(request)?;
        match request {
            ExtensionRequest::Needed => {
                let Sweep { search, trials, .. } = self.order.sweep.clone();
                let extension = Box::new(Extension { search, trials });
                let mut reports =
                    LineFile::open(&self.workers_folder().join(self.name).join(REPORTS))?;
                send(&mut reports, &Report::Extend(extension))?;
                *request = ExtensionRequest::Sent;
            }
            ExtensionRequest::Sent => {
                let story = journal::read(&self.order.folder())?;
                if let Some(story) = story.filter(|story| story.extended_by.contains(self.name)) {
                    let trials = counted(story.subject.trials as u64, "trial");
                    (self.say)(&format!("the sweep now has {trials}, as asked for here"));
                    *request = ExtensionRequest::Met;
                }
            }
            ExtensionRequest::Unknown | ExtensionRequest::Met => {}
        }
        Ok(())
    }

    /// The sweep that this worker would lead: the one of its command, or as extended since.
    fn current(&self, request: ExtensionRequest) -> Result<Sweep, Error> {
        let story = match request {
            ExtensionRequest::Met => journal::read(&self.order.folder())?,
            ExtensionRequest::Unknown | ExtensionRequest::Needed | ExtensionRequest::Sent => None,
        };
        story.map_or_else(
            || Ok(self.order.sweep.clone()),
            |story| trial_scheduler::as_journaled(&self.order, &story),
        )
    }

    /// Leads until all trials have ended, a signal comes, or another worker asks for an extension,
    /// unless another worker leads already. Adds to `refused` the workers whose extension cannot be
    /// run.
    fn lead(
        &self,
        is_leading: &AtomicBool,
        request: &mut ExtensionRequest,
        refused: &mut BTreeSet<String>,
    ) -> Result<(SweepEnd, JournalState), Error> {
        let mut pool = WorkerPool::new(&self.workers_folder(), self.timing)?;
        // Its own request is met by leading.
        let mut settled = BTreeSet::from([self.name.to_owned()]);
        settled.extend(refused.iter().cloned());
        if let Some(story) = journal::read(&self.order.folder())? {
            let running = story.trials.iter().filter(|trial| trial.state == State::Running);
            pool.release_all_but(&running.map(|trial| trial.number).collect::<Vec<_>>())?;
            settled.extend(story.extended_by);
        }
        let mut sweep = self.current(*request)?;
        let asked = pool.extension(&settled).filter(|_| *request == ExtensionRequest::Met);
        let asked = asked.map(|(worker, extension)| (worker.to_owned(), extension.clone()));
        let other = asked.map(|(worker, Extension { search, trials })| {
            (self.say)(&format!("worker {worker} asks for more of this sweep"));
            (sweep.search, sweep.trials) = (search, trials);
            settled.insert(worker.clone());
            worker
        });
        let own = [ExtensionRequest::Needed, ExtensionRequest::Sent]
            .contains(request)
            .then_some(self.name);
        let extend = self.order.extend || other.is_some();
        let order = SweepRequest { sweep: &sweep, extend, ..self.order };
        let leader = RemoteTrainer::new(self.trainer, pool, self.timing, settled);
        is_leading.store(true, Ordering::Release);
        let ended = trial_scheduler::run_for(order, &leader, other.as_deref().or(own));
        is_leading.store(false, Ordering::Release);
        match (ended, other) {
            (Err(error), Some(worker)) if error.is_refusal() && !is_in_use(&error) => {
                (self.say)(&format!("what worker {worker} asks for cannot be run: {error}"));
                refused.insert(worker);
                self.lead(is_leading, request, refused)
            }
            (ended, _) => {
                if matches!(ended, Ok((SweepEnd::Extended, _))) {
                    *request = ExtensionRequest::Met;
                }
                ended
            }
        }
    }
}

/// True if another worker leads already.
fn is_in_use(error: &Error) -> bool {
    matches!(error, Error::Files(files::Error::InUse { .. }))
}

/// State of the request of a worker's command, compared with the sweep in its folder.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ExtensionRequest {
    /// The folder holds no sweep yet.
    Unknown,
    /// The command asks for more than the sweep has.
    Needed,
    /// The request has been sent to the leader.
    Sent,
    /// The sweep has everything that the command asks for.
    Met,
}

#[cfg(test)]
mod tests;
