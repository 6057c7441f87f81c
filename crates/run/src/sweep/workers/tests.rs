use std::collections::HashSet;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Instant;

use serde_json::{Value, json};

use super::*;
use crate::config::sweep::{Domain, Parameter};
use crate::config::values::Auto;
use crate::files::{LineFile, RunLock};
use crate::record::EVENTS;
use crate::sweep::example_sweeps::SweepFixture;
use crate::sweep::request::{Cause, Job, Outcome};
use crate::sweep::trial::Length;
use crate::sweep::workers::worker_pool::AttemptState;

const QUICK: Timing = Timing {
    poll: Duration::from_millis(2),
    beat: Duration::from_millis(10),
    // Long enough for a busy machine: a worker that is late is not lost.
    lease: Duration::from_secs(5),
};

/// Trials for workers that train two at a time.
fn lab(trials: usize) -> SweepFixture {
    let mut lab = SweepFixture::new("random", trials);
    lab.sweep.concurrent_trials = Auto::Given(2);
    lab
}

impl SweepFixture {
    fn share<'a>(&'a self, trainer: &'a dyn Trainer, name: &'a str) -> SharedSweep<'a> {
        SharedSweep { order: self.order(), trainer, name, say: &|_| (), timing: QUICK }
    }

    fn journal_lines(&self) -> Vec<Value> {
        let path = self.folder.path().join("s").join(journal::NAME);
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Trials whose end is written down, once for each time.
    fn ended(&self) -> Vec<u64> {
        let lines = self.journal_lines();
        let ended = lines.iter().filter(|line| line["record"] == "ended");
        ended.map(|line| line["trial"].as_u64().unwrap()).collect()
    }
}

/// Trains in a moment, alone in the trial's folder; may be told to hang.
#[derive(Default)]
struct Quick {
    trained: AtomicUsize,
    /// Trials at which it hangs until it is stopped, once each.
    hangs: Mutex<HashSet<u32>>,
    hung: AtomicUsize,
}

impl Trainer for Quick {
    fn check(&self, _: &[String]) -> Result<Length, String> {
        Ok(Length { steps_per_epoch: 10, total_steps: 10 })
    }

    fn train(&self, job: &Job, on_step: &mut dyn FnMut(u64)) -> Outcome {
        files::create_folder(&job.folders.logs).unwrap();
        let _alone = RunLock::acquire(&job.folders.logs).unwrap();
        let number = crate::sweep::trial_number(&job.folders.id).unwrap();
        if self.hangs.lock().unwrap().remove(&number) {
            self.hung.fetch_add(1, Ordering::SeqCst);
            while !job.waker.take() {
                std::thread::sleep(QUICK.poll);
            }
            return Outcome::Stopped;
        }
        evaluated(job);
        on_step(10);
        self.trained.fetch_add(1, Ordering::SeqCst);
        Outcome::Done
    }
}

/// Records what a trial has reached.
fn evaluated(job: &Job) {
    files::create_folder(&job.folders.logs).unwrap();
    let mut lines = LineFile::open(&job.folders.logs.join(EVENTS)).unwrap();
    let event = json!({"step": 10, "event": "evaluated", "metrics": {"val/loss": 0.5}});
    lines.push(&event.to_string()).unwrap();
}

/// Cannot write at first.
#[derive(Default)]
struct Full {
    was_full: AtomicBool,
    then: Quick,
}

impl Trainer for Full {
    fn check(&self, changes: &[String]) -> Result<Length, String> {
        self.then.check(changes)
    }

    fn train(&self, job: &Job, on_step: &mut dyn FnMut(u64)) -> Outcome {
        if self.was_full.swap(true, Ordering::SeqCst) {
            return self.then.train(job, on_step);
        }
        Outcome::Failed { error: "no space is left".to_owned(), cause: Cause::Storage }
    }
}

#[test]
fn a_trial_that_could_not_write_is_tried_again_by_the_same_command() {
    let (lab, trainer) = (lab(2), Full::default());
    let (ended, _) = lab.share(&trainer, "w0").run().unwrap();
    assert_eq!(ended, SweepEnd::Done { failed: 1 });
    let (ended, story) = lab.share(&trainer, "w1").run().unwrap();
    assert_eq!(ended, SweepEnd::Done { failed: 0 });
    assert!(story.trials.iter().all(|trial| trial.state == State::Finished));
    assert_eq!(trainer.then.trained.load(Ordering::SeqCst), 2);
}

/// Runs a sweep of `trials` on `workers`, beside `dead` ones that fall silent with the trials that
/// they took. Returns the lab, and how often a trial was trained to its end.
fn shared(trials: usize, workers: usize, dead: usize) -> (SweepFixture, usize) {
    let (lab, trainer) = (lab(trials), Quick::default());
    let dies = Quick { hangs: Mutex::new((1..=trials as u32).collect()), ..Quick::default() };
    let is_dead = AtomicBool::new(false);
    let names: Vec<String> = (0..workers).map(|n| format!("w{n}")).collect();
    let dead_names: Vec<String> = (0..dead).map(|n| format!("dead{n}")).collect();
    std::thread::scope(|scope| {
        for name in &dead_names {
            scope.spawn(|| lost_worker(&lab, &dies, name, &is_dead));
        }
        let share = |name: &String| {
            let (ended, story) = lab.share(&trainer, name).run().unwrap();
            assert_eq!((ended, story.trials.len()), (SweepEnd::Done { failed: 0 }, trials));
            assert!(story.trials.iter().all(|trial| trial.state == State::Finished));
        };
        let all: Vec<_> = names.iter().map(|name| scope.spawn(move || share(name))).collect();
        for worker in all {
            worker.join().unwrap();
        }
        is_dead.store(true, Ordering::Release);
    });
    (lab, trainer.trained.into_inner() + dies.trained.into_inner())
}

fn each_once(lab: &SweepFixture, trials: usize) {
    let mut ended = lab.ended();
    ended.sort_unstable();
    assert_eq!(ended, (1..=trials as u64).collect::<Vec<_>>());
}

#[test]
fn many_workers_end_each_trial_of_a_sweep_once() {
    let (lab, trained) = shared(100, 8, 0);
    each_once(&lab, 100);
    assert_eq!(trained, 100);
}

#[test]
fn a_trial_whose_worker_falls_silent_is_resumed_by_another() {
    let (lab, trained) = shared(12, 1, 1);
    each_once(&lab, 12);
    assert_eq!(trained, 12);
}

/// Seconds between the ends of these trials, in the middle.
fn median_pause(times: &[jiff::Timestamp]) -> f64 {
    let mut pauses: Vec<f64> =
        times.windows(2).map(|pair| pair[1].duration_since(pair[0]).as_secs_f64()).collect();
    pauses.sort_unstable_by(f64::total_cmp);
    pauses[pauses.len() / 2]
}

#[test]
#[ignore = "a thousand trials on fifty workers"]
fn a_thousand_trials_on_fifty_workers_of_which_five_die_end_once_each_at_a_constant_cost() {
    let (lab, _) = shared(1000, 45, 5);
    each_once(&lab, 1000);
    let lines = lab.journal_lines();
    let ended = lines.iter().filter(|line| line["record"] == "ended");
    let times: Vec<jiff::Timestamp> =
        ended.map(|line| line["time"].as_str().unwrap().parse().unwrap()).collect();
    let [early, late] = [&times[50..350], &times[650..950]].map(median_pause);
    println!("a trial each {:.2} ms early and {:.2} ms late", 1e3 * early, 1e3 * late);
    assert!(late < 2.0 * early + 0.005, "{early} s and {late} s");
}

/// A worker that takes trials and then says nothing more, as one whose machine has lost its power.
fn lost_worker(lab: &SweepFixture, trainer: &Quick, name: &str, is_dead: &AtomicBool) {
    let folder = lab.folder.path().join("s").join(FOLDER).join(name);
    let silent = Timing { beat: Duration::from_hours(1), lease: Duration::from_hours(1), ..QUICK };
    let order = lab.share(trainer, name).order;
    let worker = Worker { order, trainer, timing: silent, is_leaving: is_dead, say: &|_| () };
    let membership = worker.join(&folder).unwrap();
    worker.run(membership).unwrap();
}

#[test]
fn a_leader_that_follows_another_finds_trials_in_progress_and_their_ends() {
    let lab = lab(30);
    let workers_folder = lab.folder.path().join("s").join(FOLDER);
    let slow = Slow { released: AtomicBool::new(false), starts: AtomicUsize::new(0) };
    let (is_leaving, order) = (AtomicBool::new(false), lab.share(&slow, "w").order);
    std::thread::scope(|scope| {
        let say: &(dyn Fn(&str) + Sync) = &|_| ();
        let worker = Worker { order, trainer: &slow, timing: QUICK, is_leaving: &is_leaving, say };
        let at = workers_folder.join("w");
        let membership = worker.join(&at).unwrap();
        scope.spawn(move || worker.run(membership).unwrap());
        let mut pool = pool_when(&workers_folder, 2);
        let (_, first) = pool.assign(1, &["optimizer.lr=0.5".to_owned()], false).unwrap().unwrap();
        until(|| slow.starts.load(Ordering::SeqCst) == 1);
        drop(pool);
        // The next leader finds the attempt, and its end.
        let mut pool = pool_when(&workers_folder, 2);
        let begun = pool.begun(1).unwrap();
        assert_eq!(begun, ("w".to_owned(), first));
        assert!(matches!(pool.attempt_state("w", first), AttemptState::Runs(_)));
        slow.released.store(true, Ordering::Release);
        until(|| {
            pool.look().unwrap();
            pool.attempt_state("w", first) == AttemptState::Ended(Outcome::Done)
        });
        pool.release("w", first, true).unwrap();
        assert_eq!(pool.begun(1), None);
        // One that was given up by a leader that went before it said so is stopped.
        slow.released.store(false, Ordering::Release);
        let (_, third) = pool.assign(3, &[], false).unwrap().unwrap();
        until(|| slow.starts.load(Ordering::SeqCst) == 2);
        pool.release_all_but(&[1, 2]).unwrap();
        assert_eq!((pool.begun(3), third.attempt), (None, 1));
        slow.released.store(true, Ordering::Release);
        let (_, second) = pool.assign(1, &[], true).unwrap().unwrap();
        assert_eq!(second.attempt, first.attempt + 1);
        is_leaving.store(true, Ordering::Release);
    });
}

/// Trains until it is released.
struct Slow {
    released: AtomicBool,
    starts: AtomicUsize,
}

impl Trainer for Slow {
    fn check(&self, _: &[String]) -> Result<Length, String> {
        Ok(Length { steps_per_epoch: 10, total_steps: 10 })
    }

    fn train(&self, job: &Job, _: &mut dyn FnMut(u64)) -> Outcome {
        self.starts.fetch_add(1, Ordering::SeqCst);
        while !self.released.load(Ordering::Acquire) {
            if job.waker.take() {
                return Outcome::Stopped;
            }
            std::thread::sleep(QUICK.poll);
        }
        evaluated(job);
        Outcome::Done
    }
}

/// Trains the first trial only after the second has ended.
struct SecondFirst<'a>(&'a SweepFixture, Quick);

impl Trainer for SecondFirst<'_> {
    fn check(&self, changes: &[String]) -> Result<Length, String> {
        self.1.check(changes)
    }

    fn train(&self, job: &Job, on_step: &mut dyn FnMut(u64)) -> Outcome {
        if job.folders.id == crate::sweep::id(1) {
            until(|| self.0.ended() == [2]);
        }
        self.1.train(job, on_step)
    }
}

#[test]
fn a_worker_that_takes_the_lead_follows_its_own_trial_beside_one_of_a_worker_that_is_gone() {
    let mut lab = lab(2);
    lab.sweep.concurrent_trials = Auto::Given(1);
    let workers_folder = lab.folder.path().join("s").join(FOLDER);
    // A leader has begun both trials, one of them itself, and was killed.
    for (trial, worker) in [(1, "gone"), (2, "w")] {
        let folder = workers_folder.join(worker);
        files::create_folder(&folder).unwrap();
        drop(RunLock::acquire(&folder).unwrap());
        let mut reports = LineFile::open(&folder.join(REPORTS)).unwrap();
        send(&mut reports, &Report::Joined { slots: 1 }).unwrap();
        let attempt = messages::Attempt { trial, attempt: 1 };
        let command = messages::Command::Train { attempt, changes: Vec::new(), resume: false };
        send(&mut LineFile::open(&folder.join(messages::COMMANDS)).unwrap(), &command).unwrap();
    }
    let subject = journal::SweepSpec::new("s", &lab.sweep.search, 2, &lab.base);
    let mut journal = journal::Journal::open(&lab.folder.path().join("s")).unwrap();
    journal.opened(&subject).unwrap();
    for number in [1, 2] {
        let values = vec![("optimizer.lr".to_owned(), json!(0.5 / f64::from(number)))];
        let length = Length { steps_per_epoch: 10, total_steps: 10 };
        journal.started(&crate::sweep::Trial::new(number, values, length)).unwrap();
    }
    let trainer = SecondFirst(&lab, Quick::default());
    // No silence is waited for: the lock of the worker that is gone is free.
    let timing = Timing { lease: Duration::from_hours(1), ..QUICK };
    let (ended, _) = SharedSweep { timing, ..lab.share(&trainer, "w") }.run().unwrap();
    assert_eq!((ended, lab.ended()), (SweepEnd::Done { failed: 0 }, vec![2, 1]));
    assert_eq!(trainer.1.trained.load(Ordering::SeqCst), 2);
    assert!(!lab.journal_lines().iter().any(|line| line["record"] == "extended"));
    assert!(!workers_folder.exists());
}

/// A worker leads two trials that run when another one comes with `more`.
/// Returns the lab and the subject at the end.
fn extended(
    more: &crate::config::sweep::Sweep,
    extend: bool,
) -> (SweepFixture, journal::SweepSpec) {
    let lab = lab(2);
    let trainer = Slow { released: AtomicBool::new(false), starts: AtomicUsize::new(0) };
    let other = Slow { released: AtomicBool::new(false), starts: AtomicUsize::new(0) };
    let story = std::thread::scope(|scope| {
        let leads = scope.spawn(|| lab.share(&trainer, "leader").run().unwrap());
        until(|| trainer.starts.load(Ordering::SeqCst) == 2);
        let order = SweepRequest { sweep: more, extend, ..lab.order() };
        let share =
            SharedSweep { order, trainer: &other, name: "other", say: &|_| (), timing: QUICK };
        let follows = scope.spawn(move || share.run().unwrap());
        // It has two trials of its own while the first two run on.
        until(|| other.starts.load(Ordering::SeqCst) == 2);
        for slow in [&trainer, &other] {
            slow.released.store(true, Ordering::Release);
        }
        let ends = [leads.join().unwrap(), follows.join().unwrap()];
        for (ended, story) in &ends {
            assert_eq!((*ended, story.trials.len()), (SweepEnd::Done { failed: 0 }, 5));
        }
        let [(_, story), _] = ends;
        story
    });
    each_once(&lab, 5);
    assert!(lab.journal_lines().iter().any(|line| line["by"] == "other"));
    let starts = [&trainer, &other].map(|slow| slow.starts.load(Ordering::SeqCst));
    assert_eq!(starts.iter().sum::<usize>(), 5, "no trial was disturbed");
    assert!(!lab.folder.path().join("s").join(FOLDER).exists());
    (lab, story.subject)
}

#[test]
fn a_worker_that_asks_for_more_trials_gets_them_from_the_leader() {
    let more = lab(5).sweep;
    let (lab, subject) = extended(&more, false);
    assert_eq!(subject.trials, 5);
    // The first command, run again, finds nothing left to do.
    let trainer = Quick::default();
    let (ended, story) = lab.share(&trainer, "again").run().unwrap();
    assert_eq!((ended, story.trials.len()), (SweepEnd::Done { failed: 0 }, 5));
    assert_eq!(trainer.trained.load(Ordering::SeqCst), 0);
}

#[test]
fn a_worker_that_extends_the_search_is_heard_by_the_leader() {
    let mut more = lab(5).sweep;
    let far = Domain::Uniform { min: 10.0, max: 11.0 };
    more.search.parameters = vec![Parameter::new("optimizer.lr", far)];
    let (lab, subject) = extended(&more, true);
    assert_eq!(subject.search(), Some(more.search));
    let lines = lab.journal_lines();
    let started = lines.iter().filter(|line| line["record"] == "started");
    let is_far: Vec<bool> =
        started.map(|line| line["values"]["optimizer.lr"].as_f64().unwrap() > 9.0).collect();
    assert_eq!(is_far, [false, false, true, true, true]);
}

#[test]
fn a_worker_that_asks_for_another_search_without_saying_so_is_refused() {
    let lab = lab(2);
    let (trainer, mut other) = (Quick::default(), lab.sweep.clone());
    lab.share(&trainer, "w").run().unwrap();
    other.search.seed += 1;
    let order = SweepRequest { sweep: &other, ..lab.order() };
    let refused = SharedSweep { order, ..lab.share(&trainer, "other") }.run().unwrap_err();
    assert!(matches!(refused, Error::Changed { can_extend: true, .. }), "{refused}");
}

fn until(is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    let mut is_so = is_so;
    while !is_so() {
        assert!(began.elapsed() < Duration::from_mins(1), "it does not come");
        std::thread::sleep(QUICK.poll);
    }
}

fn pool_when(folder: &Path, slots: usize) -> WorkerPool {
    let mut pool = WorkerPool::new(folder, QUICK).unwrap();
    until(|| {
        pool.look().unwrap();
        pool.slots() == slots
    });
    pool
}
