mod changed;
mod repeated;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;

use super::*;
use crate::config::kind::Choice;
use crate::config::schema::Mode;
use crate::config::sweep::{Domain, Parameter};
use crate::config::values::{Auto, Interval};
use crate::files::{self, LineFile};
use crate::record::EVENTS;
use crate::sweep::example_sweeps::SweepFixture;
use crate::sweep::pruner::Asha;
use crate::sweep::ranking::best;
use crate::sweep::request::{Cause, Job, Machine, Outcome};
use crate::sweep::trial::{Length, Report, State, id};
use crate::user_error::UserError;

impl SweepFixture {
    fn run(&self, trainer: &dyn Trainer) -> (SweepEnd, Vec<Trial>) {
        let (ended, story) = run(self.order(), trainer).unwrap();
        (ended, story.trials)
    }

    fn journal(&self) -> JournalState {
        journal::read(&self.folder.path().join("s")).unwrap().unwrap()
    }
}

/// Outcome of a fake training at its n-th start.
type Script = Box<dyn Fn(usize, f64) -> Outcome + Sync>;

/// Trains by writing four reports of the learning rate itself, the later the better.
struct Fake {
    starts: AtomicUsize,
    at_once: AtomicUsize,
    most_at_once: AtomicUsize,
    /// For each start, whether it was a resume, and its rate.
    seen: Mutex<Vec<(bool, f64)>>,
    script: Script,
}

fn fake(script: impl Fn(usize, f64) -> Outcome + Sync + 'static) -> Fake {
    let (starts, at_once, most_at_once) = Default::default();
    Fake { starts, at_once, most_at_once, seen: Mutex::default(), script: Box::new(script) }
}

fn rate(job: &Job) -> f64 {
    let change = job.changes.iter().find_map(|change| change.strip_prefix("optimizer.lr="));
    change.unwrap().parse().unwrap()
}

impl Trainer for Fake {
    fn check(&self, changes: &[String]) -> Result<Length, String> {
        assert!(changes.contains(&"distributed.devices=1".to_owned()), "{changes:?}");
        Ok(Length { steps_per_epoch: 10, total_steps: 40 })
    }

    fn train(&self, job: &Job, on_step: &mut dyn FnMut(u64)) -> Outcome {
        let start = self.starts.fetch_add(1, Ordering::SeqCst) + 1;
        let now = self.at_once.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_at_once.fetch_max(now, Ordering::SeqCst);
        let lr = rate(job);
        self.seen.lock().unwrap().push((job.resume, lr));
        let outcome = (self.script)(start, lr);
        if outcome == Outcome::Done || outcome == Outcome::Stopped {
            files::create_folder(&job.folders.logs).unwrap();
            files::create_folder(&job.folders.checkpoints.join("step-00000010")).unwrap();
            let mut lines = LineFile::open(&job.folders.logs.join(EVENTS)).unwrap();
            let epochs = if outcome == Outcome::Done { 1..=4 } else { 1..=2 };
            for epoch in epochs {
                let value = lr - 0.01 * f64::from(epoch);
                let step = 10 * epoch;
                let event =
                    json!({"step": step, "event": "evaluated", "metrics": {"val/loss": value}});
                lines.push(&event.to_string()).unwrap();
                on_step(step as u64);
            }
        }
        self.at_once.fetch_sub(1, Ordering::SeqCst);
        outcome
    }
}

/// Runs nothing and reports nothing.
struct Silent;

impl Trainer for Silent {
    fn check(&self, _: &[String]) -> Result<Length, String> {
        Ok(Length { steps_per_epoch: 1, total_steps: 1 })
    }

    fn train(&self, _: &Job, _: &mut dyn FnMut(u64)) -> Outcome {
        Outcome::Done
    }
}

/// Two trials at a time, each of which waits for the other.
struct Pairs {
    both: Barrier,
    gpus: Mutex<Vec<Vec<usize>>>,
}

impl Trainer for Pairs {
    fn check(&self, changes: &[String]) -> Result<Length, String> {
        Silent.check(changes)
    }

    fn train(&self, job: &Job, _: &mut dyn FnMut(u64)) -> Outcome {
        self.gpus.lock().unwrap().push(job.gpus.clone());
        self.both.wait();
        Outcome::Done
    }
}

/// Refuses small learning rates.
struct Picky;

impl Trainer for Picky {
    fn check(&self, changes: &[String]) -> Result<Length, String> {
        let is_bad = changes.iter().any(|change| change.starts_with("optimizer.lr=0.0"));
        if is_bad { Err("too small".into()) } else { Silent.check(changes) }
    }

    fn train(&self, job: &Job, on_step: &mut dyn FnMut(u64)) -> Outcome {
        Silent.train(job, on_step)
    }
}

#[test]
fn all_trials_run_once_and_the_best_is_found() {
    let lab = SweepFixture::new("random", 8);
    let fake = fake(|_, _| Outcome::Done);
    let (ended, trials) = lab.run(&fake);
    assert_eq!((ended, trials.len()), (SweepEnd::Done { failed: 0 }, 8));
    assert_eq!(fake.most_at_once.load(Ordering::SeqCst), 1);
    let least = fake.seen.lock().unwrap().iter().map(|(_, lr)| *lr).fold(f64::INFINITY, f64::min);
    let best = best(&trials, Mode::Min).unwrap();
    assert!((best.value(Mode::Min).unwrap() - (least - 0.04)).abs() < 1e-12);
    assert_eq!(lab.journal().trials, trials);
    let folder = lab.folder.path().join("s");
    for name in ["sweep.csv", "sweep.json", "history.png", "parallel.svg", "slices.png"] {
        assert!(folder.join(name).exists(), "{name}");
    }
    // The same command again has nothing to do, and a larger total goes on.
    assert_eq!(lab.run(&fake).1, trials);
    assert_eq!(fake.starts.load(Ordering::SeqCst), 8);
    let mut more = lab;
    more.sweep.trials = Some(10);
    let (_, later) = more.run(&fake);
    assert_eq!((later.len(), &later[..8]), (10, &trials[..]));
}

#[test]
fn settings_to_start_with_come_first_and_only_once() {
    for method in ["random", "tpe", "gp"] {
        let mut lab = SweepFixture::new(method, 5);
        let start = |lr: f64| vec![("optimizer.lr".to_owned(), json!(lr))];
        lab.sweep.search.start = vec![start(0.25), start(0.75)];
        let fake = fake(|_, _| Outcome::Done);
        let (_, trials) = lab.run(&fake);
        let rates = |trials: &[Trial]| -> Vec<f64> {
            trials.iter().map(|trial| trial.values[0].1.as_f64().unwrap()).collect()
        };
        assert_eq!(&rates(&trials)[..2], [0.25, 0.75]);
        assert_eq!(trials.len(), 5);
        // Another one is known later; the earlier ones are not trained again.
        let mut more = lab;
        (more.sweep.trials, more.sweep.search.start) = (Some(7), vec![start(0.25), start(0.5)]);
        let (_, story) = run(SweepRequest { extend: true, ..more.order() }, &fake).unwrap();
        let rates = rates(&story.trials);
        assert_eq!((rates.len(), rates[5]), (7, 0.5));
        assert_eq!(rates.iter().filter(|rate| **rate == 0.25).count(), 1);
    }
}

#[test]
fn a_sweep_ends_with_the_trial_that_is_good_enough_and_goes_on_for_a_better_one() {
    let undisturbed = SweepFixture::new("random", 30).run(&fake(|_, _| Outcome::Done)).1;
    let value = |trial: &Trial| trial.value(Mode::Min).unwrap();
    let mut lab = SweepFixture::new("random", 30);
    lab.sweep.until = Some(0.3);
    let fake = fake(|_, _| Outcome::Done);
    let (ended, trials) = lab.run(&fake);
    let first = undisturbed.iter().position(|trial| value(trial) <= 0.3).unwrap();
    assert_eq!((ended, trials.len()), (SweepEnd::Reached, first + 1));
    assert_eq!(lab.run(&fake), (SweepEnd::Reached, trials));
    lab.sweep.until = Some(-1.0);
    let (ended, trials) = lab.run(&fake);
    assert_eq!((ended, trials.len()), (SweepEnd::Done { failed: 0 }, 30));
    assert!(trials.iter().zip(&undisturbed).all(|(a, b)| a.values == b.values));
}

#[test]
fn a_sweep_whose_time_is_over_saves_its_trials_and_the_same_command_goes_on() {
    let lab = SweepFixture::new("random", 3);
    let slow = fake(|start, _| {
        if start == 1 {
            return Outcome::Done;
        }
        std::thread::sleep(Duration::from_millis(800));
        Outcome::Stopped
    });
    let deadline = Some(Instant::now() + Duration::from_millis(400));
    let (ended, story) = run(SweepRequest { deadline, ..lab.order() }, &slow).unwrap();
    let states: Vec<State> = story.trials.iter().map(|trial| trial.state).collect();
    assert_eq!((ended, &states[..]), (SweepEnd::OutOfTime, &[State::Finished, State::Running][..]));
    let fake = fake(|_, _| Outcome::Done);
    let (ended, trials) = lab.run(&fake);
    assert_eq!((ended, trials.len()), (SweepEnd::Done { failed: 0 }, 3));
    assert!(fake.seen.lock().unwrap()[0].0, "it was resumed");
}

#[test]
fn a_sweep_interrupted_anywhere_ends_as_an_undisturbed_one() {
    for method in ["random", "tpe"] {
        let whole = SweepFixture::new(method, 14);
        let (_, expected) = whole.run(&fake(|_, _| Outcome::Done));
        let parts = SweepFixture::new(method, 14);
        // Every third start is stopped in the middle of its trial.
        let fake = fake(|start, _| if start % 3 == 0 { Outcome::Stopped } else { Outcome::Done });
        let mut n_starts = 0;
        let found = loop {
            let (ended, trials) = parts.run(&fake);
            n_starts += 1;
            if ended == (SweepEnd::Done { failed: 0 }) {
                break trials;
            }
            assert_eq!(ended, SweepEnd::Stopped { interrupted: false });
        };
        assert!(n_starts > 4, "{n_starts}");
        let told = |trials: &[Trial]| -> Vec<_> {
            let tell = |trial: &Trial| {
                (trial.number, trial.values.clone(), trial.state, trial.reports.clone())
            };
            trials.iter().map(tell).collect()
        };
        assert_eq!(told(&found), told(&expected), "{method:?}");
        let resumed = fake.seen.lock().unwrap().iter().filter(|(resume, _)| *resume).count();
        assert_eq!(resumed, n_starts - 1, "each interrupted trial was resumed");
    }
}

#[test]
fn trials_run_side_by_side_and_share_the_cores() {
    let mut lab = SweepFixture::new("random", 12);
    lab.sweep.concurrent_trials = Auto::Given(3);
    let gate = std::sync::Barrier::new(3);
    // Twelve trials in threes: none goes on before three run.
    let fake = fake(move |_, _| {
        gate.wait();
        Outcome::Done
    });
    assert_eq!(lab.run(&fake).1.len(), 12);
    assert_eq!(fake.most_at_once.load(Ordering::SeqCst), 3);
    lab.sweep.concurrent_trials = Auto::Auto;
    assert_eq!(lab.order().concurrent(), 8);
    lab.sweep.search.devices_per_trial = 3;
    assert_eq!(lab.order().concurrent(), 2);
    lab.sweep.trials_per_device = 2;
    assert_eq!(lab.order().concurrent(), 5);
    lab.sweep.search.devices_per_trial = 64;
    assert_eq!(lab.order().concurrent(), 1);
}

#[test]
fn a_failed_trial_is_recorded_and_too_many_end_the_sweep() {
    let lab = SweepFixture::new("random", 10);
    let failed = || Outcome::Failed { error: "the disk is full".into(), cause: Cause::Other };
    let (ended, trials) =
        lab.run(&fake(move |start, _| if start == 2 { failed() } else { Outcome::Done }));
    assert_eq!((ended, trials.len()), (SweepEnd::Done { failed: 1 }, 10));
    assert_eq!(trials[1].error.as_deref(), Some("the disk is full"));
    let lab = SweepFixture::new("random", 10);
    let failed = || Outcome::Failed { error: "the disk is full".into(), cause: Cause::Other };
    let (ended, trials) = lab.run(&fake(move |_, _| failed()));
    assert_eq!((ended, trials.len()), (SweepEnd::TooManyFailures, 4), "three are allowed");
}

#[test]
fn a_diverged_trial_is_a_bad_one_but_no_failure() {
    let lab = SweepFixture::new("tpe", 12);
    let diverged = |_, lr| {
        let error = "the loss is not finite".to_owned();
        if lr > 0.5 { Outcome::Failed { error, cause: Cause::Diverged } } else { Outcome::Done }
    };
    let (ended, trials) = lab.run(&fake(diverged));
    assert_eq!(ended, SweepEnd::Done { failed: 0 });
    assert!(trials.iter().any(|trial| trial.state == State::Diverged), "{trials:?}");
}

#[test]
fn bad_trials_are_pruned_and_keep_their_reports_up_to_there() {
    let mut lab = SweepFixture::new("random", 12);
    lab.sweep.search.pruner = asha();
    let (_, trials) = lab.run(&fake(|_, _| Outcome::Done));
    let pruned: Vec<&Trial> = trials.iter().filter(|t| t.state == State::Pruned).collect();
    assert!(pruned.len() >= 6, "{}", pruned.len());
    assert!(pruned.iter().all(|trial| [1, 3].contains(&trial.reports.len())));
    // The fake trains to its end before it is heard: what it reported later counts for nothing.
    let again = SweepFixture { sweep: lab.sweep.clone(), ..SweepFixture::new("random", 12) };
    let twice = fake(|start, _| if start % 2 == 0 { Outcome::Stopped } else { Outcome::Done });
    let found = loop {
        let (ended, trials) = again.run(&twice);
        if matches!(ended, SweepEnd::Done { .. }) {
            break trials;
        }
    };
    let told = |trials: &[Trial]| -> Vec<_> {
        trials.iter().map(|t| (t.values.clone(), t.state, t.reports.clone())).collect()
    };
    assert_eq!(told(&found), told(&trials));
}

#[test]
fn another_search_is_refused_unless_it_extends() {
    let mut lab = SweepFixture::new("random", 4);
    let fake = fake(|_, _| Outcome::Done);
    lab.run(&fake);
    lab.sweep.search.seed = 9;
    lab.sweep.trials = Some(6);
    let error = run(lab.order(), &fake).err().unwrap();
    assert!(error.to_string().ends_with("holds another sweep:\n  `sweep.seed`: 1 -> 9"), "{error}");
    assert!(error.help().unwrap().contains("--extend"));
    let (_, story) = run(SweepRequest { extend: true, ..lab.order() }, &fake).unwrap();
    assert_eq!(story.trials.len(), 6);
    // Extended once, the same command goes on without the flag.
    assert_eq!(lab.run(&fake).1.len(), 6);
    lab.sweep.search.metric = "val/accuracy".into();
    let error = run(SweepRequest { extend: true, ..lab.order() }, &fake).err().unwrap();
    assert!(error.help().unwrap().contains("another `sweep.name`"), "{error}");
}

#[test]
fn a_grid_ends_with_its_points_and_takes_those_that_were_added() {
    let mut lab = SweepFixture::new("grid", 1000);
    let points =
        |n: u32| Domain::Categorical { values: (1..=n).map(|i| json!(f64::from(i))).collect() };
    lab.sweep.search.parameters = vec![Parameter::new("optimizer.lr", points(3))];
    let fake = fake(|_, _| Outcome::Done);
    assert_eq!(lab.run(&fake).1.len(), 3);
    lab.sweep.search.parameters = vec![Parameter::new("optimizer.lr", points(5))];
    let (_, story) = run(SweepRequest { extend: true, ..lab.order() }, &fake).unwrap();
    let rates: Vec<f64> = story.trials.iter().map(|t| t.values[0].1.as_f64().unwrap()).collect();
    assert_eq!(rates, [1.0, 2.0, 3.0, 4.0, 5.0]);
}

#[test]
fn a_run_that_reports_nothing_and_a_trainer_that_panics_are_failures() {
    let lab = SweepFixture::new("random", 2);
    let script = |start: usize, _: f64| {
        assert!(start != 1, "a panic on purpose");
        Outcome::Failed { error: "x".into(), cause: Cause::Other }
    };
    let (ended, trials) = lab.run(&fake(script));
    assert_eq!(ended, SweepEnd::Done { failed: 2 });
    assert_eq!(trials[0].error.as_deref(), Some("ddprun panicked"));
    let lab = SweepFixture::new("random", 1);
    let (_, trials) = lab.run(&Silent);
    assert_eq!(trials[0].error.as_deref(), Some("the run never reported `val/loss`"));
}

#[test]
fn trials_that_cannot_be_run_are_refused_before_anything_is_touched() {
    let mut lab = SweepFixture::new("random", 300);
    let error = run(lab.order(), &Picky).err().unwrap();
    assert!(error.is_refusal() && error.to_string().contains("too small"), "{error}");
    assert!(!lab.folder.path().join("s").exists());
    // Of several values those are named that are to blame.
    let epochs = Domain::IntUniform { min: 1, max: 9 };
    lab.sweep.search.parameters.push(Parameter::new("train.epochs", epochs));
    let error = run(lab.order(), &Picky).err().unwrap().to_string();
    assert!(error.contains("(optimizer.lr=0.0") && !error.contains("train.epochs"), "{error}");
}

#[test]
fn trials_side_by_side_have_gpus_of_their_own() {
    let mut lab = SweepFixture::new("random", 4);
    lab.sweep.search.devices_per_trial = 2;
    (lab.sweep.concurrent_trials, lab.sweep.max_failures) = (Auto::Auto, 9);
    let order = lab.order_on(Machine { cores: 2, gpus: 4 });
    assert_eq!(order.concurrent(), 2);
    let trainer = Pairs { both: Barrier::new(2), gpus: Mutex::default() };
    run(order, &trainer).unwrap();
    let mut seen = trainer.gpus.into_inner().unwrap();
    seen[..2].sort();
    seen[2..].sort();
    assert_eq!(seen, [[0, 1], [2, 3], [0, 1], [2, 3]]);
}

/// Reports its rate once, and looks into the journal when it is asked to stop.
struct Suspicious {
    journal: std::path::PathBuf,
    asked: AtomicUsize,
}

impl Trainer for Suspicious {
    fn check(&self, _: &[String]) -> Result<Length, String> {
        Ok(Length { steps_per_epoch: 10, total_steps: 40 })
    }

    fn train(&self, job: &Job, _: &mut dyn FnMut(u64)) -> Outcome {
        files::create_folder(&job.folders.logs).unwrap();
        let mut lines = LineFile::open(&job.folders.logs.join(EVENTS)).unwrap();
        let event = json!({"step": 10, "event": "evaluated", "metrics": {"val/loss": rate(job)}});
        lines.push(&event.to_string()).unwrap();
        let kept = |trial: &Trial| trial.kept == 10;
        let began = Instant::now();
        loop {
            // Before a look at what is written down by then.
            let is_asked = job.waker.take();
            let story = journal::read(&self.journal).unwrap().unwrap();
            let trial = story.trials.iter().find(|trial| trial.id() == job.folders.id).unwrap();
            if is_asked {
                assert_eq!(trial.state, State::Pruned, "it is asked to stop");
                assert_eq!(trial.reports.len(), 1);
                self.asked.fetch_add(1, Ordering::SeqCst);
                return Outcome::Stopped;
            }
            if kept(trial) {
                return Outcome::Done;
            }
            assert!(began.elapsed() < Duration::from_mins(1), "nothing is decided");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn asha() -> Choice {
    let (min_resource, max_resource) = (Interval::Epochs(1), None);
    Choice::of(&Asha { min_resource, max_resource, reduction_factor: 3 })
}

#[test]
fn a_trial_is_asked_to_stop_when_that_is_written_down_and_not_before() {
    let mut lab = SweepFixture::new("random", 6);
    lab.sweep.search.pruner = asha();
    let suspicious =
        Suspicious { journal: lab.folder.path().join("s"), asked: AtomicUsize::default() };
    let (_, trials) = lab.run(&suspicious);
    let pruned = trials.iter().filter(|trial| trial.state == State::Pruned).count();
    assert!(pruned > 0, "{trials:?}");
    assert_eq!(suspicious.asked.load(Ordering::SeqCst), pruned);
    assert_eq!(lab.journal().trials, trials);
}

/// A journal in which the first trial, worse than the second, was interrupted after its first
/// report.
fn interrupted(lab: &SweepFixture, was_kept: bool) {
    let folder = lab.folder.path().join("s");
    files::create_folder(&folder.join("trial-0001")).unwrap();
    let search = &lab.sweep.search;
    let subject = SweepSpec::new("s", search, 2, &lab.base);
    let mut journal = Journal::open(&folder).unwrap();
    journal.opened(&subject).unwrap();
    let length = Length { steps_per_epoch: 10, total_steps: 40 };
    let trial =
        |number, lr: f64| Trial::new(number, vec![("optimizer.lr".to_owned(), json!(lr))], length);
    let mut one = trial(1, 0.9);
    journal.started(&one).unwrap();
    let event = json!({"step": 10, "event": "evaluated", "metrics": {"val/loss": 0.89}});
    let mut lines = LineFile::open(&folder.join("trial-0001").join(EVENTS)).unwrap();
    lines.push(&event.to_string()).unwrap();
    if was_kept {
        one.kept = 10;
        journal.kept(&one).unwrap();
    }
    let mut two = trial(2, 0.1);
    journal.started(&two).unwrap();
    (two.state, two.reports) = (State::Finished, vec![Report { step: 10, value: Some(0.09) }]);
    journal.ended(&two, Mode::Min).unwrap();
}

#[test]
fn what_was_decided_about_a_report_is_not_decided_again_after_a_restart() {
    for (was_kept, state) in [(true, State::Finished), (false, State::Pruned)] {
        let mut lab = SweepFixture::new("random", 2);
        lab.sweep.search.pruner = asha();
        interrupted(&lab, was_kept);
        let (_, trials) = lab.run(&fake(|_, _| Outcome::Done));
        assert_eq!(trials[0].state, state, "{was_kept}");
    }
}

fn failing_once(cause: Cause) -> Fake {
    let error = || "the disk is full".to_owned();
    fake(move |start, _| match start {
        2 => Outcome::Failed { error: error(), cause },
        _ => Outcome::Done,
    })
}

#[test]
fn a_trial_that_could_not_write_is_tried_again_when_the_sweep_goes_on() {
    let lab = SweepFixture::new("random", 4);
    let fake = failing_once(Cause::Storage);
    let (ended, trials) = lab.run(&fake);
    assert_eq!((ended, trials[1].state), (SweepEnd::Done { failed: 1 }, State::Failed));
    let (ended, again) = lab.run(&fake);
    assert_eq!((ended, again[1].state), (SweepEnd::Done { failed: 0 }, State::Finished));
    assert_eq!(again[1].values, trials[1].values);
    assert_eq!(fake.seen.lock().unwrap()[4], (true, again[1].values[0].1.as_f64().unwrap()));
    assert_eq!(lab.journal().trials, again);
    assert_eq!(lab.run(&fake).1, again, "and then no more");
}

#[test]
fn a_trial_that_failed_by_itself_is_tried_again_only_if_that_is_asked_for() {
    let lab = SweepFixture::new("random", 4);
    let fake = failing_once(Cause::Other);
    let (_, trials) = lab.run(&fake);
    assert_eq!(lab.run(&fake).1, trials);
    assert_eq!(fake.starts.load(Ordering::SeqCst), 4);
    let (ended, story) = run(SweepRequest { retry_failed: true, ..lab.order() }, &fake).unwrap();
    assert_eq!((ended, story.trials[1].state), (SweepEnd::Done { failed: 0 }, State::Finished));
    assert_eq!(fake.starts.load(Ordering::SeqCst), 5);
}

#[test]
fn pruned_trials_keep_their_checkpoints_only_if_that_is_asked_for() {
    let mut lab = SweepFixture::new("random", 8);
    lab.sweep.search.pruner = asha();
    let (_, trials) = lab.run(&fake(|_, _| Outcome::Done));
    let checkpoints = lab.folder.path().join("c/s");
    let kept = |trial: &Trial| checkpoints.join(trial.id()).exists();
    assert!(trials.iter().any(|trial| trial.state == State::Pruned));
    assert!(trials.iter().all(|trial| kept(trial) == (trial.state == State::Finished)));
    // What a kill between the decision and the removal leaves is removed when the sweep goes on.
    let pruned = trials.iter().find(|trial| trial.state == State::Pruned).unwrap();
    let rest = [
        checkpoints.join(pruned.id()).join("step-00000010"),
        checkpoints.join(".trial-0001.7-0.ddprun-tmp"),
        lab.folder.path().join("s").join(pruned.id()).join(".probe.7-1.ddprun-tmp"),
    ];
    for folder in &rest {
        files::create_folder(folder).unwrap();
    }
    lab.run(&fake(|_, _| Outcome::Done));
    assert_eq!(rest.map(|folder| folder.exists()), [false; 3]);
    assert!(!kept(pruned));
    lab.sweep.keep_pruned_checkpoints = true;
    files::create_folder(&checkpoints.join(pruned.id())).unwrap();
    lab.run(&fake(|_, _| Outcome::Done));
    assert!(kept(pruned));
}

#[test]
fn one_folder_for_records_and_checkpoints_keeps_the_records_of_a_pruned_trial() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().to_owned();
    files::write_atomic(&at.join(EVENTS), b"{}\n").unwrap();
    let folders = crate::plan::RunFolders { id: id(1), logs: at.clone(), checkpoints: at.clone() };
    crate::sweep::folder::remove_checkpoints(&folders);
    assert!(at.join(EVENTS).exists());
}

#[test]
fn a_grid_of_20000_points_goes_on_in_the_time_of_reading_it() {
    let mut lab = SweepFixture::new("grid", 1);
    let line = Domain::IntUniform { min: 1, max: 20_000 };
    lab.sweep.search.parameters = vec![Parameter::new("optimizer.lr", line)];
    let fake = fake(|_, _| Outcome::Done);
    lab.run(&fake);
    let mut journal = LineFile::open(&lab.folder.path().join("s").join(journal::NAME)).unwrap();
    let time = "2026-01-01T00:00:00Z";
    for trial in 2..20_000 {
        let values = json!({ "optimizer.lr": trial });
        let started = json!({"time": time, "record": "started", "trial": trial, "values": values,
            "steps_per_epoch": 10, "total_steps": 40});
        let ended = json!({"time": time, "record": "ended", "trial": trial, "state": "diverged",
            "value": null, "seconds": 0.5, "reports": []});
        journal.push(&format!("{started}\n{ended}")).unwrap();
    }
    lab.sweep.trials = None;
    let (ended, trials) = lab.run(&fake);
    assert_eq!((ended, trials.len()), (SweepEnd::Done { failed: 0 }, 20_000));
    assert_eq!(fake.starts.load(Ordering::SeqCst), 2);
    assert_eq!(trials[19_999].values[0].1, json!(20_000));
}

#[test]
fn a_trial_that_a_list_holds_twice_is_run_once_however_often_the_sweep_is_started() {
    let mut lab = SweepFixture::new("list", 3);
    let values = |lr: f64| vec![("optimizer.lr".to_owned(), json!(lr))];
    (lab.sweep.search.parameters, lab.sweep.trials) = (Vec::new(), None);
    lab.sweep.search.list = vec![values(0.5), values(0.5), values(0.25)];
    let fake = fake(|start, _| if start == 2 { Outcome::Stopped } else { Outcome::Done });
    lab.run(&fake);
    let (_, trials) = lab.run(&fake);
    let rates: Vec<f64> = trials.iter().map(|t| t.values[0].1.as_f64().unwrap()).collect();
    assert_eq!(rates, [0.5, 0.25]);
}

/// Two trials at once: the first fails by itself, the other one when it is asked to stop, as a run
/// whose restart is called off.
struct CalledOff;

impl Trainer for CalledOff {
    fn check(&self, changes: &[String]) -> Result<Length, String> {
        Silent.check(changes)
    }

    fn train(&self, job: &Job, _: &mut dyn FnMut(u64)) -> Outcome {
        let began = Instant::now();
        while job.folders.id != id(1) && !job.waker.take() {
            assert!(began.elapsed() < Duration::from_mins(1), "nothing stops it");
            std::thread::sleep(Duration::from_millis(5));
        }
        Outcome::Failed { error: "rank 1 was killed".to_owned(), cause: Cause::Other }
    }
}

#[test]
fn a_trial_that_fails_while_the_sweep_is_stopped_is_resumed() {
    let mut lab = SweepFixture::new("random", 2);
    (lab.sweep.concurrent_trials, lab.sweep.max_failures) = (Auto::Given(2), 0);
    let (ended, trials) = lab.run(&CalledOff);
    assert_eq!(ended, SweepEnd::TooManyFailures);
    assert_eq!([trials[0].state, trials[1].state], [State::Failed, State::Running]);
    lab.sweep.max_failures = 1;
    let fake = fake(|_, _| Outcome::Done);
    let (ended, trials) = lab.run(&fake);
    assert_eq!((ended, trials[1].state), (SweepEnd::Done { failed: 1 }, State::Finished));
    assert_eq!(fake.seen.lock().unwrap()[..], [(true, trials[1].values[0].1.as_f64().unwrap())]);
}
