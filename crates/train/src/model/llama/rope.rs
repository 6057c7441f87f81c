//! Rotary positions: the scalings of their wavelengths, each that of `transformers`
//! (`modeling_rope_utils.py`).

use std::f64::consts::TAU;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::OptionConflict;
use crate::ops::Rope;

/// How the wavelengths are stretched, each way exactly that of `transformers`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RopeScaling {
    /// "default" (not at all), "linear" (all by `factor`), "dynamic" (all, for windows longer than
    /// `model.max_position_embeddings`), "llama3" (long ones only, as Llama 3.1 has it), "yarn"
    /// (long ones, and those between in part), or "longrope" (each by its own factor, as Phi-3).
    #[schemars(with = "RopeType", example = RopeType::Llama3)]
    pub rope_type: Option<RopeType>,
    /// linear: positions are divided by `factor`; dynamic, llama3, yarn: how far the longest
    /// wavelengths are stretched; longrope: how much longer texts are than in the first training.
    #[schemars(range(min = 1.0), example = 8.0)]
    pub factor: Option<f64>,
    /// llama3: wavelengths longer than `original_max_position_embeddings / low_freq_factor` are
    /// stretched by `factor`.
    #[schemars(extend("exclusiveMinimum" = 0.0), example = 1.0)]
    pub low_freq_factor: Option<f64>,
    /// llama3: wavelengths shorter than `original_max_position_embeddings / high_freq_factor` stay;
    /// those between in part.
    #[schemars(extend("exclusiveMinimum" = 0.0), example = 4.0)]
    pub high_freq_factor: Option<f64>,
    /// llama3, yarn, longrope: original pretraining context length.
    #[schemars(range(min = 1, max = 1_073_741_824), example = 8192)]
    pub original_max_position_embeddings: Option<u32>,
    /// yarn, longrope: queries and keys are multiplied by it. Default: as their papers recommend for
    /// `factor`.
    #[schemars(extend("exclusiveMinimum" = 0.0), example = 1.2)]
    pub attention_factor: Option<f64>,
    /// yarn: pairs that turn more often than this in the original context stay. Default: 32.
    #[schemars(extend("exclusiveMinimum" = 0.0), example = 32.0)]
    pub beta_fast: Option<f64>,
    /// yarn: pairs that turn less often than this in the original context are stretched by
    /// `factor`. Default: 1.
    #[schemars(extend("exclusiveMinimum" = 0.0), example = 1.0)]
    pub beta_slow: Option<f64>,
    /// longrope: factor of each wavelength for windows up to `original_max_position_embeddings`.
    #[schemars(example = [1.0, 1.1])]
    pub short_factor: Option<Vec<f64>>,
    /// longrope: factor of each wavelength for longer windows.
    #[schemars(example = [1.0, 4.0])]
    pub long_factor: Option<Vec<f64>>,
}

/// Scalings of a rotary embedding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RopeType {
    /// None.
    #[default]
    Default,
    /// All wavelengths alike.
    Linear,
    /// All wavelengths, by a larger base for longer windows.
    Dynamic,
    /// Long wavelengths only (Llama 3.1).
    Llama3,
    /// Long wavelengths, and those between in part (Peng et al., 2023,
    /// <https://arxiv.org/abs/2309.00071>).
    Yarn,
    /// Each wavelength by its own factor (Ding et al., 2024, <https://arxiv.org/abs/2402.13753>).
    Longrope,
}

/// Numbers that a scaling needs, and those that it may have.
struct Numbers {
    needed: &'static [&'static str],
    optional: &'static [&'static str],
}

impl RopeType {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Linear => "linear",
            Self::Dynamic => "dynamic",
            Self::Llama3 => "llama3",
            Self::Yarn => "yarn",
            Self::Longrope => "longrope",
        }
    }

    /// The scaling of this name.
    pub(in crate::model) fn named(name: &str) -> Option<Self> {
        [Self::Default, Self::Linear, Self::Dynamic, Self::Llama3, Self::Yarn, Self::Longrope]
            .into_iter()
            .find(|kind| kind.name() == name)
    }

    fn numbers(self) -> Numbers {
        let (needed, optional): (&[&str], &[&str]) = match self {
            Self::Default => (&[], &[]),
            Self::Linear | Self::Dynamic => (&["rope_scaling.factor"], &[]),
            Self::Llama3 => (
                &[
                    "rope_scaling.factor",
                    "rope_scaling.low_freq_factor",
                    "rope_scaling.high_freq_factor",
                    "rope_scaling.original_max_position_embeddings",
                ],
                &[],
            ),
            Self::Yarn => (
                &["rope_scaling.factor", "rope_scaling.original_max_position_embeddings"],
                &[
                    "rope_scaling.attention_factor",
                    "rope_scaling.beta_fast",
                    "rope_scaling.beta_slow",
                ],
            ),
            Self::Longrope => (
                &[
                    "rope_scaling.original_max_position_embeddings",
                    "rope_scaling.short_factor",
                    "rope_scaling.long_factor",
                ],
                &["rope_scaling.factor", "rope_scaling.attention_factor"],
            ),
        };
        Numbers { needed, optional }
    }
}

/// What the angles depend on besides the scaling.
#[derive(Clone, Copy, Debug)]
pub(super) struct RopeSizes {
    /// Base of the wavelengths.
    pub(super) theta: f64,
    /// Features of a head that turn.
    pub(super) features: usize,
    /// Tokens of the longest sample.
    pub(super) seq_len: usize,
    /// Tokens of the longest text that the model was made for.
    pub(super) max_positions: usize,
}

impl RopeScaling {
    /// The angles, with numbers that [`RopeScaling::check`] has checked.
    pub(super) fn rope(&self, sizes: RopeSizes) -> Result<Rope, String> {
        let RopeSizes { theta, features, seq_len, max_positions } = sizes;
        let exponent = |i: usize| 2.0 * i as f64 / features as f64;
        let plain = |theta: f64| -> Vec<f64> {
            (0..features / 2).map(|i| theta.powf(-exponent(i))).collect()
        };
        let factor = self.factor.unwrap_or(1.0);
        let original = self.original_max_position_embeddings.map_or(8192.0, f64::from);
        Ok(match self.rope_type.unwrap_or_default() {
            RopeType::Default => Rope::new(plain(theta), 1.0),
            RopeType::Linear => {
                Rope::new(plain(theta).into_iter().map(|f| f / factor).collect(), 1.0)
            }
            RopeType::Dynamic => {
                let longest = seq_len.max(max_positions) as f64 / max_positions.max(1) as f64;
                let d = features as f64;
                let grown = (factor * longest - (factor - 1.0)).powf(d / (d - 2.0));
                Rope::new(plain(theta * grown), 1.0)
            }
            RopeType::Llama3 => {
                let stretched = |f| self.llama3(f, factor, original);
                Rope::new(plain(theta).into_iter().map(stretched).collect(), 1.0)
            }
            RopeType::Yarn => {
                let usual = || if factor > 1.0 { 0.1 * factor.ln() + 1.0 } else { 1.0 };
                let kept = self.yarn_kept(theta, features as f64, original);
                let stretched = |(i, f): (usize, f64)| {
                    let kept = kept(i as f64);
                    (1.0 - kept) * f / factor + kept * f
                };
                let frequencies = plain(theta).into_iter().enumerate().map(stretched).collect();
                Rope::new(frequencies, self.attention_factor.unwrap_or_else(usual))
            }
            RopeType::Longrope => {
                let (key, factors) = if seq_len as f64 > original {
                    ("long_factor", &self.long_factor)
                } else {
                    ("short_factor", &self.short_factor)
                };
                let factors = factors.as_deref().unwrap_or_default();
                if factors.len() != features / 2 {
                    let (given, pairs) = (factors.len(), features / 2);
                    return Err(format!(
                        "`rope_scaling.{key}` has {given} numbers for {pairs} pairs of features"
                    ));
                }
                let factor = self.factor.unwrap_or(max_positions as f64 / original);
                let usual = || {
                    if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / original.ln()).sqrt() }
                };
                let stretched = plain(theta).into_iter().zip(factors).map(|(f, by)| f / by);
                Rope::new(stretched.collect(), self.attention_factor.unwrap_or_else(usual))
            }
        })
    }

    /// Long wavelengths are stretched, and those in between in part.
    fn llama3(&self, frequency: f64, factor: f64, positions: f64) -> f64 {
        let low = self.low_freq_factor.unwrap_or(1.0);
        let high = self.high_freq_factor.unwrap_or(4.0);
        let turns = positions * frequency / TAU;
        // 0 for the long wavelengths, 1 for the short ones.
        let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
        (1.0 - kept) * frequency / factor + kept * frequency
    }

    /// How much of the frequency of each of the pairs of `d` features stays: 1 for those that turn
    /// fast.
    fn yarn_kept(&self, theta: f64, d: f64, positions: f64) -> impl Fn(f64) -> f64 + use<> {
        let pair_of = |turns: f64| d * (positions / (turns * TAU)).ln() / (2.0 * theta.ln());
        let first = pair_of(self.beta_fast.unwrap_or(32.0)).floor().max(0.0);
        let last = pair_of(self.beta_slow.unwrap_or(1.0)).ceil().min(d - 1.0);
        let width = if first == last { 0.001 } else { last - first };
        move |pair| 1.0 - ((pair - first) / width).clamp(0.0, 1.0)
    }

    /// Key of each number, and whether it is given.
    fn given(&self) -> [(&'static str, bool); 9] {
        [
            ("rope_scaling.factor", self.factor.is_some()),
            ("rope_scaling.low_freq_factor", self.low_freq_factor.is_some()),
            ("rope_scaling.high_freq_factor", self.high_freq_factor.is_some()),
            (
                "rope_scaling.original_max_position_embeddings",
                self.original_max_position_embeddings.is_some(),
            ),
            ("rope_scaling.attention_factor", self.attention_factor.is_some()),
            ("rope_scaling.beta_fast", self.beta_fast.is_some()),
            ("rope_scaling.beta_slow", self.beta_slow.is_some()),
            ("rope_scaling.short_factor", self.short_factor.is_some()),
            ("rope_scaling.long_factor", self.long_factor.is_some()),
        ]
    }

    /// Problems with combinations of keys.
    pub(super) fn check(&self) -> Vec<OptionConflict> {
        let kind = self.rope_type.unwrap_or_default();
        let Numbers { needed, optional } = kind.numbers();
        let with: &[&str] = &["rope_scaling.rope_type"];
        let name = kind.name();
        let wrong = |(key, is_given): (&'static str, bool)| {
            let what = match (needed.contains(&key), is_given) {
                (true, false) => format!("is needed by `rope_type` = \"{name}\""),
                (false, true) if !optional.contains(&key) => {
                    format!("does nothing with `rope_type` = \"{name}\"")
                }
                _ => return None,
            };
            Some(OptionConflict { key, with, what })
        };
        let mut found: Vec<OptionConflict> = self.given().into_iter().filter_map(wrong).collect();
        if let (RopeType::Llama3, Some(low), Some(high)) =
            (kind, self.low_freq_factor, self.high_freq_factor)
            && high <= low
        {
            let what = format!("is {high}, which must be greater than `low_freq_factor` = {low}");
            found.push(OptionConflict { key: "rope_scaling.high_freq_factor", with, what });
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `transformers`' three cases, written as there, by wavelengths.
    fn huggingface(f: f64, [factor, low, high, positions]: [f64; 4]) -> f64 {
        let wavelength = TAU / f;
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
        let scaling = RopeScaling { low_freq_factor: Some(1.0), ..RopeScaling::default() };
        let plain = |i: usize| 5e5f64.powf(-2.0 * i as f64 / 128.0);
        let mut kinds = [0; 3];
        for frequency in (0..64).map(plain) {
            let found = scaling.llama3(frequency, 8.0, 8192.0);
            let expected = huggingface(frequency, numbers);
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
    }

    #[test]
    fn numbers_that_a_scaling_needs_or_does_not_have_are_named() {
        let keys = |scaling: RopeScaling| -> Vec<&str> {
            scaling.check().into_iter().map(|conflict| conflict.key).collect()
        };
        let of = |kind| RopeScaling { rope_type: Some(kind), ..RopeScaling::default() };
        assert_eq!(keys(of(RopeType::Dynamic)), ["rope_scaling.factor"]);
        let yarn = RopeScaling {
            factor: Some(4.0),
            original_max_position_embeddings: Some(32),
            ..of(RopeType::Yarn)
        };
        assert!(keys(RopeScaling { beta_fast: Some(16.0), ..yarn.clone() }).is_empty());
        let wrong = RopeScaling { low_freq_factor: Some(1.0), ..yarn };
        assert_eq!(keys(wrong), ["rope_scaling.low_freq_factor"]);
        let longrope = of(RopeType::Longrope);
        assert_eq!(keys(longrope).len(), 3);
    }

    #[test]
    fn long_windows_take_their_own_factors_whose_number_must_fit() {
        let scaling = RopeScaling {
            rope_type: Some(RopeType::Longrope),
            original_max_position_embeddings: Some(16),
            short_factor: Some(vec![1.0, 2.0]),
            long_factor: Some(vec![4.0]),
            ..RopeScaling::default()
        };
        let sizes = |seq_len| RopeSizes { theta: 1e4, features: 4, seq_len, max_positions: 64 };
        let factor = (1.0 + 4f64.ln() / 16f64.ln()).sqrt();
        assert_eq!(scaling.rope(sizes(16)).unwrap(), Rope::new(vec![1.0, 0.005], factor));
        let error = scaling.rope(sizes(17)).unwrap_err();
        assert_eq!(error, "`rope_scaling.long_factor` has 1 numbers for 2 pairs of features");
    }
}
