//! The training step over real ranks: the same bits at any world size, resume, skips and refusals.
#![expect(clippy::unwrap_used, reason = "a test may stop")]

mod averages;
mod buckets;
mod families;
#[expect(dead_code, reason = "averages need few kinds of comparisons")]
#[path = "../support/golden.rs"]
mod golden;
mod grid;
mod groups;
mod labels;
mod lookahead;
mod noise;
mod losses;
mod not_finite;
#[path = "../support/sequences.rs"]
mod sequences;
mod sharded;
mod short_steps;
mod state;
#[path = "../support/mod.rs"]
mod support;
mod swa;
mod sync_batchnorm;
mod texts;
mod unused;
mod world_sizes;

use ddprun::config::kind::Choice;
use ddprun::data::sampler::evaluation_chunks;
use ddprun::engine::Split;
use ddprun::optim::{AdamW, Optimizers};
use ddprun::plan::{Plan, ScalerPlan};
use ddprun::units::Bytes;

use support::{N_VAL, batch, engine, fingerprint, on_ranks, plan, step};

const IMAGE: [usize; 3] = [3, 8, 8];

/// Weights, optimizer state, losses and metrics after 8 steps and an evaluation, as text; all ranks
/// agree.
fn train(plan: &Plan) -> String {
    let outcomes = on_ranks(plan, |collective| {
        let rank = collective.rank();
        let mut engine = engine(plan, collective);
        let losses: Vec<String> = (0..8)
            .map(|_| {
                let report = step(&mut engine, plan, rank).unwrap();
                format!("{:x} {:x}", report.loss.to_bits(), report.grad_norm.to_bits())
            })
            .collect();
        let world = plan.distributed.world_size;
        let chunks: Vec<_> = evaluation_chunks(N_VAL, plan.val_batch_size, world, rank).collect();
        let mut next = chunks.iter();
        let metrics = engine
            .evaluate(Split::Val, &chunks, &mut || Ok(batch(plan, &next.next().unwrap().samples)))
            .unwrap();
        engine.gather_optimizer_state(0..world.get()).unwrap();
        format!("{} {losses:?} {metrics:?}", fingerprint(&engine))
    });
    assert!(outcomes.iter().all(|outcome| *outcome == outcomes[0]), "ranks differ: {outcomes:#?}");
    outcomes[0].clone()
}

/// Every optimizer, and `AdamW` with all the state that it may have.
fn optimizers() -> Vec<Choice> {
    let mut all: Vec<Choice> = Optimizers::default().names().map(Choice::named).collect();
    all.push(Choice::of(&AdamW { amsgrad: true, ..AdamW::default() }));
    all
}

/// World sizes 1, 2 and 4, bucket sizes and overlap change no bit.
#[track_caller]
fn check_same_bits(model: &str, input: &[usize], change: impl Fn(&mut Plan)) {
    let make = |world| {
        let mut plan = plan(model, input, world);
        change(&mut plan);
        plan
    };
    let alone = train(&make(1));
    for world in [2, 4] {
        assert_eq!(train(&make(world)), alone, "world size {world}");
    }
    let mut late = make(2);
    late.distributed.overlap = false;
    late.distributed.bucket_cap = Bytes(25 << 20);
    assert_eq!(train(&late), alone, "one large bucket without overlap");
}

const SCALER: ScalerPlan =
    ScalerPlan { init: 65536.0, growth_factor: 2.0, backoff_factor: 0.5, growth_interval: 2000 };
