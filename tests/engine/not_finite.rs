//! Steps that are skipped or stopped: overflow, NaN, divergence.

use ddprun::data::Batch;
use ddprun::data::sampler::EpochOrder;
use ddprun::engine::{Engine, Error};
use ddprun::plan::{OnNonFinite, Precision, ScalerPlan};

use crate::support::{batch, engine, fingerprint, on_ranks, plan, step};
use crate::{IMAGE, SCALER};

#[test]
fn an_overflowing_fp16_gradient_skips_the_step_on_all_ranks_and_halves_the_scale() {
    let mut plan = plan("mlp", &[10], 2);
    plan.precision = Precision::Fp16;
    plan.scaler = Some(ScalerPlan { init: 1e12, ..SCALER });
    let reports = on_ranks(&plan, |collective| {
        let rank = collective.rank();
        let mut engine = engine(&plan, collective);
        let before = fingerprint(&engine);
        let report = step(&mut engine, &plan, rank).unwrap();
        assert_eq!(fingerprint(&engine), before, "a skipped step moved something");
        report
    });
    for report in reports {
        assert!(!report.updated && report.loss.is_finite());
        assert_eq!(report.loss_scale, Some(5e11));
    }
}

#[test]
fn a_loss_that_is_not_finite_stops_all_ranks_with_its_place_or_is_skipped() {
    for policy in [OnNonFinite::Stop, OnNonFinite::Skip] {
        let mut plan = plan("mlp", &[10], 2);
        plan.on_non_finite = policy;
        let outcomes = on_ranks(&plan, |collective| {
            let rank = collective.rank();
            let mut engine = engine(&plan, collective);
            let poisoned = engine.params().parameters()[2].var().unwrap().clone();
            if rank.0 == 1 {
                poisoned.set(&(poisoned.as_tensor() * f64::NAN).unwrap()).unwrap();
            }
            step(&mut engine, &plan, rank)
        });
        for outcome in outcomes {
            match (policy, outcome) {
                (OnNonFinite::Stop, Err(error @ Error::NotFinite { step: 1, .. })) => {
                    let text = error.to_string();
                    assert!(text.contains("the loss") && text.contains("on rank 1"), "{text}");
                }
                (OnNonFinite::Skip, Ok(report)) => assert!(!report.updated),
                (_, other) => panic!("{policy:?} gave {other:?}"),
            }
        }
    }
}

/// Whether all running statistics are numbers.
fn has_finite_buffers(engine: &Engine) -> bool {
    engine.params().moving_buffers().all(|buffer| {
        let values: Vec<f32> = buffer.var().unwrap().to_vec1().unwrap();
        values.iter().all(|value| value.is_finite())
    })
}

#[test]
fn a_batch_that_is_skipped_leaves_running_statistics_that_are_numbers() {
    for joint in [false, true] {
        let mut plan = plan("resnet8", &IMAGE, 2);
        plan.on_non_finite = OnNonFinite::Skip;
        plan.distributed.sync_batchnorm = joint;
        on_ranks(&plan, |collective| {
            let rank = collective.rank();
            let mut engine = engine(&plan, collective);
            let world = plan.distributed.world_size;
            let order = EpochOrder::new(&plan.data, &plan.batch, world, plan.seed, 0);
            let passes = order.passes(0, rank);
            let mut given = passes.iter();
            let mut poisoned = || {
                let batch = batch(&plan, &given.next().unwrap().samples);
                let factor = if rank.is_first() { f64::NAN } else { 1.0 };
                let inputs = (batch.inputs * factor).unwrap();
                Ok(Batch { inputs, ..batch })
            };
            let report = engine.step(&passes, &mut poisoned, &|| None).unwrap();
            assert!(!report.updated && report.loss.is_nan());
            assert!(has_finite_buffers(&engine), "{joint}");
            assert!(step(&mut engine, &plan, rank).unwrap().updated);
        });
    }
}

#[test]
fn a_loss_past_the_threshold_stops_all_ranks_before_a_weight_moves() {
    for threshold in [1e9, 0.5] {
        let mut plan = plan("mlp", &[10], 2);
        plan.divergence_threshold = Some(threshold);
        on_ranks(&plan, |collective| {
            let rank = collective.rank();
            let mut engine = engine(&plan, collective);
            let before = fingerprint(&engine);
            match step(&mut engine, &plan, rank) {
                Ok(report) => assert!(report.updated && report.loss <= threshold),
                Err(Error::Exploded { step: 1, loss, threshold: named }) => {
                    assert!(loss > named && named == threshold);
                    assert_eq!(fingerprint(&engine), before);
                }
                Err(other) => panic!("{other}"),
            }
        });
    }
}
