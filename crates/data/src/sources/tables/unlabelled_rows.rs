//! Rows of a table without answers, each read by itself: one that cannot be read spoils no other.

use std::path::Path;
use std::sync::Arc;

use crate::config::kind::Options;
use crate::error::{Error, shown};
use crate::inputs::{InputItem, InputItems, Inputs, OutputScale, PredictionKind};
use crate::sources::tables::answer::Answer;
use crate::sources::tables::column::{BadCell, Column};
use crate::sources::tables::column_names::ColumnNames;
use crate::sources::tables::features::{CellRules, ColumnKind, HandleUnknown};
use crate::sources::tables::fit::Fit;
use crate::sources::tables::table::{Rows, filled_words, unknown_words};

/// Rows as they are read, with what the run found out about its columns.
pub(crate) struct UnlabelledRows<'a> {
    fit: Fit,
    rules: CellRules<'a>,
    rows: Rows,
    items: Vec<InputItem>,
    /// The columns, without a cell.
    empty: Vec<Column>,
    /// Notes on the files for the user.
    notes: Vec<String>,
}

impl<'a> UnlabelledRows<'a> {
    /// No row yet, of a run that found this out.
    pub(crate) fn new(found: &Options, rules: CellRules<'a>) -> Result<Self, Error> {
        let why = "the run was begun by an earlier ddprun, which kept no means of its columns: \
                   train it again";
        let fit = Fit::found(found).ok_or(Error::NotPredicted { why })?;
        let forms = fit.date_forms();
        let column = |name: &String| {
            Column::new(name, fit.kind(name).unwrap_or(ColumnKind::Number), forms.get(name))
        };
        let empty: Vec<Column> = fit.names().iter().map(column).collect();
        let rows = Rows::new(Path::new(""), empty.clone());
        Ok(Self { fit, rules, rows, items: Vec::new(), empty, notes: Vec::new() })
    }

    /// Names of the columns that are needed, in order.
    pub(crate) fn names(&self) -> Vec<String> {
        self.fit.names()
    }

    /// True if a row may lack the source of this column, as rows to train on may.
    pub(crate) fn may_lack(&self, name: &str) -> bool {
        let kind = self.fit.kind(name).or_else(|| self.fit.kind(&format!("{name}[0]")));
        self.rules.features.missing.is_some() || kind == Some(ColumnKind::Category)
    }

    /// Appends the row that `fill` puts into columns; one that cannot be read keeps its place.
    pub(crate) fn push(
        &mut self,
        file: &Arc<Path>,
        row: u64,
        fill: impl FnOnce(&mut [Column]) -> Result<(), BadCell>,
    ) {
        let mut columns = self.empty.clone();
        let filled = fill(&mut columns).map_err(|bad| bad.what);
        if let Err(why) = filled.and_then(|()| self.refuse_unknown(&columns)) {
            return self.push_unreadable(file, row, why);
        }
        self.rows.columns.iter_mut().zip(&columns).for_each(|(all, one)| all.extend(one));
        let at = self.rows.lines.len();
        self.rows.lines.push(row);
        self.rows.answers.push(Answer::numbers(&[0.0]));
        self.items.push(InputItem::new(file, Some(row), at..at + 1));
    }

    /// Notes which cells of the file at `path`, whose rows begin at `from`, are empty, where that
    /// is told; but for columns that `is_told` already.
    pub(crate) fn note_filled(&mut self, path: &Path, from: usize, is_told: impl Fn(&str) -> bool) {
        let rows = from..self.rows.lines.len();
        let mut filled = self.fit.filled(&self.rows.columns, rows.clone());
        filled.retain(|(name, _)| !is_told(name));
        let of = format!("`{}`", shown(path));
        self.notes.extend(filled_words(&filled, rows.len(), &of));
    }

    /// Rows so far that could be read.
    pub(crate) fn len(&self) -> usize {
        self.rows.lines.len()
    }

    /// Notes what is worth a look.
    pub(crate) fn note(&mut self, notes: impl IntoIterator<Item = String>) {
        self.notes.extend(notes);
    }

    /// Appends a row of which there is nothing to read.
    pub(crate) fn push_unreadable(&mut self, file: &Arc<Path>, row: u64, why: String) {
        self.items.push(InputItem::unreadable(file, Some(row), why));
    }

    fn refuse_unknown(&self, columns: &[Column]) -> Result<(), String> {
        if self.rules.features.handle_unknown != HandleUnknown::Error {
            return Ok(());
        }
        let encoded = self.fit.encode(columns);
        match encoded.unknown.iter().next() {
            None => Ok(()),
            Some((column, unknown)) => {
                Err(format!("`{column}` is `{}`, which no row to train on has", unknown.word))
            }
        }
    }

    /// All rows as samples.
    pub(crate) fn inputs(self, target: &ColumnNames) -> Result<Inputs, Error> {
        let Self { fit, rows, items, mut notes, .. } = self;
        let unit = |(at, name): (usize, &String)| {
            let (mean, deviation) = fit.targets.get(at).copied().unwrap_or((0.0, 1.0));
            OutputScale { name: name.clone(), mean, deviation }
        };
        let units = target.names().iter().enumerate().map(unit).collect();
        let encoded = fit.encode(&rows.columns);
        notes.extend(unknown_words(&fit, &encoded, rows.lines.len(), ""));
        let samples = Arc::new(rows.into_table(&fit, encoded, &[])?);
        let items = InputItems::Listed(items);
        let answers = PredictionKind::OfLoss(units);
        Ok(Inputs { samples, items, answers, notes })
    }
}
