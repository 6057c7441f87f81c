//! Stochastic weight averaging, as a user runs it: what ends a run, and what is tested.

use serde_json::Value;

use crate::harness::bits::bits;
use crate::harness::experiments::{BASE, SLOW};
use crate::harness::lab::{Lab, SAVED};

/// Two epochs of twelve steps, of which the weights of every fourth one after the first are
/// averaged.
fn averaging() -> String {
    let small = SLOW
        .replace("epochs = 5", "epochs = 2")
        .replace("every = \"7 steps\"", "every = \"1 epoch\"");
    small + "\n[swa]\nstart = \"1 epoch\"\nevery = \"4 steps\"\nlr = 0.02\nanneal_epochs = 1\n"
}

pub(crate) fn lab() -> Lab {
    Lab::with(&averaging())
}

fn state(lab: &Lab) -> Value {
    let text = std::fs::read_to_string(lab.checkpoints().join("latest/state.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn the_average_is_what_a_run_ends_with() {
    let lab = lab();
    lab.run_to(0, &["small.toml"]).says(&["completed after step 24"]);
    let state = state(&lab);
    assert_eq!(state["swa"], serde_json::json!({ "averaged": 3, "is_complete": true }));
    let evaluated = lab.run_to(0, &["eval", "--latest", "--json"]).stdout;
    let evaluated: Value = serde_json::from_str(&evaluated).unwrap();
    assert_eq!(evaluated["metrics"]["val/loss"], state["metrics"]["val/loss"]);
}

#[test]
fn a_run_that_stops_early_ends_with_its_average_too() {
    let early = averaging() + "\n[early_stopping]\npatience = 2\nmin_delta = 10.0\n";
    let lab = Lab::with(&early.replace("epochs = 2", "epochs = 9"));
    lab.run_to(0, &["small.toml"]).says(&["stopped early (no improvement) after step 36"]);
    assert_eq!(state(&lab)["swa"], serde_json::json!({ "averaged": 6, "is_complete": true }));
    lab.run_to(0, &["resume"]).says(&["already stopped early after step 36"]);
}

/// What `ddprun eval` measures of the best checkpoint.
fn evaluated(lab: &Lab) -> Value {
    serde_json::from_str(&lab.run_to(0, &["eval", "--json"]).stdout).unwrap()
}

#[test]
fn the_best_value_of_a_run_that_stops_early_is_that_of_a_checkpoint() {
    // Weights that still learn are better than their average.
    let base = BASE.replace("epochs = 2", "epochs = 9");
    let swa = "\n[swa]\nstart = \"1 step\"\nevery = \"1 step\"\n";
    let early = "\n[early_stopping]\npatience = 2\nmin_delta = 10.0\n";
    let lab = Lab::with(&(base + swa + early));
    lab.run_to(0, &["small.toml"]).says(&["stopped early (no improvement) after step 18"]);
    let at_end: Vec<f64> = lab
        .events()
        .iter()
        .filter(|event| event["event"] == "evaluated" && event["step"] == 18)
        .map(|event| event["metrics"]["val/loss"].as_f64().unwrap())
        .collect();
    assert!(at_end.len() == 2 && at_end[0] < at_end[1], "{at_end:?}");
    let (best, found) = (state(&lab)["best"].clone(), evaluated(&lab));
    assert_eq!([&best["step"], &best["value"]], [&found["step"], &found["metrics"]["val/loss"]]);
}

#[test]
fn a_run_that_is_found_to_be_over_ends_with_its_average_too() {
    let lab = Lab::with(&averaging().replace("epochs = 2", "epochs = 9"));
    lab.run_with(&format!("{SAVED}; forward=kill(parent)@0,26"), &["small.toml"]).has_code(-9);
    lab.wait_for_all();
    assert_eq!(state(&lab)["swa"], serde_json::json!({ "averaged": 3, "is_complete": false }));
    lab.run_to(0, &["resume", "train.epochs=2"]).says(&["all 24 steps are done"]);
    let state = state(&lab);
    assert_eq!(state["swa"], serde_json::json!({ "averaged": 3, "is_complete": true }));
    let newest = lab.run_to(0, &["eval", "--latest", "--json"]).stdout;
    let newest: Value = serde_json::from_str(&newest).unwrap();
    assert_eq!(newest["metrics"]["val/loss"], state["metrics"]["val/loss"]);
    let (best, found) = (&state["best"], evaluated(&lab));
    assert_eq!([&best["step"], &best["value"]], [&found["step"], &found["metrics"]["val/loss"]]);
    let whole = bits(&lab);
    lab.run_to(0, &["resume"]).says(&["all 24 steps are done"]);
    bits(&lab).must_be(&whole);
    lab.is_clean();
}

#[test]
fn an_average_that_would_begin_after_the_run_is_refused() {
    let lab = lab();
    let refused = lab.run_to(2, &["plan", "small.toml", "swa.start=2 epochs"]);
    refused
        .says(&["`swa.start`: the first weights to average are those of step 28, the run has 24"]);
    let page = lab.run_to(0, &["plan", "small.toml"]).stdout;
    assert!(page.contains("averaged: SWA every 4 steps after step 12"), "{page}");
}
