//! A sweep's trials -> a ranked table, `sweep.csv`, `sweep.json`, `best.toml` and pictures.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::config::sweep::{Search, value_of};
use crate::files;
use crate::record::RESOLVED;
use crate::record::text::{duration, metric, short};
use crate::sweep::importance::importance;
use crate::sweep::journal::Subject;
use crate::sweep::trial::{State, Trial, best, ranked};
use crate::sweep::{Error, pictures};

/// Name of the table in the sweep's folder.
pub const CSV: &str = "sweep.csv";
/// Name of everything as JSON.
pub const JSON: &str = "sweep.json";
/// Name of the resolved experiment of the best trial.
pub const BEST: &str = "best.toml";
/// Version of `sweep.json`.
const FORMAT: u32 = 1;
/// Rows of the table on the terminal.
const MOST_ROWS: usize = 30;

/// Writes everything that a sweep leaves beside its journal and trials. Pictures are drawn once a trial is finished.
///
/// # Errors
///
/// A file cannot be written.
pub(crate) fn write(
    folder: &Path,
    subject: &Subject,
    search: &Search,
    trials: &[Trial],
) -> Result<(), Error> {
    files::write_atomic(&folder.join(CSV), csv(subject, trials).as_bytes())?;
    let mut value = summary(subject, trials);
    let shares = importance(&search.parameters, trials, search.goal);
    let named = search.parameters.iter().map(|parameter| parameter.key.clone());
    let shares: Map<String, Value> = named.zip(shares.iter().map(|share| json!(share))).collect();
    value["importance"] = Value::Object(shares);
    let bytes =
        serde_json::to_vec_pretty(&value).map_err(|reason| Error::Encode { what: JSON, reason })?;
    files::write_atomic(&folder.join(JSON), &bytes)?;
    if let Some(best) = best(trials, search.goal) {
        write_best(folder, subject, best)?;
        pictures::write(folder, search, trials)?;
    }
    Ok(())
}

/// `best.toml`: what the best trial ran, under a line that says so.
fn write_best(folder: &Path, subject: &Subject, best: &Trial) -> Result<(), Error> {
    let path = folder.join(best.id()).join(RESOLVED);
    let Ok(resolved) = fs::read_to_string(&path) else {
        // Somebody has removed the trial's folder; its values still stand in the tables.
        return Ok(());
    };
    let value =
        best.value(subject.goal).map_or_else(String::new, |value| metric(&subject.metric, value));
    let head = format!(
        "# The best trial of the sweep `{}`: {}, {} {value}.\n",
        subject.name,
        best.id(),
        subject.metric
    );
    Ok(files::write_atomic(&folder.join(BEST), (head + &resolved).as_bytes())?)
}

/// All keys that any trial has changed, in the order in which they first appear.
fn keys(trials: &[Trial]) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for (key, _) in trials.iter().flat_map(|trial| &trial.values) {
        if !found.contains(key) {
            found.push(key.clone());
        }
    }
    found
}

fn word(state: State) -> &'static str {
    match state {
        State::Running => "running",
        State::Finished => "finished",
        State::Pruned => "pruned",
        State::Diverged => "diverged",
        State::Failed => "failed",
    }
}

/// One row per trial, best first; numbers as they are, to be read by programs.
fn csv(subject: &Subject, trials: &[Trial]) -> String {
    let keys = keys(trials);
    let head = ["rank", "trial", "state", &subject.metric, "step", "last_step", "seconds"];
    let head = head.iter().map(|&name| name.to_owned()).chain(keys.iter().cloned());
    let mut rows = vec![head.chain(["error".to_owned()]).collect::<Vec<_>>()];
    for (index, trial) in ranked(trials, subject.goal).into_iter().enumerate() {
        let best = trial.best(subject.goal);
        let number = |value: Option<f64>| value.map(|value| value.to_string()).unwrap_or_default();
        let mut row = vec![
            (index + 1).to_string(),
            trial.number.to_string(),
            word(trial.state).to_owned(),
            number(best.and_then(|best| best.value)),
            best.map(|best| best.step.to_string()).unwrap_or_default(),
            trial.reports.last().map(|last| last.step.to_string()).unwrap_or_default(),
            format!("{:.3}", trial.seconds),
        ];
        row.extend(keys.iter().map(|key| match value_of(&trial.values, key) {
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
            None => String::new(),
        }));
        row.push(trial.error.clone().unwrap_or_default());
        rows.push(row);
    }
    rows.iter()
        .map(|row| row.iter().map(|cell| quoted(cell)).collect::<Vec<_>>().join(",") + "\n")
        .collect()
}

/// A cell as RFC 4180 wants it.
fn quoted(cell: &str) -> String {
    if cell.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", cell.replace('"', "\"\""))
    } else {
        cell.to_owned()
    }
}

/// Everything that is known, for programs.
pub fn summary(subject: &Subject, trials: &[Trial]) -> Value {
    let one = |trial: &Trial| {
        let best = trial.best(subject.goal);
        let reports: Vec<Value> =
            trial.reports.iter().map(|report| json!([report.step, report.value])).collect();
        json!({
            "trial": trial.number,
            "state": trial.state,
            "value": best.and_then(|best| best.value),
            "step": best.map(|best| best.step),
            "seconds": trial.seconds,
            "error": trial.error,
            "values": trial.values.iter().cloned().collect::<Map<String, Value>>(),
            "reports": reports,
            "run": trial.id(),
        })
    };
    json!({
        "format": FORMAT,
        "name": subject.name,
        "base": subject.base,
        "metric": subject.metric,
        "goal": subject.goal,
        "planned": (subject.trials < usize::MAX).then_some(subject.trials),
        "best": best(trials, subject.goal).map(one),
        "trials": ranked(trials, subject.goal).into_iter().map(one).collect::<Vec<_>>(),
    })
}

/// The table for the terminal: the best trials, their values with four digits.
pub fn table(subject: &Subject, trials: &[Trial]) -> String {
    if trials.is_empty() {
        return String::new();
    }
    let keys = keys(trials);
    let mut rows: Vec<Vec<String>> = Vec::new();
    let head = ["rank", "trial", &subject.metric, "step", "time", "state"];
    rows.push(head.iter().map(|&name| name.to_owned()).chain(keys.iter().cloned()).collect());
    let order = ranked(trials, subject.goal);
    for (index, trial) in order.iter().take(MOST_ROWS).enumerate() {
        let best = trial.best(subject.goal);
        let value = best.and_then(|best| best.value);
        let mut row = vec![
            (index + 1).to_string(),
            trial.number.to_string(),
            value.map_or_else(|| "-".to_owned(), |value| metric(&subject.metric, value)),
            best.map_or_else(|| "-".to_owned(), |best| best.step.to_string()),
            duration(trial.seconds),
            word(trial.state).to_owned(),
        ];
        row.extend(keys.iter().map(|key| shown(value_of(&trial.values, key))));
        rows.push(row);
    }
    let mut text = align(&rows);
    if order.len() > MOST_ROWS {
        text += &format!("... and {} more in `{CSV}`\n", order.len() - MOST_ROWS);
    }
    for trial in order.iter().filter(|trial| trial.state == State::Failed) {
        let error = trial.error.as_deref().unwrap_or("no reason is known");
        text += &format!("trial {} failed: {error}\n", trial.number);
    }
    text
}

fn shown(value: Option<&Value>) -> String {
    match value {
        None => "-".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Number(number)) => number.as_f64().map_or_else(|| number.to_string(), short),
        Some(other) => other.to_string(),
    }
}

fn align(rows: &[Vec<String>]) -> String {
    let n = rows.iter().map(Vec::len).max().unwrap_or(0);
    let cells = |column: usize| rows.iter().filter_map(move |row| row.get(column));
    let widths: Vec<usize> = (0..n)
        .map(|column| cells(column).map(|cell| cell.chars().count()).max().unwrap_or(0))
        .collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}"));
        cells.collect::<Vec<_>>().join("  ") + "\n"
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::config::schema::Mode;
    use crate::sweep::examples::trial;

    fn subject() -> Subject {
        Subject {
            name: "s".into(),
            base: "b.toml".into(),
            metric: "val/accuracy".into(),
            goal: Mode::Max,
            trials: 4,
            search: json!({}),
            experiment: BTreeMap::new(),
        }
    }

    fn trials() -> Vec<Trial> {
        let with = |mut trial: Trial, values: Value| {
            trial.values = values.as_object().unwrap().clone().into_iter().collect();
            trial
        };
        let failed =
            Trial { error: Some("a \"bad\", disk".into()), ..trial(3, State::Failed, &[]) };
        vec![
            with(trial(1, State::Finished, &[0.5, 0.75]), json!({"optimizer.lr": 0.1, "n": "sgd"})),
            with(
                trial(2, State::Pruned, &[0.25]),
                json!({"optimizer.lr": 0.000_123_456, "m": [1, 2]}),
            ),
            with(failed, json!({"optimizer.lr": 1.0})),
        ]
    }

    #[test]
    fn the_table_is_ranked_and_aligned() {
        insta::assert_snapshot!(table(&subject(), &trials()), @r#"
        rank  trial  val/accuracy  step    time     state  optimizer.lr    n      m
           1      1       75.00 %    20  0.00 s  finished           0.1  sgd      -
           2      2       25.00 %    10  0.00 s    pruned     0.0001235    -  [1,2]
           3      3             -     -  0.00 s    failed             1    -      -
        trial 3 failed: a "bad", disk
        "#);
        assert_eq!(table(&subject(), &[]), "");
    }

    #[test]
    fn the_file_of_rows_can_be_read_by_any_reader() {
        let text = csv(&subject(), &trials());
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        assert_eq!(&reader.headers().unwrap()[3], "val/accuracy");
        let rows: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
        assert_eq!(&rows[0][3], "0.75");
        assert_eq!(&rows[1][7], "0.000123456");
        assert_eq!(&rows[1][9], "[1,2]");
        assert_eq!(&rows[2][10], "a \"bad\", disk");
    }
}
