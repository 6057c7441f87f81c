//! figment's words for a value of the wrong kind -> the user's words.

use figment::error::{Actual, Kind};

use crate::config::kind::FamilySpec;
use crate::config::suggest::{any_of, closest};

/// The reason why a value is wrong and, if there is one, a remedy. `allowed` are the words that the
/// key takes, if it takes words only, and `bounds` its smallest and largest value, if it is a whole
/// number.
pub(crate) fn describe(
    kind: &Kind,
    allowed: &[&str],
    bounds: Option<(u64, u64)>,
) -> (String, Option<String>) {
    let wanted = |expected| wanted(expected, bounds);
    match kind {
        Kind::UnknownVariant(written, names) => not_one_of(written, names.iter().copied()),
        Kind::InvalidType(actual, _) if !allowed.is_empty() => {
            (format!("must be {}, not {}", any_of(allowed.iter().copied()), found(actual)), None)
        }
        Kind::InvalidType(actual, expected) | Kind::InvalidValue(actual, expected) => {
            let wanted = out_of_range(actual, expected, bounds).unwrap_or_else(|| wanted(expected));
            (format!("must be {wanted}, not {}", found(actual)), unquote(actual, expected))
        }
        Kind::InvalidLength(length, expected) => {
            (format!("must be {}, not a list of {length}", wanted(expected)), None)
        }
        Kind::UnknownField(_, names) => {
            ("is not a key of an experiment".to_owned(), Some(any_of(names.iter().copied())))
        }
        other => (other.to_string(), None),
    }
}

/// A word that is none of `names`: what is wrong, and the word that was probably meant.
pub(crate) fn not_one_of<'a>(
    written: &str,
    names: impl Iterator<Item = &'a str> + Clone,
) -> (String, Option<String>) {
    let what = format!("must be {}, not `{written}`", any_of(names.clone()));
    let meant = closest(&written.to_lowercase(), names);
    (what, meant.map(|name| format!("did you mean `{name}`?")))
}

/// Kinds that are named one by one where another was written.
const MAX_NAMED: usize = 8;

/// The reason why the name of a kind of `family` is wrong, and the name among `names` that was
/// probably meant.
pub(crate) fn not_a_kind<'a>(
    family: &FamilySpec,
    written: &str,
    names: impl Iterator<Item = &'a str> + Clone,
) -> (String, Option<String>) {
    if let Some(kind) = family.left_out(written) {
        return (kind.to_string(), Some(kind.help()));
    }
    let (what, help) = not_one_of(written, names.clone());
    if names.clone().count() <= MAX_NAMED {
        return (what, help);
    }
    let all = || format!("choose one of {}", names.collect::<Vec<_>>().join(", "));
    (format!("no {} is called `{written}`", family.noun), Some(help.unwrap_or_else(all)))
}

/// serde's names of the numbers from 0.
const COUNTS: [&str; 5] = ["u8", "u16", "u32", "u64", "usize"];

/// The range of a whole number that its type cannot hold.
fn out_of_range(actual: &Actual, expected: &str, bounds: Option<(u64, u64)>) -> Option<String> {
    let is_whole = COUNTS.contains(&expected) || expected.ends_with("a whole number");
    let (least, most) = bounds.unwrap_or((0, u32::MAX.into()));
    match *actual {
        Actual::Signed(number) if is_whole && number < 0 => Some(format!("at least {least}")),
        Actual::Signed(_) | Actual::Unsigned(_) if is_whole => Some(format!("at most {most}")),
        _ => None,
    }
}

/// serde's expectation in words.
fn wanted(expected: &str, bounds: Option<(u64, u64)>) -> String {
    let words = match expected {
        count if COUNTS.contains(&count) => "a whole number",
        "i32" | "i64" => "a whole number",
        "f32" | "f64" => "a number",
        "a boolean" => "`true` or `false`",
        "a string" | "path string" | "a path" | "any valid path" => "text in quotes",
        "a sequence" => "a list",
        "an array of length 2" | "a tuple of size 2" => "a list of two numbers",
        "a map" => "a table",
        table if table.starts_with("struct ") => "a table",
        own => own,
    };
    match bounds {
        Some((least, _)) if words.ends_with("a whole number") => {
            format!("{words} of at least {least}")
        }
        _ => words.to_owned(),
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
    let plain = match wanted(expected, None).as_str() {
        "`true` or `false`" => text.parse::<bool>().is_ok(),
        wanted if wanted.contains("number") || wanted.starts_with('0') => {
            text.parse::<f64>().is_ok()
        }
        _ => false,
    };
    plain.then(|| format!("without quotes: {text}"))
}
