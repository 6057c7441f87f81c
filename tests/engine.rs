//! The training step over real ranks: the same bits at any world size, resume, skips and refusals.
#![expect(clippy::unwrap_used, reason = "a test may stop")]

mod grid;
mod labels;
#[path = "support/sequences.rs"]
mod sequences;
mod short_steps;
mod support;
mod unused;

use std::sync::Arc;

use candle_core::{DType, Tensor};

use ddprun::checkpoint::{self, Snapshot};
use ddprun::config::kind::Choice;
use ddprun::data::Batch;
use ddprun::data::sampler::{EpochOrder, evaluation_chunks};
use ddprun::engine::buckets::Layout;
use ddprun::engine::{Engine, Error, Split, StopRequest, TrainState};
use ddprun::loss::{self, CrossEntropy};
use ddprun::model::Registry;
use ddprun::nn::state_dict::{Strict, load_state_dict};
use ddprun::optim::{self, AdamW, Constant, Moments};
use ddprun::plan::{
    EmaPlan, Flow, LayerInit, LayerOp, LayerPlan, OnNonFinite, Plan, Precision, ScalerPlan,
    WindowPlan,
};
use ddprun::units::{AccumulationSteps, BatchSize, Bytes, Rank};
use sequences::{forecast_plan, gpt_plan, llama_plan, lora_plan, policy_plan, speech_plan};
use support::{CLASSES, N_VAL, batch, engine, fingerprint, on_ranks, plan, step};

const IMAGE: [usize; 3] = [3, 8, 8];

/// Weights, moments, losses and metrics after 8 steps and an evaluation, as text; all ranks agree.
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
        format!("{} {losses:?} {metrics:?}", fingerprint(&engine))
    });
    assert!(outcomes.iter().all(|outcome| *outcome == outcomes[0]), "ranks differ: {outcomes:#?}");
    outcomes[0].clone()
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

#[test]
fn an_mlp_with_dropout_has_the_same_bits_at_any_world_size() {
    check_same_bits("mlp", &[10], |_| ());
}

#[test]
fn a_resnet_with_batch_norm_has_the_same_bits_at_any_world_size() {
    check_same_bits("resnet8", &IMAGE, |_| ());
}

#[test]
fn a_model_in_layers_has_the_same_bits_at_any_world_size() {
    let window = WindowPlan { kernel: 3, stride: 1, padding: 1 };
    let conv = LayerOp::Conv2d { window, groups: 1, bias: true, init: LayerInit::Torch };
    let attention = LayerOp::Attention { heads: 2, causal: false, dropout: 0.2 };
    let (image, tokens) = (Flow::Image([6, 8, 8]), Flow::Sequence([64, 6]));
    let steps = [
        ("conv", conv, image),
        ("bn", LayerOp::BatchNorm, image),
        ("relu", LayerOp::Relu, image),
        ("tokens", LayerOp::Tokens, tokens),
        ("attn", attention, tokens),
        ("pool", LayerOp::GlobalAvgPool, Flow::Vector(6)),
        ("drop", LayerOp::Dropout { p: 0.3 }, Flow::Vector(6)),
        ("fc", LayerOp::Linear { bias: true }, Flow::Vector(CLASSES)),
    ];
    let mut input = Flow::Image(IMAGE);
    let layers: Vec<LayerPlan> = steps
        .into_iter()
        .map(|(path, op, output)| {
            let layer = LayerPlan { path: path.into(), draws: None, op, input, output };
            input = output;
            layer
        })
        .collect();
    check_same_bits("graph", &IMAGE, |plan| plan.model.layers.clone_from(&layers));
}

#[test]
fn forecasters_with_dropout_have_the_same_bits_at_any_world_size() {
    for model in ["dlinear", "itransformer", "patchtst", "timebridge"] {
        let alone = train(&forecast_plan(model, 1));
        assert!(alone.contains("val/mse") && alone.contains("val/mae"), "{alone}");
        for world in [2, 4] {
            assert_eq!(train(&forecast_plan(model, world)), alone, "{model}, world size {world}");
        }
        let mut again = forecast_plan(model, 2);
        again.activation_checkpointing = true;
        assert_eq!(train(&again), alone, "{model}, activations computed again");
    }
}

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
            (frozen, adapters, engine.moments().len())
        };
        let before = sums(&engine);
        for _ in 0..4 {
            step(&mut engine, &plan, Rank(0)).unwrap();
        }
        (before, sums(&engine))
    });
    let (before, after) = trained[0];
    assert_eq!((before.0, before.2), (after.0, 12), "what is frozen has no moments and stays");
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
            engine.step(&passes, &mut batch, StopRequest::None).unwrap().loss
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
            plan.model.llama.init_std = 0.3;
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

#[test]
fn a_diffusion_policy_and_its_average_have_the_same_bits_at_any_world_size() {
    let alone = train(&policy_plan(1));
    assert!(alone.contains("val/mse"), "{alone}");
    for world in [2, 4] {
        assert_eq!(train(&policy_plan(world)), alone, "world size {world}");
    }
}

#[test]
fn encoders_of_speech_have_the_same_bits_at_any_world_size() {
    for model in ["nest", "fastconformer"] {
        let alone = train(&speech_plan(model, 1));
        assert!(alone.contains("val/accuracy"), "{alone}");
        for world in [2, 4] {
            assert_eq!(train(&speech_plan(model, world)), alone, "{model}, world size {world}");
        }
    }
}

/// After three steps with a decay of 1/2, the average holds 1/8 of the first weights, and of each later ones twice as
/// much as of those before.
#[test]
fn an_average_follows_the_weights_and_is_what_is_evaluated() {
    let mut plan = plan("mlp", &[10], 2);
    plan.ema = Some(EmaPlan { decay: 0.5, power: None, use_buffers: false });
    on_ranks(&plan, |collective| {
        let rank = collective.rank();
        let mut engine = engine(&plan, collective);
        let bias = |engine: &Engine| -> Vec<f32> {
            engine.params().parameters()[1].var().unwrap().to_vec1().unwrap()
        };
        let mut expected = bias(&engine);
        for _ in 0..3 {
            step(&mut engine, &plan, rank).unwrap();
            let halves = expected.iter().zip(bias(&engine));
            expected = halves.map(|(average, value)| value - (value - average) * 0.5).collect();
        }
        assert_eq!(engine.moments()[1].average, expected);
        let before = fingerprint(&engine);
        let of_average = val_loss(&mut engine, &plan, rank);
        assert_eq!(fingerprint(&engine), before, "an evaluation changed something");
        for (param, moments) in engine.params().parameters().iter().zip(engine.moments()) {
            let average = Tensor::new(moments.average.as_slice(), &candle_core::Device::Cpu);
            let average = average.unwrap().reshape(param.shape()).unwrap();
            param.var().unwrap().set(&average).unwrap();
        }
        assert_eq!(val_loss(&mut engine, &plan, rank), of_average);
    });
}

/// `val/loss` over all validation samples.
fn val_loss(engine: &mut Engine, plan: &Plan, rank: Rank) -> f64 {
    let world = plan.distributed.world_size;
    let chunks: Vec<_> = evaluation_chunks(N_VAL, plan.val_batch_size, world, rank).collect();
    let mut next = chunks.iter();
    let mut batches = || Ok(batch(plan, &next.next().unwrap().samples));
    engine.evaluate(Split::Val, &chunks, &mut batches).unwrap().metrics["val/loss"]
}

#[test]
fn averages_go_with_the_running_statistics_at_hand_or_with_averaged_ones() {
    let make = |world, use_buffers| {
        let mut plan = plan("resnet8", &IMAGE, world);
        plan.ema = Some(EmaPlan { decay: 0.5, power: None, use_buffers });
        plan
    };
    let alone = [false, true].map(|use_buffers| train(&make(1, use_buffers)));
    assert_ne!(alone[0], alone[1]);
    for world in [2, 4] {
        assert_eq!(train(&make(world, true)), alone[1], "world size {world}");
    }
    // The first running mean: 0, then as training left it after each of three steps, on rank 0.
    let (plan, folder) = (make(2, true), tempfile::tempdir().unwrap());
    let losses = on_ranks(&plan, |collective| {
        let rank = collective.rank();
        let mut engine = engine(&plan, collective);
        let mean = |engine: &Engine| -> Vec<f32> {
            let mut buffers = engine.params().buffers().iter();
            let first = buffers.find(|buffer| buffer.name().ends_with("running_mean")).unwrap();
            first.var().unwrap().to_vec1().unwrap()
        };
        let mut expected = mean(&engine);
        for _ in 0..3 {
            step(&mut engine, &plan, rank).unwrap();
            let both = expected.iter().zip(mean(&engine));
            expected = both.map(|(average, now)| now - (now - average) * 0.5).collect();
        }
        let found = &engine.moments()[engine.params().parameters().len()].average;
        if rank.is_first() {
            assert_eq!(*found, expected);
            let (params, moments, state) = (engine.params(), engine.moments(), engine.state());
            let snapshot = Snapshot { plan: &plan, params, moments, state };
            checkpoint::save(folder.path(), &snapshot).unwrap();
        }
        val_loss(&mut engine, &plan, rank)
    });
    // What is restored, and what is exported, measures the same.
    let plan = make(1, true);
    let collective = || support::group(&plan).remove(0);
    let (model, params) = Registry::default().build(&plan.model, 1).unwrap();
    let restored = checkpoint::restore_newest(folder.path(), &plan, &params).unwrap().unwrap();
    let restored = Some((restored.state, restored.moments));
    let mut engine = Engine::new(
        Arc::new(plan.clone()),
        support::components(&plan, (model, params)),
        collective(),
        restored,
    )
    .unwrap();
    assert_eq!(losses, [val_loss(&mut engine, &plan, Rank(0)); 2]);
    let opened = checkpoint::newest(folder.path()).unwrap();
    let exported = folder.path().join("exported.safetensors");
    let bytes = checkpoint::averaged_model(&opened).unwrap();
    ddprun::files::write_atomic(&exported, &bytes).unwrap();
    let plan = Plan { ema: None, ..plan.clone() };
    let (model, params) = Registry::default().build(&plan.model, 1).unwrap();
    load_state_dict(&params, &exported, Strict::All).unwrap();
    let mut engine = Engine::new(
        Arc::new(plan.clone()),
        support::components(&plan, (model, params)),
        collective(),
        None,
    )
    .unwrap();
    assert_eq!(losses, [val_loss(&mut engine, &plan, Rank(0)); 2]);
}

#[test]
fn label_smoothing_is_for_training_and_not_for_evaluations() {
    let losses = [0.0, 0.3].map(|label_smoothing| {
        let mut plan = plan("mlp", &[10], 1);
        plan.loss = loss::plan(&CrossEntropy { label_smoothing });
        let mut engine = engine(&plan, support::group(&plan).remove(0));
        (val_loss(&mut engine, &plan, Rank(0)), step(&mut engine, &plan, Rank(0)).unwrap().loss)
    });
    assert_eq!(losses[0].0, losses[1].0);
    assert_ne!(losses[0].1, losses[1].1);
}

/// The published `TimeBridge` has a norm that it never uses.
#[test]
fn an_unused_norm_stays_as_it_is_or_is_named() {
    let mut plan = forecast_plan("timebridge", 2);
    plan.optimizer.weight_decay = 0.1;
    on_ranks(&plan, |collective| {
        let rank = collective.rank();
        let mut engine = engine(&plan, collective);
        for _ in 0..3 {
            step(&mut engine, &plan, rank).unwrap();
        }
        let named = |name: &str| {
            let params = engine.params().parameters();
            let param = params.iter().find(|param| param.name().ends_with(name)).unwrap();
            param.var().unwrap().to_vec1::<f32>().unwrap()
        };
        assert_eq!(named("2.norm0.weight"), [1.0; 8]);
        assert_ne!(named("2.norm1.weight"), [1.0; 8]);
    });
    plan.distributed.find_unused_parameters = false;
    on_ranks(&plan, |collective| {
        let rank = collective.rank();
        let error = step(&mut engine(&plan, collective), &plan, rank).unwrap_err();
        let Error::Unused { names, .. } = &error else { panic!("{error}") };
        let expected = ["weight", "bias"].map(|key| format!("encoder.attn_layers.2.norm0.{key}"));
        assert_eq!(*names, expected);
    });
}

#[test]
fn mixed_precision_has_the_same_bits_at_any_world_size() {
    check_same_bits("resnet8", &IMAGE, |plan| plan.precision = Precision::Bf16);
    check_same_bits("mlp", &[10], |plan| {
        plan.precision = Precision::Fp16;
        plan.scaler = Some(SCALER);
    });
}

const SCALER: ScalerPlan =
    ScalerPlan { init: 65536.0, growth_factor: 2.0, backoff_factor: 0.5, growth_interval: 2000 };

#[test]
fn activations_that_are_computed_again_change_no_bit() {
    for precision in [Precision::Fp32, Precision::Bf16] {
        let mut plan = plan("resnet8", &IMAGE, 2);
        plan.precision = precision;
        let kept = train(&plan);
        plan.activation_checkpointing = true;
        assert_eq!(train(&plan), kept, "{precision:?}");
    }
}

#[test]
fn accumulation_adds_up_to_the_large_batch() {
    // Without BatchNorm and dropout, 4 passes of 4 samples are one pass of 16, to rounding.
    let mut small = plan("mlp", &[10], 1);
    small.model.dropout = 0.0;
    let mut large = small.clone();
    large.batch.size = BatchSize::new(16).unwrap();
    large.batch.shards = ddprun::units::Shards::ONE;
    large.batch.accumulation = AccumulationSteps::ONE;
    let losses = |plan: &Plan| {
        on_ranks(plan, |collective| {
            let rank = collective.rank();
            let mut engine = engine(plan, collective);
            (0..6).map(|_| step(&mut engine, plan, rank).unwrap().loss).collect::<Vec<_>>()
        })
    };
    for (a, b) in losses(&small)[0].iter().zip(&losses(&large)[0]) {
        assert!((a - b).abs() < 1e-5, "{a} and {b}");
    }
}

#[test]
fn a_checkpoint_in_the_middle_of_an_epoch_continues_bit_for_bit() {
    let mut plan = plan("resnet8", &IMAGE, 2);
    plan.ema = Some(EmaPlan { decay: 0.99, power: None, use_buffers: false });
    let folder = tempfile::tempdir().unwrap();
    let undisturbed = on_ranks(&plan, |collective| {
        let rank = collective.rank();
        let mut engine = engine(&plan, collective.clone());
        for done in 0..8 {
            if done == 4 && rank.is_first() {
                let snapshot = Snapshot {
                    plan: &plan,
                    params: engine.params(),
                    moments: engine.moments(),
                    state: engine.state(),
                };
                checkpoint::save(folder.path(), &snapshot).unwrap();
            }
            step(&mut engine, &plan, rank).unwrap();
        }
        engine.broadcast_buffers().unwrap();
        (fingerprint(&engine), engine.state().clone())
    });
    let resumed = on_ranks(&plan, |collective| {
        let rank = collective.rank();
        let (model, params) = Registry::default().build(&plan.model, 999).unwrap();
        let restored = checkpoint::restore_newest(folder.path(), &plan, &params).unwrap().unwrap();
        let state = Some((restored.state, restored.moments));
        let mut engine = Engine::new(
            Arc::new(plan.clone()),
            support::components(&plan, (model, params)),
            collective,
            state,
        )
        .unwrap();
        assert_eq!(engine.state().step, 4);
        for _ in 4..8 {
            step(&mut engine, &plan, rank).unwrap();
        }
        engine.broadcast_buffers().unwrap();
        (fingerprint(&engine), engine.state().clone())
    });
    assert_eq!(resumed, undisturbed);
}

/// What each of two ranks says that start from a state after step 4, which rank 1 has changed before.
fn start_otherwise(change: impl Fn(&mut TrainState, &mut Vec<Moments>) + Sync) -> Vec<String> {
    let plan = plan("mlp", &[10], 2);
    let saved = on_ranks(&plan, |collective| {
        let rank = collective.rank();
        let mut engine = engine(&plan, collective);
        (0..4).for_each(|_| {
            step(&mut engine, &plan, rank).unwrap();
        });
        (engine.state().clone(), engine.moments().to_vec())
    });
    on_ranks(&plan, |collective| {
        let (mut state, mut moments) = saved[0].clone();
        if !collective.rank().is_first() {
            change(&mut state, &mut moments);
        }
        let (model, params) = Registry::default().build(&plan.model, plan.seed).unwrap();
        let restored = Some((state, moments));
        match Engine::new(
            Arc::new(plan.clone()),
            support::components(&plan, (model, params)),
            collective,
            restored,
        ) {
            Ok(engine) => format!("starts after step {}", engine.state().step),
            Err(error) => error.to_string(),
        }
    })
}

#[test]
fn ranks_that_restored_different_states_are_told_apart_before_they_train() {
    let all = |words: &str| vec![words.to_owned(); 2];
    assert_eq!(start_otherwise(|_, _| ()), all("starts after step 4"));
    let other_step = start_otherwise(|state, _| state.step = 2);
    assert_eq!(other_step, all("rank 1 starts after step 2, but rank 0 after step 4"));
    let other_moment = start_otherwise(|_, moments| moments[1].first[3] += 1.0);
    assert!(
        other_moment.iter().all(|error| error.contains("the restored optimizer moments of rank 1")),
        "{other_moment:?}"
    );
    let other_progress = start_otherwise(|state, _| state.updates -= 1);
    assert!(
        other_progress.iter().all(|error| error.contains("counters and metrics of rank 1 differ")),
        "{other_progress:?}"
    );
}

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

#[test]
fn ranks_with_different_models_are_refused_with_the_first_difference() {
    let plan = plan("mlp", &[10], 2);
    let errors = on_ranks(&plan, |collective| {
        let mut mine = plan.clone();
        if collective.rank().0 == 1 {
            mine.model.hidden = vec![32, 17];
        }
        let (model, params) = Registry::default().build(&mine.model, 0).unwrap();
        match Engine::new(
            Arc::new(mine.clone()),
            support::components(&mine, (model, params)),
            collective,
            None,
        ) {
            Ok(_) => panic!("different models trained together"),
            Err(error) => error.to_string(),
        }
    });
    for error in errors {
        assert!(error.contains("rank 1 built another model than rank 0"), "{error}");
        assert!(error.contains("[17, 32]") && error.contains("[16, 32]"), "{error}");
    }
}

/// (tensors, first and last name) of each bucket of a model with 1,000 classes, as PyTorch 2.6 builds them
/// for reverse registration order.
#[track_caller]
fn check_buckets(model: &str, expected: &[(usize, &str, &str)]) {
    let mut plan = plan(model, &[3, 224, 224], 1).model;
    plan.outputs = 1000;
    plan.stem = ddprun::plan::Stem::Imagenet;
    let facts = Registry::default().describe(&plan).unwrap();
    let sizes: Vec<usize> =
        facts.parameters.iter().map(|(_, shape)| shape.iter().product()).collect();
    let order: Vec<usize> = (0..sizes.len()).rev().collect();
    let layout = Layout::new(&sizes, &order, Bytes(1 << 20), Bytes(25 << 20));
    let name = |index: &usize| facts.parameters[*index].0.as_str();
    let found: Vec<_> = layout
        .buckets
        .iter()
        .map(|bucket| (bucket.len(), name(&bucket[0]), name(bucket.last().unwrap())))
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn resnets_have_pytorchs_buckets() {
    check_buckets(
        "resnet18",
        &[
            (2, "fc.bias", "fc.weight"),
            (12, "layer4.1.bn2.bias", "layer4.0.conv2.weight"),
            (48, "layer4.0.bn1.bias", "conv1.weight"),
        ],
    );
    check_buckets(
        "resnet50",
        &[
            (2, "fc.bias", "fc.weight"),
            (15, "layer4.2.bn3.bias", "layer4.1.conv2.weight"),
            (12, "layer4.1.bn1.bias", "layer4.0.conv2.weight"),
            (51, "layer4.0.bn1.bias", "layer3.0.downsample.0.weight"),
            (81, "layer3.0.bn3.bias", "conv1.weight"),
        ],
    );
}
