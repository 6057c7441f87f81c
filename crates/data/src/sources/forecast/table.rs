//! A table of series in memory, standardised.

use std::path::Path;

use serde_json::{Value, json};

use crate::error::{Error, shown};
use crate::plan::TargetColumn;
use crate::read;
use crate::sources::dates::{DateForm, WrongDate, is_dated};
use crate::sources::forecast::calendar::{self, Calendar};
use crate::sources::forecast::dates::Dates;
use crate::sources::tables::column::{BadCell, decimals, number, with_point};
use crate::sources::tables::csv_rows::{CsvRows, check_unique, check_width, other_separator};
use crate::sources::tables::fit::{Scale, scale};
use crate::sources::tables::table::{at, cell};

const EXPECTED: &str = "a table of series: a header line, then one line of numbers for each time \
                        step; the first column may hold dates";

/// Remedies for rows with more cells than the header, and for rows with fewer.
const RAGGED: [&str; 2] = [
    "write decimals with a point, as in `1.5`: commas stand between the cells",
    "complete the row or remove it",
];

/// All rows, in their order.
pub(super) struct Table {
    /// Values as written, until they are standardised.
    raw: Vec<f64>,
    /// `rows * series` standardised values.
    values: Vec<f32>,
    /// `rows * features of the date`
    marks: Vec<f32>,
    dates: Option<Dates>,
    /// Names of the series.
    names: Vec<String>,
    /// Mean and deviation that standardise each series.
    scales: Vec<Scale>,
    calendar: Calendar,
}

/// Options for reading the dates of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct DateOptions<'a> {
    pub(super) calendar: Calendar,
    /// True if they must ascend.
    pub(super) check: bool,
    /// The format that the experiment gives.
    pub(super) format: Option<&'a str>,
    /// The format that the run has found.
    pub(super) form: Option<&'a DateForm>,
    /// True if the table of the run had dates; `None` if no run has seen one.
    pub(super) of_run: Option<bool>,
}

impl Table {
    /// Reads the table at `path`.
    pub(super) fn read(path: &Path, options: &DateOptions<'_>) -> Result<Self, Error> {
        let bytes = read::table("the table", path, EXPECTED)?;
        let (mut rows, header) = CsvRows::open(path, &bytes)?;
        check_unique(&header).map_err(|bad| cell(path, 1, bad))?;
        let separator = other_separator(path, &header);
        let mut record = ::csv::StringRecord::new();
        let mut line = rows.read(&mut record)?;
        let name = header.first().map(String::as_str).unwrap_or_default();
        let dated = options.format.is_some() || is_dated(name, record.get(0));
        let names = header.iter().skip(usize::from(dated)).cloned();
        let mut table = Self::new(names.collect(), options.calendar);
        if table.names.is_empty() {
            return Err(at(path, 1, "the table needs at least one series".to_owned()));
        }
        if !dated && options.of_run == Some(true) && options.calendar.features() > 0 {
            return Err(undated(path, name, record.get(0).unwrap_or_default()));
        }
        let mut cells = Vec::new();
        while let Some(at) = line {
            table.push(&record, &header, dated).map_err(|BadCell { what, help }| {
                cell(path, at, BadCell { what, help: separator.clone().or(help) })
            })?;
            cells.extend(record.get(0).filter(|_| dated).map(|cell| (cell.to_owned(), at)));
            line = rows.read(&mut record)?;
        }
        table.date(path, &cells, dated, options)?;
        Ok(table)
    }

    fn new(names: Vec<String>, calendar: Calendar) -> Self {
        let raw = vec![];
        let values = vec![];
        let marks = vec![];
        let scales = vec![];
        Self { raw, values, marks, dates: None, names, scales, calendar }
    }

    /// Appends a row.
    fn push(
        &mut self,
        record: &::csv::StringRecord,
        header: &[String],
        dated: bool,
    ) -> Result<(), BadCell> {
        check_width(record.len(), header, RAGGED)?;
        for (column, cell) in header.iter().zip(record).skip(usize::from(dated)) {
            self.raw.push(number(column, cell).map_err(|what| {
                let help = Some(remedy(cell));
                BadCell { what, help }
            })?);
        }
        Ok(())
    }

    /// Takes the dates of all rows, if these have some.
    fn date(
        &mut self,
        path: &Path,
        cells: &[(String, u64)],
        dated: bool,
        options: &DateOptions<'_>,
    ) -> Result<(), Error> {
        if !dated {
            (0..self.rows()).for_each(|_| calendar::append(self.calendar, None, &mut self.marks));
            return Ok(());
        }
        let wrong = |WrongDate { line, cell: wrong, what, help }| {
            let what = match wrong.as_str() {
                "" => "its date is empty".to_owned(),
                wrong => format!("`{}` {what}", shown(Path::new(wrong))),
            };
            cell(path, line, BadCell { what, help: Some(help) })
        };
        let dates = Dates::read(cells, options.format, options.form).map_err(wrong)?;
        let ordered = if options.check { dates.check_order() } else { Ok(()) };
        ordered.map_err(|(line, what)| Error::DateOrder { path: path.to_owned(), line, what })?;
        for date in dates.all() {
            // A model that was trained on zeros knows nothing of the calendar.
            let seen = Some(date.local).filter(|_| options.of_run != Some(false));
            calendar::append(self.calendar, seen, &mut self.marks);
        }
        self.dates = Some(dates);
        Ok(())
    }

    /// The dates of the rows, if these have some.
    pub(super) fn dates(&self) -> Option<&Dates> {
        self.dates.as_ref()
    }

    /// Mean absolute errors of the standardised series, over the first `train` rows, if each value
    /// is predicted by the one `season` rows before it: what MASE is measured in. By the value
    /// before it, if the rows are no more than a season.
    pub(super) fn naive_errors(&self, train: usize, season: usize) -> Vec<f64> {
        let series = self.series();
        let season = if season < train { season } else { 1 };
        let error = |at: usize| {
            let value = |row: usize| f64::from(self.values[row * series + at]);
            let errors = (season..train).map(|row| (value(row) - value(row - season)).abs());
            errors.sum::<f64>() / train.saturating_sub(season).max(1) as f64
        };
        (0..series).map(error).collect()
    }

    /// Mean and deviation of each series over the first `train` rows.
    pub(super) fn scales_of(&self, train: usize) -> Vec<Scale> {
        let series = self.names.len();
        let column = |c: usize| self.raw.iter().skip(c).step_by(series).take(train).copied();
        (0..series).map(|c| scale(column(c))).collect()
    }

    /// Standardises each series, and lets go of the values as written.
    pub(super) fn standardise(&mut self, scales: Vec<Scale>) {
        let series = self.names.len();
        let scaled = self.raw.chunks_exact(series).flat_map(|row| {
            row.iter().zip(&scales).map(|(value, (mean, deviation))| (value - mean) / deviation)
        });
        self.values = scaled.map(|value| value as f32).collect();
        self.scales = scales;
        self.raw = Vec::new();
    }

    /// The mean and deviation of each series, as they were taken.
    pub(super) fn described(&self) -> Value {
        let series = self.names.iter().zip(&self.scales);
        series
            .map(|(name, (mean, std))| json!({ "name": name, "mean": mean, "std": std }))
            .collect()
    }

    /// Number of rows.
    pub(super) fn rows(&self) -> usize {
        self.raw.len().max(self.values.len()) / self.series()
    }

    /// Number of series.
    pub(super) fn series(&self) -> usize {
        self.names.len()
    }

    /// The series, each with what it was divided by.
    pub(super) fn target_columns(&self) -> Vec<TargetColumn> {
        let column =
            |(name, &(_, scale)): (&String, &Scale)| TargetColumn { name: name.clone(), scale };
        self.names.iter().zip(&self.scales).map(column).collect()
    }

    /// Names of the series.
    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    /// The series in `n` rows from `row` on.
    pub(super) fn values(&self, row: usize, n: usize) -> &[f32] {
        let series = self.series();
        &self.values[row * series..][..n * series]
    }

    /// The features of a row's date.
    pub(super) fn marks(&self, row: usize) -> &[f32] {
        let features = self.calendar.features();
        &self.marks[row * features..][..features]
    }
}

/// Refuses a table without the dates that the model sees.
fn undated(path: &Path, name: &str, cell: &str) -> Error {
    let [name, cell] = [name, cell].map(|text| shown(Path::new(text)));
    Error::WithHelp {
        path: path.to_owned(),
        what: format!(
            "it has no dates: its first column is `{name}` and begins with `{cell}`; the run was \
             trained with dates, of which the model sees hour, weekday and day"
        ),
        help: "put the column of dates first, as in the table of the run; a run with \
               `data.calendar = \"none\"` needs none"
            .to_owned(),
    }
}

/// Remedy for a cell that is no finite number.
fn remedy(cell: &str) -> String {
    match with_point(cell) {
        Some(point) => decimals(&point),
        None => "fill or remove such values before training: each row has a number for each series"
            .to_owned(),
    }
}
