//! Batch norms that take their statistics over all shards of a pass.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ddprun::engine::Error;
use ddprun::internals::collective::{self, Collective};
use ddprun::plan::{Plan, Precision};
use ddprun::units::{AccumulationSteps, BatchSize, Rank, Shards};

use crate::support::{engine, fingerprint, on_ranks, plan, step};
use crate::{IMAGE, check_same_bits, train};

/// Steps of 4 shards of one pass of 4 samples.
fn sync_plan(world: u32) -> Plan {
    let mut plan = plan("resnet8", &IMAGE, world);
    plan.distributed.sync_batchnorm = true;
    plan
}

/// Two passes of two samples for each shard.
fn in_two_passes(plan: &mut Plan) {
    plan.batch.size = BatchSize::new(2).unwrap();
    plan.batch.accumulation = AccumulationSteps::new(2 * plan.batch.accumulation.get()).unwrap();
}

#[test]
fn statistics_of_all_shards_have_the_same_bits_at_any_world_size() {
    let sync = |plan: &mut Plan| plan.distributed.sync_batchnorm = true;
    check_same_bits("resnet8", &IMAGE, sync);
    check_same_bits("resnet8", &IMAGE, |plan| {
        sync(plan);
        in_two_passes(plan);
        plan.precision = Precision::Bf16;
    });
    check_same_bits("resnet8", &IMAGE, |plan| {
        sync(plan);
        plan.activation_checkpointing = true;
    });
    assert_eq!(
        train(&sync_plan(2)),
        train(&Plan { activation_checkpointing: true, ..sync_plan(2) }),
        "activations computed again"
    );
    assert_ne!(train(&sync_plan(2)), train(&plan("resnet8", &IMAGE, 2)), "statistics per shard");
}

#[test]
fn shards_without_samples_take_part_in_the_statistics_of_the_others() {
    for left in [1, 3, 6] {
        check_same_bits("resnet8", &IMAGE, |plan| {
            plan.distributed.sync_batchnorm = true;
            plan.data.drop_last = false;
            plan.data.n_train = 48 + left;
            plan.length.steps_per_epoch = 4;
            if left == 3 {
                in_two_passes(plan);
            }
        });
    }
}

/// Losses of 6 steps, and parameters and running statistics after them.
fn losses_and_values(plan: &Plan) -> (Vec<f64>, Vec<f32>) {
    let found = on_ranks(plan, |collective| {
        let rank = collective.rank();
        let mut engine = engine(plan, collective);
        let losses = (0..6).map(|_| step(&mut engine, plan, rank).unwrap().loss).collect();
        engine.broadcast_buffers().unwrap();
        let params = engine.params();
        let vars = params.parameters().iter().map(|param| param.var().unwrap());
        let vars = vars.chain(params.buffers().iter().map(|buffer| buffer.var().unwrap()));
        let values = vars.flat_map(|var| var.flatten_all().unwrap().to_vec1::<f32>().unwrap());
        (losses, values.collect())
    });
    found.into_iter().next_back().unwrap()
}

#[test]
fn ranks_train_as_one_rank_with_the_joint_batch() {
    let mut whole = plan("resnet8", &IMAGE, 1);
    whole.batch.size = BatchSize::new(16).unwrap();
    whole.batch.shards = Shards::ONE;
    whole.batch.accumulation = AccumulationSteps::ONE;
    let (losses, values) = losses_and_values(&whole);
    for world in [1, 2, 4] {
        let (theirs, their_values) = losses_and_values(&sync_plan(world));
        assert_eq!((losses.len(), values.len()), (theirs.len(), their_values.len()));
        for (a, b) in losses.iter().zip(&theirs) {
            assert!((a - b).abs() < 1e-5, "loss {a} and {b} at world size {world}");
        }
        for (a, b) in values.iter().zip(&their_values) {
            assert!((a - b).abs() < 1e-4, "{a} and {b} at world size {world}");
        }
    }
}

#[test]
fn a_rank_that_is_lost_in_the_middle_of_a_pass_is_named_by_the_others() {
    for world in [2, 4] {
        let mut plan = sync_plan(world);
        plan.distributed.timeout = Duration::from_secs(30);
        let started = Instant::now();
        on_ranks(&plan, |collective| {
            let rank = collective.rank();
            let mut engine = engine(&plan, collective.clone());
            step(&mut engine, &plan, rank).unwrap();
            if rank.0 == 1 {
                collective.abort("out of memory");
                return;
            }
            let error = step(&mut engine, &plan, rank).unwrap_err();
            let told = matches!(
                &error,
                Error::Collective(collective::Error::Aborted { by, reason })
                    if by.0 == 1 && reason == "out of memory"
            );
            assert!(told, "{error}");
        });
        assert!(started.elapsed() < Duration::from_secs(25), "they waited for the deadline");
    }
}

/// Two ranks with a connection between them.
fn connected(plan: &Plan) -> [Arc<dyn Collective>; 2] {
    let (first, second) = UnixStream::pair().unwrap();
    let timeout = plan.distributed.timeout;
    [(0, first), (1, second)]
        .map(|(rank, stream)| collective::one_of_two(Rank(rank), stream, timeout).unwrap())
}

#[test]
fn ranks_that_share_no_memory_get_the_same_bits() {
    let plan = sync_plan(2);
    let run = |collective: Arc<dyn Collective>| {
        let rank = collective.rank();
        let mut engine = engine(&plan, collective);
        for _ in 0..3 {
            step(&mut engine, &plan, rank).unwrap();
        }
        engine.broadcast_buffers().unwrap();
        fingerprint(&engine)
    };
    let shared = on_ranks(&plan, run);
    let apart: Vec<String> = std::thread::scope(|scope| {
        let ranks = connected(&plan).map(|collective| scope.spawn(|| run(collective)));
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    assert_eq!(apart, shared);
}
