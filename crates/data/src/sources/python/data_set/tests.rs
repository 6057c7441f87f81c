use std::process::{Command, Stdio};

use test_support::assert_refused;

use super::*;
use crate::Target;
use crate::plan::{Limit, SplitPlan};
use crate::skipped::skipped;
use crate::transform::Transforms;

const CODE: &str = r#"
import array
import random


class Noise:
    def __init__(self, n, classes=3, width=2):
        self.n, self.classes, self.width = n, classes, width

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return [random.random() for _ in range(self.width)], index % 3


class Labels(Noise):
    def __getitem__(self, index):
        return array.array("f", [index]), [index % 2, 1, 0]


class Tall(Noise):
    def __getitem__(self, index):
        return (bytes(8 * 9 * 3), (8, 9, 3)), float(index)


class Deep(Noise):
    def __getitem__(self, index):
        return [[[[1.0]]]], 1


class Flat(Noise):
    def __getitem__(self, index):
        return 3.0, 1


class Negative(Noise):
    targets = [0, 1, 2, -1]


class Square(Noise):
    def __getitem__(self, index):
        return [1.0], [[1.0]]
"#;

/// A data set of `object` in the code above; `None` without Python, which is noted.
fn data(object: &str, n: u32) -> Option<(tempfile::TempDir, PythonData)> {
    let python = Command::new(PYTHON).args(["-c", ""]).stderr(Stdio::null()).status();
    if !python.is_ok_and(|status| status.success()) {
        skipped("python3");
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("code.py");
    crate::files::write_atomic(&file, CODE.as_bytes()).unwrap();
    let data = PythonData {
        file,
        object: object.to_owned(),
        options: [("n".to_owned(), n.into())].into(),
        val_object: None,
        val_options: Some([("n".to_owned(), 4.into())].into()),
        test_object: None,
        test_options: None,
        python: None,
        timeout: one_minute(),
    };
    Some((folder, data))
}

fn survey_for(targets: Targets) -> SurveyRequest<'static> {
    SurveyRequest { limit: Limit::All, ..SurveyRequest::new("x", 3, targets) }
}

fn opened(data: &PythonData, request: &SurveyRequest<'_>, found: &Options) -> Splits {
    let transforms = &Transforms::empty();
    let (train_transforms, val_transforms) = (&[][..], &[][..]);
    let survey = request;
    data.open(&OpenRequest { survey, found, train_transforms, val_transforms, transforms }).unwrap()
}

fn key(index: usize, epoch: u64) -> Key {
    Key::new(3, Purpose::Augment, epoch, index as u64)
}

#[test]
fn samples_are_the_same_from_any_process_and_differ_by_epoch() {
    let Some((_folder, data)) = data("Noise", 40) else { return };
    let request = survey_for(Targets::Classes);
    let survey = data.survey(&request).unwrap();
    assert_eq!((survey.n_train, survey.n_val, survey.n_test), (40, 4, 0));
    assert_eq!((survey.classes.len(), survey.sample), (3, Some(vec![2])));
    let train = opened(&data, &request, &survey.found).train;
    let load = |dataset: &dyn Dataset, index, key| {
        let mut values = Vec::new();
        let target = dataset.load(index, key, &mut values).unwrap();
        (values, target)
    };
    let alone: Vec<_> = (0..40).map(|index| load(&*train, index, Some(key(index, 1)))).collect();
    let threads = std::thread::scope(|scope| {
        let ask = |first| {
            let train = Arc::clone(&train);
            move || {
                let places = (first..40).step_by(4);
                places
                    .map(|index| (index, load(&*train, index, Some(key(index, 1)))))
                    .collect::<Vec<_>>()
            }
        };
        let started: Vec<_> = (0..4).map(|first| scope.spawn(ask(first))).collect();
        started.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(threads.into_iter().all(|(index, sample)| alone[index] == sample));
    assert_eq!(alone[5].1, Target::Class(2));
    assert_ne!(load(&*train, 7, Some(key(7, 2))).0, alone[7].0);
    assert_eq!(load(&*train, 7, None), load(&*train, 7, None));
    assert_ne!(load(&*train, 7, None).0, alone[7].0);
}

#[test]
fn labels_numbers_and_images_are_what_the_loss_wants() {
    let Some((_folder, data)) = data("Labels", 6) else { return };
    assert_eq!(data.target().unwrap(), Some(Targets::MultiLabel));
    let request = survey_for(Targets::MultiLabel);
    let survey = data.survey(&request).unwrap();
    assert!(survey.multi_label && survey.classes.len() == 3 && survey.n_targets == 0);
    let splits = opened(&data, &request, &survey.found);
    let target = splits.train.load(1, None, &mut Vec::new()).unwrap();
    assert_eq!(
        (target, splits.train.target_shape()),
        (Target::Series(vec![1.0, 1.0, 0.0]), &[3][..])
    );
    let tall = PythonData { object: "Tall".to_owned(), ..data.clone() };
    assert_eq!(tall.target().unwrap(), Some(Targets::Numbers));
    // It has classes, which the plan refuses for numbers.
    let survey = tall.survey(&survey_for(Targets::Numbers)).unwrap();
    assert!(survey.notes[0].contains("these would have 8 channels"), "{:?}", survey.notes);
    let noise = PythonData { object: "Noise".to_owned(), ..data };
    let survey = noise.survey(&survey_for(Targets::Numbers)).unwrap();
    let splits = opened(&noise, &survey_for(Targets::Numbers), &survey.found);
    assert_eq!(splits.train.load(4, None, &mut Vec::new()).unwrap(), Target::Value(1.0));
}

#[test]
fn what_does_not_fit_is_refused_with_its_key() {
    let Some((_folder, data)) = data("Noise", 6) else { return };
    let refused = |data: &PythonData, key: &str, what: &str| {
        let error = data.survey(&survey_for(Targets::Classes)).map(drop).unwrap_err();
        assert_eq!(error.key(), Some(key), "{error}");
        assert_refused(Err::<(), _>(error), what);
    };
    let of = |object: &str| PythonData { object: object.to_owned(), ..data.clone() };
    refused(&of("Deep"), "data.object", "`Deep[0]` has an input of the shape [1, 1, 1, 1]");
    refused(&of("Flat"), "data.object", "`Flat[0]` has an input that is a float, not a list");
    refused(&of("Square"), "data.object", "has a target that has the shape [1, 1], but is to be");
    let n = |n: u32| [("n".to_owned(), n.into())].into();
    let negative = PythonData { options: n(4), ..of("Negative") };
    refused(&negative, "data.object", "has labels in `targets` that are not 0 to 2");
    let val = |object: &str, option: &str| PythonData {
        val_object: Some(object.to_owned()),
        val_options: Some([(option.to_owned(), 5.into())].into()),
        ..data.clone()
    };
    let what = "gives val samples of [5] list with a class, but training samples of [2] list";
    refused(&val("Noise", "width"), "data.val_object", what);
    refused(&val("Noise", "classes"), "data.val_object", "has the classes [\"0\", \"1\"");
    refused(&val("Nothing", "n"), "data.val_object", "`Nothing` is no class or function of");
    refused(&val("Noise", "m"), "data.val_options", "unexpected keyword argument 'm'");
    let split = SplitPlan { val_fraction: Some(0.5), ..SplitPlan::NONE };
    let held = PythonData { val_options: None, ..data.clone() };
    let survey = held.survey(&SurveyRequest { split, ..survey_for(Targets::Classes) }).unwrap();
    assert_eq!((survey.n_train, survey.n_val), (3, 3));
}
