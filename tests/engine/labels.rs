//! Labels that do not count, spread over passes and ranks.

use candle_core::Tensor;

use ddprun::data::Batch;
use ddprun::data::sampler::EpochOrder;
use ddprun::loss::{self, ClassWeights, CrossEntropy, Focal};
use ddprun::plan::Plan;
use ddprun::units::{AccumulationSteps, BatchSize, GlobalBatchSize, Shards};

use crate::sequences::gpt_plan;
use crate::support::{batch, engine, on_ranks};

/// Losses and lengths of gradients of 3 steps in which sample i has i % 11 labels that count.
fn steps_with_ignored_labels(plan: &Plan) -> Vec<(f64, f64)> {
    let ranks = on_ranks(plan, |collective| -> Vec<(f64, f64)> {
        let rank = collective.rank();
        let mut engine = engine(plan, collective);
        let world = plan.distributed.world_size;
        let partly = |samples: &[u32]| {
            let batch = batch(plan, samples);
            let labels = samples.iter().flat_map(|&sample| {
                let label =
                    move |i| if i < sample % 11 { i64::from((sample + i) % 4) } else { -100 };
                (0..12).map(label)
            });
            let labels: Vec<i64> = labels.collect();
            let targets = Tensor::from_vec(labels, (samples.len(), 12), batch.targets.device());
            Batch { targets: targets.unwrap(), ..batch }
        };
        let run = |step: u64| {
            let order = EpochOrder::new(&plan.data, &plan.batch, world, plan.seed, 0);
            let passes = order.passes(step as usize, rank);
            let mut next = passes.iter();
            let mut batch = || Ok(partly(&next.next().unwrap().samples));
            let report = engine.step(&passes, &mut batch, &|| None).unwrap();
            (report.loss, report.grad_norm)
        };
        (0..3).map(run).collect()
    });
    ranks[0].clone()
}

/// Steps of 16 samples in passes of `size`.
fn cut(size: u32, world: u32) -> Plan {
    let mut plan = gpt_plan(world);
    plan.model.kind.set("dropout", 0.0);
    plan.data.shuffle = false;
    plan.batch.size = BatchSize::new(size).unwrap();
    plan.batch.accumulation = AccumulationSteps::new(16 / size / world).unwrap();
    plan.batch.shards = Shards::new((16 / size).min(4)).unwrap();
    plan
}

#[test]
fn labels_count_alike_however_they_are_spread_over_passes_and_ranks() {
    let whole = steps_with_ignored_labels(&cut(16, 1));
    // Sample 0 and 11 have no label that counts: passes of one sample of which nothing counts.
    for size in [1, 2, 8] {
        let parts = steps_with_ignored_labels(&cut(size, 1));
        assert!(parts.len() == whole.len() && !whole.is_empty());
        for (part, whole) in parts.iter().zip(&whole) {
            assert!((part.0 - whole.0).abs() < 1e-6 * whole.0, "{size}: {part:?}, {whole:?}");
            assert!((part.1 - whole.1).abs() < 1e-4 * whole.1, "{size}: {part:?}, {whole:?}");
        }
    }
    assert_eq!(steps_with_ignored_labels(&cut(2, 2)), steps_with_ignored_labels(&cut(2, 1)));
    // A step of samples 0 alone: nothing counts in it, and nothing is wrong.
    let mut nothing = cut(1, 1);
    (nothing.batch.global, nothing.batch.shards) = (GlobalBatchSize::ONE, Shards::new(1).unwrap());
    nothing.batch.accumulation = AccumulationSteps::new(1).unwrap();
    let first = steps_with_ignored_labels(&nothing)[0];
    assert_eq!(first, (0.0, 0.0));
}

#[test]
fn labels_weigh_alike_however_they_are_spread_over_passes_and_ranks() {
    let class_weights = Some(ClassWeights::Each(vec![0.2, 1.0, 3.5, 0.7]));
    let entropy = CrossEntropy { label_smoothing: 0.1, class_weights: class_weights.clone() };
    let losses = [
        loss::plan(&entropy),
        loss::plan(&Focal { gamma: 1.5, class_weights }),
        loss::plan(&Focal::default()),
    ];
    for loss in losses {
        let steps = |size, world| {
            let mut plan = cut(size, world);
            plan.loss.clone_from(&loss);
            steps_with_ignored_labels(&plan)
        };
        let whole = steps(16, 1);
        for size in [1, 2, 8] {
            for (part, whole) in steps(size, 1).iter().zip(&whole) {
                assert!((part.0 - whole.0).abs() < 1e-6 * whole.0, "{size}: {part:?}, {whole:?}");
                assert!((part.1 - whole.1).abs() < 1e-4 * whole.1, "{size}: {part:?}, {whole:?}");
            }
        }
        assert_eq!(steps(2, 2), steps(2, 1));
        assert_eq!(steps(2, 4), steps(2, 1));
    }
}
