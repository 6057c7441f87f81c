//! Lines of JSON.

use super::*;
use crate::plan::Targets;
use crate::user_error::UserError;
use crate::{Dataset, Target};

fn opened(train: &str, val: &str, classify: bool) -> Result<Splits, Error> {
    let dir = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| {
        let path = dir.path().join(name);
        crate::files::write_atomic(&path, text.as_bytes()).unwrap();
        path
    };
    let jsonl = Jsonl {
        train_file: put("train.jsonl", train),
        val_file: Some(put("val.jsonl", val)),
        test_file: None,
        group: None,
        inputs: ["a", "b"].map(str::to_owned).to_vec(),
        target: "y".into(),
        standardize_target: false,
        missing_values: MissingValues::default(),
        drop_unlabelled: false,
        date_format: None,
        features: Features::default(),
    };
    let targets = if classify { Targets::Classes } else { Targets::Numbers };
    jsonl.open(&SurveyRequest::new("", 0, targets)).map(|opened| opened.splits)
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
    let train = put("train.jsonl", "{\"a\": \"x\", \"b\": 2, \"y\": 3}\n{\"b\": 1, \"y\": 4}\n");
    let jsonl = Jsonl {
        train_file: train.clone(),
        val_file: Some(train),
        test_file: None,
        group: None,
        inputs: ["a", "b"].map(str::to_owned).to_vec(),
        target: "y".into(),
        standardize_target: false,
        missing_values: MissingValues::default(),
        drop_unlabelled: false,
        date_format: None,
        features: Features { categorical: "a".into(), ..Features::default() },
    };
    let found = jsonl.survey(&SurveyRequest::new("", 0, Targets::Numbers)).unwrap().found;
    let mut rows = UnlabelledRows::new(&found, jsonl.rules()).unwrap();
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
