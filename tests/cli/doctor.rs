//! `ddprun doctor`: the same bits at any world size, shown for an experiment.

use std::fs;

use crate::experiments::BASE;
use crate::lab::{Lab, children};
use crate::running::spawn;

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
    let mut command = lab.ddprun(&["doctor", "small.toml", "--steps=3"]);
    command.env("DDPRUN_FP", "backward=kill@1,2");
    let page = spawn(command).wait();
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
    assert!(fs::read_dir(lab.path("checkpoints")).is_err());
    lab.is_clean();
}
