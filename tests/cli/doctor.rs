//! `ddprun doctor`: the same bits at any world size and on any machine, shown for an experiment.

use std::fs;

use crate::harness::experiments::BASE;
use crate::harness::lab::{Lab, children};
use crate::harness::running::{Ended, spawn};
use crate::machines::{Machines, end};

/// The fingerprints that were printed, one for each world size.
fn fingerprints(page: &str) -> Vec<&str> {
    let ranks = page.lines().filter(|line| line.contains(" rank"));
    ranks.filter_map(|line| line.split_whitespace().nth(2)).collect()
}

#[test]
fn every_world_size_has_the_same_fingerprint_and_nothing_is_left() {
    let lab = Lab::with(&BASE.replace("global_batch_size = 8", "global_batch_size = 16"));
    let page = lab.run_to(0, &["doctor", "small.toml", "--world-sizes", "1,2,4", "--steps", "3"]);
    assert!(
        page.stdout.starts_with("3 steps of small: global batch 16 in 4 shards, fp32"),
        "{page:?}"
    );
    let hashes = fingerprints(&page.stdout);
    assert_eq!((hashes.len(), hashes[0].len()), (3, 16), "{}", page.stdout);
    assert!(hashes.iter().all(|hash| *hash == hashes[0]), "{}", page.stdout);
    assert!(
        page.stdout
            .ends_with("the same bits at every world size: parameters, optimizer and progress\n")
    );
    assert!(
        children(&lab.path("checkpoints")).is_empty() && children(&lab.path("logs")).is_empty()
    );
    assert!(!lab.path("data").exists(), "the generated images go, too");
    let longer = lab.run_to(0, &["doctor", "small.toml", "--world-sizes=1,2,4", "--steps=4"]);
    assert_ne!(fingerprints(&longer.stdout)[0], hashes[0], "another length, other bits");
    lab.is_clean();
}

#[test]
fn doctor_takes_half_precision_and_a_network_with_batch_norm() {
    let lab = Lab::with(&BASE.replace("name = \"mlp\"\nhidden = [16]", "name = \"resnet8\""));
    let words = ["doctor", "small.toml", "train.precision=bf16", "--steps=2"];
    let page = lab.run_to(0, &words).stdout;
    assert!(page.contains(", bf16\n"), "{page}");
    let hashes = fingerprints(&page);
    assert_eq!((hashes.len(), hashes[0]), (2, hashes[1]), "{page}");
    lab.is_clean();
}

#[test]
fn world_sizes_that_give_other_bits_are_told_with_the_first_parameter_that_differs() {
    let lab = Lab::new();
    let mut command = lab.ddprun(&["doctor", "small.toml", "--steps=2"]);
    // A gradient that is wrong before it is summed is wrong on all ranks alike, but one rank alone
    // has no rank 1.
    command.env("DDPRUN_FP", "gradient=flip@1,2");
    let page = spawn(command).wait();
    page.has_code(9);
    page.says(&["error: 1 rank and 2 ranks differ bitwise, first in `", "why: ", "do: "]);
    let hashes = fingerprints(&page.stdout);
    assert!(hashes.len() == 2 && hashes[0] != hashes[1], "{}", page.stdout);
    let named = page.stderr.split("first in `").nth(1).unwrap().split('`').next().unwrap();
    assert_eq!(named, "layers.1.bias", "the first of its bucket, and no other moved differently");
    lab.is_clean();
}

#[test]
fn the_log_that_a_failure_names_stays_and_nothing_else() {
    let lab = Lab::new();
    let page = lab.run_with("backward=kill@1,2", &["doctor", "small.toml", "--steps=3"]);
    page.has_code(5);
    page.says(&["rank 1", "saved: no checkpoint"]);
    let named = page.stderr.lines().find_map(|line| line.strip_prefix("log:")).unwrap().trim();
    let log = lab.path(named);
    let text = fs::read_to_string(&log).unwrap();
    assert!(text.contains("rank 1/2"), "{text}");
    let kept = log.ancestors().nth(3).unwrap();
    assert_eq!(children(kept), [kept.join("world-2")], "one rank left nothing");
    assert!(children(&lab.path("logs")).is_empty());
    lab.is_clean();
}

#[test]
fn what_cannot_be_compared_is_refused_before_anything_is_started() {
    let lab = Lab::new();
    let refused = lab.run_to(2, &["doctor", "small.toml", "data.sampler=torch"]);
    refused.says(&["deals samples out by rank", "do: use `data.sampler = \"shards\"`"]);
    let refused = lab.run_to(2, &["doctor", "small.toml", "--world-sizes=2,3"]);
    refused.says(&["3 ranks"]);
    lab.run_to(2, &["doctor", "small.toml", "--world-sizes=0"]).says(&["0 is not in 1..=64"]);
    assert!(!lab.path("checkpoints").exists());
    lab.is_clean();
}

/// The doctor on two machines, with fail points on the second.
fn on_two_machines(machines: &Machines, points: &str, changes: &[&str]) -> Vec<Ended> {
    let start = |node: usize| {
        let verb = ["doctor", "small.toml", "--nproc-per-node=1", "--steps=3"];
        let mut command = machines.command(&machines.labs[node], node, &verb, changes);
        command.env("DDPRUN_FP", if node == 1 { points } else { "" });
        spawn(command)
    };
    let ended = end((0..2).map(start).collect());
    machines.are_clean();
    ended
}

/// The fingerprints of the machines alone and of all together.
fn machine_fingerprints(page: &str) -> Vec<&str> {
    let lines =
        page.lines().filter(|line| line.starts_with("node ") || line.starts_with("all tog"));
    lines.filter_map(|line| line.split_whitespace().last()).collect()
}

#[test]
fn two_machines_are_measured_and_give_the_same_bits_alone_and_together() {
    let machines = Machines::new(2);
    // What only a run over machines can have does not matter.
    let changes = ["fault.max_restarts=1", "distributed.min_world_size=2"];
    let ended = on_two_machines(&machines, "", &changes);
    for ended in &ended {
        ended.has_code(0);
    }
    let page = &ended[0].stdout;
    let first = "2 machines of 1 rank each: 3 steps of small, global batch 8 in 2 shards, fp32\n";
    assert!(page.starts_with(first), "{page}");
    assert!(
        page.contains("all-reduce between machines: ") && page.contains("for 25.00 MiB"),
        "{page}"
    );
    assert_eq!(page.matches(" receives ").count(), 2, "{page}");
    let hashes = machine_fingerprints(page);
    assert_eq!((hashes.len(), hashes[0].len()), (3, 16), "{page}");
    assert!(hashes.iter().all(|hash| *hash == hashes[0]), "{page}");
    assert!(page.ends_with(
        "the same bits on each machine alone and on all together: parameters, optimizer and progress\n"
    ));
    assert_eq!(ended[1].stdout, "");
    for lab in &machines.labs {
        assert!(children(&lab.path("checkpoints")).is_empty(), "the trainings are gone");
    }
    // What one machine says of the same steps.
    let one = Lab::with(BASE).run_to(0, &["doctor", "small.toml", "--steps=3"]);
    assert_eq!(fingerprints(&one.stdout)[0], hashes[0]);
}

#[test]
fn a_machine_that_computes_other_bits_is_named_on_all() {
    let machines = Machines::new(2);
    let ended = on_two_machines(&machines, "gradient=flip@0,2", &[]);
    for ended in &ended {
        ended.has_code(9);
        ended.says(&["error: node 1 (", "differ bitwise when each trains alone, first in `"]);
    }
    let hashes = machine_fingerprints(&ended[0].stdout);
    assert!(hashes.len() == 2 && hashes[0] != hashes[1], "{}", ended[0].stdout);
}

#[test]
fn a_slow_machine_is_named_and_is_no_failure() {
    let machines = Machines::new(2);
    let ended = on_two_machines(&machines, "forward=sleep(600)@0", &[]);
    ended[0].has_code(0);
    let page = &ended[0].stdout;
    assert!(page.contains("note: node 1 (") && page.contains(") computes slowly: "), "{page}");
}

#[test]
fn a_machine_that_fails_alone_is_named_with_what_it_said() {
    let machines = Machines::new(2);
    let ended = on_two_machines(&machines, "backward=kill@0,2", &[]);
    ended[0].has_code(5);
    ended[0].says(&["error: node 1 (", ") could not train alone"]);
    ended[1].has_code(5);
    ended[1].says(&["rank 0 was killed by SIGKILL"]);
}

#[test]
fn machines_that_do_not_fit_are_refused_by_the_doctor_as_by_a_run() {
    let machines = Machines::new(2);
    let start = |node: usize, change: &str| {
        let verb = ["doctor", "small.toml", "--nproc-per-node=1"];
        spawn(machines.command(&machines.labs[node], node, &verb, &[change]))
    };
    for ended in end(vec![start(0, "optimizer.lr=0.5"), start(1, "optimizer.lr=0.25")]) {
        ended.has_code(2);
        ended.says(&["`optimizer.lr` is 0.25, but in that of node 0 it is 0.5"]);
    }
    machines.are_clean();
}
