//! Rotary positions in a `config.json`: `rope_parameters` (transformers 5), or `rope_theta` and
//! `rope_scaling` (before).

use serde_json::{Value, json};

use super::super::{Config, is_one, short};
use crate::model::llama::family::{FamilySpec, Positions};
use crate::model::{LlamaConfig, RopeScaling, RopeType};

/// Keys of the supported scalings.
const KNOWN: [&str; 15] = [
    "rope_type",
    "type",
    "rope_theta",
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "short_factor",
    "long_factor",
];

/// The options of rotary positions, for a model made for texts of so many tokens.
pub(super) fn read(
    config: &Config,
    spec: &FamilySpec,
    max_positions: Option<u64>,
) -> Result<Vec<(&'static str, Value)>, String> {
    let Positions::Rotary { theta: (theta_key, usual), partial, local, scalings } = spec.positions
    else {
        return Ok(Vec::new());
    };
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
    let mut found = Vec::new();
    let mut full = table;
    if let Some(local) = local {
        let part = |name: &str| table.get(name).and_then(Value::as_object);
        let mut theta = config.get("rope_local_base_freq").and_then(Value::as_f64);
        if table.keys().any(|name| name == "full_attention" || name == "sliding_attention") {
            let sliding = part("sliding_attention").unwrap_or(&empty);
            if scaling(key, sliding, config, max_positions, &["default"])? != RopeScaling::default()
            {
                return Err(format!("`{key}` = {}", short(&json!(sliding))));
            }
            theta = sliding.get("rope_theta").and_then(Value::as_f64).or(theta);
            full = part("full_attention").unwrap_or(&empty);
        }
        found.push(("rope_local_base_freq", json!(theta.unwrap_or(local))));
    }
    let scaling = scaling(key, full, config, max_positions, scalings)?;
    let theta = [full.get("rope_theta"), config.get("rope_theta"), config.get(theta_key)];
    let theta = theta.into_iter().flatten().find_map(Value::as_f64).unwrap_or(usual);
    found.push(("rope_theta", json!(theta)));
    let share = [full.get("partial_rotary_factor"), config.get("partial_rotary_factor")];
    match partial {
        Some((partial_key, usual)) => {
            let share = share.into_iter().chain([config.get(partial_key)]).flatten();
            let share = share.into_iter().find_map(Value::as_f64).unwrap_or(usual);
            found.push(("partial_rotary_factor", json!(share)));
        }
        None => {
            if let Some(share) = share[0].filter(|value| !value.is_null() && !is_one(value)) {
                return Err(format!("`{key}` with `partial_rotary_factor` = {}", short(share)));
            }
        }
    }
    found.push(("rope_scaling", json!(scaling)));
    Ok(found)
}

/// The scaling of a table, for a model made for texts of so many tokens; `allowed` are those of the
/// family, all if it is empty.
fn scaling(
    key: &str,
    table: &Config,
    config: &Config,
    max_positions: Option<u64>,
    allowed: &[&str],
) -> Result<RopeScaling, String> {
    let kind = [table.get("rope_type"), table.get("type")];
    let kind = kind.into_iter().flatten().find(|value| !value.is_null());
    let refused = |kind: &Value| format!("`{key}` with `rope_type` = {}", short(kind));
    let is_given = |name: &str| table.get(name).is_some_and(|value| !value.is_null());
    let rope_type = match kind.map(|kind| kind.as_str().unwrap_or_default()) {
        None if table.get("factor").is_some_and(|factor| !is_one(factor)) => {
            return Err(format!("`{key}` with a `factor` and no `rope_type`"));
        }
        None => RopeType::Default,
        // Phi-3's first files called it so.
        Some("su") if allowed.contains(&"longrope") => RopeType::Longrope,
        Some(name) => RopeType::named(name)
            .filter(|_| allowed.is_empty() || allowed.contains(&name))
            .ok_or_else(|| kind.map(refused).unwrap_or_default())?,
    };
    let mut unknown = table.iter().filter(|(name, value)| {
        // Yarn's ends between whole pairs are not computed.
        let is_usual = *name == "truncate" && **value == true;
        !value.is_null() && !is_usual && !KNOWN.contains(&name.as_str())
    });
    if let Some((name, value)) = unknown.next() {
        return Err(format!("`{key}` with `{name}` = {}", short(value)));
    }
    if rope_type == RopeType::Default {
        return Ok(RopeScaling::default());
    }
    let optional = |name: &str| table.get(name).and_then(Value::as_f64);
    let number = |name: &str| optional(name).ok_or_else(|| format!("`{key}` without `{name}`"));
    let original = || {
        let name = "original_max_position_embeddings";
        let given = [config.get(name), table.get(name)];
        let given = given.into_iter().flatten().find_map(Value::as_u64).or(max_positions);
        given.and_then(|n| u32::try_from(n).ok()).ok_or_else(|| format!("`{key}` without `{name}`"))
    };
    let list = |name: &str| -> Result<Vec<f64>, String> {
        let list = table.get(name).and_then(Value::as_array);
        let list = list.map(|all| all.iter().filter_map(Value::as_f64).collect());
        list.ok_or_else(|| format!("`{key}` without `{name}`"))
    };
    let mut scaling = RopeScaling { rope_type: Some(rope_type), ..RopeScaling::default() };
    match rope_type {
        RopeType::Default => {}
        RopeType::Linear | RopeType::Dynamic => scaling.factor = Some(number("factor")?),
        RopeType::Llama3 => {
            scaling.factor = Some(number("factor")?);
            scaling.low_freq_factor = Some(number("low_freq_factor")?);
            scaling.high_freq_factor = Some(number("high_freq_factor")?);
            scaling.original_max_position_embeddings = Some(original()?);
        }
        RopeType::Yarn => {
            let factor = number("factor")?;
            scaling.factor = Some(factor);
            scaling.original_max_position_embeddings = Some(original()?);
            let of_scale = |scale: f64| {
                if factor <= 1.0 { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 }
            };
            let scales = optional("mscale").zip(optional("mscale_all_dim"));
            let scales = scales.filter(|(scale, of_all)| *scale != 0.0 && *of_all != 0.0);
            let of_scales = scales.map(|(scale, of_all)| of_scale(scale) / of_scale(of_all));
            scaling.attention_factor = optional("attention_factor").or(of_scales);
            scaling.beta_fast = optional("beta_fast").filter(|beta| *beta != 0.0);
            scaling.beta_slow = optional("beta_slow").filter(|beta| *beta != 0.0);
        }
        RopeType::Longrope => {
            scaling.short_factor = Some(list("short_factor")?);
            scaling.long_factor = Some(list("long_factor")?);
            scaling.original_max_position_embeddings = Some(original()?);
            scaling.factor = optional("factor");
            scaling.attention_factor = optional("attention_factor");
        }
    }
    let idle = ["mscale", "mscale_all_dim", "attention_factor"];
    let has_factor = matches!(rope_type, RopeType::Yarn | RopeType::Longrope);
    if let Some(name) = idle.into_iter().find(|name| !has_factor && is_given(name)) {
        return Err(format!("`{key}` with `{name}` = {}", short(&table[name])));
    }
    Ok(scaling)
}

/// The keys of a file for the positions of `llama`.
pub(super) fn written(llama: &LlamaConfig, spec: &FamilySpec) -> Vec<(&'static str, Value)> {
    let Positions::Rotary { theta: (theta_key, _), partial, local, .. } = spec.positions else {
        return Vec::new();
    };
    let mut scaling = json!(llama.rope_scaling);
    if let Some(numbers) = scaling.as_object_mut() {
        numbers.retain(|_, value| !value.is_null());
    }
    let mut keys = vec![(theta_key, json!(llama.rope_theta))];
    if let Some((key, _)) = partial {
        keys.push((key, json!(llama.partial_rotary_factor.unwrap_or(1.0))));
    }
    if local.is_some() {
        let theta = llama.rope_local_base_freq.unwrap_or(llama.rope_theta);
        keys.push(("rope_local_base_freq", json!(theta)));
    }
    if llama.rope_scaling.rope_type == Some(RopeType::Longrope)
        && let Some(numbers) = scaling.as_object_mut()
    {
        // Phi-3 has it beside the table, whose keys were once only these.
        let original = numbers.remove("original_max_position_embeddings");
        keys.push(("original_max_position_embeddings", original.unwrap_or_default()));
        let kind = numbers.remove("rope_type");
        numbers.insert("type".to_owned(), kind.unwrap_or_default());
    }
    let has_scaling = llama.rope_scaling.rope_type.is_some_and(|kind| kind != RopeType::Default);
    keys.push(("rope_scaling", if has_scaling { scaling } else { Value::Null }));
    keys
}
