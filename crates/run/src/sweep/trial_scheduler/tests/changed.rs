//! Sweeps that continue with changed data, searches or experiments.

use super::*;
use crate::config::sweep::{Constraint, value_of};
use crate::plan::RunFolders;
use crate::user_error::UserError;

/// Finds other data than those of any trial.
struct Elsewhere;

impl Trainer for Elsewhere {
    fn check(&self, changes: &[String]) -> Result<Length, String> {
        Silent.check(changes)
    }

    fn other_data(&self, folders: &RunFolders, _: &[String]) -> Vec<String> {
        vec![format!("{}: 15 samples, was 16", folders.id)]
    }

    fn train(&self, _: &Job, _: &mut dyn FnMut(u64)) -> Outcome {
        panic!("no trial on other data joins those of before")
    }
}

#[test]
fn checkpoints_that_a_sweep_without_records_has_left_are_refused_before_anything_is_touched() {
    let lab = SweepFixture::new("random", 2);
    let fake = fake(|_, _| Outcome::Done);
    lab.run(&fake);
    let [records, checkpoints] = ["s", "c/s"].map(|name| lab.folder.path().join(name));
    files::remove_folder(&records).unwrap();
    let error = run(lab.order(), &fake).err().unwrap();
    assert!(error.is_refusal() && error.to_string().contains("c/s/trial-0001`"), "{error}");
    assert!(error.help().unwrap().contains("another `sweep.name`") && !records.exists());
    files::remove_folder(&checkpoints).unwrap();
    assert_eq!(lab.run(&fake).0, SweepEnd::Done { failed: 0 });
}

#[test]
fn a_sweep_with_something_left_to_train_does_not_go_on_with_other_data() {
    let mut lab = SweepFixture::new("random", 1);
    let (_, trials) = lab.run(&fake(|_, _| Outcome::Done));
    assert_eq!(lab.run(&Elsewhere).1, trials, "nothing is left");
    lab.sweep.trials = Some(2);
    let error = run(lab.order(), &Elsewhere).err().unwrap();
    assert!(error.is_refusal(), "{error}");
    assert!(
        error.to_string().ends_with("s/trial-0001` was trained:\n  trial-0001: 15 samples, was 16")
    );
    assert_eq!(lab.journal().trials, trials);
}

#[test]
fn a_trial_that_was_interrupted_before_its_first_checkpoint_begins_again_on_other_data() {
    let lab = SweepFixture::new("random", 1);
    let interrupts = |_: usize, _: f64| Outcome::Stopped;
    assert_eq!(lab.run(&fake(interrupts)).0, SweepEnd::Stopped { interrupted: false });
    assert!(run(lab.order(), &Elsewhere).err().unwrap().is_refusal());
    files::remove_folder(&lab.folder.path().join("c/s/trial-0001")).unwrap();
    // The words of its panic: it was trained.
    let (_, story) = run(lab.order(), &Elsewhere).unwrap();
    assert_eq!(story.trials[0].error.as_deref(), Some("ddprun panicked"));
}

#[test]
fn a_pruner_that_begins_after_the_end_of_every_trial_is_refused() {
    let mut lab = SweepFixture::new("random", 2);
    let asha = |min_resource| Choice::of(&Asha { min_resource, ..Asha::default() });
    lab.sweep.search.pruner = asha(Interval::Epochs(5));
    let fake = fake(|_, _| Outcome::Done);
    let error = run(lab.order(), &fake).err().unwrap();
    let words = "`sweep.pruner.min_resource` is 5 epochs, and no trial is longer than 4 epochs";
    assert!(error.is_refusal() && error.to_string() == words, "{error}");
    lab.sweep.search.pruner = asha(Interval::Steps(30));
    assert_eq!(lab.run(&fake).0, SweepEnd::Done { failed: 0 });
}

/// Finds the base wrong.
struct Wrong;

impl Trainer for Wrong {
    fn check(&self, _: &[String]) -> Result<Length, String> {
        Err("the warmup is longer than the run".to_owned())
    }

    fn train(&self, _: &Job, _: &mut dyn FnMut(u64)) -> Outcome {
        panic!("nothing can be trained")
    }
}

#[test]
fn what_is_wrong_in_the_base_is_said_once_and_of_the_base() {
    let error = run(SweepFixture::new("random", 3).order(), &Wrong).err().unwrap();
    let words = error.to_string();
    assert!(error.is_refusal() && !words.contains("optimizer.lr"), "{words}");
    assert_eq!(words.matches("the warmup is longer than the run").count(), 1, "{words}");
    assert!(!error.help().unwrap().contains("space"));
}

#[test]
fn a_sweep_of_more_trials_than_are_asked_for_has_those_that_it_has() {
    let mut lab = SweepFixture::new("random", 3);
    lab.run(&fake(|_, _| Outcome::Done));
    lab.sweep.trials = Some(2);
    let (_, story) = run(lab.order(), &Silent).unwrap();
    assert_eq!((story.trials.len(), story.subject.trials), (3, 3));
}

#[test]
fn points_that_take_the_place_of_others_are_all_tried_and_those_that_were_are_not_again() {
    let mut lab = SweepFixture::new("grid", 1);
    lab.sweep.trials = None;
    let values = |values: &[f64]| Domain::Categorical {
        values: values.iter().map(|value| json!(value)).collect(),
    };
    let lr = |all: &[f64]| Parameter::new("optimizer.lr", values(all));
    let decay = Parameter::new("optimizer.weight_decay", values(&[0.5]));
    lab.sweep.search.parameters = vec![lr(&[1.0, 2.0]), decay.clone()];
    let fake = fake(|_, _| Outcome::Done);
    lab.run(&fake);
    lab.sweep.search.parameters = vec![decay, lr(&[2.0, 3.0, 4.0])];
    let (_, story) = run(SweepRequest { extend: true, ..lab.order() }, &fake).unwrap();
    let rates = story.trials.iter().map(|t| value_of(&t.values, "optimizer.lr"));
    let rates: Vec<f64> = rates.map(|rate| rate.unwrap().as_f64().unwrap()).collect();
    assert_eq!((rates, story.subject.trials), (vec![1.0, 2.0, 3.0, 4.0], 4));
}

#[test]
fn a_constraint_on_the_number_of_ranks_is_about_those_of_a_trial() {
    let mut lab = SweepFixture::new("random", 12);
    (lab.sweep.search.devices_per_trial, lab.sweep.max_failures) = (4, 12);
    let rule = Constraint::parse("optimizer.lr * distributed.devices <= 1").unwrap();
    lab.sweep.search.constraints = vec![rule];
    let (_, trials) = lab.run(&Silent);
    let keeps_to_it = |trial: &Trial| trial.values[0].1.as_f64().unwrap() <= 0.25;
    assert!(trials.len() == 12 && trials.iter().all(keeps_to_it), "{trials:?}");
}

fn choices(key: &str, values: &[f64]) -> Parameter {
    let values = values.iter().map(|value| json!(value)).collect();
    Parameter::new(key, Domain::Categorical { values })
}

#[test]
fn no_setting_is_trained_twice_and_a_space_that_is_exhausted_ends_the_sweep() {
    for method in ["random", "tpe"] {
        let mut lab = SweepFixture::new(method, 14);
        lab.sweep.search.parameters =
            vec![choices("optimizer.lr", &[1.0, 2.0]), choices("optimizer.momentum", &[0.5, 0.25])];
        let fake = fake(|_, _| Outcome::Done);
        let (ended, trials) = lab.run(&fake);
        assert_eq!((ended, trials.len()), (SweepEnd::Done { failed: 0 }, 4), "{method}");
        let mut settings: Vec<String> = trials.iter().map(|one| shown(&one.values)).collect();
        settings.sort();
        settings.dedup();
        assert_eq!(settings.len(), 4, "{settings:?}");
        assert_eq!(lab.journal().subject.trials, 4);
        // The same command again has nothing to do; a larger space goes on.
        assert_eq!(lab.run(&Silent).1, trials);
        lab.sweep.search.parameters[0] = choices("optimizer.lr", &[1.0, 2.0, 3.0]);
        let (_, story) = run(SweepRequest { extend: true, ..lab.order() }, &fake).unwrap();
        assert_eq!(story.trials.len(), 6, "{method}");
    }
}

#[test]
fn a_small_space_is_exhausted_in_the_same_order_however_often_the_sweep_is_stopped() {
    let lab = || {
        let mut lab = SweepFixture::new("random", 30);
        let rates: Vec<f64> = (1..=12).map(f64::from).collect();
        lab.sweep.search.parameters = vec![choices("optimizer.lr", &rates)];
        lab
    };
    let values = |trials: &[Trial]| -> Vec<_> { trials.iter().map(|t| t.values.clone()).collect() };
    let (_, expected) = lab().run(&fake(|_, _| Outcome::Done));
    assert_eq!(expected.len(), 12);
    let parts = lab();
    let stopping = fake(|start, _| if start % 2 == 0 { Outcome::Stopped } else { Outcome::Done });
    let found = loop {
        let (ended, trials) = parts.run(&stopping);
        if matches!(ended, SweepEnd::Done { .. }) {
            break trials;
        }
    };
    assert_eq!(values(&found), values(&expected));
}

#[test]
fn a_point_that_was_trained_with_the_bases_value_of_a_new_parameter_is_not_trained_again() {
    let mut lab = SweepFixture::new("grid", 99);
    lab.sweep.search.parameters = vec![choices("optimizer.lr", &[1.0, 2.0])];
    let fake = fake(|_, _| Outcome::Done);
    lab.run(&fake);
    let base = lab.order().base_values();
    let usual = base.get("train.batch_size").and_then(serde_json::Value::as_f64).unwrap();
    lab.sweep.search.parameters.push(choices("train.batch_size", &[usual, 2.0 * usual]));
    let (_, story) = run(SweepRequest { extend: true, ..lab.order() }, &fake).unwrap();
    assert_eq!(story.trials.len(), 4, "two more, with the other batch size");
}

#[test]
fn every_setting_that_is_drawn_is_trained_with_every_fold_and_the_best_has_the_best_mean() {
    for method in ["random", "tpe"] {
        let mut lab = SweepFixture::new(method, 9);
        lab.sweep.search.parameters.push(choices("data.fold", &[0.0, 1.0, 2.0]));
        let (_, trials) = lab.run(&fake(|_, _| Outcome::Done));
        let fold = |trial: &Trial| value_of(&trial.values, "data.fold").cloned().unwrap();
        let rate = |trial: &Trial| value_of(&trial.values, "optimizer.lr").cloned().unwrap();
        assert_eq!(trials.len(), 9, "{method}");
        for setting in trials.chunks(3) {
            assert!(setting.iter().all(|trial| rate(trial) == rate(&setting[0])), "{setting:?}");
            let folds: Vec<_> = setting.iter().map(fold).collect();
            assert_eq!(folds, [json!(0.0), json!(1.0), json!(2.0)]);
        }
        let text = std::fs::read_to_string(lab.folder.path().join("s/sweep.json")).unwrap();
        let written: serde_json::Value = serde_json::from_str(&text).unwrap();
        let best = best(&trials, Mode::Min).unwrap();
        assert_eq!(written["best"]["values"]["optimizer.lr"], rate(best));
        assert_eq!(written["repeats"][0]["values"]["optimizer.lr"], rate(best));
        assert_eq!(written["trials"][0]["trial"], best.number);
        assert_eq!(written["best"]["mean"], written["repeats"][0]["mean"]);
    }
}
