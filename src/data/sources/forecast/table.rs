//! A table of series in memory, standardised.

use std::path::Path;

use jiff::civil::DateTime;
use serde_json::{Value, json};

use crate::data::error::Error;
use crate::data::read;
use crate::data::sources::forecast::calendar::{self, Calendar};
use crate::data::sources::forecast::dates::{self, Dates};
use crate::data::sources::tables::column::{BadCell, decimals, number, with_point};
use crate::data::sources::tables::csv_rows::CsvRows;
use crate::data::sources::tables::fit::{Scale, scale};
use crate::data::sources::tables::header;
use crate::data::sources::tables::table::{at, cell};
use crate::plan::TargetColumn;

const EXPECTED: &str = "a table of series: a header line, then one line of numbers for each time \
                        step; a first column `date` holds dates";

/// What to do about rows with more cells than the header, and about those with fewer.
const RAGGED: [&str; 2] = [
    "write decimals with a point, as in `1.5`: commas stand between the cells",
    "complete the row or remove it",
];

/// All rows, in their order.
pub(super) struct Table {
    /// As written, until they are standardised.
    raw: Vec<f64>,
    /// `rows * series` standardised values.
    values: Vec<f32>,
    /// `rows * features of the date`
    marks: Vec<f32>,
    /// Those that were checked.
    dates: Dates,
    /// Those of the last two rows, if they have some.
    last: [Option<DateTime>; 2],
    /// Names of the series.
    names: Vec<String>,
    /// What was taken away from each, and what it was divided by.
    scales: Vec<Scale>,
    calendar: Calendar,
}

impl Table {
    /// Reads the table at `path`, whose dates must ascend if `check_dates`.
    ///
    /// # Errors
    ///
    /// The file is absent, two columns have one name, a line holds something that is not a finite
    /// number or a date, or dates do not ascend.
    pub(super) fn read(path: &Path, calendar: Calendar, check_dates: bool) -> Result<Self, Error> {
        let bytes = read::table("the table", path, EXPECTED)?;
        let (mut rows, header) = CsvRows::open(path, &bytes)?;
        header::unique(&header).map_err(|bad| cell(path, 1, bad))?;
        let separator = header::separator(path, &header);
        let dated = header.first().is_some_and(|name| name.eq_ignore_ascii_case("date"));
        let names = header.iter().skip(usize::from(dated)).cloned();
        let mut table = Self::new(names.collect(), calendar);
        if table.names.is_empty() {
            return Err(at(path, 1, "the table needs at least one series".to_owned()));
        }
        let mut record = ::csv::StringRecord::new();
        while let Some(line) = rows.read(&mut record)? {
            let date = table.push(&record, &header, dated).map_err(|BadCell { what, help }| {
                cell(path, line, BadCell { what, help: separator.clone().or(help) })
            })?;
            table.last = [table.last[1], date];
            if let Some(date) = date.filter(|_| check_dates) {
                let out_of_order = |what| Error::DateOrder { path: path.to_owned(), line, what };
                table.dates.push(date, line).map_err(out_of_order)?;
            }
        }
        Ok(table)
    }

    fn new(names: Vec<String>, calendar: Calendar) -> Self {
        Self {
            raw: vec![],
            values: vec![],
            marks: vec![],
            dates: Dates::default(),
            last: [None; 2],
            names,
            scales: vec![],
            calendar,
        }
    }

    /// Appends a row; returns its date, if it has one.
    fn push(
        &mut self,
        record: &::csv::StringRecord,
        header: &[String],
        dated: bool,
    ) -> Result<Option<DateTime>, BadCell> {
        header::fits(record.len(), header, RAGGED)?;
        let date = record.get(0).filter(|_| dated).map(calendar::date).transpose()?;
        calendar::append(self.calendar, date, &mut self.marks);
        for (column, cell) in header.iter().zip(record).skip(usize::from(dated)) {
            self.raw.push(number(column, cell).map_err(|what| {
                let help = Some(remedy(cell));
                BadCell { what, help }
            })?);
        }
        Ok(date)
    }

    /// Where rows seem to be missing, if dates were checked, which are let go of.
    pub(super) fn take_gaps(&mut self) -> Option<String> {
        std::mem::take(&mut self.dates).gaps()
    }

    /// What the first `train` rows say of each series.
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

    /// What was taken away from each series, and what it was divided by.
    pub(super) fn scales(&self) -> &[Scale] {
        &self.scales
    }

    /// Names of the series.
    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    /// The dates of the `n` rows after the last one, where dates are known.
    pub(super) fn next_dates(&self, n: usize) -> Vec<String> {
        let [Some(before), Some(last)] = self.last else { return Vec::new() };
        let dates = dates::following([before, last], n).unwrap_or_default();
        dates.iter().map(|date| date.strftime("%Y-%m-%d %H:%M:%S").to_string()).collect()
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

/// What to do about a cell that is no finite number.
fn remedy(cell: &str) -> String {
    match with_point(cell) {
        Some(point) => decimals(&point),
        None => "fill or remove such values before training: each row has a number for each series"
            .to_owned(),
    }
}
