//! Llama against `HuggingFace`'s in PyTorch (f64, `golden/llama.py`): counts, keys, logits, loss
//! with ignored labels, gradients; and its adapters against PEFT's. Weights and tokens are
//! functions of their names; the numbers are in `golden/llama.json`.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;

use crate::golden::{
    Collected, check_sum, filled, flat, model_plan, near, near_summary, number, with,
};
use candle_core::{DType, Device, Tensor};
use ddprun::internals::checkpoint;
use ddprun::model::{Lora, Model, Models};
use ddprun::nn::state_dict::{
    Strict, load_adapters, load_state_dict, load_state_dict_bytes, save_state_dict,
};
use ddprun::nn::{ForwardContext, LoraConfig, Params, Targets};
use ddprun::ops::{self, GradientSink, IGNORED_LABEL};
use ddprun::plan::{ModelPlan, Precision};
use ddprun::rng::{Key, Purpose};
use serde_json::{Value, json};

fn golden() -> Value {
    serde_json::from_str(include_str!("../golden/llama.json")).unwrap()
}

/// Vocabulary, width, heads, heads of keys, inner width, layers.
fn plan([vocabulary, d_model, n_heads, n_kv_heads, d_ff, n_layers]: [usize; 6]) -> ModelPlan {
    let sizes = json!({
        "d_model": d_model, "n_heads": n_heads, "n_kv_heads": n_kv_heads, "d_ff": d_ff, "n_layers": n_layers
    });
    with(model_plan("llama", vocabulary, &[12], vec![12]), &sizes)
}

const TINY: [usize; 6] = [64, 32, 4, 2, 88, 2];

/// Tokens (2, 12) and those that follow them, of which the first five do not count.
fn tokens() -> (Tensor, Tensor) {
    let ids: Vec<Vec<u32>> = serde_json::from_value(golden()["llama_tiny"]["ids"].clone()).unwrap();
    let seen: Vec<u32> = ids.iter().flat_map(|row| row[..12].to_vec()).collect();
    let label = |(i, &id): (usize, &u32)| if i < 5 { IGNORED_LABEL } else { i64::from(id) };
    let next: Vec<i64> =
        ids.iter().flat_map(|row| row[1..].iter().enumerate().map(label)).collect();
    let seen = Tensor::from_vec(seen, (2, 12), &Device::Cpu).unwrap();
    (seen, Tensor::from_vec(next, 24, &Device::Cpu).unwrap())
}

pub(crate) type Gradients = BTreeMap<String, Vec<f32>>;

fn pass(model: &dyn Model, params: &Params, activation_checkpointing: bool) -> (f64, Gradients) {
    gradients_of(model, params, &tokens(), activation_checkpointing)
}

/// Loss and gradients of tokens and labels.
pub(crate) fn gradients_of(
    model: &dyn Model,
    params: &Params,
    (x, y): &(Tensor, Tensor),
    activation_checkpointing: bool,
) -> (f64, Gradients) {
    let collected = Arc::new(Collected::default());
    let sink: Arc<dyn GradientSink> = collected.clone();
    params.begin_pass(Some(&sink));
    let key = Key::new(1, Purpose::Dropout, 0, 0);
    let pass =
        ForwardContext { activation_checkpointing, ..ForwardContext::train(key, Precision::Fp32) };
    let logits = model.forward(x, &pass).unwrap().flatten_to(1).unwrap();
    let loss = ops::cross_entropy(&logits, y, 0.0).unwrap();
    loss.backward().unwrap();
    params.end_pass();
    let named =
        |(index, gradient): (usize, _)| (params.parameters()[index].name().to_owned(), gradient);
    let gradients = collected.by_index().into_iter().map(named).collect();
    (f64::from(loss.to_scalar::<f32>().unwrap()), gradients)
}

#[track_caller]
fn near_gradient(name: &str, gradient: &[f32], expected: &Value) {
    let l2 = gradient.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt();
    let allowed = 1e-3 * number(expected, "l2");
    near(name, l2, number(expected, "l2"), allowed);
    near(name, check_sum(gradient), number(expected, "check"), allowed);
}

#[test]
fn llama_equals_huggingface() {
    let golden = &golden()["llama_tiny"];
    let (model, params) = filled(&plan(TINY));
    let logits = model.forward(&tokens().0, &ForwardContext::eval(Precision::Fp32)).unwrap();
    near_summary("logits", &logits, &golden["logits"]);
    let (loss, gradients) = pass(&*model, &params, false);
    near("loss", loss, number(golden, "masked_loss(first5 labels ignored)"), 1e-5);
    assert_eq!(gradients.len(), 21);
    let expected = golden["grads"].as_object().unwrap();
    assert_eq!(expected.len(), 6);
    for (name, expected) in expected {
        near_gradient(name, &gradients[name], expected);
    }
    assert_eq!(pass(&*model, &params, true), (loss, gradients), "blocks that are run again");
}

#[test]
fn tokens_are_not_seen_by_those_before_them() {
    let (model, _) = filled(&plan(TINY));
    let run = |x: &Tensor| flat(&model.forward(x, &ForwardContext::eval(Precision::Fp32)).unwrap());
    let whole = tokens().0.narrow(0, 0, 1).unwrap();
    let start = run(&whole.narrow(1, 0, 7).unwrap());
    for (a, b) in start.iter().zip(run(&whole)) {
        near("logits of the first seven", f64::from(*a), f64::from(b), 1e-5);
    }
}

/// Sizes of models that are known to the world.
const KNOWN: [(&str, [usize; 6]); 4] = [
    ("llama_tiny", TINY),
    ("TinyLlama-1.1B", [32_000, 2048, 32, 4, 5632, 22]),
    ("SmolLM2-135M(tied)", [49_152, 576, 9, 3, 1536, 30]),
    ("llama-7B", [32_000, 4096, 32, 32, 11_008, 32]),
];

#[test]
fn counts_and_keys_are_huggingfaces() {
    let golden = golden();
    let registry = Models::default();
    for (name, sizes) in KNOWN {
        for (key, tied) in [("untied", false), ("tied", true)] {
            let mut plan = plan(sizes);
            plan.kind.set("tie_word_embeddings", tied);
            let found = registry.describe(&plan).unwrap().lengths().sum::<usize>();
            assert_eq!(golden["counts"][name][key], found, "{name} {key}");
        }
    }
    let keys: Vec<(String, Vec<usize>)> =
        serde_json::from_value(golden["llama_tiny_keys"].clone()).unwrap();
    assert_eq!(registry.describe(&plan(TINY)).unwrap().parameters, keys);
}

#[test]
fn sizes_that_cannot_be_together_are_refused() {
    let refused = |sizes| Models::default().describe(&plan(sizes)).unwrap_err();
    let odd = refused([64, 30, 4, 2, 88, 2]);
    assert!(odd.contains("`d_model` = 30 cannot be divided into even `n_heads` = 4"), "{odd}");
    let shared = refused([64, 32, 4, 3, 88, 2]);
    assert!(shared.contains("`n_heads` = 4 cannot share `n_kv_heads` = 3"), "{shared}");
}

#[test]
fn weights_of_a_tied_half_precision_file_load_and_come_back() {
    let mut tied = plan(TINY);
    tied.kind.set("tie_word_embeddings", true);
    let (_, params) = filled(&tied);
    let bytes = save_state_dict(&params).unwrap();
    let saved = candle_core::safetensors::load_buffer(&bytes, &Device::Cpu).unwrap();
    assert_eq!(saved.len(), 21);
    assert_eq!(flat(&saved["lm_head.weight"]), flat(&saved["model.embed_tokens.weight"]));
    // As on the hub: bf16, the table once, and angles that old files hold.
    let half =
        |(name, tensor): (&String, &Tensor)| (name.clone(), tensor.to_dtype(DType::BF16).unwrap());
    let mut file: BTreeMap<String, Tensor> = saved.iter().map(half).collect();
    file.remove("lm_head.weight");
    let angles = Tensor::zeros(4, DType::F32, &Device::Cpu).unwrap();
    file.insert("model.layers.0.self_attn.rotary_emb.inv_freq".to_owned(), angles);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    safetensors::serialize_to_file(&file, None, &path).unwrap();
    let (_, other) = Models::default().instantiate(&tied, 3).unwrap();
    let report = load_state_dict(&other, &path, Strict::All).unwrap();
    assert_eq!((report.loaded, report.ignored.len()), (20, 1));
    for (ours, theirs) in other.parameters().iter().zip(params.parameters()) {
        let values = [ours, theirs].map(|param| flat(param.var().unwrap().as_tensor()));
        for (half, full) in values[0].iter().zip(&values[1]) {
            near(ours.name(), f64::from(*half), f64::from(*full), f64::from(full.abs()) / 250.0);
        }
    }
}

fn lora(r: usize, targets: &[&str]) -> LoraConfig {
    let targets = Targets::Names(targets.iter().map(|&target| target.to_owned()).collect());
    LoraConfig { r, alpha: 8.0, targets, ..LoraConfig::default() }
}

fn adapted(sizes: [usize; 6], r: usize, targets: &[&str]) -> ModelPlan {
    let lora = json!({ "r": r, "alpha": 8.0, "targets": targets });
    with(plan(sizes), &json!({ "lora": lora }))
}

/// Multiplies the values of all parameters whose names end so.
fn scale(params: &Params, end: &str, factor: f64) {
    for param in params.parameters().iter().filter(|param| param.name().ends_with(end)) {
        let var = param.var().unwrap();
        var.set(&(var.as_tensor() * factor).unwrap()).unwrap();
    }
}

#[test]
fn adapters_have_the_loss_and_the_gradients_of_peft() {
    let golden = &golden()["llama_tiny_lora_r4_a8_qv"];
    let (model, params) = filled(&adapted(TINY, 4, &["q_proj", "v_proj"]));
    assert_eq!(golden["trainable"], params.elem_count());
    scale(&params, "lora_B.weight", 0.1);
    let (loss, gradients) = pass(&*model, &params, false);
    near("loss", loss, number(golden, "loss"), 1e-5);
    assert_eq!(gradients.len(), 8, "of the adapters, and of nothing else");
    for (name, key) in [
        ("model.layers.0.self_attn.q_proj.lora_A.weight", "grad_l0_q_A"),
        ("model.layers.0.self_attn.q_proj.lora_B.weight", "grad_l0_q_B"),
        ("model.layers.1.self_attn.v_proj.lora_B.weight", "grad_l1_v_B"),
    ] {
        near_gradient(name, &gradients[name], &golden[key]);
    }
    assert_eq!(pass(&*model, &params, true), (loss, gradients), "blocks that are run again");
}

#[test]
fn adapters_that_add_nothing_leave_the_loss_to_the_bit() {
    let (base, base_params) = filled(&plan(TINY));
    let (model, params) = filled(&adapted(TINY, 4, &["q_proj", "k_proj", "o_proj", "down_proj"]));
    scale(&params, "lora_B.weight", 0.0);
    assert_eq!(pass(&*model, &params, false).0, pass(&*base, &base_params, false).0);
    let (_, fresh) = Models::default().instantiate(&adapted(TINY, 4, &["q_proj"]), 1).unwrap();
    let values = |i: usize| flat(fresh.parameters()[i].var().unwrap().as_tensor());
    assert!(values(0).iter().all(|a| *a != 0.0 && a.abs() <= 1.0 / 32f32.sqrt()));
    assert!(values(1).iter().all(|b| *b == 0.0));
}

#[test]
fn a_base_in_its_file_trains_adapters_to_the_bits_of_the_same_weights_in_f32() {
    let targets = ["q_proj", "v_proj", "down_proj"];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    for (dtype, tied) in [(DType::BF16, false), (DType::F16, true), (DType::F32, false)] {
        let with = |mut plan: ModelPlan| {
            plan.kind.set("tie_word_embeddings", tied);
            plan
        };
        let (_, base) = filled(&with(plan(TINY)));
        let saved = save_state_dict(&base).unwrap();
        let saved = candle_core::safetensors::load_buffer(&saved, &Device::Cpu).unwrap();
        let typed =
            |(name, tensor): (&String, &Tensor)| (name.clone(), tensor.to_dtype(dtype).unwrap());
        let file: BTreeMap<String, Tensor> = saved.iter().map(typed).collect();
        safetensors::serialize_to_file(&file, None, &path).unwrap();
        let adapted = with(adapted(TINY, 4, &targets));
        let (kept, kept_params) = filled(&adapted);
        let (wide, wide_params) = filled(&adapted);
        load_state_dict(&kept_params, &path, Strict::All).unwrap();
        let bytes = [(path.clone(), std::fs::read(&path).unwrap())];
        load_state_dict_bytes(&wide_params, &path, &bytes, Strict::All).unwrap();
        assert_eq!(kept_params.base().unwrap().tensors.len(), kept_params.buffers().len());
        assert!(wide_params.base().is_none());
        let stored = kept_params.buffers().iter().filter(|buffer| buffer.stored().is_some());
        let norms = kept_params.buffers().iter().filter(|buffer| buffer.shape().len() == 1);
        assert_eq!(stored.count() + norms.count(), kept_params.buffers().len());
        for again in [false, true] {
            let found = pass(&*kept, &kept_params, again);
            assert_eq!(found, pass(&*wide, &wide_params, again), "{dtype:?}");
        }
        assert!(save_state_dict(&kept_params).unwrap() == save_state_dict(&wide_params).unwrap());
    }
}

#[test]
fn counts_of_adapters_are_pefts() {
    let golden = golden();
    let attention = ["q_proj", "k_proj", "v_proj", "o_proj"];
    let all = [&attention[..], &["gate_proj", "up_proj", "down_proj"]].concat();
    for (name, sizes) in KNOWN {
        for (key, r, targets) in [
            ("lora_r8_2targets", 8, &["q_proj", "v_proj"][..]),
            ("lora_r8_4targets", 8, &attention),
            ("lora_r16_7targets", 16, &all),
        ] {
            let facts = Models::default().describe(&adapted(sizes, r, targets)).unwrap();
            assert_eq!(golden["counts"][name][key], facts.lengths().sum::<usize>(), "{name} {key}");
            assert_eq!(golden["counts"][name]["untied"], facts.buffer_elements(), "{name}");
        }
    }
}

#[test]
fn a_file_without_adapters_is_what_they_are_put_beside() {
    let (_, base) = filled(&plan(TINY));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    std::fs::File::create(&path)
        .and_then(|mut file| file.write_all(&save_state_dict(&base).unwrap()))
        .unwrap();
    let (_, params) = Models::default().instantiate(&adapted(TINY, 4, &["q_proj"]), 3).unwrap();
    let report = load_state_dict(&params, &path, Strict::All).unwrap();
    assert_eq!((report.loaded, report.kept.len()), (21, 4));
    for (frozen, param) in params.buffers().iter().zip(base.parameters()) {
        assert_eq!(frozen.name(), param.name());
        assert_eq!(flat(&frozen.detached().unwrap()), flat(param.var().unwrap()));
    }
}

#[test]
fn merged_weights_answer_as_the_adapters_and_peft_gets_its_names() {
    let targets = ["q_proj", "v_proj", "down_proj"];
    let plan_with = adapted(TINY, 4, &targets);
    let (model, params) = filled(&plan_with);
    let saved = save_state_dict(&params).unwrap();
    let merged = checkpoint::merged(&saved, &lora(4, &targets)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("merged.safetensors");
    std::fs::File::create(&path).and_then(|mut file| file.write_all(&merged)).unwrap();
    let (plain, plain_params) = Models::default().instantiate(&plan(TINY), 5).unwrap();
    assert_eq!(load_state_dict(&plain_params, &path, Strict::All).unwrap().loaded, 21);
    let eval = |model: &dyn Model| {
        flat(&model.forward(&tokens().0, &ForwardContext::eval(Precision::Fp32)).unwrap())
    };
    for (merged, apart) in eval(&*plain).into_iter().zip(eval(&*model)) {
        near("logits", f64::from(merged), f64::from(apart), 1e-5);
    }
    let peft = checkpoint::peft(&saved, &lora(4, &targets)).unwrap();
    let peft = candle_core::safetensors::load_buffer(&peft, &Device::Cpu).unwrap();
    assert_eq!(peft.len(), 12);
    let a = &peft["base_model.model.model.layers.1.mlp.down_proj.lora_A.weight"];
    assert_eq!(a.dims(), [4, 88]);
    let config = checkpoint::peft_config(&lora(4, &targets), Some("weights/tiny".as_ref()));
    let config: Value = serde_json::from_str(&config).unwrap();
    assert_eq!((&config["peft_type"], &config["task_type"]), (&"LORA".into(), &"CAUSAL_LM".into()));
    assert_eq!((&config["r"], &config["lora_alpha"]), (&4.into(), &8.into()));
    assert_eq!(config["target_modules"], serde_json::json!(targets));
    assert_eq!(config["base_model_name_or_path"], "weights/tiny");
}

/// The options of `[model.lora]` for a variant of `golden/lora_variants.py`.
fn variant(config: &Value) -> Value {
    let mut lora = json!({ "r": 4, "alpha": 8.0 });
    match &config["target_modules"] {
        Value::String(all) if all == "all-linear" => lora["targets"] = json!([all]),
        Value::String(pattern) => lora["target_regex"] = json!(pattern),
        names => lora["targets"] = names.clone(),
    }
    for key in ["use_rslora", "use_dora", "modules_to_save"] {
        if !config[key].is_null() {
            lora[key] = config[key].clone();
        }
    }
    let of = |key: &str, field: &str| -> Vec<Value> {
        let all = config[key].as_object().into_iter().flatten();
        all.map(|(layers, value)| json!({ "layers": layers, field: value })).collect()
    };
    lora["patterns"] = json!([of("rank_pattern", "r"), of("alpha_pattern", "alpha")].concat());
    lora
}

#[test]
fn variants_of_lora_have_the_loss_the_gradients_and_the_names_of_peft() {
    let golden: Value = serde_json::from_str(include_str!("../golden/lora_variants.json")).unwrap();
    for (name, expected) in golden.as_object().unwrap() {
        let options = variant(&expected["config"]);
        let (model, params) = filled(&with(plan(TINY), &json!({ "lora": options })));
        scale(&params, "lora_B.weight", 0.1);
        let (loss, gradients) = pass(&*model, &params, false);
        near(name, loss, number(expected, "loss"), 1e-5);
        let all = expected["grads"].as_object().unwrap();
        assert_eq!(gradients.len(), all.len(), "{name}");
        for (tensor, expected) in all {
            near_gradient(&format!("{name} {tensor}"), &gradients[tensor], expected);
        }
        assert_eq!(pass(&*model, &params, true), (loss, gradients), "{name}: blocks run again");

        let lora: Lora = serde_json::from_value(options).unwrap();
        let lora = lora.resolved().unwrap();
        let saved = save_state_dict(&params).unwrap();
        let peft = checkpoint::peft(&saved, &lora).unwrap();
        let written = candle_core::safetensors::load_buffer(&peft, &Device::Cpu).unwrap();
        let shapes: BTreeMap<&String, &[usize]> =
            written.iter().map(|(name, tensor)| (name, tensor.dims())).collect();
        assert_eq!(json!(shapes), expected["saved"], "{name}");
        let config: Value = serde_json::from_str(&checkpoint::peft_config(&lora, None)).unwrap();
        for (key, value) in expected["config"].as_object().unwrap() {
            let is_off = value.is_null();
            let written = &config[key];
            let none = [json!(null), json!(false), json!({})].contains(written);
            assert!(if is_off { none } else { written == value }, "{name}: {key} = {written}");
        }

        let folder = tempfile::tempdir().unwrap();
        let [adapters, merged] = ["adapters", "merged"].map(|name| folder.path().join(name));
        let write = |path: &std::path::Path, bytes: &[u8]| {
            std::fs::File::create(path).and_then(|mut file| file.write_all(bytes)).unwrap();
        };
        write(&adapters, &peft);
        let (_, again) = Models::default()
            .instantiate(&with(plan(TINY), &json!({ "lora": variant(&expected["config"]) })), 9)
            .unwrap();
        load_adapters(&again, &adapters).unwrap();
        for (ours, theirs) in again.parameters().iter().zip(params.parameters()) {
            assert_eq!(flat(ours.var().unwrap()), flat(theirs.var().unwrap()), "{}", ours.name());
        }
        write(&merged, &checkpoint::merged(&saved, &lora).unwrap());
        let (plain, plain_params) = Models::default().instantiate(&plan(TINY), 5).unwrap();
        load_state_dict(&plain_params, &merged, Strict::All).unwrap();
        let eval = |model: &dyn Model| {
            flat(&model.forward(&tokens().0, &ForwardContext::eval(Precision::Fp32)).unwrap())
        };
        for (merged, apart) in eval(&*plain).into_iter().zip(eval(&*model)) {
            near(name, f64::from(merged), f64::from(apart), 1e-5);
        }
    }
}

#[test]
fn dora_begins_as_the_model_below_it_and_drops_what_peft_drops() {
    let dora = |dropout: f64| {
        let lora = json!({ "r": 2, "alpha": 4.0, "dropout": dropout, "use_dora": true });
        with(plan(TINY), &json!({ "lora": lora }))
    };
    let (base, _) = filled(&plan(TINY));
    let eval = |model: &dyn Model| {
        flat(&model.forward(&tokens().0, &ForwardContext::eval(Precision::Fp32)).unwrap())
    };
    let [plain, dropped] = [0.0, 0.5].map(|dropout| {
        let (model, params) = filled(&dora(dropout));
        scale(&params, "lora_B.weight", 0.0);
        params.begin_adapters().unwrap();
        for (theirs, ours) in eval(&*base).into_iter().zip(eval(&*model)) {
            near("at first", f64::from(ours), f64::from(theirs), 1e-5);
        }
        scale(&params, "lora_magnitude_vector", 2.0);
        pass(&*model, &params, false)
    });
    assert_ne!(plain, dropped);
}
