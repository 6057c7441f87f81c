//! JSON lists and lines: the kind of their entries, by the first one.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use serde_json::Value;

/// Kind of the entries of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entries {
    /// Utterances, as `NeMo`'s manifests have them.
    Manifest,
    /// Conversations.
    Chats,
    /// Instructions and answers, in Alpaca's form.
    Instructions,
    /// Objects of another kind.
    Rows,
    /// Nothing that could be read.
    Nothing,
}

impl Entries {
    /// Reads the kind of the file at `path`.
    pub(super) fn of(path: &Path) -> Self {
        let Some(entry) = first(path) else { return Self::Nothing };
        let has = |keys: &[&str]| keys.iter().any(|key| !entry[*key].is_null());
        let is_filled = |key: &str| match &entry[key] {
            Value::String(text) => !text.is_empty(),
            Value::Array(items) => !items.is_empty(),
            _ => false,
        };
        // Alpaca's prompt has no place for these turns, of which a chat has any number.
        let has_turns = is_filled("system") || is_filled("history");
        if has(&["audio_filepath", "audio_filename"]) {
            Self::Manifest
        } else if has(&["messages", "conversations"]) {
            Self::Chats
        } else if has(&["instruction"]) && has(&["output"]) {
            if has_turns { Self::Chats } else { Self::Instructions }
        } else {
            Self::Rows
        }
    }
}

/// The bytes that editors of Windows put before a text.
const BYTE_ORDER_MARK: [u8; 3] = [0xEF, 0xBB, 0xBF];

/// The first object of a list, or of lines. No more of the file is read.
fn first(path: &Path) -> Option<Value> {
    let mut reader = BufReader::new(File::open(path).ok()?);
    loop {
        let byte = *reader.fill_buf().ok()?.first()?;
        if !byte.is_ascii_whitespace() && byte != b'[' && !BYTE_ORDER_MARK.contains(&byte) {
            break;
        }
        reader.consume(1);
    }
    let mut values = serde_json::Deserializer::from_reader(reader).into_iter::<Value>();
    values.next()?.ok().filter(Value::is_object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_entry_tells_what_a_file_holds() {
        let folder = tempfile::tempdir().unwrap();
        let of = |text: &str| {
            let path = folder.path().join("entries");
            crate::files::write_atomic(&path, text.as_bytes()).unwrap();
            Entries::of(&path)
        };
        for (text, expected) in [
            ("{\"audio_filepath\": \"a.wav\", \"duration\": 1}\n", Entries::Manifest),
            (" [\n{\"messages\": []}, {", Entries::Chats),
            ("\u{feff}{\"messages\": []}", Entries::Chats),
            ("{\"conversations\": []}\nno json", Entries::Chats),
            ("[{\"instruction\": \"a\", \"output\": \"b\"}]", Entries::Instructions),
            (
                "{\"instruction\": \"a\", \"output\": \"b\", \"system\": \"\"}",
                Entries::Instructions,
            ),
            (
                "{\"instruction\": \"a\", \"output\": \"b\", \"history\": [[\"c\", \"d\"]]}",
                Entries::Chats,
            ),
            ("{\"instruction\": \"a\"}", Entries::Rows),
            ("[]", Entries::Nothing),
            ("[1, 2]", Entries::Nothing),
            ("a word", Entries::Nothing),
        ] {
            assert_eq!(of(text), expected, "{text}");
        }
    }
}
