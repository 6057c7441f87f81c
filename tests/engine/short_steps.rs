//! Last steps of an epoch that have fewer samples, and leave ranks without any.

use ddprun::plan::{EmaPlan, Plan, Precision};
use ddprun::units::{AccumulationSteps, BatchSize};

use crate::sequences::forecast_plan;
use crate::support::{engine, on_ranks, plan, step};
use crate::{IMAGE, SCALER, check_same_bits};

#[test]
fn the_incomplete_last_step_of_an_epoch_has_the_same_bits_at_any_world_size() {
    check_same_bits("mlp", &[10], |plan| {
        plan.data.drop_last = false;
        // 54 samples: three full steps, then 6 samples over 4 shards.
        plan.data.n_train = 54;
        plan.length.steps_per_epoch = 4;
    });
}

/// Epochs of three full steps and one of `left` samples, which is fewer than there are shards.
fn ending_with(left: usize) -> impl Fn(&mut Plan) {
    move |plan| {
        plan.data.drop_last = false;
        plan.data.n_train = 48 + left;
        plan.length.steps_per_epoch = 4;
    }
}

#[test]
fn a_last_step_that_leaves_ranks_without_samples_has_the_same_bits_at_any_world_size() {
    for left in [1, 3] {
        check_same_bits("mlp", &[10], ending_with(left));
    }
    check_same_bits("resnet8", &IMAGE, ending_with(1));
    check_same_bits("mlp", &[10], |plan| {
        ending_with(1)(plan);
        plan.ema = Some(EmaPlan { decay: 0.9, power: None, use_buffers: false });
        plan.precision = Precision::Fp16;
        plan.scaler = Some(SCALER);
    });
    // Two passes of two samples for each shard.
    check_same_bits("mlp", &[10], |plan| {
        ending_with(3)(plan);
        plan.batch.size = BatchSize::new(2).unwrap();
        let passes = 2 * plan.batch.accumulation.get();
        plan.batch.accumulation = AccumulationSteps::new(passes).unwrap();
    });
}

#[test]
fn a_norm_that_no_rank_with_samples_used_stays_as_it_is_where_others_have_none() {
    let mut plan = forecast_plan("timebridge", 2);
    ending_with(1)(&mut plan);
    plan.optimizer.weight_decay = 0.1;
    on_ranks(&plan, |collective| {
        let rank = collective.rank();
        let mut engine = engine(&plan, collective);
        for _ in 0..4 {
            step(&mut engine, &plan, rank).unwrap();
        }
        let params = engine.params().parameters();
        let norm = params.iter().find(|param| param.name().ends_with("2.norm0.weight")).unwrap();
        assert_eq!(norm.var().unwrap().to_vec1::<f32>().unwrap(), [1.0; 8]);
    });
}

#[test]
fn the_loss_of_an_epoch_is_the_mean_over_its_samples_whatever_the_last_step_has() {
    let mut plan = plan("mlp", &[10], 2);
    ending_with(1)(&mut plan);
    let sums = on_ranks(&plan, |collective| {
        let rank = collective.rank();
        let mut engine = engine(&plan, collective);
        let steps = (0..4).map(|_| step(&mut engine, &plan, rank).unwrap());
        let sum: f64 = steps.map(|report| report.loss * report.samples as f64).sum();
        (sum / 49.0, engine.state().sums)
    });
    for (mean, sums) in sums {
        assert_eq!((sums.weight, sums.samples), (49.0, 49));
        assert!((sums.mean_loss().unwrap() - mean).abs() < 1e-12);
    }
}
