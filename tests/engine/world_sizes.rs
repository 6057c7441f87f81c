//! The same bits at any world size, model by model.

use ddprun::config::kind::{Choice, Entry};
use ddprun::model::layers::{
    self, BatchNorm, Conv2d, Dropout, GlobalAvgPool, Layers, Linear, Padding, Relu, SelfAttention,
    Tokens,
};
use ddprun::optim::{self, Optimizers};
use ddprun::plan::{Flow, OptimizerPlan, Plan, Precision};
use ddprun::units::{AccumulationSteps, BatchSize};

use crate::sequences::{forecast_plan, policy_plan, seeing_policy_plan, speech_plan};
use crate::support::{CLASSES, engine, on_ranks, plan, step};
use crate::{IMAGE, SCALER, check_same_bits, optimizers, train};

#[test]
fn an_mlp_with_dropout_has_the_same_bits_at_any_world_size() {
    check_same_bits("mlp", &[10], |_| ());
}

#[test]
fn every_optimizer_has_the_same_bits_at_any_world_size() {
    for optimizer in optimizers() {
        println!("{optimizer:?}");
        let rule = Optimizers::default().build(&optimizer).unwrap();
        check_same_bits("mlp", &[10], |plan| {
            let facts = optim::facts(rule.as_ref());
            plan.optimizer = OptimizerPlan::new(optimizer.clone(), facts, 1e-2);
        });
    }
}

#[test]
fn a_resnet_with_batch_norm_has_the_same_bits_at_any_world_size() {
    check_same_bits("resnet8", &IMAGE, |_| ());
}

#[test]
fn a_model_in_layers_has_the_same_bits_at_any_world_size() {
    let conv = Conv2d { padding: Padding::Same, ..Conv2d::new(6, 3) };
    let attention =
        SelfAttention { n_heads: 2, n_kv_heads: Some(1), rope_theta: None, causal: false, p: 0.2 };
    let entries = [
        ("conv", Choice::of(&conv)),
        ("bn", Choice::of(&BatchNorm::default())),
        ("relu", Choice::of(&Relu {})),
        ("tokens", Choice::of(&Tokens {})),
        ("attn", Choice::of(&attention)),
        ("pool", Choice::of(&GlobalAvgPool {})),
        ("drop", Choice::of(&Dropout { p: 0.3 })),
        ("fc", Choice::of(&Linear::default())),
    ];
    let entry = |(key, Choice { name, options }): (&str, Choice)| Entry {
        name,
        key: Some(key.to_owned()),
        options,
    };
    let entries: Vec<Entry> = entries.into_iter().map(entry).collect();
    let layers = layers::plan(&Layers::default(), &entries, Flow::Image(IMAGE), CLASSES).unwrap();
    check_same_bits("graph", &IMAGE, |plan| plan.model.layers.clone_from(&layers));
}

/// Entries as they stand in a file, as JSON.
fn entries(layers: &str) -> Vec<Entry> {
    serde_json::from_str(layers).unwrap()
}

#[test]
fn gates_tokens_skipped_samples_and_recurrent_layers_have_the_same_bits_at_any_world_size() {
    let entries = entries(
        r#"[
        { "name": "conv2d", "key": "conv", "out_channels": 6, "kernel_size": [3, 1], "padding": "same" },
        { "name": "group_norm", "key": "norm", "num_groups": 2 },
        { "name": "hardswish" },
        { "name": "residual", "layers": [
            { "name": "product", "layers": [
                { "name": "global_avg_pool" }, { "name": "linear", "key": "gate", "out_features": 6 },
                { "name": "hardsigmoid" } ] },
            { "name": "stochastic_depth", "p": 0.4 } ] },
        { "name": "upsample", "scale_factor": 2, "mode": "bilinear" },
        { "name": "max_pool2d", "kernel_size": 2, "stride": 3, "ceil_mode": true },
        { "name": "avg_pool2d", "kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": true,
          "count_include_pad": false },
        { "name": "adaptive_avg_pool2d", "output_size": [3, 2] },
        { "name": "tokens" }, { "name": "class_token", "key": "token" },
        { "name": "lstm", "key": "lstm", "hidden_size": 4, "num_layers": 2, "bidirectional": true, "dropout": 0.3 },
        { "name": "select", "index": -1 },
        { "name": "linear", "key": "fc" }
    ]"#,
    );
    let layers = layers::plan(&Layers::default(), &entries, Flow::Image(IMAGE), CLASSES).unwrap();
    check_same_bits("graph", &IMAGE, |plan| plan.model.layers.clone_from(&layers));
}

#[test]
fn shortcuts_of_padding_have_the_same_bits_at_any_world_size() {
    check_same_bits("resnet8", &IMAGE, |plan| plan.model.kind.set("shortcut", "padding"));
}

#[test]
fn forecasters_with_dropout_have_the_same_bits_at_any_world_size() {
    for model in ["dlinear", "lstm", "gru", "itransformer", "patchtst", "timebridge"] {
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
fn a_diffusion_policy_and_its_average_have_the_same_bits_at_any_world_size() {
    let alone = train(&policy_plan(1));
    assert!(alone.contains("val/mse"), "{alone}");
    for world in [2, 4] {
        assert_eq!(train(&policy_plan(world)), alone, "world size {world}");
    }
}

#[test]
fn a_policy_that_sees_images_has_the_same_bits_at_any_world_size() {
    for separate in [false, true] {
        let plan = |world| {
            let mut plan = seeing_policy_plan(world);
            plan.model.kind.set("use_separate_rgb_encoder_per_camera", separate);
            plan
        };
        let alone = train(&plan(1));
        assert!(alone.contains("val/mse"), "{alone}");
        for world in [2, 4] {
            assert_eq!(train(&plan(world)), alone, "separate {separate}, world size {world}");
        }
        let mut again = plan(2);
        again.activation_checkpointing = true;
        assert_eq!(train(&again), alone, "activations computed again");
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

#[test]
fn mixed_precision_has_the_same_bits_at_any_world_size() {
    check_same_bits("resnet8", &IMAGE, |plan| plan.precision = Precision::Bf16);
    check_same_bits("mlp", &[10], |plan| {
        plan.precision = Precision::Fp16;
        plan.scaler = Some(SCALER);
    });
}

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
    small.model.kind.set("dropout", 0.0);
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
    let (small, large) = (losses(&small).remove(0), losses(&large).remove(0));
    assert_eq!((small.len(), large.len()), (6, 6));
    for (a, b) in small.iter().zip(&large) {
        assert!((a - b).abs() < 1e-5, "{a} and {b}");
    }
}
