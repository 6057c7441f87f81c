//! Steps that are skipped or stopped: overflow, NaN, divergence.

use ddprun::engine::Error;
use ddprun::plan::{OnNonFinite, Precision, ScalerPlan};

use crate::SCALER;
use crate::support::{engine, fingerprint, on_ranks, plan, step};

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
