//! Runs over several machines that go on after a failure: all parents meet again, also with one
//! that was started anew in the place of a dead one. The same bits in the end.

use std::fs;

use rustix::process::{Signal, kill_process};

use crate::harness::bits::{bits, undisturbed};
use crate::harness::experiments::{SLOW, saving};
use crate::harness::lab::{Lab, SAVED};
use crate::harness::running::{Running, pid_of, spawn, until};
use crate::machines::{Machines, end};
use crate::same_bits::{OF_EVERY_RANK, OF_RANK_0};

/// Machines with an experiment of 60 steps, and a checkpoint after every second one.
fn machines(count: usize) -> Machines {
    let machines = Machines::new(count);
    for lab in &machines.labs {
        lab.write("small.toml", saving(10));
    }
    machines
}

/// The parent of a machine with one rank, in whose ranks these fail points are.
fn start(machines: &Machines, node: usize, points: &str, changes: &[&str]) -> Running {
    let verb = ["small.toml", "--nproc-per-node", "1"];
    let changes = [&["fault.max_restarts=1"], changes].concat();
    let mut command = machines.command(&machines.labs[node], node, &verb, &changes);
    command.env("DDPRUN_FP", format!("{SAVED}; {points}")).env("RUST_BACKTRACE", "0");
    spawn(command)
}

fn start_all(machines: &Machines, points: &str, changes: &[&str]) -> Vec<Running> {
    (0..machines.labs.len()).map(|node| start(machines, node, points, changes)).collect()
}

/// Waits until a rank hangs in step 8, with the checkpoint of step 6 on the disk.
fn wait_for_step_7(machines: &Machines, first: &mut Running) {
    machines.labs[0].wait_for_step_and_save(first, 7);
    assert!(!first.is_over(), "{}", first.stderr());
}

#[test]
fn a_rank_that_dies_on_either_machine_is_replaced_and_no_bit_differs() {
    for rank in [1, 0] {
        let machines = machines(2);
        let all = start_all(&machines, &format!("backward=kill@{rank},8"), &[]);
        let again = format!(
            "restart 1 of 1, from the newest checkpoint: rank {rank} was killed by SIGKILL"
        );
        for ended in end(all) {
            ended.has_code(0);
            ended.says(&[&again]);
        }
        bits(&machines.labs[0]).must_be(&undisturbed(&Lab::with(&saving(10)), &[]));
        machines.are_clean();
    }
}

#[test]
fn a_rank_that_dies_in_any_phase_is_replaced_on_all_machines_and_no_bit_differs() {
    let of_rank_1 = OF_EVERY_RANK.iter().map(|point| point.replace("{}", "1"));
    for point in of_rank_1.chain(OF_RANK_0.iter().map(|&point| point.to_owned())) {
        let machines = Machines::new(2);
        for lab in &machines.labs {
            lab.write("small.toml", saving(2));
        }
        for ended in end(start_all(&machines, &point, &[])) {
            assert_eq!(ended.code, 0, "{point}: {}", ended.stderr);
            assert_eq!(
                ended.stderr.matches("restart 1 of 1").count(),
                1,
                "{point}: {}",
                ended.stderr
            );
        }
        bits(&machines.labs[0]).must_be(&undisturbed(&Lab::with(&saving(2)), &[]));
        machines.are_clean();
    }
}

#[test]
fn of_two_ranks_on_each_machine_a_killed_one_is_replaced_in_the_middle_of_an_epoch() {
    let machines = Machines::new(2);
    for lab in &machines.labs {
        lab.write("small.toml", SLOW);
    }
    let verb = ["small.toml", "--nproc-per-node", "2", "--max-restarts", "2"];
    let start = |node| spawn(machines.command(&machines.labs[node], node, &verb, &[]));
    let mut all: Vec<Running> = (0..2).map(start).collect();
    machines.labs[0].wait_for_step_and_save(&mut all[0], 17);
    let killed =
        all[1].ranks().last().is_some_and(|&pid| kill_process(pid_of(pid), Signal::KILL).is_ok());
    let ended = end(all);
    assert!(killed, "the run was over before a rank could be killed");
    for ended in ended {
        ended.has_code(0);
        ended.says(&["restart 1 of 2, from the newest checkpoint: rank 3 was killed"]);
    }
    bits(&machines.labs[0]).must_be(&undisturbed(&Lab::with(SLOW), &[]));
    machines.are_clean();
}

#[test]
fn a_rank_that_stands_still_is_replaced_on_all_machines() {
    let machines = machines(2);
    let changes = ["fault.stall_timeout=2s"];
    for ended in end(start_all(&machines, "backward=stop@1,8", &changes)) {
        ended.has_code(0);
        ended.says(&["restart 1 of 1", "newest checkpoint: rank 1 (pid "]);
    }
    bits(&machines.labs[0]).must_be(&undisturbed(&Lab::with(&saving(10)), &[]));
    machines.are_clean();
}

#[test]
fn restarts_that_are_used_up_end_all_machines_with_the_rank_and_the_history() {
    let machines = machines(2);
    for ended in end(start_all(&machines, "backward=kill@1,8,*", &[])) {
        ended.has_code(5);
        ended.says(&["error: rank 1 was killed by SIGKILL\n", "where: rank 1 on node 1, "]);
        ended.says(&["before restart 1: rank 1 (step 8, backward): rank 1 was killed by SIGKILL"]);
        assert!(!ended.stderr.contains("restart 2"), "{}", ended.stderr);
    }
    machines.are_clean();
}

#[test]
fn a_failure_that_would_recur_ends_all_machines_at_once() {
    let machines = machines(2);
    let ended = end(start_all(&machines, "", &["fault.divergence_threshold=1e-9"]));
    for ended in &ended {
        assert!([4, 5].contains(&ended.code), "{}", ended.stderr);
        assert!(!ended.stderr.contains("restart 1"), "{}", ended.stderr);
    }
    assert_eq!(ended[0].code, 4, "{}", ended[0].stderr);
    machines.are_clean();
}

#[test]
fn a_machine_that_does_not_come_back_is_named_at_the_deadline() {
    for dead in [1, 0] {
        let machines = machines(2);
        let mut all = start_all(&machines, "backward=hang@0,8", &["distributed.timeout=8s"]);
        wait_for_step_7(&machines, &mut all[0]);
        all[dead].signal(Signal::KILL);
        let ended = all.swap_remove(1 - dead).wait();
        ended.has_code(5);
        ended.says(&[&format!("error: node {dead} ("), ") is gone\n", "restart 1 of 1"]);
        ended.says(&[&format!("node {} waited 8 s, but node {dead}", 1 - dead), "did not come"]);
        until("the ranks' end", || machines.labs.iter().all(|lab| lab.processes().is_empty()));
    }
}

#[test]
fn a_parent_that_dies_while_the_machines_meet_is_started_again_and_they_meet_anew() {
    let machines = Machines::new(3);
    let changes = ["train.batch_size=2", "train.global_batch_size=6", "distributed.timeout=20s"];
    let verb = ["small.toml", "--nproc-per-node", "1"];
    let start = |node: usize, points: &str| {
        let mut command = machines.command(&machines.labs[node], node, &verb, &changes);
        command.env("DDPRUN_FP", points);
        spawn(command)
    };
    let others = [0, 1].map(|node| start(node, ""));
    assert_eq!(start(2, "machines.connect=kill@parent").wait().code, -9);
    let mut all: Vec<Running> = others.into();
    all.push(start(2, ""));
    for ended in end(all) {
        ended.has_code(0);
    }
    machines.are_clean();
}

#[test]
fn node_0_that_is_stopped_before_a_restart_stops_the_others() {
    let machines = machines(2);
    let verb = ["small.toml", "--nproc-per-node", "1", "--max-restarts", "9"];
    let start = |node: usize| {
        let mut command = machines.command(&machines.labs[node], node, &verb, &[]);
        command.env("DDPRUN_FP", "backward=kill@1,1,*");
        spawn(command)
    };
    let [mut first, second] = [0, 1].map(start);
    until("a pause", || first.stderr().contains("restart 3 of 9 in 2 s") || first.is_over());
    first.signal(Signal::INT);
    let began = std::time::Instant::now();
    let [first, second] = [first, second].map(Running::wait);
    // Not at the deadline, which is ten minutes.
    assert!(began.elapsed().as_secs() < 60, "{}", second.stderr);
    assert_eq!([first.code, second.code], [5, 5], "{}", first.stderr);
    second.says(&["node 0 was asked to stop"]);
    machines.are_clean();
}

#[test]
fn a_parent_that_is_started_again_after_its_death_continues_the_run_of_the_others() {
    for dead in [1, 0] {
        let machines = machines(2);
        let mut all = start_all(&machines, "backward=hang@0,8", &[]);
        wait_for_step_7(&machines, &mut all[0]);
        all[dead].signal(Signal::KILL);
        let survivor = all.swap_remove(1 - dead);
        assert_eq!(all.remove(0).wait().code, -9);
        let again = start(&machines, dead, "backward=hang@0,8", &[]);
        let [survivor, again] = [survivor, again].map(Running::wait);
        survivor.has_code(0);
        again.has_code(0);
        survivor.says(&["restart 1 of 1", &format!("node {dead} ("), ") is gone"]);
        if dead == 0 {
            again.says(&["the other machines continue run ", ": so does node 0"]);
        }
        // One run: it was continued, not begun once more.
        let runs = fs::read_dir(machines.labs[0].path("logs/small")).unwrap();
        let runs = runs.filter(|entry| !entry.as_ref().unwrap().path().is_symlink());
        assert_eq!(runs.count(), 1);
        bits(&machines.labs[0]).must_be(&undisturbed(&Lab::with(&saving(10)), &[]));
        until("the ranks' end", || machines.labs.iter().all(|lab| lab.processes().is_empty()));
    }
}

#[test]
fn a_parent_that_was_lost_and_replaced_cannot_come_back() {
    let machines = machines(2);
    let changes = ["distributed.timeout=8s", "fault.max_restarts=3"];
    let points = "backward=hang@0,8; backward=hang@0,20,1";
    let mut all = start_all(&machines, points, &changes);
    wait_for_step_7(&machines, &mut all[0]);
    let (lost, mut first) = (all.remove(1), all.remove(0));
    lost.signal(Signal::STOP);
    until("the meeting", || first.stderr().matches("waiting for node 1").count() == 2);
    let second = start(&machines, 1, "", &changes);
    machines.labs[0].wait_for_step(&mut first, 19);
    // It wants to meet the others, and they meet again.
    lost.signal(Signal::CONT);
    until("the lost parent", || lost.stderr().matches("node 1 connects to node 0").count() == 2);
    kill_process(pid_of(first.ranks()[0]), Signal::KILL).unwrap();
    let [first, second, lost] = [first, second, lost].map(Running::wait);
    first.has_code(0);
    second.has_code(0);
    lost.has_code(5);
    lost.says(&["restart 1 of 3", ") is gone\n"]);
    bits(&machines.labs[0]).must_be(&undisturbed(&Lab::with(&saving(10)), &[]));
    machines.are_clean();
}

#[test]
fn a_node_0_that_has_lost_the_run_ends_the_others_in_words() {
    let machines = machines(2);
    let mut all = start_all(&machines, "backward=hang@0,8", &[]);
    wait_for_step_7(&machines, &mut all[0]);
    all[0].signal(Signal::KILL);
    let survivor = all.remove(1);
    assert_eq!(all.remove(0).wait().code, -9);
    until("the rank's end", || machines.labs[0].processes().is_empty());
    fs::remove_dir_all(machines.labs[0].path("logs")).unwrap();
    let again = start(&machines, 0, "", &[]).wait();
    again.has_code(2);
    again.says(&["the other machines continue run ", "but node 0 cannot", "why: there is none in"]);
    let survivor = survivor.wait();
    survivor.has_code(5);
    survivor.says(&["error: node 0 (", ") is gone\n", "node 0 could not prepare the run"]);
    assert!(!machines.labs[0].path("logs").exists());
}

#[test]
fn ctrl_c_ends_the_wait_for_a_machine_that_is_gone() {
    for dead in [1, 0] {
        let machines = machines(2);
        let mut all = start_all(&machines, "backward=hang@0,8", &[]);
        wait_for_step_7(&machines, &mut all[0]);
        all[dead].signal(Signal::KILL);
        let other = all.swap_remove(1 - dead);
        until("the wait", || other.stderr().contains("restart 1 of 1"));
        let words = ["waiting for node 1 at ", "node 1 connects to node 0 at "][dead ^ 1];
        until("the meeting", || other.stderr().matches(words).count() == 2);
        other.signal(Signal::INT);
        let ended = other.wait();
        ended.has_code(5);
        ended.says(&["was asked to stop while it waited for the others"]);
        until("the ranks' end", || machines.labs.iter().all(|lab| lab.processes().is_empty()));
    }
}

#[test]
fn a_run_goes_on_without_a_machine_that_stays_away_and_takes_it_back_at_the_next_meeting() {
    let machines = machines(2);
    let changes =
        ["distributed.min_world_size=1", "distributed.timeout=8s", "fault.max_restarts=2"];
    let points = "backward=hang@0,8; backward=hang@0,20,1";
    let mut all = start_all(&machines, points, &changes);
    wait_for_step_7(&machines, &mut all[0]);
    let (second, mut first) = (all.remove(1), all.remove(0));
    second.signal(Signal::KILL);
    assert_eq!(second.wait().code, -9);
    // It goes on alone, to where it hangs again.
    machines.labs[0].wait_for_step(&mut first, 19);
    assert!(first.stderr().contains("going on without node 1"), "{}", first.stderr());
    let second = start(&machines, 1, "", &changes);
    until("node 1", || second.stderr().contains("node 1 connects to node 0"));
    let rank = first.ranks()[0];
    kill_process(pid_of(rank), Signal::KILL).unwrap();
    let [first, second] = [first, second].map(Running::wait);
    first.has_code(0);
    second.has_code(0);
    first.says(&[
        "restart 1 of 2",
        "1 rank instead of 2, from the newest checkpoint: rank 1 failed",
    ]);
    first.says(&[
        "restart 2 of 2",
        "2 ranks instead of 1, from the newest checkpoint: rank 0 was killed",
    ]);
    bits(&machines.labs[0]).must_be(&undisturbed(&Lab::with(&saving(10)), &[]));
    machines.are_clean();
}

#[test]
fn machines_that_come_back_while_the_others_train_take_part_after_a_checkpoint() {
    // Of four, three cannot train together, so the first that is back waits for the second.
    for lost in [&[1][..], &[1, 3]] {
        let count = 2 * lost.len();
        let (batch, shards) = (format!("train.batch_size={}", 8 / count), count.to_string());
        let shards = format!("distributed.shards={shards}");
        let changes = [&*batch, &shards, "train.global_batch_size=8"];
        let one = Lab::with(&saving(10));
        one.run_to(0, &[&["small.toml", "distributed.devices=1"], &changes[..]].concat());
        let machines = machines(count);
        let elastic = ["distributed.min_world_size=1", "distributed.timeout=15s"];
        let changes = [&changes[..], &elastic].concat();
        // Those that are left are not done before the others are back.
        let mut all =
            start_all(&machines, "backward=hang@0,8; backward=sleep(500)@0,*,1", &changes);
        wait_for_step_7(&machines, &mut all[0]);
        for &lost in lost.iter().rev() {
            all[lost].signal(Signal::KILL);
            assert_eq!(all.remove(lost).wait().code, -9);
        }
        machines.labs[0].wait_for_step(&mut all[0], 10);
        let back = lost.iter().map(|&node| {
            let mut again = start(&machines, node, "", &changes);
            let words = "the others train; this machine takes part after a checkpoint";
            until("its place", || again.stderr().contains(words) || again.is_over());
            again
        });
        let back: Vec<Running> = back.collect();
        for ended in end(back) {
            ended.has_code(0);
        }
        let (fewer, more) = (count / 2, count);
        let rank = if fewer == 1 { "rank" } else { "ranks" };
        for ended in end(all) {
            ended.has_code(0);
            ended.says(&["restart 1 of 1", &format!("{fewer} {rank} instead of {more}, from ")]);
            let grown = format!("{more} ranks instead of {fewer}, from the newest checkpoint: a ");
            ended.says(&[&format!("{grown}checkpoint is on disk")]);
            assert_eq!(ended.stderr.matches(" instead of ").count(), 2, "{}", ended.stderr);
        }
        bits(&machines.labs[0]).must_be(&bits(&one));
        machines.are_clean();
    }
}

/// What happens to the ranks of two machines, and to two ranks of one.
fn on_one_machine(points: &str, changes: &[&str]) -> Lab {
    let lab = Lab::with(&saving(10));
    let args = [&["small.toml", "fault.max_restarts=1"], changes].concat();
    lab.run_with(&format!("{SAVED}; {points}"), &args).has_code(0);
    lab
}

#[test]
fn machines_whose_ranks_run_out_of_memory_go_on_in_smaller_passes_with_the_bits_of_one() {
    let smaller = "with micro-batches of 2 samples";
    for (points, restarts) in [
        ("memory=oom@1,9", "0"),
        ("memory=oom@0,9", "0"),
        // A restart that is left is left afterwards, too.
        ("memory=oom@1,9; backward=kill@0,15,1", "1"),
    ] {
        let restarts = format!("fault.max_restarts={restarts}");
        let changes = ["fault.on_oom=shrink_batch", &restarts];
        let one = on_one_machine(points, &changes);
        let machines = machines(2);
        for ended in end(start_all(&machines, points, &changes)) {
            ended.has_code(0);
            ended.says(&[smaller]);
            assert_eq!(ended.stderr.contains("restart 1 of 1"), points.contains("kill"));
        }
        bits(&machines.labs[0]).must_be(&bits(&one));
        machines.are_clean();
    }
    let machines = machines(2);
    let changes = ["fault.on_oom=shrink_batch", "fault.max_restarts=0"];
    let ended = end(start_all(&machines, "memory=oom@1,9,*", &changes));
    assert_eq!([ended[0].code, ended[1].code], [5, 8], "{}", ended[0].stderr);
    ended[0].says(&[smaller, "with micro-batches of 1 sample", "where: rank 1 on node 1, "]);
    machines.are_clean();
}

#[test]
fn a_parent_that_is_started_again_takes_over_the_smaller_passes_of_the_others() {
    let changes = ["fault.on_oom=shrink_batch"];
    let one = on_one_machine("memory=oom@1,9", &changes);
    for dead in [1, 0] {
        let machines = machines(2);
        let points = "memory=oom@1,9; backward=hang@0,20,1";
        let mut all = start_all(&machines, points, &changes);
        machines.labs[0].wait_for_step(&mut all[0], 19);
        all[dead].signal(Signal::KILL);
        let survivor = all.swap_remove(1 - dead);
        assert_eq!(all.remove(0).wait().code, -9);
        let again = start(&machines, dead, "", &changes);
        for ended in end(vec![survivor, again]) {
            ended.has_code(0);
        }
        bits(&machines.labs[0]).must_be(&bits(&one));
        until("the ranks' end", || machines.labs.iter().all(|lab| lab.processes().is_empty()));
    }
}

#[test]
fn four_machines_become_two_of_other_places_and_no_bit_differs() {
    let changes = ["train.batch_size=2", "distributed.shards=4"];
    let one = Lab::with(&saving(10));
    one.run_to(0, &[&["small.toml", "distributed.devices=4"], &changes[..]].concat());
    let machines = machines(4);
    let elastic = ["distributed.min_world_size=2", "distributed.timeout=15s"];
    let changes = [&changes[..], &elastic].concat();
    let mut all = start_all(&machines, "backward=hang@0,8", &changes);
    wait_for_step_7(&machines, &mut all[0]);
    for dead in [3, 1] {
        all[dead].signal(Signal::KILL);
        assert_eq!(all.remove(dead).wait().code, -9);
    }
    for ended in end(all) {
        ended.has_code(0);
        ended.says(&["restart 1 of 1", "2 ranks instead of 4, from the newest checkpoint: "]);
    }
    bits(&machines.labs[0]).must_be(&bits(&one));
    machines.are_clean();
}

#[test]
fn three_machines_meet_a_new_node_0_and_continue_their_run() {
    let changes = ["train.batch_size=2", "train.global_batch_size=6"];
    let one = Lab::with(&saving(10));
    one.run_to(0, &[&["small.toml", "distributed.devices=3"], &changes[..]].concat());
    let machines = machines(3);
    let mut all = start_all(&machines, "backward=hang@0,8", &changes);
    wait_for_step_7(&machines, &mut all[0]);
    all[0].signal(Signal::KILL);
    assert_eq!(all.remove(0).wait().code, -9);
    all.push(start(&machines, 0, "", &changes));
    for ended in end(all) {
        ended.has_code(0);
    }
    bits(&machines.labs[0]).must_be(&bits(&one));
    machines.are_clean();
}
