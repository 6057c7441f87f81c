//! Manifests as YAML, and names that Kubernetes takes. Pure.

use serde::{Serialize, Serializer};
use serde_json::Value;
use serde_saphyr::LitStr;

use crate::Job;

/// Values as the documents of one manifest.
///
/// Text from elsewhere (an experiment, an environment variable) must come back as it was, whatever
/// it holds: readers of YAML 1.1 and 1.2 differ in line breaks (U+0085, U+2028, U+2029) and in
/// words such as `on`. The serializer quotes and escapes whatever they differ in; scripts stay
/// readable.
pub(crate) fn documents(all: &[Value]) -> String {
    all.iter().map(document).collect::<Vec<_>>().join("---\n")
}

#[expect(clippy::expect_used, reason = "a JSON value has no part that YAML lacks")]
fn document(value: &Value) -> String {
    let quoted = serde_saphyr::ser_options! { prefer_block_scalars: false };
    let written = serde_saphyr::to_string_with_options(&Readable(value), quoted);
    written.expect("a JSON value is written as YAML")
}

/// A value whose scripts are blocks of lines.
struct Readable<'a>(&'a Value);

impl Serialize for Readable<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Object(table) => {
                serializer.collect_map(table.iter().map(|(key, value)| (key, Readable(value))))
            }
            Value::Array(all) => serializer.collect_seq(all.iter().map(Readable)),
            Value::String(text) if is_script(text) => LitStr(text).serialize(serializer),
            other => other.serialize(serializer),
        }
    }
}

/// True if text has several lines, and nothing that a reader of a block could take for an
/// indentation or for another line break.
fn is_script(text: &str) -> bool {
    let is_break = |c: char| matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}');
    let is_plain = |c: char| c == '\n' || !(c.is_control() || is_break(c));
    let body = text.strip_suffix('\n').unwrap_or(text);
    text.contains('\n')
        && text.chars().all(is_plain)
        && !body.starts_with(char::is_whitespace)
        && !body.ends_with(char::is_whitespace)
}

/// True if Kubernetes accepts it as the name of a claim or of a volume: a DNS subdomain.
pub(crate) fn is_name(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    (1..=253).contains(&text.len())
        && text.starts_with(inner)
        && text.ends_with(inner)
        && text.chars().all(|c| inner(c) || "-.".contains(c))
}

/// Name of a job: a DNS label, to which a pod's number can be added, and what `JobSet` adds to the
/// pods of its jobs (`-node-0-1023-abcde`).
pub(crate) fn name_of(job: &Job) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = job.name.chars().map(plain).take(16).collect();
    let name = name.trim_matches('-');
    let name = if name.starts_with(|c: char| c.is_ascii_lowercase()) {
        name.to_owned()
    } else {
        format!("run-{name}")
    };
    format!("{}-{}", name.trim_end_matches('-'), job.key)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use proptest::prelude::*;
    use proptest::strategy::ValueTree;
    use serde_json::json;
    use test_support::skipped::python;

    use super::*;

    #[test]
    fn a_manifest_reads_as_people_write_it() {
        let values = [
            json!({"kind": "A", "spec": {"n": 1, "is": true, "none": {}, "list": []}}),
            json!({"command": ["sh", "-c", "cd \"/a b\"\n\nexec x"], "values": [2, 75, "True"]}),
            json!({"of": [{"name": "x", "at": ["/p"]}, {"key": "true", "a:b": 1}], "t": "a\nb\n"}),
            json!({"lead": " a\nb", "trail": "a\n\n", "bell": "a\n\u{7}"}),
        ];
        insta::assert_snapshot!(documents(&values));
    }

    /// Text made of what YAML or a shell gives a meaning to, and of what looks like a line break.
    fn hostile() -> impl Strategy<Value = String> {
        let pieces = prop::sample::select(vec![
            "a",
            " ",
            "\n",
            "\r",
            "\t",
            "\u{85}",
            "\u{2028}",
            "\u{2029}",
            "\u{feff}",
            "\u{a0}",
            "\u{7}",
            "\u{1b}",
            "\u{7f}",
            ":",
            "#",
            "-",
            "?",
            "|",
            ">",
            "'",
            "\"",
            "\\",
            "{",
            "}",
            "[",
            "]",
            ",",
            "&",
            "*",
            "!",
            "%",
            "@",
            "`",
            "=",
            "<<",
            "~",
            "$",
            "é",
            "😀",
            "yes",
            "no",
            "on",
            "null",
            "0x1",
            "1e3",
            ".inf",
            "1:30",
            "2020-01-01",
            "---",
            "...",
            "\n---\n",
            "\nrun: x",
            "\u{2028}run: x",
        ]);
        prop::collection::vec(pieces, 0..8).prop_map(|pieces| pieces.concat())
    }

    fn manifest(texts: &[String]) -> Value {
        let entry = |text: &String| {
            let mut table =
                json!({"text": text, "list": ["a", text], "deep": {"run": text, "end": 1}});
            table[format!("key {text}")] = 1.into();
            table
        };
        texts.iter().map(entry).collect()
    }

    proptest! {
        /// Read by libyaml, as `PyYAML` and Kubernetes' Go do, and by a reader of YAML 1.2.
        #[test]
        fn hostile_text_comes_back_as_it_was(texts in prop::collection::vec(hostile(), 1..8)) {
            let value = manifest(&texts);
            let text = documents(std::slice::from_ref(&value));
            let of_1_1: Value = yaml_serde::from_str(&text).unwrap();
            prop_assert_eq!(&of_1_1, &value, "{}", text);
            let of_1_2: Value = serde_saphyr::from_str(&text).unwrap();
            prop_assert_eq!(&of_1_2, &value, "{}", text);
        }
    }

    /// A reader of YAML 1.1 that does not come from libyaml, and takes `on` for true.
    #[test]
    fn pyyaml_reads_hostile_text_as_it_was() {
        let Some(python) = python("yaml") else { return };
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let texts: Vec<String> =
            (0..500).map(|_| hostile().new_tree(&mut runner).unwrap().current()).collect();
        let value = manifest(&texts);
        let program = "import json, sys, yaml
print(json.dumps(yaml.safe_load(sys.stdin.buffer.read().decode())))";
        let mut child = Command::new(python)
            .args(["-c", program])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let text = documents(std::slice::from_ref(&value));
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let answer = child.wait_with_output().unwrap();
        let read: Value = serde_json::from_slice(&answer.stdout).unwrap();
        assert_eq!(read, value);
    }
}
