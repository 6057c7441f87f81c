//! Tables that list images.

use super::*;
use crate::Transforms;
use crate::config::kind::Choice;
use crate::config::values::Shape2;
use crate::plan::Targets;
use crate::transform::Resize;

const ASKED: SurveyRequest<'_> = SurveyRequest::new("x", 0, Targets::Numbers);

fn folder(table: &str) -> (tempfile::TempDir, ImageTable) {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a.ppm", "b.ppm"] {
        let bytes = [b"P6 2 2 255 ".as_slice(), &[7; 12]].concat();
        crate::files::write_atomic(&dir.path().join(name), &bytes).unwrap();
    }
    let path = dir.path().join("t.csv");
    crate::files::write_atomic(&path, table.as_bytes()).unwrap();
    let data = ImageTable {
        train_file: path.clone(),
        val_file: Some(path),
        test_file: None,
        group: None,
        image_dir: None,
        image_column: image(),
        class_column: None,
        class_columns: vec!["dog".to_owned(), "cat".to_owned()],
        target_columns: vec![],
        missing_values: MissingValues::default(),
        drop_unlabelled: false,
        pixel_dtype: PixelDtype::Uint8,
        exif: Exif::Ignore,
    };
    (dir, data)
}

#[test]
fn images_have_the_classes_that_their_rows_name() {
    let (_dir, data) = folder("image,cat,dog,note\na.ppm,1,0,x\nb.ppm,1,1,y\n");
    let found = data.survey(&ASKED).unwrap();
    assert_eq!((found.n_train, found.multi_label), (2, true));
    assert_eq!((found.classes, found.class_counts), (data.class_columns.clone(), vec![1, 2]));
    let list = [Choice::of(&Resize::to(Shape2::Both([2, 2])))];
    let reading = OpenRequest {
        survey: &ASKED,
        found: &Options::new(),
        train_transforms: &list,
        val_transforms: &list,
        transforms: &Transforms::default(),
    };
    let splits = data.open(&reading).unwrap();
    let target = splits.train.load(0, None, &mut Vec::new()).unwrap();
    assert_eq!(target, Target::Series(vec![0.0, 1.0]));
    assert!(splits.val.name(1).ends_with("b.ppm`"));
}

#[test]
fn an_image_has_the_class_that_its_row_names_in_any_spelling() {
    let opened = |table: &str, change: fn(&mut ImageTable)| {
        let (_dir, mut data) = folder(table);
        data.class_columns = Vec::new();
        (data.class_column, data.image_column) = (Some("label".to_owned()), "file".to_owned());
        change(&mut data);
        assert_eq!(data.check(), []);
        let list = [Choice::of(&Resize::to(Shape2::Both([2, 2])))];
        let request = SurveyRequest::new("x", 0, Targets::Classes);
        let reading = OpenRequest {
            survey: &request,
            found: &Options::new(),
            train_transforms: &list,
            val_transforms: &list,
            transforms: &Transforms::default(),
        };
        let survey = data.survey(&request).map_err(|error| error.to_string())?;
        let splits = data.open(&reading).map_err(|error| error.to_string())?;
        assert_eq!((splits.train.len(), &splits.classes), (survey.n_train, &survey.classes));
        let n = splits.train.len();
        assert!(splits.train.classifies() && !survey.multi_label);
        let load = |index| splits.train.load(index, None, &mut Vec::new()).unwrap();
        let labels = (0..n).map(load).map(|target| match target {
            Target::Class(label) => label,
            other => panic!("{other:?}"),
        });
        Ok::<_, String>((
            survey.classes,
            survey.class_counts,
            labels.collect::<Vec<_>>(),
            survey.notes,
        ))
    };
    let rows = "file,label\na.ppm,10\nb.ppm,2\na.ppm,2.0\nb.ppm,10\n";
    let (classes, counts, labels, notes) = opened(rows, |_| {}).unwrap();
    assert_eq!(
        (classes.join(" "), counts, labels),
        ("2 10".to_owned(), vec![2, 2], vec![1, 0, 0, 1])
    );
    assert_eq!(notes, Vec::<String>::new());
    let rows = "file,label\na.ppm,True\nb.ppm,False\na.ppm,true\n";
    let (classes, _, labels, _) = opened(rows, |_| {}).unwrap();
    assert_eq!((classes.join(" "), labels), ("False True".to_owned(), vec![1, 0, 1]));
    let rows = "file,label\na.ppm,dog\nb.ppm,NA\nb.ppm,cat\n";
    let error = opened(rows, |_| {}).unwrap_err();
    assert!(error.ends_with("line 3: `label` is `NA`, which counts as empty"), "{error}");
    let (classes, _, labels, notes) = opened(rows, |data| data.drop_unlabelled = true).unwrap();
    assert_eq!((classes.join(" "), labels), ("cat dog".to_owned(), vec![1, 0]));
    assert!(notes[0].starts_with("1 of 3 rows of `"), "{notes:?}");
    let (classes, ..) = opened(rows, |data| {
        data.missing_values = serde_json::from_str("[]").unwrap();
    })
    .unwrap();
    assert_eq!(classes.join(" "), "NA cat dog");
    let error = opened("file,label,label\na.ppm,1,2\n", |_| {}).unwrap_err();
    assert!(error.contains("columns 2 and 3 are both called `label`"), "{error}");
}

#[test]
fn a_class_that_is_only_validated_on_is_refused_with_its_line() {
    let (dir, mut data) = folder("image,label\na.ppm,dog\n");
    (data.class_columns, data.class_column) = (Vec::new(), Some("label".to_owned()));
    let val = dir.path().join("val.csv");
    crate::files::write_atomic(&val, b"image,label\na.ppm,dog\nb.ppm,cat\n").unwrap();
    data.val_file = Some(val);
    let error = data.survey(&SurveyRequest::new("x", 0, Targets::Classes)).unwrap_err().to_string();
    assert!(error.ends_with("val.csv`, line 3: class `cat` has no training rows"), "{error}");
}

#[test]
fn images_of_a_group_are_held_back_together() {
    let (_dir, mut data) = folder(
        "image,cat,dog,of\na.ppm,1,0,x\nb.ppm,1,1,y\na.ppm,0,0,x\nb.ppm,0,1,z\na.ppm,1,0,z\n",
    );
    (data.val_file, data.group) = (None, Some("of".to_owned()));
    let split = SplitPlan { folds: Some(3), fold: 2, ..SplitPlan::NONE };
    let Parts { train, val, test } = data.parts(&split).unwrap();
    assert!(test.is_none());
    assert_eq!(train.files.len() + val.files.len(), 5);
    assert_eq!(
        [val.answers.len(), train.answers.len()],
        [2 * val.files.len(), 2 * train.files.len()]
    );
    let found = data.survey(&SurveyRequest { split, ..ASKED }).unwrap();
    assert_eq!((found.n_train, found.n_val), (train.files.len(), val.files.len()));
    data.group = Some("patient".to_owned());
    let error = data.parts(&split).err().unwrap().to_string();
    assert!(error.contains("has no column `patient`"), "{error}");
}

#[test]
fn an_image_that_names_no_group_is_refused() {
    let check = |row: &str, expected: &str| {
        let table = format!("image,cat,dog,of\na.ppm,1,0,x\n{row}\nb.ppm,1,1,y\n");
        let (_dir, mut data) = folder(&table);
        (data.val_file, data.group) = (None, Some("of".to_owned()));
        let split = SplitPlan { folds: Some(2), ..SplitPlan::NONE };
        let error = data.parts(&split).err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    };
    check("b.ppm,1,1", "line 3: 3 cells, but the header has 4");
    check("b.ppm,1,1,", "line 3: `of` is empty");
}

#[test]
fn what_cannot_be_used_is_named_with_its_line() {
    let check = |table: &str, expected: &str| {
        let error = folder(table).1.survey(&ASKED).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    check("image,cat,dog\na.ppm,1,0\nc.ppm,1,1\n", "line 3: there is no file");
    check("image,cat,dog\na.ppm,1,2\n", "line 2: `dog` is `2`, which is neither 0 nor 1");
    check("image,cat,dog\na.ppm,1,\n", "line 2: `dog` is empty");
    check("image,cat,dog\na.ppm,1\n", "line 2: 2 cells, but the header has 3");
    check("image,cat,dog\na.ppm,0,1,0\n", "line 2: 4 cells, but the header has 3");
    check("image,cat,dog\n", "no rows");
    check("image,cat\na.ppm,1\n", "has no column `dog`");
    check("file,cat,dog\na.ppm,1,0\n", "has no column `image`");
    let data = folder("").1;
    let wrong = |data: ImageTable| data.check()[0].what.clone();
    assert!(wrong(ImageTable { class_columns: vec![], ..data.clone() }).contains("needs one of"));
    let twice = vec!["cat".to_owned(), "cat".to_owned()];
    assert_eq!(wrong(ImageTable { class_columns: twice, ..data.clone() }), "names `cat` twice");
    let file = ImageTable { image_column: "cat".to_owned(), ..data };
    assert!(wrong(file).contains("which is the column of the files"));
}
