//! Llama, and models that are computed in the same way.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Config, Refused, is_off, is_one, short, unsupported};
use crate::model::{InferredOptions, LlamaConfig, RopeScaling, RopeType};
use crate::plan::ModelPlan;

/// Sizes. Absent ones have the defaults of `transformers`.
#[derive(Deserialize)]
struct Sizes {
    vocab_size: u32,
    hidden_size: u32,
    intermediate_size: u32,
    num_hidden_layers: u32,
    num_attention_heads: u32,
    num_key_value_heads: Option<u32>,
    rms_norm_eps: Option<f64>,
    tie_word_embeddings: Option<bool>,
    attention_dropout: Option<f64>,
}

/// Mistral's defaults.
const MISTRAL_KV_HEADS: u32 = 8;
const MISTRAL_WINDOW: u32 = 4096;

/// Models that are computed as a Llama.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Llama,
    /// A Llama with attention over a sliding window.
    Mistral,
}

/// Reads the options of a file.
pub(in crate::model) fn read(
    config: &Config,
    seq_len: Option<u32>,
) -> Result<InferredOptions, Refused> {
    let sizes: Sizes =
        serde_json::from_value(Value::Object(config.clone())).map_err(Refused::Format)?;
    let kind = kind(config);
    let mut wrong: Vec<String> = kind.as_ref().err().into_iter().cloned().collect();
    wrong.extend(unsupported_keys(config, &sizes));
    let kind = kind.unwrap_or(Kind::Llama);
    wrong.extend(window(config, kind, seq_len));
    let rope = rope(config, seq_len);
    wrong.extend(rope.as_ref().err().cloned());
    let (Ok(rope), true) = (rope, wrong.is_empty()) else {
        return Err(Refused::Unsupported(wrong));
    };
    let heads = sizes.num_attention_heads;
    let usual_kv_heads = if kind == Kind::Mistral { MISTRAL_KV_HEADS } else { heads };
    // `null` means as many as heads of queries, for both models.
    let kv_heads = match config.get("num_key_value_heads") {
        Some(Value::Null) => heads,
        _ => sizes.num_key_value_heads.unwrap_or(usual_kv_heads),
    };
    let mut found = InferredOptions::of_outputs(sizes.vocab_size);
    found.set("d_model", sizes.hidden_size);
    found.set("d_ff", sizes.intermediate_size);
    found.set("n_layers", sizes.num_hidden_layers);
    found.set("n_heads", heads);
    found.set("n_kv_heads", kv_heads);
    found.set("norm_eps", sizes.rms_norm_eps.unwrap_or(1e-6));
    found.set("tie_word_embeddings", sizes.tie_word_embeddings.unwrap_or(false));
    found.set("attention_dropout", sizes.attention_dropout.unwrap_or(0.0));
    found.set("rope_theta", rope.theta);
    found.set("rope_scaling", rope.scaling);
    Ok(found)
}

/// `config.json` of `llama` for `transformers`.
pub(in crate::model) fn config_json(llama: &LlamaConfig, plan: &ModelPlan) -> Value {
    let rope = serde_json::to_value(&llama.rope_scaling).unwrap_or_default();
    let rope = Some(rope).filter(|rope| rope.get("rope_type").is_some_and(Value::is_string));
    json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": plan.outputs,
        "hidden_size": llama.d_model,
        "intermediate_size": llama.d_ff,
        "num_hidden_layers": llama.n_layers,
        "num_attention_heads": llama.n_heads,
        "num_key_value_heads": llama.n_kv_heads.unwrap_or(llama.n_heads),
        "hidden_act": "silu",
        "attention_bias": false,
        "mlp_bias": false,
        "attention_dropout": llama.attention_dropout,
        "max_position_embeddings": plan.input.first(),
        "rms_norm_eps": llama.norm_eps,
        "rope_theta": llama.rope_theta,
        "rope_scaling": rope,
        "tie_word_embeddings": llama.tie_word_embeddings,
        "bos_token_id": null,
        "eos_token_id": null,
    })
}

/// The model that the file names; older files name only the class.
fn kind(config: &Config) -> Result<Kind, String> {
    match config.get("model_type") {
        None | Some(Value::Null) => match config.get("architectures").and_then(|all| all.get(0)) {
            None => Ok(Kind::Llama),
            Some(name) if name == "LlamaForCausalLM" => Ok(Kind::Llama),
            Some(name) if name == "MistralForCausalLM" => Ok(Kind::Mistral),
            Some(name) => Err(format!("`architectures` = [{name}]")),
        },
        Some(name) if name == "llama" => Ok(Kind::Llama),
        Some(name) if name == "mistral" => Ok(Kind::Mistral),
        Some(name) => Err(format!("`model_type` = {name}")),
    }
}

/// Keys of Llama's configuration, and of those derived from it, whose values mean another
/// computation.
fn unsupported_keys(config: &Config, sizes: &Sizes) -> Vec<String> {
    let is_silu = |value: &Value| value == "silu" || value == "swish";
    let is_width = |value: &Value| {
        let all = value.as_u64().and_then(|d| d.checked_mul(sizes.num_attention_heads.into()));
        all == Some(sizes.hidden_size.into())
    };
    let is_full = |value: &Value| {
        value.as_array().is_some_and(|all| all.iter().all(|kind| kind == "full_attention"))
    };
    // 1 = this layer turns its queries and keys.
    let is_rope = |value: &Value| value.as_array().is_some_and(|all| all.iter().all(is_one));
    let never = |_: &Value| false;
    unsupported(
        config,
        &[
            ("hidden_act", &is_silu),
            ("head_dim", &is_width),
            ("attention_bias", &is_off),
            ("mlp_bias", &is_off),
            ("qkv_bias", &is_off),
            ("pretraining_tp", &is_one),
            ("partial_rotary_factor", &is_one),
            ("rope_interleaved", &is_off),
            ("no_rope_layers", &is_rope),
            ("layer_types", &is_full),
            ("embedding_multiplier", &is_one),
            ("residual_multiplier", &is_one),
            ("logits_scaling", &is_one),
            ("attention_multiplier", &never),
            ("scale_emb", &is_one),
            ("scale_depth", &never),
            ("dim_model_base", &never),
            ("logit_scale", &is_one),
            ("attn_logit_softcapping", &is_off),
            ("final_logit_softcapping", &is_off),
            ("use_qk_norm", &is_off),
            ("qk_norm", &is_off),
            ("qk_layernorm", &is_off),
            ("clip_qkv", &is_off),
            ("num_experts", &is_off),
            ("num_local_experts", &is_off),
            ("quantization_config", &is_off),
        ],
    )
}

/// The error for a sliding window that is shorter than the texts.
fn window(config: &Config, kind: Kind, seq_len: Option<u32>) -> Option<String> {
    let usual = Value::from(MISTRAL_WINDOW);
    let (window, whence) = match (config.get("sliding_window"), kind) {
        (None, Kind::Llama) | (Some(Value::Null), _) => return None,
        (None, Kind::Mistral) => (&usual, " (where the file has none)"),
        (Some(window), _) => (window, ""),
    };
    let is_enough = window.as_u64().is_some_and(|n| seq_len.is_some_and(|t| n >= t.into()));
    (!is_enough).then(|| {
        let window = short(window);
        let than = seq_len.map_or_else(String::new, |t| format!(" = {t}"));
        format!("`sliding_window` = {window}{whence}, less than `data.seq_len`{than}")
    })
}

/// Rotary positions: `rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling`
/// (before).
struct Rope {
    theta: f64,
    scaling: RopeScaling,
}

/// Keys of the supported scalings.
const KNOWN: [&str; 8] = [
    "rope_type",
    "type",
    "rope_theta",
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
    "partial_rotary_factor",
];

/// Default base of the wavelengths.
const THETA: f64 = 1e4;

/// Rotary positions for windows of `seq_len` tokens; an `Err` says what cannot be computed.
fn rope(config: &Config, seq_len: Option<u32>) -> Result<Rope, String> {
    let object = |key| config.get(key).filter(|value| !value.is_null());
    let (key, table) = match (object("rope_parameters"), object("rope_scaling")) {
        (Some(new), Some(old)) if new != old => {
            return Err(format!("`rope_parameters` = {} and another `rope_scaling`", short(new)));
        }
        (Some(table), _) => ("rope_parameters", table),
        (None, Some(table)) => ("rope_scaling", table),
        (None, None) => ("", &Value::Null),
    };
    let empty = Config::new();
    let table = match table {
        Value::Null => &empty,
        Value::Object(table) => table,
        other => return Err(format!("`{key}` = {}", short(other))),
    };
    let mut unknown = table.iter().filter(|(name, value)| {
        let is_other_part = *name == "partial_rotary_factor" && !is_one(value);
        !value.is_null() && (is_other_part || !KNOWN.contains(&name.as_str()))
    });
    let theta = [table.get("rope_theta"), config.get("rope_theta")];
    let theta = theta.into_iter().flatten().find_map(Value::as_f64).unwrap_or(THETA);
    let kind = [table.get("rope_type"), table.get("type")];
    let kind = kind.into_iter().flatten().find(|value| !value.is_null());
    let refused = |kind: &Value| format!("`{key}` with `rope_type` = {}", short(kind));
    let is_short = || is_within(config, table, seq_len);
    let rope_type = match kind.map(|kind| kind.as_str().unwrap_or_default()) {
        None if table.get("factor").is_some_and(|factor| !is_one(factor)) => {
            return Err(format!("`{key}` with a `factor` and no `rope_type`"));
        }
        None | Some("default") => RopeType::Default,
        // The wavelengths of the first training are stretched for longer texts only.
        Some("dynamic") if is_short() => RopeType::Default,
        Some("linear") => RopeType::Linear,
        Some("llama3") => RopeType::Llama3,
        Some(_) => return Err(kind.map(refused).unwrap_or_default()),
    };
    if let Some((name, value)) = unknown.next() {
        return Err(format!("`{key}` with `{name}` = {}", short(value)));
    }
    Ok(Rope { theta, scaling: scaling(key, table, rope_type)? })
}

/// True if windows are no longer than the texts of the first training.
fn is_within(config: &Config, table: &Config, seq_len: Option<u32>) -> bool {
    let first =
        [table.get("original_max_position_embeddings"), config.get("max_position_embeddings")];
    let first = first.into_iter().flatten().filter_map(Value::as_u64).min();
    first.zip(seq_len).is_some_and(|(first, seq_len)| u64::from(seq_len) <= first)
}

/// Reads the numbers of a scaling.
fn scaling(key: &str, table: &Config, rope_type: RopeType) -> Result<RopeScaling, String> {
    let number = |name: &str| {
        let missing = || format!("`{key}` without `{name}`");
        table.get(name).and_then(Value::as_f64).ok_or_else(missing)
    };
    let positions = || {
        let name = "original_max_position_embeddings";
        let positions = table.get(name).and_then(Value::as_u64);
        positions
            .and_then(|n| u32::try_from(n).ok())
            .ok_or_else(|| format!("`{key}` without `{name}`"))
    };
    if rope_type == RopeType::Default {
        return Ok(RopeScaling::default());
    }
    let mut scaling = RopeScaling {
        rope_type: Some(rope_type),
        factor: Some(number("factor")?),
        ..RopeScaling::default()
    };
    if rope_type == RopeType::Llama3 {
        scaling.low_freq_factor = Some(number("low_freq_factor")?);
        scaling.high_freq_factor = Some(number("high_freq_factor")?);
        scaling.original_max_position_embeddings = Some(positions()?);
    }
    Ok(scaling)
}

#[cfg(test)]
mod tests {
    use super::super::tests::completed;
    use crate::config::kind::Choice;
    use crate::model::{LlamaConfig, RopeScaling, RopeType};

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
        // Windows of 8 tokens are shorter than what would change anything.
        let dynamic = r#""max_position_embeddings": 2048, "rope_scaling": {"type": "dynamic", "factor": 2.0}"#;
        assert_eq!(rope(dynamic), (1e4, plain));
    }

    #[test]
    fn mistral_is_a_llama_where_its_window_holds_what_is_shown() {
        let mistral = |keys: &str| with(&format!(r#""model_type": "mistral", {keys}"#));
        let kv_heads = |keys: &str| mistral(keys).unwrap().n_kv_heads;
        assert_eq!(kv_heads(r#""sliding_window": null"#), Some(8));
        assert_eq!(kv_heads(r#""sliding_window": 8, "num_key_value_heads": 3"#), Some(3));
        assert_eq!(kv_heads(r#""num_key_value_heads": null"#), Some(9), "a window of 4096");
        let error = mistral(r#""sliding_window": 7"#).unwrap_err();
        assert!(error.contains("`sliding_window` = 7, less than `data.seq_len` = 8"), "{error}");
    }

    #[test]
    fn what_is_computed_differently_is_refused_by_its_key() {
        for (key, says) in [
            (r#""rope_scaling": {"rope_type": "llama3"}"#, "`rope_scaling` without `factor`"),
            (r#""rope_scaling": {"rope_type": "yarn", "factor": 2.0}"#, "`rope_type` = \"yarn\""),
            (r#""rope_parameters": {"rope_type": "longrope"}"#, "`rope_type` = \"longrope\""),
            (r#""rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}"#, "partial"),
            (r#""rope_parameters": {"full_attention": {"rope_theta": 1e4}}"#, "full_attention"),
            (
                r#""max_position_embeddings": 4, "rope_scaling": {"type": "dynamic", "factor": 2.0}"#,
                "`rope_type` = \"dynamic\"",
            ),
            (r#""attention_bias": true"#, "`attention_bias`"),
            (r#""mlp_bias": true"#, "`mlp_bias`"),
            (r#""hidden_act": "gelu""#, "`hidden_act` = \"gelu\""),
            (r#""head_dim": 128"#, "`head_dim` = 128"),
            (r#""pretraining_tp": 2"#, "`pretraining_tp` = 2"),
            (r#""model_type": "helium""#, "`model_type` = \"helium\", which `llama`"),
            (r#""architectures": ["Qwen2ForCausalLM"]"#, "Qwen2ForCausalLM"),
            (r#""quantization_config": {"quant_method": "gptq"}"#, "`quantization_config`"),
            (r#""layer_types": ["full_attention", "sliding_attention"]"#, "`layer_types`"),
        ] {
            let error = with(key).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
        let granite = r#""model_type": "granite", "embedding_multiplier": 12.0, "residual_multiplier": 0.22,
            "attention_multiplier": 0.015625, "logits_scaling": 8.0"#;
        let error = with(granite).unwrap_err();
        let names =
            ["granite", "embedding_", "residual_", "attention_multiplier", "logits_scaling"];
        assert!(names.iter().all(|name| error.contains(name)), "{error}");
        let smollm3 = r#""model_type": "smollm3", "no_rope_layers": [1, 1, 1, 0]"#;
        let error = with(smollm3).unwrap_err();
        assert!(error.contains("`no_rope_layers` = [1,1,1,0]"), "{error}");
        let error = completed("llama", r#"{"vocab_size": 5}"#).unwrap_err();
        assert!(error.contains("missing field `hidden_size`"), "{error}");
    }
}
