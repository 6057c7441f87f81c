//! Settings that are trained once, or several times with other seeds.

use std::collections::BTreeSet;

use super::*;
use crate::config::sweep::value_of;

const SEED: &str = "experiment.seed";

fn choices(rates: &[f64]) -> Vec<Parameter> {
    let values = rates.iter().map(|rate| json!(rate)).collect();
    vec![Parameter::new("optimizer.lr", Domain::Categorical { values })]
}

/// Rate and seed of each trial.
fn told(trials: &[Trial]) -> Vec<(f64, i64)> {
    let number = |trial: &Trial, key: &str| value_of(&trial.values, key).unwrap().as_f64().unwrap();
    let one = |trial: &Trial| (number(trial, "optimizer.lr"), number(trial, SEED) as i64);
    trials.iter().map(one).collect()
}

#[test]
fn a_grid_repeats_only_what_may_still_be_the_best() {
    let mut lab = SweepFixture::new("grid", 8);
    lab.sweep.trials = None;
    lab.sweep.search.parameters = choices(&[0.5, 0.25, 0.75]);
    lab.sweep.search.repeats = Some(3);
    let fake = fake(|_, _| Outcome::Done);
    let (ended, trials) = lab.run(&fake);
    assert_eq!(ended, SweepEnd::Done { failed: 0 });
    // All settings once, then the best, and the second until it is known that it cannot win.
    let seeds = [(0.5, 0), (0.25, 0), (0.75, 0), (0.25, 1), (0.25, 2), (0.5, 1)];
    assert_eq!(told(&trials), seeds);
    assert_eq!(lab.run(&fake).1, trials, "the same command again has nothing to do");
    let best = best(&trials, Mode::Min).unwrap();
    assert_eq!(told(std::slice::from_ref(best))[0].0, 0.25);
    let folder = lab.folder.path().join("s");
    let json = files::read_to_string(&folder.join("sweep.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&json["best"]["repeats"], &json["best"]["standard_error"]),
        (&json!(3), &json!(0.0))
    );
}

#[test]
fn a_sweep_with_repeats_that_is_stopped_anywhere_ends_as_an_undisturbed_one() {
    for method in ["random", "tpe", "grid"] {
        let lab = || {
            let mut lab = SweepFixture::new(method, 16);
            lab.sweep.search.repeats = Some(2);
            if method == "grid" {
                lab.sweep.search.parameters = choices(&[0.5, 0.25, 0.75, 0.125]);
            }
            lab
        };
        let (_, expected) = lab().run(&fake(|_, _| Outcome::Done));
        let fake = fake(|start, _| if start % 3 == 0 { Outcome::Stopped } else { Outcome::Done });
        let parts = lab();
        let found = loop {
            let (ended, trials) = parts.run(&fake);
            if ended == (SweepEnd::Done { failed: 0 }) {
                break trials;
            }
        };
        assert_eq!(told(&found), told(&expected), "{method}");
        let both = BTreeSet::from([0, 1]);
        let seeds: BTreeSet<i64> = told(&found).into_iter().map(|(_, seed)| seed).collect();
        assert_eq!(seeds, both);
    }
}

#[test]
fn a_sweep_that_had_no_repeats_goes_on_with_them() {
    let mut lab = SweepFixture::new("random", 3);
    let fake = fake(|_, _| Outcome::Done);
    let (_, first) = lab.run(&fake);
    lab.sweep.search.repeats = Some(2);
    lab.sweep.trials = Some(6);
    let Err(refused) = run(lab.order(), &fake) else { panic!() };
    assert!(refused.to_string().contains("`sweep.repeats`: absent -> 2"), "{refused}");
    let (_, story) = run(SweepRequest { extend: true, ..lab.order() }, &fake).unwrap();
    let rate = |trial: &Trial| trial.value(Mode::Min).unwrap();
    let best = first.iter().min_by(|a, b| rate(a).total_cmp(&rate(b))).unwrap();
    assert_eq!(story.trials[..3], first);
    assert_eq!(told(&story.trials[3..4])[0], (best.values[0].1.as_f64().unwrap(), 1));
}

#[test]
fn no_setting_is_trained_twice_side_by_side_nor_after_an_extension() {
    for method in ["random", "tpe", "gp"] {
        let mut lab = SweepFixture::new(method, 40);
        lab.sweep.concurrent_trials = Auto::Given(4);
        lab.sweep.search.parameters = choices(&[0.125, 0.25, 0.375, 0.5]);
        let size = Domain::Categorical { values: (1..=4).map(|size| json!(size)).collect() };
        lab.sweep.search.parameters.push(Parameter::new("train.batch_size", size));
        // It leaves the batch size to the base, whose eight the space does not hold.
        lab.sweep.search.start = vec![vec![("optimizer.lr".to_owned(), json!(0.25))]];
        let fake = fake(|_, _| Outcome::Done);
        let distinct = |trials: &[Trial]| {
            let base = lab.order().base_values();
            trials.iter().map(|trial| base.setting(&trial.values)).collect::<BTreeSet<String>>()
        };
        let (ended, trials) = lab.run(&fake);
        assert_eq!((ended, trials.len()), (SweepEnd::Done { failed: 0 }, 17), "{method}");
        assert_eq!(distinct(&trials).len(), 17, "{method}");
        assert_eq!(lab.run(&fake).1.len(), 17, "{method}: nothing is left");
        lab.sweep.search.parameters[0] = choices(&[0.125, 0.25, 0.625]).swap_remove(0);
        let (_, story) = run(SweepRequest { extend: true, ..lab.order() }, &fake).unwrap();
        assert_eq!((story.trials.len(), fake.starts.load(Ordering::SeqCst)), (21, 21), "{method}");
        let base = lab.order().base_values();
        let all = story.trials.iter().map(|trial| base.setting(&trial.values));
        assert_eq!(all.collect::<BTreeSet<String>>().len(), 21, "{method}");
    }
}

#[test]
fn a_sweep_ends_when_a_number_of_settings_brought_nothing_better() {
    let mut lab = SweepFixture::new("grid", 8);
    lab.sweep.trials = None;
    lab.sweep.search.parameters = choices(&[0.5, 0.25, 0.75, 0.375, 0.625, 0.125]);
    lab.sweep.patience = Some(3);
    let fake = fake(|_, _| Outcome::Done);
    let (ended, trials) = lab.run(&fake);
    assert_eq!((ended, trials.len()), (SweepEnd::NoneBetter, 5));
    assert_eq!(lab.run(&fake), (SweepEnd::NoneBetter, trials));
    // With more patience it goes on.
    lab.sweep.patience = Some(4);
    let (ended, trials) = lab.run(&fake);
    assert_eq!((ended, trials.len()), (SweepEnd::Done { failed: 0 }, 6));
    assert_eq!(fake.starts.load(Ordering::SeqCst), 6);
}
