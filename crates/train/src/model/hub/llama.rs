//! Llama and the other families that `llama` computes: their `config.json`, both ways. The keys of a
//! family are in its [`FamilySpec`].

mod positions;

use serde::de::Error as _;
use serde_json::{Map, Value, json};

use super::{Config, Refused, is_off, is_one, short, unsupported};
use crate::model::llama::family::{FamilySpec, Key, Positions, ValueKind, Windows};
use crate::model::{HiddenAct, InferredOptions, LayerType, LlamaConfig, LlamaFamily};

/// Default of `max_window_layers`.
const MAX_WINDOW_LAYERS: u64 = 28;

/// Options for which `null` in a file means that there is none, and not the default.
const NULLABLE: [&str; 4] =
    ["n_kv_heads", "head_dim", "attn_logit_softcapping", "final_logit_softcapping"];

/// Reads the options of a file.
pub(in crate::model) fn read(
    config: &Config,
    seq_len: Option<u32>,
) -> Result<InferredOptions, Refused> {
    let family = family(config);
    let spec = family.as_ref().map_or(LlamaFamily::Llama, |family| *family).spec();
    let (values, mut wrong) = match (own_keys(config, spec), &family) {
        (Err(_), Err(other)) => return Err(Refused::Unsupported(vec![other.clone()])),
        (found, _) => found?,
    };
    wrong.splice(0..0, family.as_ref().err().cloned());
    let sizes = Sizes::of(&values);
    wrong.extend(other_keys(config, spec, &sizes));
    wrong.extend(fixed_keys(config, spec, &sizes));
    let windows = windows(config, spec, &sizes, seq_len);
    wrong.extend(windows.as_ref().err().cloned());
    let turning = turning_layers(config, spec, &sizes);
    wrong.extend(turning.as_ref().err().cloned());
    let positions = positions::read(config, spec, sizes.max_positions);
    wrong.extend(positions.as_ref().err().cloned());
    let (Ok(family), Ok(windows), Ok(turning), Ok(positions), true) =
        (family, windows, turning, positions, wrong.is_empty())
    else {
        return Err(Refused::Unsupported(wrong));
    };
    let outputs = count(config.get("vocab_size"), "vocab_size")?;
    let mut found = InferredOptions::of_outputs(outputs);
    found.set("family", family);
    let is_usual_head =
        |value: &Value| value.as_u64().is_some_and(|d| d * sizes.heads == sizes.width);
    for (ours, value) in values {
        if ours != "head_dim" || !is_usual_head(&value) {
            found.set(ours, value);
        }
    }
    if let Some(window) = windows.window {
        found.set("sliding_window", window);
        if windows.layers.contains(&LayerType::FullAttention) {
            found.set("layer_types", &windows.layers);
        }
    }
    if turning.contains(&0) {
        found.set("no_rope_layers", turning);
    }
    if spec.has("n_kv_heads") && !found.options.contains_key("n_kv_heads") {
        found.set("n_kv_heads", sizes.heads);
    }
    for (key, value) in positions {
        found.set(key, value);
    }
    Ok(found)
}

/// `config.json` of `llama` for `transformers`, for a vocabulary of `outputs` and windows of
/// `seq_len` tokens.
pub(in crate::model) fn config_json(llama: &LlamaConfig, outputs: usize, seq_len: usize) -> Value {
    let spec = llama.family.spec();
    let options = serde_json::to_value(llama).unwrap_or_default();
    let mut config = Map::new();
    let mut set = |key: &str, value: Value| config.insert(key.to_owned(), value);
    set("architectures", json!([spec.class]));
    set("model_type", json!(spec.model_type));
    set("vocab_size", json!(outputs));
    for key in spec.keys {
        set(key.theirs, written(key, &options, llama, seq_len));
    }
    for (key, value) in spec.fixed {
        set(key, serde_json::from_str(value).unwrap_or_default());
    }
    for (key, value) in positions::written(llama, spec) {
        set(key, value);
    }
    let attended = llama.attended();
    let is_sliding = |layer: &LayerType| *layer == LayerType::SlidingAttention;
    let has_window = attended.iter().any(is_sliding);
    // Masks of `transformers` have a window even where no layer uses it.
    let usual = || llama.positions(seq_len);
    match spec.windows {
        Windows::None => {}
        Windows::All(_) => drop(set("sliding_window", json!(llama.sliding_window))),
        Windows::Last | Windows::WithoutRope => {
            set("use_sliding_window", json!(has_window));
            set("sliding_window", json!(llama.sliding_window));
            set("layer_types", json!(attended));
            if spec.windows == Windows::Last {
                let full = attended.iter().position(is_sliding).unwrap_or(attended.len());
                set("max_window_layers", json!(full));
            }
        }
        Windows::AllButEach(_) => {
            set("sliding_window", json!(llama.sliding_window.unwrap_or_else(usual)));
            set("layer_types", json!(attended));
        }
    }
    if spec.no_rope_interval.is_some() {
        let turning: Vec<u8> = llama.turning_layers().into_iter().map(u8::from).collect();
        set("no_rope_layers", json!(turning));
    }
    for token in ["bos_token_id", "eos_token_id", "pad_token_id"] {
        set(token, Value::Null);
    }
    Value::Object(config)
}

/// The value of a key in a file.
fn written(key: &Key, options: &Value, llama: &LlamaConfig, seq_len: usize) -> Value {
    let absent = || key.absent.and_then(|text| serde_json::from_str(text).ok());
    let features = llama.d_model / llama.n_heads.max(1);
    match (key.ours, &options[key.ours]) {
        ("n_kv_heads", Value::Null) => json!(llama.n_heads),
        ("head_dim", Value::Null) => json!(features),
        ("max_position_embeddings", Value::Null) => json!(seq_len),
        // Whole numbers there.
        ("query_pre_attn_scalar", Value::Null) => json!(llama.head_dim.unwrap_or(features)),
        ("query_pre_attn_scalar", Value::Number(scalar)) => {
            let scalar = scalar.as_f64().unwrap_or_default();
            if scalar.fract() == 0.0 { json!(scalar as u64) } else { json!(scalar) }
        }
        ("attention_multiplier", Value::Null) => {
            json!(1.0 / (llama.head_dim.unwrap_or(features) as f64).sqrt())
        }
        ("hidden_act", _) => {
            let act = llama.hidden_act.unwrap_or(llama.family.spec().hidden_act);
            json!(match act {
                HiddenAct::Silu => "silu",
                HiddenAct::Gelu => "gelu",
                HiddenAct::GeluTanh => "gelu_pytorch_tanh",
                HiddenAct::Relu => "relu",
            })
        }
        (_, Value::Null) if NULLABLE.contains(&key.ours) => Value::Null,
        (_, Value::Null) => absent().unwrap_or_default(),
        (_, value) => value.clone(),
    }
}

/// The family that the file names; older files name only the class.
fn family(config: &Config) -> Result<LlamaFamily, String> {
    let of = |is: &dyn Fn(&FamilySpec) -> bool| {
        LlamaFamily::ALL.into_iter().find(|family| is(family.spec()))
    };
    match config.get("model_type").filter(|value| !value.is_null()) {
        Some(name) => of(&|spec| *name == spec.model_type).ok_or_else(|| {
            let text = if name == "gemma3" { ", a model of images and text" } else { "" };
            format!("`model_type` = {name}{text}")
        }),
        None => match config.get("architectures").and_then(|all| all.get(0)) {
            None => Ok(LlamaFamily::Llama),
            Some(name) => {
                of(&|spec| *name == spec.class).ok_or_else(|| format!("`architectures` = [{name}]"))
            }
        },
    }
}

/// Values of options, by their names.
type Values = Vec<(&'static str, Value)>;

/// The numbers of a file that rules need.
struct Sizes {
    width: u64,
    heads: u64,
    layers: u64,
    max_positions: Option<u64>,
}

impl Sizes {
    fn of(values: &Values) -> Self {
        let number = |name| {
            values.iter().find(|(ours, _)| *ours == name).and_then(|(_, value)| value.as_u64())
        };
        Self {
            width: number("d_model").unwrap_or_default(),
            heads: number("n_heads").unwrap_or_default(),
            layers: number("n_layers").unwrap_or_default(),
            max_positions: number("max_position_embeddings"),
        }
    }
}

/// A whole number.
fn count(value: Option<&Value>, key: &'static str) -> Result<u32, Refused> {
    let Some(value) = value.filter(|value| !value.is_null()) else {
        return Err(Refused::Format(serde_json::Error::missing_field(key)));
    };
    let wrong = || malformed(key, value, "a whole number");
    value.as_u64().and_then(|n| u32::try_from(n).ok()).ok_or_else(wrong)
}

fn malformed(key: &str, value: &Value, expected: &str) -> Refused {
    let what = format!("`{key}` = {}, which is not {expected}", short(value));
    Refused::Format(serde_json::Error::custom(what))
}

/// Values of the family's own keys, and what of them is not computed.
fn own_keys(config: &Config, spec: &FamilySpec) -> Result<(Values, Vec<String>), Refused> {
    let mut values = Values::new();
    let mut wrong = Vec::new();
    for key in spec.keys {
        let absent = || key.absent.and_then(|text| serde_json::from_str::<Value>(text).ok());
        let value = match config.get(key.theirs) {
            Some(Value::Null) if NULLABLE.contains(&key.ours) => continue,
            None | Some(Value::Null) => absent().unwrap_or_default(),
            Some(value) => value.clone(),
        };
        let value = match key.kind {
            _ if value.is_null() && key.absent.is_some() => continue,
            ValueKind::Count => json!(count(Some(&value), key.theirs)?),
            ValueKind::Number if value.is_number() => json!(value.as_f64()),
            ValueKind::Number => return Err(malformed(key.theirs, &value, "a number")),
            ValueKind::Flag if value.is_boolean() => value,
            ValueKind::Flag => return Err(malformed(key.theirs, &value, "true or false")),
            ValueKind::Activation => {
                let act = activation(&value);
                let unknown = || format!("`{}` = {}", key.theirs, short(&value));
                wrong.extend(act.is_none().then(unknown));
                json!(act)
            }
        };
        values.push((key.ours, value));
    }
    Ok((values, wrong))
}

/// An activation by its name in `transformers`.
fn activation(name: &Value) -> Option<HiddenAct> {
    Some(match name.as_str()? {
        "silu" | "swish" => HiddenAct::Silu,
        "gelu" => HiddenAct::Gelu,
        "gelu_pytorch_tanh" | "gelu_new" | "gelu_fast" => HiddenAct::GeluTanh,
        "relu" => HiddenAct::Relu,
        _ => return None,
    })
}

/// Keys that the family does not have, whose values mean another computation: those of other
/// families, and of models that are derived from one.
fn other_keys(config: &Config, spec: &FamilySpec, sizes: &Sizes) -> Vec<String> {
    let is_width = |value: &Value| {
        value.as_u64().and_then(|d| d.checked_mul(sizes.heads)) == Some(sizes.width)
    };
    let is_full = |value: &Value| {
        value.as_array().is_some_and(|all| all.iter().all(|kind| kind == "full_attention"))
    };
    // 1 = this layer turns its queries and keys.
    let is_rope = |value: &Value| value.as_array().is_some_and(|all| all.iter().all(is_one));
    let never = |_: &Value| false;
    let rules: &[super::Rule<'_>] = &[
        ("head_dim", &is_width),
        ("attention_bias", &is_off),
        ("mlp_bias", &is_off),
        ("qkv_bias", &is_off),
        ("lm_head_bias", &is_off),
        ("pretraining_tp", &is_one),
        ("partial_rotary_factor", &is_one),
        ("rotary_pct", &is_one),
        ("rope_interleaved", &is_off),
        ("no_rope_layers", &is_rope),
        ("layer_types", &is_full),
        ("embedding_multiplier", &is_one),
        ("residual_multiplier", &is_one),
        ("logits_scaling", &is_one),
        ("attention_multiplier", &never),
        ("query_pre_attn_scalar", &never),
        ("scale_emb", &is_one),
        ("scale_depth", &never),
        ("dim_model_base", &never),
        ("logit_scale", &is_one),
        ("attn_logit_softcapping", &is_off),
        ("final_logit_softcapping", &is_off),
        ("use_bidirectional_attention", &is_off),
        ("use_parallel_residual", &is_off),
        ("use_qk_norm", &is_off),
        ("qk_norm", &is_off),
        ("qk_layernorm", &is_off),
        ("clip_qkv", &is_off),
        ("num_experts", &is_off),
        ("num_local_experts", &is_off),
        ("quantization_config", &is_off),
    ];
    let is_other = |key: &str| {
        let is_own = spec.keys.iter().any(|own| own.theirs == key) || spec.has(key);
        let is_partial = matches!(
            spec.positions, Positions::Rotary { partial: Some((own, _)), .. } if own == key
        );
        !is_own && !is_partial && !spec.fixed.iter().any(|(own, _)| *own == key)
    };
    let rules: Vec<super::Rule<'_>> =
        rules.iter().filter(|(key, _)| is_other(key)).copied().collect();
    unsupported(config, &rules)
}

/// Keys of the family with other values than those that are computed.
fn fixed_keys(config: &Config, spec: &FamilySpec, sizes: &Sizes) -> Vec<String> {
    let fixed = spec.fixed.iter().filter_map(|(key, text)| {
        let value = config.get(*key).filter(|value| !value.is_null())?;
        let expected: Value = serde_json::from_str(text).ok()?;
        let is_equal = match (value.as_f64(), expected.as_f64()) {
            (Some(a), Some(b)) => a.to_bits() == b.to_bits(),
            _ => *value == expected,
        };
        (!is_equal).then(|| format!("`{key}` = {}", short(value)))
    });
    let mut wrong: Vec<String> = fixed.collect();
    // The embeddings of OPT-350m are narrower than its layers.
    let narrow = config.get("word_embed_proj_dim").filter(|value| !value.is_null());
    if let Some(narrow) = narrow.filter(|value| value.as_u64() != Some(sizes.width)) {
        wrong.push(format!("`word_embed_proj_dim` = {}", short(narrow)));
    }
    wrong
}

/// Sliding windows of a model.
struct LayerWindows {
    window: Option<u32>,
    layers: Vec<LayerType>,
}

/// The sliding windows of a file, for samples of `seq_len` tokens.
fn windows(
    config: &Config,
    spec: &FamilySpec,
    sizes: &Sizes,
    seq_len: Option<u32>,
) -> Result<LayerWindows, String> {
    let given = config.get("sliding_window");
    let usual = match spec.windows {
        Windows::None => {
            let window = given.filter(|value| !value.is_null());
            let is_enough = |value: &&Value| {
                value.as_u64().is_some_and(|n| seq_len.is_some_and(|t| n >= t.into()))
            };
            return match window.filter(|window| !is_enough(window)) {
                Some(window) => Err(format!("`sliding_window` = {}", short(window))),
                None => Ok(LayerWindows { window: None, layers: Vec::new() }),
            };
        }
        Windows::All(usual) => usual,
        Windows::Last | Windows::AllButEach(_) => Some(4096),
        Windows::WithoutRope => None,
    };
    let is_used = match spec.windows {
        Windows::Last | Windows::WithoutRope => {
            config.get("use_sliding_window").is_some_and(|value| value == true)
        }
        _ => true,
    };
    let window = match given {
        _ if !is_used => None,
        None => usual,
        Some(Value::Null) => None,
        Some(value) => {
            let window = value.as_u64().and_then(|n| u32::try_from(n).ok()).filter(|&n| n > 0);
            Some(window.ok_or_else(|| format!("`sliding_window` = {}", short(value)))?)
        }
    };
    let layers = match config.get("layer_types").filter(|value| !value.is_null()) {
        Some(listed) => {
            let what = || format!("`layer_types` = {}", short(listed));
            if matches!(spec.windows, Windows::All(_)) && window.is_some() {
                return Err(what());
            }
            let layers: Vec<LayerType> =
                serde_json::from_value(listed.clone()).map_err(|_| what())?;
            if layers.len() as u64 != sizes.layers {
                let (n, layers) = (layers.len(), sizes.layers);
                return Err(format!("`layer_types` of {n} layers, where there are {layers}"));
            }
            layers
        }
        None => usual_layers(config, spec, sizes),
    };
    if window.is_none() && layers.contains(&LayerType::SlidingAttention) {
        if config.get("layer_types").is_some_and(|value| !value.is_null()) {
            return Err("`layer_types` with `sliding_attention` and no `sliding_window`".to_owned());
        }
        return Ok(LayerWindows { window: None, layers: Vec::new() });
    }
    let window = window.filter(|_| layers.contains(&LayerType::SlidingAttention));
    Ok(LayerWindows { window, layers })
}

/// The layers that have a window where a file does not list them.
fn usual_layers(config: &Config, spec: &FamilySpec, sizes: &Sizes) -> Vec<LayerType> {
    let number = |key, usual| config.get(key).and_then(Value::as_u64).unwrap_or(usual);
    let turning = turning_layers(config, spec, sizes).unwrap_or_default();
    let has_window = |i: u64| match spec.windows {
        Windows::None => false,
        Windows::All(_) => true,
        Windows::Last => i >= number("max_window_layers", MAX_WINDOW_LAYERS),
        Windows::WithoutRope => turning.get(i as usize) == Some(&0),
        Windows::AllButEach(each) => {
            let each = number("sliding_window_pattern", each.into()).max(1);
            !(i + 1).is_multiple_of(each)
        }
    };
    let kind =
        |i| if has_window(i) { LayerType::SlidingAttention } else { LayerType::FullAttention };
    (0..sizes.layers).map(kind).collect()
}

/// 1 for each layer that turns its queries and keys, and 0 for the others; empty if the family has
/// no others.
fn turning_layers(config: &Config, spec: &FamilySpec, sizes: &Sizes) -> Result<Vec<u8>, String> {
    let Some(usual) = spec.no_rope_interval else { return Ok(Vec::new()) };
    let Some(listed) = config.get("no_rope_layers").filter(|value| !value.is_null()) else {
        let each = config.get("no_rope_layer_interval").and_then(Value::as_u64);
        let each = each.unwrap_or(usual.into()).max(1);
        return Ok((1..=sizes.layers).map(|i| u8::from(!i.is_multiple_of(each))).collect());
    };
    let layers: Option<Vec<u8>> = serde_json::from_value(listed.clone()).ok();
    let fits = |layers: &Vec<u8>| {
        layers.len() as u64 == sizes.layers && layers.iter().all(|&turns| turns <= 1)
    };
    layers.filter(fits).ok_or_else(|| format!("`no_rope_layers` = {}", short(listed)))
}

#[cfg(test)]
mod tests {
    use super::super::tests::completed;
    use super::*;
    use crate::config::kind::Choice;
    use crate::model::{RopeScaling, RopeType};

    /// Options of the smallest files.
    const SIZES: &str = r#""vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536,
        "num_hidden_layers": 30, "num_attention_heads": 9"#;

    /// A Llama with the options that the file gives.
    fn with(keys: &str) -> Result<LlamaConfig, String> {
        let found = completed("llama", &format!("{{{SIZES}, {keys}}}"))?;
        assert_eq!(found.outputs, Some(49_152));
        let mut options = Choice::of(&LlamaConfig::default()).options;
        options.extend(found.options);
        Ok(serde_json::from_value(serde_json::to_value(options).unwrap()).unwrap())
    }

    #[test]
    fn sizes_come_from_the_file() {
        let rest = r#""num_key_value_heads": 3, "rope_theta": 100000, "tie_word_embeddings": true,
            "rope_scaling": null, "hidden_act": "silu", "model_type": "llama", "rope_interleaved": false,
            "torch_dtype": "bfloat16", "initializer_range": 0.02, "pretraining_tp": 1, "head_dim": 64,
            "attention_dropout": 0.25"#;
        let found = with(rest).unwrap();
        assert_eq!(found.attention_dropout, 0.25);
        assert_eq!((found.d_model, found.d_ff, found.n_layers), (576, 1536, 30));
        assert_eq!((found.n_heads, found.n_kv_heads), (9, Some(3)));
        assert_eq!((found.rope_theta, found.norm_eps), (1e5, 1e-6));
        assert!(found.tie_word_embeddings);
        assert_eq!(found.rope_scaling, RopeScaling::default());
    }

    #[test]
    fn positions_are_those_of_either_spelling() {
        let rope = |keys: &str| {
            let found = with(keys).unwrap();
            (found.rope_theta, found.rope_scaling)
        };
        let plain = RopeScaling::default();
        let linear = RopeScaling {
            rope_type: Some(RopeType::Linear),
            factor: Some(4.0),
            ..RopeScaling::default()
        };
        let llama3 = RopeScaling {
            rope_type: Some(RopeType::Llama3),
            factor: Some(8.0),
            low_freq_factor: Some(1.0),
            high_freq_factor: Some(4.0),
            original_max_position_embeddings: Some(8192),
            ..RopeScaling::default()
        };
        // transformers 5
        assert_eq!(
            rope(r#""rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}"#),
            (5e5, plain.clone())
        );
        assert_eq!(
            rope(
                r#""rope_theta": 7.0, "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}"#
            ),
            (1e4, linear.clone())
        );
        let numbers = r#""factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192"#;
        assert_eq!(
            rope(&format!(
                r#""rope_parameters": {{"rope_type": "llama3", "rope_theta": 5e5, {numbers}}}"#
            )),
            (5e5, llama3.clone())
        );
        // transformers 4, and before
        assert_eq!(
            rope(&format!(
                r#""rope_theta": 5e5, "rope_scaling": {{"rope_type": "llama3", {numbers}}}"#
            )),
            (5e5, llama3)
        );
        assert_eq!(rope(r#""rope_scaling": {"type": "linear", "factor": 4.0}"#), (1e4, linear));
        let dynamic = RopeScaling {
            rope_type: Some(RopeType::Dynamic),
            factor: Some(2.0),
            ..RopeScaling::default()
        };
        assert_eq!(rope(r#""rope_scaling": {"type": "dynamic", "factor": 2.0}"#), (1e4, dynamic));
        let yarn = RopeScaling {
            rope_type: Some(RopeType::Yarn),
            factor: Some(4.0),
            original_max_position_embeddings: Some(2048),
            ..RopeScaling::default()
        };
        let file = r#""rope_scaling": {"type": "yarn", "factor": 4.0, "truncate": true}"#;
        assert_eq!(rope(file), (1e4, yarn));
    }

    #[test]
    fn windows_are_those_of_the_family() {
        let windows = |keys: &str| {
            let found = with(keys).unwrap();
            (found.sliding_window, found.layer_types)
        };
        let mistral = r#""model_type": "mistral""#;
        assert_eq!(windows(&format!("{mistral}, \"sliding_window\": null")), (None, None));
        assert_eq!(windows(&format!("{mistral}, \"sliding_window\": 7")), (Some(7), None));
        assert_eq!(windows(mistral), (Some(4096), None));
        let kv_heads = |keys: &str| with(&format!("{mistral}, {keys}")).unwrap().n_kv_heads;
        assert_eq!(kv_heads(r#""head_dim": null"#), Some(8));
        assert_eq!(kv_heads(r#""num_key_value_heads": null"#), Some(9));
        let (full, sliding) = (LayerType::FullAttention, LayerType::SlidingAttention);
        let qwen = r#""model_type": "qwen2", "sliding_window": 16"#;
        assert_eq!(windows(qwen), (None, None));
        let (window, layers) = windows(&format!("{qwen}, \"use_sliding_window\": true"));
        assert_eq!(
            (window, layers.unwrap()[26..].to_vec()),
            (Some(16), vec![full, full, sliding, sliding])
        );
        let (_, layers) = windows(r#""model_type": "gemma2""#);
        assert_eq!(layers.unwrap()[..3], [sliding, full, sliding]);
        let (_, layers) = windows(r#""model_type": "gemma3_text", "sliding_window_pattern": 3"#);
        assert_eq!(layers.unwrap()[..4], [sliding, sliding, full, sliding]);
        let smollm3 = with(r#""model_type": "smollm3""#).unwrap();
        assert_eq!(smollm3.no_rope_layers.unwrap()[..5], [1, 1, 1, 0, 1]);
        assert_eq!((smollm3.rope_theta, smollm3.tie_word_embeddings), (2e6, true));
        for (keys, says) in [
            (r#""sliding_window": 7"#, "`sliding_window` = 7"),
            (r#""model_type": "mistral", "layer_types": ["full_attention"]"#, "`layer_types`"),
            (r#""model_type": "gemma2", "layer_types": ["full_attention"]"#, "of 1 layers"),
            (r#""model_type": "gemma2", "layer_types": ["linear_attention"]"#, "linear_attention"),
            (r#""model_type": "smollm3", "no_rope_layers": [1, 2]"#, "`no_rope_layers` = [1,2]"),
        ] {
            let error = with(keys).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn gemma_3_has_positions_of_its_own_in_layers_with_a_window() {
        let gemma = |keys: &str| {
            let found = with(&format!(r#""model_type": "gemma3_text", {keys}"#)).unwrap();
            (found.rope_theta, found.rope_local_base_freq, found.rope_scaling.factor)
        };
        assert_eq!(gemma(r#""head_dim": 256"#), (1e6, Some(1e4), None));
        let old =
            r#""rope_local_base_freq": 5, "rope_scaling": {"rope_type": "linear", "factor": 8}"#;
        assert_eq!(gemma(old), (1e6, Some(5.0), Some(8.0)));
        let new = r#""rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8,
            "rope_theta": 7}, "sliding_attention": {"rope_type": "default", "rope_theta": 6}}"#;
        assert_eq!(gemma(new), (7.0, Some(6.0), Some(8.0)));
    }

    #[test]
    fn a_written_file_is_read_as_the_same_options() {
        for family in LlamaFamily::ALL {
            let spec = family.spec();
            let sizes = SIZES.replace("intermediate_size", "ffn_dim");
            let sizes = if family == LlamaFamily::Opt { sizes.as_str() } else { SIZES };
            let keys = format!(r#"{{{sizes}, "model_type": "{}"}}"#, spec.model_type);
            let read = |text: &str| {
                let found = completed("llama", text).unwrap();
                let mut options = Choice::of(&LlamaConfig::default()).options;
                options.extend(found.options);
                let options = serde_json::to_value(options).unwrap();
                serde_json::from_value::<LlamaConfig>(options).unwrap()
            };
            let options = read(&keys);
            assert_eq!(options.family, family);
            assert_eq!(options.idle_options(), [""; 0], "{family:?}");
            let written = config_json(&options, 49_152, 8);
            assert_eq!(read(&written.to_string()), options, "{family:?}: {written}");
        }
    }

    #[test]
    fn what_is_computed_differently_is_refused_by_its_key() {
        for (key, says) in [
            (r#""rope_scaling": {"rope_type": "llama3"}"#, "`rope_scaling` without `factor`"),
            (r#""rope_parameters": {"rope_type": "longrope"}"#, "without `short_factor`"),
            (r#""rope_parameters": {"rope_type": "ntk"}"#, "`rope_type` = \"ntk\""),
            (r#""rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}"#, "partial"),
            (r#""rope_parameters": {"full_attention": {"rope_theta": 1e4}}"#, "full_attention"),
            (r#""rope_scaling": {"type": "yarn", "factor": 2.0, "truncate": false}"#, "truncate"),
            (r#""model_type": "phi3", "rope_scaling": {"type": "linear", "factor": 2}"#, "linear"),
            (r#""model_type": "phi3", "embd_pdrop": 0.1"#, "`embd_pdrop` = 0.1"),
            (r#""model_type": "qwen2", "head_dim": 128"#, "`head_dim` = 128"),
            (r#""model_type": "qwen3", "mlp_bias": true"#, "`mlp_bias`"),
            (r#""model_type": "gemma2", "use_bidirectional_attention": true"#, "bidirectional"),
            (r#""model_type": "gemma3""#, "`model_type` = \"gemma3\", a model of images and text"),
            (r#""qkv_bias": true"#, "`qkv_bias`"),
            (r#""hidden_act": "xielu""#, "`hidden_act` = \"xielu\""),
            (r#""pretraining_tp": 2"#, "`pretraining_tp` = 2"),
            (r#""model_type": "helium""#, "`model_type` = \"helium\", which `llama`"),
            (r#""architectures": ["HeliumForCausalLM"]"#, "HeliumForCausalLM"),
            (r#""quantization_config": {"quant_method": "gptq"}"#, "`quantization_config`"),
            (r#""layer_types": ["full_attention", "sliding_attention"]"#, "`layer_types`"),
        ] {
            let error = with(key).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
        let multipliers = r#""embedding_multiplier": 12.0, "residual_multiplier": 0.22,
            "attention_multiplier": 0.015625, "logits_scaling": 8.0"#;
        let error = with(multipliers).unwrap_err();
        let names = ["embedding_", "residual_", "attention_multiplier", "logits_scaling"];
        assert!(names.iter().all(|name| error.contains(name)), "{error}");
        let granite = with(&format!(r#""model_type": "granite", {multipliers}"#)).unwrap();
        assert_eq!(granite.embedding_multiplier.zip(granite.logits_scaling), Some((12.0, 8.0)));
        let opt = format!(
            "{{{SIZES}, \"ffn_dim\": 9, \"model_type\": \"opt\", \"word_embed_proj_dim\": 512}}"
        );
        let error = completed("llama", &opt).unwrap_err();
        assert!(error.contains("`word_embed_proj_dim` = 512"), "{error}");
        let error = completed("llama", r#"{"model_type": "bert"}"#).unwrap_err();
        assert!(error.contains("`model_type` = \"bert\""), "{error}");
        let text = format!("{{{SIZES}, \"rms_norm_eps\": \"small\"}}");
        let error = completed("llama", &text).unwrap_err();
        assert!(error.contains("`rms_norm_eps` = \"small\", which is not a number"), "{error}");
        let error = completed("llama", r#"{"vocab_size": 5}"#).unwrap_err();
        assert!(error.contains("missing field `hidden_size`"), "{error}");
    }
}
