//! Table of a run, one row per epoch or validated step. Pure.

use std::fmt::Write;

use super::progress::{Progress, Row, Unit};
use crate::record::text::{metric, short};

/// Rows of a table by steps where nothing was validated.
const MAX_ROWS: usize = 20;

/// The first columns.
const USUAL: [&str; 4] = ["train/loss", "train/accuracy", "val/loss", "val/accuracy"];

/// One line per epoch, or per step after which the run was validated, numbers aligned, `*` at the
/// `best`; columns without any number are left out. Empty without rows.
pub(crate) fn table(progress: &Progress, best: Option<u64>) -> String {
    let rows = shown(progress);
    if rows.is_empty() {
        return String::new();
    }
    let star = |at: u64| if best == Some(at) { "*" } else { "" };
    let places = rows.iter().map(|row| format!("{}{}", star(row.at), row.at)).collect();
    let mut columns = vec![(progress.unit.word().to_owned(), places)];
    for name in names(&rows) {
        let cells = rows.iter().map(|row| row.metrics.get(name).map(|value| metric(name, *value)));
        columns.push((header(name), filled(cells)));
    }
    if rows.iter().any(|row| row.lr.is_some()) {
        columns.push(("learning rate".into(), filled(rows.iter().map(|row| row.lr.map(short)))));
    }
    align(columns)
}

/// The rows to show: all epochs; of steps the validated ones, or a few of them if none was.
fn shown(progress: &Progress) -> Vec<&Row> {
    let all: Vec<&Row> = progress.rows.iter().collect();
    if progress.unit == Unit::Epoch {
        return all;
    }
    let validated: Vec<&Row> = all.iter().copied().filter(|row| row.is_validated()).collect();
    if !validated.is_empty() {
        return validated;
    }
    // The last one is always among them.
    let stride = all.len().div_ceil(MAX_ROWS).max(1);
    let mut few: Vec<&Row> = all.into_iter().rev().step_by(stride).collect();
    few.reverse();
    few
}

/// The metrics of the rows: the usual ones, then the others by name.
fn names<'a>(rows: &[&'a Row]) -> Vec<&'a str> {
    let all: std::collections::BTreeSet<&str> =
        rows.iter().flat_map(|row| row.metrics.keys().map(String::as_str)).collect();
    let usual = USUAL.iter().filter_map(|name| all.get(name));
    usual.chain(all.iter().filter(|name| !USUAL.contains(name))).copied().collect()
}

/// "val/accuracy" -> "val acc"
fn header(name: &str) -> String {
    name.replace('/', " ").replace("accuracy", "acc")
}

fn filled(cells: impl Iterator<Item = Option<String>>) -> Vec<String> {
    cells.map(|cell| cell.unwrap_or_else(|| "-".to_owned())).collect()
}

fn align(columns: Vec<(String, Vec<String>)>) -> String {
    let mut lines = vec![String::new(); 1 + columns.first().map_or(0, |(_, cells)| cells.len())];
    for (header, cells) in columns {
        let width = cells.iter().map(String::len).max().unwrap_or(0).max(header.len());
        let cells = std::iter::once(&header).chain(&cells);
        for (line, cell) in lines.iter_mut().zip(cells) {
            let gap = if line.is_empty() { "" } else { "  " };
            let _ = write!(line, "{gap}{cell:>width$}");
        }
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;
    use crate::event::EpochDone;
    use crate::record::example_events;

    #[test]
    fn numbers_are_aligned_and_the_best_epoch_is_marked() {
        let epochs = [
            example_events::epoch_done(1),
            EpochDone { val_accuracy: Some(0.9), ..example_events::epoch_done(2) },
            EpochDone { val_loss: None, val_accuracy: None, ..example_events::epoch_done(3) },
        ];
        assert_snapshot!(table(&Progress::of(&epochs, &[]), Some(2)), @r"
        epoch  train loss  train acc  val loss  val acc  learning rate
            1      0.8000    60.00 %    0.5500  72.50 %           0.05
           *2      0.6000    70.00 %    0.5500  90.00 %           0.05
            3      0.4000    80.00 %         -        -           0.05
        ");
    }

    #[test]
    fn a_regression_has_columns_of_its_own_metrics() {
        let metrics = [("val/mae", 0.25), ("val/mse", 0.125)];
        let metrics = metrics.map(|(name, value)| (name.to_owned(), value)).into();
        let (train_accuracy, val_accuracy) = (None, None);
        let epoch =
            EpochDone { train_accuracy, val_accuracy, metrics, ..example_events::epoch_done(1) };
        assert_snapshot!(table(&Progress::of(&[epoch], &[]), Some(1)), @r"
        epoch  train loss  val loss  val mae  val mse  learning rate
           *1      0.8000    0.5500   0.2500   0.1250           0.05
        ");
        assert_eq!(table(&Progress::of(&[], &[]), None), "");
    }

    #[test]
    fn a_table_by_steps_has_those_that_were_validated_or_a_few() {
        let row = |at: u64| {
            let metrics = [("train/loss".to_owned(), 1.0 / at as f64)].into();
            Row { at, metrics, lr: Some(0.1) }
        };
        let mut progress = Progress { unit: Unit::Step, rows: (1..=45).map(row).collect() };
        let text = table(&progress, None);
        assert_eq!(text.lines().count(), 1 + 15, "{text}");
        assert!(text.lines().last().unwrap().starts_with("  45  "), "{text}");
        for index in [19, 39] {
            progress.rows[index].metrics.insert("val/accuracy".into(), 0.5);
        }
        assert_snapshot!(table(&progress, Some(40)), @r"
        step  train loss  val acc  learning rate
          20      0.0500  50.00 %            0.1
         *40      0.0250  50.00 %            0.1
        ");
    }
}
