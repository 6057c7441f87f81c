//! TOML text -> figment's values, and where each key and value stands in the text.
//!
//! figment forgets positions (and would bring a second TOML parser); `toml::de::DeTable` keeps
//! them.

use std::collections::BTreeMap;
use std::ops::Range;

use figment::value::{Dict, Value};
use toml::Spanned;
use toml::de::{DeInteger, DeTable, DeValue};

/// Keys from the top of the file down; a position in a list is its number.
pub(crate) type Path = Vec<String>;

/// Byte ranges of a key and its value in the text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KeySpan {
    pub(crate) key: Range<usize>,
    pub(crate) value: Range<usize>,
}

/// A text, read.
#[derive(Default)]
pub(crate) struct Document {
    pub(crate) dict: Dict,
    pub(crate) places: BTreeMap<Path, KeySpan>,
    /// Syntax errors with their places.
    pub(crate) errors: Vec<(String, Range<usize>)>,
}

/// Reads a whole document, as far as it is TOML.
pub(crate) fn document(text: &str) -> Document {
    let (table, errors) = DeTable::parse_recoverable(text);
    let mut read = Document::default();
    for error in errors {
        read.errors.push((error.message().to_owned(), visible(text, error.span())));
    }
    read.dict = read.table(&mut Vec::new(), table.get_ref());
    read
}

/// Reads one value that stands alone, such as the right side of an override. `None` if it is not
/// TOML.
pub(crate) fn value(
    text: &str,
    path: &[String],
    key: Range<usize>,
    offset: usize,
) -> Option<(Value, Document)> {
    let parsed = DeValue::parse(text).ok()?;
    let mut read = Document::default();
    read.places.insert(path.to_vec(), KeySpan { key, value: shifted(parsed.span(), offset) });
    let mut inner = Document::default();
    let value = inner.value(&mut path.to_vec(), parsed.get_ref(), 0..text.len());
    for (path, KeySpan { key, value }) in inner.places {
        let place = KeySpan { key: shifted(key, offset), value: shifted(value, offset) };
        read.places.insert(path, place);
    }
    read.errors =
        inner.errors.into_iter().map(|(what, span)| (what, shifted(span, offset))).collect();
    Some((value, read))
}

fn shifted(span: Range<usize>, offset: usize) -> Range<usize> {
    span.start + offset..span.end + offset
}

/// A span that a caret can be drawn under: not empty, inside the text, on character borders.
fn visible(text: &str, span: Option<Range<usize>>) -> Range<usize> {
    let floor = |at: usize| (0..=at.min(text.len())).rev().find(|&i| text.is_char_boundary(i));
    let span = span.unwrap_or(0..0);
    let start = floor(span.start).unwrap_or(0);
    let end = floor(span.end).unwrap_or(0).max(start);
    start..end
}

impl Document {
    fn table(&mut self, path: &mut Path, table: &DeTable<'_>) -> Dict {
        table
            .iter()
            .map(|(key, value)| self.entry(path, key.get_ref(), key.span(), value))
            .collect()
    }

    fn entry(
        &mut self,
        path: &mut Path,
        key: &str,
        key_span: Range<usize>,
        value: &Spanned<DeValue<'_>>,
    ) -> (String, Value) {
        path.push(key.to_owned());
        self.places.insert(path.clone(), KeySpan { key: key_span, value: value.span() });
        let read = self.value(path, value.get_ref(), value.span());
        path.pop();
        (key.to_owned(), read)
    }

    fn value(&mut self, path: &mut Path, value: &DeValue<'_>, span: Range<usize>) -> Value {
        match value {
            DeValue::String(text) => Value::from(text.as_ref()),
            DeValue::Integer(digits) => self.integer(digits, span),
            DeValue::Float(digits) => {
                Value::from(digits.as_str().parse::<f64>().unwrap_or(f64::NAN))
            }
            DeValue::Boolean(truth) => Value::from(*truth),
            DeValue::Datetime(date) => {
                self.errors.push(("dates are not supported".to_owned(), span));
                Value::from(date.to_string())
            }
            DeValue::Array(items) => {
                let items = items
                    .iter()
                    .enumerate()
                    .map(|(index, item)| self.entry(path, &index.to_string(), item.span(), item).1);
                Value::from(items.collect::<Vec<_>>())
            }
            DeValue::Table(table) => Value::from(self.table(path, table)),
        }
    }

    fn integer(&mut self, digits: &DeInteger<'_>, span: Range<usize>) -> Value {
        // Base prefix and underscores are gone from the digits.
        i64::from_str_radix(digits.as_str(), digits.radix()).map_or_else(
            |_| {
                let what = format!("is too large: the largest integer is {}", i64::MAX);
                self.errors.push((what, span));
                Value::from(0_i64)
            },
            Value::from,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, path: &[&str], key: &str, value: &str) {
        let read = document(text);
        assert!(read.errors.is_empty(), "{:?}", read.errors);
        let path: Path = path.iter().map(|&s| s.to_owned()).collect();
        let place = &read.places[&path];
        assert_eq!((&text[place.key.clone()], &text[place.value.clone()]), (key, value));
    }

    #[test]
    fn each_key_and_value_is_found_however_it_is_written() {
        check("[train]\nepochs = 3\n", &["train", "epochs"], "epochs", "3");
        check("train.epochs = 3\n", &["train", "epochs"], "epochs", "3");
        check("train = { epochs = 0x10 }\n", &["train", "epochs"], "epochs", "0x10");
        check("[[a.b]]\nx = 1\n[[a.b]]\nx = 'é'\n", &["a", "b", "1", "x"], "x", "'é'");
        check("h = [1, 20]\n", &["h", "1"], "20", "20");
        check("[expect]\n\"val/loss\" = 1\n", &["expect", "val/loss"], "\"val/loss\"", "1");
    }

    #[test]
    fn every_syntax_error_is_reported_where_it_is() {
        let read = document("[train\nepochs = 3\n[data]\nname = mnist\nname = 'x'\n");
        assert!(read.errors.len() >= 2, "{:?}", read.errors);
    }

    #[test]
    fn values_that_no_number_can_hold_are_errors() {
        let read = document("seed = 9223372036854775808\nday = 1979-05-27\n");
        assert_eq!(read.errors.len(), 2, "{:?}", read.errors);
    }

    #[test]
    fn nesting_and_repetition_bombs_are_errors_and_no_crash() {
        for bomb in
            ["a = ".to_owned() + &"[".repeat(500_000), "[a.".repeat(300_000), "{".repeat(1 << 20)]
        {
            assert!(!document(&bomb).errors.is_empty());
        }
    }
}
