//! Transformers of text: the same bits at any world size, adapters, half precision.

use candle_core::DType;

use ddprun::config::kind::Choice;
use ddprun::data::Batch;
use ddprun::data::sampler::EpochOrder;
use ddprun::engine::Engine;
use ddprun::optim::{self, AdamW, Constant};
use ddprun::plan::{Plan, Precision};
use ddprun::units::Rank;

use crate::sequences::{gpt_plan, llama_plan, lora_plan};
use crate::support::{batch, engine, on_ranks, step};
use crate::train;

#[test]
fn a_gpt_with_dropout_and_tied_weights_has_the_same_bits_at_any_world_size() {
    let alone = train(&gpt_plan(1));
    for world in [2, 4] {
        assert_eq!(train(&gpt_plan(world)), alone, "world size {world}");
    }
    let mut again = gpt_plan(2);
    again.activation_checkpointing = true;
    assert_eq!(train(&again), alone, "activations computed again");
}

#[test]
fn a_llama_and_its_adapters_have_the_same_bits_at_any_world_size() {
    for plan in [llama_plan, lora_plan] {
        let alone = train(&plan(1));
        for world in [2, 4] {
            assert_eq!(train(&plan(world)), alone, "world size {world}");
        }
        let mut again = plan(2);
        again.activation_checkpointing = true;
        assert_eq!(train(&again), alone, "activations computed again");
    }
    let trained = on_ranks(&lora_plan(1), |collective| {
        let plan = lora_plan(1);
        let mut engine = engine(&plan, collective);
        let sums = |engine: &Engine| {
            let sum = |var: &candle_core::Var| {
                var.abs().unwrap().sum_all().unwrap().to_scalar::<f32>().unwrap()
            };
            let params = engine.params();
            let frozen: f32 = params.buffers().iter().map(|b| sum(b.var().unwrap())).sum();
            let adapters: f32 = params.parameters().iter().map(|p| sum(p.var().unwrap())).sum();
            (frozen, adapters, engine.optimizer_state().len())
        };
        let before = sums(&engine);
        for _ in 0..4 {
            step(&mut engine, &plan, Rank(0)).unwrap();
        }
        (before, sums(&engine))
    });
    let (before, after) = trained[0];
    assert_eq!(
        (before.0, before.2),
        (after.0, 12),
        "what is frozen has no optimizer state and stays"
    );
    assert_ne!(before.1, after.1);
}

/// Losses of 24 steps in which each token is to be said again.
fn losses(plan: &Plan) -> Vec<f64> {
    let ranks = on_ranks(plan, |collective| -> Vec<f64> {
        let rank = collective.rank();
        let mut engine = engine(plan, collective);
        let world = plan.distributed.world_size;
        let said_again = |samples: &[u32]| {
            let batch = batch(plan, samples);
            Batch { targets: batch.inputs.to_dtype(DType::U32).unwrap(), ..batch }
        };
        let loss = |step: u64| {
            let order = EpochOrder::new(&plan.data, &plan.batch, world, plan.seed, step / 6);
            let passes = order.passes((step % 6) as usize, rank);
            let mut next = passes.iter();
            let mut batch = || Ok(said_again(&next.next().unwrap().samples));
            engine.step(&passes, &mut batch, &|| None).unwrap().loss
        };
        (0..24).map(loss).collect()
    });
    ranks[0].clone()
}

#[test]
fn transformers_of_text_train_in_bf16_as_in_fp32_with_the_same_bits_at_any_world_size() {
    for in_world in [gpt_plan, llama_plan, lora_plan] {
        let plan = |world, precision| {
            let mut plan = Plan { precision, ..in_world(world) };
            plan.schedule.rule = Choice::of(&Constant {});
            let adamw = AdamW { betas: [0.9, 0.99], weight_decay: 1e-3, ..AdamW::default() };
            plan.optimizer = optim::plan(&adamw, 0.02);
            // Frozen heads can only say much with weights as large as those of a trained model.
            if plan.model.name() == "llama" {
                plan.model.kind.set("init_std", 0.3);
            }
            plan
        };
        let full = losses(&plan(1, Precision::Fp32));
        let half = losses(&plan(1, Precision::Bf16));
        assert_ne!(half, full);
        for (half, full) in half.iter().zip(&full) {
            assert!((half - full).abs() < 0.02 * full, "{half} instead of {full}");
        }
        let [first, last] = [&half[..4], &half[20..]].map(|part| part.iter().sum::<f64>());
        assert!(last < 0.99 * first, "{half:?}");
        assert_eq!(train(&plan(2, Precision::Bf16)), train(&plan(1, Precision::Bf16)));
    }
}
