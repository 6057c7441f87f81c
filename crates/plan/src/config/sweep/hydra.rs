//! `optimizer.lr=0.1,0.01`, `choice(32,64)`, `range(1,5)`, `interval(0,1)`,
//! `tag(log,interval(1e-4,1))`, `int(interval(1,8))`: the spaces of Hydra's command line -> the
//! table that a sweep file holds.

use std::ops::Range;

use figment::value::{Dict, Empty, Tag, Value};

use crate::config::overrides::bare;
use crate::config::spans::Path;
use crate::config::suggest::{any_of, closest};
use crate::config::sweep::space::{on_grid, steps_of};

/// Functions that name a space.
const SPACES: [&str; 6] = ["choice", "range", "interval", "tag", "int", "float"];

/// A parameter's table.
#[derive(Debug)]
pub(super) struct Space {
    pub(super) table: Dict,
    /// Byte ranges of the values that were written out, each with its path in the table.
    pub(super) places: Vec<(Path, Range<usize>)>,
}

/// The space that `whole`, the right side of a `key=value`, asks for; `None` if it is one value.
/// The error says what is wrong with it.
pub(super) fn space(whole: &str) -> Option<Result<Space, String>> {
    let text = whole.trim();
    if let Some(inner) = call(text, "choice") {
        return Some(values(whole, inner));
    }
    if let Some(inner) = call(text, "range") {
        return Some(range(inner));
    }
    if SPACES[2..].iter().any(|name| call(text, name).is_some()) {
        return Some(interval(whole));
    }
    if let Some(name) = SPACES.iter().find(|name| is_open(text, name)) {
        return Some(Err(format!("missing `)` in `{name}(`")));
    }
    (parts(text).len() > 1).then(|| values(whole, text))
}

/// The byte range of `part`, a slice of `whole`.
fn place(whole: &str, part: &str) -> Range<usize> {
    let start = part.as_ptr().addr() - whole.as_ptr().addr();
    start..start + part.len()
}

/// The reason why a call of an unknown function is wrong, and a remedy. Text that only looks like a
/// call, such as `photos(1)`, is a value.
pub(super) fn unknown_function(text: &str) -> Option<(String, String)> {
    let (name, rest) = text.trim().split_once('(')?;
    let (name, inner) = (name.trim(), rest.strip_suffix(')')?);
    let is_word = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !is_word || SPACES.contains(&name) {
        return None;
    }
    Some((format!("there is no function `{name}`"), instead_of(name, inner)?))
}

fn instead_of(name: &str, inner: &str) -> Option<String> {
    match name.to_lowercase().replace('_', "").as_str() {
        "loguniform" => return Some(format!("write `tag(log, interval({inner}))`")),
        "uniform" => return Some(format!("write `interval({inner})`")),
        "intuniform" | "randint" => return Some(format!("write `int(interval({inner}))`")),
        _ => {}
    }
    let parts = parts(inner);
    if parts.len() < 2 {
        return None;
    }
    if let Some(meant) = closest(name, SPACES) {
        return Some(format!("did you mean `{meant}({inner})`?"));
    }
    let is_call = parts.iter().all(|part| number(part).is_ok());
    is_call.then(|| format!("use {}", any_of(SPACES)))
}

/// True if `text` begins as `name(` and closes fewer parentheses than it opens.
fn is_open(text: &str, name: &str) -> bool {
    let begins = text.strip_prefix(name).is_some_and(|rest| rest.trim_start().starts_with('('));
    begins && text.matches('(').count() > text.matches(')').count()
}

/// The arguments of `name(...)`.
fn call<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let inner = text.strip_prefix(name)?.trim_start().strip_prefix('(')?.strip_suffix(')')?;
    Some(inner)
}

/// The parts of a text between commas outside brackets and quotes.
fn parts(text: &str) -> Vec<&str> {
    let (mut depth, mut quote, mut start) = (0_i32, None, 0);
    let mut found = Vec::new();
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(open), _) if c == open => quote = None,
            (None, '"' | '\'') => quote = Some(c),
            (None, '[' | '{' | '(') => depth += 1,
            (None, ']' | '}' | ')') => depth -= 1,
            (None, ',') if depth == 0 => {
                found.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    found.push(text[start..].trim());
    found
}

fn values(whole: &str, list: &str) -> Result<Space, String> {
    let value = |part: &str| match part {
        "" => Err("has an empty value between two commas".to_owned()),
        // As `key=null` takes a key away.
        "null" => Ok(Value::Empty(Tag::Default, Empty::None)),
        part => bare(part).ok_or_else(|| format!("`{part}` is not a value")),
    };
    let parts = parts(list);
    let path = |index: usize| vec!["values".to_owned(), index.to_string()];
    let places = parts.iter().enumerate().map(|(index, part)| (path(index), place(whole, part)));
    let places = places.collect();
    let values: Vec<Value> = parts.into_iter().map(value).collect::<Result<_, _>>()?;
    Ok(Space { table: Dict::from([("values".to_owned(), Value::from(values))]), places })
}

fn number(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
    number.ok_or_else(|| format!("`{text}` is not a number"))
}

/// `range(stop)`, `range(start, stop)`, `range(start, stop, step)`: without the stop, as Python's.
fn range(inner: &str) -> Result<Space, String> {
    let words: Vec<&str> =
        parts(inner).into_iter().map(|part| part.split_once('=').map_or(part, |p| p.1)).collect();
    let numbers = words.iter().map(|word| number(word)).collect::<Result<Vec<f64>, _>>()?;
    let (start, stop, step) = match numbers[..] {
        [stop] => (0.0, stop, 1.0),
        [start, stop] => (start, stop, 1.0),
        [start, stop, step] => (start, stop, step),
        _ => return Err("`range` takes start, stop and step".to_owned()),
    };
    let span = (stop - start) / step;
    if !span.is_finite() || span <= 0.0 || span > 1e6 {
        return Err("`range` has no value, or more than a million".to_owned());
    }
    let last = steps_of(0.0, span, 1.0);
    let count = if (span - last as f64).abs() < 1e-9 { last } else { last + 1 };
    let whole = numbers.iter().all(|number| number.fract() == 0.0);
    let at = |index: u64| {
        let value = on_grid(start, step, index);
        if whole { Value::from(value as i64) } else { Value::from(value) }
    };
    let values: Vec<Value> = (0..count).map(at).collect();
    let table = Dict::from([("values".to_owned(), Value::from(values))]);
    Ok(Space { table, places: Vec::new() })
}

/// `interval(min, max)`, inside `tag(log, ...)`, `int(...)` or `float(...)`.
fn interval(whole: &str) -> Result<Space, String> {
    let (mut text, mut is_log, mut is_int) = (whole.trim(), false, false);
    loop {
        if let Some(inner) = call(text, "tag") {
            let parts = parts(inner);
            let [tag, rest] = parts[..] else {
                return Err("`tag` takes a tag and a space, such as `tag(log, interval(1e-4, 1))`"
                    .to_owned());
            };
            is_log |= tag == "log";
            if tag != "log" {
                return Err(format!("unsupported tag `{tag}`; only `log` is supported"));
            }
            text = rest;
        } else if let Some(inner) = call(text, "int") {
            (text, is_int) = (inner.trim(), true);
        } else if let Some(inner) = call(text, "float") {
            text = inner.trim();
        } else {
            break;
        }
    }
    let inner = call(text, "interval").ok_or("needs an `interval(min, max)`".to_owned())?;
    let parts = parts(inner);
    let [min, max] = parts[..] else { return Err("`interval` takes min and max".to_owned()) };
    let places = [("min", min), ("max", max)]
        .map(|(key, bound)| (vec![key.to_owned()], place(whole, bound)))
        .into();
    let (min, max) = (number(min)?, number(max)?);
    let name = match (is_int, is_log) {
        (true, true) => "int_log_uniform",
        (true, false) => "int_uniform",
        (false, true) => "log_uniform",
        (false, false) => "uniform",
    };
    let bound = |bound: f64| if is_int { Value::from(bound as i64) } else { Value::from(bound) };
    let table = Dict::from([
        ("distribution".to_owned(), Value::from(name)),
        ("min".to_owned(), bound(min)),
        ("max".to_owned(), bound(max)),
    ]);
    Ok(Space { table, places })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::spans;

    #[track_caller]
    fn check(text: &str, toml: &str) {
        let expected = spans::document(toml);
        assert_eq!(space(text).unwrap().unwrap().table, expected.dict, "{text}");
    }

    #[test]
    fn hydras_words_become_the_tables_of_a_file() {
        check("0.1,0.01", "values = [0.1, 0.01]");
        check("choice(32, 64)", "values = [32, 64]");
        check("sgd,adamw", "values = ['sgd', 'adamw']");
        check("[64,32],[16]", "values = [[64, 32], [16]]");
        check("'a,b',c", "values = ['a,b', 'c']");
        check("'null',1", "values = ['null', 1]");
        check("range(1,4)", "values = [1, 2, 3]");
        check("range(3)", "values = [0, 1, 2]");
        check("range(0,1,step=0.25)", "values = [0.0, 0.25, 0.5, 0.75]");
        check("range(1,8,3)", "values = [1, 4, 7]");
        check("interval(0.1,0.5)", "distribution = 'uniform'\nmin = 0.1\nmax = 0.5");
        check("tag(log, interval(1e-4, 1))", "distribution = 'log_uniform'\nmin = 1e-4\nmax = 1.0");
        check("int(interval(1,8))", "distribution = 'int_uniform'\nmin = 1\nmax = 8");
        let log = "distribution = 'int_log_uniform'\nmin = 8\nmax = 512";
        check("tag(log, int(interval(8, 512)))", log);
    }

    #[test]
    fn one_value_is_no_space() {
        for text in ["0.1", "sgd", "[64,32]", "'a,b'", "{x=1, y=2}", "", "choices(1,2"] {
            assert!(space(text).is_none(), "{text}");
        }
    }

    #[test]
    fn a_function_that_does_not_exist_is_told_ours() {
        let check = |text: &str, name: &str, help: &str| {
            let expected = (format!("there is no function `{name}`"), help.to_owned());
            assert_eq!(unknown_function(text), Some(expected), "{text}");
        };
        let log = "write `tag(log, interval(1e-4,1e-1))`";
        check("loguniform(1e-4,1e-1)", "loguniform", log);
        check("log_uniform(1e-4,1e-1)", "log_uniform", log);
        check("uniform(0, 1)", "uniform", "write `interval(0, 1)`");
        check("randint(1,8)", "randint", "write `int(interval(1,8))`");
        check("intervall(0.1,0.01)", "intervall", "did you mean `interval(0.1,0.01)`?");
        check(
            "normal(0,1)",
            "normal",
            "use `choice`, `range`, `interval`, `tag`, `int` or `float`",
        );
        for text in [
            "0.1",
            "interval(0,1)",
            "photos(1)",
            "change(3)",
            "data/photos (1)",
            "(1,2)",
            "a(b",
            "",
        ] {
            assert_eq!(unknown_function(text), None, "{text}");
        }
    }

    #[test]
    fn spaces_that_are_none_say_why() {
        for (text, why) in [
            ("range(5,1)", "`range` has no value, or more than a million"),
            ("choice(1,,2)", "has an empty value between two commas"),
            ("interval(1)", "`interval` takes min and max"),
            ("tag(lin, interval(1,2))", "unsupported tag `lin`; only `log` is supported"),
            ("1,", "has an empty value between two commas"),
        ] {
            assert_eq!(space(text).unwrap().unwrap_err(), why, "{text}");
        }
    }

    #[test]
    fn every_value_that_was_written_out_has_its_place() {
        let check = |text: &str, expected: &[(&str, &str)]| {
            let places = space(text).unwrap().unwrap().places;
            let found: Vec<(String, &str)> =
                places.into_iter().map(|(path, at)| (path.join("."), &text[at])).collect();
            let expected: Vec<(String, &str)> =
                expected.iter().map(|&(path, part)| (path.to_owned(), part)).collect();
            assert_eq!(found, expected, "{text}");
        };
        check("0.1, -1", &[("values.0", "0.1"), ("values.1", "-1")]);
        check(" choice(sgd,'a,b' )", &[("values.0", "sgd"), ("values.1", "'a,b'")]);
        check("tag(log, interval(1e-4, 1))", &[("min", "1e-4"), ("max", "1")]);
        check("int( interval(1,8) )", &[("min", "1"), ("max", "8")]);
        check("range(1,4)", &[]);
    }
}
