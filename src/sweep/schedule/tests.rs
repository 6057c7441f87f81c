use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};

use serde_json::json;

use super::*;
use crate::config::schema::Mode;
use crate::config::sweep::{Domain, Parameter, Pruner, Search};
use crate::config::values::{Auto, Every};
use crate::config::{Vocabulary, load_text};
use crate::files::{self, Lines};
use crate::record::EVENTS;
use crate::sweep::examples::search;
use crate::sweep::trial::best;

/// A folder, and what is searched in it.
struct Lab {
    folder: tempfile::TempDir,
    sweep: Sweep,
    base: Loaded,
}

impl Lab {
    fn new(method: Method, trials: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let text = format!(
            "schema = 1\n[model]\nname = \"mlp\"\n[data]\nname = \"shapes\"\n[train]\nepochs = 4\n\
             batch_size = 8\n[logging]\ndir = \"{0}\"\n[checkpoint]\ndir = \"{0}/c\"\n",
            folder.path().display()
        );
        let vocabulary = Vocabulary { models: vec!["mlp".into()] };
        let base = load_text(Path::new("base.toml"), &text, &[], &vocabulary).unwrap();
        let line = Domain::Uniform { min: 0.0, max: 1.0 };
        let search =
            Search { parameters: vec![Parameter::new("optimizer.lr", line)], ..search(method) };
        let sweep = Sweep {
            name: "s".into(),
            path: "s.toml".into(),
            base: "base.toml".into(),
            changes: Vec::new(),
            search,
            trials: Some(trials),
            trials_per_device: 1,
            concurrent_trials: Auto::Given(1),
            max_failures: 3,
        };
        Self { folder, sweep, base }
    }

    fn order(&self) -> Order<'_> {
        self.order_on(Machine { cores: 8, gpus: 0 })
    }

    fn order_on(&self, machine: Machine) -> Order<'_> {
        let (sweep, base) = (&self.sweep, &self.base);
        Order { sweep, base, machine, extend: false, screen: Screen::Silent }
    }

    fn run(&self, trainer: &dyn Trainer) -> (Ended, Vec<Trial>) {
        let (ended, story) = run(self.order(), trainer).unwrap();
        (ended, story.trials)
    }

    fn journal(&self) -> Story {
        journal::read(&self.folder.path().join("s")).unwrap().unwrap()
    }
}

/// What a fake training does at its n-th start.
type Script = Box<dyn Fn(usize, f64) -> Outcome + Sync>;

/// Trains by writing four reports of the learning rate itself, the later the better.
struct Fake {
    starts: AtomicUsize,
    at_once: AtomicUsize,
    most_at_once: AtomicUsize,
    /// Where each start was resumed, and its rate.
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
            let mut lines = Lines::open(&job.folders.logs.join(EVENTS)).unwrap();
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
    let lab = Lab::new(Method::Random, 8);
    let fake = fake(|_, _| Outcome::Done);
    let (ended, trials) = lab.run(&fake);
    assert_eq!((ended, trials.len()), (Ended::Done { failed: 0 }, 8));
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
fn a_sweep_interrupted_anywhere_ends_as_an_undisturbed_one() {
    for method in [Method::Random, Method::Tpe] {
        let whole = Lab::new(method, 14);
        let (_, expected) = whole.run(&fake(|_, _| Outcome::Done));
        let parts = Lab::new(method, 14);
        // Every third start is stopped by somebody, in the middle of its trial.
        let fake = fake(|start, _| if start % 3 == 0 { Outcome::Stopped } else { Outcome::Done });
        let mut n_starts = 0;
        let found = loop {
            let (ended, trials) = parts.run(&fake);
            n_starts += 1;
            if ended == (Ended::Done { failed: 0 }) {
                break trials;
            }
            assert_eq!(ended, Ended::Stopped { interrupted: false });
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
    let mut lab = Lab::new(Method::Random, 12);
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
    let lab = Lab::new(Method::Random, 10);
    let failed = || Outcome::Failed { error: "the disk is full".into(), diverged: false };
    let (ended, trials) =
        lab.run(&fake(move |start, _| if start == 2 { failed() } else { Outcome::Done }));
    assert_eq!((ended, trials.len()), (Ended::Done { failed: 1 }, 10));
    assert_eq!(trials[1].error.as_deref(), Some("the disk is full"));
    let lab = Lab::new(Method::Random, 10);
    let failed = || Outcome::Failed { error: "the disk is full".into(), diverged: false };
    let (ended, trials) = lab.run(&fake(move |_, _| failed()));
    assert_eq!((ended, trials.len()), (Ended::TooManyFailures, 4), "three are allowed");
}

#[test]
fn a_diverged_trial_is_a_bad_one_but_no_failure() {
    let lab = Lab::new(Method::Tpe, 12);
    let diverged = |_, lr| {
        let error = "the loss is not finite".to_owned();
        if lr > 0.5 { Outcome::Failed { error, diverged: true } } else { Outcome::Done }
    };
    let (ended, trials) = lab.run(&fake(diverged));
    assert_eq!(ended, Ended::Done { failed: 0 });
    assert!(trials.iter().any(|trial| trial.state == State::Diverged), "{trials:?}");
}

#[test]
fn bad_trials_are_pruned_and_keep_their_reports_up_to_there() {
    let mut lab = Lab::new(Method::Random, 12);
    lab.sweep.search.pruner =
        Pruner::Asha { min_resource: Every::Epochs(1), max_resource: None, reduction_factor: 3 };
    let (_, trials) = lab.run(&fake(|_, _| Outcome::Done));
    let pruned: Vec<&Trial> = trials.iter().filter(|t| t.state == State::Pruned).collect();
    assert!(pruned.len() >= 6, "{}", pruned.len());
    assert!(pruned.iter().all(|trial| [1, 3].contains(&trial.reports.len())));
    // The fake trains to its end before it is heard: what it reported later counts for nothing.
    let again = Lab { sweep: lab.sweep.clone(), ..Lab::new(Method::Random, 12) };
    let twice = fake(|start, _| if start % 2 == 0 { Outcome::Stopped } else { Outcome::Done });
    let found = loop {
        let (ended, trials) = again.run(&twice);
        if matches!(ended, Ended::Done { .. }) {
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
    let mut lab = Lab::new(Method::Random, 4);
    let fake = fake(|_, _| Outcome::Done);
    lab.run(&fake);
    lab.sweep.search.seed = 9;
    lab.sweep.trials = Some(6);
    let error = run(lab.order(), &fake).err().unwrap();
    assert!(error.to_string().ends_with("holds another sweep:\n  `sweep.seed`: 1 -> 9"), "{error}");
    assert!(error.help().unwrap().contains("--extend"));
    let (_, story) = run(Order { extend: true, ..lab.order() }, &fake).unwrap();
    assert_eq!(story.trials.len(), 6);
    // Extended once, the same command goes on without the flag.
    assert_eq!(lab.run(&fake).1.len(), 6);
    lab.sweep.search.metric = "val/accuracy".into();
    let error = run(Order { extend: true, ..lab.order() }, &fake).err().unwrap();
    assert!(error.help().unwrap().contains("another `sweep.name`"), "{error}");
}

#[test]
fn a_grid_ends_with_its_points_and_takes_those_that_were_added() {
    let mut lab = Lab::new(Method::Grid, 1000);
    let points =
        |n: u32| Domain::Categorical { values: (1..=n).map(|i| json!(f64::from(i))).collect() };
    lab.sweep.search.parameters = vec![Parameter::new("optimizer.lr", points(3))];
    let fake = fake(|_, _| Outcome::Done);
    assert_eq!(lab.run(&fake).1.len(), 3);
    lab.sweep.search.parameters = vec![Parameter::new("optimizer.lr", points(5))];
    let (_, story) = run(Order { extend: true, ..lab.order() }, &fake).unwrap();
    let rates: Vec<f64> = story.trials.iter().map(|t| t.values[0].1.as_f64().unwrap()).collect();
    assert_eq!(rates, [1.0, 2.0, 3.0, 4.0, 5.0]);
}

#[test]
fn a_run_that_reports_nothing_and_a_trainer_that_panics_are_failures() {
    let lab = Lab::new(Method::Random, 2);
    let script = |start: usize, _: f64| {
        assert!(start != 1, "a panic on purpose");
        Outcome::Failed { error: "x".into(), diverged: false }
    };
    let (ended, trials) = lab.run(&fake(script));
    assert_eq!(ended, Ended::Done { failed: 2 });
    assert_eq!(trials[0].error.as_deref(), Some("ddprun panicked"));
    let lab = Lab::new(Method::Random, 1);
    let (_, trials) = lab.run(&Silent);
    assert_eq!(trials[0].error.as_deref(), Some("the run never reported `val/loss`"));
}

#[test]
fn trials_that_cannot_be_run_are_refused_before_anything_is_touched() {
    let lab = Lab::new(Method::Random, 300);
    let error = run(lab.order(), &Picky).err().unwrap();
    assert!(error.is_refusal() && error.to_string().contains("too small"), "{error}");
    assert!(!lab.folder.path().join("s").exists());
}

#[test]
fn trials_side_by_side_have_gpus_of_their_own() {
    let mut lab = Lab::new(Method::Random, 4);
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
