//! Table of a sweep's trials for users, best first, within 80 columns.

use serde_json::Value;

use crate::config::sweep::value_of;
use crate::record::text::{duration, hyperparameter, metric, short, wrapped};
use crate::sweep::journal::{JournalState, SweepSpec};
use crate::sweep::ranking::Ranking;
use crate::sweep::repeats::{Repeats, over, repeats};
use crate::sweep::trial::{State, Trial, keys, word};
use crate::sweep::trial_rows::CSV;

/// Rows of the table.
const MAX_ROWS: usize = 30;
/// Columns of a terminal that everybody has.
pub(super) const WIDTH: usize = 80;
/// Columns that name a row, and begin each part of a table that is too wide.
const NAMES: usize = 2;

/// The best trials, their values with four digits; below them why others failed.
/// `open` is the word for trials that have not ended.
pub(super) fn table(story: &JournalState, open: &str, ranking: &Ranking) -> String {
    let JournalState { subject, trials, .. } = story;
    if trials.is_empty() {
        return String::new();
    }
    let keys = keys(trials);
    let head = ["rank", "trial", &subject.metric, ranking.unit_name(), "time", "state"];
    let head = head.iter().map(|&name| name.to_owned()).chain(keys.iter().cloned());
    let mut rows: Vec<Vec<String>> = vec![head.collect()];
    let order = ranking.ranked(trials);
    for (index, trial) in order.iter().take(MAX_ROWS).enumerate() {
        let value = trial.value(subject.goal);
        let spent = (!trial.reports.is_empty()).then(|| short(ranking.spent(trial)));
        let dash = || "-".to_owned();
        let state = match trial.state {
            State::Running => open,
            state => word(state),
        };
        let mut row = vec![
            (index + 1).to_string(),
            trial.number.to_string(),
            value.map_or_else(dash, |value| metric(&subject.metric, value)),
            spent.unwrap_or_else(dash),
            time_of(trial).unwrap_or_else(dash),
            state.to_owned(),
        ];
        row.extend(keys.iter().map(|key| shown(value_of(&trial.values, key))));
        rows.push(row);
    }
    let mut text = align(&rows);
    if order.len() > MAX_ROWS {
        text += &format!("... and {} more in `{CSV}`\n", order.len() - MAX_ROWS);
    }
    text += &repeated(subject, trials);
    for trial in order.iter().filter(|trial| trial.state == State::Failed) {
        let error = trial.error.as_deref().unwrap_or("unknown reason");
        text += &wrapped(&format!("trial {} failed: {error}", trial.number), WIDTH, 2);
        text.push('\n');
    }
    text
}

/// Running time of a trial, if known.
fn time_of(trial: &Trial) -> Option<String> {
    let is_known = trial.state != State::Running || trial.seconds > 0.0;
    is_known.then(|| duration(trial.seconds))
}

/// Mean, its standard error and the spread of what trials reached that differ in their fold or seed
/// alone.
fn repeated(subject: &SweepSpec, trials: &[Trial]) -> String {
    let found = repeats(trials, subject.goal);
    let Some(first) = found.first() else { return String::new() };
    let head = ["mean", "error", "sd", "trials"].map(str::to_owned).into_iter();
    let keys = first.values.iter().map(|(key, _)| key.clone());
    let mut rows: Vec<Vec<String>> = vec![head.chain(keys).collect()];
    for setting in found.iter().take(MAX_ROWS) {
        let Repeats { values, mean, sd, .. } = setting;
        let numbers = [*mean, setting.error(), *sd].map(|value| metric(&subject.metric, value));
        let spread = numbers.into_iter().chain([setting.count()]);
        let values = first.values.iter().map(|(key, _)| shown(value_of(values, key)));
        rows.push(spread.chain(values).collect());
    }
    format!("\n{} over `{}`:\n{}", subject.metric, over(trials), align(&rows))
}

fn shown(value: Option<&Value>) -> String {
    value.map_or_else(|| "-".to_owned(), hyperparameter)
}

/// Columns side by side, right-aligned; those for which there is no room go below, under the same
/// names of rows.
pub(super) fn align(rows: &[Vec<String>]) -> String {
    let n = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..n).map(|column| width(column).unwrap_or(0)).collect();
    let names: usize = widths.iter().take(NAMES).map(|width| width + 2).sum();
    let mut parts: Vec<Vec<usize>> = Vec::new();
    let mut room = 0;
    for (column, width) in widths.iter().enumerate().skip(NAMES) {
        if parts.is_empty() || room < width + 2 {
            parts.push((0..NAMES).collect());
            room = (WIDTH + 2).saturating_sub(names);
        }
        room = room.saturating_sub(width + 2);
        if let Some(part) = parts.last_mut() {
            part.push(column);
        }
    }
    let line = |row: &Vec<String>, part: &[usize]| {
        let cell = |&column: &usize| format!("{:>1$}", row[column], widths[column]);
        part.iter().map(cell).collect::<Vec<_>>().join("  ") + "\n"
    };
    let part = |part: &Vec<usize>| rows.iter().map(|row| line(row, part)).collect::<String>();
    parts.iter().map(part).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::sweep::example_sweeps::{of_batch, subject, trial};

    fn with(mut trial: Trial, values: &Value) -> Trial {
        trial.values = values.as_object().unwrap().clone().into_iter().collect();
        trial
    }

    /// The table of a sweep that no process runs.
    fn table_of(trials: &[Trial]) -> String {
        let (subject, trials) = (subject(), trials.to_vec());
        let ranking = Ranking::plain(subject.goal);
        let story = JournalState {
            subject,
            trials,
            opened: Timestamp::UNIX_EPOCH,
            extended_by: BTreeSet::new(),
            earlier: Vec::new(),
        };
        table(&story, "interrupted", &ranking)
    }

    #[test]
    fn the_table_is_ranked_and_aligned() {
        let why = "cannot write `checkpoints/tune/trial-0003/step-00000040`: there is no space \
                   left on the device";
        let failed = Trial { error: Some(why.into()), ..trial(3, State::Failed, &[]) };
        let trials = [
            with(
                trial(1, State::Finished, &[0.5, 0.75]),
                &json!({"optimizer.lr": 0.1, "n": "sgd"}),
            ),
            with(trial(2, State::Pruned, &[0.25]), &json!({"optimizer.lr": 0.000_123_456})),
            with(failed, &json!({"optimizer.lr": 1.0})),
            with(of_batch(5, trial(4, State::Pruned, &[0.5])), &json!({"n": "adamw"})),
        ];
        insta::assert_snapshot!(table_of(&trials), @"
        rank  trial  val/accuracy  epochs    time     state  optimizer.lr      n
           1      1       75.00 %       2  0.00 s  finished           0.1    sgd
           2      4       50.00 %       1  0.00 s    pruned             -  adamw
           3      2       25.00 %       1  0.00 s    pruned     0.0001235      -
           4      3             -       -  0.00 s    failed             1      -
        trial 3 failed: cannot write `checkpoints/tune/trial-0003/step-00000040`: there
          is no space left on the device
        ");
        assert_eq!(table_of(&[]), "");
    }

    #[test]
    fn trials_that_are_open_have_the_word_for_such() {
        let text = table_of(&[trial(1, State::Running, &[0.5])]);
        assert!(text.contains(" interrupted\n"), "{text}");
    }

    #[test]
    fn folds_have_a_mean_and_a_spread() {
        let of = |number, fold: u32, value| {
            with(trial(number, State::Finished, &[value]), &json!({"n": "sgd", "data.fold": fold}))
        };
        let trials = [of(1, 0, 0.5), of(2, 1, 0.75), of(3, 2, 0.625)];
        let text = table_of(&trials);
        assert!(text.contains("val/accuracy over `data.fold`:\n"), "{text}");
        assert!(text.contains("62.50 %  7.22 %  12.50 %       3  sgd\n"), "{text}");
    }

    #[test]
    fn a_table_that_is_too_wide_goes_on_below() {
        let values = json!({"optimizer.lr": 0.1, "optimizer.weight_decay": 0.002_639,
            "train.global_batch_size": 128, "model.hidden": [512, 512], "scheduler.name": "cosine"});
        let trials = [with(trial(1, State::Finished, &[0.75]), &values)];
        let text = table_of(&trials);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        insta::assert_snapshot!(text, @"
        rank  trial  val/accuracy  epochs    time     state  optimizer.lr
           1      1       75.00 %       1  0.00 s  finished           0.1

        rank  trial  optimizer.weight_decay  train.global_batch_size  model.hidden
           1      1                0.002639                      128     [512,512]

        rank  trial  scheduler.name
           1      1          cosine
        ");
    }
}
