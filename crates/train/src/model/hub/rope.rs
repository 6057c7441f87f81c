//! Rotary positions: `rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling`
//! (before).

use serde_json::Value;

use super::{Config, is_one, short};
use crate::model::{RopeScaling, RopeType};

/// What the file says.
pub(super) struct Rope {
    pub(super) theta: f64,
    pub(super) scaling: RopeScaling,
}

/// Keys that mean something to one of the scalings that are computed.
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

/// Base of the wavelengths where the file has none.
const THETA: f64 = 1e4;

/// The positions of windows of `seq_len` tokens; an `Err` says what cannot be computed.
pub(super) fn read(config: &Config, seq_len: Option<u32>) -> Result<Rope, String> {
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
    let mut strange = table.iter().filter(|(name, value)| {
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
    if let Some((name, value)) = strange.next() {
        return Err(format!("`{key}` with `{name}` = {}", short(value)));
    }
    Ok(Rope { theta, scaling: scaling(key, table, rope_type)? })
}

/// Whether windows are no longer than the texts of the first training.
fn is_within(config: &Config, table: &Config, seq_len: Option<u32>) -> bool {
    let first =
        [table.get("original_max_position_embeddings"), config.get("max_position_embeddings")];
    let first = first.into_iter().flatten().filter_map(Value::as_u64).min();
    first.zip(seq_len).is_some_and(|(first, seq_len)| u64::from(seq_len) <= first)
}

/// The numbers that this scaling needs.
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
    let rope_type_given = Some(rope_type);
    Ok(match rope_type {
        RopeType::Default => RopeScaling::default(),
        RopeType::Linear => RopeScaling {
            rope_type: rope_type_given,
            factor: Some(number("factor")?),
            ..RopeScaling::default()
        },
        RopeType::Llama3 => RopeScaling {
            rope_type: rope_type_given,
            factor: Some(number("factor")?),
            low_freq_factor: Some(number("low_freq_factor")?),
            high_freq_factor: Some(number("high_freq_factor")?),
            original_max_position_embeddings: Some(positions()?),
        },
    })
}
