//! Windows of a table of series in time: what a model sees, and what comes next.
//!
//! Rows are cut in order into training, validation and test. Validation and test begin `seq_len` rows early, so
//! that their first window predicts their first row. Every series is standardised with the mean and the
//! population standard deviation of the training rows only. A first column called `date` gives features of the
//! calendar; they follow the series in each row of a sample and are not standardised.

mod calendar;
mod dates;
mod table;

use std::path::PathBuf;
use std::sync::Arc;

use crate::data::error::{Error, SampleError, shown};
use crate::data::{Dataset, Splits, Target};
use crate::plan::{Calendar, DataFacts, SourcePlan, SplitRule};
use crate::rng::Key;
use table::Table;

/// What is asked of the table.
#[derive(Clone, Debug)]
pub(crate) struct Forecast {
    pub(crate) file: PathBuf,
    pub(crate) split: SplitRule,
    pub(crate) seq_len: usize,
    pub(crate) pred_len: usize,
    pub(crate) calendar: Calendar,
    pub(crate) check_dates: bool,
}

/// Rows of training, validation and test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rows {
    train: usize,
    val: usize,
    test: usize,
}

/// Counts the windows of each split.
///
/// # Errors
///
/// As [`open`].
pub(crate) fn survey(asked: Forecast) -> Result<DataFacts, Error> {
    let (splits, notes) = read(&asked)?;
    let Forecast { file, split, seq_len, pred_len, calendar, check_dates } = asked;
    Ok(DataFacts {
        source: SourcePlan::CsvForecast { file, split, seq_len, pred_len, calendar, check_dates },
        notes,
        n_train: splits.train.len(),
        n_val: splits.val.len(),
        n_test: splits.test.as_ref().map_or(0, |test| test.len()),
        classes: Vec::new(),
        sample: Some(splits.train.shape().to_vec()),
        target: splits.train.target_shape().to_vec(),
    })
}

/// Reads the table and cuts it.
///
/// # Errors
///
/// The file is absent, a line holds something that is not a finite number or a date (named with line and
/// column), dates do not ascend, or a split is too short for one window.
pub(crate) fn open(asked: &Forecast) -> Result<Splits, Error> {
    read(asked).map(|(splits, _)| splits)
}

/// The same with what is worth a look, in words.
fn read(asked: &Forecast) -> Result<(Splits, Vec<String>), Error> {
    let mut table = Table::read(asked)?;
    let rows = rows(asked.split, table.rows()).map_err(|what| format(asked, what))?;
    let notes = notes(asked, &mut table, rows);
    table.standardise(rows.train);
    let table = Arc::new(table);
    let windows = |name, start: usize, rows: usize| {
        let window = asked.seq_len + asked.pred_len;
        let short = || {
            let what = format!(
                "its {name} split has {rows} rows, but a window of `seq_len` + `pred_len` has {window}"
            );
            format(asked, what)
        };
        let n = (rows + 1).checked_sub(window).filter(|&n| n > 0).ok_or_else(short)?;
        Ok(Arc::new(Windows::new(table.clone(), asked, start, n)))
    };
    let early = |rows: usize| rows + asked.seq_len;
    let (val, test) = (rows.train, rows.train + rows.val);
    // A first window that began before the table would have no past.
    let train = windows("training", 0, rows.train)?;
    let splits = Splits {
        train,
        val: windows("validation", val - asked.seq_len, early(rows.val))?,
        test: Some(windows("test", test - asked.seq_len, early(rows.test))?),
    };
    Ok((splits, notes))
}

/// Gaps between dates, and rows that a split by their number does not use.
fn notes(asked: &Forecast, table: &mut Table, rows: Rows) -> Vec<String> {
    let unused = table.rows() - (rows.train + rows.val + rows.test);
    let is_by_rows = matches!(asked.split, SplitRule::Rows(_));
    let unused = (is_by_rows && unused > 0)
        .then(|| format!("the last {unused} of {} rows are not used", table.rows()));
    let about = |what| format!("`{}`: {what}", shown(&asked.file));
    table.take_gaps().into_iter().chain(unused).map(about).collect()
}

fn format(asked: &Forecast, what: String) -> Error {
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
    fn new(table: Arc<Table>, asked: &Forecast, start: usize, n: usize) -> Self {
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
