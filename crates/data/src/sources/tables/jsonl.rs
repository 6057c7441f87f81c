//! `data.name = "jsonl"`: a JSON object a line, of which some keys are inputs and some the target.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::config::kind::{BuiltinSplits, Capability, Kind, Modality, OptionConflict, Options};
use crate::error::{Error, shown};
use crate::file_names::unpacked;
use crate::inputs::{self, Inputs, PredictionRequest};
use crate::json::{self, JsonLineError, NOT_FINITE};
use crate::plan::{Part, Targets};
use crate::sources::dates::DateForm;
use crate::sources::holdout::Parts;
use crate::sources::source::{DataSource, Files, OpenRequest, Survey, SurveyRequest};
use crate::sources::tables::answer::{self, Answer, unlabelled};
use crate::sources::tables::column::{BadCell, Cells, Column, is_missing, json_number, whole};
use crate::sources::tables::column_names::{ColumnNames, keyed};
use crate::sources::tables::date_formats::{DateFormats, DateInferences};
use crate::sources::tables::features::{CellRules, ColumnKind, Features, MissingValues};
use crate::sources::tables::fit::Fit;
use crate::sources::tables::table::{AnswerKind, OpenedTable, Rows, TableSpec, cell};
use crate::sources::tables::target_cells::TargetCells;
use crate::sources::tables::unlabelled_rows::UnlabelledRows;
use crate::{Splits, parquet, read};

const EXPECTED: &str =
    "a JSON object in each line, with the keys of `data.inputs` and `data.target`";

/// one JSON object per line, or the rows of a parquet file, with named inputs and a target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Jsonl {
    /// training file.
    #[schemars(extend("format" = "path"), example = "data/train.jsonl")]
    pub train_file: PathBuf,
    /// validation file, with the same keys; or hold out lines of `train_file` with
    /// `data.val_fraction` or `data.folds`.
    #[serde(default)]
    #[schemars(extend("format" = "path"), example = "data/val.jsonl")]
    pub val_file: Option<PathBuf>,
    /// test file, with the same keys; it is used once, at the end of training.
    #[serde(default)]
    #[schemars(extend("format" = "path"), example = "data/test.jsonl")]
    pub test_file: Option<PathBuf>,
    /// keys to predict from, in this order: numbers, truth values (1 and 0), or lists of them, of
    /// the same length in all lines; categories and dates if `features` declares them. Numbers are
    /// standardised by the training lines; other keys are ignored.
    #[schemars(example = ["width", "height", "city", "sold"])]
    pub inputs: Vec<String>,
    /// the key to predict: a number or, for classification, a word, a whole number or a truth
    /// value; or a list of keys with numbers or, with `bce_with_logits`, labels: 1 if a line has
    /// the label, else 0.
    #[schemars(example = &"price")]
    pub target: ColumnNames,
    /// standardise the target by the training lines; `mae_unscaled` and `rmse_unscaled` are in its
    /// own unit.
    #[serde(default)]
    pub standardize_target: bool,
    /// words that count as null, in inputs and target alike: "pandas" (NA, N/A, NaN, null, None and
    /// the like), or a list, in which "pandas" stands for these; an empty list: only null.
    #[serde(default)]
    #[schemars(example = ["pandas", "?"])]
    pub missing_values: MissingValues,
    /// leave out lines whose target is null or absent; else they are refused.
    #[serde(default)]
    pub drop_unlabelled: bool,
    /// format of the date columns in strftime's words, such as "%d/%m/%Y", or a table of column and
    /// format. Without it, the format that all rows of a column fit; dates that have several
    /// meanings are refused.
    #[serde(default)]
    #[schemars(example = &"%d/%m/%Y")]
    pub date_format: Option<DateFormats>,
    /// how inputs that are not numbers, null, and missing keys are encoded.
    #[serde(default)]
    #[schemars(example = Features::example())]
    pub features: Features,
    /// a key such as a patient: lines with the same value, a word or a whole number, are held out
    /// together.
    #[serde(default)]
    #[schemars(example = &"patient")]
    pub group: Option<String>,
}

impl Kind for Jsonl {
    const NAME: &'static str = "jsonl";
    const CAPABILITIES: &'static [Capability] =
        &[Capability::Samples(Modality::Table), Capability::Split(BuiltinSplits::FILES)];

    fn check(&self) -> Vec<OptionConflict> {
        let is_twice = |i: &usize| self.inputs[..*i].contains(&self.inputs[*i]);
        let twice = (0..self.inputs.len()).find(is_twice);
        let undeclared = self.features.declared().find(|name| !self.inputs.contains(name));
        let what = match (twice, undeclared) {
            (Some(at), _) => format!("names `{}` twice", self.inputs[at]),
            _ if self.inputs.is_empty() => "names no key".to_owned(),
            (_, Some(name)) => format!("lacks `{name}`, which `features` declares"),
            _ => String::new(),
        };
        let wrong = OptionConflict { key: "inputs", with: &["features"], what };
        let inputs: Vec<&String> = self.inputs.iter().collect();
        let target = self.target.wrong(&inputs, &["inputs"]);
        let wrong = Some(wrong).filter(|wrong| !wrong.what.is_empty());
        let formats = DateFormats::check(self.date_format.as_ref(), &self.features);
        let own = wrong.into_iter().chain(target).chain(self.features.check(&[]));
        own.chain(formats).collect()
    }
}

impl DataSource for Jsonl {
    fn preprocessing(&self, found: &Options) -> Result<Options, Error> {
        Ok(self.rules().described(found))
    }

    fn target_scales(&self, found: &Options) -> Vec<(f64, f64)> {
        Fit::found(found).map(|fit| fit.targets).unwrap_or_default()
    }

    fn open(&self, reading: &OpenRequest<'_>) -> Result<Splits, Error> {
        let request = SurveyRequest { found: Some(reading.found), ..*reading.survey };
        self.open(&request).map(|opened| opened.splits)
    }

    fn survey(&self, request: &SurveyRequest<'_>) -> Result<Survey, Error> {
        let files: Vec<String> =
            self.given().map(|(_, path, _)| path.display().to_string()).collect();
        let files = files.join(" and ");
        let inputs = self.inputs.join(", ");
        let line = format!("{files}, {inputs} -> {}", self.target.words());
        Ok(self.open(request)?.survey(line))
    }

    fn target(&self) -> Result<Option<Targets>, Error> {
        let names = self.target.names();
        let mut kinds = vec![TargetCells::default(); names.len()];
        each_line(&self.train_file, "the lines to train on", |object, _| {
            for (name, kind) in names.iter().zip(&mut kinds) {
                match object.get(name) {
                    Some(value) if is_missing(value, &self.missing_values) => {}
                    Some(Value::String(word)) => kind.push(word),
                    Some(value) => kind.push(&value.to_string()),
                    None => {}
                }
            }
            Ok(())
        })?;
        Ok(Some(TargetCells::targets(&kinds)))
    }

    fn inputs(&self, request: &PredictionRequest<'_>) -> Result<Inputs, Error> {
        let mut rows = UnlabelledRows::new(&request.plan.source.survey, self.rules())?;
        let is_wanted =
            |path: &Path| inputs::ends_with(unpacked(path), &["jsonl", "json", "parquet"]);
        let found = inputs::files(request.paths, "files of a JSON object a line", &is_wanted)?;
        rows.note(found.notes);
        for path in found.files {
            self.rows_of(&path, &mut rows)?;
        }
        rows.inputs(&self.target)
    }

    fn files(&self, _: &Options) -> Result<Vec<Files>, Error> {
        Ok(self.given().map(|(part, path, _)| Files::one(part.name(), path)).collect())
    }
}

impl Jsonl {
    /// The files with what they are called in messages.
    fn given(&self) -> impl Iterator<Item = (Part, &PathBuf, &'static str)> {
        let train = (Part::Train, Some(&self.train_file), "the lines to train on");
        let val = (Part::Val, self.val_file.as_ref(), "the lines to validate on");
        let test = (Part::Test, self.test_file.as_ref(), "the lines to test on");
        [train, val, test].into_iter().filter_map(|(part, path, what)| Some((part, path?, what)))
    }

    /// Rules for reading values.
    fn rules(&self) -> CellRules<'_> {
        CellRules { features: &self.features, missing: &self.missing_values }
    }

    fn open(&self, request: &SurveyRequest<'_>) -> Result<OpenedTable, Error> {
        let rules = self.rules();
        let target = &self.target;
        let standardize = self.standardize_target;
        let wanted = TableSpec { rules, target, standardize, request };
        let fit = wanted.fit();
        let words = match &fit {
            None if self.features.infers() => self.keys_of_words()?,
            _ => BTreeSet::new(),
        };
        // The columns of a list are declared by its key.
        let kind = |name: &str, key: &str| match &fit {
            Some(fit) => fit.kind(name).or_else(|| fit.kind(&format!("{key}[0]"))).unwrap_or_else(
                // Of a list of words that a line lacks.
                || wanted.kind(key, None, &words),
            ),
            None => wanted.kind(key, None, &words),
        };
        let forms = match &fit {
            Some(fit) => fit.date_forms(),
            None => self.date_forms()?,
        };
        let mut parts = Parts::<Rows>::default();
        for (part, path, what) in self.given() {
            parts.put(part, self.rows(path, what, wanted.answers(), &kind, &forms)?);
        }
        wanted.open(parts, fit)
    }

    /// The rows of a file.
    fn rows(
        &self,
        path: &Path,
        what: &'static str,
        answers: AnswerKind,
        kind: ColumnKinds<'_>,
        forms: &BTreeMap<String, DateForm>,
    ) -> Result<Rows, Error> {
        let mut rows = Rows::new(path, Vec::new());
        let mut unlabelled = 0;
        let mut absent = MissingKeys::new(&self.inputs);
        each_line(path, what, |object, line| {
            if unlabelled + rows.lines.len() == 0 {
                self.check_keys(object, path, line, kind)?;
            }
            if self.drop_unlabelled && self.is_unlabelled(object) {
                unlabelled += 1;
                return Ok(());
            }
            self.push(&mut rows, object, answers, kind, forms)
                .map_err(|bad| cell(path, line, bad))?;
            rows.lines.push(line);
            absent.count(object);
            Ok(())
        })?;
        if let Some(at) = absent.everywhere().next() {
            let key = format!("data.inputs[{at}]");
            let line = rows.lines[0];
            let path = path.to_owned();
            let names = absent.names();
            return Err(Error::NoKey { key, path, line, name: self.inputs[at].clone(), names });
        }
        rows.notes.extend(absent.note(path));
        rows.leave_out(unlabelled, &self.target)?;
        Ok(rows)
    }

    /// True if a target of a line is null or absent.
    fn is_unlabelled(&self, object: &Map<String, Value>) -> bool {
        let null = &Value::Null;
        let value = |key: &String| object.get(key).unwrap_or(null);
        self.target.names().iter().any(|key| is_missing(value(key), &self.missing_values))
    }

    /// Refuses a first line that lacks a key which the experiment names, and each line needs.
    fn check_keys(
        &self,
        object: &Map<String, Value>,
        path: &Path,
        line: u64,
        kind: ColumnKinds<'_>,
    ) -> Result<(), Error> {
        let inputs = keyed("data.inputs", &self.inputs).into_iter();
        let needed = inputs.filter(|(_, name)| !self.may_lack(name, kind));
        let group = self.group.iter().map(|name| ("data.group".to_owned(), name));
        let target = self.target.keyed("data.target").into_iter();
        let target = target.filter(|_| !self.drop_unlabelled);
        let mut named = target.chain(group).chain(needed);
        let Some((key, name)) = named.find(|(_, name)| !object.contains_key(*name)) else {
            return Ok(());
        };
        let path = path.to_owned();
        let names = object.keys().cloned().collect();
        Err(Error::NoKey { key, path, line, name: name.clone(), names })
    }

    /// True if a line may lack a key, which is then an empty cell.
    fn may_lack(&self, key: &str, kind: ColumnKinds<'_>) -> bool {
        self.features.missing.is_some() || kind(key, key) == ColumnKind::Category
    }

    /// Date format of each key, by the lines of all files.
    fn date_forms(&self) -> Result<BTreeMap<String, DateForm>, Error> {
        let mut all = DateInferences::new(self.rules(), self.date_format.as_ref());
        if all.is_empty() {
            return Ok(BTreeMap::new());
        }
        for (part, path, what) in self.given() {
            each_line(path, what, |object, line| {
                let mut values = object.iter().flat_map(|(key, value)| {
                    let list = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
                    list.iter().filter_map(move |value| Some((key, value.as_str()?)))
                });
                let seen = values.try_for_each(|(key, word)| all.see(key, word.trim(), path, line));
                // What is wrong in another file is reported when that is read.
                let seen = if part == Part::Train { seen } else { Ok(()) };
                seen.map_err(|bad| cell(path, line, bad))
            })?;
        }
        all.forms()
    }

    /// Inputs that a line to train on gives as a word, or as a list with words.
    fn keys_of_words(&self) -> Result<BTreeSet<String>, Error> {
        let mut found = BTreeSet::new();
        let is_word = |value: &Value| {
            matches!(value, Value::String(word) if !NOT_FINITE.contains(&&**word))
                && !is_missing(value, &self.missing_values)
        };
        each_line(&self.train_file, "the lines to train on", |object, _| {
            let has_words = |key: &&String| match object.get(*key) {
                Some(Value::Array(values)) => values.iter().any(is_word),
                value => value.is_some_and(is_word),
            };
            found.extend(self.inputs.iter().filter(has_words).cloned());
            Ok(())
        })?;
        Ok(found)
    }

    /// Reads the lines of a file without answers. A key that all lines lack is refused, and so is
    /// one that the first line lacks and the run needs; a later line is kept with its error.
    fn rows_of(&self, path: &Path, rows: &mut UnlabelledRows<'_>) -> Result<(), Error> {
        let bytes = table("the input", path)?;
        let lines = bytes.split(|&byte| byte == b'\n').filter(|line| !line.trim_ascii().is_empty());
        let from = rows.len();
        let file = path.into();
        let mut absent = MissingKeys::new(&self.inputs);
        for (row, text) in (1..).zip(lines) {
            let object = match json::object(text) {
                Ok(object) => object,
                Err(error) => {
                    rows.push_unreadable(&file, row, error.what);
                    continue;
                }
            };
            absent.count(&object);
            let is_needed = |key: &str| !object.contains_key(key) && !rows.may_lack(key);
            let lacking = self.inputs.iter().filter(|key| is_needed(key));
            let missing: Vec<&str> = lacking.map(String::as_str).collect();
            if row == 1 && !missing.is_empty() {
                return Err(inputs::lacks_keys(path, &missing, &absent.names()));
            }
            rows.push(&file, row, |columns| self.fill(columns, &object));
        }
        let missing: Vec<&str> = absent.everywhere().map(|at| self.inputs[at].as_str()).collect();
        if !missing.is_empty() {
            return Err(inputs::lacks_keys(path, &missing, &absent.names()));
        }
        rows.note(absent.note(path));
        rows.note_filled(path, from, |column| absent.counts(column));
        Ok(())
    }

    /// Puts the inputs of a line into columns.
    fn fill(&self, columns: &mut [Column], object: &Map<String, Value>) -> Result<(), BadCell> {
        let mut rest = columns;
        for key in &self.inputs {
            let is_category = rest.first().is_some_and(|it| matches!(it.cells, Cells::Words(_)));
            let known = rest.iter().take_while(|column| is_of(&column.name, key)).count();
            let may_lack = is_category || self.features.missing.is_some();
            let values = values(object, key, may_lack, known)?;
            if values.len() != known {
                Err(format!("`{key}` has length {}, but {known} in the run", values.len()))?;
            }
            let (own, after) = rest.split_at_mut(known);
            rest = after;
            for (column, value) in own.iter_mut().zip(values.iter()) {
                column.push_json(key, value, self.rules())?;
            }
        }
        Ok(())
    }

    /// Appends a line; the first one says how long arrays are.
    fn push(
        &self,
        rows: &mut Rows,
        object: &Map<String, Value>,
        answers: AnswerKind,
        kind: ColumnKinds<'_>,
        forms: &BTreeMap<String, DateForm>,
    ) -> Result<(), BadCell> {
        let get = |key: &str| object.get(key).ok_or_else(|| format!("it has no key `{key}`"));
        let is_first = rows.lines.is_empty();
        let mut at = 0;
        for key in &self.inputs {
            let known = rows.columns.iter().skip(at).take_while(|it| is_of(&it.name, key)).count();
            let known = if is_first { 1 } else { known };
            let values = values(object, key, self.may_lack(key, kind), known)?;
            let n = values.len();
            if is_first {
                let names = names(key, n);
                rows.columns.extend(names.iter().map(|name| {
                    let form = forms.get(name).or_else(|| forms.get(key));
                    Column::new(name, kind(name, key), form)
                }));
            } else if n != known {
                Err(format!("`{key}` has length {n}, but {known} in the first line"))?;
            }
            for (column, value) in rows.columns[at..].iter_mut().zip(values.iter()) {
                column.push_json(key, value, self.rules())?;
            }
            at += n;
        }
        if let Some(key) = &self.group {
            rows.groups.push(group(key, get(key)?)?);
        }
        let targets = self.target.names();
        for key in targets {
            let value = get(key).map_err(unlabelled)?;
            if is_missing(value, &self.missing_values) {
                Err(unlabelled(format!("`{key}` is {value}, which counts as empty")))?;
            }
        }
        let number = |key: &String| match answers {
            AnswerKind::Numbers => json_number(key, get(key)?),
            AnswerKind::Flags => flag(key, get(key)?),
            AnswerKind::Class | AnswerKind::Unread => Ok(0.0),
        };
        rows.answers.push(match (answers, targets) {
            (AnswerKind::Class, [key, ..]) => class(key, get(key)?)?,
            _ => Answer::numbers(&targets.iter().map(number).collect::<Result<Vec<f64>, _>>()?),
        });
        Ok(())
    }
}

/// Type of a column by its name and its key.
type ColumnKinds<'a> = &'a dyn Fn(&str, &str) -> ColumnKind;

/// Number of lines of a file that lack each of the inputs.
struct MissingKeys<'a> {
    inputs: &'a [String],
    lines: usize,
    without: Vec<usize>,
    /// All keys that lines have.
    present: BTreeSet<String>,
}

impl<'a> MissingKeys<'a> {
    fn new(inputs: &'a [String]) -> Self {
        Self { inputs, lines: 0, without: vec![0; inputs.len()], present: BTreeSet::new() }
    }

    fn count(&mut self, object: &Map<String, Value>) {
        self.lines += 1;
        for (n, key) in self.without.iter_mut().zip(self.inputs) {
            *n += usize::from(!object.contains_key(key));
        }
        let new: Vec<String> =
            object.keys().filter(|key| !self.present.contains(*key)).cloned().collect();
        self.present.extend(new);
    }

    /// Positions of inputs that all lines lack.
    fn everywhere(&self) -> impl Iterator<Item = usize> {
        let n = self.lines;
        self.without.iter().enumerate().filter(move |(_, lack)| n > 0 && **lack == n).map(|it| it.0)
    }

    /// Names of keys that lines have.
    fn names(&self) -> Vec<String> {
        self.present.iter().cloned().collect()
    }

    /// True if some lines lack the source of a column.
    fn counts(&self, column: &str) -> bool {
        let mut lacking = self.inputs.iter().zip(&self.without).filter(|(_, n)| **n > 0);
        lacking.any(|(key, _)| is_of(column, key))
    }

    /// Note that some lines of the file at `path` lack inputs, if so.
    fn note(&self, path: &Path) -> Option<String> {
        let lacking = self.inputs.iter().zip(&self.without).filter(|(_, n)| **n > 0);
        let words: Vec<String> = lacking.map(|(key, n)| format!("`{key}` in {n}")).collect();
        let lines = self.lines;
        let path = shown(path);
        (!words.is_empty()).then(|| {
            let words = words.join(", ");
            format!("of the {lines} lines of `{path}`, keys are absent: {words}; read as empty")
        })
    }
}

/// The value of a key, or those of the list there; of an absent one, `n` times null if it may be
/// so.
fn values<'a>(
    object: &'a Map<String, Value>,
    key: &str,
    may_lack: bool,
    n: usize,
) -> Result<Cow<'a, [Value]>, String> {
    match object.get(key) {
        Some(Value::Array(values)) => Ok(Cow::Borrowed(values)),
        Some(value) => Ok(Cow::Borrowed(std::slice::from_ref(value))),
        None if may_lack => Ok(Cow::Owned(vec![Value::Null; n])),
        None => Err(format!("it has no key `{key}`")),
    }
}

/// The objects of a file: its lines, or those that stand for the rows of a parquet file.
fn table(what: &'static str, path: &Path) -> Result<Vec<u8>, Error> {
    match parquet::json_lines(path, what, EXPECTED)? {
        Some(lines) => Ok(lines),
        None => read::table(what, path, EXPECTED),
    }
}

/// Gives each line but empty ones to `push`, as an object, with its number.
fn each_line(
    path: &Path,
    what: &'static str,
    mut push: impl FnMut(&Map<String, Value>, u64) -> Result<(), Error>,
) -> Result<(), Error> {
    let bytes = table(what, path)?;
    let mut is_empty = true;
    for (line, text) in (1..).zip(bytes.split(|&byte| byte == b'\n')) {
        if text.trim_ascii().is_empty() {
            continue;
        }
        let object = json::object(text).map_err(|error| {
            let JsonLineError { what, help } = error;
            cell(path, line, BadCell { what, help })
        })?;
        push(&object, line)?;
        is_empty = false;
    }
    if is_empty {
        return Err(Error::Format { path: path.to_owned(), what: "it is empty".to_owned() });
    }
    Ok(())
}

/// `pixels[0]`, `pixels[1]` ... of an array; the key itself of a number.
fn names(key: &str, n: usize) -> Vec<String> {
    match n {
        1 => vec![key.to_owned()],
        _ => (0..n).map(|index| format!("{key}[{index}]")).collect(),
    }
}

/// True if a column belongs to `key`.
fn is_of(column: &str, key: &str) -> bool {
    column.strip_prefix(key).is_some_and(|rest| rest.is_empty() || rest.starts_with('['))
}

/// 1 or 0, or a word for it: whether a line has a class.
fn flag(key: &str, value: &Value) -> Result<f64, String> {
    match value.as_f64().or(value.as_bool().map(|has| f64::from(u8::from(has)))) {
        Some(flag) if flag == 0.0 || flag == 1.0 => Ok(flag),
        _ => Err(format!("`{key}` is {value}, which is neither 0 nor 1")),
    }
}

/// Group of a line.
fn group(key: &str, value: &Value) -> Result<String, String> {
    let number = || value.as_i64().map(|number| number.to_string());
    value.as_str().map(str::to_owned).or_else(number).ok_or_else(|| {
        format!("`{key}` is {value}, which is not a group: a group is a word or a whole number")
    })
}

fn class(key: &str, value: &Value) -> Result<Answer, String> {
    let number = value.as_f64().and_then(whole);
    match (value, number) {
        (Value::String(word), _) => answer::class(key, word.trim()),
        (Value::Bool(is_true), _) => Ok(Answer::Word(is_true.to_string())),
        (_, Some(number)) => Ok(Answer::Integer(number)),
        _ => Err(format!(
            "`{key}` is {value}, which is not a class: a class is a word, a whole number or a \
             truth value"
        )),
    }
}

#[cfg(test)]
mod tests;
