//! Differences between two searches, in the notation of TOML files.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::config::sweep::{change_of, in_toml};

/// A line with the old and the new value of `key`.
pub(super) fn line(key: &str, old: Option<String>, new: Option<String>) -> String {
    let shown = |value: Option<String>| value.unwrap_or_else(|| "absent".to_owned());
    format!("`{key}`: {} -> {}", shown(old), shown(new))
}

/// The same for a key of `[sweep]`, whose values are those of the journal; for parameters, a line
/// for each that has changed.
pub(super) fn of_search(key: &str, old: Option<&Value>, new: Option<&Value>) -> Vec<String> {
    match key {
        "parameters" => of_parameters(old, new),
        "list" => vec![line("sweep.list", trials(old), trials(new))],
        _ => vec![line(&format!("sweep.{key}"), old.map(in_toml), new.map(in_toml))],
    }
}

fn of_parameters(old: Option<&Value>, new: Option<&Value>) -> Vec<String> {
    let old = entries(old);
    let new = entries(new);
    let keys: BTreeSet<&str> = old.iter().chain(&new).filter_map(|entry| key_of(entry)).collect();
    let changed = keys.into_iter().filter_map(|key| {
        let before = domains(&old, key);
        let after = domains(&new, key);
        (before != after).then(|| line(&format!("sweep.parameters.\"{key}\""), before, after))
    });
    let lines: Vec<String> = changed.collect();
    if lines.is_empty() {
        return vec!["`sweep.parameters`: the same in another order".to_owned()];
    }
    lines
}

fn entries(parameters: Option<&Value>) -> Vec<&Value> {
    parameters.and_then(Value::as_array).into_iter().flatten().collect()
}

fn key_of(entry: &Value) -> Option<&str> {
    entry.get("key").and_then(Value::as_str)
}

/// The domains of all entries of `key`; `None` if it has none.
fn domains(entries: &[&Value], key: &str) -> Option<String> {
    let own = entries.iter().filter(|entry| key_of(entry) == Some(key));
    let all: Vec<String> = own.map(|entry| domain(entry)).collect();
    (!all.is_empty()).then(|| all.join(" and "))
}

/// A domain in TOML; a list of values without its table.
fn domain(entry: &Value) -> String {
    let mut table = entry.as_object().cloned().unwrap_or_default();
    table.remove("key");
    if table.get("distribution").and_then(Value::as_str) == Some("categorical") {
        table.remove("distribution");
    }
    match table.get("values") {
        Some(values) if table.len() == 1 => in_toml(values),
        _ => in_toml(&Value::Object(table)),
    }
}

/// `[optimizer.lr=0.1, optimizer.lr=0.2 train.epochs=3]`
fn trials(list: Option<&Value>) -> Option<String> {
    let words = |trial: &Value| {
        let pairs = trial.as_array().into_iter().flatten();
        let change = |pair: &Value| Some(change_of(pair.get(0)?.as_str()?, pair.get(1)?));
        pairs.filter_map(change).collect::<Vec<String>>().join(" ")
    };
    let all: Vec<String> = list?.as_array()?.iter().map(words).collect();
    Some(format!("[{}]", all.join(", ")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::sweep::{Domain, Parameter};

    #[test]
    fn parameters_are_told_one_by_one_as_a_file_has_them() {
        let written = |lr: Domain| {
            let values = Domain::Categorical { values: vec![json!("sgd"), json!("adamw")] };
            let name = Parameter::new("optimizer.name", values);
            serde_json::to_value([name, Parameter::new("optimizer.lr", lr)]).unwrap()
        };
        let old = written(Domain::Categorical { values: vec![json!(0.1), json!(0.01)] });
        let new = written(Domain::Uniform { min: 0.25, max: 0.5 });
        let [line] = &of_search("parameters", Some(&old), Some(&new))[..] else { panic!() };
        let start = "`sweep.parameters.\"optimizer.lr\"`: [0.1, 0.01] -> {";
        assert!(line.starts_with(start) && line.contains("min = 0.25"), "{line}");
        let none = of_search("parameters", Some(&old), None);
        assert!(none.len() == 2 && none[0].ends_with("[0.1, 0.01] -> absent"), "{none:?}");
        let turned = Value::Array(old.as_array().unwrap().iter().rev().cloned().collect());
        let lines = of_search("parameters", Some(&old), Some(&turned));
        assert_eq!(lines, ["`sweep.parameters`: the same in another order"]);
    }

    #[test]
    fn a_list_is_told_as_on_the_command_line() {
        let list = json!([[["optimizer.lr", 0.1]], [["optimizer.lr", 0.5], ["train.epochs", 3]]]);
        let lines = of_search("list", Some(&json!([])), Some(&list));
        let trials = "[optimizer.lr=0.1, optimizer.lr=0.5 train.epochs=3]";
        assert_eq!(lines, [format!("`sweep.list`: [] -> {trials}")]);
    }
}
