//! bf16 on the CPU against PyTorch's autocast (`golden/bf16.py`) and against fp32, with the
//! instructions that this processor has for it.

use std::sync::Arc;

use crate::golden::{Collected, fill, filled, model_plan, near, with};
use crate::steps::Steps;
use candle_core::{Device, Tensor};
use ddprun::model::{Model, Models};
use ddprun::nn::{ForwardContext, Params};
use ddprun::ops::{self, GradientSink};
use ddprun::optim::AdamW;
use ddprun::plan::{ModelPlan, Precision};
use ddprun::rng::{Key, Purpose};
use serde_json::{Value, json};

fn gpt() -> ModelPlan {
    let sizes = json!({ "n_layers": 2, "n_heads": 2, "d_model": 32, "bias": true });
    with(model_plan("gpt", 65, &[16], vec![16]), &sizes)
}

fn mlp() -> ModelPlan {
    with(model_plan("mlp", 6, &[3, 4, 5], vec![]), &json!({ "hidden": [64, 64] }))
}

fn whole(name: &str, n: usize, below: f64) -> Vec<u32> {
    fill(name, n).into_iter().map(|u| (f64::midpoint(u, 1.0) * below) as u32).collect()
}

/// Inputs and labels of a step.
type Batch = fn(usize) -> (Tensor, Tensor);

fn tokens(step: usize) -> (Tensor, Tensor) {
    let ids = whole(&format!("step{step}.ids"), 4 * 17, 65.0);
    let ids = Tensor::from_vec(ids, (4, 17), &Device::Cpu).unwrap();
    let [seen, next] = [0, 1].map(|first| ids.narrow(1, first, 16).unwrap().contiguous().unwrap());
    (seen, next.flatten_all().unwrap())
}

fn images(step: usize) -> (Tensor, Tensor) {
    let x = fill(&format!("step{step}.x"), 32 * 60).into_iter().map(|u| u as f32).collect();
    let x = Tensor::from_vec::<_, f32>(x, (32, 3, 4, 5), &Device::Cpu).unwrap();
    (x, Tensor::from_vec(whole(&format!("step{step}.y"), 32, 6.0), 32, &Device::Cpu).unwrap())
}

/// Losses and lengths of the gradients before clipping, of `n` steps.
fn trajectory(
    model: &dyn Model,
    params: &Params,
    precision: Precision,
    batch: impl Fn(usize) -> (Tensor, Tensor),
    n: usize,
) -> [Vec<f64>; 2] {
    let adamw = AdamW { betas: [0.9, 0.99], ..AdamW::default() };
    let mut steps = Steps::new(params, adamw, 1e-3, (0.1, 1.0));
    let mut found = [vec![], vec![]];
    for step in 0..n {
        let (x, y) = batch(step);
        let collected = Arc::new(Collected::default());
        let sink: Arc<dyn GradientSink> = collected.clone();
        params.begin_pass(Some(&sink));
        let key = Key::new(1, Purpose::Dropout, 0, 0);
        let logits = model.forward(&x, &ForwardContext::train(key, precision)).unwrap();
        let logits = if logits.rank() > 2 { logits.flatten_to(1).unwrap() } else { logits };
        let loss = ops::cross_entropy(&logits, &y, 0.0).unwrap();
        loss.backward().unwrap();
        params.end_pass();
        found[0].push(f64::from(loss.to_scalar::<f32>().unwrap()));
        found[1].push(steps.step(params, &collected.by_index()));
    }
    found
}

fn numbers(values: &Value) -> Vec<f64> {
    values.as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
}

fn farthest(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

/// Two trajectories whose roundings fall otherwise are each as far from that in f64: at most twice
/// PyTorch's distance lies between them.
#[test]
fn twenty_steps_of_bf16_are_as_close_to_pytorchs_as_its_roundings_are_to_f64() {
    let golden: Value = serde_json::from_str(include_str!("../golden/bf16.json")).unwrap();
    let cases: [(&str, ModelPlan, Batch); 2] = [("gpt", gpt(), tokens), ("mlp", mlp(), images)];
    for (name, plan, batch) in cases {
        let (model, params) = filled(&plan);
        let found = trajectory(&*model, &params, Precision::Bf16, batch, 20);
        for (key, found) in ["losses", "norms"].into_iter().zip(found) {
            let [peer, exact] = ["bf16", "f64"].map(|of| numbers(&golden[name][of][key]));
            let allowed = 2.0 * farthest(&peer, &exact);
            println!("{name} {key}: {:.1e} of {allowed:.1e}", farthest(&found, &peer));
            for (step, (found, peer)) in found.iter().zip(&peer).enumerate() {
                near(&format!("{name}: {key} of step {step}"), *found, *peer, allowed);
            }
            assert!(farthest(&found, &exact) > 0.05 * allowed, "{name}: {key} are those of f64");
        }
    }
}

#[test]
fn fp32_and_bf16_end_within_each_others_spread_over_three_seeds() {
    // Eight batches again and again, so that there is something to learn.
    let ends = |precision: Precision| {
        let end = |seed| {
            let (model, params) = Models::default().instantiate(&gpt(), seed).unwrap();
            let batch = |step: usize| tokens(step % 8);
            let [losses, _] = trajectory(&*model, &params, precision, batch, 160);
            losses[152..].iter().sum::<f64>() / 8.0
        };
        [1, 2, 3].map(end)
    };
    let (full, half) = (ends(Precision::Fp32), ends(Precision::Bf16));
    let low = |ends: &[f64]| ends.iter().copied().fold(f64::INFINITY, f64::min);
    let high = |ends: &[f64]| ends.iter().copied().fold(0.0, f64::max);
    println!("fp32 {full:?}, bf16 {half:?}");
    assert!(high(&full) < 4.0, "it has learnt: {full:?}");
    assert!(low(&half) <= high(&full) && low(&full) <= high(&half), "{full:?} and {half:?}");
}
