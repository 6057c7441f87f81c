//! Runs that end before their last step, and what is left to do after it: each start of them ends
//! in the same way.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::harness::experiments::BASE;
use crate::harness::lab::Lab;
use crate::policies::POLICY;

fn state(lab: &Lab) -> Value {
    let text = fs::read_to_string(lab.checkpoints().join("latest/state.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// The step of the checkpoint at which a link points.
fn linked(lab: &Lab, link: &str) -> PathBuf {
    fs::canonicalize(lab.checkpoints().join(link)).unwrap()
}

/// No improvement is great enough, so that the third evaluation is one too many.
pub(crate) fn impatient() -> Lab {
    let base = BASE.replace("epochs = 2", "epochs = 9").replace("batch_size = 4", "batch_size = 2");
    let base = base.replace("threads_per_rank", "shards = 4\nthreads_per_rank");
    Lab::with(&(base + "\n[early_stopping]\npatience = 2\nmin_delta = 10.0\n"))
}

#[test]
fn a_run_out_of_time_stays_so_until_it_is_given_more() {
    let lab = Lab::new();
    lab.run_to(0, &["small.toml", "~train.epochs", "train.time=1s"])
        .says(&["time limit reached after"]);
    let (checkpoints, step) = (lab.steps(), state(&lab)["step"].as_u64().unwrap());
    let mut events = lab.events().into_iter().filter(|event| event["event"] == "evaluated");
    assert_eq!(events.next_back().unwrap()["step"], step, "evaluated at its end");
    let again = lab.run_to(0, &["resume"]);
    again.says(&[&format!(
        "the time limit was already reached after step {step}; raise `train.time`"
    )]);
    again.says(&[&format!("time limit reached after step {step} in ")]);
    assert_eq!(lab.steps(), checkpoints);
    lab.run_to(0, &["resume", "train.time=2s"]).says(&["time limit reached after"]);
    assert!(state(&lab)["step"].as_u64().unwrap() > step);
    assert!(state(&lab)["seconds"].as_f64().unwrap() >= 2.0);
    lab.is_clean();
}

/// What the newest test measured.
fn tested(lab: &Lab) -> Option<Value> {
    let tested = lab.events().into_iter().rfind(|event| event["event"] == "tested");
    tested.map(|event| event["metrics"].clone())
}

#[test]
fn a_rank_killed_in_the_last_test_is_replaced_and_the_test_made() {
    let undisturbed = Lab::with(POLICY);
    undisturbed.run_to(0, &["small.toml"]);
    for (point, rank) in [("test=kill@0", 0), ("test=kill@1", 1), ("tested=kill@0", 0)] {
        let lab = Lab::with(POLICY);
        let ended = lab.run_with(point, &["small.toml", "--max-restarts", "1"]);
        assert_eq!(ended.code, 0, "{point}: {}", ended.stderr);
        ended.says(&[
            "restart 1 of 1",
            &format!("rank {rank} was killed"),
            "completed after step 3",
        ]);
        assert_eq!(tested(&lab), tested(&undisturbed), "{point}");
        lab.is_clean();
    }
}

#[test]
fn a_run_that_died_in_its_last_test_is_tested_when_it_is_resumed_and_judged_by_it() {
    let demanding = POLICY.replace("at_least = 0.0", "at_least = 0.5");
    let undisturbed = Lab::with(&demanding);
    undisturbed.run_to(9, &["small.toml"]);
    for point in ["test=kill(parent)@0", "tested=kill(parent)@0"] {
        let lab = Lab::with(&demanding);
        assert_eq!(lab.run_with(point, &["small.toml"]).code, -9, "{point}");
        lab.wait_for_all();
        assert_eq!(tested(&lab), None);
        lab.run_to(9, &["resume"]).says(&[
            "`test/success` is 0.0000, expected at least 0.5",
            "missed its `[expect]` value",
        ]);
        assert_eq!(tested(&lab), tested(&undisturbed), "{point}");
    }
}

#[test]
fn what_was_tested_is_not_tested_again_and_still_counts() {
    let lab = Lab::with(POLICY);
    lab.run_to(0, &["small.toml"]);
    let before = tested(&lab);
    // A second test would not survive this.
    let again = lab.run_with("test=kill@*", &["resume"]);
    again.has_code(0);
    again.says(&["already complete", "test success", "completed after step 3"]);
    assert_eq!(tested(&lab), before);
    let written = fs::read_to_string(lab.run_folder().join("test_metrics.json")).unwrap();
    let written: Value = serde_json::from_str(&written).unwrap();
    assert_eq!(Some(&written["metrics"]), before.as_ref());
    // Other weights are.
    lab.run_with("test=exit(70)@0", &["resume", "train.steps=4"]).has_code(70);
    lab.run_to(0, &["resume"]).says(&["test success", "completed after step 4"]);
}

#[test]
fn numbers_of_another_metric_are_not_compared_after_a_resume() {
    let early = "[early_stopping]\npatience = 9\n[checkpoint]\nkeep_last = 9\n";
    let lab = Lab::with(&format!("{BASE}\n{early}"));
    lab.run_to(0, &["small.toml"]);
    assert_eq!(state(&lab)["best"]["metric"], "val/loss");
    let accuracy = ["checkpoint", "early_stopping"]
        .map(|table| [format!("{table}.monitor=val/accuracy"), format!("{table}.mode=max")]);
    let changes: Vec<&str> = accuracy.iter().flatten().map(String::as_str).collect();
    lab.run_to(0, &[&["resume", "train.epochs=4"], &changes[..]].concat());
    let measured: Vec<(u64, f64)> = lab
        .events()
        .iter()
        .filter(|event| event["event"] == "evaluated")
        .map(|event| (&event["step"], &event["metrics"]["val/accuracy"]))
        .map(|(step, value)| (step.as_u64().unwrap(), value.as_f64().unwrap()))
        .collect();
    assert_eq!(measured.len(), 4);
    let first_best =
        |best: (u64, f64), next: &(u64, f64)| if next.1 > best.1 { *next } else { best };
    let (step, value) = measured[1..].iter().fold(measured[0], first_best);
    let best = state(&lab)["best"].clone();
    assert_eq!((&best["metric"], best["step"].as_u64()), (&"val/accuracy".into(), Some(step)));
    assert_eq!(best["value"].as_f64(), Some(value));
    assert!(linked(&lab, "best").ends_with(format!("step-{step:08}")));
    let early = &state(&lab)["early_stopping"];
    assert_eq!(early["metric"], "val/accuracy");
    let since: Vec<f64> = measured[2..].iter().map(|(_, value)| *value).collect();
    assert_eq!(early["best"].as_f64(), since.iter().copied().reduce(f64::max));
    lab.is_clean();
}

/// Nine images, of which the second step gets one.
pub(crate) fn few() -> Lab {
    let few = BASE.replace("train_per_class = 16", "train_per_class = 3\ndrop_last = false");
    let few = few.replace("batch_size = 4", "batch_size = 2").replace("devices = 2", "shards = 4");
    Lab::with(&few)
}

#[test]
fn the_loss_of_an_epoch_is_the_mean_over_its_samples() {
    let lab = few();
    lab.run_to(0, &["small.toml", "distributed.devices=1"]);
    let losses: Vec<f64> = lab
        .events()
        .iter()
        .filter(|event| event["event"] == "step_done")
        .map(|event| event["loss"].as_f64().unwrap())
        .collect();
    let history = fs::read_to_string(lab.run_folder().join("training_history.json")).unwrap();
    let history: Value = serde_json::from_str(&history).unwrap();
    let found = history["train_loss"][0].as_f64().unwrap();
    let mean = (8.0 * losses[0] + losses[1]) / 9.0;
    assert!((found - mean).abs() < 1e-9, "{found} is not {mean}");
}
