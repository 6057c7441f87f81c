use crate::user_error::UserError;
use std::io::Write;

use super::*;
use crate::plan::SplitPlan;
use crate::{Dataset, Target};

/// Targets of the loss.
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
    let request = SurveyRequest { split, ..SurveyRequest::new("", 0, Targets::Classes) };
    csv.read(&request).map(|opened| opened.splits)
}

#[test]
fn rows_of_one_table_are_held_back_and_the_rest_sets_the_scale() {
    let split = SplitPlan { val_fraction: Some(0.2), test_fraction: Some(0.1), ..SplitPlan::NONE };
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
        "write the column names into the first line",
    );
    check("1,2\n2,3\n", false, "has no column `y`", "write the column names into the first line");
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
