//! Runs that lose several ranks, go on with fewer, and have all of them again.

use rustix::process::{Signal, kill_process};
use test_support::processes::is_alive;

use crate::harness::bits::{bits, undisturbed};
use crate::harness::experiments::{SLOW, saving};
use crate::harness::lab::{Lab, SAVED};
use crate::harness::running::{Ended, pid_of, until};

/// Runs the experiment on one or two ranks with these fail points.
fn run(lab: &Lab, points: &str, changes: &[&str]) -> Ended {
    let args = [&["small.toml", "--nproc-per-node=1:2"], changes].concat();
    lab.run_with(&format!("{SAVED}; {points}"), &args)
}

#[test]
fn a_rank_is_given_up_only_when_its_restarts_are_spent_and_tried_again_ever_less_often() {
    let lab = Lab::with(&saving(10));
    // It dies in both attempts of its own, and in the first one after it came back.
    let points = "backward=kill@1,3,0; forward=kill@1,3,1; optimizer=kill@1,*,3";
    let ended = run(&lab, points, &["--max-restarts=1"]);
    ended.has_code(0);
    let told = ended.stderr.lines().filter_map(|line| {
        let (what, _) = line.split_once(", from the newest checkpoint")?;
        Some(what.split(" in ").next().unwrap_or(what).to_owned())
    });
    let (fewer, more) = ("1 rank instead of 2", "2 ranks instead of 1");
    let expected = ["restart 1 of 1", fewer, more, fewer, more];
    assert_eq!(told.collect::<Vec<_>>(), expected, "{}", ended.stderr);
    bits(&lab).must_be(&undisturbed(&Lab::with(&saving(10)), &[]));
    lab.is_clean();
}

#[test]
fn a_run_whose_last_rank_is_lost_fails_with_the_whole_history() {
    let lab = Lab::with(&saving(10));
    let ended = run(&lab, "backward=kill@1,5,0; backward=kill@0,5,1", &[]);
    ended.has_code(5);
    ended.says(&["rank 0 was killed by SIGKILL", "before restart 1: 1 rank instead of 2: rank 1"]);
    lab.is_clean();
}

/// [`SLOW`] on four ranks, which lose one after another while they train.
#[test]
fn four_ranks_become_two_and_one_and_four_again_and_no_bit_differs() {
    let lab = Lab::with(SLOW);
    let mut running = lab.start(&["small.toml", "--nproc-per-node=1:4"]);
    let mut kills = 0;
    for (step, world) in [(8, 4), (15, 2), (40, 4)] {
        lab.wait_for_step_and_save(&mut running, step);
        until("the group", || running.is_over() || running.ranks().len() == world);
        if let (false, Some(&pid)) = (running.is_over(), running.ranks().last()) {
            kills += usize::from(kill_process(pid_of(pid), Signal::KILL).is_ok());
            until("the end of the rank", || !is_alive(pid));
        }
    }
    let ended = running.wait();
    ended.has_code(0);
    assert!(kills > 0 && ended.stderr.contains("2 ranks instead of 4"), "{}", ended.stderr);
    bits(&lab).must_be(&undisturbed(&Lab::with(SLOW), &[]));
    lab.is_clean();
}

#[test]
fn sizes_that_no_shards_admit_are_refused() {
    let lab = Lab::with(&saving(10));
    let refused =
        lab.run_to(2, &["small.toml", "--nproc-per-node=1:3", "train.global_batch_size=12"]);
    refused.says(&[
        "`distributed.min_world_size`",
        "with 3 shards the world size may be 3, none of which is from 1 to below 3",
    ]);
    let refused = lab.run_to(2, &["small.toml", "--nproc-per-node=4:2"]);
    refused.says(&["write `2:4`: the smaller number comes first"]);
    let page =
        lab.run_to(0, &["plan", "small.toml", "--nproc-per-node=1:3", "distributed.shards=2"]);
    assert!(page.stdout.contains("auto = 2") || page.stdout.contains("2 ranks"), "{}", page.stdout);
}
