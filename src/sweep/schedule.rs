//! The parent of all trials: draws, starts, listens, prunes, writes down, and starts the next as soon as there is
//! room. One thread decides; one thread per running trial watches its ranks.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{Builder, Scope};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::checkpoint;
use crate::config::sweep::{Method, Pruner, Values, change_of};
use crate::failpoint;
use crate::files::{self, RunLock};
use crate::launch::Signals;
use crate::plan::RunFolders;
use crate::sweep::draw::{self, BaseValues};
use crate::sweep::journal::{self, Journal, Story, Subject};
use crate::sweep::order::{Cause, Ended, Job, Order, Outcome, Trainer};
use crate::sweep::tail::Tail;
use crate::sweep::trial::{Length, State, Trial, id};
use crate::sweep::view::View;
use crate::sweep::{Error, gpus, leftovers, prepared_folder, prune, results, tpe};
use crate::transport::Waker;

/// How often running trials are listened to when nothing else happens.
const LOOK: Duration = Duration::from_millis(100);
/// Trials that are checked before the first is started; those after them when their turn comes.
const CHECKED: usize = 1000;
/// Refused trials of which those values are looked for that are to blame.
const NAMED: usize = 8;

/// Runs a sweep, or goes on with it: the trials that its folder already holds are not run again.
///
/// # Errors
///
/// The folder holds another sweep, trials cannot be run (both before anything is touched), or the folder cannot
/// be written.
pub fn run(order: Order<'_>, trainer: &dyn Trainer) -> Result<(Ended, Story), Error> {
    let folder = order.folder();
    let base = BaseValues::of(&order.base.experiment);
    let points: VecDeque<Values> = draw::points(&order.sweep.search, &base).into();
    let is_list = matches!(order.sweep.search.method, Method::Grid | Method::List);
    if is_list && points.is_empty() {
        return Err(Error::NothingLeft);
    }
    let total = order.sweep.trials.unwrap_or(usize::MAX);
    let total = if is_list { total.min(points.len()) } else { total };
    // A sweep that exists is read by its owner alone: what another process has done since would be done again.
    let owned =
        folder.join(journal::NAME).exists().then(|| prepared_folder(&folder)).transpose()?;
    let story = journal::read(&folder)?;
    let subject = Subject::new(
        &order.sweep.name,
        &order.sweep.base,
        &order.sweep.search,
        total,
        &order.base.experiment,
    );
    let earlier = story.as_ref().map(|story| &story.subject);
    is_same_sweep(&folder, &subject, earlier, order.extend)?;
    let trials = story.as_ref().map(|story| story.trials.clone()).unwrap_or_default();
    let mut session = SessionKeys {
        order,
        trainer,
        base,
        points: not_tried(points, &trials),
        total: if is_list { total.max(trials.len()) } else { total },
        folder: folder.clone(),
        trials,
        running: Vec::new(),
        view: View::new(order.screen, order.sweep, total),
    };
    session.check_ahead()?;
    let _lock = owned.map_or_else(|| new_folder(&folder), Ok)?;
    let mut journal = Journal::open(&folder)?;
    match earlier {
        None => journal.opened(&subject)?,
        Some(earlier) if *earlier != subject => journal.extended(&subject)?,
        Some(_) => {}
    }
    leftovers::clear(&order, &session.trials);
    let ended = session.live(&mut journal)?;
    let trials = session.trials;
    results::write(&folder, &subject, &order.sweep.search, &trials)?;
    let opened = story.map_or_else(jiff::Timestamp::now, |story| story.opened);
    Ok((ended, Story { subject, trials, opened }))
}

/// Takes possession of the folder of a sweep that begins.
fn new_folder(folder: &Path) -> Result<RunLock, Error> {
    let lock = prepared_folder(folder)?;
    if folder.join(journal::NAME).exists() {
        let holder = "another process that began it at the same time".to_owned();
        return Err(files::Error::InUse { folder: folder.to_owned(), holder }.into());
    }
    Ok(lock)
}

/// The points that no trial has had, in their order. One that a list holds twice is tried twice.
fn not_tried(mut points: VecDeque<Values>, trials: &[Trial]) -> VecDeque<Values> {
    let words = |values: &Values| serde_json::to_string(values).unwrap_or_default();
    let mut tried: HashMap<String, usize> = HashMap::new();
    for trial in trials {
        *tried.entry(words(&trial.values)).or_default() += 1;
    }
    let is_new = |point: &Values| match tried.get_mut(&words(point)) {
        Some(left) if *left > 0 => {
            *left -= 1;
            false
        }
        _ => true,
    };
    points.retain(is_new);
    points
}

fn is_same_sweep(
    folder: &Path,
    subject: &Subject,
    earlier: Option<&Subject>,
    extend: bool,
) -> Result<(), Error> {
    let Some(earlier) = earlier else { return Ok(()) };
    let (open, fixed) = subject.changes(earlier);
    let can_extend = fixed.is_empty();
    if can_extend && (open.is_empty() || extend) {
        return Ok(());
    }
    let changes = fixed.into_iter().chain(open).collect();
    Err(Error::Changed { folder: folder.to_owned(), changes, can_extend })
}

/// What a thread that watches a trial says.
enum Message {
    Step(u32, u64),
    Over(u32, Outcome),
}

/// A trial that runs.
struct Running {
    number: u32,
    job: Arc<Job>,
    tail: Tail,
    /// Reports that have been looked at.
    seen: usize,
    /// Whether it was given up: its end is written down, and its ranks leave.
    is_cut: bool,
    began: Instant,
}

impl Running {
    /// As the journal keeps it, so that a trial is the same before and after a restart.
    fn seconds(&self) -> f64 {
        self.began.elapsed().as_millis() as f64 / 1e3
    }
}

/// Signals that stop the sweep itself; each running trial hears them too.
struct Ears {
    preemption: Signals,
    interruption: Signals,
}

struct SessionKeys<'a> {
    order: Order<'a>,
    trainer: &'a dyn Trainer,
    base: BaseValues,
    /// Points of a grid or list that no trial has had.
    points: VecDeque<Values>,
    total: usize,
    folder: PathBuf,
    trials: Vec<Trial>,
    running: Vec<Running>,
    view: View,
}

impl<'a> SessionKeys<'a> {
    /// Every trial that is known before any result is, decided.
    fn check_ahead(&self) -> Result<(), Error> {
        let first = self.trials.len() as u32 + 1;
        let left = self.total.saturating_sub(self.trials.len());
        let search = &self.order.sweep.search;
        let ahead: Vec<Values> = match search.method {
            Method::Grid | Method::List => self.points.iter().take(left).cloned().collect(),
            Method::Random | Method::Tpe => {
                let is_random = search.method == Method::Random;
                let startup = tpe::STARTUP.saturating_sub(self.trials.len());
                let known = if is_random { CHECKED } else { startup };
                let numbers = (first..).take(left.min(known));
                let draws = numbers.map(|number| draw::random(search, &self.base, number));
                draws.collect::<Option<_>>().ok_or(Error::NothingLeft)?
            }
            Method::LrRange => Vec::new(),
        };
        let mut refused = Vec::new();
        for (number, values) in (first..).zip(ahead).take(CHECKED) {
            if let Err(why) = self.trainer.check(&self.order.changes(&values)) {
                let named = if refused.len() < NAMED { self.causes(&values) } else { values };
                let why = why.replace('\n', "\n      ");
                refused.push(format!("trial {number} ({}): {why}", shown(&named)));
            }
        }
        if refused.is_empty() { Ok(()) } else { Err(Error::Refused { trials: refused }) }
    }

    /// Those of the values of a trial that cannot be run without any one of which it could; all if there is none.
    fn causes(&self, values: &Values) -> Values {
        let is_cause = |(key, _): &&(String, Value)| {
            let rest: Values = values.iter().filter(|(other, _)| other != key).cloned().collect();
            self.trainer.check(&self.order.changes(&rest)).is_ok()
        };
        let causes: Values = values.iter().filter(is_cause).cloned().collect();
        if causes.is_empty() { values.clone() } else { causes }
    }

    fn live(&mut self, journal: &mut Journal) -> Result<Ended, Error> {
        let failed = |what| move |reason| Error::System { what, reason };
        let mut ears = Ears {
            preemption: Signals::of_preemption().map_err(failed("listen to signals"))?,
            interruption: Signals::of_interruption().map_err(failed("listen to signals"))?,
        };
        let retried = self.retry(journal)?;
        self.view.opened(&self.folder, self.order.concurrent(), &self.trials, retried);
        let (sender, receiver) = channel();
        let ended = std::thread::scope(|scope| {
            let ended = self.serve(scope, journal, &mut ears, (&sender, &receiver));
            if ended.is_err() {
                // A journal that cannot be written ends the sweep; its trials save and leave first.
                self.running.iter().for_each(|running| running.job.waker.wake());
            }
            ended
        });
        self.view.close();
        ended
    }

    fn serve<'scope>(
        &mut self,
        scope: &'scope Scope<'scope, '_>,
        journal: &mut Journal,
        ears: &mut Ears,
        (sender, receiver): (&Sender<Message>, &Receiver<Message>),
    ) -> Result<Ended, Error>
    where
        'a: 'scope,
    {
        let mut stopped: Option<Ended> = None;
        loop {
            while stopped.is_none() && self.running.len() < self.order.concurrent() {
                if self.failures() > self.order.sweep.max_failures as usize {
                    stopped = Some(Ended::TooManyFailures);
                } else if !self.start_next(scope, journal, sender)? {
                    break;
                }
            }
            if self.running.is_empty() {
                let failed = self.failures();
                return Ok(stopped.unwrap_or(Ended::Done { failed }));
            }
            let message = receiver.recv_timeout(LOOK);
            let interrupted = ears.interruption.take() > 0;
            if interrupted || ears.preemption.take() > 0 {
                stopped = Some(Ended::Stopped { interrupted });
            }
            self.listen(journal)?;
            match message {
                Ok(Message::Step(number, step)) => self.view.step(number, step),
                Ok(Message::Over(number, outcome)) => {
                    if self.over(journal, number, outcome)? && stopped.is_none() {
                        // Its ranks were stopped by a signal that we have not looked at yet.
                        let interrupted = ears.interruption.take() > 0;
                        stopped = Some(Ended::Stopped { interrupted });
                    }
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            if stopped.is_some() {
                self.running.iter().for_each(|running| running.job.waker.wake());
            }
        }
    }

    /// Has failed trials tried again, if that is asked for, and those that could not write in any case. Says how many.
    fn retry(&mut self, journal: &mut Journal) -> Result<usize, Error> {
        let (order, trainer) = (self.order, self.trainer);
        let is_retried = |trial: &&mut Trial| {
            trial.state == State::Failed && (order.retry_failed || trial.lacked_storage)
        };
        let mut retried = 0;
        for trial in self.trials.iter_mut().filter(is_retried) {
            // What cannot be planned now fails again when its turn comes.
            let length = trainer.check(&order.changes(&trial.values)).unwrap_or(trial.length);
            trial.begin_again(length);
            journal.retried(trial)?;
            failpoint::reach("sweep.retried");
            retried += 1;
        }
        Ok(retried)
    }

    fn failures(&self) -> usize {
        self.trials.iter().filter(|trial| trial.state == State::Failed).count()
    }

    /// Starts an interrupted trial, or the next one; `false` if there is none.
    fn start_next<'scope>(
        &mut self,
        scope: &'scope Scope<'scope, '_>,
        journal: &mut Journal,
        sender: &Sender<Message>,
    ) -> Result<bool, Error>
    where
        'a: 'scope,
    {
        let is_waiting = |trial: &&Trial| {
            let runs = self.running.iter().any(|running| running.number == trial.number);
            trial.state == State::Running && !runs
        };
        if let Some(trial) = self.trials.iter().find(is_waiting).cloned() {
            self.launch(scope, journal, sender, &trial, true)?;
            return Ok(true);
        }
        if self.trials.len() >= self.total {
            return Ok(false);
        }
        let number = self.trials.iter().map(|trial| trial.number).max().unwrap_or(0) + 1;
        let Some(values) = self.propose(number)? else { return Ok(false) };
        let checked = self.trainer.check(&self.order.changes(&values));
        let length = *checked.as_ref().unwrap_or(&Length { steps_per_epoch: 1, total_steps: 0 });
        let mut trial = Trial::new(number, values, length);
        failpoint::reach("sweep.draw");
        journal.started(&trial)?;
        failpoint::reach("sweep.started");
        if let Err(error) = checked {
            (trial.state, trial.error) = (State::Failed, Some(error));
            self.trials.push(trial.clone());
            self.close(journal, &trial)?;
            return Ok(true);
        }
        self.trials.push(trial.clone());
        self.launch(scope, journal, sender, &trial, false)?;
        Ok(true)
    }

    /// The values of the trial `number`; `None` if all points are used up.
    fn propose(&mut self, number: u32) -> Result<Option<Values>, Error> {
        let search = &self.order.sweep.search;
        match search.method {
            Method::Grid | Method::List => Ok(self.points.pop_front()),
            Method::LrRange => Ok(None),
            Method::Random => {
                draw::random(search, &self.base, number).map(Some).ok_or(Error::NothingLeft)
            }
            Method::Tpe => {
                let values = tpe::propose(search, &self.base, number, &self.trials);
                values.map(Some).ok_or(Error::NothingLeft)
            }
        }
    }

    fn launch<'scope>(
        &mut self,
        scope: &'scope Scope<'scope, '_>,
        journal: &mut Journal,
        sender: &Sender<Message>,
        trial: &Trial,
        resume: bool,
    ) -> Result<(), Error>
    where
        'a: 'scope,
    {
        let failed = |what| move |reason| Error::System { what, reason };
        let folders = self.order.folders(trial.number);
        let tail = Tail::new(&folders.logs, &self.order.sweep.search.metric);
        let concurrent = self.order.concurrent().min(self.total).max(1);
        let job = Arc::new(Job {
            folders,
            changes: self.order.changes(&trial.values),
            cores: (self.order.machine.cores / concurrent).max(1),
            gpus: self.free_gpus(),
            resume,
            waker: Arc::new(Waker::new().map_err(failed("make a waker"))?),
        });
        let number = trial.number;
        let (began, running) = (Instant::now(), job.clone());
        self.running.push(Running { number, job: running, tail, seen: 0, is_cut: false, began });
        self.view.started(trial, begins(resume, &self.order.folders(number)));
        if resume {
            // What it reported before it was interrupted may say all already.
            self.listen(journal)?;
            let known = self.running.iter().find(|running| running.number == number);
            if known.is_some_and(|running| running.is_cut || running.tail.is_over) {
                self.over(journal, number, Outcome::Done)?;
                return Ok(());
            }
        }
        let (trainer, sender) = (self.trainer, sender.clone());
        let watch = move || {
            let mut on_step = |step| drop(sender.send(Message::Step(number, step)));
            let trained = catch_unwind(AssertUnwindSafe(|| trainer.train(&job, &mut on_step)));
            let panicked =
                |_| Outcome::Failed { error: "ddprun panicked".to_owned(), cause: Cause::Other };
            // The receiver is gone if the sweep has failed meanwhile.
            drop(sender.send(Message::Over(number, trained.unwrap_or_else(panicked))));
            // A picture that cannot be drawn changes nothing about the trial.
            drop(catch_unwind(AssertUnwindSafe(|| trainer.report(&job))));
        };
        let thread = Builder::new().name(id(number)).spawn_scoped(scope, watch);
        thread.map(|_| ()).map_err(failed("start a thread"))
    }

    /// The GPUs for the next trial.
    fn free_gpus(&self) -> Vec<usize> {
        let mut trials = vec![0; self.order.machine.gpus];
        for gpu in self.running.iter().flat_map(|running| &running.job.gpus) {
            trials[*gpu] += 1;
        }
        gpus::least_used(&trials, self.order.sweep.search.devices_per_trial as usize)
    }

    /// Reads what running trials have reported, and gives up those that are not worth it.
    fn listen(&mut self, journal: &mut Journal) -> Result<(), Error> {
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

    /// Decides about each report of a running trial once. Either decision is written down before anything follows
    /// from it: one that was kept is not asked again after a restart, when it would be compared with other trials.
    fn judge(&mut self, journal: &mut Journal, index: usize, at: usize) -> Result<(), Error> {
        let search = &self.order.sweep.search;
        while self.running[index].seen < self.trials[at].reports.len() {
            let seen = self.running[index].seen;
            self.running[index].seen += 1;
            let report = self.trials[at].reports[seen];
            self.view.reported(self.trials[at].number, &report);
            if search.pruner == Pruner::None || report.step <= self.trials[at].kept {
                continue;
            }
            let (before, rest) = self.trials.split_at(at);
            let Some((trial, after)) = rest.split_first() else { return Ok(()) };
            let others: Vec<&Trial> = before.iter().chain(after).collect();
            if prune::is_cut(&search.pruner, search.goal, trial, seen, &others) {
                return self.give_up(journal, index, at);
            }
            self.trials[at].kept = report.step;
            journal.kept(&self.trials[at])?;
        }
        Ok(())
    }

    /// Gives up a running trial at the report that was seen last: it has ended as soon as that is written down.
    fn give_up(&mut self, journal: &mut Journal, index: usize, at: usize) -> Result<(), Error> {
        failpoint::reach("sweep.prune");
        let (running, trial) = (&mut self.running[index], &mut self.trials[at]);
        trial.reports.truncate(running.seen);
        (trial.state, trial.seconds) = (State::Pruned, running.seconds());
        journal.ended(trial, self.order.sweep.search.goal)?;
        failpoint::reach("sweep.pruned");
        running.is_cut = true;
        running.job.waker.wake();
        Ok(())
    }

    /// What follows from the end of a trial's ranks. Returns whether it was stopped by somebody else than us.
    fn over(
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
                leftovers::remove_checkpoints(&running.job.folders);
            }
            self.view.ended(trial.number, &self.trials);
            return Ok(false);
        }
        let metric = &self.order.sweep.search.metric;
        let (state, error) = match outcome {
            Outcome::Stopped => {
                self.view.interrupted(trial);
                return Ok(true);
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

    fn close(&mut self, journal: &mut Journal, trial: &Trial) -> Result<(), Error> {
        failpoint::reach("sweep.end");
        journal.ended(trial, self.order.sweep.search.goal)?;
        failpoint::reach("sweep.ended");
        self.view.ended(trial.number, &self.trials);
        Ok(())
    }
}

/// `optimizer.lr=0.01 train.batch_size=32`
pub(crate) fn shown(values: &Values) -> String {
    let words: Vec<String> = values.iter().map(|(key, value)| change_of(key, value)).collect();
    words.join(" ")
}

/// How a trial begins, in words: one that was interrupted may have lost its checkpoints, or had none yet.
fn begins(resume: bool, folders: &RunFolders) -> &'static str {
    let has_checkpoint = || checkpoint::all(&folders.checkpoints).is_ok_and(|all| !all.is_empty());
    match resume {
        false => "started",
        true if has_checkpoint() => "resumed",
        true => "begins again at its first step, because it has no checkpoint",
    }
}

#[cfg(test)]
mod tests;
