//! `data.name = "jsonl"`: a JSON object a line, of which some keys are inputs and some the target.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::config::kind::{Kind, Modality, Offer, Options, OwnParts, Wrong};
use crate::data::error::Error;
use crate::data::inputs::{self, Inputs, Predicting};
use crate::data::sources::dates::DateForm;
use crate::data::sources::holdout::Parts;
use crate::data::sources::source::{Asked, DataSource, Files, Reading, Survey};
use crate::data::sources::tables::column::{BadCell, Cells, Column, json_number};
use crate::data::sources::tables::column_names::{ColumnNames, keyed};
use crate::data::sources::tables::date_formats::{DateFormats, DateInferences};
use crate::data::sources::tables::features::{ColumnKind, Features};
use crate::data::sources::tables::table::{Answer, AnswerKind, Opened, Rows, Wanted, at, cell};
use crate::data::sources::tables::target_cells::TargetCells;
use crate::data::sources::tables::unanswered::Unanswered;
use crate::data::{Splits, read};
use crate::plan::{Part, Targets};

const EXPECTED: &str =
    "a JSON object in each line, with the keys of `data.inputs` and `data.target`";

/// one JSON object per line, with named inputs and a target.
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
    /// keys to predict from, in this order: numbers, or arrays of numbers of the same length in all
    /// lines; categories and dates if `features` declares them. Numbers are standardised by the
    /// training lines; other keys are ignored.
    #[schemars(example = ["width", "height"])]
    pub inputs: Vec<String>,
    /// the key to predict: a number or, for classification, a word or a whole number; or a list of
    /// keys with numbers or, with `bce_with_logits`, labels: 1 if a line has the label, else 0.
    #[schemars(example = &"price")]
    pub target: ColumnNames,
    /// standardise the target by the training lines; `mae_unscaled` and `rmse_unscaled` are in its
    /// own unit.
    #[serde(default)]
    pub standardize_target: bool,
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
    const OFFERS: &'static [Offer] =
        &[Offer::Samples(Modality::Table), Offer::Split(OwnParts::FILES)];

    fn check(&self) -> Vec<Wrong> {
        let is_twice = |i: &usize| self.inputs[..*i].contains(&self.inputs[*i]);
        let twice = (0..self.inputs.len()).find(is_twice);
        let undeclared = self.features.declared().find(|name| !self.inputs.contains(name));
        let what = match (twice, undeclared) {
            (Some(at), _) => format!("names `{}` twice", self.inputs[at]),
            _ if self.inputs.is_empty() => "names no key".to_owned(),
            (_, Some(name)) => format!("lacks `{name}`, which `features` declares"),
            _ => String::new(),
        };
        let wrong = Wrong { key: "inputs", with: &["features"], what };
        let inputs: Vec<&String> = self.inputs.iter().collect();
        let target = self.target.wrong(&inputs, &["inputs"]);
        let wrong = Some(wrong).filter(|wrong| !wrong.what.is_empty());
        let formats = DateFormats::check(self.date_format.as_ref(), &self.features);
        let own = wrong.into_iter().chain(target).chain(self.features.check(&[]));
        own.chain(formats).collect()
    }
}

impl DataSource for Jsonl {
    fn open(&self, reading: &Reading<'_>) -> Result<Splits, Error> {
        let asked = Asked { found: Some(reading.found), ..*reading.asked };
        self.open(&asked).map(|opened| opened.splits)
    }

    fn survey(&self, asked: &Asked<'_>) -> Result<Survey, Error> {
        let files: Vec<String> =
            self.given().map(|(_, path, _)| path.display().to_string()).collect();
        let (files, inputs) = (files.join(" and "), self.inputs.join(", "));
        let line = format!("{files}, {inputs} -> {}", self.target.words());
        Ok(self.open(asked)?.survey(line))
    }

    fn target(&self) -> Result<Option<Targets>, Error> {
        let names = self.target.names();
        let mut kinds = vec![TargetCells::default(); names.len()];
        each_line(&self.train_file, "the lines to train on", |object, _| {
            for (name, kind) in names.iter().zip(&mut kinds) {
                match object.get(name) {
                    Some(Value::String(word)) if self.features.is_empty(word) => {}
                    Some(Value::String(word)) => kind.push(word),
                    Some(Value::Null) | None => {}
                    Some(value) => kind.push(&value.to_string()),
                }
            }
            Ok(())
        })?;
        Ok(Some(TargetCells::targets(&kinds)))
    }

    fn inputs(&self, asked: &Predicting<'_>) -> Result<Inputs, Error> {
        let mut rows = Unanswered::new(&asked.plan.source.found, &self.features)?;
        let is_wanted = |path: &Path| inputs::ends_with(path, &["jsonl", "json"]);
        for path in inputs::files(asked.paths, "files of a JSON object a line", &is_wanted)? {
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

    fn open(&self, asked: &Asked<'_>) -> Result<Opened, Error> {
        let (features, target, standardize) =
            (&self.features, &self.target, self.standardize_target);
        let wanted = Wanted { features, target, standardize, asked };
        let fit = wanted.fit();
        let words = match &fit {
            None if features.infers() => self.keys_of_words()?,
            _ => BTreeSet::new(),
        };
        let forms = match &fit {
            Some(fit) => fit.date_forms(),
            None => self.date_forms()?,
        };
        let kind = |name: &str| wanted.kind(name, fit.as_ref(), &words);
        let column = |name: &str| Column::new(name, kind(name), &forms);
        let mut parts = Parts::<Rows>::default();
        for (part, path, what) in self.given() {
            let mut rows = Rows::new(path, Vec::new());
            each_line(path, what, |object, line| {
                if rows.lines.is_empty() {
                    self.check_keys(object, path, line, &kind)?;
                }
                self.push(&mut rows, object, (wanted.answers(), &kind, &column))
                    .map_err(|bad| cell(path, line, bad))?;
                rows.lines.push(line);
                Ok(())
            })?;
            parts.put(part, rows);
        }
        wanted.open(parts, fit)
    }

    /// Refuses a first line that lacks a key which the experiment names, and each line needs.
    fn check_keys(
        &self,
        object: &Map<String, Value>,
        path: &Path,
        line: u64,
        kind: &dyn Fn(&str) -> ColumnKind,
    ) -> Result<(), Error> {
        let may_lack =
            |name: &str| self.features.missing.is_some() || kind(name) == ColumnKind::Category;
        let inputs = keyed("data.inputs", &self.inputs).into_iter();
        let needed = inputs.filter(|(_, name)| !may_lack(name));
        let group = self.group.iter().map(|name| ("data.group".to_owned(), name));
        let mut named = self.target.keyed("data.target").into_iter().chain(group).chain(needed);
        let Some((key, name)) = named.find(|(_, name)| !object.contains_key(*name)) else {
            return Ok(());
        };
        let (path, names) = (path.to_owned(), object.keys().cloned().collect());
        Err(Error::NoKey { key, path, line, name: name.clone(), names })
    }

    /// In which format the dates of each key are written, by the lines of all files.
    fn date_forms(&self) -> Result<BTreeMap<String, DateForm>, Error> {
        let mut all = DateInferences::new(&self.features, self.date_format.as_ref());
        if all.is_empty() {
            return Ok(BTreeMap::new());
        }
        for (part, path, what) in self.given() {
            each_line(path, what, |object, line| {
                let mut words =
                    object.iter().filter_map(|(key, value)| Some((key, value.as_str()?)));
                let seen =
                    words.try_for_each(|(key, word)| all.see(key, word.trim(), (path, line)));
                // What is wrong in another file is reported when that is read.
                let seen = if part == Part::Train { seen } else { Ok(()) };
                seen.map_err(|bad| cell(path, line, bad))
            })?;
        }
        all.forms()
    }

    /// Inputs that a line to train on gives as a word.
    fn keys_of_words(&self) -> Result<BTreeSet<String>, Error> {
        let mut found = BTreeSet::new();
        each_line(&self.train_file, "the lines to train on", |object, _| {
            let is_word = |key: &&String| match object.get(*key) {
                Some(Value::String(word)) => !self.features.is_empty(word),
                Some(Value::Bool(_)) => true,
                _ => false,
            };
            found.extend(self.inputs.iter().filter(is_word).cloned());
            Ok(())
        })?;
        Ok(found)
    }

    /// Reads the lines of a file without answers. A key that the first line lacks, and the run
    /// needs, is refused; a later line is kept with its error.
    fn rows_of(&self, path: &Path, rows: &mut Unanswered<'_>) -> Result<(), Error> {
        let bytes = read::table("the input", path, EXPECTED)?;
        let lines = bytes.split(|&byte| byte == b'\n').filter(|line| !line.trim_ascii().is_empty());
        let file = path.into();
        for (row, text) in (1..).zip(lines) {
            let object: Map<String, Value> = match serde_json::from_slice(text) {
                Ok(object) => object,
                Err(error) => {
                    rows.push_unreadable(&file, row, no_object(&error));
                    continue;
                }
            };
            let is_needed = |key: &str| !object.contains_key(key) && !rows.may_lack(key);
            let lacking = self.inputs.iter().filter(|key| is_needed(key));
            let missing: Vec<&str> = lacking.map(String::as_str).collect();
            if row == 1 && !missing.is_empty() {
                let present: Vec<String> = object.keys().cloned().collect();
                return Err(inputs::lacks(path, &missing, &present));
            }
            rows.push(&file, row, |columns| self.fill(columns, &object));
        }
        Ok(())
    }

    /// Puts the inputs of a line into columns.
    fn fill(&self, columns: &mut [Column], object: &Map<String, Value>) -> Result<(), BadCell> {
        let mut rest = columns;
        for key in &self.inputs {
            let is_category = rest.first().is_some_and(|it| matches!(it.cells, Cells::Words(_)));
            let value = match object.get(key) {
                Some(value) => value,
                None if is_category || self.features.missing.is_some() => &Value::Null,
                None => Err(format!("it has no key `{key}`"))?,
            };
            let values = match value {
                Value::Array(values) => &values[..],
                value => std::slice::from_ref(value),
            };
            let known = rest.iter().take_while(|column| is_of(&column.name, key)).count();
            if values.len() != known {
                Err(format!("`{key}` has length {}, but {known} in the run", values.len()))?;
            }
            let (own, after) = rest.split_at_mut(known);
            rest = after;
            for (column, value) in own.iter_mut().zip(values) {
                column.push_json(value, &self.features)?;
            }
        }
        Ok(())
    }

    /// Appends a line; the first one says how long arrays are.
    fn push(
        &self,
        rows: &mut Rows,
        object: &Map<String, Value>,
        (answers, kind, column): (AnswerKind, &dyn Fn(&str) -> ColumnKind, &dyn Fn(&str) -> Column),
    ) -> Result<(), BadCell> {
        let features = &self.features;
        let null = &Value::Null;
        let get = |key: &str| object.get(key).ok_or_else(|| format!("it has no key `{key}`"));
        let is_first = rows.lines.is_empty();
        let mut at = 0;
        for key in &self.inputs {
            let may_lack = features.missing.is_some() || kind(key) == ColumnKind::Category;
            let value = if may_lack { object.get(key).unwrap_or(null) } else { get(key)? };
            let values = match value {
                Value::Array(values) => &values[..],
                value => std::slice::from_ref(value),
            };
            let n = values.len();
            if is_first {
                let names = names(key, n);
                rows.columns.extend(names.iter().map(|name| column(name)));
            }
            let first = rows.columns[at..].iter().take_while(|it| is_of(&it.name, key)).count();
            if n != first {
                Err(format!("`{key}` has length {n}, but {first} in the first line"))?;
            }
            for (column, value) in rows.columns[at..].iter_mut().zip(values) {
                column.push_json(value, features)?;
            }
            at += n;
        }
        if let Some(key) = &self.group {
            rows.groups.push(group(key, get(key)?)?);
        }
        let targets = self.target.names();
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

/// Gives each line but empty ones to `push`, as an object, with its number.
fn each_line(
    path: &Path,
    what: &'static str,
    mut push: impl FnMut(&Map<String, Value>, u64) -> Result<(), Error>,
) -> Result<(), Error> {
    let bytes = read::table(what, path, EXPECTED)?;
    let mut is_empty = true;
    for (line, text) in (1..).zip(bytes.split(|&byte| byte == b'\n')) {
        if text.trim_ascii().is_empty() {
            continue;
        }
        let object: Map<String, Value> =
            serde_json::from_slice(text).map_err(|error| at(path, line, no_object(&error)))?;
        push(&object, line)?;
        is_empty = false;
    }
    if is_empty {
        return Err(Error::Format { path: path.to_owned(), what: "it is empty".to_owned() });
    }
    Ok(())
}

/// Why a line is no object, with the column; the line is that of the file.
fn no_object(error: &serde_json::Error) -> String {
    let (line, column) = (error.line(), error.column());
    let what = error.to_string();
    let what = what.strip_suffix(&format!(" at line {line} column {column}")).unwrap_or(&what);
    format!("it is not a JSON object: {what} at column {column}")
}

/// `pixels[0]`, `pixels[1]` ... of an array; the key itself of a number.
fn names(key: &str, n: usize) -> Vec<String> {
    match n {
        1 => vec![key.to_owned()],
        _ => (0..n).map(|index| format!("{key}[{index}]")).collect(),
    }
}

/// Whether a column is one of those of `key`.
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

/// What a line belongs to.
fn group(key: &str, value: &Value) -> Result<String, String> {
    let number = || value.as_i64().map(|number| number.to_string());
    value.as_str().map(str::to_owned).or_else(number).ok_or_else(|| {
        format!("`{key}` is {value}, which is not a group: a group is a word or a whole number")
    })
}

fn class(key: &str, value: &Value) -> Result<Answer, String> {
    match value {
        Value::String(word) => Ok(Answer::Word(word.clone())),
        value => value.as_i64().map(Answer::Integer).ok_or_else(|| {
            format!("`{key}` is {value}, which is not a class: a class is a word or a whole number")
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Dataset, Target};
    use crate::plan::Targets;

    fn opened(train: &str, val: &str, classify: bool) -> Result<Splits, Error> {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = dir.path().join(name);
            crate::files::write_atomic(&path, text.as_bytes()).unwrap();
            path
        };
        let jsonl = Jsonl {
            date_format: None,
            train_file: put("train.jsonl", train),
            val_file: Some(put("val.jsonl", val)),
            test_file: None,
            group: None,
            inputs: ["a", "b"].map(str::to_owned).to_vec(),
            target: "y".into(),
            standardize_target: false,
            features: Features::default(),
        };
        let targets = if classify { Targets::Classes } else { Targets::Numbers };
        jsonl.open(&Asked::new("", 0, targets)).map(|opened| opened.splits)
    }

    fn row(dataset: &dyn Dataset, index: usize) -> (Vec<f32>, Target) {
        let mut values = Vec::new();
        let target = dataset.load(index, None, &mut values).unwrap();
        (values, target)
    }

    #[test]
    fn named_inputs_are_standardised_in_their_order_and_other_keys_are_ignored() {
        let train = "\u{feff}{\"y\": 10.5, \"b\": [7, 1], \"a\": 1, \"note\": null}\r\n\r\n\
                     {\"a\": 3, \"b\": [7, 2], \"y\": -2}";
        let splits = opened(train, r#"{"a": 5, "b": [8, 1.5], "y": 1}"#, false).unwrap();
        assert!(splits.classes.is_empty());
        assert_eq!(row(&*splits.train, 0), (vec![-1.0, 0.0, -1.0], Target::Value(10.5)));
        assert_eq!(row(&*splits.train, 1), (vec![1.0, 0.0, 1.0], Target::Value(-2.0)));
        assert_eq!(row(&*splits.val, 0), (vec![3.0, 1.0, 0.0], Target::Value(1.0)));
    }

    #[test]
    fn a_category_may_be_absent_where_it_is_predicted_from_too() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = dir.path().join(name);
            crate::files::write_atomic(&path, text.as_bytes()).unwrap();
            path
        };
        let train =
            put("train.jsonl", "{\"a\": \"x\", \"b\": 2, \"y\": 3}\n{\"b\": 1, \"y\": 4}\n");
        let jsonl = Jsonl {
            date_format: None,
            train_file: train.clone(),
            val_file: Some(train),
            test_file: None,
            group: None,
            inputs: ["a", "b"].map(str::to_owned).to_vec(),
            target: "y".into(),
            standardize_target: false,
            features: Features { categorical: "a".into(), ..Features::default() },
        };
        let found = jsonl.survey(&Asked::new("", 0, Targets::Numbers)).unwrap().found;
        let mut rows = Unanswered::new(&found, &jsonl.features).unwrap();
        let new = put("new.jsonl", "{\"b\": 1}\n{\"a\": \"x\", \"b\": 1}\n");
        jsonl.rows_of(&new, &mut rows).unwrap();
        let inputs = rows.inputs(&jsonl.target).unwrap();
        assert_eq!(inputs.samples.len(), 2);
        assert_eq!(row(&*inputs.samples, 0).0, [-1.0, 0.0, 1.0]);
        assert_eq!(row(&*inputs.samples, 1).0, [-1.0, 1.0, 0.0]);
    }

    #[test]
    fn classes_are_words_or_whole_numbers() {
        let lines = |classes: [&str; 2]| {
            classes.map(|class| format!("{{\"a\": 1, \"b\": 2, \"y\": {class}}}")).join("\n")
        };
        let numbers = opened(&lines(["10", "2"]), &lines(["2", "10"]), true).unwrap();
        assert_eq!(numbers.classes, ["2", "10"]);
        assert_eq!(row(&*numbers.val, 1).1, Target::Class(1));
        let words = opened(&lines(["\"no\"", "\"yes\""]), &lines(["\"yes\"", "\"no\""]), true);
        assert_eq!(words.unwrap().classes, ["no", "yes"]);
    }

    #[test]
    fn what_is_wrong_is_named_with_file_and_line() {
        #[track_caller]
        fn check(train: &str, val: &str, classify: bool, expected: &str) {
            let error = opened(train, val, classify).err().unwrap().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let good = r#"{"a": 1, "b": 2, "y": 3}"#;
        let after = |line: &str| format!("{good}\n\n{line}\n");
        let line = |line: &str, expected: &str| {
            check(&after(line), good, false, &format!("train.jsonl`, line 3: {expected}"));
        };
        line("[1, 2]", "it is not a JSON object: invalid type");
        line(r#"{"a": 1"#, "it is not a JSON object: EOF while parsing an object at column 7");
        line(r#"{"a": 1, "y": 3}"#, "it has no key `b`");
        line(r#"{"a": 1, "b": 2}"#, "it has no key `y`");
        line(r#"{"a": "x", "b": 2, "y": 3}"#, "`a` is \"x\", which is not a number");
        line(r#"{"a": 1e39, "b": 2, "y": 3}"#, "`a` is 1e+39, which is not finite in 32 bits");
        line(r#"{"a": [1, 2], "b": 2, "y": 3}"#, "`a` has length 2, but 1 in the first line");
        check(
            good,
            &after(r#"{"a": 1, "b": 2, "y": 0.5}"#),
            true,
            "val.jsonl`, line 3: `y` is 0.5, which is not a class",
        );
        check(good, r#"{"a": 1, "b": 2, "y": 4}"#, true, "class `4` has no training rows");
        check("\n", good, false, "train.jsonl`: it is empty");
        let lacking = r#"{"a": 1, "b": 2, "yy": 3}"#;
        check(lacking, good, false, "has no key `y`; its keys are `a`, `b`, `yy`");
        check(good, lacking, false, "line 1 of ");
        let error = opened(lacking, good, false).err().unwrap();
        assert_eq!(error.key(), Some("data.target"));
        assert_eq!(error.help().as_deref(), Some("did you mean `yy`?"));
    }
}
