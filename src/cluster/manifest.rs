//! Words of YAML manifests: quoted text, blocks, tables, and names that Kubernetes takes. Pure.

use std::collections::BTreeMap;

use crate::cluster::Job;

/// Whether Kubernetes takes it for the name of a claim or of a volume: a DNS subdomain.
pub(super) fn is_name(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    (1..=253).contains(&text.len())
        && text.starts_with(inner)
        && text.ends_with(inner)
        && text.chars().all(|c| inner(c) || "-.".contains(c))
}

/// Text as YAML takes it: JSON is YAML.
pub(super) fn yaml(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Lines of text as a YAML block, each after a line break and four blanks.
pub(super) fn block(text: &str) -> String {
    let line = |line: &str| if line.is_empty() { "\n".to_owned() } else { format!("\n    {line}") };
    format!("|{}", text.lines().map(line).collect::<String>())
}

/// `key: value` lines, each after a line break and so many blanks.
pub(super) fn entries(table: &BTreeMap<String, String>, indent: usize) -> String {
    let blanks = " ".repeat(indent);
    let entry =
        |(key, value): (&String, &String)| format!("\n{blanks}{}: {}", yaml(key), yaml(value));
    table.iter().map(entry).collect()
}

/// Name of a job: a DNS label, to which a pod's number can be added.
pub(super) fn name_of(job: &Job) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = job.name.chars().map(plain).take(32).collect();
    let name = name.trim_matches('-');
    let name = if name.starts_with(|c: char| c.is_ascii_lowercase()) {
        name.to_owned()
    } else {
        format!("run-{name}")
    };
    format!("{}-{}", name.trim_end_matches('-'), job.key)
}
