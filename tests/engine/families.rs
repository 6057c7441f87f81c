//! The large families in half precision: the same bits on two ranks, and after a resume on another
//! number of them.

use std::sync::Arc;

use ddprun::engine::Engine;
use ddprun::internals::checkpoint::{self, Snapshot};
use ddprun::internals::collective::Collective;
use ddprun::kinds::Kinds;
use ddprun::plan::{Plan, Precision};
use ddprun::units::Bytes;

use crate::sequences::forecast_plan;
use crate::support::{self, engine, fingerprint, on_ranks, plan, step};

const STEPS: u64 = 2;

/// What `begin` becomes after the rest of the steps, on all ranks of `plan`.
fn trained(plan: &Plan, begin: impl Fn(Arc<dyn Collective>) -> Engine + Send + Sync) -> String {
    let found = on_ranks(plan, |collective| {
        let rank = collective.rank();
        let mut engine = begin(collective);
        while engine.state().step < STEPS {
            step(&mut engine, plan, rank).unwrap();
        }
        engine.broadcast_buffers().unwrap();
        fingerprint(&engine)
    });
    assert!(found.iter().all(|of_rank| *of_rank == found[0]), "ranks differ");
    found[0].clone()
}

#[track_caller]
fn check(make: impl Fn(u32) -> Plan) {
    let make = |world| {
        let mut plan = make(world);
        plan.precision = Precision::Bf16;
        plan.distributed.bucket_cap = Bytes(1 << 20);
        plan
    };
    let (one, two) = (make(1), make(2));
    let alone = trained(&one, |collective| engine(&one, collective));
    assert_eq!(trained(&two, |collective| engine(&two, collective)), alone, "two ranks");
    let folder = tempfile::tempdir().unwrap();
    on_ranks(&two, |collective| {
        let rank = collective.rank();
        let mut engine = engine(&two, collective);
        step(&mut engine, &two, rank).unwrap();
        engine.compare_everything().unwrap();
        if rank.is_first() {
            let (params, optimizer_state, state) =
                (engine.params(), engine.optimizer_state(), engine.state());
            let snapshot = Snapshot { plan: &two, params, optimizer_state, state };
            checkpoint::save(folder.path(), &snapshot).unwrap();
        }
    });
    let resumed = |collective| {
        let (model, params) = Kinds::default().models.instantiate(&one.model, 999).unwrap();
        let restored = checkpoint::restore_newest(folder.path(), &one, &params).unwrap().unwrap();
        let restored = Some((restored.state, restored.optimizer_state));
        let components = support::components(&one, (model, params));
        Engine::new(Arc::new(one.clone()), components, collective, restored).unwrap()
    };
    assert_eq!(trained(&one, resumed), alone, "resumed");
}

#[test]
fn a_vision_transformer_in_half_precision() {
    check(|world| plan("vit_tiny", &[3, 32, 32], world));
}

#[test]
fn a_convnext_in_half_precision() {
    check(|world| plan("convnext_tiny", &[3, 32, 32], world));
}

#[test]
fn a_mobilenet_in_half_precision() {
    check(|world| plan("mobilenet_v3_small", &[3, 32, 32], world));
}

#[test]
fn an_lstm_in_half_precision() {
    check(|world| forecast_plan("lstm", world));
}
