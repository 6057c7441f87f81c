//! Parameters of a sweep: what each may be, and when it counts.

use std::collections::BTreeMap;

use serde::de::{Deserializer, Error as _};
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};

use crate::config::spans::Path;
use crate::config::sweep::{Json, Values};

/// Values that a parameter may have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "distribution", rename_all = "snake_case")]
pub enum Domain {
    /// One of some values.
    Categorical {
        /// At least one, none twice.
        values: Vec<Json>,
    },
    /// Any number from `min` to `max`.
    Uniform {
        /// Least.
        min: f64,
        /// Largest.
        max: f64,
    },
    /// Any number, each decade as likely as another.
    LogUniform {
        /// Least; greater than 0.
        min: f64,
        /// Largest.
        max: f64,
    },
    /// A whole number.
    IntUniform {
        /// Least.
        min: i64,
        /// Largest.
        max: i64,
    },
    /// A whole number, each decade as likely as another.
    IntLogUniform {
        /// Least; greater than 0.
        min: i64,
        /// Largest.
        max: i64,
    },
    /// A multiple of `q` above `min`.
    QUniform {
        /// Least.
        min: f64,
        /// Largest.
        max: f64,
        /// Distance between two values.
        q: f64,
    },
}

/// A condition on another parameter that makes this one active.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    /// The other parameter.
    pub key: String,
    /// Values of the other parameter that satisfy the condition.
    pub values: Vec<Json>,
}

impl Serialize for Condition {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(1))?;
        map.serialize_entry(&self.key, &self.values)?;
        map.end()
    }
}

impl<'de> Deserialize<'de> for Condition {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut pairs = BTreeMap::<String, Vec<Json>>::deserialize(deserializer)?.into_iter();
        match (pairs.next(), pairs.next()) {
            (Some((key, values)), None) => Ok(Self { key, values }),
            _ => Err(D::Error::custom("a condition names one key")),
        }
    }
}

/// Keys of which the values say nothing about which experiment is better: trials that differ in
/// them alone are repeats of one setting.
pub const REPEAT_KEYS: [&str; 3] = ["data.fold", "data.split_seed", "experiment.seed"];

/// True for parameters that make repeats of a setting rather than settings.
pub fn is_repeat(key: &str) -> bool {
    REPEAT_KEYS.contains(&key)
}

/// A key of the experiment that trials change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parameter {
    /// Dotted name.
    pub key: String,
    /// Values that it may have.
    #[serde(flatten)]
    pub domain: Domain,
    /// Conditions under which it is active: all of these must hold.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub when: Vec<Condition>,
    /// Path in the file.
    #[serde(skip)]
    pub path: Path,
}

impl Condition {
    /// True if it holds for `values`.
    pub fn holds(&self, values: &Values) -> bool {
        value_of(values, &self.key).is_some_and(|value| self.values.contains(value))
    }
}

impl Parameter {
    /// A parameter that is always active.
    pub fn new(key: &str, domain: Domain) -> Self {
        Self { key: key.to_owned(), domain, when: Vec::new(), path: Path::new() }
    }

    /// True if it is active, given the values of the parameters before it.
    pub fn is_active(&self, values: &Values) -> bool {
        self.when.iter().all(|condition| condition.holds(values))
    }
}

impl Domain {
    /// All values, if they can be counted: at most `most`.
    pub fn points(&self, most: usize) -> Option<Vec<Json>> {
        let points = match self {
            Self::Categorical { values } => values.clone(),
            Self::IntUniform { min, max } | Self::IntLogUniform { min, max } => {
                let count = max.abs_diff(*min).saturating_add(1);
                if count > most as u64 {
                    return None;
                }
                (*min..=*max).map(Json::from).collect()
            }
            Self::QUniform { min, max, q } => {
                let count = steps_of(*min, *max, *q) + 1;
                if count > most as u64 {
                    return None;
                }
                (0..count).map(|step| Json::from(on_grid(*min, *q, step))).collect()
            }
            Self::Uniform { .. } | Self::LogUniform { .. } => return None,
        };
        (points.len() <= most).then_some(points)
    }

    /// True if a trial may have this value.
    pub fn contains(&self, value: &Json) -> bool {
        let within = |low: f64, high: f64| value.as_f64().filter(|x| (low..=high).contains(x));
        match self {
            Self::Categorical { values } => {
                values.iter().any(|known| canonical(known) == canonical(value))
            }
            Self::Uniform { min, max } | Self::LogUniform { min, max } => {
                within(*min, *max).is_some()
            }
            Self::IntUniform { min, max } | Self::IntLogUniform { min, max } => {
                within(*min as f64, *max as f64).is_some_and(|x| x.fract() == 0.0)
            }
            Self::QUniform { min, max, q } => within(*min, *max).is_some_and(|x| {
                let step = ((x - min) / q).round() as u64;
                step <= steps_of(*min, *max, *q) && (on_grid(*min, *q, step) - x).abs() < 1e-9 * q
            }),
        }
    }

    /// The values at its ends: all of a list, least and largest of numbers.
    pub fn extremes(&self) -> Vec<Json> {
        match self {
            Self::Categorical { values } => values.clone(),
            Self::Uniform { min, max } | Self::LogUniform { min, max } => {
                vec![Json::from(*min), Json::from(*max)]
            }
            Self::IntUniform { min, max } | Self::IntLogUniform { min, max } => {
                vec![Json::from(*min), Json::from(*max)]
            }
            Self::QUniform { min, max, q } => {
                let last = on_grid(*min, *q, steps_of(*min, *max, *q));
                vec![Json::from(*min), Json::from(last)]
            }
        }
    }
}

/// Distances of `q` that fit between `min` and `max`.
pub fn steps_of(min: f64, max: f64, q: f64) -> u64 {
    // A tenth from 0 to 1 is ten steps, although 1 / 0.1 may come out a little less.
    ((max - min) / q + 1e-9).floor().max(0.0) as u64
}

/// The value `step` distances above `min`, without the dust of binary fractions: 0.3, not
/// 0.30000000000000004.
pub fn on_grid(min: f64, q: f64, step: u64) -> f64 {
    let value = min + q * step as f64;
    format!("{value:.12e}").parse().unwrap_or(value)
}

/// The value of `key`, also where a whole table or list is the value of a key above it.
pub fn value_in<'a>(values: &'a Values, key: &str) -> Option<&'a Json> {
    let inside = |(name, value): &'a (String, Json)| {
        let rest = key.strip_prefix(name.as_str()).filter(|rest| rest.starts_with(['.', '[']))?;
        descend(value, rest)
    };
    value_of(values, key).or_else(|| values.iter().find_map(inside))
}

/// True for `optimizer.lr` and `optimizer`, for `a[0].b` and `a`.
pub fn is_inside(key: &str, table: &str) -> bool {
    key.strip_prefix(table).is_some_and(|rest| rest.starts_with(['.', '[']))
}

/// The value at `path`, such as `.lr` or `[0].size`, inside of `value`.
pub fn descend<'a>(value: &'a Json, path: &str) -> Option<&'a Json> {
    let parts = path.split(['.', '[', ']']).filter(|part| !part.is_empty());
    parts.into_iter().try_fold(value, |value, part| match value {
        Json::Array(items) => items.get(part.parse::<usize>().ok()?),
        value => value.get(part),
    })
}

/// The value of `key` among `values`.
pub fn value_of<'a>(values: &'a Values, key: &str) -> Option<&'a Json> {
    values.iter().find(|(name, _)| name == key).map(|(_, value)| value)
}

/// The parameters, parents before those that depend on them, else in the order of writing.
pub fn ordered(parameters: &[Parameter]) -> Vec<&Parameter> {
    let mut open: Vec<&Parameter> = parameters.iter().collect();
    let mut found = Vec::new();
    while !open.is_empty() {
        let depends = |parameter: &&Parameter| {
            let mut keys = parameter.when.iter().map(|condition| &condition.key);
            keys.any(|key| open.iter().any(|other| other.key == *key))
        };
        let (rest, ready): (Vec<_>, Vec<_>) = open.iter().copied().partition(depends);
        // A circle was refused when the file was read; here it must only come to an end.
        let is_circle = ready.is_empty();
        found.extend(if is_circle { rest.clone() } else { ready });
        open = if is_circle { Vec::new() } else { rest };
    }
    found
}

/// Values of all parameters that count, as `choose` says, in the order of writing.
pub fn in_order(
    parameters: &[Parameter],
    mut choose: impl FnMut(&Parameter) -> Option<Json>,
) -> Values {
    let mut values = Values::new();
    for parameter in ordered(parameters) {
        if parameter.is_active(&values)
            && value_of(&values, &parameter.key).is_none()
            && let Some(value) = choose(parameter)
        {
            values.push((parameter.key.clone(), value));
        }
    }
    as_written(parameters, &mut values);
    values
}

/// Brings values into the order in which their parameters were written.
pub fn as_written(parameters: &[Parameter], values: &mut Values) {
    values.sort_by_key(|(key, _)| parameters.iter().position(|parameter| parameter.key == *key));
}

/// A value in one form: `1`, `1.0` and `1e0` are the same number.
pub fn canonical(value: &Json) -> String {
    /// Whole numbers that a float holds exactly.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    match value {
        Json::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < EXACT => {
                (float as i64).to_string()
            }
            _ => number.to_string(),
        },
        Json::Array(items) => {
            format!("[{}]", items.iter().map(canonical).collect::<Vec<_>>().join(","))
        }
        Json::Object(keys) => {
            let mut pairs: Vec<String> =
                keys.iter().map(|(key, value)| format!("{key:?}:{}", canonical(value))).collect();
            pairs.sort();
            format!("{{{}}}", pairs.join(","))
        }
        other => other.to_string(),
    }
}

/// The changes of a trial against the base in canonical form: trials of equal settings train the
/// same model on the same data, bitwise identical.
pub fn setting_of(values: &Values, base: impl Fn(&str) -> Option<Json>) -> String {
    let is_change = |(key, value): &&(String, Json)| {
        let value = canonical(value);
        base(key).map_or(value != "null", |usual| value != canonical(&usual))
    };
    let mut pairs: Vec<String> = values
        .iter()
        .filter(is_change)
        .map(|(key, value)| format!("{key}={}", canonical(value)))
        .collect();
    pairs.sort();
    pairs.join(" ")
}

/// A value as a change of the experiment: `optimizer.lr=0.01`.
pub fn change_of(key: &str, value: &Json) -> String {
    format!("{key}={}", in_toml(value))
}

/// A value as a file would write it.
pub fn in_toml(value: &Json) -> String {
    // Every value came out of TOML, so TOML can say it.
    toml::Value::try_from(value).map_or_else(|_| value.to_string(), |toml| toml.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_step_of_a_tenth_gives_eleven_clean_numbers_from_zero_to_one() {
        let points = Domain::QUniform { min: 0.0, max: 1.0, q: 0.1 }.points(100).unwrap();
        assert_eq!(points.len(), 11);
        assert_eq!(points[3], json!(0.3));
        assert_eq!(points[10], json!(1.0));
    }

    #[test]
    fn the_same_setting_has_one_form_however_it_is_written() {
        let of =
            |values: Json| -> Values { values.as_object().unwrap().clone().into_iter().collect() };
        let base = |key: &str| (key == "optimizer.momentum").then(|| json!(0.9));
        let of = |values: Json| setting_of(&of(values), base);
        assert_eq!(of(json!({"a": 1, "b": [8]})), of(json!({"b": [8.0], "a": 1.0})));
        assert_eq!(of(json!({"a": 0.5, "optimizer.momentum": 0.9})), of(json!({"a": 0.5})));
        assert_eq!(of(json!({"a": null})), "");
        assert_ne!(of(json!({"optimizer.momentum": null})), "", "the base has one");
        assert_ne!(of(json!({"a": "1"})), of(json!({"a": 1})), "text is no number");
        let large = [9_007_199_254_740_993u64, 9_007_199_254_740_992].map(|n| of(json!({"a": n})));
        assert_ne!(large[0], large[1]);
    }

    #[test]
    fn parameters_are_read_back_as_they_were_written() {
        let values = vec![json!("a"), json!(1), json!([0.1, null]), json!(true)];
        let domains = [
            Domain::Categorical { values: values.clone() },
            Domain::Uniform { min: -1.0, max: 0.1 },
            Domain::LogUniform { min: 1e-7, max: 3.3e-3 },
            Domain::IntUniform { min: i64::MIN, max: 7 },
            Domain::IntLogUniform { min: 1, max: 4096 },
            Domain::QUniform { min: 0.0, max: 1.0, q: 0.1 },
        ];
        for domain in domains {
            let when = vec![Condition { key: "x.y".into(), values: values.clone() }];
            let parameter = Parameter { when, ..Parameter::new("a.b", domain) };
            let text = serde_json::to_string(&parameter).unwrap();
            assert_eq!(serde_json::from_str::<Parameter>(&text).unwrap(), parameter, "{text}");
        }
    }

    #[test]
    fn a_key_is_found_inside_of_whole_tables_and_lists() {
        let values = vec![
            ("optimizer".to_owned(), json!({ "name": "sgd", "lr": 0.5 })),
            ("data.transforms.train".to_owned(), json!([{ "size": 3 }])),
        ];
        let of = |key: &str| value_in(&values, key).cloned();
        assert_eq!(of("optimizer.lr"), Some(json!(0.5)));
        assert_eq!(of("data.transforms.train[0].size"), Some(json!(3)));
        for absent in ["optimizer.momentum", "optimizers.lr", "data.transforms.train[1].size"] {
            assert_eq!(of(absent), None, "{absent}");
        }
    }

    #[test]
    fn numbers_without_an_end_have_no_points() {
        assert_eq!(Domain::Uniform { min: 0.0, max: 1.0 }.points(1000), None);
        assert_eq!(Domain::IntUniform { min: i64::MIN, max: i64::MAX }.points(1000), None);
    }

    #[test]
    fn a_value_becomes_the_words_of_a_command_line() {
        assert_eq!(change_of("a.b", &json!(1e-5)), "a.b=0.00001");
        assert_eq!(change_of("a.b", &json!("x \"y\"")), "a.b='x \"y\"'");
        assert_eq!(change_of("a.b", &json!([64, 32])), "a.b=[64, 32]");
        assert_eq!(change_of("a.b", &json!(true)), "a.b=true");
    }
}
