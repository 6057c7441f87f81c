//! `[model.lora]`: low-rank adapters, whose keys can be completed from PEFT's `adapter_config.json`
//! beside trained adapters.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::pretrained::{DescriptionError as Error, PretrainedError, read_description};
use crate::config::kind::{OptionConflict, Options};
use crate::nn::{Builder, LoraConfig, Targets, pattern_error};

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
    /// `dense_h_to_4h`, `dense_4h_to_h`; opt: `out_proj`, "fc1", "fc2"; each also with the module
    /// before it (`self_attn.q_proj`), or `all-linear`. Default: `["q_proj", "v_proj"]`, or the
    /// layer that makes both.
    #[schemars(example = TARGETS)]
    pub targets: Option<Vec<String>>,
    /// the layers by a regular expression of Python's for their whole names, in the place of
    /// `targets`.
    #[schemars(example = &r".*\.1\d\.self_attn\.[qv]_proj")]
    pub target_regex: Option<String>,
    /// rank-stabilized LoRA (Kalajdzievski 2023, <https://arxiv.org/abs/2312.03732>): updates are
    /// multiplied by `alpha / sqrt(r)`. Default: false.
    #[schemars(example = true)]
    pub use_rslora: Option<bool>,
    /// weight-decomposed LoRA (Liu et al. 2024, <https://arxiv.org/abs/2402.09353>): the length
    /// of each row of a weight is learned apart from its direction. Default: false.
    #[schemars(example = true)]
    pub use_dora: Option<bool>,
    /// other ranks and scalings by layer, as PEFT's `rank_pattern` and `alpha_pattern`: `layers` is
    /// a regular expression for the end of a layer's name, and the first that matches counts.
    #[schemars(example = Pattern::examples())]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub patterns: Vec<Pattern>,
    /// modules that are trained as they are, beside the adapters: `embed_tokens`, `lm_head`, `norm`,
    /// `input_layernorm`, `post_attention_layernorm`; gemma: `pre_feedforward_layernorm`,
    /// `post_feedforward_layernorm`; qwen3, gemma3, olmo2: `q_norm`, `k_norm`; `gpt_neox`:
    /// `embed_in`, `embed_out`, `final_layer_norm`; opt: `embed_positions`, `final_layer_norm`,
    /// `self_attn_layer_norm`. Default: none.
    #[schemars(example = ["lm_head"])]
    pub modules_to_save: Option<Vec<String>>,
    /// folder of trained adapters to start from, as PEFT and `ddprun checkpoint export --peft`
    /// write them: `adapter_model.safetensors` and `adapter_config.json`. All that is said there
    /// holds; what is given here too must be the same, except `dropout`.
    #[schemars(extend("format" = "path", "examples" = ["adapters/alpaca"]))]
    pub adapters: Option<PathBuf>,
}

/// Another rank or scaling of some layers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Pattern {
    /// a regular expression of Python's for the end of a layer's name.
    pub layers: String,
    /// their rank.
    #[schemars(range(min = 1, max = 4096))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub r: Option<usize>,
    /// their alpha.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alpha: Option<f64>,
}

impl Pattern {
    fn examples() -> [Self; 1] {
        [Self { layers: "down_proj".to_owned(), r: Some(16), alpha: Some(32.0) }]
    }
}

/// Modules of any family that can be trained as they are.
const MODULES: [&str; 14] = [
    "embed_tokens",
    "lm_head",
    "norm",
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
    "q_norm",
    "k_norm",
    "embed_in",
    "embed_out",
    "embed_positions",
    "final_layer_norm",
    "self_attn_layer_norm",
];
/// Stands for all layers among `targets`.
pub(super) const ALL_LINEAR: &str = "all-linear";
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
        let rank = |pattern: &Pattern| Some((pattern.layers.clone(), pattern.r?));
        let alpha = |pattern: &Pattern| Some((pattern.layers.clone(), pattern.alpha?));
        Some(LoraConfig {
            r: self.r?,
            alpha: self.alpha.unwrap_or(16.0),
            dropout: self.dropout.unwrap_or(0.0),
            targets: self.layers(),
            rslora: self.use_rslora.unwrap_or(false),
            dora: self.use_dora.unwrap_or(false),
            ranks: self.patterns.iter().filter_map(rank).collect(),
            alphas: self.patterns.iter().filter_map(alpha).collect(),
            modules_to_save: self.modules_to_save.clone().unwrap_or_default(),
        })
    }

    /// The layers that have an adapter.
    fn layers(&self) -> Targets {
        match (&self.target_regex, &self.targets) {
            (Some(pattern), _) => Targets::Pattern(pattern.clone()),
            (None, Some(names)) if names.iter().any(|name| name == ALL_LINEAR) => {
                Targets::AllLinear
            }
            (None, Some(names)) => Targets::Names(names.clone()),
            (None, None) => Targets::Names(TARGETS.map(str::to_owned).to_vec()),
        }
    }

    /// `builder` for a model below the adapters: frozen but for `modules_to_save`, or as it is
    /// without adapters.
    pub fn base(&self, builder: &Builder) -> Builder {
        match self.r {
            Some(_) => builder.frozen_except(self.modules_to_save.as_deref().unwrap_or_default()),
            None => builder.clone(),
        }
    }

    /// Problems with combinations of keys.
    pub(super) fn check(&self) -> Vec<OptionConflict> {
        let wrong = |key, what: String| OptionConflict { key, with: &[], what };
        let given = [
            ("lora.alpha", self.alpha.is_some()),
            ("lora.dropout", self.dropout.is_some()),
            ("lora.targets", self.targets.is_some()),
            ("lora.target_regex", self.target_regex.is_some()),
            ("lora.use_rslora", self.use_rslora.is_some()),
            ("lora.use_dora", self.use_dora.is_some()),
            ("lora.patterns", !self.patterns.is_empty()),
            ("lora.modules_to_save", self.modules_to_save.is_some()),
        ];
        let is_off = self.r.is_none() && self.adapters.is_none();
        let idle = given.into_iter().filter(|&(_, is_given)| is_off && is_given);
        let mut found: Vec<OptionConflict> =
            idle.map(|(key, _)| wrong(key, "does nothing without `model.lora.r`".into())).collect();
        let targets = self.targets.as_deref().unwrap_or_default();
        if let Some(unknown) = targets.iter().find(|name| !is_layer(name)) {
            let layers = LAYERS.join(", ");
            let what =
                format!("no layer is named `{unknown}`; the layers are {layers}, or all-linear");
            found.push(wrong("lora.targets", what));
        }
        if targets.len() > 1 && targets.iter().any(|name| name == ALL_LINEAR) {
            let what = format!("`{ALL_LINEAR}` stands for all layers: name no others beside it");
            found.push(wrong("lora.targets", what));
        }
        if self.targets.as_ref().is_some_and(Vec::is_empty) {
            let what = "names no layer, so nothing would be trained";
            found.push(wrong("lora.targets", what.to_owned()));
        }
        if self.targets.is_some() && self.target_regex.is_some() {
            found.push(wrong("lora.target_regex", "replaces `targets`: give one of them".into()));
        }
        let regex = self.target_regex.iter().map(|regex| ("lora.target_regex", regex));
        let patterns = self.patterns.iter().map(|pattern| ("lora.patterns", &pattern.layers));
        for (key, pattern) in regex.chain(patterns) {
            let error = pattern_error(pattern)
                .map(|error| wrong(key, format!("`{pattern}` is no regular expression: {error}")));
            found.extend(error);
        }
        let says_nothing = |it: &&Pattern| it.r.is_none() && it.alpha.is_none();
        if let Some(empty) = self.patterns.iter().find(says_nothing) {
            let what = format!("`{}` has neither `r` nor `alpha`", empty.layers);
            found.push(wrong("lora.patterns", what));
        }
        let saved = self.modules_to_save.as_deref().unwrap_or_default();
        if let Some(unknown) = saved.iter().find(|name| !MODULES.contains(&name.as_str())) {
            let what =
                format!("no module is named `{unknown}`; the modules are {}", MODULES.join(", "));
            found.push(wrong("lora.modules_to_save", what));
        }
        found
    }
}

/// True if a layer has this name, or this end of its name.
fn is_layer(name: &str) -> bool {
    let last = name.strip_prefix("self_attn.").or(name.strip_prefix("mlp.")).unwrap_or(name);
    LAYERS.contains(&last) || name == ALL_LINEAR
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
    use_rslora: Option<bool>,
    use_dora: Option<bool>,
    rank_pattern: Option<Map<String, Value>>,
    alpha_pattern: Option<Map<String, Value>>,
    modules_to_save: Option<Vec<String>>,
}

/// Fields that are read, and those that change nothing: where the adapters are from, how they were
/// initialised, and settings of methods that other fields switch on.
const WITHOUT_EFFECT: [&str; 22] = [
    "alpha_pattern",
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
    "modules_to_save",
    "peft_version",
    "qalora_group_size",
    "r",
    "rank_pattern",
    "revision",
    "target_modules",
    "task_type",
    "use_dora",
    "use_rslora",
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
    let modules = &config.target_modules;
    let (targets, target_regex) = match target_modules(modules) {
        Some(Targets::Names(names)) => (Some(names), None),
        Some(Targets::AllLinear) => (Some(vec![ALL_LINEAR.to_owned()]), None),
        Some(Targets::Pattern(pattern)) => (None, Some(pattern)),
        None => return unknown("target_modules", modules),
    };
    let Some(patterns) = patterns(&config) else {
        return unknown("rank_pattern", &keys.get("rank_pattern").cloned().unwrap_or_default());
    };
    let saved = config.modules_to_save.unwrap_or_default();
    let modules_to_save = (!saved.is_empty()).then_some(saved);
    if modules_to_save.iter().flatten().any(|name| !MODULES.contains(&name.as_str())) {
        return unknown("modules_to_save", &json!(modules_to_save));
    }
    let theirs = Lora {
        r: Some(config.r),
        alpha: Some(config.lora_alpha),
        targets: targets
            .map(|names| lora.targets.clone().filter(|own| same(own, &names)).unwrap_or(names)),
        target_regex,
        use_rslora: config.use_rslora.filter(|on| *on || lora.use_rslora.is_some()),
        use_dora: config.use_dora.filter(|on| *on || lora.use_dora.is_some()),
        patterns,
        modules_to_save,
        dropout: Some(lora.dropout.unwrap_or(config.lora_dropout)),
        adapters: lora.adapters.clone(),
    };
    if let Some((key, given, found)) = difference(lora, &theirs) {
        return Err(Error::Differs { path: path.to_owned(), key, given, found });
    }
    Ok(theirs)
}

/// The layers that a field of PEFT's names.
fn target_modules(field: &Value) -> Option<Targets> {
    match field {
        Value::String(all) if all == ALL_LINEAR => Some(Targets::AllLinear),
        Value::String(pattern) if pattern_error(pattern).is_none() => {
            Some(Targets::Pattern(pattern.clone()))
        }
        Value::Array(names) => {
            let names = names.iter().map(|name| name.as_str().map(str::to_owned));
            let names = names.collect::<Option<Vec<String>>>()?;
            names.iter().all(|name| is_layer(name)).then_some(Targets::Names(names))
        }
        _ => None,
    }
}

/// The other ranks, and then the other values of alpha.
fn patterns(config: &Config) -> Option<Vec<Pattern>> {
    let mut all = Vec::new();
    for (layers, r) in config.rank_pattern.iter().flatten() {
        let r = Some(r.as_u64().filter(|r| (1..=4096).contains(r))? as usize);
        all.push(Pattern { layers: layers.clone(), r, alpha: None });
    }
    for (layers, alpha) in config.alpha_pattern.iter().flatten() {
        let alpha = Some(alpha.as_f64().filter(|alpha| *alpha > 0.0)?);
        all.push(Pattern { layers: layers.clone(), r: None, alpha });
    }
    all.iter().all(|pattern| pattern_error(&pattern.layers).is_none()).then_some(all)
}

/// True if two lists hold the same in any order.
fn same(a: &[String], b: &[String]) -> bool {
    a.iter().collect::<BTreeSet<_>>() == b.iter().collect()
}

/// The first key that is given and is not the file's, with both values.
fn difference(given: &Lora, found: &Lora) -> Option<(&'static str, String, String)> {
    fn of<T: PartialEq + std::fmt::Debug>(
        key: &'static str,
        given: Option<&T>,
        found: Option<&T>,
        none: &str,
    ) -> Option<(&'static str, String, String)> {
        let given = given.filter(|given| Some(*given) != found)?;
        let found = found.map_or(none.to_owned(), |found| format!("{found:?}"));
        Some((key, format!("{given:?}"), found))
    }
    let patterns = |lora: &Lora| {
        let lora = Lora { r: Some(1), ..lora.clone() }.resolved();
        lora.map(|lora| (lora.ranks, lora.alphas)).filter(|(r, alpha)| r.len() + alpha.len() > 0)
    };
    let number = |value: Option<f64>| value.map(Number);
    of("r", given.r.as_ref(), found.r.as_ref(), "")
        .or_else(|| of("alpha", number(given.alpha).as_ref(), number(found.alpha).as_ref(), ""))
        .or_else(|| {
            let regex = || found.target_regex.as_ref().map(|regex| vec![regex.clone()]);
            let theirs = found.targets.clone().or_else(regex);
            of("targets", given.targets.as_ref(), theirs.as_ref(), "")
        })
        .or_else(|| {
            let names = || found.targets.as_ref().map(|names| format!("{names:?}"));
            let theirs = found.target_regex.clone().or_else(names);
            of("target_regex", given.target_regex.as_ref(), theirs.as_ref(), "")
        })
        .or_else(|| of("use_rslora", on(given.use_rslora), on(found.use_rslora), "false"))
        .or_else(|| of("use_dora", on(given.use_dora), on(found.use_dora), "false"))
        .or_else(|| of("patterns", patterns(given).as_ref(), patterns(found).as_ref(), "none"))
        .or_else(|| {
            let sorted = |lora: &Lora| {
                let mut names = lora.modules_to_save.clone();
                if let Some(names) = &mut names {
                    names.sort();
                }
                names
            };
            of("modules_to_save", sorted(given).as_ref(), sorted(found).as_ref(), "none")
        })
}

/// A switch that is absent is off.
fn on(switch: Option<bool>) -> Option<&'static bool> {
    switch.map(|on| if on { &true } else { &false })
}

/// A number, written as briefly as possible.
#[derive(PartialEq)]
struct Number(f64);

impl std::fmt::Debug for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
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
    fn variants_of_lora_are_read_and_what_is_given_beside_must_be_the_same() {
        let file = r#"{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": "all-linear",
            "use_rslora": true, "use_dora": true, "rank_pattern": {"up_proj": 2, "mlp.*": 8},
            "alpha_pattern": {"q_proj": 3}, "modules_to_save": ["norm", "lm_head"]}"#;
        let lora = filled(&Lora::default(), file).unwrap();
        let config = lora.resolved().unwrap();
        assert_eq!((config.targets, config.rslora, config.dora), (Targets::AllLinear, true, true));
        assert_eq!(config.ranks, [("up_proj".to_owned(), 2), ("mlp.*".to_owned(), 8)]);
        assert_eq!(config.alphas, [("q_proj".to_owned(), 3.0)]);
        assert_eq!(config.modules_to_save, ["norm", "lm_head"]);
        assert_eq!(filled(&lora, file).unwrap(), lora);
        assert!(lora.check().is_empty(), "{:?}", lora.check());
        let check = |change: &dyn Fn(&mut Lora), says: &str| {
            let mut other = lora.clone();
            change(&mut other);
            let error = filled(&other, file).unwrap_err();
            assert!(error.starts_with(says), "{error}");
        };
        check(&|lora| lora.use_dora = Some(false), "`model.lora.use_dora` is false, but `a");
        check(&|lora| lora.patterns.truncate(1), "`model.lora.patterns` is ");
        check(&|lora| lora.modules_to_save = Some(vec![]), "`model.lora.modules_to_save` is []");
        let regex = file.replace("all-linear", ".*_proj");
        let lora = filled(&Lora::default(), &regex).unwrap();
        assert_eq!((lora.targets, lora.target_regex), (None, Some(".*_proj".to_owned())));
    }

    #[test]
    fn what_is_computed_differently_is_refused_by_its_key() {
        for (more, says) in [
            (r#""rank_pattern": {"q_proj": 0}"#, "`rank_pattern`"),
            (r#""rank_pattern": {"(": 2}"#, "`rank_pattern`"),
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
            (r#""modules_to_save": ["score"]"#, "`modules_to_save` = [\"score\"]"),
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
        let none = r#"{"r": 4, "lora_alpha": 8, "target_modules": "("}"#;
        let error = filled(&Lora::default(), none).unwrap_err();
        assert!(error.contains("`target_modules` = \"(\""), "{error}");
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
