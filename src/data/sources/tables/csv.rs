//! `data.name = "csv"`: tables with a header line, of which some columns are to be predicted.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Kind, Modality, Offer, Options, OwnParts, Wrong};
use crate::data::error::Error;
use crate::data::inputs::{self, Inputs, Predicting};
use crate::data::sources::holdout::Parts;
use crate::data::sources::source::{Asked, DataSource, Files, Reading, Survey};
use crate::data::sources::tables::answer::{Answer, class, unlabelled};
use crate::data::sources::tables::column::{BadCell, Column, decimals, empty, number, with_point};
use crate::data::sources::tables::column_names::{ColumnNames, keyed};
use crate::data::sources::tables::csv_rows::{CsvRows, EXPECTED, unpacked};
use crate::data::sources::tables::features::{CellRules, ColumnKind, Features, MissingValues};
use crate::data::sources::tables::header;
use crate::data::sources::tables::table::{AnswerKind, Opened, Rows, Wanted, at, cell};
use crate::data::sources::tables::target_cells::TargetCells;
use crate::data::sources::tables::unanswered::Unanswered;
use crate::data::{Splits, read};
use crate::plan::{Part, Targets};

/// What to do about rows with more cells than the header, and about those with fewer.
pub(in crate::data) const RAGGED: [&str; 2] =
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
    /// how columns that do not hold numbers, and empty cells, are encoded.
    #[serde(default)]
    #[schemars(example = Features::example())]
    pub features: Features,
}

impl Kind for Csv {
    const NAME: &'static str = "csv";
    const OFFERS: &'static [Offer] =
        &[Offer::Samples(Modality::Table), Offer::Split(OwnParts::FILES)];

    fn check(&self) -> Vec<Wrong> {
        let mut wrong = Vec::new();
        let others = || self.group.iter().chain(&self.ignore);
        // A target may be declared as what it is: it is a feature where it is not the target.
        let taken: Vec<&String> = others().collect();
        wrong.extend(self.target.wrong(&others().collect::<Vec<_>>(), &["group", "ignore"]));
        wrong.extend(self.features.check(&taken));
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
            features: Features::default(),
        }
    }

    /// How cells are read.
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
    pub(crate) fn read(&self, asked: &Asked<'_>) -> Result<Opened, Error> {
        let (rules, target, standardize) = (self.rules(), &self.target, self.standardize_target);
        let wanted = Wanted { rules, target, standardize, asked };
        let fit = wanted.fit();
        let words = match &fit {
            None if self.features.infers() => self.columns_of_words()?,
            _ => BTreeSet::new(),
        };
        let kind = |name: &str| wanted.kind(name, fit.as_ref(), &words);
        let mut parts = Parts::<Rows>::default();
        for (part, path, what) in self.tables() {
            parts.put(part, self.table((path, what), wanted.answers(), &kind)?);
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

    /// The rows of a table.
    fn table(
        &self,
        (path, what): (&Path, &'static str),
        answers: AnswerKind,
        kind: &dyn Fn(&str) -> ColumnKind,
    ) -> Result<Rows, Error> {
        let mut rows = Rows::new(path, Vec::new());
        let mut unlabelled = 0;
        self.each_row(path, what, |header, roles, record, line| {
            if rows.lines.is_empty() {
                let features = header.iter().zip(roles).filter(|(_, role)| **role == Role::Feature);
                rows.columns = features.map(|(name, _)| Column::new(name, kind(name))).collect();
            }
            if self.drop_unlabelled && self.is_unlabelled(roles, record) {
                unlabelled += 1;
                return Ok(());
            }
            rows.lines.push(line);
            self.push(&mut rows, record, (header, roles), answers)
        })?;
        rows.leave_out(unlabelled, &self.target)?;
        Ok(rows)
    }

    /// Whether a target of a row is empty.
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
            let fits = header::fits(record.len(), &header, RAGGED);
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

    /// What each column is for.
    fn roles(&self, path: &Path, header: &[String]) -> Result<Vec<Role>, Error> {
        check_header(path, header).map_err(|bad| cell(path, 1, bad))?;
        let targets = self.target.names();
        let absent = self.named().into_iter().find(|(_, name)| !header.contains(name));
        if let Some((key, column)) = absent {
            let (path, column, columns) = (path.to_owned(), column.clone(), header.to_vec());
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
        (header, roles): (&[String], &[Role]),
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

/// What is wrong with the names of the columns, whatever they are for.
fn check_header(path: &Path, names: &[String]) -> Result<(), BadCell> {
    header::unique(names)?;
    if names.len() > 1 {
        return Ok(());
    }
    let what = "the table needs the target and at least one feature".to_owned();
    let help = header::separator(path, names);
    let help = help.unwrap_or_else(|| "write a column of features beside it".to_owned());
    Err(BadCell { what, help: Some(help) })
}

/// What is wrong with the cell of a target, with what can be done about it.
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

/// What a column is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Feature,
    Target,
    Group,
    Ignored,
}

impl DataSource for Csv {
    fn preprocessing(&self, found: &Options) -> Result<Options, Error> {
        Ok(self.missing_values.described(found))
    }

    fn open(&self, reading: &Reading<'_>) -> Result<Splits, Error> {
        let asked = Asked { found: Some(reading.found), ..*reading.asked };
        self.read(&asked).map(|opened| opened.splits)
    }

    fn survey(&self, asked: &Asked<'_>) -> Result<Survey, Error> {
        let files: Vec<String> =
            self.tables().map(|(_, path, _)| path.display().to_string()).collect();
        let line = format!("{}, target {}", files.join(" and "), self.target.words());
        Ok(self.read(asked)?.survey(line))
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

    fn inputs(&self, asked: &Predicting<'_>) -> Result<Inputs, Error> {
        let mut rows = Unanswered::new(&asked.plan.source.found, self.rules())?;
        let is_wanted = |path: &Path| inputs::ends_with(unpacked(path), &["csv", "tsv"]);
        for path in
            inputs::files(asked.paths, "tables (.csv, .tsv) with a header line", &is_wanted)?
        {
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
    csv.read(&Asked::new("", 0, targets)).map(|opened| opened.splits)
}

/// 1 or 0: whether a row has a class.
pub(in crate::data) fn flag(column: &str, cell: &str) -> Result<f64, String> {
    match number(column, cell) {
        Ok(value) if value == 0.0 || value == 1.0 => Ok(value),
        Err(empty) if cell.is_empty() => Err(empty),
        _ => Err(format!("`{column}` is `{cell}`, which is neither 0 nor 1")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::data::{Dataset, Target};
    use crate::plan::SplitPlan;

    /// What the loss compares with.
    fn targets(classify: bool) -> Targets {
        if classify { Targets::Classes } else { Targets::Numbers }
    }

    fn opened(train: &str, val: &str, classify: bool) -> Result<Splits, Error> {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::File::create(&path).unwrap().write_all(text.as_bytes()).unwrap();
            path
        };
        open(&put("train.csv", train), &put("val.csv", val), "y", targets(classify))
    }

    fn row(dataset: &dyn Dataset, index: usize) -> (Vec<f32>, Target) {
        let mut values = Vec::new();
        let target = dataset.load(index, None, &mut values).unwrap();
        (values, target)
    }

    #[test]
    fn features_are_standardised_with_the_training_rows_and_targets_are_not() {
        let train = "\u{feff}a,y,b\r\n1,10.5,7\r\n3,-2,7\r\n";
        let splits = opened(train, "a,y,b\n5,1,8\n", false).unwrap();
        assert!(splits.classes.is_empty());
        // Column a: mean 2, population deviation 1. Column b is constant.
        assert_eq!(row(&*splits.train, 0), (vec![-1.0, 0.0], Target::Value(10.5)));
        assert_eq!(row(&*splits.train, 1), (vec![1.0, 0.0], Target::Value(-2.0)));
        assert_eq!(row(&*splits.val, 0), (vec![3.0, 1.0], Target::Value(1.0)));
    }

    #[test]
    fn classes_are_the_sorted_distinct_labels() {
        let splits = opened("a,y\n0,10\n1,2\n2,10.0\n", "a,y\n3,2\n", true).unwrap();
        assert_eq!(splits.classes, ["2", "10"]);
        assert_eq!(row(&*splits.train, 2).1, Target::Class(1));
        assert_eq!(row(&*splits.val, 0).1, Target::Class(0));
        let words = opened("a,y\n0,setosa\n1,iris\n2,3\n", "a,y\n0,3\n", true).unwrap().classes;
        assert_eq!(words, ["3", "iris", "setosa"]);
    }

    #[test]
    fn lines_are_counted_as_an_editor_counts_them() {
        // Rows in lines 2, 3 and 4, of which one at a time is wrong.
        for end in ["\n", "\r\n", "\r"] {
            for mark in ["", "\u{feff}"] {
                for wrong in 0..3 {
                    let row = |row| if row == wrong { "x,1" } else { "1,1" };
                    let rows = [0, 1, 2].map(row).join(end);
                    let table = format!("{mark}a,y{end}{rows}{end}");
                    let error = opened(&table, "a,y\n1,1\n", false).err().unwrap().to_string();
                    let line = format!("line {}: `a` is `x`", wrong + 2);
                    assert!(error.contains(&line), "{table:?}: {error}");
                }
            }
        }
        let check = |table: &str, expected: &str| {
            let error = opened(table, "a,y\n1,1\n", true).err().unwrap().to_string();
            assert!(error.contains(expected), "{table:?}: {error}");
        };
        // Empty lines, and line ends inside of quotes.
        check("\n\na,y\n\n1,1\n\r\n\nx,1\n", "line 8: `a` is `x`");
        check("a,y\r\n1,\"one\r\ntwo\"\r\nx,1\r\n", "line 4: `a` is `x`");
        check("\"a\",\"y\ny\"\n1,1\n", "has no column `y`");
        check("a,y\n1,1\nx,1", "line 3: `a` is `x`");
        check("a,y\r\n1,1\r\n1,1\r\n1\r\n", "line 4: 1 cells, but the header has 2");
    }

    /// Ten rows of two groups to a class, whose number is the feature.
    fn held(split: SplitPlan, change: impl Fn(&mut Csv)) -> Result<Splits, Error> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("all.csv");
        let row = |i: usize| format!("{i},{},p{},{i}.5\n", ["no", "yes"][i % 2], i / 2);
        let text = "id,y,patient,a\n".to_owned() + &(0..20).map(row).collect::<String>();
        crate::files::write_atomic(&path, text.as_bytes()).unwrap();
        let mut csv = Csv { val_file: None, ..Csv::new(path.clone(), path, "y") };
        csv.ignore = vec!["id".to_owned(), "patient".to_owned()];
        change(&mut csv);
        assert_eq!(csv.check(), []);
        let asked = Asked { split, ..Asked::new("", 0, Targets::Classes) };
        csv.read(&asked).map(|opened| opened.splits)
    }

    #[test]
    fn rows_of_one_table_are_held_back_and_the_rest_sets_the_scale() {
        let split =
            SplitPlan { val_fraction: Some(0.2), test_fraction: Some(0.1), ..SplitPlan::NONE };
        let splits = held(split, |_| {}).unwrap();
        let test = splits.test.unwrap();
        assert_eq!((splits.train.len(), splits.val.len(), test.len()), (14, 4, 2));
        let of_class = |part: &dyn Dataset, class| {
            (0..part.len()).filter(|&index| part.label(index) == Some(class)).count()
        };
        assert_eq!([0, 1].map(|class| of_class(&*splits.val, class)), [2, 2]);
        let features = |index| row(&*splits.train, index).0;
        assert_eq!((features(0).len(), splits.train.shape()), (1, &[1][..]));
        let mean: f32 = (0..14).map(|index| features(index)[0]).sum::<f32>() / 14.0;
        assert!(mean.abs() < 1e-6, "{mean}");
    }

    #[test]
    fn a_group_is_held_back_as_a_whole() {
        let split = SplitPlan { folds: Some(5), fold: 3, ..SplitPlan::NONE };
        let splits = held(split, |csv| {
            csv.ignore = vec!["id".to_owned()];
            csv.group = Some("patient".to_owned());
        })
        .unwrap();
        // Two of ten patients, each with a row of either class.
        assert_eq!((splits.train.len(), splits.val.len()), (16, 4));
        let labels: Vec<_> = (0..4).map(|index| splits.val.label(index).unwrap()).collect();
        assert_eq!(labels, [0, 1, 0, 1]);
    }

    #[test]
    fn columns_that_are_not_there_or_leave_nothing_are_named() {
        let check = |change: fn(&mut Csv), expected: &str| {
            let split = SplitPlan { val_fraction: Some(0.5), ..SplitPlan::NONE };
            let error = held(split, change);
            let error = error.err().unwrap().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check(|csv| csv.ignore.push("nmae".to_owned()), "has no column `nmae`; its columns are");
        check(|csv| csv.group = Some("grp".to_owned()), "has no column `grp`");
        check(|csv| csv.ignore.push("a".to_owned()), "no column is left that is a feature");
    }

    #[test]
    fn bytes_that_are_no_text_are_named_with_their_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("train.csv");
        let bytes = b"a,y\r\n1,1\r\n1,\xff\r\n";
        std::fs::File::create(&path).unwrap().write_all(bytes).unwrap();
        let error = open(&path, &path, "y", Targets::Numbers).err().unwrap().to_string();
        assert!(error.ends_with("train.csv`, line 3: cell 2 is not UTF-8 text"), "{error}");
    }

    #[test]
    fn what_is_not_a_number_is_named_with_line_and_column() {
        let check = |train: &str, classify: bool, expected: &str| {
            let Err(error) = opened(train, "a,y\n1,1\n", classify) else { panic!("{train}") };
            assert!(error.to_string().contains(expected), "{error}");
        };
        check("a,y\n1,1\n,2\n", false, "line 3: `a` is empty");
        check("a,y\n1,1\nNaN,2\n", false, "line 3: `a` is `NaN`");
        check("a,y\n1,1\n2,inf\n", false, "line 3: `y` is `inf`");
        check("a,y\n1,nan\n2,1\n", true, "line 2: `y` is `nan`, which counts as empty");
        check("a,y\n1,1e39\n", false, "line 2: `y` is `1e39`");
        check("a,y\n\"1,5\",1\n", false, "`a` is `1,5`, which is not a number");
        check("a,y\n1,1\n1,2,3\n", false, "line 3: 3 cells, but the header has 2");
        check("a,y\n1,0.5\n", true, "not a class");
        check("a,b\n1,1\n", false, "has no column `y`; its columns are `a`, `b`");
        check("y,y\n1,1\n", false, "columns 1 and 2 are both called `y`");
        check("b,y\n1,1\n", false, "different columns");
        check("a,y\n", false, "no rows");
        check("", false, "is empty");
        check("a,y\n1,5\n", true, "line 2: class `1` has no training rows");
    }

    #[test]
    fn what_to_do_about_a_table_that_cannot_be_used_is_said() {
        #[track_caller]
        fn check(train: &str, classify: bool, what: &str, help: &str) {
            let error = opened(train, "a,y\n1,1\n", classify).err().unwrap();
            assert!(error.to_string().contains(what), "{error}");
            assert!(error.help().unwrap_or_default().contains(help), "{:?}", error.help());
        }
        let feature = "at least one feature";
        check("a;y\n1;2\n", false, feature, "separated by `;`?");
        check("a\ty\n1\t2\n", false, feature, "separated by tabs?");
        check("\n", false, "train.csv` is empty", "one header line");
        check(
            "1,1\n2,3\n",
            false,
            "columns 1 and 2 are both called `1`",
            "is the header line missing?",
        );
        check("1,2\n2,3\n", false, "has no column `y`", "is the header line missing?");
        check("y,a,y\n2,3,4\n", false, "columns 1 and 3 are both called `y`", "of its own");
        check("a,y\n1,1\n1,2,3\n", false, "3 cells", "quote cells");
        check("a,y\n1,1\n1\n", false, "1 cells", "commas of empty cells");
        check("a,y\n1,\n", false, "`y` is empty", "drop_unlabelled = true");
        check("a,y\n1,NA\n", true, "`y` is `NA`, which counts as empty", "missing_values");
        check("a,y\n1,cat\n", false, "`y` is `cat`", "cross_entropy");
        check("a,y\n1,\"2,5\"\n", false, "`y` is `2,5`", "with a point: `2.5`");
        check("a,y\n\"1,5\",1\n", false, "`a` is `1,5`", "with a point: `1.5`");
        check("a,y\ninf,1\n", false, "`a` is `inf`", "correct or remove such rows");
        check("a,y\n1,0.5\n", true, "not a class", "mse");
        let rows = |answer: fn(usize) -> String| {
            let lines: Vec<_> = (0..50).map(|i| format!("{i},{}\n", answer(i))).collect();
            format!("a,y\n{}", lines.concat())
        };
        let distinct = "`y` has 50 distinct values in the 50 rows of";
        check(&rows(|i| (10 * i).to_string()), true, distinct, "mse");
        check(&rows(|i| format!("n{i}")), true, distinct, "several rows");
    }

    #[test]
    fn a_tsv_is_separated_by_tabs() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.tsv");
        crate::files::write_atomic(&path, b"a\ty\n1,5\t2\n2\t3\n").unwrap();
        let error = open(&path, &path, "y", targets(false)).err().unwrap();
        assert!(error.to_string().contains("`a` is `1,5`"), "{error}");
    }
}
