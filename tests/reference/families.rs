//! The families of language models against `transformers` in PyTorch (f64, `golden/families.py`):
//! options read from a `config.json`, keys, logits, loss, gradients; adapters; and the file that is
//! written again. Weights and tokens are functions of their names.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;

use candle_core::{Device, Tensor};
use ddprun::internals::checkpoint;
use ddprun::model::{Architecture, Library, LlamaConfig, Lora, Model, Models};
use ddprun::nn::state_dict::{Strict, load_state_dict, save_state_dict};
use ddprun::nn::{ForwardContext, Param, Params};
use ddprun::ops::IGNORED_LABEL;
use ddprun::plan::{ModelPlan, Precision};
use serde_json::{Value, json};

use crate::golden::{check_sum, filled, flat, model_plan, near, number, with};
use crate::llama::gradients_of;

/// Tokens of a sample.
pub(crate) const LENGTH: usize = 24;

/// Each model by its name, with what PyTorch computed.
pub(crate) fn families() -> BTreeMap<String, Value> {
    let text = include_str!("../golden/families.json");
    let golden: BTreeMap<String, Value> = serde_json::from_str(text).unwrap();
    golden.into_iter().filter(|(name, _)| name != "ids").collect()
}

fn write(path: &Path, bytes: &[u8]) {
    std::fs::File::create(path).and_then(|mut file| file.write_all(bytes)).unwrap();
}

/// The model of a `config.json` for samples of `length` tokens.
pub(crate) fn plan_of(config: &Value, length: usize) -> ModelPlan {
    let folder = tempfile::tempdir().unwrap();
    write(&folder.path().join("config.json"), config.to_string().as_bytes());
    let weights = folder.path().join("model.safetensors");
    let found = LlamaConfig::default().complete(Some(&weights), Some(length as u32)).unwrap();
    let outputs = found.outputs.unwrap() as usize;
    let options = serde_json::to_value(found.options).unwrap();
    with(model_plan("llama", outputs, &[length], vec![length]), &options)
}

/// Tokens, and those that follow them, of which the first five of each row do not count.
fn tokens() -> (Tensor, Tensor) {
    let golden: Value = serde_json::from_str(include_str!("../golden/families.json")).unwrap();
    let ids: Vec<Vec<u32>> = serde_json::from_value(golden["ids"].clone()).unwrap();
    let seen: Vec<u32> = ids.iter().flat_map(|row| row[..LENGTH].to_vec()).collect();
    let label = |(i, &id): (usize, &u32)| if i < 5 { IGNORED_LABEL } else { i64::from(id) };
    let next: Vec<i64> =
        ids.iter().flat_map(|row| row[1..].iter().enumerate().map(label)).collect();
    let rows = ids.len();
    let seen = Tensor::from_vec(seen, (rows, LENGTH), &Device::Cpu).unwrap();
    (seen, Tensor::from_vec(next, rows * LENGTH, &Device::Cpu).unwrap())
}

fn logits(model: &dyn Model) -> Vec<f32> {
    flat(&model.forward(&tokens().0, &ForwardContext::eval(Precision::Fp32)).unwrap())
}

#[test]
fn every_family_has_the_keys_logits_loss_and_gradients_of_transformers() {
    for (name, golden) in families() {
        let plan = plan_of(&golden["config"], LENGTH);
        let (model, params) = filled(&plan);
        let aliases =
            params.aliases().iter().map(|(alias, of)| (alias.clone(), of.shape().to_vec()));
        let own = params.parameters().iter().map(|p| (p.name().to_owned(), p.shape().to_vec()));
        let keys: BTreeSet<(String, Vec<usize>)> = own.chain(aliases).collect();
        let expected = serde_json::from_value(golden["keys"].clone()).unwrap();
        assert_eq!(keys, expected, "{name}");

        let found = logits(&*model);
        let rms = number(&golden["logits"], "rms");
        for (found, expected) in found.iter().zip(golden["logits"]["first"].as_array().unwrap()) {
            near(&name, f64::from(*found), expected.as_f64().unwrap(), 1e-5 * rms);
        }
        let allowed = 1e-6 * rms * (found.len() as f64).sqrt();
        near(&name, check_sum(&found), number(&golden["logits"], "check"), allowed);

        let (loss, gradients) = gradients_of(&*model, &params, &tokens(), false);
        near(&format!("{name}: loss"), loss, number(&golden, "loss"), 1e-6);
        let expected = golden["gradients"].as_object().unwrap();
        assert!(expected.len() > 6, "{name}");
        for (parameter, expected) in expected {
            let gradient = &gradients[parameter];
            let l2 = gradient.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt();
            // Biases of keys change no softmax but for rounding.
            let allowed = 1e-5 * number(expected, "l2") + 1e-8;
            near(&format!("{name}: {parameter}"), l2, number(expected, "l2"), allowed);
            let what = format!("{name}: {parameter}, check");
            near(&what, check_sum(gradient), number(expected, "check"), allowed);
        }
        let again = gradients_of(&*model, &params, &tokens(), true);
        assert_eq!(again, (loss, gradients), "{name}: blocks that are run again");
    }
}

#[test]
fn both_spellings_of_a_config_mean_the_same_and_the_exported_one_comes_back() {
    for (name, golden) in families() {
        let plan = plan_of(&golden["config"], LENGTH);
        assert_eq!(
            plan_of(&golden["written"], LENGTH),
            plan,
            "{name}, as transformers 5 writes it"
        );
        let (_, params) = filled(&plan);
        let weights = save_state_dict(&params).unwrap();
        let exported =
            Models::default().export_for(&plan, Some(Library::Transformers), &weights).unwrap();
        let config = exported.config.unwrap();
        assert_eq!(plan_of(&config, LENGTH), plan, "{name}: {config}");
        let held = candle_core::safetensors::load_buffer(&exported.weights, &Device::Cpu).unwrap();
        let held: BTreeSet<String> = held.into_keys().collect();
        let keys: Vec<(String, Vec<usize>)> =
            serde_json::from_value(golden["keys"].clone()).unwrap();
        assert_eq!(held, keys.into_iter().map(|(key, _)| key).collect(), "{name}");
    }
}

/// Multiplies what adapters add.
fn scale_adapters(params: &Params, factor: f64) {
    for param in params.parameters().iter().filter(|param| param.name().ends_with("lora_B.weight"))
    {
        let var = param.var().unwrap();
        var.set(&(var.as_tensor() * factor).unwrap()).unwrap();
    }
}

#[test]
fn adapters_stand_beside_each_linear_layer_of_a_family_and_can_be_merged() {
    for (name, golden) in families() {
        let plain = plan_of(&golden["config"], LENGTH);
        let (base, base_params) = filled(&plain);
        let is_linear = |name: &&str| {
            name.contains(".layers.") && name.ends_with(".weight") && !name.contains("norm")
        };
        let names = base_params.parameters().iter().map(Param::name);
        let layers: BTreeSet<String> = names
            .filter(is_linear)
            .map(|name| name.rsplit('.').nth(1).unwrap().to_owned())
            .collect();
        let adapted = |targets: &Value| {
            let lora = json!({ "r": 3, "alpha": 6.0, "targets": targets });
            with(plain.clone(), &json!({ "lora": lora }))
        };
        let plan = adapted(&json!(layers));
        let (model, params) = filled(&plan);
        assert_eq!(params.parameters().len() % (2 * layers.len()), 0, "{name}");
        assert!(params.parameters().iter().all(|param| param.name().contains(".lora_")), "{name}");
        scale_adapters(&params, 0.0);
        assert!(logits(&*model) == logits(&*base), "{name}: adapters that add nothing");
        let (model, params) = filled(&plan);
        let weights = save_state_dict(&params).unwrap();
        let targets = Some(layers.into_iter().collect());
        let lora = Lora { r: Some(3), alpha: Some(6.0), targets, ..Lora::default() };
        let lora = lora.resolved().unwrap();
        let merged = checkpoint::merged(&weights, &lora).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("merged.safetensors");
        write(&path, &merged);
        load_state_dict(&base_params, &path, Strict::All).unwrap();
        for (merged, apart) in logits(&*base).into_iter().zip(logits(&*model)) {
            near(&name, f64::from(merged), f64::from(apart), 2e-5);
        }
        // Without targets there are those that PEFT chooses.
        let (_, usual) = filled(&adapted(&Value::Null));
        let per_layer = if name.starts_with("phi") || name.starts_with("gpt") { 2 } else { 4 };
        assert_eq!(usual.parameters().len(), 2 * per_layer, "{name}");
        let refused = Models::default().describe(&adapted(&json!(["c_attn"]))).unwrap_err();
        assert!(refused.contains("names `c_attn`, but the layers of"), "{refused}");
    }
}

#[test]
fn a_missing_or_an_extra_tensor_is_named() {
    for (name, golden) in families() {
        let plan = plan_of(&golden["config"], LENGTH);
        let (_, params) = filled(&plan);
        let weights = save_state_dict(&params).unwrap();
        let mut held = candle_core::safetensors::load_buffer(&weights, &Device::Cpu).unwrap();
        let is_of_layer = |key: &&String| key.contains(".layers.1.");
        let missing = held.keys().filter(is_of_layer).max().unwrap().clone();
        let tensor = held.remove(&missing).unwrap();
        let extra = missing.replace(".weight", ".scale").replace(".bias", ".scale");
        held.insert(extra.clone(), tensor);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        candle_core::safetensors::save(&held, &path).unwrap();
        let plan = ModelPlan { pretrained: Some(path), ..plan };
        let error = Models::default().check_pretrained(&plan).unwrap_err().what;
        assert!(error.contains(&format!("missing `{missing}`")), "{name}: {error}");
        assert!(error.contains(&format!("unexpected `{extra}`")), "{name}: {error}");
    }
}

#[test]
fn options_that_a_family_does_not_have_are_refused_by_name() {
    let plan = model_plan("llama", 64, &[LENGTH], vec![LENGTH]);
    let refused =
        |options: Value| Models::default().describe(&with(plan.clone(), &options)).unwrap_err();
    for (options, says) in [
        (json!({ "sliding_window": 4 }), "`sliding_window` does nothing with `family` = \"llama\""),
        (
            json!({ "family": "qwen2", "head_dim": 64 }),
            "`head_dim` does nothing with `family` = \"qwen2\"",
        ),
        (json!({ "family": "opt", "rope_theta": 5.0 }), "`rope_theta` does nothing"),
        (json!({ "family": "opt", "norm_eps": 1e-6 }), "`norm_eps` does nothing"),
        (json!({ "family": "gpt_neox", "n_kv_heads": 4 }), "`n_kv_heads` does nothing"),
        (json!({ "family": "gemma2", "layer_types": ["full_attention"] }), "has 1 entries for"),
        (
            json!({ "family": "opt", "max_position_embeddings": 8 }),
            "windows of 24 tokens, but `max_position_embeddings` = 8",
        ),
        (json!({ "head_dim": 5 }), "`head_dim` = 5 is odd"),
    ] {
        let error = refused(options);
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn options_that_a_family_does_not_have_are_told_by_their_own_keys() {
    let plan = model_plan("llama", 64, &[LENGTH], vec![LENGTH]);
    let misfit = |options: Value| Models::default().misfit(&with(plan.clone(), &options));
    for (options, key, says) in [
        (json!({ "sliding_window": 4 }), "sliding_window", "does nothing"),
        (
            json!({ "family": "gpt_neox", "lora": { "r": 2, "modules_to_save": ["lm_head"] } }),
            "lora.modules_to_save",
            "names `lm_head`, but the modules of `family` = \"gpt_neox\" are `embed_in`, `embed_out`",
        ),
        (
            json!({ "family": "opt", "lora": { "r": 2, "targets": ["o_proj"] } }),
            "lora.targets",
            "names `o_proj`, but the layers of `family` = \"opt\" are `q_proj`",
        ),
    ] {
        let (found, what) = misfit(options).unwrap();
        assert_eq!(found, key);
        assert!(what.contains(says), "{what}");
    }
    for (family, module) in
        [("gpt_neox", "embed_out"), ("opt", "embed_positions"), ("qwen3", "q_norm")]
    {
        let lora = json!({ "r": 2, "modules_to_save": [module] });
        let options = json!({ "family": family, "d_model": 16, "n_heads": 2, "d_ff": 8, "n_layers": 1,
            "lora": lora });
        assert_eq!(misfit(options.clone()), None, "{family}");
        let (_, params) = filled(&with(plan.clone(), &options));
        assert!(params.parameters().iter().any(|it| it.name().contains(module)), "{family}");
    }
}

#[test]
fn rows_that_weights_to_start_from_lack_begin_as_the_mean_of_the_others() {
    for tied in [false, true] {
        let of = |tokens: usize, more: Value| {
            let sizes = json!({ "d_model": 16, "n_heads": 2, "d_ff": 8, "n_layers": 1,
                "tie_word_embeddings": tied });
            let plan = with(model_plan("llama", tokens, &[LENGTH], vec![LENGTH]), &sizes);
            with(plan, &more)
        };
        let (_, small) = filled(&of(64, json!({})));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        write(&path, &save_state_dict(&small).unwrap());
        let options = json!({ "resize_embeddings": true });
        let plan = ModelPlan { pretrained: Some(path.clone()), ..of(67, options) };
        Models::default().check_pretrained(&plan).unwrap();
        let (_, large) = Models::default().instantiate(&plan, 1).unwrap();
        Models::default().load_pretrained(&plan, &large).unwrap();
        let names = ["model.embed_tokens.weight", "lm_head.weight"];
        for name in names.into_iter().take(if tied { 1 } else { 2 }) {
            let rows = |params: &Params| {
                let param = params.parameters().iter().find(|it| it.name() == name).unwrap();
                param.detached().unwrap().to_vec2::<f32>().unwrap()
            };
            let (few, all) = (rows(&small), rows(&large));
            assert_eq!((few.len(), all.len(), all[..64] == few[..]), (64, 67, true));
            for row in &all[64..] {
                for (column, value) in row.iter().enumerate() {
                    let mean = few.iter().map(|row| f64::from(row[column])).sum::<f64>() / 64.0;
                    near(name, f64::from(*value), mean, 1e-7);
                }
            }
        }
        let refused = ModelPlan { pretrained: Some(path), ..of(67, json!({})) };
        assert!(Models::default().check_pretrained(&refused).is_err());
    }
}
