//! `[model.lora]`: low-rank adapters, whose keys can be completed from PEFT's `adapter_config.json`
//! beside trained adapters.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::pretrained::{DescriptionError as Error, PretrainedError, read_description};
use crate::config::kind::{OptionConflict, Options};
use crate::nn::LoraConfig;

/// Low-rank adapters (Hu et al. 2021, <https://arxiv.org/abs/2106.09685>), by PEFT's names.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Lora {
    /// LoRA rank; without it there are no adapters.
    #[schemars(range(min = 1, max = 4096), example = 8)]
    pub r: Option<usize>,
    /// LoRA scaling: updates are multiplied by `alpha / r`. Default: 16.
    #[schemars(extend("exclusiveMinimum" = 0.0), example = 16.0)]
    pub alpha: Option<f64>,
    /// dropout before an adapter. Default: 0.
    #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0), example = 0.05)]
    pub dropout: Option<f64>,
    /// layers that have one: `q_proj`, `k_proj`, `v_proj`, `o_proj`, `gate_proj`, `up_proj`,
    /// `down_proj`; phi3: `qkv_proj`, `gate_up_proj`; `gpt_neox`: `query_key_value`, "dense",
    /// `dense_h_to_4h`, `dense_4h_to_h`; opt: `out_proj`, "fc1", "fc2". Default:
    /// `["q_proj", "v_proj"]`, or the layer that makes both.
    #[schemars(example = TARGETS)]
    pub targets: Option<Vec<String>>,
    /// folder of trained adapters to start from, as PEFT and `ddprun checkpoint export --peft`
    /// write them: `adapter_model.safetensors` and `adapter_config.json`. r, alpha, targets and
    /// dropout are then its own; r, alpha and targets that are given too must be the same.
    #[schemars(extend("format" = "path", "examples" = ["adapters/alpaca"]))]
    pub adapters: Option<PathBuf>,
}

/// Layers that have an adapter by default.
const TARGETS: [&str; 2] = ["q_proj", "v_proj"];
/// Layers of any family that can have one.
pub(super) const LAYERS: [&str; 16] = [
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
    "qkv_proj",
    "gate_up_proj",
    "query_key_value",
    "dense",
    "dense_h_to_4h",
    "dense_4h_to_h",
    "out_proj",
    "fc1",
    "fc2",
];

impl Lora {
    /// The adapters with all defaults applied; `None` = the model itself is trained.
    pub fn resolved(&self) -> Option<LoraConfig> {
        let targets = || TARGETS.map(str::to_owned).to_vec();
        Some(LoraConfig {
            r: self.r?,
            alpha: self.alpha.unwrap_or(16.0),
            dropout: self.dropout.unwrap_or(0.0),
            targets: self.targets.clone().unwrap_or_else(targets),
        })
    }

    /// Problems with combinations of keys.
    pub(super) fn check(&self) -> Vec<OptionConflict> {
        let wrong = |key, what: String| OptionConflict { key, with: &[], what };
        let given = [
            ("lora.alpha", self.alpha.is_some()),
            ("lora.dropout", self.dropout.is_some()),
            ("lora.targets", self.targets.is_some()),
        ];
        let is_off = self.r.is_none() && self.adapters.is_none();
        let idle = given.into_iter().filter(|&(_, is_given)| is_off && is_given);
        let mut found: Vec<OptionConflict> =
            idle.map(|(key, _)| wrong(key, "does nothing without `model.lora.r`".into())).collect();
        let targets = self.targets.as_deref().unwrap_or_default();
        if let Some(unknown) = targets.iter().find(|name| !LAYERS.contains(&name.as_str())) {
            let layers = LAYERS.join(", ");
            let what = format!("no layer is named `{unknown}`; the layers are {layers}");
            found.push(wrong("lora.targets", what));
        }
        if self.targets.as_ref().is_some_and(Vec::is_empty) {
            let what = "names no layer, so nothing would be trained";
            found.push(wrong("lora.targets", what.to_owned()));
        }
        found
    }
}

/// Files of a folder of adapters.
pub const CONFIG: &str = "adapter_config.json";
pub const ADAPTERS: &str = "adapter_model.safetensors";

/// Fields that are read.
#[derive(Deserialize)]
struct Config {
    r: usize,
    lora_alpha: f64,
    #[serde(default)]
    lora_dropout: f64,
    target_modules: Value,
}

/// Fields that change nothing: where the adapters are from, how they were initialised, and settings
/// of methods that other fields switch on.
const WITHOUT_EFFECT: [&str; 17] = [
    "auto_mapping",
    "base_model_name_or_path",
    "corda_config",
    "eva_config",
    "inference_mode",
    "layers_pattern",
    "loftq_config",
    "lora_alpha",
    "lora_dropout",
    "lora_ga_config",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "r",
    "revision",
    "target_modules",
    "task_type",
];

/// `lora` completed by the description of the adapters to start from, as an option of a Llama; no
/// option if it names none.
pub(super) fn complete(lora: &Lora) -> Result<Options, PretrainedError> {
    let Some(folder) = &lora.adapters else { return Ok(Options::new()) };
    let path = folder.join(CONFIG);
    let config = read_description::<Map<String, Value>>(&path, "adapters");
    let filled = config.and_then(|config| filled(lora, &config, &path));
    let filled = filled.map_err(|error| PretrainedError::of_adapters(&error))?;
    let value = serde_json::to_value(filled).unwrap_or_default();
    Ok(Options::from([("lora".to_owned(), value)]))
}

/// Fills in absent keys; given keys must equal the file's.
fn filled(lora: &Lora, keys: &Map<String, Value>, path: &Path) -> Result<Lora, Error> {
    let unknown = |key: &str, value: &Value| {
        let what = format!("`{key}` = {value}");
        Err(Error::Unknown { path: path.to_owned(), model: "llama", what })
    };
    if let Some((key, value)) = keys.iter().find(|(key, value)| !is_ours(key, value)) {
        return unknown(key, value);
    }
    let config = serde_json::from_value::<Config>(Value::Object(keys.clone()))
        .map_err(|source| Error::Format { path: path.to_owned(), what: "adapters", source })?;
    let named: Option<Vec<String>> = config
        .target_modules
        .as_array()
        .and_then(|names| names.iter().map(|name| name.as_str().map(str::to_owned)).collect());
    let are_layers = |names: &Vec<String>| names.iter().all(|it| LAYERS.contains(&it.as_str()));
    let Some(targets) = named.filter(are_layers) else {
        return unknown("target_modules", &config.target_modules);
    };
    let differs = |key, given: String, found: String| {
        Err(Error::Differs { path: path.to_owned(), key, given, found })
    };
    if let Some(r) = lora.r.filter(|&r| r != config.r) {
        return differs("r", r.to_string(), config.r.to_string());
    }
    if let Some(alpha) = lora.alpha.filter(|&alpha| alpha != config.lora_alpha) {
        return differs("alpha", alpha.to_string(), config.lora_alpha.to_string());
    }
    if let Some(given) = &lora.targets
        && given.iter().collect::<BTreeSet<_>>() != targets.iter().collect()
    {
        return differs("targets", format!("{given:?}"), format!("{targets:?}"));
    }
    Ok(Lora {
        r: Some(config.r),
        alpha: Some(config.lora_alpha),
        targets: Some(lora.targets.clone().unwrap_or(targets)),
        dropout: Some(lora.dropout.unwrap_or(config.lora_dropout)),
        adapters: lora.adapters.clone(),
    })
}

/// True if a field of PEFT's has no effect, or the value that is computed here.
fn is_ours(key: &str, value: &Value) -> bool {
    let is_off = match value {
        Value::Null | Value::Bool(false) => true,
        Value::Object(map) => map.values().all(|value| matches!(value, Value::Bool(false))),
        Value::Array(items) => items.is_empty(),
        _ => false,
    };
    match key {
        _ if WITHOUT_EFFECT.contains(&key) || is_off => true,
        "peft_type" => value == "LORA",
        "bias" => value == "none",
        // Others, such as `pissa` and `olora`, take what the adapters begin with out of the
        // weights.
        "init_lora_weights" => {
            let words = ["gaussian", "eva", "orthogonal"];
            value.is_boolean() || value.as_str().is_some_and(|word| words.contains(&word))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(lora: &Lora, config: &str) -> Result<Lora, String> {
        let keys = serde_json::from_str(config).map_err(|error| error.to_string())?;
        super::filled(lora, &keys, Path::new("a/adapter_config.json"))
            .map_err(|error| error.to_string())
    }

    /// The description that `ddprun checkpoint export --peft` writes for adapters of rank 4.
    const EXPORTED: &str = r#"{"peft_type": "LORA", "task_type": "CAUSAL_LM",
        "base_model_name_or_path": null, "r": 4, "lora_alpha": 8.5, "lora_dropout": 0.1,
        "target_modules": ["v_proj", "q_proj"], "bias": "none", "fan_in_fan_out": false,
        "inference_mode": true}"#;

    #[test]
    fn keys_that_are_not_given_come_from_what_was_exported() {
        let lora = filled(&Lora::default(), EXPORTED).unwrap();
        assert_eq!((lora.r, lora.alpha, lora.dropout), (Some(4), Some(8.5), Some(0.1)));
        assert_eq!(lora.targets, Some(vec!["v_proj".to_owned(), "q_proj".to_owned()]));
        // The order of layers, and dropout, are the user's.
        let given = Lora {
            r: Some(4),
            dropout: Some(0.5),
            targets: Some(vec!["q_proj".to_owned(), "v_proj".to_owned()]),
            ..Lora::default()
        };
        assert_eq!(filled(&given, EXPORTED).unwrap().dropout, given.dropout);
    }

    #[test]
    fn keys_that_differ_are_refused_with_both_values() {
        let check = |lora: Lora, expected: &str| {
            assert_eq!(filled(&lora, EXPORTED).unwrap_err(), expected);
        };
        let has = "but `a/adapter_config.json` has";
        let r = Lora { r: Some(8), ..Lora::default() };
        check(r, &format!("`model.lora.r` is 8, {has} 4"));
        let alpha = Lora { alpha: Some(16.0), ..Lora::default() };
        check(alpha, &format!("`model.lora.alpha` is 16, {has} 8.5"));
        let targets = Lora { targets: Some(vec!["q_proj".to_owned()]), ..Lora::default() };
        let both = "[\"v_proj\", \"q_proj\"]";
        check(targets, &format!("`model.lora.targets` is [\"q_proj\"], {has} {both}"));
    }

    #[test]
    fn what_is_computed_differently_is_refused_by_its_key() {
        for (more, says) in [
            (r#""use_dora": true"#, "`use_dora` = true"),
            (r#""rank_pattern": {"q_proj": 2}"#, "`rank_pattern`"),
            (r#""bias": "all""#, "`bias` = \"all\""),
            (
                r#""init_lora_weights": "pissa_niter_16""#,
                "`init_lora_weights` = \"pissa_niter_16\"",
            ),
            (r#""init_lora_weights": "olora""#, "`init_lora_weights` = \"olora\""),
            (r#""alora_invocation_tokens": [7, 8]"#, "`alora_invocation_tokens` = [7,8]"),
            (r#""peft_type": "IA3""#, "`peft_type` = \"IA3\""),
            (r#""lora_bias": true"#, "`lora_bias` = true"),
            (r#""layers_to_transform": [0, 1]"#, "`layers_to_transform` = [0,1]"),
            (r#""modules_to_save": ["lm_head"]"#, "`modules_to_save` = [\"lm_head\"]"),
            (r#""a_method_of_next_year": {"k": 3}"#, "`a_method_of_next_year`"),
        ] {
            let config = format!(
                "{{\"r\": 4, \"lora_alpha\": 8, \"target_modules\": [\"q_proj\"], {more}}}"
            );
            let error = filled(&Lora::default(), &config).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
        for init in ["true", "false", "null", "\"gaussian\""] {
            let config =
                EXPORTED.replace("\"bias\"", &format!("\"init_lora_weights\": {init}, \"bias\""));
            assert!(filled(&Lora::default(), &config).is_ok(), "{init}");
        }
        let all = r#"{"r": 4, "lora_alpha": 8, "target_modules": "all-linear"}"#;
        let error = filled(&Lora::default(), all).unwrap_err();
        assert!(error.contains("`target_modules` = \"all-linear\""), "{error}");
        let head = r#"{"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "lm_head"]}"#;
        let error = filled(&Lora::default(), head).unwrap_err();
        assert!(error.contains("`target_modules` = [\"q_proj\",\"lm_head\"]"), "{error}");
        // All fields of PEFT 0.21 with their defaults.
        let all = r#"{"alora_invocation_tokens": null, "alpha_pattern": {}, "arrow_config": null,
            "auto_mapping": null, "base_model_name_or_path": "a/b", "bias": "none", "corda_config": null,
            "ensure_weight_tying": false, "eva_config": null, "exclude_modules": null,
            "fan_in_fan_out": false, "inference_mode": true, "init_lora_weights": true,
            "kasa_config": null, "layer_replication": null, "layers_pattern": null,
            "layers_to_transform": null, "loftq_config": {}, "lora_alpha": 16, "lora_bias": false,
            "lora_dropout": 0.05, "lora_ga_config": null, "megatron_config": null,
            "megatron_core": "megatron.core", "modules_to_save": null, "monteclora_config": null,
            "peft_type": "LORA", "peft_version": "0.19.1", "qalora_group_size": 16, "r": 8,
            "rank_pattern": {}, "revision": null, "runtime_config": {"ephemeral_gpu_offload": false},
            "target_modules": ["q_proj"], "target_parameters": null, "task_type": "CAUSAL_LM",
            "trainable_token_indices": null, "use_bdlora": null, "use_dora": false,
            "use_qalora": false, "use_rslora": false, "velora_config": null}"#;
        assert_eq!(filled(&Lora::default(), all).unwrap().r, Some(8));
        assert!(filled(&Lora::default(), "{}").unwrap_err().contains("missing field `r`"));
    }
}
