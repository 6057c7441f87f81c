//! Optimizer state and gradients in parts: what a rank needs, and what the page says.

use super::*;

/// As if four ranks had parts of one size.
fn memory(changes: &[&str]) -> Memory {
    let small_buckets = "distributed.bucket_cap=4MiB";
    let mut plan = good(ANIMALS, &[&[small_buckets], changes].concat(), &animals());
    plan.distributed.largest_part = plan.model.n_parameters / 4;
    Memory::of(&plan, None)
}

#[test]
fn a_ranks_part_is_what_it_needs_and_its_first_rank_copies_all_for_a_checkpoint() {
    let plain = memory(&[]);
    let optimizer = memory(&["distributed.zero_stage=1"]);
    let gradients = memory(&["distributed.zero_stage=2"]);
    assert_eq!(optimizer.optimizer, Bytes(plain.optimizer.0 / 4));
    assert_eq!(optimizer.gradients, plain.gradients);
    assert_eq!(optimizer.checkpoint, plain.checkpoint);
    assert_eq!(gradients.optimizer, optimizer.optimizer);
    // Plain: its own, and its share of three others. Two buckets of the others' may be on their
    // way.
    let own = plain.weights.0;
    let freed = own - own / 4 - 2 * (4 << 20);
    assert_eq!(gradients.gradients.0, plain.gradients.0 - freed);
    // Passes that add up need all gradients until the last.
    let passes = "train.gradient_accumulation_steps=2";
    let added = memory(&["distributed.zero_stage=2", passes]);
    assert_eq!(added.gradients, memory(&[passes]).gradients);
    let alone = ["distributed.devices=1", "distributed.zero_stage=2"];
    assert_eq!(memory(&alone), memory(&alone[..1]));
}

#[test]
fn a_parameter_is_never_cut_so_one_large_one_is_one_ranks() {
    let plan = good(ANIMALS, &["distributed.zero_stage=1"], &animals());
    assert_eq!(plan.distributed.largest_part, 100 * 3 * 224 * 224);
}

#[test]
fn the_page_says_what_is_in_parts() {
    let shown = |changes: &[&str]| {
        let loaded = read(ANIMALS, changes);
        let plan = good(ANIMALS, changes, &animals());
        page(&plan, &loaded, &animals(), &costs(&plan, None))
    };
    let two = shown(&["distributed.zero_stage=1", "distributed.devices=2"]);
    assert!(two.contains("sharding        optimizer state (ZeRO-1) in 2 parts, the"), "{two}");
    let one = shown(&["distributed.zero_stage=2", "distributed.devices=1"]);
    assert!(one.contains("optimizer state and gradients (ZeRO-2): one rank keeps all"), "{one}");
    assert!(!shown(&[]).contains("ZeRO"));
}
