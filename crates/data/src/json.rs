//! Objects of JSON as Python's `json.dumps` writes them: with `NaN` and `Infinity`, which are not
//! JSON.

use serde_json::{Map, Value};

/// Numbers of `json.dumps` that JSON does not have; they are read as words.
pub(crate) const NOT_FINITE: [&str; 3] = ["-Infinity", "Infinity", "NaN"];

/// Why a line is no object, and what can be done about it.
#[derive(Debug, PartialEq, Eq)]
pub struct JsonLineError {
    pub(crate) what: String,
    pub(crate) help: Option<String>,
}

/// The object in a line of JSON.
pub fn object(line: &[u8]) -> Result<Map<String, Value>, JsonLineError> {
    let error = match serde_json::from_slice(line) {
        Ok(object) => return Ok(object),
        Err(error) => error,
    };
    if let Some(quoted) = quoted(line)
        && let Ok(object) = serde_json::from_slice(&quoted)
    {
        return Ok(object);
    }
    Err(lone_surrogate(line).unwrap_or_else(|| {
        let row = error.line();
        let column = error.column();
        let what = error.to_string();
        let what = what.strip_suffix(&format!(" at line {row} column {column}")).unwrap_or(&what);
        let what = format!("it is not a JSON object: {what} at column {column}");
        JsonLineError { what, help: None }
    }))
}

/// The line with quotes around numbers that are not finite; `None` if there are none.
fn quoted(line: &[u8]) -> Option<Vec<u8>> {
    let mut written = Vec::with_capacity(line.len() + 8);
    let mut rest = line;
    let mut has_changed = false;
    while let Some(&byte) = rest.first() {
        let word = NOT_FINITE.iter().find(|word| rest.starts_with(word.as_bytes()));
        let length = match word {
            _ if byte == b'"' => string_length(rest),
            Some(word) => word.len(),
            None => 1,
        };
        let (own, after) = rest.split_at(length);
        rest = after;
        if word.is_some() {
            has_changed = true;
            written.extend([b"\"", own, b"\""].concat());
        } else {
            written.extend(own);
        }
    }
    has_changed.then_some(written)
}

/// Length of the string with which `text` begins, its quotes included.
fn string_length(text: &[u8]) -> usize {
    let mut at = 1;
    while let Some(byte) = text.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    text.len()
}

/// Half of a character outside of the first 65536, which Python writes where a text was cut.
fn lone_surrogate(line: &[u8]) -> Option<JsonLineError> {
    let text = std::str::from_utf8(line).ok()?;
    let unit = |at: usize| {
        let digits = text.get(at..)?.strip_prefix("\\u")?.get(..4)?;
        u16::from_str_radix(digits, 16).ok()
    };
    let mut at = 0;
    while at < text.len() {
        let first = unit(at);
        let second = unit(at + 6);
        at += match (first, second) {
            (Some(0xd800..0xdc00), Some(0xdc00..0xe000)) => 12,
            (Some(0xd800..0xe000), _) => break,
            _ if text.as_bytes()[at] == b'\\' => 2,
            _ => 1,
        };
    }
    let half = text.get(at..at + 6)?;
    Some(JsonLineError {
        what: format!(
            "`{half}` at column {} is half of a character (a lone surrogate): the text was cut \
             within it",
            at + 1
        ),
        help: Some(
            "replace it; in Python, `text.encode(\"utf-8\", \"replace\").decode()` does so before \
             the line is written"
                .to_owned(),
        ),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_that_only_python_writes_are_words() {
        let read = |line: &str| object(line.as_bytes()).map(Value::from);
        let line = r#"{"a": NaN, "b": [-Infinity, 1.5, Infinity], "NaN": "a \"NaN\", -Infinity"}"#;
        let expected = json!({
            "a": "NaN", "b": ["-Infinity", 1.5, "Infinity"], "NaN": "a \"NaN\", -Infinity",
        });
        assert_eq!(read(line), Ok(expected));
        assert_eq!(read(r#"{"a": 1}"#), Ok(json!({"a": 1})));
        let error = read(r#"{"a": NaN, "b"}"#).unwrap_err();
        assert_eq!(error.what, "it is not a JSON object: expected value at column 7");
        assert!(read("[NaN]").unwrap_err().what.contains("expected a map"));
    }

    #[test]
    fn half_of_a_character_is_named_with_its_column() {
        let what = |line: &str| object(line.as_bytes()).unwrap_err().what;
        assert!(object(br#"{"a": "\ud83d\ude00 \\ud83d"}"#).is_ok());
        let found = what(r#"{"a": "\ud83d\ude00", "b": "x \ud83d"}"#);
        assert!(found.starts_with("`\\ud83d` at column 31 is half of a character"), "{found}");
        let found = what(r#"{"a": "\ude00"}"#);
        assert!(found.starts_with("`\\ude00` at column 8 is half"), "{found}");
        let found = what(r#"{"a": "\ud83dx"}"#);
        assert!(found.starts_with("`\\ud83d` at column 8 is half"), "{found}");
        assert!(object(br#"{"a": "\ude00"}"#).unwrap_err().help.is_some());
        assert!(what("{\"a\": 1").contains("EOF"));
    }
}
