//! The running trials of a sweep: the next is started as soon as there is room for it.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{Builder, Scope};
use std::time::{Duration, Instant};

use crate::checkpoint;
use crate::config::sweep::{Search, Values};
use crate::failpoint;
use crate::launch::Signals;
use crate::plan::RunFolders;
use crate::sweep::folder::remove_checkpoints;
use crate::sweep::journal::Journal;
use crate::sweep::method::{Method, ProposalRequest};
use crate::sweep::ranking::Ranking;
use crate::sweep::repeated_search::Repeated;
use crate::sweep::request::{
    Cause, Job, Outcome, SweepEnd, SweepRequest, Trainer, reported, trained,
};
use crate::sweep::sampler::{BaseValues, Tried, untried};
use crate::sweep::trial::{EarlierTrial, Length, State, Trial, id};
use crate::sweep::trial_events::TrialEvents;
use crate::sweep::view::View;
use crate::sweep::{Error, pruner};

/// Interval for reading the reports of running trials.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Message of a thread that watches a trial.
enum Message {
    Step(u32, u64),
    Over(u32, Outcome),
}

/// A trial that runs.
pub(super) struct Running {
    pub(super) number: u32,
    pub(super) job: Arc<Job>,
    pub(super) tail: TrialEvents,
    /// Number of reports that were handled.
    pub(super) seen: usize,
    /// True once it was pruned: its end is journalled, and its ranks stop.
    pub(super) is_cut: bool,
    pub(super) began: Instant,
}

impl Running {
    /// Running time of all its starts in seconds, rounded as in the journal, so that a trial is the
    /// same before and after a restart.
    pub(super) fn seconds(&self) -> f64 {
        // A run that failed before its first word has said no time.
        let seconds = self.tail.seconds().unwrap_or_else(|| self.began.elapsed().as_secs_f64());
        (seconds * 1e3).round() / 1e3
    }
}

/// Inputs of the thread that decides.
struct Inbox {
    sender: Sender<Message>,
    receiver: Receiver<Message>,
    /// Signals that stop the sweep itself; each running trial gets them too.
    preemption: Signals,
    interruption: Signals,
}

/// A sweep that runs.
pub(super) struct Session<'a> {
    pub(super) order: SweepRequest<'a>,
    pub(super) trainer: &'a dyn Trainer,
    pub(super) method: Box<dyn Method>,
    pub(super) ranking: Ranking,
    pub(super) base: BaseValues,
    /// Untried points, for a method that knows all points beforehand.
    pub(super) points: Option<VecDeque<Values>>,
    /// Repeats of settings over folds or seeds.
    pub(super) repeated: Option<Repeated>,
    /// Remarks for the user before the trials run.
    pub(super) notes: Vec<String>,
    /// Results of other sweeps and runs, which count as if this one had trained them.
    pub(super) earlier: Vec<EarlierTrial>,
    /// Those that the journal does not hold yet.
    pub(super) news: Vec<EarlierTrial>,
    pub(super) total: usize,
    pub(super) folder: PathBuf,
    pub(super) trials: Vec<Trial>,
    pub(super) running: Vec<Running>,
    pub(super) view: View,
}

impl<'a> Session<'a> {
    /// Runs trials until all are done, or a signal stops it.
    pub(super) fn run(&mut self, journal: &mut Journal) -> Result<SweepEnd, Error> {
        let (sender, receiver) = channel();
        let mut inbox = Inbox {
            sender,
            receiver,
            preemption: Signals::of_preemption().map_err(Error::system("listen to signals"))?,
            interruption: Signals::of_interruption().map_err(Error::system("listen to signals"))?,
        };
        let retried = self.retry(journal)?;
        let open = if self.is_shared() { "under way" } else { "interrupted" };
        self.view.opened(&self.folder, self.capacity(), &self.trials, retried, open);
        self.notes.iter().for_each(|note| self.view.say(note));
        let ended = std::thread::scope(|scope| {
            let ended = self.run_loop(scope, journal, &mut inbox);
            if ended.is_err() {
                // A journal that cannot be written ends the sweep; its trials save and leave first.
                self.running.iter().for_each(|running| running.job.waker.wake());
            }
            ended
        });
        self.view.close();
        ended
    }

    fn run_loop<'scope>(
        &mut self,
        scope: &'scope Scope<'scope, '_>,
        journal: &mut Journal,
        inbox: &mut Inbox,
    ) -> Result<SweepEnd, Error>
    where
        'a: 'scope,
    {
        let mut stopped: Option<SweepEnd> = None;
        self.follow_running(scope, journal, &inbox.sender)?;
        loop {
            stopped = stopped.or_else(|| self.limit());
            let mut is_exhausted = false;
            let capacity = self.capacity();
            self.view.has_capacity(capacity);
            while stopped.is_none() && self.running.len() < capacity {
                if self.failures() > self.order.sweep.max_failures as usize {
                    stopped = Some(SweepEnd::TooManyFailures);
                } else if !self.start_next(scope, journal, &inbox.sender)? {
                    is_exhausted = true;
                    break;
                }
            }
            if self.running.is_empty() && (is_exhausted || stopped.is_some()) {
                return Ok(stopped.unwrap_or_else(|| self.exhausted()));
            }
            let message = inbox.receiver.recv_timeout(POLL_INTERVAL);
            let interrupted = inbox.interruption.take() > 0;
            if interrupted || inbox.preemption.take() > 0 {
                stopped = Some(SweepEnd::Stopped { interrupted });
            }
            self.poll_reports(journal)?;
            match message {
                Ok(Message::Step(number, step)) => self.view.step(number, step),
                Ok(Message::Over(number, Outcome::Stopped))
                    if stopped == Some(SweepEnd::Extended) =>
                {
                    // It runs on, and is followed again.
                    self.running.retain(|running| running.number != number);
                    self.view.remove(number);
                }
                Ok(Message::Over(number, outcome)) => {
                    let is_stopping = stopped.is_some();
                    let outcome = if is_stopping { outcome.when_stopping() } else { outcome };
                    if self.trial_ended(journal, number, outcome)? && stopped.is_none() {
                        // Its ranks were stopped by a signal that we have not looked at yet.
                        let interrupted = inbox.interruption.take() > 0;
                        stopped = Some(SweepEnd::Stopped { interrupted });
                    }
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            if stopped.is_some() {
                self.running.iter().for_each(|running| running.job.waker.wake());
            }
        }
    }

    /// The end of a sweep that has no trial left to start.
    fn exhausted(&self) -> SweepEnd {
        let (n, total) = (self.trials.len(), self.total);
        if n < total && self.order.is_out_of_patience(&self.trials) {
            return SweepEnd::NoneBetter;
        }
        if n < total {
            let why = match &self.repeated {
                Some(repeated) if repeated.is_race() => {
                    "all settings were tried, and those not repeated further cannot win"
                }
                _ => "nothing is left to try",
            };
            self.view.say(&format!("{why}: the sweep ends after {n} of {total} trials"));
        }
        SweepEnd::Done { failed: self.failures() }
    }

    /// Why no further trial starts, though some are left.
    fn limit(&self) -> Option<SweepEnd> {
        let limits = [
            (self.trainer.is_extended(), SweepEnd::Extended),
            (self.order.is_reached(&self.trials), SweepEnd::Reached),
            (self.order.is_out_of_time(), SweepEnd::OutOfTime),
        ];
        limits.into_iter().find_map(|(holds, end)| holds.then_some(end))
    }

    /// Retries failed trials if requested, and those that could not write in any case. Returns
    /// their number.
    fn retry(&mut self, journal: &mut Journal) -> Result<usize, Error> {
        let order = self.order;
        let trainer = self.trainer;
        let mut retried = 0;
        for trial in self.trials.iter_mut().filter(|trial| order.retries(trial)) {
            // What cannot be planned now fails again when its turn comes.
            let length = trainer.check(&order.changes(&trial.values)).unwrap_or(trial.length);
            trial.begin_again(length);
            journal.retried(trial)?;
            failpoint::reach("sweep.retried");
            retried += 1;
        }
        Ok(retried)
    }

    /// Number of trials that can run at the same time now.
    fn capacity(&self) -> usize {
        self.trainer.capacity().unwrap_or_else(|| self.order.concurrent())
    }

    /// True if trials started by an earlier leader may be running.
    fn is_shared(&self) -> bool {
        self.trainer.capacity().is_some()
    }

    fn failures(&self) -> usize {
        self.trials.iter().filter(|trial| trial.state == State::Failed).count()
    }

    /// Follows every trial that another process trains for an earlier leader, even beyond the
    /// capacity: each has its place already.
    fn follow_running<'scope>(
        &mut self,
        scope: &'scope Scope<'scope, '_>,
        journal: &mut Journal,
        sender: &Sender<Message>,
    ) -> Result<(), Error>
    where
        'a: 'scope,
    {
        let is_under_way = |trial: &&Trial| {
            trial.state == State::Running && self.trainer.is_under_way(trial.number)
        };
        let trials: Vec<Trial> = self.trials.iter().filter(is_under_way).cloned().collect();
        trials.iter().try_for_each(|trial| self.launch(scope, journal, sender, trial, true))
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
        let number = self.next_number();
        let Some(values) = self.propose(number)? else { return Ok(false) };
        let (mut trial, checked) = self.begun(number, values);
        failpoint::reach("sweep.draw");
        journal.started(&trial)?;
        failpoint::reach("sweep.started");
        if let Err(error) = checked {
            (trial.state, trial.error) = (State::Failed, Some(error));
            self.trials.push(trial.clone());
            self.record_end(journal, &trial)?;
            return Ok(true);
        }
        self.trials.push(trial.clone());
        self.launch(scope, journal, sender, &trial, false)?;
        Ok(true)
    }

    pub(super) fn next_number(&self) -> u32 {
        self.trials.iter().map(|trial| trial.number).max().unwrap_or(0) + 1
    }

    /// A trial with these values, and why it cannot be run if so.
    pub(super) fn begun(&self, number: u32, values: Values) -> (Trial, Result<(), String>) {
        let checked = self.trainer.check(&self.order.changes(&values));
        let length = *checked.as_ref().unwrap_or(&Length { steps_per_epoch: 1, total_steps: 0 });
        (Trial::new(number, values, length), checked.map(|_| ()))
    }

    /// The values of the trial `number`; `None` if all points are used up.
    pub(super) fn propose(&mut self, number: u32) -> Result<Option<Values>, Error> {
        let takes_new = !self.order.is_out_of_patience(&self.trials);
        match &mut self.points {
            None if takes_new => {
                let known = self.with_earlier(&self.trials);
                return self.draw(number, &known, &Tried::of(&known, &self.base));
            }
            Some(points) if takes_new && !points.is_empty() => {
                return Ok(points.pop_front().map(|point| self.first_of(point)));
            }
            _ => {}
        }
        let goal = self.ranking.goal;
        let repeated = self.repeated.as_ref();
        let known = self.with_earlier(&self.trials);
        Ok(repeated.and_then(|repeated| repeated.next(&known, &self.base, goal)))
    }

    /// The earlier results, if there are any, and `trials`, numbered in this order.
    pub(super) fn with_earlier(&self, trials: &[Trial]) -> Vec<Trial> {
        if self.earlier.is_empty() {
            return trials.to_vec();
        }
        let earlier = self.earlier.iter().map(|one| &one.trial);
        let numbered = (1..).zip(earlier.chain(trials));
        numbered.map(|(number, trial)| Trial { number, ..trial.clone() }).collect()
    }

    /// The values of the first trial of a setting.
    pub(super) fn first_of(&self, setting: Values) -> Values {
        match &self.repeated {
            Some(repeated) => repeated.first(setting),
            None => setting,
        }
    }

    /// Draws the values of the trial `number` after `trials`, the earlier ones among them, whose
    /// settings are `tried`; `None` if nothing is left.
    pub(super) fn draw(
        &self,
        number: u32,
        trials: &[Trial],
        tried: &Tried,
    ) -> Result<Option<Values>, Error> {
        let search = &self.order.sweep.search;
        let base = &self.base;
        let drawn = match &self.repeated {
            None => self.draw_setting(search, number, trials, tried),
            Some(repeated) => {
                let goal = self.ranking.goal;
                if let Some(values) = repeated.next(trials, base, goal) {
                    return Ok(Some(values));
                }
                let settings = Repeated::settings(trials, base, goal);
                let tried = Tried::of(&settings, base);
                let drawn = self.draw_setting(&repeated.search, number, &settings, &tried);
                drawn.map(|setting| repeated.first(setting))
            }
        };
        if drawn.is_none() && trials.is_empty() { Err(Error::NothingLeft) } else { Ok(drawn) }
    }

    /// The first of `[[sweep.start]]` that no trial has had; else the values that the method
    /// proposes, or others if a trial has had these.
    fn draw_setting(
        &self,
        search: &Search,
        number: u32,
        trials: &[Trial],
        tried: &Tried,
    ) -> Option<Values> {
        let base = &self.base;
        if let Some(values) = search.start.iter().find(|values| !tried.has(values, base)) {
            return Some(values.clone());
        }
        let ranking = &self.ranking;
        let request = ProposalRequest { search, base, ranking, number, trials, tried };
        let proposed = self.method.propose(&request).filter(|values| !tried.has(values, base));
        proposed.or_else(|| untried(&request))
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
        let concurrent = self.order.concurrent().min(self.total);
        let others = self.running.iter().map(|running| &*running.job);
        let changes = self.order.changes(&trial.values);
        let job = self.order.job(trial.number, changes, resume, concurrent, others)?;
        let tail = TrialEvents::new(&job.folders.logs, &self.order.sweep.search.metric);
        let number = trial.number;
        let began = Instant::now();
        let running = job.clone();
        self.running.push(Running { number, job: running, tail, seen: 0, is_cut: false, began });
        let how =
            if resume && self.is_shared() { "continues" } else { begins(resume, &job.folders) };
        self.view.started(trial, how);
        if resume {
            // What it reported before it was interrupted may say all already.
            self.poll_reports(journal)?;
            let known = self.running.iter().find(|running| running.number == number);
            let says_all = known.is_some_and(|running| running.is_cut || running.tail.is_over);
            // The end of one that another process trains is waited for.
            if says_all && !self.trainer.is_under_way(number) {
                self.trial_ended(journal, number, Outcome::Done)?;
                return Ok(());
            }
        }
        let trainer = self.trainer;
        let sender = sender.clone();
        let watch = move || {
            let mut on_step = |step| drop(sender.send(Message::Step(number, step)));
            let outcome = trained(trainer, &job, &mut on_step);
            // The receiver is gone if the sweep has failed meanwhile.
            drop(sender.send(Message::Over(number, outcome)));
            reported(trainer, &job);
        };
        let thread = Builder::new().name(id(number)).spawn_scoped(scope, watch);
        thread.map(|_| ()).map_err(Error::system("start a thread"))
    }

    /// Reads the reports of running trials, and prunes.
    fn poll_reports(&mut self, journal: &mut Journal) -> Result<(), Error> {
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
            self.decide(journal, index, at)?;
        }
        Ok(())
    }

    /// Decides about each report of a running trial once. Either decision is journalled before
    /// anything depends on it: a report that was kept is not judged again after a restart, when it
    /// would be compared with other trials.
    fn decide(&mut self, journal: &mut Journal, index: usize, at: usize) -> Result<(), Error> {
        let is_off = self.ranking.pruner.is_off();
        while self.running[index].seen < self.trials[at].reports.len() {
            let seen = self.running[index].seen;
            self.running[index].seen += 1;
            let report = self.trials[at].reports[seen];
            self.view.reported(self.trials[at].number, &report);
            if is_off || report.step <= self.trials[at].kept {
                continue;
            }
            if self.is_cut(at, seen) {
                return self.give_up(journal, index, at);
            }
            self.trials[at].kept = report.step;
            journal.kept(&self.trials[at])?;
        }
        Ok(())
    }

    /// True if the pruner stops a trial at its report `index`; repeats are judged by the means of
    /// their settings.
    fn is_cut(&self, at: usize, index: usize) -> bool {
        let goal = self.ranking.goal;
        let judge = |trial: &Trial, others: &[&Trial]| {
            let running = pruner::Running { goal, trial, index, others };
            pruner::is_cut(self.ranking.pruner.as_ref(), &running)
        };
        if self.repeated.is_some() {
            let (trial, others) = Repeated::curves(&self.trials, at, index, &self.base);
            return judge(&trial, &others.iter().collect::<Vec<&Trial>>());
        }
        let others = self.trials.iter().enumerate().filter(|(other, _)| *other != at);
        judge(&self.trials[at], &others.map(|(_, trial)| trial).collect::<Vec<&Trial>>())
    }

    /// Prunes a running trial at the report that was handled last: it has ended as soon as that is
    /// journalled.
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

    /// Handles the end of a trial's ranks. Returns true if a signal of its own stopped the trial.
    fn trial_ended(
        &mut self,
        journal: &mut Journal,
        number: u32,
        outcome: Outcome,
    ) -> Result<bool, Error> {
        self.poll_reports(journal)?;
        let Some(index) = self.running.iter().position(|running| running.number == number) else {
            return Ok(false);
        };
        let running = self.running.remove(index);
        let Some(trial) = self.trials.iter_mut().find(|trial| trial.number == number) else {
            return Ok(false);
        };
        if running.is_cut {
            if !self.order.sweep.keep_pruned_checkpoints {
                remove_checkpoints(&running.job.folders);
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
        self.record_end(journal, &trial)?;
        Ok(false)
    }

    fn record_end(&mut self, journal: &mut Journal, trial: &Trial) -> Result<(), Error> {
        failpoint::reach("sweep.end");
        journal.ended(trial, self.order.sweep.search.goal)?;
        failpoint::reach("sweep.ended");
        self.view.ended(trial.number, &self.trials);
        Ok(())
    }
}

/// Returns true if a trial in these folders has a checkpoint to resume from.
pub(super) fn has_checkpoint(folders: &RunFolders) -> bool {
    checkpoint::all(&folders.checkpoints).is_ok_and(|all| !all.is_empty())
}

/// Words for the start of a trial: an interrupted one may have lost its checkpoints, or had none
/// yet.
fn begins(resume: bool, folders: &RunFolders) -> &'static str {
    match resume {
        false => "started",
        true if has_checkpoint(folders) => "resumed",
        true => "restarted from step 0, because it has no checkpoint",
    }
}
