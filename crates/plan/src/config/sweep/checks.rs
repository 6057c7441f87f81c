//! Parameters, constraints and lists, read and checked one by one.

use std::collections::HashSet;

use figment::value::{Dict, Value};

use crate::config::keys::{join, json, path_of};
use crate::config::reader::Reader;
use crate::config::spans::{KeySpan, Path};
use crate::config::sweep::space::{Condition, canonical, is_inside};
use crate::config::sweep::{Constraint, Domain, Json, Parameter, Values};
use crate::config::unknown_keys::{is_in_list, unknown};

/// Keys of a parameter's table.
const SPEC: [&str; 6] = ["values", "distribution", "min", "max", "q", "when"];
/// Words of other programs (Optuna, Ray Tune) for the bounds of a range.
const LEAST: [&str; 2] = ["low", "lower"];
const LARGEST: [&str; 2] = ["high", "upper"];

/// Keys that the sweep itself sets, and what to use instead.
pub(super) const RESERVED: [(&str, &str); 8] = [
    ("schema", "remove it: it is the version of the file's format"),
    ("extends", "name the file that extends as `base`"),
    ("experiment.name", "remove it: the sweep names its trials"),
    ("logging.dir", "set it in the base: all trials lie in its folder"),
    ("checkpoint.dir", "set it in the base: all trials lie in its folder"),
    ("checkpoint.monitor", "use `sweep.metric`"),
    ("checkpoint.mode", "use `sweep.goal`"),
    ("distributed.devices", "use `sweep.devices_per_trial`"),
];

/// All parameters, in the order of writing.
pub(super) fn parameters(reader: &mut Reader) -> Vec<Parameter> {
    let mut found = Vec::new();
    walk(reader, &path_of("sweep.parameters"), "", &mut found);
    for parameter in &found {
        let values = match &parameter.domain {
            Domain::Categorical { values } => values.iter().collect(),
            _ => Vec::new(),
        };
        check_key(reader, &parameter.path, &parameter.key, &values);
    }
    overlaps(reader, &found);
    found
}

fn walk(reader: &mut Reader, path: &[String], prefix: &str, found: &mut Vec<Parameter>) {
    for name in reader.keys(path) {
        let at = join(path, &name);
        let key = if prefix.is_empty() { name } else { format!("{prefix}.{name}") };
        match reader.get(&at).cloned() {
            Some(Value::Dict(..)) => {
                let inner = reader.keys(&at);
                if inner.iter().any(|key| is_spec(key)) || inner.is_empty() {
                    found.extend(parameter(reader, at, key));
                } else {
                    walk(reader, &at, &key, found);
                }
            }
            Some(Value::Array(_, items)) if items.iter().any(is_entry) => {
                for index in 0..items.len() {
                    found.extend(parameter(reader, join(&at, &index.to_string()), key.clone()));
                }
            }
            Some(Value::Array(..)) => {
                if let Some(values) = values(reader, &at) {
                    let domain = Domain::Categorical { values };
                    found.push(Parameter { key, domain, when: Vec::new(), path: at });
                }
            }
            _ => {
                let help = "write `[0.1, 0.01]` or `{ values = [0.1, 0.01] }`, for example";
                reader.wrong_help(
                    &at,
                    "must be a list of values, or a table with `values` or `distribution`",
                    help,
                );
            }
        }
    }
}

/// True for a key of a parameter's table, also in the words of other programs.
fn is_spec(key: &str) -> bool {
    SPEC.iter().chain(&LEAST).chain(&LARGEST).any(|word| *word == key)
}

/// True for a table with a domain; others are values of a key that is a table.
fn is_entry(item: &Value) -> bool {
    let has_spec = |keys: &Dict| keys.keys().any(|key| is_spec(key));
    item.as_dict().is_some_and(|keys| keys.is_empty() || has_spec(keys))
}

/// Refuses a parameter that is a key of another one, whose values are whole tables.
fn overlaps(reader: &mut Reader, parameters: &[Parameter]) {
    for parameter in parameters {
        let whole = parameters.iter().find(|other| is_inside(&parameter.key, &other.key));
        if let Some(whole) = whole {
            let what = format!("is part of `{}`, which is a parameter itself", whole.key);
            reader.wrong_help(&parameter.path, what, "put it into the tables there");
        }
    }
}

fn parameter(reader: &mut Reader, path: Path, key: String) -> Option<Parameter> {
    if is_foreign_range(reader, &path) {
        return None;
    }
    reader.only(&path, &SPEC);
    let when = conditions(reader, &join(&path, "when"));
    let domain = domain(reader, &path)?;
    Some(Parameter { key, domain, when, path })
}

/// Refuses a range in the words of another program, with the range in ours: `{ low = 1e-3, high =
/// 1.0, log = true }`.
fn is_foreign_range(reader: &mut Reader, path: &[String]) -> bool {
    let given = |words: &[&'static str]| {
        words.iter().find_map(|word| Some((*word, json(reader.get(&join(path, word))?))))
    };
    let (least, largest) = (given(&LEAST), given(&LARGEST));
    let Some((word, _)) = least.as_ref().or(largest.as_ref()) else { return false };
    let what = format!("`{word}` is not a key of a range: its bounds are `min` and `max`");
    let least = least.or_else(|| given(&["min"])).map(|(_, value)| value);
    let largest = largest.or_else(|| given(&["max"])).map(|(_, value)| value);
    let help = least.zip(largest).map(|(min, max)| {
        let is_log = given(&["log"]).is_some_and(|(_, value)| value == Json::Bool(true));
        let step = given(&["step", "q"]).map(|(_, value)| value);
        let distribution = match (is_log, min.is_i64() && max.is_i64()) {
            (true, true) => "int_log_uniform",
            (true, false) => "log_uniform",
            (false, true) => "int_uniform",
            (false, false) if step.is_some() => "q_uniform",
            (false, false) => "uniform",
        };
        let q = step.filter(|_| distribution == "q_uniform");
        let q = q.map(|q| format!(", q = {q}")).unwrap_or_default();
        format!("write `{{ distribution = \"{distribution}\", min = {min}, max = {max}{q} }}`")
    });
    let problem = reader.problem(path, what).maybe_help(help);
    reader.problems.push(problem);
    true
}

/// A key that experiments have, and that the sweep does not set itself; whole tables and lists are
/// keys where the values are such.
fn check_key(reader: &mut Reader, path: &[String], key: &str, values: &[&Json]) {
    let is_reserved = |reserved: &str| {
        key == reserved
            || is_inside(key, reserved)
            || (is_inside(reserved, key)
                && values.iter().any(|value| sets_key(value, key, reserved)))
    };
    if let Some((_, help)) = RESERVED.iter().find(|(reserved, _)| is_reserved(reserved)) {
        let at = reader.problem(path, "is set by the sweep itself").help(*help);
        reader.problems.push(at);
        return;
    }
    let known = reader.vocabulary.keys();
    let open = ["model.options.", "expect."].iter().any(|prefix| key.starts_with(prefix));
    if open || known.iter().any(|name| name == key) {
        return;
    }
    let schema_path = path_of(key);
    // What an entry of a list may hold is told once the base is loaded with it.
    let in_list = is_in_list(&schema_path, reader.vocabulary.page());
    if in_list && (key.contains('[') || all_are(values, Json::is_array)) {
        return;
    }
    let is_table = known.iter().any(|name| is_inside(name, key));
    if is_table && all_are(values, Json::is_object) {
        return;
    }
    if in_list {
        let help = format!("name a key of an entry, such as `{key}[0].name`, or list whole lists");
        reader.wrong_help(path, "belongs to a list", help);
        return;
    }
    let order = crate::config::extract::strongest(&reader.layers, path).unwrap_or(0);
    let mut probe = reader.layers[order].clone();
    let place = probe.places.get(path).map_or(0..0, |place| place.key.clone());
    for length in 1..=schema_path.len() {
        let place = KeySpan { key: place.clone(), value: place.clone() };
        probe.places.insert(schema_path[..length].to_vec(), place);
    }
    let problem = unknown(&probe, &schema_path, order, reader.vocabulary.page());
    let problem = problem.or_else(|| {
        // Otherwise it is in a table with any keys: the arguments of a data set in Python.
        let help = "name one of its keys, such as `optimizer.lr`";
        is_table.then(|| reader.problem(path, "is a table").help(help))
    });
    reader.problems.extend(problem);
}

fn all_are(values: &[&Json], is_such: fn(&Json) -> bool) -> bool {
    !values.is_empty() && values.iter().all(|value| is_such(value))
}

/// True if a table that is the value of `key` holds the key `inner` of an experiment.
fn sets_key(value: &Json, key: &str, inner: &str) -> bool {
    let rest = inner[key.len()..].trim_start_matches('.');
    rest.split('.').try_fold(value, |value, part| value.get(part)).is_some()
}

fn domain(reader: &mut Reader, path: &[String]) -> Option<Domain> {
    let at = |key: &str| join(path, key);
    let words = [
        ("categorical", 0),
        ("uniform", 1),
        ("log_uniform", 2),
        ("int_uniform", 3),
        ("q_uniform", 4),
        ("int_log_uniform", 5),
    ];
    let has_values = reader.get(&at("values")).is_some();
    let kind = match (reader.get(&at("distribution")).is_some(), has_values) {
        (true, _) => reader.word(&at("distribution"), &words)?,
        (false, true) => 0,
        (false, false) => {
            let help = "add one, such as `values = [0.1, 0.01]`, or `distribution = \
                        \"log_uniform\"` with `min` and `max`";
            reader.wrong_help(path, "says neither `values` nor `distribution`", help);
            return None;
        }
    };
    let foreign: &[&str] = match kind {
        0 => &["min", "max", "q"],
        4 => &["values"],
        _ => &["values", "q"],
    };
    let name = words[kind].0;
    for key in foreign.iter().filter(|key| reader.get(&at(key)).is_some()).collect::<Vec<_>>() {
        reader.wrong(&at(key), format!("has no meaning for `{name}`: remove it"));
    }
    match kind {
        0 if !has_values => {
            reader.wrong(path, "`categorical` needs `values`");
            None
        }
        0 => values(reader, &at("values")).map(|values| Domain::Categorical { values }),
        _ => numbers(reader, path, kind),
    }
}

/// The values of a list: at least one, none twice.
fn values(reader: &mut Reader, path: &[String]) -> Option<Vec<Json>> {
    let Some(Value::Array(_, items)) = reader.get(path) else {
        reader.wrong(path, "must be a list of values");
        return None;
    };
    let n = items.len();
    if n == 0 {
        reader.wrong(path, "is empty: there is nothing to try");
        return None;
    }
    let values: Vec<Option<Json>> =
        (0..n).map(|index| value(reader, &join(path, &index.to_string()))).collect();
    let values: Vec<Json> = values.into_iter().collect::<Option<_>>()?;
    let mut known = HashSet::new();
    let twice = values.iter().position(|value| !known.insert(canonical(value)));
    if let Some(index) = twice {
        reader.wrong(&join(path, &index.to_string()), "is listed twice");
        return None;
    }
    Some(values)
}

/// The value at `path`; a problem where it holds a number that no run could have.
fn value(reader: &mut Reader, path: &[String]) -> Option<Json> {
    let value = reader.get(path)?;
    let Some((inside, number)) = not_finite(value) else { return Some(json(value)) };
    let at: Path = path.iter().cloned().chain(inside).collect();
    reader.wrong(&at, format!("must be a finite number, not {number}"));
    None
}

/// The path to a number in `value` that JSON cannot write, and the number.
fn not_finite(value: &Value) -> Option<(Path, f64)> {
    let inside = |key: String, value: &Value| {
        let (path, number) = not_finite(value)?;
        Some(([key].into_iter().chain(path).collect(), number))
    };
    match value {
        Value::Array(_, items) => {
            let mut items = items.iter().enumerate();
            items.find_map(|(index, item)| inside(index.to_string(), item))
        }
        Value::Dict(_, dict) => dict.iter().find_map(|(key, item)| inside(key.clone(), item)),
        other => other.to_f64().filter(|x| !x.is_finite()).map(|x| (Path::new(), x)),
    }
}

fn numbers(reader: &mut Reader, path: &[String], kind: usize) -> Option<Domain> {
    let at = |key: &str| join(path, key);
    for key in ["min", "max"] {
        if reader.get(&at(key)).is_none() {
            reader.wrong(path, format!("needs `{key}`"));
        }
    }
    let (min, max) = (reader.real(&at("min")), reader.real(&at("max")));
    let (min, max) = (min?, max?);
    if min >= max {
        reader.wrong(&at("min"), format!("must be less than `max`, {max}"));
        return None;
    }
    match kind {
        2 | 5 if min <= 0.0 => {
            let other = if kind == 2 { "use `uniform`" } else { "use `int_uniform`" };
            reader.wrong_help(&at("min"), "must be greater than 0: it has no logarithm", other);
            None
        }
        2 => Some(Domain::LogUniform { min, max }),
        3 | 5 => {
            for (key, bound) in [("min", min), ("max", max)] {
                if bound.fract() != 0.0 || bound.abs() > 1e15 {
                    reader.wrong(&at(key), "must be a whole number");
                    return None;
                }
            }
            let (min, max) = (min as i64, max as i64);
            Some(if kind == 3 {
                Domain::IntUniform { min, max }
            } else {
                Domain::IntLogUniform { min, max }
            })
        }
        4 => {
            if reader.get(&at("q")).is_none() {
                reader.wrong(path, "needs `q`, the distance between two values");
                return None;
            }
            let q = reader.real(&at("q"))?;
            if q <= 0.0 || q > max - min {
                reader.wrong(&at("q"), "must be greater than 0 and fit between `min` and `max`");
                return None;
            }
            Some(Domain::QUniform { min, max, q })
        }
        _ => Some(Domain::Uniform { min, max }),
    }
}

/// `when = { "optimizer.name" = "sgd" }`, or a list of values; tables stand for dots.
fn conditions(reader: &mut Reader, path: &[String]) -> Vec<Condition> {
    let mut found = Vec::new();
    let Some(value) = reader.get(path).cloned() else { return found };
    if value.as_dict().is_none() {
        let help = "write, for example, `when = { \"optimizer.name\" = \"sgd\" }`";
        reader.wrong_help(path, "must be a table of other parameters and their values", help);
    }
    if let Some((_, number)) = not_finite(&value) {
        reader.wrong(path, format!("must hold finite numbers, not {number}"));
        return found;
    }
    let mut open = vec![(String::new(), value)];
    while let Some((key, value)) = open.pop() {
        match value {
            Value::Dict(_, dict) => {
                for (name, value) in dict {
                    let key = if key.is_empty() { name } else { format!("{key}.{name}") };
                    open.push((key, value));
                }
            }
            Value::Array(_, items) => {
                found.push(Condition { key, values: items.iter().map(json).collect() });
            }
            value => found.push(Condition { key, values: vec![json(&value)] }),
        }
    }
    found.sort_by(|a, b| a.key.cmp(&b.key));
    found
}

/// `constraints = ["train.batch_size <= 64"]`, or one rule alone.
pub(super) fn constraints(reader: &mut Reader) -> Vec<Constraint> {
    let path = path_of("sweep.constraints");
    let texts: Vec<(Path, Value)> = match reader.get(&path).cloned() {
        None => return Vec::new(),
        Some(Value::Array(_, items)) => {
            let at = |index: usize| join(&path, &index.to_string());
            items.into_iter().enumerate().map(|(index, item)| (at(index), item)).collect()
        }
        Some(one) => vec![(path, one)],
    };
    let mut found = Vec::new();
    for (at, text) in texts {
        let Some(text) = text.as_str() else {
            let help = "write, for example, \"train.batch_size <= 64\"";
            reader.wrong_help(&at, "must be text", help);
            continue;
        };
        match Constraint::parse(text) {
            Ok(constraint) => {
                for name in constraint.names() {
                    if !reader.vocabulary.keys().contains(&name)
                        && !name.starts_with("model.options.")
                    {
                        reader.wrong(&at, format!("`{name}` is not a key of an experiment"));
                    }
                }
                found.push(constraint);
            }
            Err((what, byte)) => reader.wrong(&at, format!("{what} (at character {})", byte + 1)),
        }
    }
    found
}

/// `[[sweep.list]]` or `[[sweep.start]]`: settings, each a table of keys.
///
/// Keys whose values are whole tables in `parameters` have tables here, too.
pub(super) fn tables(reader: &mut Reader, key: &str, parameters: &[Parameter]) -> Vec<Values> {
    let path = path_of(key);
    let items = match reader.get(&path) {
        None => return Vec::new(),
        Some(Value::Array(_, items)) if items.iter().all(|item| item.as_dict().is_some()) => {
            items.len()
        }
        Some(_) => {
            reader.wrong_help(
                &path,
                "must be a list of tables",
                format!("begin each with `[[{key}]]`"),
            );
            return Vec::new();
        }
    };
    let mut found = Vec::new();
    for index in 0..items {
        let at = join(&path, &index.to_string());
        let mut values = Values::new();
        let n_before = reader.problems.len();
        entries(reader, &at, "", parameters, &mut values);
        if values.is_empty() && reader.problems.len() == n_before {
            reader.wrong(&at, "changes nothing");
        }
        found.push(values);
    }
    found
}

fn entries(
    reader: &mut Reader,
    path: &[String],
    prefix: &str,
    parameters: &[Parameter],
    found: &mut Values,
) {
    for name in reader.keys(path) {
        let at = join(path, &name);
        let key = if prefix.is_empty() { name } else { format!("{prefix}.{name}") };
        let is_whole = parameters.iter().any(|parameter| parameter.key == key);
        match reader.get(&at).cloned() {
            Some(Value::Dict(..)) if !is_whole => entries(reader, &at, &key, parameters, found),
            Some(_) => {
                if let Some(value) = value(reader, &at) {
                    check_key(reader, &at, &key, &[&value]);
                    found.push((key, value));
                }
            }
            None => {}
        }
    }
}

/// A remedy for a key that "belongs to `sgd`, but `name` is `adamw`": a condition.
pub(super) fn remedy_of(key: &str, what: &str) -> Option<String> {
    let owners = what.strip_prefix("belongs to ")?.split(", but").next()?;
    let owners: Vec<String> =
        owners.split('`').skip(1).step_by(2).map(|name| format!("\"{name}\"")).collect();
    let names = match &owners[..] {
        [one] => one.clone(),
        all => format!("[{}]", all.join(", ")),
    };
    let table = key.split('.').next()?;
    Some(format!("give it `when = {{ \"{table}.name\" = {names} }}`"))
}
