//! figment's words for a value of the wrong kind -> the user's words.

use figment::error::{Actual, Kind};

use crate::config::suggest::{any_of, closest};

/// What is wrong and, where something helps, what to do.
pub(crate) fn describe(kind: &Kind, allowed: &[&str]) -> (String, Option<String>) {
    match kind {
        Kind::UnknownVariant(written, names) => not_one_of(written, names),
        Kind::InvalidType(actual, _) if !allowed.is_empty() => {
            (format!("must be {}, not {}", any_of(allowed.iter().copied()), found(actual)), None)
        }
        Kind::InvalidType(actual, expected) | Kind::InvalidValue(actual, expected) => (
            format!("must be {}, not {}", wanted(expected), found(actual)),
            unquote(actual, expected),
        ),
        Kind::InvalidLength(length, expected) => {
            (format!("must be {}, not a list of {length}", wanted(expected)), None)
        }
        Kind::UnknownField(_, names) => {
            ("is not a key of an experiment".to_owned(), Some(any_of(names.iter().copied())))
        }
        other => (other.to_string(), None),
    }
}

fn not_one_of(written: &str, names: &[&str]) -> (String, Option<String>) {
    let what = format!("must be {}, not `{written}`", any_of(names.iter().copied()));
    let meant = closest(&written.to_lowercase(), names.iter().copied());
    (what, meant.map(|name| format!("did you mean `{name}`?")))
}

/// serde's expectation in words.
fn wanted(expected: &str) -> &str {
    match expected {
        "u8" | "u16" | "u32" => "a whole number from 0 to 4294967295",
        "u64" | "usize" => "a whole number of at least 0",
        "i32" | "i64" => "a whole number",
        "f32" | "f64" => "a number",
        "a boolean" => "`true` or `false`",
        "a string" | "path string" | "a path" | "any valid path" => "text in quotes",
        "a sequence" => "a list",
        "an array of length 2" | "a tuple of size 2" => "a list of two numbers",
        "a map" => "a table",
        table if table.starts_with("struct ") => "a table",
        own => own,
    }
}

fn found(actual: &Actual) -> String {
    match actual {
        Actual::Bool(truth) => format!("`{truth}`"),
        Actual::Unsigned(number) => number.to_string(),
        Actual::Signed(number) => number.to_string(),
        Actual::Float(number) => format!("{number:?}"),
        Actual::Str(text) => format!("`\"{text}\"`"),
        Actual::Seq => "a list".to_owned(),
        Actual::Map => "a table".to_owned(),
        other => other.to_string(),
    }
}

/// A number or truth value in quotes needs them taken away.
fn unquote(actual: &Actual, expected: &str) -> Option<String> {
    let Actual::Str(text) = actual else { return None };
    let plain = match wanted(expected) {
        "`true` or `false`" => text.parse::<bool>().is_ok(),
        wanted if wanted.contains("number") => text.parse::<f64>().is_ok(),
        _ => false,
    };
    plain.then(|| format!("without quotes: {text}"))
}
