//! What is watched while a run goes on: that ranks agree, that no rank is slow, that samples are
//! dealt out once.

use std::fs;

use serde_json::Value;

use crate::harness::experiments::saving;
use crate::harness::lab::Lab;
use crate::harness::running::Ended;

/// A small run that compares weights at every step, and saves at every second one.
fn experiment() -> String {
    saving(2) + "[fault]\ncompare_weights = \"1 step\"\n"
}

pub(crate) fn lab() -> Lab {
    Lab::with(&experiment())
}

fn run(lab: &Lab, points: &str, changes: &[&str]) -> Ended {
    lab.run_with(points, &[&["small.toml"], changes].concat())
}

#[test]
fn a_bit_that_turns_in_the_weights_of_one_rank_is_found_at_the_next_look() {
    let lab = lab();
    let ended = run(&lab, "weights=flip@1,5", &[]);
    ended.has_code(5);
    ended.says(&[
        "error: after step 5 the weights of rank 1 differ from those of the other ranks; after step 4 they were the same",
        "where: rank 1 on ",
        "test this machine's memory and processor",
    ]);
    lab.is_clean();
}

#[test]
fn a_sum_that_is_wrong_on_one_rank_is_found_with_the_weights_that_it_makes() {
    let lab = lab();
    let ended = run(&lab, "reduced=flip@1,5", &[]);
    ended.has_code(5);
    ended.says(&[
        "error: after step 5 the weights of rank 1 differ from those of the other ranks; after step 4 they were the same",
        "where: rank 1 on ",
    ]);
    lab.is_clean();
}

#[test]
fn of_three_ranks_the_one_that_differs_is_named_also_if_it_is_the_first() {
    let lab = lab();
    let changes = ["distributed.devices=3", "train.global_batch_size=12"];
    let ended = run(&lab, "weights=flip@0,3", &changes);
    ended.has_code(5);
    ended.says(&["after step 3 the weights of rank 0 differ", "where: rank 0 on "]);
}

/// A run in which rank 1 is slow at this point, for this reason.
fn slow(point: &str, why: &str) -> Lab {
    let lab = Lab::with(&experiment().replace("epochs = 2", "epochs = 4"));
    let ended = run(&lab, point, &["data.num_workers=0"]);
    ended.has_code(0);
    ended.says(&[
        "warning: rank 1 reaches the all-reduce ",
        " ms after the others (up to step 20; a step takes ",
        why,
    ]);
    lab
}

#[test]
fn a_rank_whose_data_are_slow_is_told_from_one_that_computes_slowly() {
    slow("sample=sleep(20)@1,*", " ms for its data");
}

#[test]
fn a_rank_that_is_slow_in_every_step_is_named_in_the_log_and_as_an_event() {
    let lab = slow("backward=sleep(60)@1,*", "its cores or its device are slower");
    let events = lab.events();
    let found: Vec<_> = events.iter().filter(|event| event["event"] == "straggler").collect();
    assert_eq!(found.len(), 1, "named once: {found:?}");
    assert_eq!(found[0]["rank"], 1);
    let (lag, step) = (&found[0]["lag_seconds"], &found[0]["step_seconds"]);
    assert!(lag.as_f64().unwrap() > 0.03 && step.as_f64().unwrap() > 0.06, "{lag} of {step}");
    let told = lab.rank_stats();
    let number = |place: &str| told.pointer(place).and_then(Value::as_f64).unwrap();
    assert!(number("/late_seconds/1") > 0.6 && number("/late_seconds/0") < 0.3, "{told}");
    let [first, slow] = [0, 1].map(|rank| number(&format!("/phase_seconds/communication/{rank}")));
    assert!(first - slow > 0.6, "rank 0 waits for it: {told}");
}

#[test]
fn a_sample_that_two_ranks_take_ends_the_run_before_its_epoch_is_trained() {
    let lab = lab();
    let ended = run(&lab, "samples=flip@1,6", &["--max-restarts=0"]);
    ended.has_code(70);
    ended.says(&["epoch 2", "ranks take 49 samples that are not the 48 of the epoch"]);
    assert_eq!(lab.last_step(), 6, "the first epoch was whole");
    lab.is_clean();
}

#[test]
fn each_epoch_says_that_its_samples_are_dealt_out_once() {
    let lab = lab();
    let changes = ["train.global_batch_size=20", "train.batch_size=10", "data.drop_last=true"];
    lab.run_to(0, &[&["small.toml"], &changes[..]].concat());
    let log = fs::read_to_string(lab.run_folder().join("rank-0.log")).unwrap();
    for epoch in 1..=2 {
        let words =
            format!("epoch {epoch}: 40 samples for 2 ranks, disjoint and complete, 8 left out");
        assert!(log.contains(&words), "{log}");
    }
}
