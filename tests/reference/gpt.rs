//! GPT against nanoGPT in PyTorch (f64, `golden/gpt.py`): counts, keys, logits, loss, gradients, 20
//! steps of AdamW, tied weights. Weights and tokens are functions of their names; the numbers are
//! in `golden/gpt.json`.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::golden::{
    Collected, check_sum, fill, filled, flat, model_plan, near, near_summary, number, with,
};
use crate::steps::{Gradients, Steps};
use candle_core::{Device, Tensor};
use ddprun::model::{Model, Models};
use ddprun::nn::state_dict::{Strict, load_state_dict, save_state_dict};
use ddprun::nn::{ForwardContext, Params};
use ddprun::ops::{self, GradientSink};
use ddprun::optim::AdamW;
use ddprun::plan::{ModelPlan, Precision};
use ddprun::rng::{Key, Purpose};
use serde_json::{Value, json};

fn golden() -> Value {
    serde_json::from_str(include_str!("../golden/gpt.json")).unwrap()
}

/// Vocabulary, length, layers, heads, width.
fn plan([vocabulary, length, n_layers, n_heads, d_model]: [usize; 5], bias: bool) -> ModelPlan {
    let sizes =
        json!({ "n_layers": n_layers, "n_heads": n_heads, "d_model": d_model, "bias": bias });
    with(model_plan("gpt", vocabulary, &[length], vec![length]), &sizes)
}

const TINY: [usize; 5] = [65, 16, 2, 2, 32];

/// Tokens and those that follow them, (n, 16) each.
fn tokens(name: &str, n: usize) -> (Tensor, Tensor) {
    let token = |u: f64| (f64::midpoint(u, 1.0) * 65.0) as u32;
    let ids: Vec<u32> = fill(name, n * 17).into_iter().map(token).collect();
    let ids = Tensor::from_vec(ids, (n, 17), &Device::Cpu).unwrap();
    let [seen, next] = [0, 1].map(|first| ids.narrow(1, first, 16).unwrap().contiguous().unwrap());
    (seen, next)
}

fn pass(model: &dyn Model, params: &Params, x: &Tensor, y: &Tensor) -> (Tensor, f64, Gradients) {
    let collected = Arc::new(Collected::default());
    let sink: Arc<dyn GradientSink> = collected.clone();
    params.begin_pass(Some(&sink));
    let key = Key::new(1, Purpose::Dropout, 0, 0);
    let logits = model.forward(x, &ForwardContext::train(key, Precision::Fp32)).unwrap();
    let rows = logits.flatten_to(1).unwrap();
    let loss = ops::cross_entropy(&rows, &y.flatten_all().unwrap(), 0.0).unwrap();
    loss.backward().unwrap();
    params.end_pass();
    (logits.detach(), f64::from(loss.to_scalar::<f32>().unwrap()), collected.by_index())
}

#[test]
fn gpt_equals_nanogpt() {
    let golden = &golden()["tiny"];
    let (model, params) = filled(&plan(TINY, true));
    let (x, y) = tokens("input.ids", 3);
    let (logits, loss, gradients) = pass(&*model, &params, &x, &y);
    near_summary("logits", &logits, &golden["logits"]);
    near("loss", loss, number(golden, "loss"), 1e-5);
    let expected = golden["grads"].as_object().unwrap();
    assert_eq!((gradients.len(), expected.len()), (28, 28));
    for (index, gradient) in gradients {
        let name = params.parameters()[index].name();
        let l2 = gradient.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt();
        let allowed = (1e-3 * number(&expected[name], "l2")).max(1e-6);
        near(name, l2, number(&expected[name], "l2"), allowed);
        near(name, check_sum(&gradient), number(&expected[name], "check"), allowed);
    }
}

#[test]
fn twenty_steps_of_gpt_equal_nanogpt() {
    let golden = golden();
    let (model, params) = filled(&plan(TINY, true));
    let adamw = AdamW { betas: [0.9, 0.99], ..AdamW::default() };
    let mut steps = Steps::new(&params, adamw, 1e-3, (0.1, 1.0));
    let losses = golden["tiny"]["adamw_losses_20"].as_array().unwrap();
    let norms = golden["tiny"]["grad_norm_before_clip"].as_array().unwrap();
    assert_eq!((losses.len(), norms.len()), (20, 20));
    for (step, (expected, norm)) in losses.iter().zip(norms).enumerate() {
        let (x, y) = tokens(&format!("step{step}.ids"), 4);
        let (_, loss, gradients) = pass(&*model, &params, &x, &y);
        near(&format!("loss of step {step}"), loss, expected.as_f64().unwrap(), 1e-5);
        let found = steps.step(&params, &gradients);
        near(&format!("norm of step {step}"), found, norm.as_f64().unwrap(), 1e-4);
    }
}

#[test]
fn counts_and_keys_are_nanogpts() {
    let golden = golden();
    let counts = &golden["param_counts_total_tied"];
    let registry = Models::default();
    for (key, sizes, bias) in [
        ("tiny_test_v65_b16_l2_h2_d32", TINY, true),
        ("cpu_shakespeare_l4_h4_d128_b64", [65, 64, 4, 4, 128], false),
        ("shakespeare_char_l6_h6_d384_b256_biasFalse", [65, 256, 6, 6, 384], false),
        ("gpt2_124M_v50257", [50_257, 1024, 12, 12, 768], true),
        ("gpt2_v50304_biasFalse", [50_304, 1024, 12, 12, 768], false),
    ] {
        let facts = registry.describe(&plan(sizes, bias)).unwrap();
        assert_eq!(counts[key]["total"], facts.lengths().sum::<usize>(), "{key}");
    }
    let mut keys: Vec<(String, Vec<usize>)> =
        serde_json::from_value(golden["keys_tiny"].clone()).unwrap();
    assert_eq!(keys.pop().unwrap().0, "lm_head.weight");
    assert_eq!(registry.describe(&plan(TINY, true)).unwrap().parameters, keys);
}

fn write(folder: &Path, tensors: &BTreeMap<String, Tensor>) -> PathBuf {
    let path = folder.join("model.safetensors");
    let bytes = safetensors::serialize(tensors, None).unwrap();
    std::fs::File::create(&path).unwrap().write_all(&bytes).unwrap();
    path
}

#[test]
fn tied_weights_are_saved_under_both_names_and_loaded_from_either() {
    let folder = tempfile::tempdir().unwrap();
    let (_, params) = filled(&plan(TINY, true));
    let bytes = save_state_dict(&params).unwrap();
    let saved = candle_core::safetensors::load_buffer(&bytes, &Device::Cpu).unwrap();
    let saved: BTreeMap<String, Tensor> = saved.into_iter().collect();
    assert_eq!(saved.len(), 29);
    let (tied, table) = (&saved["lm_head.weight"], &saved["transformer.wte.weight"]);
    assert_eq!(flat(tied), flat(table));
    for gone in ["lm_head.weight", "transformer.wte.weight", "neither"] {
        let mut file = saved.clone();
        file.remove(gone);
        let (_, other) = Models::default().instantiate(&plan(TINY, true), 3).unwrap();
        let path = write(folder.path(), &file);
        assert_eq!(load_state_dict(&other, &path, Strict::All).unwrap().loaded, 28);
        assert_eq!(save_state_dict(&other).unwrap(), bytes);
    }
    let mut untied = saved.clone();
    untied.insert("lm_head.weight".to_owned(), (tied.clone() * 2.0).unwrap());
    let path = write(folder.path(), &untied);
    let error = load_state_dict(&params, &path, Strict::All).unwrap_err().to_string();
    assert!(error.contains("lm_head.weight"), "{error}");
}
