//! What a model of the Llama family has beside the sizes of every transformer.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use train_numbers::RopeScaling;

use crate::config::schema::RopeType;
use crate::config::{Loaded, Problem};

/// Numbers of a Llama-type model, by their meaning in its `config.json`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LlamaPlan {
    /// Heads of keys and values, each shared by as many heads of queries.
    pub n_kv_heads: usize,
    /// Base of the rotary embedding's wavelengths.
    pub rope_theta: f64,
    /// What stretches these wavelengths.
    #[serde(default)]
    pub rope_scaling: RopeScaling,
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
        Self {
            n_kv_heads: 12,
            rope_theta: 1e4,
            rope_scaling: RopeScaling::None,
            norm_eps: 1e-5,
            tied: false,
            init_std: 0.02,
        }
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
        let what = format!("no layer is named `{unknown}`");
        let help = format!("the layers are {}", LAYERS.join(", "));
        return Err(loaded.problem("model.lora.targets", what).help(help));
    }
    if targets.is_empty() {
        return Err(
            loaded.problem("model.lora.targets", "names no layer, so nothing would be trained")
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
pub(crate) fn decide(loaded: &Loaded, n_heads: usize) -> Result<LlamaPlan, Problem> {
    let (asked, usual) = (&loaded.experiment.model, LlamaPlan::default());
    Ok(LlamaPlan {
        n_kv_heads: asked.n_kv_heads.map_or(n_heads, |heads| heads as usize),
        rope_theta: asked.rope_theta.unwrap_or(usual.rope_theta),
        rope_scaling: rope_scaling(loaded)?,
        norm_eps: asked.norm_eps.unwrap_or(usual.norm_eps),
        tied: asked.tie_word_embeddings.unwrap_or(usual.tied),
        ..usual
    })
}

/// The scaling asked for, with all its numbers.
fn rope_scaling(loaded: &Loaded) -> Result<RopeScaling, Problem> {
    let asked = &loaded.experiment.model.rope_scaling;
    let numbers = [
        ("factor", asked.factor),
        ("low_freq_factor", asked.low_freq_factor),
        ("high_freq_factor", asked.high_freq_factor),
        ("original_max_position_embeddings", asked.original_max_position_embeddings.map(f64::from)),
    ];
    let kind = asked.rope_type.unwrap_or_default();
    let used = match kind {
        RopeType::Default => 0,
        RopeType::Linear => 1,
        RopeType::Llama3 => numbers.len(),
    };
    let key = |name: &str| format!("model.rope_scaling.{name}");
    if let Some((name, _)) = numbers[used..].iter().find(|(_, value)| value.is_some()) {
        let what = format!("does nothing with `rope_type` = \"{}\"", kind.name());
        return Err(loaded.problem(&key(name), what));
    }
    let missing = |name: &str| {
        let what = format!("is needed by `rope_type` = \"{}\"", kind.name());
        loaded.problem_at(&key(name), &key("rope_type"), what)
    };
    let number = |i: usize| {
        let (name, value) = numbers[i];
        value.ok_or_else(|| missing(name))
    };
    Ok(match kind {
        RopeType::Default => RopeScaling::None,
        RopeType::Linear => RopeScaling::Linear { factor: number(0)? },
        RopeType::Llama3 => {
            let [factor, low, high, positions] = [number(0)?, number(1)?, number(2)?, number(3)?];
            if high <= low {
                let what =
                    format!("is {high}, which must be greater than `low_freq_factor` = {low}");
                return Err(loaded.problem(&key("high_freq_factor"), what));
            }
            RopeScaling::Llama3 {
                factor,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_position_embeddings: positions,
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `transformers`' three cases, written as there, by wavelengths.
    fn huggingface(f: f64, [factor, low, high, positions]: [f64; 4]) -> f64 {
        let wavelength = 2.0 * std::f64::consts::PI / f;
        if wavelength < positions / high {
            f
        } else if wavelength > positions / low {
            f / factor
        } else {
            let smooth = (positions / wavelength - low) / (high - low);
            (1.0 - smooth) * f / factor + smooth * f
        }
    }

    #[test]
    fn llama_3_stretches_long_wavelengths_only_and_those_between_in_part() {
        // Llama-3.1-8B: theta 5e5, heads of 128 features.
        let numbers = [8.0, 1.0, 4.0, 8192.0];
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 8192.0,
        };
        let plain = |i: usize| 5e5f64.powf(-2.0 * i as f64 / 128.0);
        let mut kinds = [0; 3];
        for frequency in (0..64).map(plain) {
            let (found, expected) = (scaling.stretched(frequency), huggingface(frequency, numbers));
            assert!(
                (found - expected).abs() <= 1e-15 * expected,
                "{frequency}: {found} {expected}"
            );
            let kind = match found / frequency {
                ratio if (ratio - 1.0).abs() < 1e-12 => 0,
                ratio if (ratio - 0.125).abs() < 1e-12 => 2,
                _ => 1,
            };
            kinds[kind] += 1;
        }
        assert_eq!(kinds, [29, 6, 29], "kept, between, stretched");
        let linear = RopeScaling::Linear { factor: 4.0 };
        assert_eq!((linear.stretched(1.0), RopeScaling::None.stretched(0.5)), (0.25, 0.5));
    }
}
