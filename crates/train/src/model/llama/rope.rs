//! Scaling of the wavelengths of rotary positions.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use train_numbers::RopeScaling as Decided;

use crate::config::kind::OptionConflict;

/// How the wavelengths are stretched, each way exactly that of `transformers`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RopeScaling {
    /// "default" (not at all), "linear" (all by `factor`), or "llama3" (long ones only, as Llama
    /// 3.1 has it).
    #[schemars(with = "RopeType", example = RopeType::Llama3)]
    pub rope_type: Option<RopeType>,
    /// linear: positions are divided by `factor`; llama3: how far the longest wavelengths are
    /// stretched.
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
    /// llama3: original pretraining context length.
    #[schemars(range(min = 1, max = 1_073_741_824), example = 8192)]
    pub original_max_position_embeddings: Option<u32>,
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
    /// Long wavelengths only (Llama 3.1).
    Llama3,
}

impl RopeType {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Linear => "linear",
            Self::Llama3 => "llama3",
        }
    }
}

impl RopeScaling {
    /// The scaling with all its numbers, which [`RopeScaling::check`] has checked.
    pub(super) fn resolved(&self) -> Decided {
        match self.rope_type.unwrap_or_default() {
            RopeType::Default => Decided::None,
            RopeType::Linear => Decided::Linear { factor: self.factor.unwrap_or(1.0) },
            RopeType::Llama3 => Decided::Llama3 {
                factor: self.factor.unwrap_or(1.0),
                low_freq_factor: self.low_freq_factor.unwrap_or(1.0),
                high_freq_factor: self.high_freq_factor.unwrap_or(4.0),
                original_max_position_embeddings: self
                    .original_max_position_embeddings
                    .map_or(8192.0, f64::from),
            },
        }
    }

    /// Key of each number, and whether it is given; a scaling uses the first ones.
    fn numbers(&self) -> [(&'static str, bool); 4] {
        [
            ("rope_scaling.factor", self.factor.is_some()),
            ("rope_scaling.low_freq_factor", self.low_freq_factor.is_some()),
            ("rope_scaling.high_freq_factor", self.high_freq_factor.is_some()),
            (
                "rope_scaling.original_max_position_embeddings",
                self.original_max_position_embeddings.is_some(),
            ),
        ]
    }

    /// Problems with combinations of keys.
    pub(super) fn check(&self) -> Vec<OptionConflict> {
        let kind = self.rope_type.unwrap_or_default();
        let used = match kind {
            RopeType::Default => 0,
            RopeType::Linear => 1,
            RopeType::Llama3 => 4,
        };
        let with: &[&str] = &["rope_scaling.rope_type"];
        let name = kind.name();
        let wrong = |(i, (key, is_given)): (usize, (&'static str, bool))| match (i < used, is_given)
        {
            (false, true) => Some(OptionConflict {
                key,
                with,
                what: format!("does nothing with `rope_type` = \"{name}\""),
            }),
            (true, false) => Some(OptionConflict {
                key,
                with,
                what: format!("is needed by `rope_type` = \"{name}\""),
            }),
            _ => None,
        };
        let mut found: Vec<OptionConflict> =
            self.numbers().into_iter().enumerate().filter_map(wrong).collect();
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
        let scaling = Decided::Llama3 {
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
        let linear = Decided::Linear { factor: 4.0 };
        assert_eq!((linear.stretched(1.0), Decided::None.stretched(0.5)), (0.25, 0.5));
    }
}
