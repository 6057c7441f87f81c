//! Adapters that are trained instead of a Llama.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Wrong;
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
    /// `down_proj`. Default: `["q_proj", "v_proj"]`.
    #[schemars(example = TARGETS)]
    pub targets: Option<Vec<String>>,
    /// folder of trained adapters to start from, as PEFT and `ddprun checkpoint export --peft`
    /// write them: `adapter_model.safetensors` and `adapter_config.json`. r, alpha, targets and
    /// dropout are then its own; r, alpha and targets that are given too must be the same.
    #[schemars(extend("format" = "path", "examples" = ["adapters/alpaca"]))]
    pub adapters: Option<PathBuf>,
}

/// Layers that have an adapter where none are named.
const TARGETS: [&str; 2] = ["q_proj", "v_proj"];
/// Layers that can have one.
const LAYERS: [&str; 7] =
    ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];

impl Lora {
    /// The adapters with all their numbers; `None` = the model itself is trained.
    pub fn decided(&self) -> Option<LoraConfig> {
        let targets = || TARGETS.map(str::to_owned).to_vec();
        Some(LoraConfig {
            r: self.r?,
            alpha: self.alpha.unwrap_or(16.0),
            dropout: self.dropout.unwrap_or(0.0),
            targets: self.targets.clone().unwrap_or_else(targets),
        })
    }

    /// What is wrong with the keys together.
    pub(super) fn check(&self) -> Vec<Wrong> {
        let wrong = |key, what: String| Wrong { key, with: &[], what };
        let given = [
            ("lora.alpha", self.alpha.is_some()),
            ("lora.dropout", self.dropout.is_some()),
            ("lora.targets", self.targets.is_some()),
        ];
        let is_off = self.r.is_none() && self.adapters.is_none();
        let idle = given.into_iter().filter(|&(_, is_given)| is_off && is_given);
        let mut found: Vec<Wrong> =
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
