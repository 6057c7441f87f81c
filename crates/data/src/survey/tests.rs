//! Tests from the choice of a data set to its batches.

use crate::user_error::UserError;
use std::path::{Path, PathBuf};

use super::*;
use crate::config::kind::Kind;
use crate::config::values::Shape2;
use crate::pipeline::loader::{Loader, Request, Settings};
use crate::plan::{OnBadSample, Sampler, SplitPlan, Targets};
use crate::transform::{CenterCrop, Normalize, PaddingMode, RandomCrop, Resize};
use crate::{Csv, ImageFolder, Mnist, Shapes};

const ASKED: SurveyRequest<'_> = SurveyRequest::new("x", 1, Targets::Classes);

fn plan(facts: DataFacts, transforms: Vec<Choice>) -> DataPlan {
    DataPlan {
        source: facts.source,
        n_train: facts.n_train,
        n_val: facts.n_val,
        n_test: facts.n_test,
        notes: facts.notes,
        classes: facts.classes,
        target_columns: Vec::new(),
        token_bytes: Vec::new(),
        split: SplitPlan::NONE,
        aug_repeats: 1,
        class_weights: Vec::new(),
        subset_of: None,
        sampler: Sampler::Shards,
        shuffle: true,
        drop_last: true,
        num_workers: 2,
        prefetch_factor: 2,
        on_bad_sample: OnBadSample::Error,
        max_bad_fraction: 0.1,
        train_transforms: transforms.clone(),
        val_transforms: transforms,
        mixup: None,
        pad_to_longest: false,
    }
}

fn shapes(dir: &Path) -> Shapes {
    let dir = Some(dir.to_owned());
    Shapes { dir, classes: 3, train_per_class: 4, val_per_class: 2, image_size: 16 }
}

/// The folder of the generated set.
fn set(facts: &DataFacts) -> PathBuf {
    facts.source.survey["folder"].as_str().unwrap().into()
}

fn counted<K: Kind>(data: &K) -> Result<DataFacts, Error> {
    survey(&DataSources::default(), &Choice::of(data), &ASKED)
}

fn generated(data: &Shapes) -> DataFacts {
    let planned = counted(data).unwrap();
    data.generate(&ASKED, &|_| {}).unwrap();
    let found = counted(data).unwrap();
    assert_eq!(found, planned, "what was counted before is what is there");
    found
}

fn opened(plan: &DataPlan) -> Result<Splits, Error> {
    open(
        DataSources::default().build(&plan.source.kind)?.as_ref(),
        plan,
        &ASKED,
        &Transforms::default(),
    )
}

#[test]
fn shapes_go_all_the_way_from_survey_to_batches() {
    let root = tempfile::tempdir().unwrap();
    let facts = generated(&shapes(&root.path().join("shapes")));
    assert_eq!((facts.n_train, facts.n_val, facts.classes.len()), (12, 6, 3));
    let transforms = vec![
        Choice::of(&RandomCrop {
            size: Shape2::Side(16),
            padding: 2,
            padding_mode: PaddingMode::Constant,
        }),
        Choice::of(&Normalize::new(&[0.5], &[0.5])),
    ];
    let plan = plan(facts, transforms);
    let splits = opened(&plan).unwrap();
    let request = Request { samples: vec![0, 11, 4], epoch: Some(0), ..Request::default() };
    let settings = Settings::new(&plan, 1);
    let mut loader = Loader::start(splits.train, std::iter::once(request), settings).unwrap();
    let batch = loader.next().unwrap().unwrap().batch;
    assert_eq!(batch.inputs.dims(), [3, 3, 16, 16]);
    assert_eq!(batch.targets.to_vec1::<u32>().unwrap(), [0, 2, 1]);
    let values: Vec<f32> = batch.inputs.flatten_all().unwrap().to_vec1().unwrap();
    assert!(values.iter().all(|value| (-1.0..=1.0).contains(value)));
    assert!(loader.next().is_none());
}

#[test]
fn data_that_changed_since_the_plan_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("shapes");
    let shapes = shapes(&dir);
    let facts = generated(&shapes);
    let set = set(&facts);
    let resize = vec![Choice::of(&Resize::to(Shape2::Both([8, 8])))];
    let plan = plan(facts, resize);
    std::fs::remove_file(set.join("train/red_circle/0000.png")).unwrap();
    let Err(error) = opened(&plan) else { panic!("opened") };
    assert_eq!(
        error.to_string(),
        "the data changed since the run was planned:\n  train: 11 samples, was 12"
    );
}

#[test]
fn a_truncated_or_empty_image_is_named_when_it_is_loaded() {
    let root = tempfile::tempdir().unwrap();
    let shapes = shapes(&root.path().join("shapes"));
    let facts = generated(&shapes);
    let dir = set(&facts);
    let plan = plan(facts, vec![Choice::of(&CenterCrop { size: Shape2::Side(8) })]);
    let cut = |name: &str, length| {
        let file = std::fs::File::options().write(true).open(dir.join(name)).unwrap();
        file.set_len(length).unwrap();
    };
    cut("train/blue_circle/0000.png", 0);
    cut("train/blue_circle/0001.jpg", 300);
    let train = opened(&plan).unwrap().train;
    let mut values = vec![0.0; 3 * 8 * 8];
    let mut message = |i| train.load(i, None, &mut values).unwrap_err().to_string();
    let (empty, truncated) = (message(0), message(1));
    assert!(empty.contains("0000.png") && empty.contains("the file is empty"), "{empty}");
    assert!(truncated.contains("0001.jpg") && truncated.contains("truncated"), "{truncated}");
}

#[test]
fn missing_files_and_folders_are_named_with_a_remedy() {
    #[track_caller]
    fn check(error: &Error, message: &str, help: &str) {
        assert!(error.to_string().contains(message), "{error}");
        assert!(error.help().unwrap().contains(help), "{error:?}");
    }
    let absent = || PathBuf::from("/absent/data");
    let folders = ImageFolder::new(absent(), absent());
    check(
        &counted(&folders).unwrap_err(),
        "the training folder `/absent/data` does not exist",
        "one folder per class",
    );
    check(
        &counted(&Mnist { dir: absent() }).unwrap_err(),
        "the folder of idx files `/absent/data`",
        "train-images-idx3-ubyte",
    );
    let table = Csv::new(absent(), absent(), "y");
    check(&counted(&table).unwrap_err(), "the training table `/absent/data`", "header line");
}

#[test]
fn a_part_that_is_the_training_data_or_a_copy_is_noted() {
    let dir = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &[u8]| {
        let path = dir.path().join(name);
        crate::files::write_atomic(&path, text).unwrap();
        path
    };
    let (rows, others) = (b"a,y\n1,0\n2,1\n", b"a,y\n1,1\n2,1\n");
    let train = put("train.csv", rows);
    let notes = |val: PathBuf| trained_on(&Choice::of(&Csv::new(train.clone(), val, "y")));
    assert!(notes(put("val.csv", others)).is_empty());
    let same = notes(dir.path().join("./train.csv"));
    let say = "its metrics say nothing about new data";
    assert_eq!(same, [format!("`data.val_file` is `data.train_file`: {say}")]);
    let copy = notes(put("copy.csv", rows));
    assert!(copy.len() == 1 && copy[0].contains("copy.csv` is a copy of `"), "{copy:?}");
    for folder in ["train", "val"] {
        std::fs::create_dir_all(dir.path().join(folder)).unwrap();
    }
    let [train, val] = ["train", "val/../train"].map(|name| dir.path().join(name));
    let notes = trained_on(&Choice::of(&ImageFolder::new(train.clone(), val)));
    assert_eq!(notes, [format!("`data.val_dir` is `data.train_dir`: {say}")]);
    let folder = ImageFolder::new(train, dir.path().join("val"));
    assert!(trained_on(&Choice::of(&folder)).is_empty());
}

#[test]
fn classes_that_differ_only_in_how_they_are_written_are_noted() {
    let note = |classes: &[&str]| {
        let classes: Vec<String> = classes.iter().map(|&class| class.to_owned()).collect();
        alike(&classes).unwrap_or_default()
    };
    let species = note(&["SETOSA", "Setosa", "setosa", "virginica"]);
    assert!(species.starts_with("the classes `SETOSA`, `Setosa`, `setosa` may be"), "{species}");
    assert!(note(&["New York", "new_york"]).contains("`New York`, `new_york`"));
    assert!(note(&["0", "1", "False", "True"]).contains("`0`, `False`"));
    for own in [&["a", "A"][..], &["0", "1"], &["no", "yes"], &["C", "C#"], &["left", "right"]] {
        assert_eq!(note(own), "", "{own:?}");
    }
}
