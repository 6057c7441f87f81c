//! Tables with categories, dates, empty cells and several targets.

use crate::user_error::UserError;
use std::path::Path;

use serde_json::{Value, json};

use super::*;
use crate::config::kind::{Choice, Kind, Options};
use crate::plan::{Limit, Modality, SourcePlan, SplitPlan, TargetColumn, Targets};
use crate::{
    DataSource, Dataset, Error, Inputs, OpenRequest, PredictionRequest, Survey, SurveyRequest,
    Target, Transforms,
};

const REGRESSION: SurveyRequest<'_> = SurveyRequest::new("x", 0, Targets::Numbers);

/// Two tables, and the data set of both with the target `target`.
fn table(train: &str, val: &str, target: ColumnNames) -> (tempfile::TempDir, Csv) {
    let dir = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| {
        let path = dir.path().join(name);
        crate::files::write_atomic(&path, text.as_bytes()).unwrap();
        path
    };
    let files = (put("train.csv", train), put("val.csv", val));
    let csv = Csv { target, ..Csv::new(files.0, files.1, "") };
    (dir, csv)
}

fn list(names: &[&str]) -> ColumnNames {
    ColumnNames::List(names.iter().map(|&name| name.to_owned()).collect())
}

/// The samples of training and validation, and the targets, as a run would open them.
type Samples = [(Vec<Vec<f32>>, Vec<Target>); 2];

fn opened(
    source: &dyn DataSource,
    request: &SurveyRequest<'_>,
) -> Result<(Survey, Samples), Error> {
    let survey = source.survey(request)?;
    let samples = reopened(source, request, &survey.found)?;
    Ok((survey, samples))
}

fn reopened(
    source: &dyn DataSource,
    request: &SurveyRequest<'_>,
    found: &Options,
) -> Result<Samples, Error> {
    let transforms = &Transforms::empty();
    let (train_transforms, val_transforms) = (&[][..], &[][..]);
    let reading =
        OpenRequest { survey: request, found, train_transforms, val_transforms, transforms };
    let splits = source.open(&reading)?;
    let all = |data: &dyn Dataset| {
        (0..data.len())
            .map(|index| {
                let mut values = Vec::new();
                let target = data.load(index, None, &mut values).unwrap();
                assert_eq!(data.shape(), [values.len()]);
                (values, target)
            })
            .unzip()
    };
    Ok([all(&*splits.train), all(&*splits.val)])
}

fn golden() -> Value {
    serde_json::from_str(include_str!("../../../../../tests/golden/tables.json")).unwrap()
}

fn read<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap()
}

#[test]
fn columns_become_the_numbers_of_scikit_learn() {
    let golden = golden();
    let file = |key: &str| golden[key].as_str().unwrap();
    let (_dir, mut csv) = table(file("train_file"), file("val_file"), "price".into());
    for case in golden["encoded"].as_array().unwrap() {
        csv.features = Features {
            categorical: list(&["city", "floor"]),
            dates: "sold".into(),
            date_features: read(&case["date_features"]),
            cyclic_dates: read(&case["cyclic_dates"]),
            missing: read(&case["missing"]),
            missing_indicator: read(&case["missing_indicator"]),
            ..Features::default()
        };
        let (survey, samples) = opened(&csv, &REGRESSION).unwrap();
        let categories: Vec<Vec<String>> = read(&case["categories"]);
        assert_eq!(survey.one_hot, [categories[0].len(), categories[1].len()]);
        for (part, (found, _)) in ["train", "val"].iter().zip(&samples) {
            let expected: Vec<Vec<f64>> = read(&case[part]);
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(&expected) {
                let is_close = |(a, b): (&f32, &f64)| (f64::from(*a) - b).abs() < 1e-6;
                assert_eq!(found.len(), expected.len());
                assert!(found.iter().zip(expected).all(is_close), "{found:?}, {expected:?}");
            }
        }
        assert_eq!(
            survey.notes,
            [
                "1 of 3 validation rows has a `city` that no training row has, such as `Paris`: all \
                 its numbers are 0",
                "1 of 3 validation rows has a `floor` that no training row has, such as `7`: all its \
             numbers are 0",
            ]
        );
    }
}

#[test]
fn targets_are_standardised_as_scikit_learn_does() {
    let golden = golden();
    let file = |key: &str| golden[key].as_str().unwrap();
    let (_dir, mut csv) = table(file("train_file"), file("val_file"), "price".into());
    csv.ignore = ["city", "sold", "age", "area"].map(str::to_owned).to_vec();
    csv.standardize_target = true;
    let (survey, samples) = opened(&csv, &REGRESSION).unwrap();
    let scale: f64 = read(&golden["targets"]["scale"]);
    assert!((survey.target_columns[0].scale - scale).abs() < 1e-9);
    for (part, (_, targets)) in ["train", "val"].iter().zip(&samples) {
        let expected: Vec<f64> = read(&golden["targets"][part]);
        for (target, expected) in targets.iter().zip(expected) {
            let Target::Value(value) = target else { panic!("{target:?}") };
            assert!((f64::from(*value) - expected).abs() < 1e-6);
        }
    }
}

#[test]
fn several_columns_are_numbers_or_flags() {
    let train = "a,x,b\n1,0,1\n3,1,0\n5,1,1\n";
    let (_dir, csv) = table(train, "a,x,b\n1,1,0\n", list(&["b", "a"]));
    let (survey, [train, val]) = opened(&csv, &REGRESSION).unwrap();
    assert_eq!((survey.n_targets, survey.target.len(), survey.multi_label), (2, 0, false));
    let column = |name: &str| TargetColumn { name: name.to_owned(), scale: 1.0 };
    assert_eq!(survey.target_columns, ["b", "a"].map(column));
    assert_eq!(train.1[1], Target::Series(vec![0.0, 3.0]));
    assert_eq!(val.1, [Target::Series(vec![0.0, 1.0])]);
    let (_dir, csv) = table("a,x,b\n1,0,1\n0,1,0\n1,1,1\n", "a,x,b\n1,1,0\n", list(&["b", "a"]));
    let flags = SurveyRequest::new("x", 0, Targets::MultiLabel);
    let (survey, [train, _]) = opened(&csv, &flags).unwrap();
    assert!(survey.multi_label);
    assert_eq!(
        (survey.classes, survey.class_counts),
        (list(&["b", "a"]).names().to_vec(), vec![2, 2])
    );
    assert_eq!(train.1[0], Target::Series(vec![1.0, 1.0]));
    // One column is a class by itself.
    let one = Csv { target: "x".into(), ..csv.clone() };
    let (survey, [train, _]) = opened(&one, &flags).unwrap();
    assert_eq!((survey.classes, survey.n_targets), (vec!["x".to_owned()], 0));
    assert_eq!(train.1[0], Target::Series(vec![0.0]));
    // What the plan refuses with its caret.
    let survey = csv.survey(&SurveyRequest::new("x", 0, Targets::Classes)).unwrap();
    assert!(survey.multi_label && survey.classes.len() == 2);
}

#[test]
fn cells_that_need_a_word_of_the_user_are_answered_with_it() {
    #[track_caller]
    fn check(train: &str, change: fn(&mut Csv), what: &str, help: &str) {
        let (_dir, mut csv) = table(train, "a,b,y\n1,2,3\n", "y".into());
        change(&mut csv);
        let error = csv.survey(&REGRESSION).unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
        assert!(error.help().unwrap_or_default().contains(help), "{:?}", error.help());
    }
    let as_is = |_: &mut Csv| {};
    let categorical = "correct it, or list it in `data.missing_values`; if the column holds \
                       words, set `data.features.categorical = [\"a\"]`, or leave the column out \
                       with `data.ignore = [\"a\"]`";
    check("a,b,y\n1,2,3\nx,2,3\n", as_is, "train.csv`, line 3: `a` is `x`", categorical);
    check("a,b,y\n2024-01-31,2,3\n", as_is, "which is not a number", "features.dates = [\"a\"]");
    check("a,b,y\n1,,3\n", as_is, "line 2: `b` is empty", "features.missing = \"mean\"");
    check("a,b,y\n1,NA,3\n", as_is, "`b` is `NA`", "features.missing = \"mean\"");
    let dates = |csv: &mut Csv| csv.features.dates = "a".into();
    check("a,b,y\nsoon,2,3\n", dates, "`a` is `soon`, which is not a date", "");
    check("a,b,y\n,2,3\n", dates, "`a` is empty", "features.missing");
    let unknown = |csv: &mut Csv| {
        csv.features.categorical = "a".into();
        csv.features.handle_unknown = HandleUnknown::Error;
    };
    check("a,b,y\nx,2,3\n", unknown, "val.csv`, line 2: `a` is `1`", "handle_unknown");
    let absent = |csv: &mut Csv| csv.features.categorical = "city".into();
    check("a,b,y\nx,2,3\n", absent, "has no column `city`", "");
    let mean = |csv: &mut Csv| csv.features.missing = Some(Missing::Mean);
    check("a,b,y\n,2,3\n", mean, "column `a` is empty in all rows to train on", "");
}

#[test]
fn columns_of_words_are_inferred_on_request_and_reported() {
    let train = "city,age,sold,y\nRome,30,2024-01-01,1\n?,,2024-01-02,2\nBern,50,,3\n";
    let (_dir, mut csv) = table(train, "city,age,sold,y\nOslo,1,2024-05-01,1\n", "y".into());
    csv.features = Features {
        categorical: "auto".into(),
        dates: "sold".into(),
        missing: Some(Missing::Mean),
        ..Features::default()
    };
    csv.missing_values = serde_json::from_str(r#"["pandas", "?"]"#).unwrap();
    assert_eq!(csv.check(), []);
    let survey = csv.survey(&REGRESSION).unwrap();
    assert_eq!(
        survey.columns,
        [
            "`city`: 3 categories (Bern, Rome, empty)",
            "`age`: number, 1 empty = 40.0000",
            "`sold`: date as year, month (sine, cosine), day_of_week (sine, cosine), 1 empty = \
             means",
        ]
    );
    assert_eq!((survey.sample, survey.one_hot), (Some(vec![1 + 5 + 3]), vec![3]));
}

#[test]
fn the_rows_that_are_taken_set_the_scale_and_a_run_keeps_what_it_found() {
    let rows: Vec<String> = (0..20).map(|i| format!("{i},{}\n", i % 3)).collect();
    let (dir, csv) = table(&format!("a,y\n{}", rows.concat()), "a,y\n1,1\n", "y".into());
    let limited = SurveyRequest { limit: Limit::Samples(5), ..REGRESSION };
    let (whole, few) = (csv.survey(&REGRESSION).unwrap(), csv.survey(&limited).unwrap());
    assert_ne!(whole.found, few.found);
    let taken = crate::subset::taken((0..20).map(|_| 0), 0, 5);
    let mean = |found: &Options| {
        found["fit"]["features"][0]["encoding"]["number"]["scale"][0].as_f64().unwrap()
    };
    assert_eq!(mean(&whole.found), 9.5);
    assert_eq!(mean(&few.found), f64::from(taken.iter().sum::<u32>()) / 5.0);
    // A run of before this was kept went by all rows, and goes on so.
    let none = Options::new();
    let older = SurveyRequest { found: Some(&none), ..limited };
    assert_eq!(csv.survey(&older).unwrap().found, whole.found);
    // Rows may have changed since.
    let samples = reopened(&csv, &limited, &few.found).unwrap();
    crate::files::write_atomic(&dir.path().join("train.csv"), b"a,y\n0,1\n1000,2\n").unwrap();
    let resumed = SurveyRequest { found: Some(&few.found), ..limited };
    let (survey, again) = opened(&csv, &resumed).unwrap();
    assert_eq!(survey.found, few.found);
    assert_eq!(samples[1], again[1]);
}

#[test]
fn objects_have_words_dates_and_nulls_too() {
    let dir = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| {
        let path = dir.path().join(name);
        crate::files::write_atomic(&path, text.as_bytes()).unwrap();
        path
    };
    let train = r#"{"age": 30, "city": "Rome", "is_new": true, "sold": "2024-01-01", "y": 1}
{"age": null, "city": null, "sold": "2025-01-01", "y": 2}
{"city": "Bern", "is_new": false, "sold": "2026-01-01", "y": 2}"#;
    let val = r#"{"age": 40, "city": 7, "is_new": false, "sold": null, "y": 1}"#;
    let mut choice = Choice::named("jsonl");
    choice.set("train_file", put("train.jsonl", train));
    choice.set("val_file", put("val.jsonl", val));
    choice.set("inputs", ["age", "city", "is_new", "sold"]);
    choice.set("target", "y");
    let features = Features {
        categorical: "auto".into(),
        dates: "sold".into(),
        date_features: vec![DateFeature::Year],
        missing: Some(Missing::Median),
        ..Features::default()
    };
    choice.set("features", &features);
    let source = crate::DataSources::default().build(&choice).unwrap();
    let (survey, [train, val]) = opened(&*source, &REGRESSION).unwrap();
    assert_eq!(survey.one_hot, [3]);
    // The median of one age and of 1 and 0, and years of which the middle one is the mean.
    let is_new = 0.5f32 / (1.0f32 / 6.0).sqrt();
    assert_eq!(train.0[1], [0.0, 0.0, 0.0, 0.0, 0.0, 1.0]);
    for (found, expected) in [(train.0[0][1], is_new), (val.0[0][1], -is_new)] {
        assert!((found - expected).abs() < 1e-6, "{found}");
    }
    assert_eq!((val.0[0][0], &val.0[0][2..]), (10.0, &[0.0; 4][..]));
    assert!(Path::new(&survey.line.split(' ').next().unwrap()).ends_with("train.jsonl"));
}

/// A JSONL source with these lines, read as `change` asks.
fn lines(
    train: &str,
    val: &str,
    inputs: &[&str],
    change: impl Fn(&mut Choice),
) -> (tempfile::TempDir, Box<dyn DataSource>) {
    let dir = tempfile::tempdir().unwrap();
    let mut choice = Choice::named("jsonl");
    for (key, text) in [("train_file", train), ("val_file", val)] {
        let path = dir.path().join(format!("{key}.jsonl"));
        crate::files::write_atomic(&path, text.as_bytes()).unwrap();
        choice.set(key, path);
    }
    choice.set("inputs", inputs);
    choice.set("target", "y");
    change(&mut choice);
    let source = crate::DataSources::default().build(&choice).unwrap();
    (dir, source)
}

const CLASSES: SurveyRequest<'_> = SurveyRequest::new("x", 0, Targets::Classes);

#[test]
fn a_key_that_no_line_has_is_refused_and_one_that_some_lack_is_counted() {
    let fill = |choice: &mut Choice| {
        let features = Features { missing: Some(Missing::Mean), ..Features::default() };
        choice.set("features", &Features { categorical: "c".into(), ..features });
    };
    let train =
        "{\"a\": 1, \"c\": \"x\", \"y\": 1}\n{\"a\": 3, \"y\": 2}\n{\"c\": \"z\", \"y\": 2}\n";
    let renamed = "{\"A\": 1, \"c\": \"x\", \"y\": 1}\n{\"A\": 2, \"c\": \"x\", \"y\": 1}\n";
    let (_dir, source) = lines(train, renamed, &["a", "c"], fill);
    let error = source.survey(&REGRESSION).unwrap_err();
    assert_eq!(error.key(), Some("data.inputs[0]"));
    assert!(
        error.to_string().contains("val_file.jsonl` has no key `a`; its keys are `A`"),
        "{error}"
    );
    let (_dir, source) = lines(train, &train.replace(", \"c\": \"x\"", ""), &["a", "c"], fill);
    let notes = source.survey(&REGRESSION).unwrap().notes;
    assert!(
        notes[0].ends_with("train_file.jsonl`, keys are absent: `a` in 1, `c` in 1; read as empty"),
        "{notes:?}"
    );
    assert!(
        notes[1].ends_with("val_file.jsonl`, keys are absent: `a` in 1, `c` in 2; read as empty"),
        "{notes:?}"
    );
}

/// Reads `text` as `ddprun predict` does, with the survey results of the run.
fn asked_about(
    source: &dyn DataSource,
    found: &Options,
    name: &str,
    text: &str,
) -> Result<Inputs, Error> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    crate::files::write_atomic(&path, text.as_bytes()).unwrap();
    let (paths, transforms) = ([path], Transforms::empty());
    let csv = SourcePlan { survey: found.clone(), ..SourcePlan::new("csv", Modality::Table) };
    let plan = serde_json::from_value(json!({
        "source": csv, "n_train": 1, "n_val": 1, "classes": [],
        "split": { "val_fraction": null, "test_fraction": null, "folds": null, "fold": 0, "seed": 0 },
        "sampler": "shards", "shuffle": true, "drop_last": false, "num_workers": 0,
        "prefetch_factor": 1, "on_bad_sample": "error", "train_transforms": [],
        "val_transforms": [], "aug_repeats": 1, "max_bad_fraction": 0.1,
    }))
    .unwrap();
    source.inputs(&PredictionRequest { paths: &paths, plan: &plan, transforms: &transforms })
}

#[test]
fn inputs_without_answers_are_read_as_the_training_rows_were() {
    let fill = |choice: &mut Choice| {
        let features = Features { missing: Some(Missing::Mean), ..Features::default() };
        choice.set("features", &Features { categorical: "c".into(), ..features });
    };
    let train = "{\"a\": 1, \"c\": \"x\", \"y\": 1}\n{\"a\": 3, \"c\": \"z\", \"y\": 2}\n";
    let (_dir, source) = lines(train, train, &["a", "c"], fill);
    let found = source.survey(&REGRESSION).unwrap().found;
    let ask = |text: &str| asked_about(&*source, &found, "new.jsonl", text);
    let error = ask("{\"foo\": 1}\n").map(drop).unwrap_err();
    assert!(error.to_string().contains("it lacks the keys `a`, `c`, which the run"), "{error}");
    let error = ask("{\"a\": 1, \"C\": \"x\"}\n{\"a\": 2}\n").map(drop).unwrap_err();
    assert!(error.to_string().contains("lacks the key `c`") && error.help().is_some(), "{error}");
    let inputs =
        ask("{\"a\": 1, \"c\": \"q\"}\n{\"c\": \"x\"}\n{\"a\": NaN, \"c\": \"x\"}\n").unwrap();
    assert_eq!((inputs.samples.len(), inputs.notes.len()), (3, 2));
    assert!(inputs.notes[0].ends_with("keys are absent: `a` in 1; read as empty"));
    let unknown =
        "1 of 3 rows has a `c` that no training row has, such as `q`: all its numbers are 0";
    assert_eq!(inputs.notes[1], unknown);

    let (_dir, mut csv) = table("grade,a,y\n1,2,3\n2,3,4\n", "grade,a,y\n1,2,3\n", "y".into());
    csv.features.categorical = "grade".into();
    let found = csv.survey(&REGRESSION).unwrap().found;
    let inputs = asked_about(&csv, &found, "new.csv", "a,grade\n1,1.0\n2,2.0\n3,\n").unwrap();
    assert_eq!(
        inputs.notes,
        ["3 of 3 rows have a `grade` that no training row has, such as `1.0` (training rows have \
             `1`): all its numbers are 0"]
    );
    let error = asked_about(&csv, &found, "new.csv", "a,grade,a\n1,1,2\n").map(drop).unwrap_err();
    assert!(error.to_string().ends_with("line 1: columns 1 and 3 are both called `a`"), "{error}");
}

#[test]
fn cells_that_are_filled_in_where_none_or_all_were_empty_are_counted() {
    let train = "a,b,c,y\n1,5,x,7\n2,,z,4\n3,6,,9\n";
    let (_dir, mut csv) = table(train, "a,b,c,y\n1,,x,1\n,,,2\n", "y".into());
    csv.features = Features { missing: Some(Missing::Mean), ..Features::default() };
    csv.features.categorical = "c".into();
    let survey = csv.survey(&REGRESSION).unwrap();
    let expected = "val.csv`: empty cells are filled in as the training rows say: `a` in 1 of 2 \
                    rows, `b` in all 2 rows";
    assert!(survey.notes.iter().any(|note| note.ends_with(expected)), "{:?}", survey.notes);
    let asked = |text: &str| asked_about(&csv, &survey.found, "new.csv", text).unwrap().notes;
    let expected = "new.csv`: empty cells are filled in as the training rows say: `b` in all 2 rows, \
                    `c` in all 2 rows";
    assert!(asked("a,b,c\n1,,\n2,,\n")[0].ends_with(expected));
    assert!(asked("a,b,c\n,3,x\n")[0].ends_with("`a` in 1 of 1 row"));
    assert_eq!(asked("a,b,c\n1,,\n2,3,x\n"), [""; 0]);
}

#[test]
fn another_program_gets_all_that_makes_the_numbers_of_a_row() {
    let train = "d,b,y\n31/01/2024,True,7\n15/02/2024,False,4\n16/02/2024,1,9\n";
    let (_dir, mut csv) = table(train, train, "y".into());
    csv.features.dates = "d".into();
    csv.features.date_features = vec![DateFeature::Year, DateFeature::Month];
    csv.standardize_target = true;
    let found = csv.survey(&REGRESSION).unwrap().found;
    let told = csv.preprocessing(&found).unwrap();
    let date = &told["fit"]["features"][0]["encoding"]["date"];
    assert_eq!((&date["format"], &date["whole_cell"]), (&json!("%d/%m/%Y"), &json!(false)));
    let [year, sine, cosine] = [0, 1, 2].map(|at| &date["numbers"][at]);
    assert_eq!((&year["of"], &year["scale"]), (&json!("year"), &json!([2024.0, 1.0])));
    assert_eq!((&sine["wave"], &cosine["wave"]), (&json!("sine"), &json!("cosine")));
    assert_eq!((&sine["minus"], &sine["period"]), (&json!(1.0), &json!(12.0)));
    assert_eq!(
        (&told["truth_values"]["TRUE"], &told["handle_unknown"]),
        (&json!(1), &json!("ignore"))
    );
    let [(mean, _)] = csv.target_scales(&found)[..] else { panic!("one target") };
    assert!((mean - 20.0 / 3.0).abs() < 1e-12);
}

#[test]
fn truth_values_and_numbers_are_classes_and_features_in_any_spelling() {
    let train = "a,b,y\n1,True,1.0\n0,false,2\n1,TRUE,1\n";
    let (_dir, csv) = table(train, "a,b,y\n1,False,2.0\n", "y".into());
    let (survey, [train, val]) = opened(&csv, &CLASSES).unwrap();
    assert_eq!(survey.classes, ["1", "2"]);
    assert_eq!(train.1, [0, 1, 0].map(Target::Class));
    assert_eq!((train.0[0].len(), train.0[0][1] > 0.0, val.0[0][1] < 0.0), (2, true, true));
    assert_eq!(val.1, [Target::Class(1)]);
    let (_dir, csv) = table("a,y\n1,True\n2,False\n3,true\n", "a,y\n1,FALSE\n", "y".into());
    let (survey, [train, val]) = opened(&csv, &CLASSES).unwrap();
    assert_eq!(
        (survey.classes.join(" "), &val.1[..]),
        ("False True".to_owned(), &[Target::Class(0)][..])
    );
    assert_eq!(train.1, [1, 0, 1].map(Target::Class));
    let mixed = "a,y\n1,True\n2,False\n3,1\n4,0\n5,1\n";
    let (_dir, csv) = table(mixed, mixed, "y".into());
    let notes = csv.survey(&CLASSES).unwrap().notes;
    assert!(notes[0].starts_with("`y` has the classes `False` and `0`: truth values"), "{notes:?}");
    let (_dir, csv) = table("a,u,v\n1,True,0\n2,False,1\n", "a,u,v\n1,1,True\n", list(&["u", "v"]));
    let (_, [_, val]) = opened(&csv, &SurveyRequest::new("x", 0, Targets::MultiLabel)).unwrap();
    assert_eq!(val.1, [Target::Series(vec![1.0, 1.0])]);
    let train = "{\"a\": true, \"y\": true}\n{\"a\": false, \"y\": false}\n";
    let (_dir, source) = lines(train, train, &["a"], |_| {});
    let (survey, [train, _]) = opened(&*source, &CLASSES).unwrap();
    assert_eq!((survey.classes.join(" "), &train.0[0][..]), ("false true".to_owned(), &[1.0][..]));
    let train = "{\"a\": 1, \"y\": 1.0}\n{\"a\": 2, \"y\": \"2\"}\n{\"a\": 2, \"y\": 2}\n";
    let (_dir, source) = lines(train, train, &["a"], |_| {});
    assert_eq!(source.survey(&CLASSES).unwrap().classes, ["1", "2"]);
}

#[test]
fn rows_without_a_target_are_refused_or_left_out_and_counted() {
    let train = "a,y\n1,x\n2,NA\n3,\n4,z\n";
    let (_dir, mut csv) = table(train, "a,y\n1,x\n2,n/a\n", "y".into());
    let error = csv.survey(&CLASSES).unwrap_err();
    assert!(error.to_string().ends_with("line 3: `y` is `NA`, which counts as empty"), "{error}");
    assert!(error.help().unwrap().contains("drop_unlabelled"));
    csv.drop_unlabelled = true;
    let (survey, [train, _]) = opened(&csv, &CLASSES).unwrap();
    assert_eq!((survey.classes.join(" "), survey.n_train, survey.n_val), ("x z".to_owned(), 2, 1));
    assert_eq!(train.1, [0, 1].map(Target::Class));
    assert!(survey.notes[0].starts_with("2 of 4 rows of `"), "{:?}", survey.notes);
    assert!(
        survey.notes[1].ends_with("val.csv` have no `y` and are left out"),
        "{:?}",
        survey.notes
    );
    csv.missing_values = serde_json::from_str("[]").unwrap();
    let error = csv.survey(&CLASSES).unwrap_err().to_string();
    assert!(error.starts_with("`y` has 3 distinct values in the 3 rows"), "{error}");
    let drop = |choice: &mut Choice| choice.set("drop_unlabelled", true);
    let train =
        "{\"a\": 1}\n{\"a\": 2, \"y\": null}\n{\"a\": 3, \"y\": NaN}\n{\"a\": 4, \"y\": 5}\n";
    let (_dir, source) = lines(train, train, &["a"], drop);
    let survey = source.survey(&REGRESSION).unwrap();
    assert_eq!((survey.n_train, survey.n_val), (1, 1));
    let (_dir, source) = lines("{\"a\": 1}\n", train, &["a"], drop);
    let error = source.survey(&REGRESSION).unwrap_err().to_string();
    assert!(error.ends_with("none of its 1 rows has a `y`"), "{error}");
    let (_dir, source) = lines(&train[9..], train, &["a"], |_| {});
    let error = source.survey(&REGRESSION).unwrap_err().to_string();
    assert!(error.ends_with("line 1: `y` is null, which counts as empty"), "{error}");
}

#[test]
fn a_feature_that_is_the_target_and_a_target_that_never_changes_are_noted() {
    let notes = |rows: &dyn Fn(usize) -> String, request: &SurveyRequest<'_>| {
        let rows: String = (0..12).map(rows).collect();
        let (_dir, csv) = table(&format!("a,b,y\n{rows}"), &format!("a,b,y\n{rows}"), "y".into());
        let notes = csv.survey(request).unwrap().notes;
        notes.join("; ")
    };
    let copy = |i: usize| format!("{i},{},{i}.0\n", i % 5);
    assert!(
        notes(&copy, &REGRESSION).starts_with("the feature `a` equals the target `y` in all 12")
    );
    let code = |i: usize| format!("{i},{},{}\n", 7 - i % 3, ["x", "y", "z"][i % 3]);
    let found = notes(&code, &CLASSES);
    assert!(found.starts_with("the feature `b` equals the target `y`, or names it"), "{found}");
    let nearly = |i: usize| format!("{i},{},{}\n", i % 3 + i / 11, ["x", "y", "z"][i % 3]);
    assert_eq!(notes(&nearly, &CLASSES), "");
    let constant = |i: usize| format!("{i},3,3\n");
    assert!(
        notes(&constant, &REGRESSION).starts_with("the target `y` is 3 in all 12 training rows: ")
    );
}

#[test]
fn a_list_of_words_is_declared_by_its_key() {
    let train = "{\"b\": [\"x\", \"z\"], \"y\": 1}\n{\"b\": [\"z\", \"z\"], \"y\": 2}\n";
    let (_dir, source) = lines(train, train, &["b"], |_| {});
    let error = source.survey(&REGRESSION).unwrap_err();
    assert!(
        error.to_string().ends_with("line 1: `b[0]` is \"x\", which is not a number"),
        "{error}"
    );
    let help = error.help().unwrap();
    assert!(help.contains("data.features.categorical = [\"b\"]"), "{help}");
    for word in ["auto", "b"] {
        let (_dir, source) = lines(train, train, &["b"], |choice| {
            choice.set("features", &Features { categorical: word.into(), ..Features::default() });
        });
        let (survey, [samples, _]) = opened(&*source, &REGRESSION).unwrap();
        assert_eq!((survey.one_hot, &samples.0[0][..]), (vec![2, 1], &[1.0, 0.0, 1.0][..]));
    }
}

#[test]
fn bytes_that_are_no_text_are_named_with_their_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("train.csv");
    let bytes = b"a,y\r\n1,1\r\n1,\xff\r\n";
    crate::files::write_atomic(&path, bytes).unwrap();
    let error = csv::open(&path, &path, "y", Targets::Numbers).err().unwrap().to_string();
    assert!(error.ends_with("train.csv`, line 3: cell 2 is not UTF-8 text"), "{error}");
}

#[test]
fn a_tsv_is_separated_by_tabs() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.tsv");
    crate::files::write_atomic(&path, b"a\ty\n1,5\t2\n2\t3\n").unwrap();
    let error = csv::open(&path, &path, "y", Targets::Numbers).err().unwrap();
    assert!(error.to_string().contains("`a` is `1,5`"), "{error}");
}

#[test]
fn dates_are_read_in_the_format_of_all_rows_and_later_rows_in_that_of_the_run() {
    let train = "sold,y\n01/02/2024,1\n31/01/2024,2\n15/03/2024,3\n";
    let (dir, mut csv) = table(train, "sold,y\n02/03/2024,3\n", "y".into());
    csv.features.dates = "sold".into();
    csv.features.date_features = vec![DateFeature::Month];
    csv.features.cyclic_dates = false;
    let (survey, [train, val]) = opened(&csv, &REGRESSION).unwrap();
    // February, January and March; the row to validate on is of March.
    assert_eq!((train.0[0][0], train.0[1][0] < 0.0), (0.0, true));
    assert_eq!(val.0[0], train.0[2]);
    // As on its own it would be refused.
    let rules = csv.rules();
    let mut rows = unlabelled_rows::UnlabelledRows::new(&survey.found, rules).unwrap();
    rows.push(&Path::new("new.csv").into(), 1, |columns| columns[0].push("02/03/2024", rules));
    let inputs = rows.inputs(&csv.target).unwrap();
    let mut values = Vec::new();
    inputs.samples.load(0, None, &mut values).unwrap();
    assert_eq!(values, train.0[2]);
    let ambiguous = dir.path().join("ambiguous.csv");
    crate::files::write_atomic(&ambiguous, b"sold,y\n01/02/2024,1\n02/01/2024,2\n").unwrap();
    (csv.train_file, csv.val_file) = (ambiguous.clone(), Some(ambiguous));
    let error = csv.survey(&REGRESSION).unwrap_err();
    assert!(error.to_string().contains("line 2: `sold` is `01/02/2024`, which may be"), "{error}");
    for format in [r#""%m/%d/%Y""#, r#"{"sold":"%m/%d/%Y"}"#] {
        csv.date_format = serde_json::from_str(format).unwrap();
        assert_eq!(
            (csv.check(), serde_json::to_string(&csv.date_format).unwrap()),
            (vec![], format.to_owned())
        );
        let (_, [train, _]) = opened(&csv, &REGRESSION).unwrap();
        assert!(train.0[0][0] < train.0[1][0], "January, then February");
    }
    for wrong in [r#""%H""#, r#"{"built":"%Y"}"#, r#"{"sold":"%H"}"#] {
        csv.date_format = serde_json::from_str(wrong).unwrap();
        assert_eq!(csv.check()[0].key, "date_format", "{wrong}");
    }
}

#[test]
fn rows_in_the_order_of_time_that_are_held_out_at_random_are_warned_of() {
    let notes = |order: fn(usize) -> usize, split: SplitPlan| {
        let row = |i| format!("2024-01-{:02},{i}\n", order(i) + 1);
        let text = "sold,y\n".to_owned() + &(0..20).map(row).collect::<String>();
        let (_dir, mut csv) = table(&text, "sold,y\n2024-02-01,1\n", "y".into());
        csv.features.dates = "sold".into();
        csv.val_file = csv.val_file.filter(|_| split == SplitPlan::NONE);
        csv.survey(&SurveyRequest { split, ..REGRESSION }).unwrap().notes
    };
    let split = SplitPlan { val_fraction: Some(0.2), ..SplitPlan::NONE };
    let found = notes(|i| i, split);
    assert!(found.len() == 1 && found[0].contains("in the order of `sold`"), "{found:?}");
    assert_eq!(notes(|i| 7 * i % 20, split), [""; 0]);
    assert_eq!(notes(|i| i, SplitPlan::NONE), [""; 0]);
    // One series below the other, newest first, several rows of a date.
    let panels: [fn(usize) -> usize; 3] = [|i| i % 5, |i| 9 - i % 10, |i| i / 4];
    for panel in panels {
        let found = notes(panel, split);
        let is_said = found.len() == 1 && found[0].contains("`sold` (dates recur), but");
        assert!(is_said, "{found:?}");
    }
    assert_eq!(notes(|i| 7 * i % 20 / 4, split), [""; 0], "mixed");
}
