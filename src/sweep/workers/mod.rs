//! A sweep that several machines share: each runs the same command in a folder that all of them
//! see, without a server.
//!
//! ```text
//! all       Service ◀─ commands.jsonl ──┐
//!           Service ── reports.jsonl ──▶│ Crew ◀── Leader (a Trainer) ◀── trial_scheduler::run
//!                                       └ in the worker that holds the sweep's lock
//! ```
//!
//! The worker that holds the lock of the sweep's folder leads: it alone draws, prunes and journals,
//! as in a sweep of one machine, so values bind late and each trial ends once. If it goes, the lock
//! is free and another worker leads; trials in progress are not disturbed. A worker that is silent
//! for [`Timing::lease`] is lost, and its trials are resumed by others.

mod messages;
mod crew;
mod leader;
mod service;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::files::{self, lock_holder};
use crate::launch::Signals;
use crate::sweep::journal::{self, Story};
use crate::sweep::request::{Ended, Order, Trainer};
use crate::sweep::trial::State;
use crate::sweep::workers::crew::Crew;
use crate::sweep::workers::leader::Leader;
use crate::sweep::workers::messages::REPORTS;
use crate::sweep::workers::service::Service;
use crate::sweep::{Error, trial_scheduler};

/// Name of the folder of the workers' files, in that of the sweep.
pub(crate) const FOLDER: &str = "workers";

/// How often workers write and read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    /// Time between two looks at a file.
    poll: Duration,
    /// Longest silence of a worker that is there.
    beat: Duration,
    /// Silence after which a worker counts as lost.
    lease: Duration,
}

impl Timing {
    /// Gentle to a network file system, and short beside a trial.
    const SHARED: Self = Self {
        poll: Duration::from_millis(200),
        beat: Duration::from_secs(2),
        lease: Duration::from_secs(30),
    };
}

/// Takes part in a sweep that is shared by all machines that call this with the same order in the
/// same folder. `name` is this worker's alone; `say` hears what a person wants to know while
/// another machine leads. Returns when all trials have ended, or a signal stops this worker.
///
/// # Errors
///
/// As [`trial_scheduler::run`].
pub fn run(
    order: Order<'_>,
    trainer: &dyn Trainer,
    name: &str,
    say: &(dyn Fn(&str) + Sync),
) -> Result<(Ended, Story), Error> {
    Share { order, trainer, name, say, timing: Timing::SHARED }.run()
}

/// Workers of the sweep in `folder` that wrote something within the last minute.
pub(crate) fn count(folder: &Path) -> usize {
    const RECENT: Duration = Duration::from_mins(1);
    let is_recent = |entry: std::fs::DirEntry| {
        let written = entry.path().join(REPORTS).metadata().ok()?.modified().ok()?;
        // The future is that of a file server whose clock is ahead.
        Some(written.elapsed().map_or(true, |age| age < RECENT))
    };
    let entries = std::fs::read_dir(folder.join(FOLDER)).into_iter().flatten().flatten();
    entries.filter_map(is_recent).filter(|recent| *recent).count()
}

/// One worker's part.
struct Share<'a> {
    order: Order<'a>,
    trainer: &'a dyn Trainer,
    name: &'a str,
    say: &'a (dyn Fn(&str) + Sync),
    timing: Timing,
}

impl Share<'_> {
    fn run(&self) -> Result<(Ended, Story), Error> {
        // Refuses another sweep before this machine trains for it.
        if let Some(finished) = self.finished(None)? {
            return Ok(finished);
        }
        let folder = self.crew_folder().join(self.name);
        let (is_leaving, is_leading) = (AtomicBool::new(false), AtomicBool::new(false));
        let quiet = |words: &str| {
            if !is_leading.load(Ordering::Acquire) {
                (self.say)(words);
            }
        };
        let (order, trainer, timing) = (self.order, self.trainer, self.timing);
        let service = Service { order, trainer, timing, is_leaving: &is_leaving, say: &quiet };
        let reports = service.join(&folder)?;
        let ended = std::thread::scope(|scope| {
            let serves = scope.spawn(|| service.run(&folder, reports));
            let ended = self.lead_or_follow(&is_leading, &|| serves.is_finished());
            is_leaving.store(true, Ordering::Release);
            let served = serves.join().unwrap_or(Ok(()));
            served.and(ended)
        })?;
        if matches!(ended.0, Ended::Done { .. }) {
            // What cannot be removed, or is removed by another worker now, does no harm.
            drop(files::remove_folder(&self.crew_folder()));
        }
        Ok(ended)
    }

    fn crew_folder(&self) -> PathBuf {
        self.order.folder().join(FOLDER)
    }

    /// The end of the sweep, if all trials have ended for good. Those that could not write are
    /// tried again, unless another worker has led since this one came: it has tried them.
    fn finished(&self, leader: Option<&String>) -> Result<Option<(Ended, Story)>, Error> {
        let finished = trial_scheduler::finished(&self.order)?;
        let is_for_good = |(_, story): &(Ended, Story)| {
            leader.is_some() || !story.trials.iter().any(|trial| self.order.retries(trial))
        };
        Ok(finished.filter(is_for_good))
    }

    /// Leads if no one does, and waits otherwise, until all trials have ended or a signal comes.
    fn lead_or_follow(
        &self,
        is_leading: &AtomicBool,
        has_failed: &dyn Fn() -> bool,
    ) -> Result<(Ended, Story), Error> {
        let failed = |what| move |reason| Error::System { what, reason };
        let mut preemption = Signals::of_preemption().map_err(failed("listen to signals"))?;
        let mut interruption = Signals::of_interruption().map_err(failed("listen to signals"))?;
        let mut leader = None;
        loop {
            let folder = self.order.folder();
            // Before it leads: leader and worker may have been told to stop together.
            let interrupted = interruption.take() > 0;
            if interrupted || preemption.take() > 0 || has_failed() {
                let story = journal::read(&folder)?;
                let story = story.ok_or(Error::NoSweep { folder })?;
                return Ok((Ended::Stopped { interrupted }, story));
            }
            match lock_holder(&folder) {
                None => {
                    if let Some(finished) = self.finished(leader.as_ref())? {
                        return Ok(finished);
                    }
                    match self.lead(is_leading) {
                        Err(Error::Files(files::Error::InUse { .. })) => {}
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
                }
                Some(_) => {}
            }
            std::thread::sleep(self.timing.beat);
        }
    }

    /// Leads until all trials have ended or a signal comes, if no other worker was faster.
    fn lead(&self, is_leading: &AtomicBool) -> Result<(Ended, Story), Error> {
        let mut crew = Crew::new(&self.crew_folder(), self.timing.lease, self.name)?;
        if let Some(story) = journal::read(&self.order.folder())? {
            let running = story.trials.iter().filter(|trial| trial.state == State::Running);
            crew.release_all_but(&running.map(|trial| trial.number).collect::<Vec<_>>())?;
        }
        let leader = Leader::new(self.trainer, crew, self.timing);
        is_leading.store(true, Ordering::Release);
        let ended = trial_scheduler::run(self.order, &leader);
        is_leading.store(false, Ordering::Release);
        ended
    }
}

#[cfg(test)]
mod tests;
