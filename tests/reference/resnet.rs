//! Residual networks against PyTorch (f64, `golden/resnet.py`): counts, keys, outputs, losses,
//! gradients, running statistics, trajectories. Weights and inputs are functions of their names, so
//! that no weight file is needed; the numbers in `golden/resnet.json` come from torchvision's
//! models under the same fill.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::golden::{
    Collected, check_sum, fill, filled, flat, model_plan, near, near_summary, number, weight, with,
};
use candle_core::{Device, Result, Tensor};
use ddprun::model::{BackboneMode, Model, Models};
use ddprun::nn::state_dict::{self, Strict, load_state_dict, save_state_dict};
use ddprun::nn::{ForwardContext, Params};
use ddprun::ops::{self, GradientSink};
use ddprun::plan::{Convolutions, ModelPlan, Precision};
use ddprun::rng::{Key, Purpose};
use serde_json::{Value, json};

fn golden() -> Value {
    serde_json::from_str(include_str!("../golden/resnet.json")).unwrap()
}

fn plan(name: &str, outputs: usize) -> ModelPlan {
    model_plan(name, outputs, &[3, 64, 64], vec![])
}

/// A ResNet-18 with a hidden layer in its head, which another module holds as `resnet18`.
fn animals90(outputs: usize) -> ModelPlan {
    with(plan("resnet18", outputs), &json!({ "head": "hidden", "prefix": "resnet18" }))
}

/// Values in [-1, 1) that depend on the name alone, in f32.
fn input(name: &str, dims: &[usize]) -> Tensor {
    let values: Vec<f32> =
        fill(name, dims.iter().product()).into_iter().map(|u| u as f32).collect();
    Tensor::from_vec(values, dims, &Device::Cpu).unwrap()
}

fn labels(name: &str, n: usize, classes: usize) -> Tensor {
    let label = |u: f64| (f64::midpoint(u, 1.0) * classes as f64) as u32;
    Tensor::from_iter(fill(name, n).into_iter().map(label), &Device::Cpu).unwrap()
}

/// Parameters in the order of their gradients.
fn order(collected: &Collected) -> Vec<usize> {
    collected.all().into_iter().map(|(index, _)| index).collect()
}

fn training() -> ForwardContext {
    ForwardContext::train(Key::new(1, Purpose::Dropout, 0, 0), Precision::Fp32).direct()
}

/// One pass of training; the loss and the gradients.
fn pass(
    model: &dyn Model,
    params: &Params,
    x: &Tensor,
    y: &Tensor,
) -> (f64, Arc<Collected>, Tensor) {
    let collected = Arc::new(Collected::default());
    let sink: Arc<dyn GradientSink> = collected.clone();
    params.begin_pass(Some(&sink));
    let logits = model.forward(x, &training()).unwrap();
    let loss = ops::cross_entropy(&logits, y, 0.0).unwrap();
    loss.backward().unwrap();
    params.end_pass();
    (f64::from(loss.to_scalar::<f32>().unwrap()), collected, logits.detach())
}

/// How far f32 may be from the f64 of the golden numbers in a pass of training.
struct Tolerance {
    /// Of the loss.
    loss: f64,
    /// Of a gradient, relative to its length.
    gradient: f64,
}

/// Rounding, and no rectifier that opens where f64 keeps it shut.
const ROUNDING: Tolerance = Tolerance { loss: 1e-5, gradient: 1e-3 };
/// ResNet-50 normalises over 16 values in its last stage: even with products summed in f64 its
/// gradients are
/// 1.4e-3 from the golden ones, and one open rectifier more or less moves them by a percent.
const FEW_VALUES: Tolerance = Tolerance { loss: 5e-5, gradient: 3e-2 };

fn check_parity(plan: &ModelPlan, key: &str, tolerance: &Tolerance) {
    let classes = plan.outputs;
    let golden = &golden()[key];
    let (model, params) = filled(plan);
    let (x, y) = (input("input.x", &[4, 3, 64, 64]), labels("input.y", 4, classes));
    assert_eq!(serde_json::json!(y.to_vec1::<u32>().unwrap()), golden["labels"]);

    let logits = model.forward(&x, &ForwardContext::eval(Precision::Fp32).direct()).unwrap();
    near_summary("eval logits", &logits, &golden["eval_logits"]);
    let scores = ops::score_classes(&logits, &y, 0.0).unwrap();
    near("eval loss", scores.loss_sum / 4.0, number(golden, "eval_loss"), 1e-5);

    let (loss, collected, logits) = pass(&*model, &params, &x, &y);
    near_summary("train logits", &logits, &golden["train_logits"]);
    near("train loss", loss, number(golden, "train_loss"), tolerance.loss);
    let smoothed = ops::cross_entropy(&logits, &y, 0.1).unwrap().to_scalar::<f32>().unwrap();
    let expected = number(golden, "train_loss_label_smoothing_0.1");
    near("label smoothing", f64::from(smoothed), expected, tolerance.loss);

    let gradients = collected.by_index();
    assert_eq!(gradients.len(), params.parameters().len(), "every parameter has a gradient");
    for (name, expected) in golden["grads"].as_object().unwrap() {
        let index = params.parameters().iter().position(|p| p.name() == name).unwrap();
        let gradient = &gradients[&index];
        let l2 = gradient.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt();
        let allowed = tolerance.gradient * number(expected, "l2");
        near(name, l2, number(expected, "l2"), allowed);
        near(name, check_sum(gradient), number(expected, "check"), allowed);
    }
    for (name, expected) in golden["after_one_train_forward"].as_object().unwrap() {
        let buffer = params.buffers().iter().find(|b| b.name() == name).unwrap();
        near_summary(name, buffer.var().unwrap(), expected);
    }
    assert!(params.counters().iter().all(|counter| counter.get() == 1));
}

#[test]
fn the_fill_is_that_of_the_golden_numbers() {
    let expected = [-0.672_754_764_556_884_8, -0.426_031_947_135_925_3, -0.981_927_514_076_232_9];
    assert_eq!(fill("abc", 3), expected);
}

#[test]
fn resnet18_equals_pytorch() {
    check_parity(&plan("resnet18", 10), "resnet18_64px_n4_c10", &ROUNDING);
}

/// The golden numbers above are met with plain sums, since one open rectifier more or less moves a
/// gradient by a percent.
#[test]
fn fast_convolutions_stay_close_to_pytorch() {
    let golden = &golden()["resnet18_64px_n4_c10"];
    let (model, _params) = filled(&plan("resnet18", 10));
    let x = input("input.x", &[4, 3, 64, 64]);
    let logits = |pass: ForwardContext| flat(&model.forward(&x, &pass).unwrap());
    let (fast, direct) =
        (ForwardContext::eval(Precision::Fp32), ForwardContext::eval(Precision::Fp32).direct());
    let (fast, direct) = (logits(fast), logits(direct));
    assert_ne!(fast, direct);
    let rms = number(&golden["eval_logits"], "rms");
    for (fast, direct) in fast.iter().zip(&direct) {
        near("eval logits", f64::from(*fast), f64::from(*direct), 1e-4 * rms);
    }
    let train = ForwardContext { convolutions: Convolutions::Fast, ..training() };
    let logits = model.forward(&x, &train).unwrap();
    let loss = ops::cross_entropy(&logits, &labels("input.y", 4, 10), 0.0).unwrap();
    let loss = f64::from(loss.to_scalar::<f32>().unwrap());
    near("train loss", loss, number(golden, "train_loss"), 1e-4);
}

#[test]
fn resnet50_equals_pytorch() {
    check_parity(&plan("resnet50", 10), "resnet50_64px_n4_c10", &FEW_VALUES);
}

#[test]
fn a_hidden_head_under_a_prefix_equals_pytorch() {
    check_parity(&animals90(90), "resnet18animals90_64px_n4", &ROUNDING);
}

#[test]
fn counts_are_torchvisions() {
    let golden = golden();
    let registry = Models::default();
    for (key, plan) in [
        ("resnet18_1000", plan("resnet18", 1000)),
        ("resnet18_90", plan("resnet18", 90)),
        ("resnet18_10", plan("resnet18", 10)),
        ("resnet34_1000", plan("resnet34", 1000)),
        ("resnet50_1000", plan("resnet50", 1000)),
        ("resnet50_90", plan("resnet50", 90)),
        ("resnet18animals90", animals90(90)),
    ] {
        let facts = registry.describe(&plan).unwrap();
        let count = |tensors: &[(String, Vec<usize>)]| -> usize {
            tensors.iter().map(|(_, shape)| shape.iter().product::<usize>()).sum()
        };
        assert_eq!(golden["param_counts"][key], count(&facts.parameters), "{key}");
        assert_eq!(golden["buffer_elems"][key], count(&facts.buffers), "{key}");
        // One counter per norm, that is one per two buffers.
        let keys = facts.parameters.len() + facts.buffers.len() / 2 * 3;
        assert_eq!(golden["n_state_keys"][key], keys, "{key}");
    }
}

#[test]
fn keys_and_shapes_are_torchvisions_and_in_its_order() {
    let golden = golden();
    let expected = |key: &str, buffers: bool| -> Vec<(String, Vec<usize>)> {
        let list: Vec<(String, Vec<usize>)> = serde_json::from_value(golden[key].clone()).unwrap();
        let is_buffer = |name: &str| name.contains("running_");
        list.into_iter()
            .filter(|(name, _)| {
                !name.ends_with("num_batches_tracked") && is_buffer(name) == buffers
            })
            .collect()
    };
    let registry = Models::default();
    let facts = registry.describe(&plan("resnet18", 1000)).unwrap();
    assert_eq!(facts.parameters, expected("keys_resnet18", false));
    assert_eq!(facts.buffers, expected("keys_resnet18", true));
    let mut facts = registry.describe(&plan("resnet50", 1000)).unwrap();
    facts.parameters.retain(|(name, _)| name.starts_with("layer1."));
    facts.buffers.retain(|(name, _)| name.starts_with("layer1."));
    assert_eq!(facts.parameters, expected("keys_resnet50_layer1", false));
    assert_eq!(facts.buffers, expected("keys_resnet50_layer1", true));
    let animals = registry.describe(&animals90(90)).unwrap().parameters;
    let tail: Vec<_> = animals.iter().rev().take(4).rev().map(|(name, _)| name.as_str()).collect();
    let expected = ["1.weight", "1.bias", "4.weight", "4.bias"].map(|k| format!("resnet18.fc.{k}"));
    assert_eq!(tail, expected);
}

/// Trains for four steps; `update(step, gradient, weight, state)`.
fn check_trajectory(key: &str, update: impl Fn(i32, f32, &mut f32, &mut [f32; 2])) {
    let (model, params) = filled(&plan("resnet18", 10));
    let mut state: Vec<Vec<[f32; 2]>> =
        params.parameters().iter().map(|p| vec![[0.0; 2]; p.elem_count()]).collect();
    let golden = golden();
    let losses = golden["traj_resnet18_c10_64px_b8"][key].as_array().unwrap();
    for (step, expected) in losses.iter().take(4).enumerate() {
        let x = input(&format!("step{step}.x"), &[8, 3, 64, 64]);
        let y = labels(&format!("step{step}.y"), 8, 10);
        let (loss, collected, _) = pass(&*model, &params, &x, &y);
        near(&format!("{key} step {step}"), loss, expected.as_f64().unwrap(), 1e-3);
        for (index, gradient) in collected.by_index() {
            let var = params.parameters()[index].var().unwrap();
            let mut weight = flat(var);
            for (i, g) in gradient.into_iter().enumerate() {
                update(step as i32 + 1, g, &mut weight[i], &mut state[index][i]);
            }
            var.set(&Tensor::from_vec(weight, var.shape(), &Device::Cpu).unwrap()).unwrap();
        }
    }
}

#[test]
fn four_steps_of_sgd_follow_pytorch() {
    check_trajectory("sgd_lr0.002_m0.9_wd1e-4", |step, g, w, [momentum, _]| {
        let g = g + 1e-4 * *w;
        *momentum = if step == 1 { g } else { 0.9 * *momentum + g };
        *w -= 0.002 * *momentum;
    });
}

#[test]
fn four_steps_of_adam_follow_pytorch() {
    check_trajectory("adam_lr1e-4_wd1e-4(L2)", |step, g, w, [m, v]| {
        let g = g + 1e-4 * *w;
        *m = 0.9 * *m + 0.1 * g;
        *v = 0.999 * *v + 0.001 * g * g;
        let corrected = *v / (1.0 - 0.999f32.powi(step));
        *w -= 1e-4 * *m / (1.0 - 0.9f32.powi(step)) / (corrected.sqrt() + 1e-8);
    });
}

#[test]
fn gradients_leave_backward_last_block_first() {
    for plan in [plan("resnet18", 10), plan("resnet8", 10), animals90(10)] {
        let (model, params) = filled(&plan);
        let (x, y) = (input("input.x", &[2, 3, 64, 64]), labels("input.y", 2, 10));
        let (_, collected, _) = pass(&*model, &params, &x, &y);
        // `layer3.1.bn2.weight` -> `layer3.1`: within a block the shortcut's come last.
        let block = |index: usize| {
            let name = params.parameters()[index].name();
            name.splitn(3, '.').take(2).collect::<Vec<_>>().join(".")
        };
        let mut left: Vec<String> = order(&collected).into_iter().map(block).collect();
        let mut registered: Vec<String> = (0..params.parameters().len()).map(block).collect();
        registered.reverse();
        for blocks in [&mut left, &mut registered] {
            blocks.retain(|block| block.starts_with("layer"));
            blocks.dedup();
        }
        assert_eq!(left, registered, "{:?}", plan.kind);
    }
}

#[test]
fn a_gradient_is_handed_over_while_backward_still_runs() {
    /// Refuses the gradient of one parameter, so that backward ends there.
    struct Refuses(usize, Mutex<Vec<usize>>);
    impl GradientSink for Refuses {
        fn add(&self, _: usize, _: &[f32]) -> Result<()> {
            Ok(())
        }

        fn complete(&self, index: usize) -> Result<()> {
            self.1.lock().unwrap().push(index);
            if index == self.0 {
                candle_core::bail!("refused")
            }
            Ok(())
        }
    }
    let (model, params) = filled(&plan("resnet8", 10));
    let index = |name: &str| params.parameters().iter().position(|p| p.name() == name).unwrap();
    let first = ["fc.bias", "fc.weight", "layer3.0.bn2.bias", "layer3.0.bn2.weight"].map(index);
    let refuses = Arc::new(Refuses(first[3], Mutex::default()));
    let sink: Arc<dyn GradientSink> = refuses.clone();
    params.begin_pass(Some(&sink));
    let logits = model.forward(&input("input.x", &[2, 3, 64, 64]), &training()).unwrap();
    assert!(logits.sum_all().unwrap().backward().is_err());
    assert_eq!(*refuses.1.lock().unwrap(), first);
}

#[test]
fn without_norms_the_gradient_of_a_batch_is_the_mean_of_its_halves() {
    let plan = with(plan("mlp", 6), &json!({ "hidden": [13, 7] }));
    let plan = ModelPlan { input: vec![3, 4, 5], ..plan };
    let (model, params) = filled(&plan);
    let (x, y) = (input("input.x", &[10, 3, 4, 5]), labels("input.y", 10, 6));
    let gradients = |start: usize, n: usize| {
        let (x, y) = (x.narrow(0, start, n).unwrap(), y.narrow(0, start, n).unwrap());
        pass(&*model, &params, &x, &y).1.by_index()
    };
    let (whole, first, second) = (gradients(0, 10), gradients(0, 5), gradients(5, 5));
    for (index, gradient) in whole {
        for (i, g) in gradient.into_iter().enumerate() {
            let mean = f64::midpoint(f64::from(first[&index][i]), f64::from(second[&index][i]));
            near("gradient", f64::from(g), mean, 1e-6);
        }
    }
}

#[test]
fn a_frozen_backbone_trains_the_head_only_and_is_saved_with_it() {
    let plan = with(plan("resnet18", 10), &json!({ "freeze_backbone": true }));
    let (model, params) = filled(&plan);
    let names: Vec<&str> = params.parameters().iter().map(ddprun::nn::Param::name).collect();
    assert_eq!(names, ["fc.weight", "fc.bias"]);
    let (x, y) = (input("input.x", &[4, 3, 64, 64]), labels("input.y", 4, 10));
    let (loss, collected, _) = pass(&*model, &params, &x, &y);
    near("loss", loss, number(&golden()["resnet18_64px_n4_c10"], "train_loss"), 1e-5);
    assert_eq!(order(&collected), [1, 0]);
    let bytes = save_state_dict(&params).unwrap();
    assert_eq!(safetensors::SafeTensors::deserialize(&bytes).unwrap().len(), 122);
}

#[test]
fn a_frozen_backbone_tracks_statistics_unless_it_is_in_eval_mode() {
    for in_eval in [false, true] {
        let mode = if in_eval { BackboneMode::Eval } else { BackboneMode::Train };
        let options = json!({ "freeze_backbone": true, "backbone_mode": mode });
        let frozen = with(plan("resnet18", 10), &options);
        let (model, params) = filled(&frozen);
        let statistics = || -> Vec<Vec<f32>> {
            let buffers = params.buffers().iter().filter(|buffer| !buffer.is_frozen());
            buffers.map(|buffer| buffer.var().unwrap().to_vec1().unwrap()).collect()
        };
        let (x, eval) =
            (input("input.x", &[4, 3, 64, 64]), ForwardContext::eval(Precision::Fp32).direct());
        let (before, evaluated) = (statistics(), flat(&model.forward(&x, &eval).unwrap()));
        let trained = flat(&model.forward(&x, &training()).unwrap());
        assert_eq!(statistics() == before, in_eval);
        assert_eq!(trained == evaluated, in_eval);
        assert_eq!(params.counters()[0].get(), i64::from(!in_eval));
        // The head learns in both modes.
        let (_, collected, _) = pass(&*model, &params, &x, &labels("input.y", 4, 10));
        assert_eq!(order(&collected), [1, 0]);
    }
}

#[test]
fn bf16_stays_within_two_percent_and_fp16_as_well() {
    let (model, _params) = filled(&plan("resnet18", 10));
    let x = input("input.x", &[4, 3, 64, 64]);
    let logits = |precision| flat(&model.forward(&x, &ForwardContext::eval(precision)).unwrap());
    let exact = logits(Precision::Fp32);
    let rms = (exact.iter().map(|v| v * v).sum::<f32>() / exact.len() as f32).sqrt();
    for precision in [Precision::Bf16, Precision::Fp16] {
        let rounded = logits(precision);
        assert_ne!(rounded, exact);
        assert!(
            rounded.iter().zip(&exact).all(|(a, b)| (a - b).abs() < 5e-2 * rms),
            "{precision:?}"
        );
    }
}

#[test]
fn a_saved_model_has_pytorchs_keys_and_loads_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let (_, params) = filled(&plan("resnet18", 1000));
    params.counters()[3].set(7);
    let bytes = save_state_dict(&params).unwrap();
    assert_eq!(bytes, save_state_dict(&params).unwrap(), "equal values give equal bytes");
    std::fs::File::create(&path)
        .and_then(|mut f| std::io::Write::write_all(&mut f, &bytes))
        .unwrap();

    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let golden = golden();
    let expected: BTreeMap<String, Vec<usize>> =
        serde_json::from_value::<Vec<(String, Vec<usize>)>>(golden["keys_resnet18"].clone())
            .unwrap()
            .into_iter()
            .collect();
    let found: BTreeMap<String, Vec<usize>> =
        file.iter().map(|(key, view)| (key.to_owned(), view.shape().to_vec())).collect();
    assert_eq!(found, expected);

    let (_, other) = Models::default().instantiate(&plan("resnet18", 1000), 9).unwrap();
    let report = load_state_dict(&other, &path, Strict::All).unwrap();
    assert_eq!((report.loaded, report.kept.len(), report.ignored.len()), (102, 0, 0));
    assert_eq!(save_state_dict(&other).unwrap(), bytes);
}

#[test]
fn torchvision_weights_load_under_a_new_head_and_a_prefix() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("resnet18.safetensors");
    let bytes = save_state_dict(&filled(&plan("resnet18", 1000)).1).unwrap();
    std::fs::File::create(&path)
        .and_then(|mut f| std::io::Write::write_all(&mut f, &bytes))
        .unwrap();
    let registry = Models::default();

    let plan = ModelPlan { pretrained: Some(path), except_head: true, ..animals90(90) };
    let (_, params) = registry.instantiate(&plan, 1).unwrap();
    let report = registry.load_pretrained(&plan, &params).unwrap().unwrap();
    assert_eq!((report.loaded, report.kept.len()), (100, 4));
    assert_eq!(report.ignored, ["resnet18.fc.bias", "resnet18.fc.weight"]);
    let conv1 = flat(params.parameters()[0].var().unwrap());
    assert_eq!(conv1, weight("conv1.weight", &[64, 3, 7, 7]));

    let strict = ModelPlan { except_head: false, kind: self::plan("resnet18", 90).kind, ..plan };
    let (_, params) = registry.instantiate(&strict, 1).unwrap();
    let error = registry.load_pretrained(&strict, &params).unwrap_err();
    let state_dict::Error::Mismatch { mismatched, missing, unexpected, .. } = error else {
        unreachable!("shapes differ")
    };
    let expected = [
        ("fc.weight".to_owned(), vec![90, 512], vec![1000, 512]),
        ("fc.bias".to_owned(), vec![90], vec![1000]),
    ];
    assert_eq!(mismatched, expected);
    assert!(missing.is_empty() && unexpected.is_empty());
}
