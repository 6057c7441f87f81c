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
//! is free and another worker leads; trials in progress are not disturbed. A worker that has ended,
//! as the lock of its folder says, or is silent for [`Timing::lease`], is lost, and its trials are
//! resumed by others. One whose command asks for more than the sweep has tells the leader, which
//! goes on with that.

mod messages;
mod worker_pool;
mod remote_trainer;
mod service;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::config::sweep::Sweep;
use crate::files::{self, Lines, RunLock, lock_holder};
use crate::launch::Signals;
use crate::sweep::journal::{self, Story};
use crate::sweep::request::{Ended, Order, Trainer};
use crate::sweep::trial::State;
use crate::sweep::workers::messages::{Extension, REPORTS, Report, send};
use crate::sweep::workers::remote_trainer::RemoteTrainer;
use crate::sweep::workers::service::Service;
use crate::sweep::workers::worker_pool::WorkerPool;
use crate::sweep::{Error, trial_scheduler};
use crate::terminal::counted;

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
pub fn run(
    order: Order<'_>,
    trainer: &dyn Trainer,
    name: &str,
    say: &(dyn Fn(&str) + Sync),
) -> Result<(Ended, Story), Error> {
    Share { order, trainer, name, say, timing: Timing::SHARED }.run()
}

/// Workers of the sweep in `folder` that are there.
pub fn count(folder: &Path) -> usize {
    let entries = std::fs::read_dir(folder.join(FOLDER)).into_iter().flatten().flatten();
    entries.filter(|entry| lock_holder(&entry.path()).is_some()).count()
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
        let mut wish = Wish::Unknown;
        self.compare(&mut wish)?;
        let sweep = self.current(wish)?;
        if let Some(finished) = self.finished(&Order { sweep: &sweep, ..self.order }, None)? {
            return Ok(finished);
        }
        let folder = self.crew_folder().join(self.name);
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
        let service = Service { order, trainer, timing, is_leaving: &is_leaving, say: &quiet };
        let membership = service.join(&folder)?;
        let ended = std::thread::scope(|scope| {
            let serves = scope.spawn(|| service.run(membership));
            let ended = self.lead_or_follow(&is_leading, &|| serves.is_finished(), wish);
            is_leaving.store(true, Ordering::Release);
            let served = serves.join().unwrap_or(Ok(()));
            served.and(ended)
        });
        // One that stops or has lost its disk is waited for.
        let is_over = match &ended {
            Ok((ended, _)) => matches!(ended, Ended::Done { .. }),
            Err(error) => error.is_refusal(),
        };
        if is_over {
            self.clear();
        }
        ended
    }

    /// Removes what workers that are gone, as this one now is, have left. Those that are there have
    /// not ended yet, or know more to do. What cannot be removed does no harm.
    fn clear(&self) {
        let folder = self.crew_folder();
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

    fn crew_folder(&self) -> PathBuf {
        self.order.folder().join(FOLDER)
    }

    /// The end of the sweep, if all trials have ended for good. Those that could not write are
    /// tried again, unless another worker has led since this one came: it has tried them.
    fn finished(
        &self,
        order: &Order<'_>,
        leader: Option<&String>,
    ) -> Result<Option<(Ended, Story)>, Error> {
        let finished = trial_scheduler::finished(order)?;
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
        mut wish: Wish,
    ) -> Result<(Ended, Story), Error> {
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
            if interrupted || preemption.take() > 0 || has_failed() {
                let story = journal::read(&folder)?;
                let story = story.ok_or(Error::NoSweep { folder })?;
                return Ok((Ended::Stopped { interrupted }, story));
            }
            match lock_holder(&folder) {
                None => {
                    let sweep = self.current(wish)?;
                    let order = Order { sweep: &sweep, ..self.order };
                    if let Some(finished) = self.finished(&order, leader.as_ref())? {
                        return Ok(finished);
                    }
                    match self.lead(is_leading, &mut wish, &mut refused) {
                        Err(error) if is_in_use(&error) => {}
                        Ok((Ended::Extended, _)) => continue,
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
                    self.follow(&mut wish)?;
                }
                Some(_) => self.follow(&mut wish)?,
            }
            std::thread::sleep(self.timing.beat);
        }
    }

    /// Compares what this worker's command asks for with the sweep, once that is written down.
    fn compare(&self, wish: &mut Wish) -> Result<(), Error> {
        if *wish == Wish::Unknown
            && let Some(story) = journal::read(&self.order.folder())?
        {
            let is_more = trial_scheduler::extends(self.order, self.trainer, &story)?;
            *wish = if is_more { Wish::More } else { Wish::Met };
        }
        Ok(())
    }

    /// Sees to it that the leader knows what this worker's command asks for.
    fn follow(&self, wish: &mut Wish) -> Result<(), Error> {
        self.compare(wish)?;
        match wish {
            Wish::More => {
                let Sweep { search, trials, .. } = self.order.sweep.clone();
                let extension = Box::new(Extension { search, trials });
                let mut reports = Lines::open(&self.crew_folder().join(self.name).join(REPORTS))?;
                send(&mut reports, &Report::Extend(extension))?;
                *wish = Wish::Asked;
            }
            Wish::Asked => {
                let story = journal::read(&self.order.folder())?;
                if let Some(story) = story.filter(|story| story.extended_by.contains(self.name)) {
                    let trials = counted(story.subject.trials as u64, "trial");
                    (self.say)(&format!("the sweep now has {trials}, as asked for here"));
                    *wish = Wish::Met;
                }
            }
            Wish::Unknown | Wish::Met => {}
        }
        Ok(())
    }

    /// The sweep that this worker would lead: what its command asks for, or what has become of it.
    fn current(&self, wish: Wish) -> Result<Sweep, Error> {
        let story = match wish {
            Wish::Met => journal::read(&self.order.folder())?,
            Wish::Unknown | Wish::More | Wish::Asked => None,
        };
        story.map_or_else(
            || Ok(self.order.sweep.clone()),
            |story| trial_scheduler::as_journaled(&self.order, &story),
        )
    }

    /// Leads until all trials have ended, a signal comes, or another worker asks for more, if no
    /// other worker was faster. Adds to `refused` who asks for what cannot be run.
    fn lead(
        &self,
        is_leading: &AtomicBool,
        wish: &mut Wish,
        refused: &mut BTreeSet<String>,
    ) -> Result<(Ended, Story), Error> {
        let mut crew = WorkerPool::new(&self.crew_folder(), self.timing)?;
        // Its own request is met by leading.
        let mut heard = BTreeSet::from([self.name.to_owned()]);
        heard.extend(refused.iter().cloned());
        if let Some(story) = journal::read(&self.order.folder())? {
            let running = story.trials.iter().filter(|trial| trial.state == State::Running);
            crew.release_all_but(&running.map(|trial| trial.number).collect::<Vec<_>>())?;
            heard.extend(story.extended_by);
        }
        let mut sweep = self.current(*wish)?;
        let asked = crew.extension(&heard).filter(|_| *wish == Wish::Met);
        let asked = asked.map(|(worker, extension)| (worker.to_owned(), extension.clone()));
        let other = asked.map(|(worker, Extension { search, trials })| {
            (self.say)(&format!("worker {worker} asks for more of this sweep"));
            (sweep.search, sweep.trials) = (search, trials);
            heard.insert(worker.clone());
            worker
        });
        let own = [Wish::More, Wish::Asked].contains(wish).then_some(self.name);
        let extend = self.order.extend || other.is_some();
        let order = Order { sweep: &sweep, extend, ..self.order };
        let leader = RemoteTrainer::new(self.trainer, crew, self.timing, heard);
        is_leading.store(true, Ordering::Release);
        let ended = trial_scheduler::run_for(order, &leader, other.as_deref().or(own));
        is_leading.store(false, Ordering::Release);
        match (ended, other) {
            (Err(error), Some(worker)) if error.is_refusal() && !is_in_use(&error) => {
                (self.say)(&format!("what worker {worker} asks for cannot be run: {error}"));
                refused.insert(worker);
                self.lead(is_leading, wish, refused)
            }
            (ended, _) => {
                if matches!(ended, Ok((Ended::Extended, _))) {
                    *wish = Wish::Met;
                }
                ended
            }
        }
    }
}

/// Whether another worker was faster.
fn is_in_use(error: &Error) -> bool {
    matches!(error, Error::Files(files::Error::InUse { .. }))
}

/// How what a worker's command asks for compares with the sweep that its folder holds.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Wish {
    /// The folder holds no sweep yet.
    Unknown,
    /// It asks for more.
    More,
    /// It asks for more, and the leader has been told.
    Asked,
    /// The sweep has all of it.
    Met,
}

#[cfg(test)]
mod tests;
