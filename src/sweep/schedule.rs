//! The parent of all trials: draws, starts, listens, prunes, writes down, and starts the next as soon as there is
//! room. One thread decides; one thread per running trial watches its ranks.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{Builder, Scope};
use std::time::{Duration, Instant};

use crate::config::sweep::{Method, Sweep, Values, change_of};
use crate::config::{Loaded, sweep as config};
use crate::launch::{Bell, Signals};
use crate::plan::RunFolders;
use crate::record::Screen;
use crate::sweep::draw::{self, BaseValues};
use crate::sweep::journal::{self, Journal, Story, Subject};
use crate::sweep::tail::Tail;
use crate::sweep::trial::{Length, State, Trial, id};
use crate::sweep::view::View;
use crate::sweep::{Error, gpus, prepared_folder, prune, results, tpe};

/// How often running trials are listened to when nothing else happens.
const LOOK: Duration = Duration::from_millis(100);
/// Trials that are checked before the first is started; those after them when their turn comes.
const CHECKED: usize = 1000;

/// Makes runs out of trials: the program's way from an experiment to its ranks, or a test's.
pub trait Trainer: Sync {
    /// Decides the experiment with these changes, without touching anything.
    ///
    /// # Errors
    ///
    /// Why it cannot be run, in words.
    fn check(&self, changes: &[String]) -> Result<Length, String>;

    /// Trains a trial to its end, or until its bell is rung; `on_step` hears where it is. What it reports stands
    /// in `events.jsonl` of its folder.
    fn train(&self, job: &Job, on_step: &mut dyn FnMut(u64)) -> Outcome;

    /// Makes pictures of what a trial recorded; by default none. Its devices are free by then: the next one trains.
    fn report(&self, _job: &Job) {}
}

/// A trial, as its trainer needs to know it.
#[derive(Debug)]
pub struct Job {
    /// Where it writes.
    pub folders: RunFolders,
    /// Changes of the base.
    pub changes: Vec<String>,
    /// Cores that it may use.
    pub cores: usize,
    /// GPUs that it may use, as CUDA numbers them for this process; empty where trials compute on the CPU.
    pub gpus: Vec<usize>,
    /// Whether it was begun before.
    pub resume: bool,
    /// Rung to stop it.
    pub bell: Arc<Bell>,
}

/// How the training of a trial ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It is done.
    Done,
    /// It was stopped, and saved.
    Stopped,
    /// It failed.
    Failed {
        /// Why.
        error: String,
        /// Whether its numbers were not finite any more.
        diverged: bool,
    },
}

/// What there is to run trials on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Cores to divide among trials.
    pub cores: usize,
    /// GPUs to divide among trials.
    pub gpus: usize,
}

impl Machine {
    /// Devices to divide among trials: without GPUs, the cores.
    pub fn devices(self) -> usize {
        if self.gpus > 0 { self.gpus } else { self.cores }
    }
}

/// How a sweep is run.
#[derive(Clone, Copy)]
pub struct Order<'a> {
    /// What was asked.
    pub sweep: &'a Sweep,
    /// The experiment that all trials change.
    pub base: &'a Loaded,
    /// What there is to run it on.
    pub machine: Machine,
    /// Whether another search may go on with the trials of the folder.
    pub extend: bool,
    /// How to write to the terminal.
    pub screen: Screen,
}

/// How a sweep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All trials are done; so many of them failed.
    Done {
        /// Failed trials.
        failed: usize,
    },
    /// More trials failed than `max_failures` allows.
    TooManyFailures,
    /// A signal stopped it; the same command goes on.
    Stopped {
        /// Whether it was Ctrl-C.
        interrupted: bool,
    },
}

impl Order<'_> {
    /// The folder of the sweep: journal, table, pictures, and a folder for each trial.
    pub fn folder(&self) -> PathBuf {
        self.base.experiment.logging.dir.join(&self.sweep.name)
    }

    /// Trials that run at the same time.
    pub fn concurrent(&self) -> usize {
        let sweep = self.sweep;
        let room = self.machine.devices() * sweep.trials_per_device as usize;
        let auto = (room / sweep.search.devices_per_trial as usize).max(1);
        sweep.concurrent_trials.given().map_or(auto, |count| count as usize)
    }

    /// What every trial changes, beside its values.
    pub fn common_changes(&self) -> Vec<String> {
        let devices = self.sweep.search.devices_per_trial;
        let mut changes = self.sweep.changes.clone();
        changes.extend(config::watching(self.sweep));
        changes.push(format!("distributed.devices={devices}"));
        let sinks = &self.base.experiment.logging.sinks;
        if !sinks.contains(&crate::plan::Sink::Jsonl) {
            // Reports are read from there.
            let mut names: Vec<serde_json::Value> =
                sinks.iter().filter_map(|sink| serde_json::to_value(sink).ok()).collect();
            names.push("jsonl".into());
            changes.push(change_of("logging.sinks", &names.into()));
        }
        changes
    }

    fn changes(&self, values: &Values) -> Vec<String> {
        let mut changes = self.common_changes();
        changes.extend(values.iter().map(|(key, value)| change_of(key, value)));
        changes
    }

    fn folders(&self, number: u32) -> RunFolders {
        let experiment = &self.base.experiment;
        let at = |dir: &Path| dir.join(&self.sweep.name).join(id(number));
        let (logs, checkpoints) = (at(&experiment.logging.dir), at(&experiment.checkpoint.dir));
        RunFolders { id: id(number), logs, checkpoints }
    }
}

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
    let points =
        points.into_iter().filter(|point| !trials.iter().any(|known| known.values == *point));
    let mut session = Session {
        order,
        trainer,
        base,
        points: points.collect(),
        total: if is_list { total.max(trials.len()) } else { total },
        folder: folder.clone(),
        trials,
        running: Vec::new(),
        view: View::new(order.screen, order.sweep, total),
    };
    session.check_ahead()?;
    let _lock = prepared_folder(&folder)?;
    let mut journal = Journal::open(&folder)?;
    match earlier {
        None => journal.opened(&subject)?,
        Some(earlier) if *earlier != subject => journal.extended(&subject)?,
        Some(_) => {}
    }
    let ended = session.live(&mut journal)?;
    let trials = session.trials;
    results::write(&folder, &subject, &order.sweep.search, &trials)?;
    let opened = story.map_or_else(jiff::Timestamp::now, |story| story.opened);
    Ok((ended, Story { subject, trials, opened }))
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
    /// Reports that have been decided on.
    judged: usize,
    /// The report at which it was given up.
    cut: Option<usize>,
    began: Instant,
}

/// Signals that stop the sweep itself; each running trial hears them too.
struct Ears {
    preemption: Signals,
    interruption: Signals,
}

struct Session<'a> {
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

impl<'a> Session<'a> {
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
                let why = why.replace('\n', "\n      ");
                refused.push(format!("trial {number} ({}): {why}", shown(&values)));
            }
        }
        if refused.is_empty() { Ok(()) } else { Err(Error::Refused { trials: refused }) }
    }

    fn live(&mut self, journal: &mut Journal) -> Result<Ended, Error> {
        let failed = |what| move |reason| Error::System { what, reason };
        let mut ears = Ears {
            preemption: Signals::of_preemption().map_err(failed("listen to signals"))?,
            interruption: Signals::of_interruption().map_err(failed("listen to signals"))?,
        };
        self.view.opened(&self.folder, self.order.concurrent(), &self.trials);
        let (sender, receiver) = channel();
        let ended = std::thread::scope(|scope| {
            let ended = self.serve(scope, journal, &mut ears, (&sender, &receiver));
            if ended.is_err() {
                // A journal that cannot be written ends the sweep; its trials save and leave first.
                self.running.iter().for_each(|running| running.job.bell.ring());
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
            self.listen()?;
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
                self.running.iter().for_each(|running| running.job.bell.ring());
            }
        }
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
        journal.started(&trial)?;
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
            bell: Arc::new(Bell::new().map_err(failed("make a bell"))?),
        });
        let number = trial.number;
        let (began, running) = (Instant::now(), job.clone());
        self.running.push(Running { number, job: running, tail, judged: 0, cut: None, began });
        self.view.started(trial, resume);
        if resume {
            // What it reported before it was interrupted may have decided about it already.
            self.listen()?;
            let known = self.running.iter().find(|running| running.number == number);
            if known.is_some_and(|running| running.cut.is_some() || running.tail.is_over) {
                self.over(journal, number, Outcome::Done)?;
                return Ok(());
            }
        }
        let (trainer, sender) = (self.trainer, sender.clone());
        let watch = move || {
            let mut on_step = |step| drop(sender.send(Message::Step(number, step)));
            let trained = catch_unwind(AssertUnwindSafe(|| trainer.train(&job, &mut on_step)));
            let panicked =
                |_| Outcome::Failed { error: "ddprun panicked".to_owned(), diverged: false };
            // Nobody is left to hear it if the sweep has failed meanwhile.
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
    fn listen(&mut self) -> Result<(), Error> {
        let search = &self.order.sweep.search;
        for index in 0..self.running.len() {
            let running = &mut self.running[index];
            running.tail.poll()?;
            let number = running.number;
            let Some(at) = self.trials.iter().position(|trial| trial.number == number) else {
                continue;
            };
            self.trials[at].reports.clone_from(&running.tail.reports);
            let trial = &self.trials[at];
            let others: Vec<&Trial> =
                self.trials.iter().filter(|other| other.number != number).collect();
            while running.cut.is_none() && running.judged < trial.reports.len() {
                let report = running.judged;
                running.judged += 1;
                self.view.reported(number, &trial.reports[report]);
                if prune::is_cut(&search.pruner, search.goal, trial, report, &others) {
                    running.cut = Some(report);
                    running.job.bell.ring();
                }
            }
            if let Some(cut) = running.cut {
                self.trials[at].reports.truncate(cut + 1);
            }
        }
        Ok(())
    }

    /// Writes down how a trial ended. Returns whether it was stopped by somebody else than us.
    fn over(
        &mut self,
        journal: &mut Journal,
        number: u32,
        outcome: Outcome,
    ) -> Result<bool, Error> {
        self.listen()?;
        let Some(index) = self.running.iter().position(|running| running.number == number) else {
            return Ok(false);
        };
        let running = self.running.remove(index);
        let Some(trial) = self.trials.iter_mut().find(|trial| trial.number == number) else {
            return Ok(false);
        };
        // As the journal keeps it, so that a trial is the same before and after a restart.
        trial.seconds = running.began.elapsed().as_millis() as f64 / 1e3;
        let metric = &self.order.sweep.search.metric;
        (trial.state, trial.error) = match outcome {
            _ if running.cut.is_some() => (State::Pruned, None),
            Outcome::Stopped => {
                self.view.interrupted(trial);
                return Ok(true);
            }
            Outcome::Done if trial.reports.is_empty() => {
                (State::Failed, Some(format!("the run never reported `{metric}`")))
            }
            Outcome::Done => (State::Finished, None),
            Outcome::Failed { error, diverged: true } => (State::Diverged, Some(error)),
            Outcome::Failed { error, diverged: false } => (State::Failed, Some(error)),
        };
        let trial = trial.clone();
        self.close(journal, &trial)?;
        Ok(false)
    }

    fn close(&mut self, journal: &mut Journal, trial: &Trial) -> Result<(), Error> {
        journal.ended(trial, self.order.sweep.search.goal)?;
        self.view.ended(trial, &self.trials);
        Ok(())
    }
}

/// `optimizer.lr=0.01 train.batch_size=32`
pub(crate) fn shown(values: &Values) -> String {
    let words: Vec<String> = values.iter().map(|(key, value)| change_of(key, value)).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests;
