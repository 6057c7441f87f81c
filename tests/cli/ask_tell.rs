//! `ddprun sweep ask` and `tell`: a sweep whose trials another program trains; and what one sweep
//! takes over from another.

use std::collections::BTreeSet;
use std::fs;

use serde_json::{Value, json};

use crate::harness::experiments::BASE;
use crate::harness::lab::Lab;
use crate::sweeps::{ended, journal, lab};

const SEARCH: &str = "method = \"tpe\"\ntrials = 6\nmetric = \"val/loss\"\nconcurrent_trials = 1\n\
    [sweep.parameters.\"optimizer.lr\"]\ndistribution = \"log_uniform\"\nmin = 1e-3\nmax = 0.1\n";

fn answer(lab: &Lab, args: &[&str]) -> Value {
    let ended = lab.run_to(0, &[&["--json", "sweep"], args].concat());
    serde_json::from_str(ended.stdout.trim()).unwrap()
}

#[test]
fn a_program_asks_for_trials_side_by_side_and_tells_what_they_reached() {
    let lab = lab(BASE, SEARCH);
    let asked: Vec<Value> = std::thread::scope(|scope| {
        let ask = || answer(&lab, &["ask", "tune.toml"]);
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(ask)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let numbers: BTreeSet<u64> = asked.iter().map(|it| it["trial"].as_u64().unwrap()).collect();
    let rates: BTreeSet<String> =
        asked.iter().map(|it| it["values"]["optimizer.lr"].to_string()).collect();
    assert_eq!((numbers, rates.len()), (BTreeSet::from([1, 2, 3]), 3));
    assert_eq!((&asked[0]["type"], &asked[0]["metric"]), (&json!("ask"), &json!("val/loss")));
    let own = answer(&lab, &["ask", "tune.toml", "--with", "optimizer.lr=0.05"]);
    assert_eq!((&own["trial"], &own["values"]["optimizer.lr"]), (&json!(4), &json!(0.05)));
    let told = answer(&lab, &["tell", "tune", "2", "0.25"]);
    assert_eq!((&told["state"], &told["best"]["trial"]), (&json!("finished"), &json!(2)));
    // Who does not know whether it was heard tells it again.
    assert_eq!(answer(&lab, &["tell", "tune", "2", "0.25"]), told);
    assert_eq!(answer(&lab, &["tell", "logs/tune", "1", "nan"])["state"], "diverged");
    assert_eq!(answer(&lab, &["tell", "tune", "3", "--failed", "no memory"])["state"], "failed");
    let states: Vec<Value> = ended(&lab).into_iter().map(|line| line["state"].clone()).collect();
    assert_eq!(states, ["finished", "diverged", "failed"]);
    assert!(lab.path("logs/tune/sweep.csv").exists());
    for (args, words) in [
        (&["tell", "tune", "2", "0.5"][..], "trial 2 has finished already"),
        (&["tell", "tune", "9", "0.5"], "there is no trial 9: the sweep has 4 trials"),
        (&["tell", "tone", "1", "0.5"], "did you mean `tune`?"),
        (&["tell", "tune", "4", "good"], "good"),
        (&["ask", "tune.toml", "--with", "optimizer.lr=0.05"], "trial 4 has these values"),
        (&["ask", "tune.toml", "--with", "optimizer.lr=7.0"], "is not in the search space"),
        (&["ask", "tune.toml", "--with", "train.epochs=7"], "is not a parameter of the search"),
        (&["ask", "tune.toml", "--with", "optimizer.lr"], "write `--with KEY=VALUE`"),
        (&["ask", "tune.toml", "sweep.seed=7"], "`sweep.seed`: 42 -> 7"),
        (&["ask", "tune.toml", "sweep.method=lr_range"], "sweep"),
    ] {
        lab.run_to(2, &[&["sweep"], args].concat()).says(&[words]);
    }
    answer(&lab, &["ask", "tune.toml"]);
    answer(&lab, &["ask", "tune.toml"]);
    let none = answer(&lab, &["ask", "tune.toml"]);
    assert_eq!(
        (&none["trial"], &none["why"]),
        (&Value::Null, &json!("all 6 trials were asked for"))
    );
    // What was asked for and not told is trained by the sweep itself, as it was asked for.
    lab.run_to(9, &["sweep", "tune.toml"]).says(&["trial 4 restarted"]);
    let trained = ended(&lab).into_iter().find(|line| line["trial"] == 4).unwrap();
    assert_eq!(trained["state"], "finished");
    lab.is_clean();
}

#[test]
fn a_program_that_is_killed_while_it_asks_or_tells_loses_nothing() {
    let lab = lab(BASE, SEARCH);
    assert_eq!(lab.run_with("sweep.draw=kill@parent", &["sweep", "ask", "tune.toml"]).code, -9);
    let ask = ["sweep", "ask", "tune.toml"];
    assert_eq!(lab.run_with("sweep.started=kill@parent", &ask).code, -9);
    // The second was written down: another one follows it, and it can still be told.
    assert_eq!(answer(&lab, &["ask", "tune.toml"])["trial"], 2);
    answer(&lab, &["tell", "tune", "1", "0.5"]);
    let started: Vec<Value> =
        journal(&lab).into_iter().filter(|line| line["record"] == "started").collect();
    assert_eq!(started.len(), 2);
    lab.is_clean();
}

#[test]
fn a_sweep_starts_from_the_results_of_another_one_and_of_a_run() {
    let lab = lab(BASE, SEARCH);
    let first = ["sweep", "tune.toml", "sweep.method=random", "sweep.trials=2"];
    lab.run_to(0, &[&first[..], &["sweep.name=first"]].concat());
    lab.run_to(0, &["small.toml", "distributed.devices=1"]);
    let args = ["sweep", "tune.toml", "sweep.trials=1", "--from", "first", "--from", "small"];
    lab.run_to(0, &args).says(&["3 earlier results from elsewhere; the best: val/loss"]);
    let earlier = || journal(&lab).into_iter().filter(|line| line["record"] == "earlier").count();
    assert_eq!((earlier(), ended(&lab).len()), (3, 1));
    // They stay when their folders are gone, and count once.
    fs::remove_dir_all(lab.path("logs/first")).unwrap();
    fs::remove_dir_all(lab.path("checkpoints/first")).unwrap();
    let more = ["sweep", "tune.toml", "sweep.trials=2", "--from", "small"];
    lab.run_to(0, &more).says(&["3 earlier results"]);
    assert_eq!((earlier(), ended(&lab).len()), (3, 2));
    let other = ["sweep", "tune.toml", "sweep.name=other"];
    for (words, expected) in [
        (&["train.batch_size=2", "--from", "tune"][..], "`train.batch_size` is 4 there, and 2"),
        (&["sweep.metric=val/accuracy", "--from", "tune"], "it ranks by min val/loss"),
        (&["sweep.devices_per_trial=2", "--from", "tune"], "it trains on 1 device"),
        (&["--from", "toon"], "toon"),
    ] {
        lab.run_to(2, &[&other[..], words].concat()).says(&[expected]);
    }
    lab.run_to(2, &["sweep", "tune.toml", "--from", "tune"]).says(&["is this sweep itself"]);
    assert!(!lab.path("logs/other").exists(), "refused before anything was touched");
    lab.run_to(2, &["compare", "small"]).says(&["there is nothing to compare it with"]);
    lab.is_clean();
}
