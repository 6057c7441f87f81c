//! Tables of files: each key is declared once, as the field of a struct.
//!
//! The doc comment is the meaning, what stands behind `=` the default, and attributes of `schemars`
//! say the rest: `range(min, max)`, or `extend("minimum" = ..., "maximum" = ...)` for what is
//! written with a unit (the type says with which); `example`; and
//!
//! - `extend("x-resume" = SAFE)`: the key can change when a run is continued; of a table, all of
//!   its keys can. `FOLDER`: a run stays in it.
//! - `extend("x-eval" = "why")`: the key changes no evaluation, and why; `TAKEN`: it does.
//! - `extend("x-aliases" = ["word"])`: what other programs call it.
//! - `extend("x-if-zero" = "what to write instead")`.
//!
//! A key of a table says it before its table does. Text without a default has to be given; any
//! other value without one is off.
//!
//! From the schema of such a struct follow the defaults, the reference page, the JSON schema,
//! carets, suggestions, ranges, and the rules of `resume` and `eval`.

use figment::value::{Dict, Value as Given};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::config::spans::Path;

/// Declares a table: its derives, and its default values out of what stands behind `=`.
macro_rules! table {
    (
        $(#[$about:meta])*
        $vis:vis struct $name:ident {
            $($(#[$rule:meta])* $seen:vis $key:ident: $type:ty $(= $default:expr)?,)*
        }
    ) => {
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[derive(schemars::JsonSchema)]
        #[serde(deny_unknown_fields, default)]
        $(#[$about])*
        $vis struct $name {
            $($(#[$rule])* $seen $key: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($key: table!(@default $($default)?),)* }
            }
        }
    };
    (@default) => { Default::default() };
    (@default $default:expr) => { $default };
}

pub(crate) use table;

/// The key can change when a run is continued: no number of the finished part depends on it.
pub(crate) const SAFE: &str = "safe";
/// The key names a folder that a run stays in.
pub(crate) const FOLDER: &str = "folder";
/// The key changes an evaluation, though others of its table do not.
pub(crate) const TAKEN: &str = "";

/// Marks a key that has to be given.
const REQUIRED: &str = "x-required";

/// The schema of the file whose top is `T`, with the schemas of its tables in it.
pub(crate) fn declared<T: JsonSchema>() -> Value {
    let mut schema = generator().into_root_schema_for::<T>().to_value();
    tidy(&mut schema);
    schema
}

/// A generator of schemas without references.
pub(crate) fn generator() -> schemars::SchemaGenerator {
    schemars::generate::SchemaSettings::draft2020_12()
        .with(|settings| settings.inline_subschemas = true)
        .into_generator()
}

/// Leaves defaults only where a key has one: a table has those of its keys, `null` is off, and text
/// that is empty has to be given.
fn tidy(schema: &mut Value) {
    match schema {
        Value::Object(keys) => {
            let default = keys.get("default");
            if default.is_some_and(|value| value.is_null() || value.is_object()) {
                keys.shift_remove("default");
            } else if default.is_some_and(|value| value == "") {
                keys.shift_remove("default");
                keys.insert(REQUIRED.to_owned(), true.into());
            }
            keys.values_mut().for_each(tidy);
        }
        Value::Array(items) => items.iter_mut().for_each(tidy),
        _ => {}
    }
}

/// True if the key with this schema must be given.
pub(crate) fn is_required(schema: &Value) -> bool {
    schema.get(REQUIRED).is_some()
}

/// The keys of a table; `None` if the schema is of no table with fixed keys.
pub(crate) fn keys_of(schema: &Value) -> Option<&serde_json::Map<String, Value>> {
    schema.get("properties")?.as_object()
}

/// Schema of the values of a table whose keys are the user's own.
pub(crate) fn each_of(schema: &Value) -> Option<&Value> {
    schema.get("additionalProperties").filter(|inner| inner.is_object())
}

/// The schemas on the way to what is at `path`, from the outside, as far as they are declared.
pub(crate) fn on_the_way<'a>(
    schema: &'a Value,
    path: &[String],
) -> impl Iterator<Item = &'a Value> {
    let mut at = Some(schema);
    let mut path = path.iter().cloned();
    std::iter::from_fn(move || {
        let key = path.next()?;
        let inside = at?;
        at = match key.parse::<usize>() {
            Ok(_) if inside.get("items").is_some() => inside.get("items"),
            _ => inside.pointer(&format!("/properties/{key}")).or(each_of(inside)),
        };
        at
    })
}

/// The schema of the key at `path`; `None` if it is not declared.
pub(crate) fn schema_at<'a>(schema: &'a Value, path: &[String]) -> Option<&'a Value> {
    let (mut last, mut n) = (schema, 0);
    for inner in on_the_way(schema, path) {
        (last, n) = (inner, n + 1);
    }
    (n == path.len()).then_some(last)
}

/// The attribute `rule` of the key at `path`, or else of the innermost table around it.
pub(crate) fn rule<'a>(schema: &'a Value, path: &[String], rule: &str) -> Option<&'a str> {
    on_the_way(schema, path).filter_map(|schema| schema.get(rule)?.as_str()).last()
}

/// Dotted names of the tables and keys that say `word` by the attribute `rule`, of a table without
/// those in it.
pub(crate) fn saying(schema: &Value, rule: &str, word: &str) -> Vec<Path> {
    let mut found = Vec::new();
    for (key, inner) in keys_of(schema).into_iter().flatten() {
        if inner.get(rule).is_some_and(|said| said == word) {
            found.push(vec![key.clone()]);
        } else {
            let inside = saying(inner, rule, word).into_iter();
            found.extend(inside.map(|path| [vec![key.clone()], path].concat()));
        }
    }
    found
}

/// The words that a key takes, if it takes words only.
pub(crate) fn words_of(schema: &Value) -> Vec<&str> {
    let list = |key: &str| schema.get(key).and_then(Value::as_array).into_iter().flatten();
    let mut forms = list("anyOf").filter(|form| form["type"] != "null");
    if let (Some(form), None) = (forms.next(), forms.next()) {
        return words_of(form);
    }
    let words = list("oneOf").map(|form| form.get("const")?.as_str());
    // Where nothing at all is a choice, too.
    let all = words.chain(list("enum").filter(|word| !word.is_null()).map(Value::as_str));
    all.collect::<Option<_>>().unwrap_or_default()
}

/// The least and the most that a whole number with this schema may be.
pub(crate) fn bounds(schema: &Value) -> Option<(u64, u64)> {
    let most = schema["maximum"].as_u64().unwrap_or(u64::MAX);
    schema["minimum"].as_u64().map(|least| (least, most))
}

/// The defaults that `T` has, as a file would write them.
pub(crate) fn defaults<T: Default + Serialize>() -> Dict {
    let Ok(Given::Dict(_, mut whole)) = Given::serialize(T::default()) else { return Dict::new() };
    leave_out_absent(&mut whole);
    whole
}

/// TOML has no null, text that is empty has to be given, and options are those of kinds.
fn leave_out_absent(table: &mut Dict) {
    table.retain(|key, value| match value {
        Given::Empty(..) => false,
        Given::String(_, text) => !text.is_empty(),
        Given::Dict(_, inner) => {
            leave_out_absent(inner);
            key != OPTIONS
        }
        _ => true,
    });
}

/// The field of a table that holds the options of the kind that it chooses.
pub(crate) const OPTIONS: &str = "options";

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use serde_json::json;

    use super::*;
    use crate::config::check::{Finding, range};
    use crate::config::keys::path_of;
    use crate::config::kind::page;
    use crate::config::layer::{Layer, Source};
    use crate::config::problem::Problems;
    use crate::config::reader::Reader;
    use crate::config::values::Duration;
    use crate::config::vocabulary::Vocabulary;

    table! {
        /// What waters a garden.
        struct Garden {
            /// Moves the water.
            pump: Pump,
        }
    }

    table! {
        /// A pump.
        #[schemars(extend("x-eval" = "nothing grows"))]
        struct Pump {
            /// Litres a minute.
            #[schemars(range(min = 1, max = 900), extend("x-resume" = SAFE))]
            flow: u32 = 30,
            /// Longest time that it runs.
            #[schemars(extend(
                "exclusiveMinimum" = 0, "maximum" = 604_800, "examples" = ["10m"],
                "x-eval" = TAKEN,
            ))]
            longest: Option<Duration>,
            /// What drives it: "sun" or
            /// "wind". Required.
            #[schemars(example = &"sun")]
            drive: String,
        }
    }

    /// The error page for a file.
    fn page_of(text: &str) -> String {
        let path = PathBuf::from("garden.toml");
        let (layer, problems) = Layer::document(Source::File(path), text.to_owned());
        let own = layer.dict.clone();
        let vocabulary = Vocabulary::open();
        let mut reader = Reader { layers: vec![layer], problems, vocabulary, noun: "a garden" };
        let _: Garden = reader.read(&declared::<Garden>(), &[], own);
        reader.only(&path_of("pump"), &["flow", "longest", "drive"]);
        Problems::new(reader.problems).page(false, 80)
    }

    #[test]
    fn all_that_is_known_of_a_key_follows_from_its_declaration() {
        let schema = declared::<Garden>();
        let pump = Dict::from([("flow".to_owned(), Given::from(30_u32))]);
        assert_eq!(defaults::<Garden>(), Dict::from([("pump".to_owned(), Given::from(pump))]));
        let expected = "# What waters a garden.\n\n[pump]\n# Moves the water.\n\n# Litres \
            a minute.\nflow = 30\n\n# Longest time that it runs.\n# longest = \"10m\"\n\n# What \
            drives it: \"sun\" or \"wind\". Required.\n# drive = \"sun\"\n";
        assert_eq!(page(&schema, &[]), expected);
        let flow = json!({
            "description": "Litres a minute.",
            "type": "integer",
            "format": "uint32",
            "minimum": 1,
            "maximum": 900,
            "default": 30,
            "x-resume": "safe",
        });
        assert_eq!(schema["properties"]["pump"]["properties"]["flow"], flow);
        let rule = |key: &str, word| rule(&schema, &path_of(key), word);
        assert_eq!(rule("pump.flow", "x-resume"), Some(SAFE));
        assert_eq!(rule("pump.drive", "x-resume"), None);
        assert_eq!(rule("pump.drive", "x-eval"), Some("nothing grows"));
        assert_eq!(rule("pump.longest", "x-eval"), Some(TAKEN));
        assert_eq!(saying(&schema, "x-resume", SAFE), [path_of("pump.flow")]);
    }

    #[test]
    fn all_that_is_wrong_with_a_table_is_told_at_once_and_where() {
        let text = "[pump]\nflow = \"much\"\nlongest = 3\ndirve = \"sun\"\n";
        let page = page_of(text);
        for words in [
            "`pump.flow`: must be a whole number of at least 1, not `\"much\"`",
            "garden.toml:2:8",
            "`pump.longest`: must be a time with its unit",
            "garden.toml:3:11",
            "`pump.drive`: is missing; there is no default",
            "such as `drive = \"sun\"`",
            "`pump.dirve`: is not a key of a garden",
            "did you mean `drive`?",
            "garden.toml:4:1",
            "4 problems",
        ] {
            assert!(page.contains(words), "{words}:\n{page}");
        }
        let page = page_of("[pump]\nflow = 901\nlongest = \"169h\"\ndrive = \"sun\"\n");
        for words in ["must be from 1 to 900, not 901", "more than 0 and at most one week"] {
            assert!(page.contains(words), "{words}:\n{page}");
        }
    }

    #[test]
    fn bounds_count_in_the_unit_of_their_key() {
        let schema = &declared::<Garden>()["properties"]["pump"]["properties"]["longest"];
        let check = |text: &str, is_wrong: bool| {
            let mut found: Vec<Finding> = Vec::new();
            range("longest", &Given::from(text), schema, &mut found);
            assert_eq!(!found.is_empty(), is_wrong, "{text}");
        };
        check("0s", true);
        check("1s", false);
        check("168h", false);
        check("169h", true);
        check("never", false);
    }
}
