//! Rows of a table, each with a class or numbers, in memory.
//!
//! The statistics of the *training* rows turn features into numbers (`fit`): without any options
//! each column minus its mean, divided by its population standard deviation (a constant column
//! becomes 0). For classification a label is the position of the row's value among the sorted
//! distinct values of the training rows (numerically if all are integers, else in byte order);
//! numbers to predict stay as they are unless they are to be standardised.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, SampleError, shown};
use crate::plan::{SplitPlan, TargetColumn, Targets};
use crate::rng::Key;
use crate::sources::holdout::{Parts, SplitUnits, Splittable, numbered};
use crate::sources::source::{Survey, SurveyRequest};
use crate::sources::tables::answer::{Answer, labelled, labels, sorted_classes};
use crate::sources::tables::column::{BadCell, Cells, Column, truth};
use crate::sources::tables::column_names::ColumnNames;
use crate::sources::tables::features::{CellRules, ColumnKind, HandleUnknown};
use crate::sources::tables::fit::{Encoded, Fit, Scale, UNKNOWN, UnknownCategory, scale};
use crate::subset;
use crate::terminal::counted;
use crate::units::Bytes;
use crate::{Dataset, Splits, Target};

/// Rows as written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rows {
    path: PathBuf,
    /// The features.
    pub(crate) columns: Vec<Column>,
    /// The target of each row.
    pub(crate) answers: Vec<Answer>,
    /// Line of each row.
    pub(crate) lines: Vec<u64>,
    /// Group of each row; empty without groups.
    pub(crate) groups: Vec<String>,
    /// Notes on their file for the user.
    pub(crate) notes: Vec<String>,
}

/// Rows from which on it is no accident that a feature has a value of its own for each class, or
/// equals a number.
const MIN_ROWS_OF_CLASSES: usize = 8;
const MIN_ROWS_OF_NUMBERS: usize = 3;

/// Settings of an experiment for a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableSpec<'a> {
    pub(crate) rules: CellRules<'a>,
    /// Columns to predict.
    pub(crate) target: &'a ColumnNames,
    /// True if these are standardised.
    pub(crate) standardize: bool,
    pub(crate) request: &'a SurveyRequest<'a>,
}

/// The parts of a table as samples.
pub(crate) struct OpenedTable {
    pub(crate) splits: Splits,
    fit: Fit,
    notes: Vec<String>,
    /// Columns to predict.
    target: Vec<String>,
    answers: AnswerKind,
}

/// Type of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerKind {
    Class,
    Numbers,
    /// A 1 for each class that a row has.
    Flags,
    /// Several columns where one class is wanted, which the plan refuses.
    Unread,
}

impl TableSpec<'_> {
    /// Type of each target.
    pub(crate) fn answers(&self) -> AnswerKind {
        match self.request.targets {
            Targets::Classes if self.target.names().len() > 1 => AnswerKind::Unread,
            Targets::Classes => AnswerKind::Class,
            Targets::MultiLabel => AnswerKind::Flags,
            Targets::Numbers | Targets::Series | Targets::Preferences => AnswerKind::Numbers,
        }
    }

    /// The statistics of the run that is continued.
    pub(crate) fn fit(&self) -> Option<Fit> {
        self.request.found.and_then(Fit::found)
    }

    /// Type of a column of this name; `inferred` names the columns of words, if these are
    /// categories.
    pub(crate) fn kind(
        &self,
        name: &str,
        fit: Option<&Fit>,
        inferred: &BTreeSet<String>,
    ) -> ColumnKind {
        if let Some(kind) = fit.and_then(|fit| fit.kind(name)) {
            return kind;
        }
        match self.rules.features.kind(name) {
            ColumnKind::Number if inferred.contains(name) => ColumnKind::Category,
            kind => kind,
        }
    }

    /// All parts as samples, with what is held back: as `fit` says, or else the training rows that
    /// are taken.
    pub(crate) fn open(
        &self,
        mut parts: Parts<Rows>,
        fit: Option<Fit>,
    ) -> Result<OpenedTable, Error> {
        let all = [&mut parts.train, &mut parts.val].into_iter().chain(&mut parts.test);
        let mut notes: Vec<String> = all.flat_map(|rows| std::mem::take(&mut rows.notes)).collect();
        let path = parts.train.path.clone();
        let unusable = |what| Error::Format { path, what };
        let many_classes = self.many_classes(&parts.train);
        let in_time = self.split_in_time(&parts.train);
        let dealt = parts.held_back(&self.request.split).map_err(unusable);
        let Parts { train, val, test } = dealt.map_err(|error| many_classes().unwrap_or(error))?;
        let names = fit.as_ref().map(Fit::names);
        train.check_columns(names.as_deref().unwrap_or(&train.names()), &train.path)?;
        for other in std::iter::once(&val).chain(&test) {
            other.check_columns(&train.names(), &train.path)?;
        }
        let kind = self.answers();
        let classes = match kind {
            AnswerKind::Class => sorted_classes(&train.answers),
            AnswerKind::Flags | AnswerKind::Unread => self.target.names().to_vec(),
            AnswerKind::Numbers => Vec::new(),
        };
        let fit = match fit {
            Some(fit) => fit,
            None => self.fit_of(&train, &classes)?,
        };
        notes.extend(self.truth_and_numbers(&classes));
        notes.extend(fit.scattered(train.lines.len()));
        notes.extend(in_time);
        notes.extend(self.leaks(&train));
        notes.extend(self.constants(&train));
        let mut evaluated = |rows: Rows, what: &str| -> Result<Arc<dyn Dataset>, Error> {
            let encoded = fit.encode(&rows.columns);
            self.refuse_unknown(&rows, &encoded)?;
            let n = rows.lines.len();
            let told = fit.filled(&rows.columns, 0..n);
            let of = format!("{what} rows of `{}`", shown(&rows.path));
            notes.extend(filled_words(&told, n, &of));
            notes.extend(unknown_words(&fit, &encoded, rows.lines.len(), &format!("{what} ")));
            let table = rows.into_table(&fit, encoded, &classes);
            Ok(Arc::new(table.map_err(|error| many_classes().unwrap_or(error))?))
        };
        let val = evaluated(val, "validation")?;
        let test = test.map(|rows| evaluated(rows, "test")).transpose()?;
        let encoded = fit.encode(&train.columns);
        let train = Arc::new(train.into_table(&fit, encoded, &classes)?);
        let splits = Splits { train, val, test, classes };
        let target = self.target.names().to_vec();
        Ok(OpenedTable { splits, fit, notes, target, answers: self.answers() })
    }

    /// Error if hardly a class has two rows: a column of numbers, or of names.
    fn many_classes(&self, rows: &Rows) -> impl Fn() -> Option<Error> + use<> {
        let n = if self.answers() == AnswerKind::Class { rows.answers.len() } else { 0 };
        let distinct: BTreeSet<&Answer> = rows.answers.iter().take(n).collect();
        let are_numbers = distinct.iter().all(|answer| matches!(answer, Answer::Integer(_)));
        let classes = distinct.len();
        let path = rows.path.clone();
        let column = self.target.names().first().cloned().unwrap_or_default();
        move || {
            let path = path.clone();
            let column = column.clone();
            let error = Error::ManyClasses { path, column, rows: n, classes, are_numbers };
            (classes > 2.max(n / 2)).then_some(error)
        }
    }

    /// Note if the same truth value seems to be written as a word and as a number.
    fn truth_and_numbers(&self, classes: &[String]) -> Option<String> {
        let is_class = self.answers() == AnswerKind::Class;
        let word = classes.iter().find(|class| truth(class).is_some()).filter(|_| is_class)?;
        let number = classes.iter().find(|class| ["0", "1"].contains(&class.as_str()))?;
        let name = self.target.words();
        Some(format!(
            "{name} has the classes `{word}` and `{number}`: truth values and numbers are classes of \
             their own, so write all rows in one way"
        ))
    }

    /// Note if rows in the order of their dates are held out at random.
    fn split_in_time(&self, rows: &Rows) -> Option<String> {
        let SplitPlan { val_fraction, test_fraction, folds, .. } = self.request.split;
        let is_split = val_fraction.is_some() || test_fraction.is_some() || folds.is_some();
        let is_at_random = is_split && rows.groups.is_empty();
        let order = |column: &Column| match &column.cells {
            Cells::Dates(_, dates) => {
                let dates: Vec<_> = dates.iter().flatten().map(|date| date.instant()).collect();
                order_in_time(&dates)
            }
            _ => None,
        };
        let mut columns = rows.columns.iter().filter(|_| is_at_random);
        let (name, order) = columns.find_map(|column| Some((&column.name, order(column)?)))?;
        let (recurs, instead) = match order {
            OrderInTime::One => (
                "",
                "put the last rows into a `data.val_file`, or forecast with `data.name = \
                 \"csv_forecast\"`",
            ),
            OrderInTime::Several => {
                (" (dates recur)", "put the rows of the last dates into a `data.val_file`")
            }
        };
        Some(format!(
            "the rows are in the order of `{name}`{recurs}, but are held out at random: neighbours \
             in time are then in both parts, and the score may be too good; {instead}"
        ))
    }

    /// Statistics of the training rows that are taken.
    fn fit_of(&self, train: &Rows, classes: &[String]) -> Result<Fit, Error> {
        let limit = match self.request.found {
            None => self.request.limit.samples(train.lines.len()),
            // A run of before this was kept went by all rows.
            Some(_) => None,
        };
        let some = limit.map(|n| {
            let labels = labels(classes);
            let label = |answer: &Answer| labels.get(&answer.key()).copied().unwrap_or(0);
            let n_classes = if self.answers() == AnswerKind::Class { classes.len() } else { 0 };
            let taken = subset::taken(train.answers.iter().map(label), n_classes, n);
            train.only(&taken.into_iter().map(|row| row as usize).collect::<Vec<_>>())
        });
        let rows = some.as_ref().unwrap_or(train);
        let unusable = |what| Error::Format { path: train.path.clone(), what };
        let mut fit = Fit::of(&rows.columns, self.rules.features).map_err(unusable)?;
        if self.standardize && self.answers() == AnswerKind::Numbers {
            let column = |at| rows.answers.iter().map(move |answer| answer.number(at));
            fit.targets = (0..self.target.names().len()).map(|at| scale(column(at))).collect();
        }
        Ok(fit)
    }

    fn refuse_unknown(&self, rows: &Rows, encoded: &Encoded) -> Result<(), Error> {
        let first = encoded.unknown.iter().next();
        let Some((column, UnknownCategory { row, word, .. })) =
            first.filter(|_| self.rules.features.handle_unknown == HandleUnknown::Error)
        else {
            return Ok(());
        };
        let what = format!("`{column}` is `{word}`, which no row to train on has");
        let help = "set `data.features.handle_unknown = \"ignore\"`, which makes all its numbers 0";
        let bad = BadCell { what, help: Some(help.to_owned()) };
        Err(cell(&rows.path, rows.lines[*row], bad))
    }

    /// Features from which the target follows at once, in words.
    fn leaks(&self, train: &Rows) -> Vec<String> {
        let n = train.lines.len();
        let classes = labelled(&train.answers);
        let targets = self.target.names().iter().enumerate();
        let leak = |column: &Column| {
            let is_equal = |at: usize| match (&column.cells, self.answers()) {
                (cells, AnswerKind::Class) if n >= MIN_ROWS_OF_CLASSES => {
                    cells.names_each_of(&classes)
                }
                (Cells::Numbers(numbers), AnswerKind::Numbers | AnswerKind::Flags) => {
                    let mut rows = numbers.iter().zip(&train.answers);
                    n >= MIN_ROWS_OF_NUMBERS && rows.all(|(x, y)| *x == y.number(at))
                }
                _ => false,
            };
            let target = targets.clone().find(|(at, _)| is_equal(*at))?.1;
            let name = &column.name;
            let advice = "leave it out, unless it is known before the target is";
            Some(match self.answers() {
                AnswerKind::Class => format!(
                    "the feature `{name}` equals the target `{target}`, or names it otherwise, in \
                     all {n} training rows: it has one value for each class; {advice}"
                ),
                _ => format!(
                    "the feature `{name}` equals the target `{target}` in all {n} training rows: \
                     {advice}"
                ),
            })
        };
        if targets.clone().all(|(at, _)| self.constant(train, at).is_some()) {
            return Vec::new();
        }
        train.columns.iter().filter_map(leak).collect()
    }

    /// The one value that a target has in all rows. That of classes is for the plan to say.
    fn constant(&self, train: &Rows, at: usize) -> Option<f64> {
        let is_read = matches!(self.answers(), AnswerKind::Numbers | AnswerKind::Flags);
        if !is_read {
            return None;
        }
        let first = train.answers.first()?.number(at);
        train.answers.iter().all(|answer| answer.number(at) == first).then_some(first)
    }

    /// Targets that are the same in all rows, in words.
    fn constants(&self, train: &Rows) -> Vec<String> {
        let n = train.lines.len();
        let constant = |(at, name): (usize, &String)| {
            let value = self.constant(train, at)?;
            Some(match self.answers() {
                AnswerKind::Flags if value == 0.0 => {
                    format!("none of the {n} training rows has the label `{name}`")
                }
                AnswerKind::Flags => format!("all {n} training rows have the label `{name}`"),
                _ => format!(
                    "the target `{name}` is {value} in all {n} training rows: there is nothing to \
                     learn"
                ),
            })
        };
        self.target.names().iter().enumerate().filter_map(constant).collect()
    }
}

impl OpenedTable {
    /// The table, counted; `line` tells where it is.
    pub(crate) fn survey(self, line: String) -> Survey {
        let Self { splits, fit, notes, target, answers } = self;
        let found = Survey::of(&splits);
        let scale = |at: usize| fit.targets.get(at).map_or(1.0, |(_, deviation)| *deviation);
        let column =
            |(at, name): (usize, &String)| TargetColumn { name: name.clone(), scale: scale(at) };
        let are_numbers = answers == AnswerKind::Numbers;
        let multi_label = matches!(answers, AnswerKind::Flags | AnswerKind::Unread);
        let numbers = fit.n_numbers() + fit.one_hot().len() + target.len();
        let rows = found.n_train + found.n_val + found.n_test;
        Survey {
            multi_label,
            class_counts: if multi_label { flag_counts(&splits) } else { found.class_counts },
            n_targets: if are_numbers && target.len() > 1 { target.len() } else { 0 },
            target: Vec::new(),
            target_columns: target.iter().enumerate().filter(|_| are_numbers).map(column).collect(),
            one_hot: fit.one_hot(),
            notes,
            line,
            columns: fit.lines(),
            held: Bytes::of_f32(rows * numbers),
            found: fit.kept(),
            ..found
        }
    }
}

/// Training rows that have each class.
fn flag_counts(splits: &Splits) -> Vec<u64> {
    let mut counts = vec![0; splits.classes.len()];
    let mut values = Vec::new();
    for index in 0..splits.train.len() {
        values.clear();
        if let Ok(Target::Series(flags)) = splits.train.load(index, None, &mut values) {
            counts.iter_mut().zip(flags).for_each(|(n, has)| *n += u64::from(has > 0.5));
        }
    }
    counts
}

/// Order of rows in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OrderInTime {
    /// One series: each date is later than the one before, or each earlier.
    One,
    /// Dates recur: one series below the other, or several rows of one date.
    Several,
}

/// Order in time of rows of these dates; `None` if they are mixed.
fn order_in_time<T: Ord>(dates: &[T]) -> Option<OrderInTime> {
    let is_one = dates.is_sorted_by(|a, b| a < b) || dates.is_sorted_by(|a, b| a > b);
    let distinct = dates.iter().collect::<BTreeSet<_>>().len();
    if distinct < 3 {
        return None;
    }
    if is_one {
        return Some(OrderInTime::One);
    }
    let is_sorted = ascend(dates.iter()) || ascend(dates.iter().rev());
    is_sorted.then_some(OrderInTime::Several)
}

/// True if dates ascend within each of several series. A date before all of its series begins
/// another one; a step back within one is disorder.
fn ascend<'a, T: Ord + 'a>(mut dates: impl Iterator<Item = &'a T>) -> bool {
    let (mut up, mut begun, mut back) = (0, 0, 0);
    let Some(mut before) = dates.next() else { return false };
    let mut first = before;
    for date in dates {
        match date.cmp(before) {
            Ordering::Greater => up += 1,
            Ordering::Less if date <= first => {
                begun += 1;
                first = date;
            }
            Ordering::Less => back += 1,
            Ordering::Equal => {}
        }
        before = date;
    }
    back * 20 <= up + begun + back && up > begun
}

/// "3 of 8 validation rows have a `city` that no training row has, such as `Oslo`: all its numbers
/// are 0", where `what` is "validation ".
pub(crate) fn unknown_words<'a>(
    fit: &'a Fit,
    encoded: &'a Encoded,
    rows: usize,
    what: &'a str,
) -> impl Iterator<Item = String> + 'a {
    encoded.unknown.iter().map(move |(column, UnknownCategory { count: n, word, .. })| {
        let noun = if rows == 1 { "row" } else { "rows" };
        let have = if *n == 1 { "has" } else { "have" };
        let known = fit.alike(column, word);
        let known = known.map_or(String::new(), |known| format!(" (training rows have `{known}`)"));
        let word = if word.is_empty() { "an empty cell".to_owned() } else { format!("`{word}`") };
        format!(
            "{n} of {rows} {what}{noun} {have} a `{column}` that no training row has, such as \
             {word}{known}: all its numbers are 0"
        )
    })
}

/// Columns that are named in a note.
const MAX_NAMED: usize = 10;

/// "`new.csv`: empty cells are filled in as the training rows say: `bmi` in all 3 rows" of the
/// columns that [`Fit::filled`] counts; `of` is "`new.csv`".
pub(crate) fn filled_words(filled: &[(String, usize)], rows: usize, of: &str) -> Option<String> {
    let column = |(name, n): &(String, usize)| match n {
        n if *n == rows && rows > 1 => format!("`{name}` in all {rows} rows"),
        n => format!("`{name}` in {n} of {}", counted(rows as u64, "row")),
    };
    let mut named: Vec<String> = filled.iter().take(MAX_NAMED).map(column).collect();
    let more = filled.len().saturating_sub(MAX_NAMED);
    named.extend((more > 0).then(|| format!("and {more} more columns")));
    (!filled.is_empty()).then(|| {
        let named = named.join(", ");
        format!("{of}: empty cells are filled in as the training rows say: {named}")
    })
}

/// An error of a line.
pub(crate) fn at(path: &Path, line: u64, what: String) -> Error {
    Error::Line { path: path.to_owned(), line, what }
}

/// An error of a cell.
pub(crate) fn cell(path: &Path, line: u64, BadCell { what, help }: BadCell) -> Error {
    match help {
        Some(help) => Error::Cell { path: path.to_owned(), line, what, help },
        None => at(path, line, what),
    }
}

impl Splittable for Rows {
    fn units(&self) -> SplitUnits {
        if let Some(groups) = numbered(&self.groups) {
            return SplitUnits::Groups(groups);
        }
        SplitUnits::Samples(labelled(&self.answers))
    }

    /// Some of the rows.
    fn only(&self, places: &[usize]) -> Self {
        Self {
            path: self.path.clone(),
            columns: self.columns.iter().map(|column| column.rows(places)).collect(),
            answers: places.iter().map(|&row| self.answers[row].clone()).collect(),
            lines: places.iter().map(|&row| self.lines[row]).collect(),
            groups: Vec::new(),
            notes: Vec::new(),
        }
    }
}

impl Rows {
    /// No rows yet.
    pub(crate) fn new(path: &Path, columns: Vec<Column>) -> Self {
        Self { path: path.to_owned(), columns, ..Self::default() }
    }

    /// Notes that so many other rows have no `target`.
    pub(crate) fn leave_out(
        &mut self,
        unlabelled: usize,
        target: &ColumnNames,
    ) -> Result<(), Error> {
        let all = self.lines.len() + unlabelled;
        let target = target.words();
        if all == unlabelled && all > 0 {
            let what = format!("none of its {all} rows has a {target}");
            return Err(Error::Format { path: self.path.clone(), what });
        }
        let path = shown(&self.path);
        self.notes.extend((unlabelled > 0).then(|| {
            format!("{unlabelled} of {all} rows of `{path}` have no {target} and are left out")
        }));
        Ok(())
    }

    fn names(&self) -> Vec<String> {
        self.columns.iter().map(|column| column.name.clone()).collect()
    }

    /// Refuses other columns than those of `path`.
    fn check_columns(&self, names: &[String], path: &Path) -> Result<(), Error> {
        let own = self.names();
        if own == names {
            return Ok(());
        }
        Err(Error::ColumnsDiffer {
            train: path.to_owned(),
            val: self.path.clone(),
            train_columns: names.to_vec(),
            val_columns: own,
        })
    }

    /// The rows as samples.
    pub(crate) fn into_table(
        self,
        fit: &Fit,
        encoded: Encoded,
        classes: &[String],
    ) -> Result<Table, Error> {
        let labels = labels(classes);
        let target = |(answer, &line): (&Answer, &u64)| match answer {
            Answer::Numbers(bits) => Ok(numbers(bits, &fit.targets, !classes.is_empty())),
            class => match labels.get(&class.key()) {
                Some(&label) => Ok(Target::Class(label)),
                None => Err(at(&self.path, line, class.untrained())),
            },
        };
        let targets: Result<Vec<Target>, Error> =
            self.answers.iter().zip(&self.lines).map(target).collect();
        let targets = targets?;
        let n_numbers = fit.n_numbers();
        let one_hot = fit.one_hot();
        Ok(Table {
            shape: [n_numbers + one_hot.iter().sum::<usize>()],
            n_numbers,
            one_hot,
            encoded,
            target_shape: match targets.first() {
                Some(Target::Series(values)) => vec![values.len()],
                _ => Vec::new(),
            },
            targets,
            path: self.path,
            lines: self.lines,
        })
    }
}

/// One number, or several numbers or flags.
fn numbers(bits: &[u64], scales: &[Scale], are_flags: bool) -> Target {
    let scaled = |(at, bits): (usize, &u64)| {
        let value = f64::from_bits(*bits);
        scales.get(at).map_or(value, |(mean, deviation)| (value - mean) / deviation) as f32
    };
    let values: Vec<f32> = bits.iter().enumerate().map(scaled).collect();
    match values[..] {
        [value] if !are_flags => Target::Value(value),
        _ => Target::Series(values),
    }
}

/// One split.
#[derive(Debug)]
pub(crate) struct Table {
    encoded: Encoded,
    /// Numbers of a row, but for categories.
    n_numbers: usize,
    /// Number of categories of each such column.
    one_hot: Vec<usize>,
    shape: [usize; 1],
    target_shape: Vec<usize>,
    targets: Vec<Target>,
    path: PathBuf,
    /// Line on which each row begins in its file.
    lines: Vec<u64>,
}

impl Dataset for Table {
    fn len(&self) -> usize {
        self.targets.len()
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn target_shape(&self) -> &[usize] {
        &self.target_shape
    }

    fn classifies(&self) -> bool {
        matches!(self.targets.first(), Some(Target::Class(_)))
    }

    fn label(&self, index: usize) -> Option<u32> {
        match self.targets[index] {
            Target::Class(label) => Some(label),
            _ => None,
        }
    }

    fn name(&self, index: usize) -> String {
        format!("line {} of `{}`", self.lines[index], shown(&self.path))
    }

    fn origin(&self, index: usize) -> Option<(PathBuf, Option<u64>)> {
        Some((self.path.clone(), Some(self.lines[index])))
    }

    fn load(
        &self,
        index: usize,
        _: Option<Key>,
        values: &mut Vec<f32>,
    ) -> Result<Target, SampleError> {
        let Encoded { numbers, categories, .. } = &self.encoded;
        values.extend_from_slice(&numbers[index * self.n_numbers..][..self.n_numbers]);
        let n = self.one_hot.len();
        for (&width, &place) in self.one_hot.iter().zip(&categories[index * n..][..n]) {
            let start = values.len();
            values.resize(start + width, 0.0);
            if place != UNKNOWN {
                values[start + place as usize] = 1.0;
            }
        }
        Ok(self.targets[index].clone())
    }
}
