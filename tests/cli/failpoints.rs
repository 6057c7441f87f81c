//! A process that ends, stops or hangs at every phase of a run, by fail points: the same bits
//! afterwards, and the culprit by name. `cargo test --features failpoints --test cli failpoints`

use std::sync::OnceLock;

use crate::experiments::BASE;
use crate::lab::Lab;
use crate::resume::{Bits, bits};
use crate::running::{Ended, spawn, until};

/// Phases that every rank goes through in a step or before the first one.
pub(crate) const OF_EVERY_RANK: [&str; 12] = [
    "join=kill@{},*",
    "joining=kill@{},0",
    "sample=kill@{},*,0,30",
    "loading_data=kill@{},6",
    "forward=kill@{},6",
    "backward=kill@{},6",
    "reducing=kill@{},6",
    "collective=kill@{},6",
    "optimizer=kill@{},6",
    "evaluating=kill@{},6",
    "finishing=kill@{},12",
    "exit=kill@{},12",
];

/// Phases of rank 0 alone: it writes checkpoints and records.
pub(crate) const OF_RANK_0: [&str; 14] = [
    "saving=kill@0,4",
    "checkpoint.write=kill@0,*,0,1",
    "checkpoint.write=kill@0,*,0,5",
    "checkpoint.manifest=kill@0,*,0,2",
    "checkpoint.sync=kill@0,*,0,2",
    "checkpoint.rename=kill@0,*,0,2",
    "checkpoint.renamed=kill@0,*,0,1",
    "checkpoint.renamed=kill@0,*,0,2",
    "checkpoint.link=kill@0,*,0,1",
    "checkpoint.link=kill@0,*,0,5",
    "checkpoint.rotate=kill@0,*,0,2",
    "remove=kill@0,*,0,1",
    "epoch=kill@0,6",
    "exit=kill@0,12",
];

/// A small run with a checkpoint at every second step, so that some are rotated away.
pub(crate) fn experiment() -> String {
    BASE.to_owned() + "\n[checkpoint]\nevery = \"2 steps\"\n"
}

/// Runs the experiment with these fail points.
fn run(lab: &Lab, points: &str, changes: &[&str]) -> Ended {
    let mut command = lab.ddprun(&[&["small.toml"], changes].concat());
    command.env("DDPRUN_FP", points).env("RUST_BACKTRACE", "0");
    spawn(command).wait()
}

pub(crate) fn undisturbed() -> &'static Bits {
    static BITS: OnceLock<Bits> = OnceLock::new();
    BITS.get_or_init(|| {
        let lab = Lab::with(&experiment());
        lab.run_to(0, &["small.toml"]).says(&["completed after step 12"]);
        bits(&lab)
    })
}

/// The rank dies at the point, the group is started again, and nothing is different in the end.
fn dies_and_goes_on(points: &str, rank: u32) {
    let lab = Lab::with(&experiment());
    let ended = run(&lab, points, &["--max-restarts", "1"]);
    assert_eq!(ended.code, 0, "{points}: {}", ended.stderr);
    for words in ["restart 1 of 1".to_owned(), format!("newest checkpoint: rank {rank} was killed")]
    {
        assert!(ended.stderr.contains(&words), "{points}: `{words}` is not in {}", ended.stderr);
    }
    bits(&lab).must_be(undisturbed());
    lab.run_to(0, &["checkpoint", "verify"]);
    lab.is_clean();
}

#[test]
fn a_panic_of_the_parent_ends_with_70_and_says_that_it_is_a_bug() {
    let lab = Lab::new();
    let mut command = lab.ddprun(&["small.toml"]);
    command.env("DDPRUN_FP", "spawn=panic@parent,*,*,2").env("RUST_BACKTRACE", "0");
    let ended = spawn(command).wait();
    ended.has_code(70);
    ended.says(&["panicked at", "error: ddprun ", "where you got ddprun from"]);
    ended.says(&["ddprun small.toml`"]);
    until("the end of the ranks", || lab.processes().is_empty());
}

#[test]
fn a_rank_killed_in_any_phase_is_replaced_and_no_bit_differs() {
    for point in OF_EVERY_RANK {
        for rank in 0..2 {
            dies_and_goes_on(&point.replace("{}", &rank.to_string()), rank);
        }
    }
}

#[test]
fn a_rank_0_killed_at_any_moment_of_a_checkpoint_is_replaced_and_no_bit_differs() {
    for point in OF_RANK_0 {
        // However slow the disk is, none of the checkpoints is left out.
        dies_and_goes_on(&format!("checkpoint.queued=wait@*,*,*; {point}"), 0);
    }
}

#[test]
fn a_run_killed_before_the_links_of_its_last_checkpoint_were_moved_has_them_after_a_resume() {
    let lab = Lab::with(&experiment());
    assert_eq!(run(&lab, "checkpoint.renamed=kill(parent)@0,12", &[]).code, -9);
    crate::running::until("the end of the ranks", || lab.processes().is_empty());
    lab.run_to(0, &["resume"]);
    bits(&lab).must_be(undisturbed());
    lab.is_clean();
}

#[test]
fn a_parent_killed_before_its_ranks_speak_leaves_no_process_and_a_run_that_begins_anew_on_resume() {
    let points = ["spawn=kill@parent,*,*,1", "spawn=kill@parent,*,*,2", "join=kill(parent)@0,*"];
    for points in points {
        let lab = Lab::with(&experiment());
        assert_eq!(run(&lab, points, &[]).code, -9, "{points}");
        crate::running::until("the end of the ranks", || lab.processes().is_empty());
        assert!(!lab.run_folder().join("training_history.json").exists(), "{points}");
        lab.run_to(0, &["resume"]).says(&["completed after step 12"]);
        bits(&lab).must_be(undisturbed());
        lab.is_clean();
    }
}

#[test]
fn a_parent_killed_before_it_has_a_run_leaves_nothing() {
    let lab = Lab::with(&experiment());
    assert_eq!(run(&lab, "parse=kill@parent", &[]).code, -9);
    assert!(lab.processes().is_empty() && !lab.path("logs").exists());
    lab.run_to(0, &["small.toml"]).says(&["completed after step 12"]);
}

#[test]
fn a_rank_that_dies_twice_is_replaced_twice() {
    let lab = Lab::with(&experiment());
    let points = "backward=kill@1,5; joining=kill@0,0,1; checkpoint.rename=kill@0,*,2,1";
    let ended = run(&lab, points, &["--max-restarts", "3"]);
    ended.has_code(0);
    ended.says(&["restart 1 of 3", "restart 2 of 3", "restart 3 of 3"]);
    bits(&lab).must_be(undisturbed());
    lab.is_clean();
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
        let lab = Lab::with(&experiment());
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
        let lab = Lab::with(&experiment());
        let ended = run(&lab, point, &["fault.stall_timeout=1s"]);
        assert_eq!(ended.code, 5, "{point}: {}", ended.stderr);
        assert!(ended.stderr.contains(" is stopped (SIGSTOP)"), "{point}: {}", ended.stderr);
        lab.is_clean();
    }
}

#[test]
fn a_panic_while_a_lock_is_held_leaves_no_thread_waiting_for_it() {
    for (point, code) in [("loader.locked=panic@1,*", 70), ("writer.locked=panic@0,*", 70)] {
        let lab = Lab::with(&experiment());
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
        let lab = Lab::with(&experiment());
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
