//! `History` -> a table, one row per epoch. Pure.

use std::fmt::Write;

use crate::event::History;
use crate::record::text::{loss, short};

const HEADER: [&str; 6] =
    ["epoch", "train loss", "train acc", "val loss", "val acc", "learning rate"];

/// One line per epoch, numbers aligned, `*` at the epoch `best` (from 1); columns without any number are left out. Empty
/// for a run without a finished epoch.
pub fn table(history: &History, best: Option<usize>) -> String {
    if history.is_empty() {
        return String::new();
    }
    let epochs = (1..=history.len())
        .map(|epoch| format!("{}{epoch}", if best == Some(epoch) { "*" } else { "" }))
        .collect();
    let percent = |value: f64| format!("{value:.2} %");
    let columns = [
        epochs,
        column(&history.train_loss, loss),
        column(&history.train_acc, percent),
        column(&history.val_loss, loss),
        column(&history.val_acc, percent),
        column(&history.learning_rate, short),
    ];
    align(HEADER.into_iter().zip(columns).filter(|(_, cells)| !cells.is_empty()).collect())
}

/// The cells of a column; none if it holds no number.
fn column(values: &[Option<f64>], write: fn(f64) -> String) -> Vec<String> {
    if values.iter().all(Option::is_none) {
        return Vec::new();
    }
    values.iter().map(|value| value.map_or_else(|| "-".to_owned(), write)).collect()
}

fn align(columns: Vec<(&str, Vec<String>)>) -> String {
    let mut lines = vec![String::new(); 1 + columns.first().map_or(0, |(_, cells)| cells.len())];
    for (header, cells) in columns {
        let width = cells.iter().map(String::len).max().unwrap_or(0).max(header.len());
        let cells = std::iter::once(header).chain(cells.iter().map(String::as_str));
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
    use crate::record::examples;

    #[test]
    fn numbers_are_aligned_and_the_best_epoch_is_marked() {
        let mut history = History::default();
        history.push(&examples::epoch_done(1));
        history.push(&EpochDone { val_accuracy: Some(0.9), ..examples::epoch_done(2) });
        history.push(&EpochDone { val_loss: None, val_accuracy: None, ..examples::epoch_done(3) });
        assert_snapshot!(table(&history, Some(2)), @r"
        epoch  train loss  train acc  val loss  val acc  learning rate
            1      0.8000    60.00 %    0.5500  72.50 %           0.05
           *2      0.6000    70.00 %    0.5500  90.00 %           0.05
            3      0.4000    80.00 %         -        -           0.05
        ");
    }

    #[test]
    fn a_regression_has_no_columns_of_accuracy() {
        let mut history = History::default();
        let epoch =
            EpochDone { train_accuracy: None, val_accuracy: None, ..examples::epoch_done(1) };
        history.push(&epoch);
        assert_snapshot!(table(&history, Some(1)), @r"
        epoch  train loss  val loss  learning rate
           *1      0.8000    0.5500           0.05
        ");
        assert_eq!(table(&History::default(), None), "");
    }
}
