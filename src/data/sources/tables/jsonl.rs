//! `data.name = "jsonl"`: a JSON object a line, of which some keys are inputs and one is the
//! target.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::config::kind::{Kind, Modality, Offer, Options, Wrong};
use crate::data::error::Error;
use crate::data::listing::paths::both;
use crate::data::sources::source::{Asked, DataSource, Files, Reading, Survey};
use crate::data::sources::tables::table::{self, Answer, Rows, at};
use crate::data::{Splits, read};

const EXPECTED: &str =
    "a JSON object in each line, with the keys of `data.inputs` and `data.target`";

/// a JSON object a line: named numeric inputs and a target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Jsonl {
    /// file to train on.
    #[schemars(extend("format" = "path"), example = "data/train.jsonl")]
    pub train_file: PathBuf,
    /// file to validate on, with the same keys.
    #[schemars(extend("format" = "path"), example = "data/val.jsonl")]
    pub val_file: PathBuf,
    /// file to test on when the training is over, with the same keys.
    #[serde(default)]
    #[schemars(extend("format" = "path"), example = "data/test.jsonl")]
    pub test_file: Option<PathBuf>,
    /// keys to predict from, in this order: numbers, or arrays of numbers that are equally long in
    /// all lines. Inputs are standardised with the lines to train on; other keys are ignored.
    #[schemars(example = ["width", "height"])]
    pub inputs: Vec<String>,
    /// key to predict: a number, or with a loss of classes a word or a whole number.
    #[schemars(example = &"price")]
    pub target: String,
}

impl Kind for Jsonl {
    const NAME: &'static str = "jsonl";
    const OFFERS: &'static [Offer] = &[Offer::Samples(Modality::Table), Offer::Test];

    fn check(&self) -> Vec<Wrong> {
        let is_twice = |i: usize| self.inputs[..i].contains(&self.inputs[i]);
        let what = match (0..self.inputs.len()).find(|&i| is_twice(i)) {
            Some(i) => format!("names `{}` twice", self.inputs[i]),
            None if self.inputs.is_empty() => "names no key".to_owned(),
            None if self.inputs.contains(&self.target) => {
                format!("names `{}`, which is the target", self.target)
            }
            None => return Vec::new(),
        };
        vec![Wrong { key: "inputs", with: &["target"], what }]
    }
}

impl DataSource for Jsonl {
    fn open(&self, reading: &Reading<'_>) -> Result<Splits, Error> {
        self.open(reading.asked.classify())
    }

    fn survey(&self, asked: &Asked<'_>) -> Result<Survey, Error> {
        let files = both(&self.train_file, &self.val_file);
        let line = format!("{files}, {} -> `{}`", self.inputs.join(", "), self.target);
        let found = Survey { line, ..Survey::of(&self.open(asked.classify())?) };
        Ok(Survey { held: found.held_whole(), ..found })
    }

    fn files(&self, _: &Options) -> Result<Vec<Files>, Error> {
        let test = self.test_file.as_ref().map(|path| Files::one("test", path));
        let known = [Files::one("train", &self.train_file), Files::one("val", &self.val_file)];
        Ok(known.into_iter().chain(test).collect())
    }
}

impl Jsonl {
    fn open(&self, classify: bool) -> Result<Splits, Error> {
        let train = self.read(&self.train_file, "the lines to train on", classify)?;
        let val = self.read(&self.val_file, "the lines to validate on", classify)?;
        let test = self.test_file.as_ref();
        let test =
            test.map(|path| self.read(path, "the lines to test on", classify)).transpose()?;
        table::splits(train, val, test, classify)
    }

    /// All lines but empty ones.
    fn read(&self, path: &Path, what: &'static str, classify: bool) -> Result<Rows, Error> {
        let bytes = read::table(what, path, EXPECTED)?;
        let mut rows = Rows::new(path, Vec::new());
        for (line, text) in (1..).zip(bytes.split(|&byte| byte == b'\n')) {
            if text.trim_ascii().is_empty() {
                continue;
            }
            self.push(&mut rows, text, classify).map_err(|what| at(path, line, what))?;
            rows.lines.push(line);
        }
        if rows.lines.is_empty() {
            return Err(Error::Format { path: path.to_owned(), what: "it is empty".to_owned() });
        }
        Ok(rows)
    }

    /// Appends a line; the first one says how long arrays are.
    fn push(&self, rows: &mut Rows, text: &[u8], classify: bool) -> Result<(), String> {
        let object: Map<String, Value> = serde_json::from_slice(text)
            .map_err(|error| format!("it is not a JSON object: {error}"))?;
        let get = |key: &str| object.get(key).ok_or_else(|| format!("it has no key `{key}`"));
        let is_first = rows.lines.is_empty();
        for key in &self.inputs {
            let numbers = numbers(key, get(key)?)?;
            let n = numbers.len();
            if is_first {
                rows.columns.extend(names(key, n));
            }
            let first = rows.columns.iter().filter(|column| is_of(column, key)).count();
            if n != first {
                return Err(format!("`{key}` has length {n}, but {first} in the first line"));
            }
            rows.features.extend(numbers);
        }
        let (key, target) = (&self.target, get(&self.target)?);
        rows.answers.push(if classify {
            class(key, target)?
        } else {
            Answer::value(number(key, target)?)
        });
        Ok(())
    }
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

/// A number, or each of an array.
fn numbers(key: &str, value: &Value) -> Result<Vec<f64>, String> {
    match value {
        Value::Array(items) => items.iter().map(|item| number(key, item)).collect(),
        value => Ok(vec![number(key, value)?]),
    }
}

fn number(key: &str, value: &Value) -> Result<f64, String> {
    let number =
        value.as_f64().ok_or_else(|| format!("`{key}` is {value}, which is not a number"))?;
    if (number as f32).is_finite() {
        return Ok(number);
    }
    Err(format!("`{key}` is {value}, which is not finite in 32 bits"))
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

    fn opened(train: &str, val: &str, classify: bool) -> Result<Splits, Error> {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = dir.path().join(name);
            crate::files::write_atomic(&path, text.as_bytes()).unwrap();
            path
        };
        let jsonl = Jsonl {
            train_file: put("train.jsonl", train),
            val_file: put("val.jsonl", val),
            test_file: None,
            inputs: ["a", "b"].map(str::to_owned).to_vec(),
            target: "y".to_owned(),
        };
        jsonl.open(classify)
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
        line(r#"{"a": 1"#, "it is not a JSON object: EOF");
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
        check(good, r#"{"a": 1, "b": 2, "y": 4}"#, true, "class `4` is not in the training");
        check("\n", good, false, "train.jsonl`: it is empty");
    }
}
