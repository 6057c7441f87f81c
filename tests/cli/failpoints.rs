//! A process that hangs, stops or panics at a phase of a run, by fail points: the culprit by name.
//! `same_bits` has those that are killed.

use crate::harness::experiments::saving;
use crate::harness::lab::Lab;
use crate::harness::running::Ended;

/// Runs the experiment with these fail points.
fn run(lab: &Lab, points: &str, changes: &[&str]) -> Ended {
    lab.run_with(points, &[&["small.toml"], changes].concat())
}

#[test]
fn a_panic_of_the_parent_ends_with_70_and_says_that_it_is_a_bug() {
    let lab = Lab::new();
    let ended = run(&lab, "spawn=panic@parent,*,*,2", &[]);
    ended.has_code(70);
    ended.says(&["panicked at", "error: ddprun ", "where you got ddprun from"]);
    ended.says(&["ddprun small.toml`"]);
    lab.wait_for_all();
}

#[test]
fn a_parent_killed_before_it_has_a_run_leaves_nothing() {
    let lab = Lab::with(&saving(2));
    assert_eq!(run(&lab, "parse=kill@parent", &[]).code, -9);
    assert!(lab.processes().is_empty() && !lab.path("logs").exists());
    lab.run_to(0, &["small.toml"]).says(&["completed after step 12"]);
}

#[test]
fn a_rank_that_hangs_in_any_phase_of_a_step_is_named_with_its_phase() {
    let patience = ["fault.stall_timeout=1s"];
    for (point, phase) in [
        ("sample=hang@1,*,0,20", "loading data"),
        // The first epoch has 24 samples of each rank: this is one of the evaluation.
        ("sample=hang@1,*,0,26", "loading data"),
        ("loading_data=hang@1,6", "loading data"),
        ("forward=hang@1,6", "forward"),
        ("backward=hang@1,6", "backward"),
        ("reducing=hang@1,6", "reducing"),
        ("collective=hang@1,6", "reducing"),
        ("optimizer=hang@1,6", "optimizer"),
    ] {
        let lab = Lab::with(&saving(2));
        let ended = run(&lab, point, &patience);
        assert_eq!(ended.code, 5, "{point}: {}", ended.stderr);
        let log = format!(
            "log:   {}",
            lab.run_folder().join("rank-1.log").strip_prefix(lab.path("")).unwrap().display()
        );
        for words in
            ["error: rank 1 (pid ", " has not made progress for ", "where: rank 1 on ", &log]
        {
            assert!(ended.stderr.contains(words), "{point}: `{words}` is not in {}", ended.stderr);
        }
        let place = ended.stderr.split(&format!(", {phase}, step ")).nth(1);
        let step = place.and_then(|place| place.lines().next()).and_then(|step| step.parse().ok());
        let step: u64 = step.unwrap_or_else(|| panic!("{point}: no step in {}", ended.stderr));
        let is_given = point.ends_with(",6");
        assert!(!is_given || step == 6, "{point}: step {step}");
        if point.starts_with("collective") {
            // The other one says where it waits.
            ended.says(&[
                "then:  rank 0 (",
                "rank 1 (in call ",
                " in `all_reduce` (call ",
                ", bucket ",
            ]);
        }
        lab.is_clean();
    }
}

#[test]
fn a_rank_that_stops_in_a_phase_without_a_limit_is_named_too() {
    for point in ["evaluating=stop@1,6", "joining=stop@1,0", "saving=stop@0,4"] {
        let lab = Lab::with(&saving(2));
        let ended = run(&lab, point, &["fault.stall_timeout=1s"]);
        assert_eq!(ended.code, 5, "{point}: {}", ended.stderr);
        assert!(ended.stderr.contains(" is stopped (SIGSTOP)"), "{point}: {}", ended.stderr);
        lab.is_clean();
    }
}

#[test]
fn a_panic_while_a_lock_is_held_leaves_no_thread_waiting_for_it() {
    for (point, code) in [("loader.locked=panic@1,*", 70), ("writer.locked=panic@0,*", 70)] {
        let lab = Lab::with(&saving(2));
        let ended = run(&lab, point, &[]);
        assert_eq!(ended.code, code, "{point}: {}", ended.stderr);
        assert!(ended.stderr.contains("was asked to panic"), "{point}: {}", ended.stderr);
        lab.is_clean();
    }
}

#[test]
fn a_panic_in_any_thread_of_a_rank_ends_the_run_with_its_words() {
    for (point, code) in
        [("backward=panic@1,6", 70), ("checkpoint.sync=panic@0", 70), ("sample=panic@1", 3)]
    {
        let lab = Lab::with(&saving(2));
        let ended = run(&lab, point, &[]);
        assert_eq!(ended.code, code, "{point}: {}", ended.stderr);
        assert!(ended.stderr.contains("was asked to panic"), "{point}: {}", ended.stderr);
        assert!(lab.processes().is_empty());
    }
}

#[test]
fn fail_points_that_cannot_be_read_are_refused() {
    let lab = Lab::new();
    let refused = run(&lab, "backward=explode", &[]);
    refused.has_code(2);
    refused.says(&["DDPRUN_FP: `backward=explode` is not `point=action@rank,step,restart,hit`"]);
}
