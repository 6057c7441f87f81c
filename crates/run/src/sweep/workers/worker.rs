//! A worker of a shared sweep: trains the trials that its leader assigns.

use std::collections::{BTreeMap, VecDeque};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, Scope};
use std::time::Instant;

use crate::files::{self, Follower, LineFile, RunLock, lock_holder};
use crate::sweep::Error;
use crate::sweep::request::{Job, Outcome, SweepRequest, Trainer, reported, trained};
use crate::sweep::trial::id;
use crate::sweep::workers::Timing;
use crate::sweep::workers::messages::{
    Attempt, COMMANDS, Command, REPORTS, Report, received, send,
};

/// Message of a thread that trains.
enum Message {
    Step(u32, u64),
    Over(Attempt, Outcome),
}

/// Settings of a worker of a shared sweep.
pub(super) struct Worker<'a> {
    pub(super) order: SweepRequest<'a>,
    pub(super) trainer: &'a dyn Trainer,
    pub(super) timing: Timing,
    /// Set to end the worker: it takes no more trials and stops those that it trains.
    pub(super) is_leaving: &'a AtomicBool,
    /// Receives messages for the user.
    pub(super) say: &'a (dyn Fn(&str) + Sync),
}

/// The folder of a worker that has joined. Its lock is free once the worker is gone.
pub(super) struct Membership {
    folder: PathBuf,
    reports: LineFile,
    lock: RunLock,
}

/// State of a running worker.
struct WorkerLoop<'s, 'a> {
    worker: &'s Worker<'a>,
    commands: Follower,
    reports: LineFile,
    /// Commands beyond the capacity: a leader that took over may not know of all trials here.
    waiting: VecDeque<Command>,
    running: BTreeMap<Attempt, Arc<Job>>,
    steps: BTreeMap<u32, u64>,
    /// Reports that are not written yet.
    unsent: VecDeque<Report>,
    /// Time of the last successful write.
    wrote: Instant,
    sender: Sender<Message>,
    receiver: Receiver<Message>,
}

impl Worker<'_> {
    /// Joins the sweep with files in `folder`, by which a leader finds this worker.
    pub(super) fn join(&self, folder: &Path) -> Result<Membership, files::Error> {
        /// Workers that clean up may remove the folder before it is locked.
        const TRIES: u32 = 5;
        let once = || {
            files::create_writable_folder(folder)?;
            let lock = RunLock::acquire(folder)?;
            // Made here, so that each later look finds a file that grows.
            drop(LineFile::open(&folder.join(COMMANDS))?);
            let mut reports = LineFile::open(&folder.join(REPORTS))?;
            send(&mut reports, &Report::Joined { slots: self.order.concurrent() })?;
            Ok(Membership { folder: folder.to_owned(), reports, lock })
        };
        let mut joined = once();
        for _ in 1..TRIES {
            let is_taken = match &joined {
                Err(files::Error::Io { reason, .. }) => reason.kind() == ErrorKind::NotFound,
                Err(files::Error::InUse { .. }) => true,
                _ => false,
            };
            if !is_taken {
                break;
            }
            joined = once();
        }
        joined
    }

    /// Trains the trials that the leader assigns until this worker leaves.
    pub(super) fn run(&self, membership: Membership) -> Result<(), Error> {
        let Membership { folder, reports, lock: _lock } = membership;
        let (sender, receiver) = channel();
        let mut work = WorkerLoop {
            worker: self,
            commands: Follower::new(&folder.join(COMMANDS)),
            reports,
            waiting: VecDeque::new(),
            running: BTreeMap::new(),
            steps: BTreeMap::new(),
            unsent: VecDeque::new(),
            wrote: Instant::now(),
            sender,
            receiver,
        };
        std::thread::scope(|scope| work.run(scope))
    }

    /// Trains a trial as soon as its folder is free: the previous worker may still be saving.
    fn train(&self, job: &Job, trial: u32, sender: &Sender<Message>) -> Outcome {
        while lock_holder(&job.folders.logs).is_some() {
            if job.waker.take() {
                return Outcome::Stopped;
            }
            std::thread::sleep(self.timing.poll);
        }
        trained(self.trainer, job, &mut |step| drop(sender.send(Message::Step(trial, step))))
    }
}

impl<'s> WorkerLoop<'s, '_> {
    fn run<'scope>(&mut self, scope: &'scope Scope<'scope, '_>) -> Result<(), Error>
    where
        's: 'scope,
    {
        let timing = self.worker.timing;
        let mut is_leaving = false;
        loop {
            // What cannot be read now is read at the next look.
            let commands = received(&mut self.commands).unwrap_or_default();
            for command in commands {
                self.handle_command(command);
            }
            while !is_leaving && self.running.len() < self.worker.order.concurrent() {
                let Some(Command::Train { attempt, changes, resume }) = self.waiting.pop_front()
                else {
                    break;
                };
                self.start(scope, attempt, changes, resume)?;
            }
            if let Ok(message) = self.receiver.recv_timeout(timing.poll) {
                self.handle_message(message);
            }
            if self.worker.is_leaving.load(Ordering::Acquire) && !is_leaving {
                is_leaving = true;
                self.unsent.push_front(Report::Leaving);
                self.stop_all();
            }
            self.send_reports();
            if is_leaving && self.running.is_empty() {
                return Ok(());
            }
        }
    }

    fn handle_command(&mut self, command: Command) {
        match command {
            Command::Release { attempt } => {
                let other = |command: &Command| !matches!(command, Command::Train { attempt: waits, .. } if *waits == attempt);
                self.waiting.retain(other);
                if let Some(job) = self.running.get(&attempt) {
                    job.waker.wake();
                }
            }
            train @ Command::Train { .. } => self.waiting.push_back(train),
        }
    }

    fn start<'scope>(
        &mut self,
        scope: &'scope Scope<'scope, '_>,
        attempt: Attempt,
        changes: Vec<String>,
        resume: bool,
    ) -> Result<(), Error>
    where
        's: 'scope,
    {
        let worker = self.worker;
        let slots = worker.order.concurrent();
        let others = self.running.values().map(|job| &**job);
        let job = worker.order.job(attempt.trial, changes, resume, slots, others)?;
        (worker.say)(&format!(
            "trial {} {}",
            attempt.trial,
            if resume { "resumed" } else { "started" }
        ));
        self.running.insert(attempt, job.clone());
        let sender = self.sender.clone();
        let watch = move || {
            let outcome = worker.train(&job, attempt.trial, &sender);
            drop(sender.send(Message::Over(attempt, outcome)));
            reported(worker.trainer, &job);
        };
        let thread = Builder::new().name(id(attempt.trial)).spawn_scoped(scope, watch);
        thread.map(|_| ()).map_err(Error::system("start a thread"))
    }

    fn handle_message(&mut self, message: Message) {
        match message {
            Message::Step(trial, step) => drop(self.steps.insert(trial, step)),
            Message::Over(attempt, outcome) => {
                self.running.remove(&attempt);
                self.steps.remove(&attempt.trial);
                let is_leaving = self.worker.is_leaving.load(Ordering::Acquire);
                let outcome = if is_leaving { outcome.when_stopping() } else { outcome };
                let words = match &outcome {
                    Outcome::Done => "finished".to_owned(),
                    Outcome::Stopped | Outcome::Lost => {
                        "interrupted; it resumes from its newest checkpoint".to_owned()
                    }
                    Outcome::Failed { error, .. } => format!("failed: {error}"),
                };
                (self.worker.say)(&format!("trial {} {words}", attempt.trial));
                self.unsent.push_back(Report::Ended { attempt, outcome });
            }
        }
    }

    /// Writes all unsent reports, or a beat if the last write is old.
    fn send_reports(&mut self) {
        let timing = self.worker.timing;
        if self.unsent.is_empty() && self.wrote.elapsed() >= timing.beat {
            let steps = self.steps.iter().map(|(trial, step)| (*trial, *step)).collect();
            if send(&mut self.reports, &Report::Beat { steps }).is_ok() {
                self.wrote = Instant::now();
            }
        }
        while let Some(report) = self.unsent.front() {
            if send(&mut self.reports, report).is_err() {
                break;
            }
            self.unsent.pop_front();
            self.wrote = Instant::now();
        }
        if self.wrote.elapsed() > timing.lease {
            // The leader cannot hear us, and has given our trials to others.
            self.stop_all();
        }
    }

    fn stop_all(&self) {
        self.running.values().for_each(|job| job.waker.wake());
    }
}
