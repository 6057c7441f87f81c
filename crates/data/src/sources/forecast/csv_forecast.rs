//! `data.name = "csv_forecast"`, windows of a table of series in time: what a model sees, and what
//! comes next.
//!
//! Rows are cut in order into training, validation and test. Validation and test begin `seq_len`
//! rows early, so that their first window predicts their first row. Every series is standardised
//! with the mean and the population standard deviation of the training rows only, which the run
//! keeps. A first column of dates gives features of the calendar; they follow the series in each
//! row of a sample and are not standardised.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Capability, Kind, Modality, OptionConflict, Options};
use crate::config::values::SplitRule;
use crate::error::{Error, SampleError, shown};
use crate::inputs::{
    self, InputItem, InputItems, Inputs, OutputScale, PredictionKind, PredictionRequest,
};
use crate::plan::{TargetColumn, Targets};
use crate::rng::Key;
use crate::sources::dates::{DateForm, Frequency, FrequencyAlias, check_format};
use crate::sources::forecast::calendar;
use crate::sources::forecast::calendar::Calendar;
use crate::sources::forecast::dates::Dates;
use crate::sources::forecast::table::{DateOptions, Table};
use crate::sources::source::{DataSource, Files, OpenRequest, Survey, SurveyRequest};
use crate::sources::tables::column::truth_values;
use crate::sources::tables::fit::Scale;
use crate::units::Bytes;
use crate::{Baseline, Dataset, Splits, Target};

/// time series in a csv table; the next steps are predicted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CsvForecast {
    /// the table: a header line, then one row of numbers per time step; the first column may hold
    /// dates. All series are standardised by the training rows and predicted together. Loss,
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
    /// format of the dates in strftime's words, such as "%d/%m/%Y %H:%M". Without it, the format
    /// that all rows fit; dates that have several meanings are refused.
    #[serde(default)]
    #[schemars(example = &"%d/%m/%Y %H:%M")]
    pub date_format: Option<String>,
    /// frequency by which `ddprun predict` dates a forecast, in pandas' words: h, 15min, D, B
    /// (Monday to Friday), W, MS, ME, BME, QE, YS and the like. Without it, the one that nine in
    /// ten dates follow; forecasts of irregular series have no dates.
    #[serde(default)]
    #[schemars(with = "Option<String>", example = &"B")]
    pub frequency: Option<FrequencyAlias>,
    /// time steps after which the series comes round, such as 24 for hours, for the seasonal naive
    /// forecast and MASE. Without it, it follows from the dates; 1 = there is no season.
    #[serde(default)]
    #[schemars(range(min = 1, max = 65_536), example = 24)]
    pub season: Option<usize>,
}

fn split() -> SplitRule {
    SplitRule::Parts([7, 1, 2])
}

fn checked() -> bool {
    true
}

impl Kind for CsvForecast {
    const NAME: &'static str = "csv_forecast";
    const CAPABILITIES: &'static [Capability] =
        &[Capability::Samples(Modality::Series), Capability::Test];

    fn check(&self) -> Vec<OptionConflict> {
        let format = self.date_format.as_deref().map_or(Ok(()), check_format);
        let wrong = |what| OptionConflict { key: "date_format", with: &[], what };
        format.err().map(wrong).into_iter().collect()
    }
}

impl CsvForecast {
    /// Windows of the series in `file`, with the defaults of all other keys.
    pub fn new(file: PathBuf, seq_len: usize, pred_len: usize) -> Self {
        Self {
            file,
            split: split(),
            seq_len,
            pred_len,
            calendar: Calendar::default(),
            check_dates: checked(),
            date_format: None,
            frequency: None,
            season: None,
        }
    }

    fn dates<'a>(&'a self, stored: &'a SurveyResults) -> DateOptions<'a> {
        let calendar = self.calendar;
        let check = self.check_dates;
        let form = stored.date_form.as_ref();
        let of_run = stored.scales.is_some().then_some(form.is_some());
        DateOptions { calendar, check, format: self.date_format.as_deref(), form, of_run }
    }
}

impl DataSource for CsvForecast {
    fn target(&self) -> Result<Option<Targets>, Error> {
        Ok(Some(Targets::Numbers))
    }

    fn open(&self, reading: &OpenRequest<'_>) -> Result<Splits, Error> {
        read(self, &SurveyResults::of(reading.found)).map(|read| read.splits)
    }

    fn survey(&self, request: &SurveyRequest<'_>) -> Result<Survey, Error> {
        let stored = request.found.map(SurveyResults::of).unwrap_or_default();
        let CutTable { splits, notes, target_columns, stored } = read(self, &stored)?;
        let found = Survey::of(&splits);
        let rows = found.n_train + found.n_val + found.n_test + self.seq_len;
        let row = splits.train.shape()[1];
        Ok(Survey {
            notes,
            target_columns,
            line: self.line(&stored),
            // The whole table in f64 and f32, whose windows overlap.
            held: Bytes(3 * Bytes::of_f32(rows * row).0),
            found: stored.options(),
            ..found
        })
    }

    fn inputs(&self, request: &PredictionRequest<'_>) -> Result<Inputs, Error> {
        forecasts(self, request)
    }

    fn files(&self, _: &Options) -> Result<Vec<Files>, Error> {
        Ok(vec![Files::one("table", &self.file)])
    }

    fn target_scales(&self, found: &Options) -> Vec<(f64, f64)> {
        SurveyResults::of(found).scales.unwrap_or_default()
    }

    /// The series in their order, with means and deviations of the training rows; behind them are
    /// the features of each date.
    fn preprocessing(&self, found: &Options) -> Result<Options, Error> {
        let stored = SurveyResults::of(found);
        let dates = DateOptions { check: false, ..self.dates(&stored) };
        let mut table = Table::read(&self.file, &dates)?;
        let rows = rows(self.split, table.rows()).map_err(|what| format(self, what))?;
        let calendar = serde_json::to_value(self.calendar).unwrap_or_default();
        table.standardise(stored.scales.unwrap_or_else(|| table.scales_of(rows.train)));
        let series = table.described();
        // Without dates their features are zeros.
        let dates = table.dates().map(|dates| dates.form().described()).into();
        let features = calendar::described(self.calendar).into();
        let said = [
            ("series", series),
            ("calendar", calendar),
            ("calendar_features", features),
            ("dates", dates),
            ("truth_values", truth_values()),
        ];
        Ok(said.map(|(key, value)| (key.to_owned(), value)).into())
    }
}

/// Results of the survey that a run stores.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct SurveyResults {
    /// Mean and deviation that standardise each series.
    #[serde(skip_serializing_if = "Option::is_none")]
    scales: Option<Vec<Scale>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    date_form: Option<DateForm>,
    /// Frequency of the dates, if they are regular.
    #[serde(skip_serializing_if = "Option::is_none")]
    frequency: Option<Frequency>,
    #[serde(skip_serializing_if = "Option::is_none")]
    season: Option<usize>,
    /// Mean absolute errors of the seasonal naive forecast over the training rows, by series: what
    /// MASE is measured in.
    #[serde(skip_serializing_if = "Option::is_none")]
    naive_errors: Option<Vec<f64>>,
}

impl SurveyResults {
    fn of(found: &Options) -> Self {
        serde_json::to_value(found)
            .ok()
            .and_then(|found| serde_json::from_value(found).ok())
            .unwrap_or_default()
    }

    fn options(&self) -> Options {
        let found = serde_json::to_value(self).ok();
        found.and_then(|found| serde_json::from_value(found).ok()).unwrap_or_default()
    }
}

impl CsvForecast {
    /// "load.csv, 96 steps -> 24, frequency `h`, season 24"
    fn line(&self, stored: &SurveyResults) -> String {
        let file = self.file.display();
        let past = self.seq_len;
        let future = self.pred_len;
        let given = self.frequency.as_ref().map(FrequencyAlias::frequency);
        let frequency = given.or(stored.frequency.as_ref());
        let frequency = frequency.map(|it| format!(", frequency {it}")).unwrap_or_default();
        let season = stored.season.filter(|season| *season > 1);
        let season = season.map(|season| format!(", season {season}")).unwrap_or_default();
        format!("{file}, {past} steps -> {future}{frequency}{season}")
    }

    /// The dates of what follows a table, and what is to be said about them.
    fn dates_after(
        &self,
        dates: &Dates,
        stored: &SurveyResults,
    ) -> (Vec<Option<String>>, Option<String>) {
        let none = || vec![None; self.pred_len];
        let given = self.frequency.as_ref().map(FrequencyAlias::frequency);
        let of_run = stored.frequency.as_ref();
        let fitting = of_run.filter(|frequency| frequency.is_usual_in(dates.all()));
        let own = dates.frequency();
        let Some(frequency) = given.or(fitting).or(own.as_ref()) else {
            let what = "its dates are irregular, so those of the forecast are not known: set \
                        `data.frequency` when you train";
            return (none(), Some(what.to_owned()));
        };
        let found = dates.following(frequency, self.pred_len);
        if found.is_empty() {
            let what = "its last date is not at the frequency";
            let note = format!("{what} `{frequency}`, so those of the forecast are not known");
            return (none(), Some(note));
        }
        let other = of_run.filter(|trained| given.is_none() && *trained != frequency);
        let note = other.map(|trained| {
            let own = frequency.apart();
            let trained = trained.apart();
            format!("its dates are usually {own} apart, but those of the run {trained}")
        });
        (found.into_iter().map(Some).collect(), note)
    }

    /// Describes gaps among the rows that a forecast is made from.
    fn gaps_before(&self, dates: &Dates, stored: &SurveyResults) -> Option<String> {
        let given = self.frequency.as_ref().map(FrequencyAlias::frequency);
        let known = given.or(stored.frequency.as_ref()).cloned();
        let frequency = known.or_else(|| dates.frequency()).filter(|_| self.check_dates)?;
        let gaps = dates.last(self.seq_len).gaps(&frequency)?;
        let what = "which the forecast is made from, are incomplete";
        Some(format!("the last {} rows, {what}: {gaps}", self.seq_len))
    }
}

const UNSEEN: &str = "the run was trained without dates, so the model does not see these: they only \
                      date the forecast";

/// The last rows of each table, after which comes what is to be forecast.
fn forecasts(source: &CsvForecast, request: &PredictionRequest<'_>) -> Result<Inputs, Error> {
    let names: Vec<&String> =
        request.plan.target_columns.iter().map(|column| &column.name).collect();
    let stored = SurveyResults::of(&request.plan.source.survey);
    let scales = match &stored.scales {
        Some(scales) => scales.clone(),
        // A run of before they were kept has its table.
        None => read(source, &stored)?.stored.scales.unwrap_or_default(),
    };
    let unit = |(name, &(mean, deviation)): (&&String, &Scale)| OutputScale {
        name: (*name).clone(),
        mean,
        deviation,
    };
    let units = names.iter().zip(&scales).map(unit).collect();
    let is_wanted = |path: &Path| inputs::ends_with(path, &["csv"]);
    let mut recent = RecentWindows::new(source, names.len());
    let inputs::InputFiles { files, mut notes } =
        inputs::files(request.paths, "tables (.csv) of series", &is_wanted)?;
    let mut items = Vec::new();
    let options = source.dates(&stored);
    for path in files {
        let file: Arc<Path> = Arc::from(&*path);
        let mut table = match Table::read(&path, &options) {
            Ok(table) => table,
            // Other tables of the folder will lack dates, too.
            Err(error @ (Error::Missing { .. } | Error::Io { .. } | Error::WithHelp { .. })) => {
                return Err(error);
            }
            Err(error) => {
                items.push(InputItem::unreadable(&file, None, error.to_string()));
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
        let mut item = recent.take(&table, &file, source);
        if let Some(dates) = table.dates()
            && item.samples.is_ok()
        {
            let (following, note) = source.dates_after(dates, &stored);
            item.dates = following;
            let gaps = source.gaps_before(dates, &stored);
            let is_unseen = options.of_run == Some(false) && source.calendar.features() > 0;
            let unseen = is_unseen.then(|| UNSEEN.to_owned());
            let about = |note| format!("`{}`: {note}", shown(&path));
            notes.extend(note.into_iter().chain(gaps).chain(unseen).map(about));
        }
        items.push(item);
    }
    let samples = Arc::new(recent);
    let items = InputItems::Listed(items);
    Ok(Inputs { samples, items, answers: PredictionKind::Series(units), notes })
}

/// The last rows of some tables.
struct RecentWindows {
    values: Vec<Vec<f32>>,
    shape: [usize; 2],
}

impl RecentWindows {
    fn new(source: &CsvForecast, series: usize) -> Self {
        let shape = [source.seq_len, series + source.calendar.features()];
        Self { values: Vec::new(), shape }
    }

    /// The last rows of `table`, if it has enough.
    fn take(&mut self, table: &Table, file: &Arc<Path>, source: &CsvForecast) -> InputItem {
        let rows = table.rows();
        let seq_len = source.seq_len;
        let Some(first) = rows.checked_sub(seq_len) else {
            let why = format!("it has {rows} rows, but a forecast needs the last {seq_len}");
            return InputItem::unreadable(file, None, why);
        };
        let row = |row| table.values(row, 1).iter().chain(table.marks(row)).copied();
        let at = self.values.len();
        self.values.push((first..rows).flat_map(row).collect());
        InputItem::new(file, None, at..at + 1)
    }
}

impl Dataset for RecentWindows {
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
struct CutTable {
    splits: Splits,
    /// Notes for the user.
    notes: Vec<String>,
    target_columns: Vec<TargetColumn>,
    stored: SurveyResults,
}

/// Reads the table and cuts it, with what a run has `stored`.
fn read(asked: &CsvForecast, stored: &SurveyResults) -> Result<CutTable, Error> {
    let mut table = Table::read(&asked.file, &asked.dates(stored))?;
    let rows = rows(asked.split, table.rows()).map_err(|what| format(asked, what))?;
    let given = asked.frequency.as_ref().map(FrequencyAlias::frequency);
    let inferred = table.dates().and_then(Dates::frequency);
    let usual = given.or(stored.frequency.as_ref()).or(inferred.as_ref());
    let notes = notes(asked, &table, rows, usual);
    let scales = stored.scales.clone().filter(|scales| scales.len() == table.series());
    let scales = scales.unwrap_or_else(|| table.scales_of(rows.train));
    table.standardise(scales.clone());
    let usual = || given.or(inferred.as_ref()).map_or(1, Frequency::season);
    let season = asked.season.or(stored.season).unwrap_or_else(usual);
    let errors = stored.naive_errors.clone().filter(|errors| errors.len() == table.series());
    let stored = SurveyResults {
        scales: Some(scales),
        date_form: stored.date_form.clone().or_else(|| Some(table.dates()?.form().clone())),
        naive_errors: Some(errors.unwrap_or_else(|| table.naive_errors(rows.train, season))),
        frequency: stored.frequency.clone().or(inferred),
        season: Some(season),
    };
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
        Ok::<_, Error>(Arc::new(Windows::new(table.clone(), asked, start, n, season)))
    };
    let early = |rows: usize| rows + asked.seq_len;
    let val = rows.train;
    let test = rows.train + rows.val;
    // A first window that began before the table would have no past.
    let train = windows("training", 0, rows.train)?;
    let splits = Splits {
        train,
        val: windows("validation", val - asked.seq_len, early(rows.val))?,
        test: Some(windows("test", test - asked.seq_len, early(rows.test))?),
        classes: Vec::new(),
    };
    Ok(CutTable { splits, notes, target_columns: table.target_columns(), stored })
}

/// Gaps between dates, dates without a frequency, and rows that a split by their number does not
/// use.
fn notes(
    asked: &CsvForecast,
    table: &Table,
    rows: Rows,
    frequency: Option<&Frequency>,
) -> Vec<String> {
    let unused = table.rows() - (rows.train + rows.val + rows.test);
    let is_by_rows = matches!(asked.split, SplitRule::Rows(_));
    let unused = (is_by_rows && unused > 0)
        .then(|| format!("the last {unused} of {} rows are not used", table.rows()));
    let about = |what| format!("`{}`: {what}", shown(&asked.file));
    let dates = if asked.check_dates { table.dates() } else { None };
    let dates = dates.and_then(|dates| dates.note(frequency));
    dates.into_iter().chain(unused).map(about).collect()
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
            let train = n * train / whole;
            let test = n * test / whole;
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
    season: usize,
    seq_len: usize,
    shape: [usize; 2],
    target_shape: [usize; 2],
    name: String,
}

impl Windows {
    fn new(table: Arc<Table>, asked: &CsvForecast, start: usize, n: usize, season: usize) -> Self {
        let seq_len = asked.seq_len;
        let series = table.series();
        Self {
            shape: [seq_len, series + asked.calendar.features()],
            target_shape: [asked.pred_len, series],
            name: shown(&asked.file),
            table,
            start,
            n,
            season,
            seq_len,
        }
    }

    /// Error of repeating the `season` rows before the forecast; `None` if the table begins later.
    fn repeating(&self, name: &'static str, season: usize) -> Option<Baseline> {
        let steps = self.target_shape[0];
        let first = self.start + self.seq_len;
        first.checked_sub(season)?;
        let (mut squared, mut absolute) = (0.0, 0.0);
        for next in first..first + self.n {
            for step in 0..steps {
                let wanted = self.table.values(next + step, 1);
                let repeated = self.table.values(next - season + step % season, 1);
                for (wanted, repeated) in wanted.iter().zip(repeated) {
                    let error = f64::from(*repeated) - f64::from(*wanted);
                    squared += error * error;
                    absolute += error.abs();
                }
            }
        }
        let n = (self.n * self.target_shape.iter().product::<usize>()) as f64;
        Some(Baseline { name, mse: squared / n, mae: absolute / n })
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

    fn baselines(&self) -> Vec<Baseline> {
        let last = self.repeating("naive", 1);
        let season = (self.season > 1).then(|| self.repeating("seasonal_naive", self.season));
        last.into_iter().chain(season.flatten()).collect()
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
