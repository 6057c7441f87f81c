//! `sweep.csv`: one row per trial with its values and everything that it measured.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::config::sweep::value_of;
use crate::files;
use crate::record::EVENTS;
use crate::sweep::journal::SweepSpec;
use crate::sweep::ranking::Ranking;
use crate::sweep::trial::{Report, Trial, keys, word};

/// Name of the table in the sweep's folder.
pub const CSV: &str = "sweep.csv";

/// One row per trial, best first; numbers as they are, to be read by programs.
pub(super) fn csv(
    folder: &Path,
    subject: &SweepSpec,
    ranking: &Ranking,
    trials: &[Trial],
) -> String {
    let keys = keys(trials);
    let order = ranking.ranked(trials);
    let measured: Vec<BTreeMap<String, f64>> = order
        .iter()
        .map(|trial| {
            let best = trial.best(subject.goal);
            best.map(|best| measured_at(&folder.join(trial.id()), &best)).unwrap_or_default()
        })
        .collect();
    let mut others: Vec<&String> = measured.iter().flat_map(BTreeMap::keys).collect();
    others.sort();
    others.dedup();
    others.retain(|name| **name != subject.metric);
    let head =
        ["rank", "trial", "state", &subject.metric, "step", "last_step", "epochs", "seconds"];
    let head = head.iter().map(|&name| name.to_owned()).chain(keys.iter().cloned());
    let head = head.chain(others.iter().map(|name| (*name).clone()));
    let mut rows = vec![head.chain(["error".to_owned()]).collect::<Vec<_>>()];
    for (index, (trial, measured)) in order.into_iter().zip(&measured).enumerate() {
        let best = trial.best(subject.goal);
        let number = |value: Option<f64>| value.map(|value| value.to_string()).unwrap_or_default();
        let mut row = vec![
            (index + 1).to_string(),
            trial.number.to_string(),
            word(trial.state).to_owned(),
            number(best.and_then(|best| best.value)),
            best.map(|best| best.step.to_string()).unwrap_or_default(),
            trial.reports.last().map(|last| last.step.to_string()).unwrap_or_default(),
            number(trial.epochs()),
            format!("{:.3}", trial.seconds),
        ];
        row.extend(keys.iter().map(|key| match value_of(&trial.values, key) {
            Some(Value::Null) => "off".to_owned(),
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
            None => String::new(),
        }));
        row.extend(others.iter().map(|name| number(measured.get(*name).copied())));
        row.push(trial.error.clone().unwrap_or_default());
        rows.push(row);
    }
    rows.iter()
        .map(|row| row.iter().map(|cell| quoted(cell)).collect::<Vec<_>>().join(",") + "\n")
        .collect()
}

/// Every metric of a trial at the step of its best report, as far as its records are there.
fn measured_at(logs: &Path, best: &Report) -> BTreeMap<String, f64> {
    let mut found = BTreeMap::new();
    let text = files::read(&logs.join(EVENTS)).unwrap_or_default();
    for line in text.split(|byte| *byte == b'\n') {
        // Most lines are recorded steps, which need not be parsed here.
        let name: &[u8] = b"\"evaluated\"";
        if !line.windows(name.len()).any(|part| part == name) {
            continue;
        }
        let Ok(event) = serde_json::from_slice::<Value>(line) else { continue };
        if event.get("step").and_then(Value::as_u64) != Some(best.step) {
            continue;
        }
        // The last word counts: a step may be evaluated again after a resume.
        let metrics = event.get("metrics").and_then(Value::as_object).into_iter().flatten();
        found.extend(metrics.filter_map(|(name, value)| Some((name.clone(), value.as_f64()?))));
    }
    found
}

/// A cell as RFC 4180 wants it.
fn quoted(cell: &str) -> String {
    if cell.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", cell.replace('"', "\"\""))
    } else {
        cell.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::sweep::example_sweeps::{subject, trial, with_values};
    use crate::sweep::trial::State;

    #[test]
    fn the_file_of_rows_can_be_read_by_any_reader_and_has_all_metrics() {
        let folder = tempfile::tempdir().unwrap();
        let logs = folder.path().join("trial-0001");
        files::create_folder(&logs).unwrap();
        let event = |step: u64, metrics: Value| json!({ "step": step, "event": "evaluated", "metrics": metrics });
        let events = [
            event(10, json!({ "val/loss": 0.9, "val/accuracy": 0.5, "train/loss": 0.5 })),
            event(20, json!({ "val/loss": 0.8, "val/accuracy": 0.75, "train/loss": 0.25 })),
            event(30, json!({ "val/loss": 0.7, "val/accuracy": 0.6, "train/loss": 0.1 })),
        ];
        let lines: String = events.iter().map(|event| event.to_string() + "\n").collect();
        files::write_atomic(&logs.join(EVENTS), lines.as_bytes()).unwrap();
        let failed =
            Trial { error: Some("a \"bad\", disk".into()), ..trial(3, State::Failed, &[]) };
        let trials = [
            with_values(
                trial(1, State::Finished, &[0.5, 0.75]),
                json!({"optimizer.lr": 0.1, "n": "sgd"}),
            ),
            with_values(
                trial(2, State::Pruned, &[0.25]),
                json!({"optimizer.lr": 0.000_123_456, "m": [1, 2]}),
            ),
            with_values(failed, json!({"optimizer.lr": 1.0})),
        ];
        let text = csv(folder.path(), &subject(), &Ranking::plain(subject().goal), &trials);
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        let head = reader.headers().unwrap().clone();
        assert_eq!((&head[3], &head[11], &head[12]), ("val/accuracy", "train/loss", "val/loss"));
        let rows: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
        assert_eq!(&rows[0][3], "0.75");
        assert_eq!((&rows[0][5], &rows[0][6]), ("20", "2"));
        assert_eq!((&rows[0][11], &rows[0][12]), ("0.25", "0.8"), "at the step of its best");
        assert_eq!((&rows[1][8], &rows[1][11]), ("0.000123456", ""));
        assert_eq!(&rows[1][10], "[1,2]");
        assert_eq!(&rows[2][13], "a \"bad\", disk");
    }
}
