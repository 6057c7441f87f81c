//! Ranges of numbers and paths; options of kinds: whose they are, and the rules between them.

use std::borrow::Cow;
use std::path::Path;

use figment::value::{Dict, Value};
use serde_json::Value as Json;

use crate::config::check::finding::Finding;
use crate::config::check::names;
use crate::config::extract::merged;
use crate::config::faults::{form_of, shape_of};
use crate::config::kind::{FamilySpec, Key, OptionConflict, Requirement, Spec};
use crate::config::loaded::Loaded;
use crate::config::schema::DECLARED;
use crate::config::suggest::any_of;
use crate::config::values::{SECONDS, measured};
use crate::config::vocabulary::Vocabulary;

/// Bounds of a number, in the words of JSON schema.
const BOUNDS: [&str; 4] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];
/// The attribute that says what to write in the place of 0.
const IF_ZERO: &str = "x-if-zero";

/// Findings about the options of each kind that the experiment chooses.
pub(crate) fn all(loaded: &Loaded, vocabulary: &Vocabulary) -> Vec<Finding> {
    let whole: Dict = merged(&loaded.layers).extract().unwrap_or_default();
    let mut found = Vec::new();
    for family in vocabulary.families() {
        let Some(Value::Dict(_, given)) = whole.get(family.table) else { continue };
        let name = given.get("name").and_then(Value::as_str).unwrap_or_default();
        let Some(kind) = family.kind(name) else { continue };
        found.extend(foreign(loaded, family, kind, given));
        found.extend(ranges(family, kind, given));
        found.extend(rules(loaded, family, kind));
        found.extend(needs(loaded, family, kind));
    }
    found
}

/// "`betas` belongs to `adam` or `adamw`, but `name` is `sgd`"
fn foreign(loaded: &Loaded, family: &FamilySpec, kind: &Spec, given: &Dict) -> Vec<Finding> {
    let table = family.table;
    // An empty table asks for nothing: `resolved.toml` once held those of all kinds.
    let is_empty = |value: &Value| value.as_dict().is_some_and(Dict::is_empty);
    let is_foreign = |(key, value): &(&String, &Value)| {
        kind.key(key).is_none()
            && family.owners(key).next().is_some()
            && loaded.is_given(&format!("{table}.{key}"))
            && !is_empty(value)
    };
    let finding = |(key, _): (&String, &Value)| {
        let owners = any_of(family.owners(key));
        let what = format!("belongs to {owners}, but `name` is `{}`", kind.name);
        Finding::new(format!("{table}.{key}"), what)
            .about(format!("{table}.name"))
            .help(instead_of(table, key))
    };
    given.iter().filter(is_foreign).map(finding).collect()
}

/// A remedy for an option that the chosen kind does not have.
fn instead_of(table: &str, key: &str) -> String {
    if key == "freeze_backbone" {
        // What only some models do by an option can be said of the parameters of all.
        return "freeze its layers by name: `[[optimizer.groups]]` with `match = \"features\"` and \
                `frozen = true`; `ddprun plan` lists the groups"
            .to_owned();
    }
    format!("remove it, or pass `~{table}.{key}` on the command line")
}

/// Numbers that are not in the range of their option, and paths that cannot be opened.
fn ranges(family: &FamilySpec, kind: &Spec, given: &Dict) -> Vec<Finding> {
    let mut found = Vec::new();
    for Key { name, schema, .. } in &kind.keys {
        if let Some(value) = given.get(name) {
            range(&format!("{}.{name}", family.table), value, schema, &mut found);
        }
    }
    found
}

/// Numbers of the experiment itself that are not in the range of their key.
pub(crate) fn numbers(loaded: &Loaded) -> Vec<Finding> {
    let whole: Dict = merged(&loaded.layers).extract().unwrap_or_default();
    let mut found = Vec::new();
    range("", &Value::from(whole), &DECLARED, &mut found);
    found
}

/// Numbers and paths of `value`, which is at `key`, that `schema` does not admit.
pub(crate) fn range(key: &str, value: &Value, schema: &Json, found: &mut Vec<Finding>) {
    if !schema.is_object() {
        // What is not declared here is an option of a kind, or the user's own.
        return;
    }
    let schema = &bounded(schema, form_of(schema, shape_of(value)));
    match value {
        Value::Array(_, items) => {
            if let Some(what) = length(items.len(), schema) {
                found.push(Finding::new(key, what));
            }
            for (index, item) in items.iter().enumerate() {
                range(&format!("{key}[{index}]"), item, &schema["items"], found);
            }
        }
        Value::Dict(_, keys) => {
            for (name, value) in keys {
                let key = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
                range(&key, value, &schema["properties"][name], found);
            }
        }
        Value::Num(_, number) => {
            let unsigned = || number.to_u128().and_then(|whole| whole.try_into().ok());
            let whole: Option<i128> = number.to_i128().or_else(unsigned);
            let number = number.to_f64().or(whole.map(|whole| whole as f64));
            let number = number.unwrap_or(f64::INFINITY);
            let written = whole.filter(|_| is_whole(schema)).map(|whole| whole.to_string());
            let written = written.unwrap_or_else(|| shown(number));
            found.extend(outside(key, number, &written, schema));
        }
        Value::String(_, text) if schema.get("x-unit").is_some() => {
            let unit = schema["x-unit"].as_str().unwrap_or_default();
            if let Some(number) = measured(text, unit) {
                found.extend(outside(key, number, &number.to_string(), schema));
            }
        }
        Value::String(_, path)
            if ["path", "output-path"].map(Json::from).contains(&schema["format"]) =>
        {
            let is_written = schema["format"] == "output-path";
            found.extend(names::path_finding(key, Path::new(path), is_written));
        }
        Value::String(_, path) if schema["format"] == "remote-path" => {
            found.extend(names::url_finding(key, path));
        }
        _ => {}
    }
}

/// One of the forms of a key, with the bounds that the key has in all of them.
fn bounded<'a>(schema: &Json, form: &'a Json) -> Cow<'a, Json> {
    let rules = BOUNDS.iter().chain(&[IF_ZERO]).filter_map(|rule| Some((*rule, schema.get(rule)?)));
    let mut form = Cow::Borrowed(form);
    for (rule, value) in rules {
        if form.get(rule) != Some(value) {
            form.to_mut()[rule] = value.clone();
        }
    }
    form
}

/// A finding about a number outside its range, which was written as `written`.
fn outside(key: &str, number: f64, written: &str, schema: &Json) -> Option<Finding> {
    if admits(schema, number) {
        return None;
    }
    let what = if schema["x-unit"] == SECONDS {
        format!("must be {}", time(schema))
    } else {
        format!("must be {}, not {written}", words(schema, number))
    };
    let help = schema[IF_ZERO].as_str().filter(|_| number == 0.0);
    let help = help.map(|help| help.replace("{key}", key));
    Some(Finding::new(key, what).maybe_help(help))
}

/// The reason why a list has too few or too many entries.
fn length(n: usize, schema: &Json) -> Option<String> {
    let [least, most] = ["minItems", "maxItems"].map(|key| schema[key].as_u64());
    match (least, most) {
        (Some(least), _) if (n as u64) < least => {
            Some(format!("must have at least {least}, not {n}"))
        }
        (_, Some(most)) if n as u64 > most => Some(format!("must have at most {most}, not {n}")),
        _ => None,
    }
}

/// The bounds of a JSON schema: lowest, highest, and those that are not reached.
fn bounds(schema: &Json) -> [Option<f64>; 4] {
    BOUNDS.map(|key| schema[key].as_f64())
}

fn admits(schema: &Json, number: f64) -> bool {
    let [low, high, above, below] = bounds(schema);
    number.is_finite()
        && low.is_none_or(|low| number >= low)
        && high.is_none_or(|high| number <= high)
        && above.is_none_or(|above| number > above)
        && below.is_none_or(|below| number < below)
}

/// True if a key is a whole number, which may be absent, or a count with a unit.
fn is_whole(schema: &Json) -> bool {
    let kind = &schema["type"];
    let is_integer = |schema: &Json| schema["type"] == "integer";
    is_integer(schema)
        || schema.get("x-unit").is_some()
        || kind.as_array().is_some_and(|kinds| kinds.contains(&"integer".into()))
}

/// Past this a bound of whole numbers only keeps slips away.
const LARGE: f64 = 65_536.0;

/// "from 0 to 1"; what `number` breaks of it.
fn words(schema: &Json, number: f64) -> String {
    match bounds(schema) {
        [Some(low), Some(high), ..] if is_whole(schema) && high >= LARGE => {
            if number < low {
                format!("at least {low}")
            } else {
                format!("at most {high}")
            }
        }
        [Some(low), Some(high), ..] if high >= LARGE => format!("from {low} to {high:e}"),
        [Some(low), Some(high), ..] => format!("from {low} to {high}"),
        [None, None, Some(above), Some(below)] => format!("between {above} and {below}"),
        [Some(low), None, None, Some(below)] => format!("at least {low} and less than {below}"),
        [None, Some(high), Some(above), None] => format!("greater than {above} and at most {high}"),
        [Some(low), ..] if is_whole(schema) => format!("at least {low}"),
        [Some(low), ..] => format!("at least {low} and finite"),
        [None, None, Some(above), None] => format!("greater than {above} and finite"),
        _ => "finite".to_owned(),
    }
}

/// "more than 0 and at most one week"
fn time(schema: &Json) -> String {
    const WEEK: u64 = 7 * 24 * 3600;
    let most = match schema["maximum"].as_u64().unwrap_or(u64::MAX) {
        WEEK => "one week".to_owned(),
        most if most.is_multiple_of(WEEK) => format!("{} weeks", most / WEEK),
        most => format!("{most} seconds"),
    };
    format!("more than 0 and at most {most}")
}

/// A number without a tail of noughts: 0.1, 1e308, nan.
fn shown(value: f64) -> String {
    if value.is_nan() { "nan".to_owned() } else { format!("{value:?}") }
}

/// Findings of the kind's own rules.
fn rules(loaded: &Loaded, family: &FamilySpec, kind: &Spec) -> Vec<Finding> {
    let table = family.table;
    let Some(options) = loaded.experiment.options(table) else { return Vec::new() };
    let finding = |wrong: OptionConflict| {
        let key = format!("{table}.{}", wrong.key);
        let is_given = loaded.is_given(&key);
        let mut finding = Finding::new(key, wrong.what);
        if !is_given {
            finding = finding.asked_by(format!("{table}.name"));
        }
        wrong.with.iter().fold(finding, |finding, key| finding.about(format!("{table}.{key}")))
    };
    kind.check(options).into_iter().map(finding).collect()
}

/// A finding about a requirement of the kind that the experiment does not meet.
fn needs(loaded: &Loaded, family: &FamilySpec, kind: &Spec) -> Option<Finding> {
    let train = &loaded.experiment.train;
    let is_timed = train.epochs.is_none() && train.steps.is_none() && train.time.is_some();
    (is_timed && kind.requirements.contains(&Requirement::LastStep)).then(|| {
        let what = "needs a fixed number of steps, but only `train.time` ends the run";
        Finding::new(format!("{}.name", family.table), what)
            .about("train.epochs")
            .about("train.steps")
            .help("set `train.epochs` or `train.steps`")
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_whole_number_is_shown_as_one_whether_it_may_be_absent_or_not() {
        let told = |kind: Json, value: Value| {
            let mut found = Vec::new();
            let schema = json!({ "type": kind, "minimum": 16, "maximum": 512 });
            range("data.image_size", &value, &schema, &mut found);
            found.remove(0).what
        };
        let whole = Value::from(0);
        assert_eq!(told(json!("integer"), whole.clone()), "must be from 16 to 512, not 0");
        let may_lack = json!(["integer", "null"]);
        assert_eq!(told(may_lack, whole.clone()), "must be from 16 to 512, not 0");
        assert_eq!(told(json!("number"), whole), "must be from 16 to 512, not 0.0");
    }
}
