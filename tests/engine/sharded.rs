//! Optimizer state, and gradients, in parts (`distributed.zero_stage`): the bits of plain DDP, and a part
//! of its memory.

use std::sync::Arc;

use ddprun::config::kind::Choice;
use ddprun::internals::checkpoint::{self, Snapshot};
use ddprun::kinds::Kinds;
use ddprun::optim::{self, Adafactor, AdamW, Optimizers};
use ddprun::plan::{
    CommHook, EmaPlan, LookaheadPlan, OptimizerPlan, ParameterGroup, Plan, Precision, ZeroStage,
};
use ddprun::units::{Bytes, Rank};

use crate::support::{engine, fingerprint, on_ranks, plan, step};
use crate::{IMAGE, SCALER, optimizers, train};

const SHARDED: [ZeroStage; 2] = [ZeroStage::Optimizer, ZeroStage::Gradients];

/// Plain DDP on one rank, and each way on one, two and four.
#[track_caller]
fn check(model: &str, input: &[usize], change: impl Fn(&mut Plan)) {
    let make = |world, stage| {
        let mut plan = plan(model, input, world);
        change(&mut plan);
        plan.distributed.zero_stage = stage;
        plan
    };
    let alone = train(&make(1, ZeroStage::None));
    for stage in SHARDED {
        for world in [1, 2, 4] {
            assert_eq!(train(&make(world, stage)), alone, "{stage:?}, world size {world}");
        }
    }
    let mut late = make(2, ZeroStage::Gradients);
    late.distributed.overlap = false;
    late.distributed.bucket_cap = Bytes(25 << 20);
    assert_eq!(train(&late), alone, "one large bucket without overlap");
}

/// The plan under an optimizer, its matrices apart from all else.
fn ruled(plan: &mut Plan, optimizer: &Choice) {
    let facts = ddprun::model::Models::default().describe(&plan.model).unwrap();
    let group = |is_matrix| ParameterGroup {
        name: String::new(),
        lr_factor: 1.0,
        weight_decay: 0.01,
        unfreezes_at: 0,
        freezes_at: None,
        is_matrix,
        n_state: 0,
        n_tensors: 0,
        n_parameters: 0,
    };
    let rule = Optimizers::default().build(optimizer).unwrap();
    plan.optimizer = OptimizerPlan {
        groups: vec![group(false), group(true)],
        group_of: facts.parameters.iter().map(|(_, shape)| usize::from(shape.len() == 2)).collect(),
        ..OptimizerPlan::new(optimizer.clone(), optim::facts(rule.as_ref()), 0.02)
    };
}

#[test]
fn sgd_with_momentum_has_the_bits_of_plain_ddp() {
    check("mlp", &[10], |_| ());
    check("resnet8", &IMAGE, |_| ());
}

#[test]
fn adamw_with_averages_of_weights_and_buffers_has_the_bits_of_plain_ddp() {
    check("resnet8", &IMAGE, |plan| {
        plan.optimizer = optim::plan(&AdamW::default(), 1e-2);
        plan.ema = Some(EmaPlan { decay: 0.9, power: None, use_buffers: true });
    });
}

#[test]
fn every_optimizer_has_the_bits_of_plain_ddp() {
    for optimizer in optimizers() {
        println!("{optimizer:?}");
        check("mlp", &[10], |plan| ruled(plan, &optimizer));
    }
    check("resnet8", &IMAGE, |plan| ruled(plan, &Choice::of(&Adafactor::default())));
}

#[test]
fn half_precision_slow_weights_and_noise_have_the_bits_of_plain_ddp() {
    check("mlp", &[10], |plan| {
        plan.precision = Precision::Fp16;
        plan.scaler = Some(SCALER);
        plan.clip.noise = Some(1e-3);
    });
    check("mlp", &[10], |plan| {
        plan.precision = Precision::Bf16;
        plan.lookahead = Some(LookaheadPlan { k: 3, alpha: 0.5, power: None });
    });
}

#[test]
fn frozen_and_unfrozen_parameters_have_the_bits_of_plain_ddp() {
    check("resnet8", &IMAGE, |plan| {
        ruled(plan, &Choice::of(&AdamW::default()));
        plan.optimizer.groups[0].unfreezes_at = 3;
        plan.optimizer.groups[1].freezes_at = Some(5);
        plan.ema = Some(EmaPlan { decay: 0.5, power: None, use_buffers: false });
    });
}

#[test]
fn compressed_gradients_have_the_bits_of_plain_ddp_on_as_many_ranks() {
    for hook in [CommHook::Bf16, CommHook::Fp16] {
        let with = |stage| {
            let mut plan = plan("mlp", &[10], 2);
            (plan.distributed.comm_hook, plan.distributed.zero_stage) = (hook, stage);
            let outcomes = on_ranks(&plan, |collective| {
                let rank = collective.rank();
                let hooked = ddprun::internals::collective::compressed(collective, hook);
                let mut engine = engine(&plan, hooked);
                for _ in 0..4 {
                    step(&mut engine, &plan, rank).unwrap();
                }
                engine.gather_optimizer_state(0..2).unwrap();
                fingerprint(&engine)
            });
            assert_eq!(outcomes[0], outcomes[1], "{stage:?}");
            outcomes[0].clone()
        };
        for stage in SHARDED {
            assert_eq!(with(stage), with(ZeroStage::None), "{stage:?}");
        }
    }
}

/// Bytes of the optimizer's state that each of two ranks holds after a step.
fn held(stage: ZeroStage) -> Vec<usize> {
    let mut plan = plan("resnet8", &IMAGE, 2);
    plan.optimizer = optim::plan(&AdamW::default(), 1e-2);
    plan.distributed.zero_stage = stage;
    on_ranks(&plan, |collective| {
        let rank = collective.rank();
        let mut engine = engine(&plan, collective);
        step(&mut engine, &plan, rank).unwrap();
        let bytes = engine.optimizer_state().iter().map(|state| 4 * state.elem_count()).sum();
        let described = engine.describe().unwrap_or_default();
        let says = format!("rank {} keeps {} of ", rank.0, Bytes(bytes as u64));
        assert!(stage == ZeroStage::None || described.contains(&says), "{described}");
        bytes
    })
}

#[test]
fn each_of_two_ranks_holds_half_of_the_optimizers_state() {
    let all = held(ZeroStage::None)[0];
    for stage in SHARDED {
        let parts = held(stage);
        assert_eq!(parts.iter().sum::<usize>(), all);
        let most = *parts.iter().max().unwrap() as f64 / all as f64;
        assert!((0.5..0.56).contains(&most), "{parts:?} of {all}");
    }
}

#[test]
fn a_checkpoint_of_two_ranks_is_whole_and_goes_on_at_one_and_four() {
    let adamw = AdamW { amsgrad: true, ..AdamW::default() };
    let make = |world, stage| {
        let mut plan = plan("resnet8", &IMAGE, world);
        plan.optimizer = optim::plan(&adamw, 1e-2);
        plan.ema = Some(EmaPlan { decay: 0.9, power: None, use_buffers: true });
        plan.distributed.zero_stage = stage;
        plan
    };
    let folder = tempfile::tempdir().unwrap();
    let first = make(2, ZeroStage::Gradients);
    on_ranks(&first, |collective| {
        let rank = collective.rank();
        let mut engine = engine(&first, collective);
        // In the middle of the first epoch of six steps.
        for _ in 0..4 {
            step(&mut engine, &first, rank).unwrap();
        }
        engine.gather_optimizer_state(0..1).unwrap();
        if rank == Rank(0) {
            let (params, optimizer_state) = (engine.params(), engine.optimizer_state());
            let snapshot =
                Snapshot { plan: &first, params, optimizer_state, state: engine.state() };
            checkpoint::save(folder.path(), &snapshot).unwrap();
        }
        engine.release_optimizer_state();
    });
    let finished = |plan: &Plan, resumed: bool| {
        let outcomes = on_ranks(plan, |collective| {
            let rank = collective.rank();
            let components = Kinds::default().components(plan, &candle_core::Device::Cpu).unwrap();
            let restored = resumed.then(|| {
                let params = &components.params;
                checkpoint::restore_newest(folder.path(), plan, params).unwrap().unwrap()
            });
            let restored = restored.map(|restored| (restored.state, restored.optimizer_state));
            let mut engine = ddprun::engine::Engine::new(
                Arc::new(plan.clone()),
                components,
                collective,
                restored,
            )
            .unwrap();
            while engine.state().step < 8 {
                step(&mut engine, plan, rank).unwrap();
            }
            engine.compare_everything().unwrap();
            engine.gather_optimizer_state(0..1).unwrap();
            fingerprint(&engine)
        });
        // Averages of running statistics are rank 0's.
        outcomes[0].clone()
    };
    let undisturbed = finished(&make(1, ZeroStage::None), false);
    for (world, stage) in [
        (1, ZeroStage::Optimizer),
        (1, ZeroStage::None),
        (4, ZeroStage::Optimizer),
        (4, ZeroStage::Gradients),
        (2, ZeroStage::None),
    ] {
        assert_eq!(finished(&make(world, stage), true), undisturbed, "{stage:?} at {world}");
    }
}
