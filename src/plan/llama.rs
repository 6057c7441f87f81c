//! What a model of the Llama family has beside the sizes of every transformer.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::config::schema::Model;
use crate::config::{Loaded, Problem};

/// Numbers of a Llama-type model, by their meaning in its `config.json`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LlamaPlan {
    /// Heads of keys and values, each shared by as many heads of queries.
    pub n_kv_heads: usize,
    /// Base of the rotary embedding's wavelengths.
    pub rope_theta: f64,
    /// Added to the mean square in norms.
    pub norm_eps: f64,
    /// Whether the output layer is the table of token embeddings.
    pub tied: bool,
    /// Deviation of initial weights.
    pub init_std: f64,
}

impl Default for LlamaPlan {
    /// Those of the first Llama, with small heads.
    fn default() -> Self {
        Self { n_kv_heads: 12, rope_theta: 1e4, norm_eps: 1e-5, tied: false, init_std: 0.02 }
    }
}

/// Adapters of some layers, which are trained instead of the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoraPlan {
    /// Rank of what is added to a weight.
    pub r: usize,
    /// What is added counts alpha / r times.
    pub alpha: f64,
    /// Dropout before the adapter.
    pub dropout: f64,
    /// Last parts of the names of the layers that have one.
    pub targets: Vec<String>,
    /// Folder of the adapters to start from; without one they add nothing at first.
    #[serde(default)]
    pub adapters: Option<PathBuf>,
}

/// Layers that have an adapter where none are named.
const TARGETS: [&str; 2] = ["q_proj", "v_proj"];
/// Layers that can have one.
const LAYERS: [&str; 7] =
    ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];

/// The adapters asked for; `None` = the model itself is trained.
pub(crate) fn adapters(loaded: &Loaded) -> Result<Option<LoraPlan>, Problem> {
    let asked = &loaded.experiment.model.lora;
    let Some(r) = asked.r else {
        let given = ["alpha", "dropout", "targets"].map(|key| format!("model.lora.{key}"));
        return match given.iter().find(|key| loaded.is_given(key)) {
            Some(key) => Err(loaded.problem(key, "does nothing without `model.lora.r`")),
            None => Ok(None),
        };
    };
    let targets = asked.targets.clone().unwrap_or_else(|| TARGETS.map(str::to_owned).to_vec());
    if let Some(unknown) = targets.iter().find(|target| !LAYERS.contains(&target.as_str())) {
        let what = format!("no layer is called `{unknown}`");
        let help = format!("the layers are {}", LAYERS.join(", "));
        return Err(loaded.problem("model.lora.targets", what).help(help));
    }
    if targets.is_empty() {
        return Err(
            loaded.problem("model.lora.targets", "names no layer: nothing would be trained")
        );
    }
    Ok(Some(LoraPlan {
        r: r as usize,
        alpha: asked.alpha.unwrap_or(16.0),
        dropout: asked.dropout.unwrap_or(0.0),
        targets,
        adapters: asked.adapters.clone(),
    }))
}

/// As asked, else as the first Llama: as many heads of keys as of queries.
pub(crate) fn decide(asked: &Model, n_heads: usize) -> LlamaPlan {
    let usual = LlamaPlan::default();
    LlamaPlan {
        n_kv_heads: asked.n_kv_heads.map_or(n_heads, |heads| heads as usize),
        rope_theta: asked.rope_theta.unwrap_or(usual.rope_theta),
        norm_eps: asked.norm_eps.unwrap_or(usual.norm_eps),
        tied: asked.tie_word_embeddings.unwrap_or(usual.tied),
        ..usual
    }
}
