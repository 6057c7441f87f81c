//! `ddprun doctor`: the same bits at any world size, shown for an experiment.

use std::fs;

use crate::experiments::BASE;
use crate::lab::{Lab, children};

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
