//! Optimizer state, and gradients, in parts: the real program's bits, resumes and memory.

use crate::elastic;
use crate::experiments::{BASE, SLOW};
use crate::lab::Lab;
use crate::machines::{Machines, end, state};
use crate::memory::{mib, planned_and_trained};
use crate::resume::{bits, must_be_whole, undisturbed};
use crate::running::spawn;

/// Two ranks whose second one is killed in step 20; a checkpoint of step 14 is on disk.
fn killed(shard: &str) -> Lab {
    let lab = Lab::with(SLOW);
    let shard = format!("distributed.shard={shard}");
    let mut command = lab.ddprun(&["small.toml", &shard, "fault.compare_weights=5 steps"]);
    command.env("DDPRUN_FP", "checkpoint.queued=wait@*,*,*; backward=kill@1,20");
    let ended = spawn(command).wait();
    assert_ne!(ended.code, 0, "{}", ended.stderr);
    ended.says(&["optimizer state in 2 parts: rank 0 keeps "]);
    assert!(lab.steps().pop().unwrap().ends_with("step-00000014"));
    must_be_whole(&lab);
    lab
}

#[test]
fn a_sharded_run_that_is_killed_at_two_ranks_goes_on_at_one_and_four_to_the_bits_of_plain_ddp() {
    for (shard, ranks, other) in [
        ("optimizer", "1", None),
        ("optimizer", "4", None),
        ("gradients", "4", Some("distributed.shard=optimizer")),
        ("gradients", "2", Some("distributed.shard=none")),
    ] {
        let lab = killed(shard);
        let ranks = format!("distributed.devices={ranks}");
        let changes: Vec<&str> = std::iter::once(ranks.as_str()).chain(other).collect();
        let resumed = lab.run_to(0, &[&["resume"], &changes[..]].concat());
        resumed.says(&["resumed after step 14", "completed after step 60"]);
        bits(&lab).must_be(undisturbed());
        lab.is_clean();
    }
}

#[test]
fn a_sharded_run_that_loses_a_rank_goes_on_with_fewer_to_the_bits_of_plain_ddp() {
    let lab = Lab::with(&elastic::experiment());
    let ended = elastic::run(&lab, "backward=kill@1,5", &["distributed.shard=gradients"]);
    ended.has_code(0);
    ended.says(&["1 rank instead of 2", "2 ranks instead of 1"]);
    bits(&lab).must_be(elastic::undisturbed());
    lab.is_clean();
}

#[test]
fn sharded_ranks_on_two_machines_give_the_bits_of_plain_ddp_on_one() {
    let one = Lab::with(BASE);
    one.run_to(0, &["small.toml"]);
    for shard in ["optimizer", "gradients"] {
        let machines = Machines::new(2);
        let shard = format!("distributed.shard={shard}");
        let all = (0..2).map(|node| machines.start(node, &[&shard])).collect();
        for ended in end(all) {
            ended.has_code(0);
        }
        assert!(state(&machines.labs[0]) == state(&one), "{shard}");
        machines.are_clean();
    }
}

/// 18.9 million parameters under AdamW, on two ranks.
const LARGE: [&str; 10] = [
    "model.hidden=[2048,2048,2048,2048]",
    "train.batch_size=16",
    "optimizer.name=adamw",
    "optimizer.lr=0.001",
    "~optimizer.momentum",
    "distributed.devices=2",
    "distributed.bucket_cap=4MiB",
    "checkpoint.every=never",
    "checkpoint.keep_best=0",
    "validation.every=never",
];

/// What the plan foretells of a rank, what of it is gradients and optimizer, and what each rank has
/// resident in the end, in MiB.
fn memory(shard: &str) -> ([f64; 3], Vec<f64>) {
    let shard = format!("distributed.shard={shard}");
    let (lab, plan) = planned_and_trained(&[&LARGE[..], &[&shard]].concat());
    let of = &plan["memory"];
    let foretold = [&plan["peak_memory"], &of["gradients"], &of["optimizer"]].map(mib);
    let measured = lab.rank_stats()["memory"].as_array().unwrap().iter().map(mib).collect();
    (foretold, measured)
}

#[test]
fn a_rank_of_two_needs_visibly_less_memory_as_the_plan_foretells() {
    let [plain, optimizer, gradients] = ["none", "optimizer", "gradients"].map(memory);
    println!("foretold and resident: {plain:?}\n{optimizer:?}\n{gradients:?}");
    // 144 MiB of moments; the larger part is 55.5 % of them.
    assert!((plain.0[2] - 144.0).abs() < 2.0 && (optimizer.0[2] - 80.0).abs() < 2.0);
    assert!(gradients.0[1] < plain.0[1] - 20.0);
    for rank in 0..2 {
        let [plain, optimizer, gradients] =
            [&plain.1, &optimizer.1, &gradients.1].map(|resident| resident[rank]);
        // These are peaks: rank 0 loses 64 MiB of moments, and has 24 MiB of the other part's at a
        // time when it saves. A third of what it saves is left to how the allocator fares.
        assert!(optimizer < plain - 25.0, "rank {rank}: {plain} and {optimizer} MiB");
        assert!(gradients < optimizer - 20.0, "rank {rank}: {optimizer} and {gradients} MiB");
    }
}
