//! Values as YAML, and names that Kubernetes takes. Pure.

use serde_json::Value;

use crate::cluster::Job;

/// Values as the documents of one manifest.
pub(super) fn documents(all: &[Value]) -> String {
    let text = |value: &Value| lines(value).join("\n") + "\n";
    all.iter().map(text).collect::<Vec<_>>().join("---\n")
}

/// The lines of a value; what hangs below it is indented already.
fn lines(value: &Value) -> Vec<String> {
    match value {
        Value::Object(table) if !table.is_empty() => {
            table.iter().flat_map(|(key, value)| entry(key, value)).collect()
        }
        Value::Array(all) if !all.iter().all(is_word) => all.iter().flat_map(item).collect(),
        Value::Array(all) => {
            vec![format!("[{}]", all.iter().map(word).collect::<Vec<_>>().join(", "))]
        }
        Value::String(text) => text_block(text).unwrap_or_else(|| vec![plain(text)]),
        leaf => vec![leaf.to_string()],
    }
}

/// `key: value`
fn entry(key: &str, value: &Value) -> Vec<String> {
    let (key, inner) = (plain(key), lines(value));
    match value {
        Value::Object(table) if !table.is_empty() => below(format!("{key}:"), inner),
        Value::Array(all) if !all.iter().all(is_word) => [vec![format!("{key}:")], inner].concat(),
        _ => headed(&format!("{key}: "), inner),
    }
}

/// `- value`
fn item(value: &Value) -> Vec<String> {
    headed("- ", lines(value))
}

/// Lines of which the first stands behind `head`, and the others below it.
fn headed(head: &str, lines: Vec<String>) -> Vec<String> {
    let mut lines = lines.into_iter();
    let first = lines.next().unwrap_or_default();
    below(format!("{head}{first}"), lines)
}

fn below(first: String, lines: impl IntoIterator<Item = String>) -> Vec<String> {
    let indented = |line: String| if line.is_empty() { line } else { format!("  {line}") };
    std::iter::once(first).chain(lines.into_iter().map(indented)).collect()
}

/// Whether it fits between brackets.
fn is_word(value: &Value) -> bool {
    match value {
        Value::Object(table) => table.is_empty(),
        Value::Array(all) => all.is_empty(),
        Value::String(text) => !text.contains('\n'),
        _ => true,
    }
}

fn word(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), plain)
}

/// Several lines of text as they are, where YAML can have them so.
fn text_block(text: &str) -> Option<Vec<String>> {
    let is_plain = |c: char| !c.is_control() || c == '\n' || c == '\t';
    let (head, body) = match text.strip_suffix('\n') {
        Some(body) => ("|", body),
        None => ("|-", text),
    };
    let fits = text.contains('\n')
        && text.chars().all(is_plain)
        && !body.starts_with(char::is_whitespace)
        && !body.ends_with(char::is_whitespace);
    fits.then(|| std::iter::once(head).chain(body.split('\n')).map(str::to_owned).collect())
}

/// Text as a word, which is quoted where YAML would take it for something else.
fn plain(text: &str) -> String {
    const OTHERS: [&str; 9] = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    let begins = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/');
    if begins && text.chars().all(is_plain) && !OTHERS.contains(&&*text.to_ascii_lowercase()) {
        return text.to_owned();
    }
    // JSON is YAML.
    Value::from(text).to_string()
}

/// Whether Kubernetes takes it for the name of a claim or of a volume: a DNS subdomain.
pub(super) fn is_name(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    (1..=253).contains(&text.len())
        && text.starts_with(inner)
        && text.ends_with(inner)
        && text.chars().all(|c| inner(c) || "-.".contains(c))
}

/// Name of a job: a DNS label, to which a pod's number can be added, and what `JobSet` adds to the
/// pods of its jobs (`-node-0-1023-abcde`).
pub(super) fn name_of(job: &Job) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = job.name.chars().map(plain).take(20).collect();
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
    use serde_json::json;

    use super::*;

    #[test]
    fn a_manifest_reads_as_people_write_it() {
        let values = [
            json!({"kind": "A", "spec": {"n": 1, "is": true, "none": {}, "list": []}}),
            json!({"command": ["sh", "-c", "cd \"/a b\"\n\nexec x"], "values": [2, 75, "True"]}),
            json!({"of": [{"name": "x", "at": ["/p"]}, {"key": "true", "a:b": 1}], "t": "a\nb\n"}),
            json!({"lead": " a\nb", "trail": "a\n\n", "bell": "a\n\u{7}"}),
        ];
        insta::assert_snapshot!(documents(&values), @r#"
        kind: A
        spec:
          "n": 1
          is: true
          none: {}
          list: []
        ---
        command:
        - sh
        - "-c"
        - |-
          cd "/a b"

          exec x
        values: [2, 75, "True"]
        ---
        of:
        - name: x
          at: [/p]
        - key: "true"
          "a:b": 1
        t: |
          a
          b
        ---
        lead: " a\nb"
        trail: "a\n\n"
        bell: "a\n\u0007"
        "#);
    }
}
