//! `data.name = "csv"`: tables with a header line, of which some columns are to be predicted.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{BuiltinSplits, Capability, Kind, Modality, OptionConflict, Options};
use crate::error::Error;
use crate::file_names::unpacked;
use crate::inputs::{self, Inputs, PredictionRequest};
use crate::plan::{Part, Targets};
use crate::sources::dates::DateForm;
use crate::sources::holdout::Parts;
use crate::sources::source::{DataSource, Files, OpenRequest, Survey, SurveyRequest};
use crate::sources::tables::answer::{Answer, class, unlabelled};
use crate::sources::tables::column::{BadCell, Column, decimals, empty, number, with_point};
use crate::sources::tables::column_names::{ColumnNames, keyed};
use crate::sources::tables::csv_rows::{
    CsvRows, EXPECTED, check_unique, check_width, other_separator, ragged,
};
use crate::sources::tables::date_formats::{DateFormats, DateInferences};
use crate::sources::tables::features::{CellRules, Features, MissingValues};
use crate::sources::tables::fit::Fit;
use crate::sources::tables::table::{AnswerKind, OpenedTable, Rows, TableSpec, at, cell};
use crate::sources::tables::target_cells::TargetCells;
use crate::sources::tables::unlabelled_rows::UnlabelledRows;
use crate::{Splits, read};

/// Remedies for rows with more cells than the header, and for rows with fewer.
pub(crate) const RAGGED: [&str; 2] =
    ["quote cells that hold commas: `\"a, b\"`", "keep the commas of empty cells, as in `1,,3`"];

/// a table with a header line, of which one or several columns are predicted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Csv {
    /// training table, with a header line.
    #[schemars(extend("format" = "path"), example = "data/train.csv")]
    pub train_file: PathBuf,
    /// validation table, with the same header; or hold out rows of `train_file` with
    /// `data.val_fraction` or `data.folds`.
    #[serde(default)]
    #[schemars(extend("format" = "path"), example = "data/val.csv")]
    pub val_file: Option<PathBuf>,
    /// test table, with the same header; it is used once, at the end of training.
    #[serde(default)]
    #[schemars(extend("format" = "path"), example = "data/test.csv")]
    pub test_file: Option<PathBuf>,
    /// the column to predict, or a list of columns; all others are features. Several columns are
    /// numbers or, with `bce_with_logits`, labels: 1 if a row has the label, else 0.
    #[schemars(example = &"price")]
    pub target: ColumnNames,
    /// standardise the target by the training rows; `mae_unscaled` and `rmse_unscaled` are in its
    /// own unit.
    #[serde(default)]
    pub standardize_target: bool,
    /// columns that are not features, such as row numbers.
    #[serde(default)]
    #[schemars(example = ["id"])]
    pub ignore: Vec<String>,
    /// a column such as a patient: rows with the same value are held out together. It is not a
    /// feature.
    #[serde(default)]
    #[schemars(example = &"patient")]
    pub group: Option<String>,
    /// words that count as empty cells, in features and target alike: "pandas" (NA, N/A, NaN, null,
    /// None and the like), or a list, in which "pandas" stands for these; an empty list: only empty
    /// cells.
    #[serde(default)]
    #[schemars(example = ["pandas", "?"])]
    pub missing_values: MissingValues,
    /// leave out rows whose target is empty; else they are refused.
    #[serde(default)]
    pub drop_unlabelled: bool,
    /// format of the date columns in strftime's words, such as "%d/%m/%Y", or a table of column and
    /// format. Without it, the format that all rows of a column fit; dates that have several
    /// meanings are refused.
    #[serde(default)]
    #[schemars(example = &"%d/%m/%Y")]
    pub date_format: Option<DateFormats>,
    /// how columns that do not hold numbers, and empty cells, are encoded.
    #[serde(default)]
    #[schemars(example = Features::example())]
    pub features: Features,
}

impl Kind for Csv {
    const NAME: &'static str = "csv";
    const CAPABILITIES: &'static [Capability] =
        &[Capability::Samples(Modality::Table), Capability::Split(BuiltinSplits::FILES)];

    fn check(&self) -> Vec<OptionConflict> {
        let mut wrong = Vec::new();
        let others = || self.group.iter().chain(&self.ignore);
        // A target may be declared as what it is: it is a feature where it is not the target.
        let taken: Vec<&String> = others().collect();
        wrong.extend(self.target.wrong(&others().collect::<Vec<_>>(), &["group", "ignore"]));
        wrong.extend(self.features.check(&taken));
        wrong.extend(DateFormats::check(self.date_format.as_ref(), &self.features));
        wrong
    }
}

impl Csv {
    /// Rows of `train_file` to train on, of `val_file` to validate on.
    pub fn new(train_file: PathBuf, val_file: PathBuf, target: &str) -> Self {
        Self {
            train_file,
            val_file: Some(val_file),
            test_file: None,
            target: target.into(),
            standardize_target: false,
            ignore: Vec::new(),
            group: None,
            missing_values: MissingValues::default(),
            drop_unlabelled: false,
            date_format: None,
            features: Features::default(),
        }
    }

    /// Rules for reading cells.
    pub(super) fn rules(&self) -> CellRules<'_> {
        CellRules { features: &self.features, missing: &self.missing_values }
    }

    /// The tables with what they are called in messages.
    fn tables(&self) -> impl Iterator<Item = (Part, &PathBuf, &'static str)> {
        let train = (Part::Train, Some(&self.train_file), "the training table");
        let val = (Part::Val, self.val_file.as_ref(), "the validation table");
        let test = (Part::Test, self.test_file.as_ref(), "the test table");
        [train, val, test].into_iter().filter_map(|(part, path, what)| Some((part, path?, what)))
    }

    /// Reads all tables, and holds back what is asked for.
    ///
    /// # Errors
    ///
    /// A file is absent or lacks a column, columns differ, a cell is not what its column holds
    /// (names file, line, column and value), or a part would be empty.
    pub(crate) fn read(&self, request: &SurveyRequest<'_>) -> Result<OpenedTable, Error> {
        let rules = self.rules();
        let target = &self.target;
        let standardize = self.standardize_target;
        let wanted = TableSpec { rules, target, standardize, request };
        let fit = wanted.fit();
        let words = match &fit {
            None if self.features.infers() => self.columns_of_words()?,
            _ => BTreeSet::new(),
        };
        let kind = |name: &str| wanted.kind(name, fit.as_ref(), &words);
        let forms = match &fit {
            Some(fit) => fit.date_forms(),
            None => self.date_forms()?,
        };
        let column = |name: &str| Column::new(name, kind(name), forms.get(name));
        let mut parts = Parts::<Rows>::default();
        for (part, path, what) in self.tables() {
            parts.put(part, self.table(path, what, wanted.answers(), &column)?);
        }
        wanted.open(parts, fit)
    }

    /// Features of the training table with a cell that is neither a number nor empty.
    fn columns_of_words(&self) -> Result<BTreeSet<String>, Error> {
        let mut found = BTreeSet::new();
        self.each_row(&self.train_file, "the training table", |header, roles, record, _| {
            let cells = header.iter().zip(roles).zip(record);
            let is_word =
                |cell: &str| !self.missing_values.holds(cell) && number("", cell).is_err();
            let words = cells.filter(|((_, role), cell)| **role == Role::Feature && is_word(cell));
            found.extend(words.map(|((name, _), _)| name.clone()));
            Ok(())
        })?;
        Ok(found)
    }

    /// Date format of each column, by the rows of all tables.
    fn date_forms(&self) -> Result<BTreeMap<String, DateForm>, Error> {
        let mut all = DateInferences::new(self.rules(), self.date_format.as_ref());
        if all.is_empty() {
            return Ok(BTreeMap::new());
        }
        for (part, path, what) in self.tables() {
            self.each_row(path, what, |header, _, record, line| {
                let mut cells = header.iter().zip(record);
                let seen = cells.try_for_each(|(name, cell)| all.see(name, cell, path, line));
                // What is wrong in another table is reported when that is read.
                if part == Part::Train { seen } else { Ok(()) }
            })?;
        }
        all.forms()
    }

    /// The rows of a table.
    fn table(
        &self,
        path: &Path,
        what: &'static str,
        answers: AnswerKind,
        column: &dyn Fn(&str) -> Column,
    ) -> Result<Rows, Error> {
        let mut rows = Rows::new(path, Vec::new());
        let mut unlabelled = 0;
        self.each_row(path, what, |header, roles, record, line| {
            if rows.lines.is_empty() {
                let features = header.iter().zip(roles).filter(|(_, role)| **role == Role::Feature);
                rows.columns = features.map(|(name, _)| column(name)).collect();
            }
            if self.drop_unlabelled && self.is_unlabelled(roles, record) {
                unlabelled += 1;
                return Ok(());
            }
            rows.lines.push(line);
            self.push(&mut rows, record, header, roles, answers)
        })?;
        rows.leave_out(unlabelled, &self.target)?;
        Ok(rows)
    }

    /// True if a target of a row is empty.
    fn is_unlabelled(&self, roles: &[Role], record: &::csv::StringRecord) -> bool {
        let mut targets = roles.iter().zip(record).filter(|(role, _)| **role == Role::Target);
        targets.any(|(_, cell)| self.missing_values.holds(cell))
    }

    /// Reads the table at `path` and gives each of its rows to `row`, with the header, what each
    /// column is for, and its line.
    fn each_row(
        &self,
        path: &Path,
        what: &'static str,
        mut row: impl FnMut(&[String], &[Role], &::csv::StringRecord, u64) -> Result<(), BadCell>,
    ) -> Result<(), Error> {
        let bytes = read::table(what, path, EXPECTED)?;
        let (mut rows, header) = CsvRows::open(path, &bytes)?;
        let roles = self.roles(path, &header)?;
        let mut record = ::csv::StringRecord::new();
        let mut is_empty = true;
        while let Some(line) = rows.read(&mut record)? {
            let fits = check_width(record.len(), &header, RAGGED);
            let read = fits.and_then(|()| row(&header, &roles, &record, line));
            read.map_err(|bad| cell(path, line, bad))?;
            is_empty = false;
        }
        if is_empty {
            let what = "it has a header but no rows".to_owned();
            return Err(Error::Format { path: path.to_owned(), what });
        }
        Ok(())
    }

    /// Columns that are named, by the keys that name them.
    fn named(&self) -> Vec<(String, &String)> {
        let group = self.group.iter().map(|name| ("data.group".to_owned(), name)).collect();
        let ignored = keyed("data.ignore", &self.ignore);
        [self.target.keyed("data.target"), group, ignored, self.features.keyed()].concat()
    }

    /// Role of each column.
    fn roles(&self, path: &Path, header: &[String]) -> Result<Vec<Role>, Error> {
        check_header(path, header).map_err(|bad| cell(path, 1, bad))?;
        let targets = self.target.names();
        let absent = self.named().into_iter().find(|(_, name)| !header.contains(name));
        if let Some((key, column)) = absent {
            let path = path.to_owned();
            let column = column.clone();
            let columns = header.to_vec();
            return Err(Error::NoColumn { key, path, column, columns });
        }
        let role = |name: &String| match name {
            name if targets.contains(name) => Role::Target,
            name if Some(name) == self.group.as_ref() => Role::Group,
            name if self.ignore.contains(name) => Role::Ignored,
            _ => Role::Feature,
        };
        let roles: Vec<Role> = header.iter().map(role).collect();
        if !roles.contains(&Role::Feature) {
            return Err(at(path, 1, "no column is left that is a feature".to_owned()));
        }
        Ok(roles)
    }
}

impl Csv {
    /// Appends a row.
    fn push(
        &self,
        rows: &mut Rows,
        record: &::csv::StringRecord,
        header: &[String],
        roles: &[Role],
        answers: AnswerKind,
    ) -> Result<(), BadCell> {
        let mut columns = rows.columns.iter_mut();
        let mut class_of_row = None;
        let mut numbers = vec![0.0; self.target.names().len()];
        for ((column, role), cell) in header.iter().zip(roles).zip(record) {
            match role {
                Role::Feature => {
                    if let Some(column) = columns.next() {
                        column.push(cell, self.rules())?;
                    }
                }
                Role::Target if self.missing_values.holds(cell) => {
                    Err(unlabelled(empty(column, cell)))?;
                }
                Role::Target => {
                    let place = self.target.names().iter().position(|name| name == column);
                    let number = &mut numbers[place.unwrap_or(0)];
                    let read = match answers {
                        AnswerKind::Class => {
                            class(column, cell).map(|class| class_of_row = Some(class))
                        }
                        AnswerKind::Numbers => {
                            self::number(column, cell).map(|value| *number = value)
                        }
                        AnswerKind::Flags => flag(column, cell).map(|value| *number = value),
                        AnswerKind::Unread => Ok(()),
                    };
                    read.map_err(|what| bad_target(what, column, cell, answers))?;
                }
                Role::Group if self.missing_values.holds(cell) => Err(empty(column, cell))?,
                Role::Group => rows.groups.push(cell.to_owned()),
                Role::Ignored => {}
            }
        }
        rows.answers.push(class_of_row.unwrap_or_else(|| Answer::numbers(&numbers)));
        Ok(())
    }
}

/// Checks the names of the columns, whatever their roles.
fn check_header(path: &Path, names: &[String]) -> Result<(), BadCell> {
    check_unique(names)?;
    if names.len() > 1 {
        return Ok(());
    }
    let what = "the table needs the target and at least one feature".to_owned();
    let help = other_separator(path, names);
    let help = help.unwrap_or_else(|| "write a column of features beside it".to_owned());
    Err(BadCell { what, help: Some(help) })
}

/// Error of a target's cell, with a remedy.
fn bad_target(what: String, column: &str, cell: &str, answers: AnswerKind) -> BadCell {
    let is_word = cell.parse::<f64>().is_err();
    let point = with_point(cell);
    let help = match answers {
        AnswerKind::Numbers if point.is_some() => decimals(&point.unwrap_or_default()),
        AnswerKind::Numbers if is_word => format!(
            "if `{column}` is a class, use `loss.name = \"cross_entropy\"`; else remove the row"
        ),
        AnswerKind::Class if !is_word => {
            "if it is a number to predict, use `loss.name = \"mse\"`".to_owned()
        }
        _ => "correct the cell, or remove the row".to_owned(),
    };
    BadCell { what, help: Some(help) }
}

/// Role of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Feature,
    Target,
    Group,
    Ignored,
}

impl DataSource for Csv {
    fn preprocessing(&self, found: &Options) -> Result<Options, Error> {
        Ok(self.rules().described(found))
    }

    fn target_scales(&self, found: &Options) -> Vec<(f64, f64)> {
        Fit::found(found).map(|fit| fit.targets).unwrap_or_default()
    }

    fn open(&self, reading: &OpenRequest<'_>) -> Result<Splits, Error> {
        let request = SurveyRequest { found: Some(reading.found), ..*reading.survey };
        self.read(&request).map(|opened| opened.splits)
    }

    fn survey(&self, request: &SurveyRequest<'_>) -> Result<Survey, Error> {
        let files: Vec<String> =
            self.tables().map(|(_, path, _)| path.display().to_string()).collect();
        let line = format!("{}, target {}", files.join(" and "), self.target.words());
        Ok(self.read(request)?.survey(line))
    }

    fn target(&self) -> Result<Option<Targets>, Error> {
        let names = self.target.names();
        let mut kinds = vec![TargetCells::default(); names.len()];
        self.each_row(&self.train_file, "the training table", |header, _, record, _| {
            for (name, kind) in names.iter().zip(&mut kinds) {
                let at = header.iter().position(|column| column == name);
                let cell = at.and_then(|at| record.get(at)).unwrap_or_default();
                if !self.missing_values.holds(cell) {
                    kind.push(cell);
                }
            }
            Ok(())
        })?;
        Ok(Some(TargetCells::targets(&kinds)))
    }

    fn inputs(&self, request: &PredictionRequest<'_>) -> Result<Inputs, Error> {
        let mut rows = UnlabelledRows::new(&request.plan.source.survey, self.rules())?;
        let is_wanted = |path: &Path| inputs::ends_with(unpacked(path), &["csv", "tsv"]);
        let what = "tables (.csv, .tsv) with a header line";
        let found = inputs::files(request.paths, what, &is_wanted)?;
        rows.note(found.notes);
        for path in found.files {
            self.rows_of(&path, &mut rows)?;
        }
        rows.inputs(&self.target)
    }

    fn files(&self, _: &Options) -> Result<Vec<Files>, Error> {
        Ok(self.tables().map(|(part, path, _)| Files::one(part.name(), path)).collect())
    }
}

/// Reads both tables.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn open(
    train: &Path,
    val: &Path,
    target: &str,
    targets: Targets,
) -> Result<Splits, Error> {
    let csv = Csv::new(train.to_owned(), val.to_owned(), target);
    csv.read(&SurveyRequest::new("", 0, targets)).map(|opened| opened.splits)
}

/// 1 or 0: whether a row has a class.
pub(crate) fn flag(column: &str, cell: &str) -> Result<f64, String> {
    match number(column, cell) {
        Ok(value) if value == 0.0 || value == 1.0 => Ok(value),
        Err(empty) if cell.is_empty() => Err(empty),
        _ => Err(format!("`{column}` is `{cell}`, which is neither 0 nor 1")),
    }
}

impl Csv {
    /// Reads the rows of a table without answers; columns that the run does not know are ignored.
    fn rows_of(&self, path: &Path, rows: &mut UnlabelledRows<'_>) -> Result<(), Error> {
        let bytes = read::table("the input", path, EXPECTED)?;
        let names = rows.names();
        let (mut table, header) = CsvRows::open(path, &bytes).map_err(|error| match error {
            Error::Line { .. } | Error::Cell { .. } => no_table(path, &names),
            error => error,
        })?;
        check_unique(&header).map_err(|bad| cell(path, 1, bad))?;
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
                    rows.push_unreadable(&file, row, ragged(record.len(), &header));
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

#[cfg(test)]
mod tests;
