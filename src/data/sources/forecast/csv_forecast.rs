//! `data.name = "csv_forecast"`, windows of a table of series in time: what a model sees, and what
//! comes next.
//!
//! Rows are cut in order into training, validation and test. Validation and test begin `seq_len`
//! rows early, so that their first window predicts their first row. Every series is standardised
//! with the mean and the population standard deviation of the training rows only, which the run
//! keeps. A first column
//! called `date` gives features of the calendar; they follow the series in each row of a sample and
//! are not standardised.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Kind, Modality, Offer, Options};
use crate::config::values::SplitRule;
use crate::data::error::{Error, SampleError, shown};
use crate::data::inputs::{self, Answers, Inputs, Item, Items, Predicting, Unit};
use crate::data::sources::forecast::calendar;
use crate::data::sources::forecast::calendar::Calendar;
use crate::data::sources::forecast::table::Table;
use crate::data::sources::source::{Asked, DataSource, Files, Reading, Survey};
use crate::data::sources::tables::fit::Scale;
use crate::data::{Dataset, Splits, Target};
use crate::plan::{TargetColumn, Targets};
use crate::rng::Key;
use crate::units::Bytes;

/// time series in a csv table; the next steps are predicted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CsvForecast {
    /// the table: a header line, then one row of numbers per time step; the first column may be
    /// `date`. All series are standardised by the training rows and predicted together. Loss,
    /// val/mse and val/mae are measured on that scale, over all windows; test/mse and test/mae
    /// once, with the best weights, at the end of the run.
    #[schemars(extend("format" = "path"), example = "data/ETTh1.csv")]
    pub file: PathBuf,
    /// chronological split into training, validation and test: ratios; or numbers of rows, such as
    /// "34560:11520:11520" (if none exceeds 1000, write "500:100:100 rows"), remaining rows being
    /// unused; or `ett_hour` and `ett_minute` (12, 4 and 4 months of 30 days). The first windows of
    /// validation and test look back into the rows before them.
    #[serde(default = "split")]
    #[schemars(example = &"ett_hour")]
    pub split: SplitRule,
    /// past time steps that the model sees.
    #[schemars(range(min = 2, max = 65_536), example = 96)]
    pub seq_len: usize,
    /// future time steps that it predicts.
    #[schemars(range(min = 1, max = 65_536), example = 96)]
    pub pred_len: usize,
    /// date features in addition to the series: "hour" (hour, day of the week, of the month and of
    /// the year), "minute" (these and the minute) or "none"; zeros if the table has no dates.
    #[serde(default)]
    pub calendar: Calendar,
    /// refuse dates that are not in ascending order, and warn about gaps. false takes the rows as
    /// they are.
    #[serde(default = "checked")]
    #[schemars(example = false)]
    pub check_dates: bool,
}

fn split() -> SplitRule {
    SplitRule::Parts([7, 1, 2])
}

fn checked() -> bool {
    true
}

impl Kind for CsvForecast {
    const NAME: &'static str = "csv_forecast";
    const OFFERS: &'static [Offer] = &[Offer::Samples(Modality::Series), Offer::Test];
}

impl DataSource for CsvForecast {
    fn target(&self) -> Result<Option<Targets>, Error> {
        Ok(Some(Targets::Numbers))
    }

    fn open(&self, reading: &Reading<'_>) -> Result<Splits, Error> {
        read(self, kept(reading.found)).map(|read| read.splits)
    }

    fn survey(&self, asked: &Asked<'_>) -> Result<Survey, Error> {
        let Read { splits, notes, target_columns, scales } =
            read(self, asked.found.and_then(kept))?;
        let found = Survey::of(&splits);
        let rows = found.n_train + found.n_val + found.n_test + self.seq_len;
        let row = splits.train.shape()[1];
        Ok(Survey {
            notes,
            target_columns,
            line: format!("{}, {} steps -> {}", self.file.display(), self.seq_len, self.pred_len),
            // The whole table in f64 and f32, whose windows overlap.
            held: Bytes(3 * Bytes::of_f32(rows * row).0),
            found: [(SCALES.to_owned(), serde_json::json!(scales))].into(),
            ..found
        })
    }

    fn inputs(&self, asked: &Predicting<'_>) -> Result<Inputs, Error> {
        forecasts(self, asked)
    }

    fn files(&self, _: &Options) -> Result<Vec<Files>, Error> {
        Ok(vec![Files::one("table", &self.file)])
    }

    /// The series in their order, with means and deviations of the training rows; behind them are
    /// the features of each date.
    fn preprocessing(&self, found: &Options) -> Result<Options, Error> {
        let mut table = Table::read(&self.file, self.calendar, false)?;
        let rows = rows(self.split, table.rows()).map_err(|what| format(self, what))?;
        let calendar = serde_json::to_value(self.calendar).unwrap_or_default();
        table.standardise(kept(found).unwrap_or_else(|| table.scales_of(rows.train)));
        let series = table.described();
        let features = calendar::described(self.calendar).into();
        let said = [("series", series), ("calendar", calendar), ("calendar_features", features)];
        Ok(said.map(|(key, value)| (key.to_owned(), value)).into())
    }
}

/// By what name a run keeps what was taken away from each series, and what it was divided by.
const SCALES: &str = "scales";

/// What a run kept.
fn kept(found: &Options) -> Option<Vec<Scale>> {
    serde_json::from_value(found.get(SCALES)?.clone()).ok()
}

/// The last rows of each table, after which comes what is to be forecast.
fn forecasts(source: &CsvForecast, asked: &Predicting<'_>) -> Result<Inputs, Error> {
    let names: Vec<&String> = asked.plan.target_columns.iter().map(|column| &column.name).collect();
    let scales = match kept(&asked.plan.source.found) {
        Some(scales) => scales,
        // A run of before they were kept has its table.
        None => read(source, None)?.scales,
    };
    let unit = |(name, &(mean, deviation)): (&&String, &Scale)| Unit {
        name: (*name).clone(),
        mean,
        deviation,
    };
    let units = names.iter().zip(&scales).map(unit).collect();
    let is_wanted = |path: &Path| inputs::ends_with(path, &["csv"]);
    let mut recent = Recent::new(source, names.len());
    let mut items = Vec::new();
    for path in inputs::files(asked.paths, "tables (.csv) of series", &is_wanted)? {
        let file: Arc<Path> = Arc::from(&*path);
        let mut table = match Table::read(&path, source.calendar, source.check_dates) {
            Ok(table) => table,
            Err(error @ (Error::Missing { .. } | Error::Io { .. })) => return Err(error),
            Err(error) => {
                items.push(Item::unreadable(&file, None, error.to_string()));
                continue;
            }
        };
        let missing = names.iter().filter(|name| !table.names().contains(name));
        let missing: Vec<&str> = missing.map(|name| name.as_str()).collect();
        if !missing.is_empty() {
            return Err(inputs::lacks(&path, &missing, table.names()));
        }
        if table.names().iter().ne(names.iter().copied()) {
            let what = format!(
                "its series are {}, but the run was trained on {}, in this order",
                table.names().join(", "),
                names.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ")
            );
            return Err(Error::Format { path, what });
        }
        table.standardise(scales.clone());
        items.push(recent.take(&table, &file, source));
    }
    let samples = Arc::new(recent);
    Ok(Inputs {
        samples,
        items: Items::Listed(items),
        answers: Answers::Series(units),
        notes: Vec::new(),
    })
}

/// The last rows of some tables.
struct Recent {
    values: Vec<Vec<f32>>,
    shape: [usize; 2],
}

impl Recent {
    fn new(source: &CsvForecast, series: usize) -> Self {
        let shape = [source.seq_len, series + source.calendar.features()];
        Self { values: Vec::new(), shape }
    }

    /// The last rows of `table`, if it has enough.
    fn take(&mut self, table: &Table, file: &Arc<Path>, source: &CsvForecast) -> Item {
        let (rows, seq_len) = (table.rows(), source.seq_len);
        let Some(first) = rows.checked_sub(seq_len) else {
            let why = format!("it has {rows} rows, but a forecast needs the last {seq_len}");
            return Item::unreadable(file, None, why);
        };
        let row = |row| table.values(row, 1).iter().chain(table.marks(row)).copied();
        let at = self.values.len();
        self.values.push((first..rows).flat_map(row).collect());
        Item { dates: table.next_dates(source.pred_len), ..Item::new(file, None, at..at + 1) }
    }
}

impl Dataset for Recent {
    fn len(&self) -> usize {
        self.values.len()
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn classifies(&self) -> bool {
        false
    }

    fn name(&self, index: usize) -> String {
        format!("table {}", index + 1)
    }

    fn load(
        &self,
        index: usize,
        _: Option<Key>,
        values: &mut Vec<f32>,
    ) -> Result<Target, SampleError> {
        values.extend_from_slice(&self.values[index]);
        Ok(Target::Value(0.0))
    }
}

/// Rows of training, validation and test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rows {
    train: usize,
    val: usize,
    test: usize,
}

/// A table that was cut.
struct Read {
    splits: Splits,
    /// What is worth a look, in words.
    notes: Vec<String>,
    target_columns: Vec<TargetColumn>,
    /// What the series were standardised with.
    scales: Vec<Scale>,
}

/// Reads the table and cuts it; `scales` are those that a run has kept.
///
/// # Errors
///
/// The file is absent, a line holds something that is not a finite number or a date (named with
/// line and column), dates do not ascend, or a split is too short for one window.
fn read(asked: &CsvForecast, scales: Option<Vec<Scale>>) -> Result<Read, Error> {
    let mut table = Table::read(&asked.file, asked.calendar, asked.check_dates)?;
    let rows = rows(asked.split, table.rows()).map_err(|what| format(asked, what))?;
    let notes = notes(asked, &mut table, rows);
    let scales = scales.filter(|scales| scales.len() == table.series());
    let scales = scales.unwrap_or_else(|| table.scales_of(rows.train));
    table.standardise(scales);
    let table = Arc::new(table);
    let windows = |name, start: usize, rows: usize| {
        let window = asked.seq_len + asked.pred_len;
        let short = || {
            let what = format!(
                "its {name} split has {rows} rows, but a window of `seq_len` + `pred_len` has \
                 {window}"
            );
            format(asked, what)
        };
        let n = (rows + 1).checked_sub(window).filter(|&n| n > 0).ok_or_else(short)?;
        Ok::<_, Error>(Arc::new(Windows::new(table.clone(), asked, start, n)))
    };
    let early = |rows: usize| rows + asked.seq_len;
    let (val, test) = (rows.train, rows.train + rows.val);
    // A first window that began before the table would have no past.
    let train = windows("training", 0, rows.train)?;
    let splits = Splits {
        train,
        val: windows("validation", val - asked.seq_len, early(rows.val))?,
        test: Some(windows("test", test - asked.seq_len, early(rows.test))?),
        classes: Vec::new(),
    };
    let (target_columns, scales) = (table.target_columns(), table.scales().to_vec());
    Ok(Read { splits, notes, target_columns, scales })
}

/// Gaps between dates, and rows that a split by their number does not use.
fn notes(asked: &CsvForecast, table: &mut Table, rows: Rows) -> Vec<String> {
    let unused = table.rows() - (rows.train + rows.val + rows.test);
    let is_by_rows = matches!(asked.split, SplitRule::Rows(_));
    let unused = (is_by_rows && unused > 0)
        .then(|| format!("the last {unused} of {} rows are not used", table.rows()));
    let about = |what| format!("`{}`: {what}", shown(&asked.file));
    table.take_gaps().into_iter().chain(unused).map(about).collect()
}

fn format(asked: &CsvForecast, what: String) -> Error {
    Error::Format { path: asked.file.clone(), what }
}

/// The split of a table of `n` rows.
fn rows(split: SplitRule, n: usize) -> Result<Rows, String> {
    const MONTH: usize = 30 * 24;
    let first = |rows: Rows| {
        let whole = rows.train + rows.val + rows.test;
        if n < whole {
            return Err(format!("it has {n} rows, but this split needs {whole}"));
        }
        Ok(rows)
    };
    let months = |of: usize| first(Rows { train: 12 * of, val: 4 * of, test: 4 * of });
    match split {
        SplitRule::EttHour => months(MONTH),
        SplitRule::EttMinute => months(4 * MONTH),
        SplitRule::Rows(rows) => {
            let [train, val, test] = rows.map(|rows| rows as usize);
            first(Rows { train, val, test })
        }
        SplitRule::Parts(parts) => {
            let [train, val, test] = parts.map(|part| part as usize);
            let whole = train + val + test;
            let (train, test) = (n * train / whole, n * test / whole);
            Ok(Rows { train, val: n - train - test, test })
        }
    }
}

/// The windows of one split.
struct Windows {
    table: Arc<Table>,
    /// Row of the first window's first step.
    start: usize,
    n: usize,
    seq_len: usize,
    shape: [usize; 2],
    target_shape: [usize; 2],
    name: String,
}

impl Windows {
    fn new(table: Arc<Table>, asked: &CsvForecast, start: usize, n: usize) -> Self {
        let (seq_len, series) = (asked.seq_len, table.series());
        Self {
            shape: [seq_len, series + asked.calendar.features()],
            target_shape: [asked.pred_len, series],
            name: shown(&asked.file),
            table,
            start,
            n,
            seq_len,
        }
    }
}

impl Dataset for Windows {
    fn len(&self) -> usize {
        self.n
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn target_shape(&self) -> &[usize] {
        &self.target_shape
    }

    fn classifies(&self) -> bool {
        false
    }

    fn name(&self, index: usize) -> String {
        let first = self.start + index;
        let last = first + self.seq_len + self.target_shape[0];
        format!("rows {} to {last} of `{}`", first + 1, self.name)
    }

    fn load(
        &self,
        index: usize,
        _: Option<Key>,
        values: &mut Vec<f32>,
    ) -> Result<Target, SampleError> {
        let first = self.start + index;
        let next = first + self.seq_len;
        for row in first..next {
            values.extend_from_slice(self.table.values(row, 1));
            values.extend_from_slice(self.table.marks(row));
        }
        Ok(Target::Series(self.table.values(next, self.target_shape[0]).to_vec()))
    }
}

#[cfg(test)]
mod tests;
