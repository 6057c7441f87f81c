//! Tables without answers.

use std::path::Path;

use crate::error::Error;
use crate::inputs;
use crate::read;
use crate::sources::tables::csv::Csv;
use crate::sources::tables::csv_rows::{CsvRows, EXPECTED};
use crate::sources::tables::header;
use crate::sources::tables::table::cell;
use crate::sources::tables::unanswered::Unanswered;

impl Csv {
    /// Reads the rows of a table without answers; columns that the run does not know are ignored.
    pub(super) fn rows_of(&self, path: &Path, rows: &mut Unanswered<'_>) -> Result<(), Error> {
        let bytes = read::table("the input", path, EXPECTED)?;
        let names = rows.names();
        let (mut table, header) = CsvRows::open(path, &bytes).map_err(|error| match error {
            Error::Line { .. } | Error::Cell { .. } => no_table(path, &names),
            error => error,
        })?;
        header::unique(&header).map_err(|bad| cell(path, 1, bad))?;
        let places: Vec<Option<usize>> =
            names.iter().map(|name| header.iter().position(|other| other == name)).collect();
        let missing = names.iter().map(String::as_str).zip(&places);
        let missing: Vec<&str> = missing.filter(|(_, at)| at.is_none()).map(|it| it.0).collect();
        if !missing.is_empty() {
            return Err(inputs::lacks(path, &missing, &header));
        }
        let from = rows.len();
        let file = path.into();
        let mut record = ::csv::StringRecord::new();
        for row in 1.. {
            match table.try_read(&mut record)? {
                None => break,
                Some(Err(why)) => rows.push_unreadable(&file, row, why.to_string()),
                Some(Ok(_)) if record.len() != header.len() => {
                    rows.push_unreadable(&file, row, header::ragged(record.len(), &header));
                }
                Some(Ok(_)) => rows.push(&file, row, |columns| {
                    let cells = places.iter().flatten().filter_map(|&at| record.get(at));
                    columns
                        .iter_mut()
                        .zip(cells)
                        .try_for_each(|(column, cell)| column.push(cell, self.rules()))
                }),
            }
        }
        rows.note_filled(path, from, |_| false);
        Ok(())
    }
}

/// Refuses a file that is no text.
fn no_table<N: AsRef<str>>(path: &Path, names: &[N]) -> Error {
    let names: Vec<String> = names.iter().map(|name| format!("`{}`", name.as_ref())).collect();
    let what = format!("it is not a table; the run needs a csv with {}", names.join(", "));
    Error::Format { path: path.to_owned(), what }
}
