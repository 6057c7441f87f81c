use std::collections::BTreeMap;

use test_support::assert_refused;

use super::*;
use crate::config::kind::Choice;
use crate::config::values::Shape2;
use crate::plan::Targets;
use crate::sources::webdataset::tar_shard::tests::tar;
use crate::transform::{Resize, Transforms};
use crate::user_error::UserError;

/// The folder that `tests/golden/webdataset_shards.py` has written.
fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/webdataset")
}

/// Key, CRC-32 of the image, and label of each sample, by shard, as Python's library reads them.
fn expected() -> BTreeMap<String, Vec<(String, u32, String)>> {
    let text = fs::read(golden().join("samples.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

fn survey(data: &WebDataset) -> Result<Survey, Error> {
    data.survey(&SurveyRequest::new("pets", 0, Targets::Classes))
}

fn pets() -> WebDataset {
    let val_shards = Some(golden().join("pets-test-*.tar"));
    WebDataset { val_shards, ..WebDataset::of(&golden().join("pets-train-{00..01}.tar")) }
}

#[test]
fn samples_are_those_of_the_library_in_its_order() {
    for (name, expected) in expected() {
        let label_field = (name == "words.tar").then(|| "breed.txt".to_owned());
        let data = WebDataset { label_field, ..WebDataset::of(&golden().join(&name)) };
        let (parts, classes) = data.read().unwrap();
        let labels = parts.train.among(&classes, None).unwrap();
        let shard = &parts.train.shards[0];
        assert_eq!(shard.samples.len(), expected.len(), "{name}");
        for (at, (key, crc, label)) in expected.iter().enumerate() {
            assert_eq!(shard.samples.key(at), key, "{name}");
            let mut hash = flate2::Crc::new();
            hash.update(&shard.image(at).unwrap());
            assert_eq!(hash.sum(), *crc, "{name}: {key}");
            let label: serde_json::Value =
                serde_json::from_str(label).unwrap_or_else(|_| label.as_str().into());
            let class = match label.get("label").unwrap_or(&label) {
                serde_json::Value::String(word) => word.clone(),
                number => number.to_string(),
            };
            assert_eq!(classes[labels[at] as usize], class, "{name}: {key}");
        }
    }
}

#[test]
fn shards_are_counted_by_class_and_samples_are_held_out() {
    let found = survey(&pets()).unwrap();
    assert_eq!((found.n_train, found.n_val, found.n_test), (48, 12, 0));
    assert_eq!(
        (found.classes, found.class_counts),
        (vec!["0".into(), "1".into(), "2".into()], vec![16; 3])
    );
    let [words] = &found.columns[..] else { panic!("{:?}", found.columns) };
    assert!(words.starts_with("classes of `cls`, from 2 shards to train on ("), "{words}");
    let files = pets().files(&Options::new()).unwrap();
    assert_eq!(files.iter().map(|of| of.paths.len()).collect::<Vec<_>>(), [2, 1]);
    let split = SplitPlan { val_fraction: Some(0.25), ..SplitPlan::NONE };
    let request = SurveyRequest { split, ..SurveyRequest::new("pets", 0, Targets::Classes) };
    let found = WebDataset { val_shards: None, ..pets() }.survey(&request).unwrap();
    assert_eq!((found.n_train, found.n_val, &*found.class_counts), (36, 12, &[12; 3][..]));
}

/// A folder with these tar files.
fn folder(shards: &[(&str, &[(&str, &[u8])])]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, files) in shards {
        let path = dir.path().join(name);
        crate::files::create_folder(path.parent().unwrap()).unwrap();
        crate::files::write_atomic(&path, &tar(files)).unwrap();
    }
    dir
}

type TarFiles<'a> = &'a [(&'a str, &'a [u8])];
const NUMBERS: TarFiles<'_> = &[("a.jpg", b"x"), ("a.cls", b"0"), ("b.jpg", b"y"), ("b.cls", b"1")];
const WORDS: TarFiles<'_> = &[("a.jpg", b"x"), ("a.cls", b"cat"), ("b.jpg", b"y"), ("b.cls", b"7")];

#[test]
fn parts_must_have_the_same_classes_and_no_shard_in_common() {
    let dir = folder(&[
        ("train/0.tar", NUMBERS),
        ("words/0.tar", WORDS),
        ("val/0.tar", &[("a.jpg", b"x"), ("a.cls", b"7")]),
        ("txt/0.tar", &[("a.jpg", b"x"), ("a.txt", b"1")]),
        ("mixed/0.tar", NUMBERS),
        ("mixed/1.tar", &[("a.jpg", b"x"), ("a.txt", b"1")]),
    ]);
    let data = |train: &str, val: &str| WebDataset {
        val_shards: Some(dir.path().join(val)),
        ..WebDataset::of(&dir.path().join(train))
    };
    let found = survey(&data("train", "val")).unwrap();
    assert_eq!(found.classes.len(), 8, "numbers up to the largest of all parts");
    // A number is a word where others are.
    let found = survey(&data("words", "val")).unwrap();
    assert_eq!((found.classes, found.class_counts), (vec!["7".into(), "cat".into()], vec![1, 1]));
    let ours = "its classes are text, but the training shards' are whole numbers";
    assert_refused(survey(&data("train", "words")), ours);
    let unknown = survey(&data("words", "train")).unwrap_err();
    assert_refused(
        Err::<(), _>(&unknown),
        "0.tar`: `a.cls` is `0`, a class without training samples",
    );
    assert_refused(
        survey(&data("train", "txt")),
        "its labels are in `txt`, but in `cls` in the first",
    );
    assert_refused(survey(&data("mixed", "val")), "1.tar`: its labels are in `txt`");
    assert_refused(survey(&data("train", "train/0.tar")), "it is one of `data.train_shards`, too");
    let same = data("train", "train");
    assert_eq!(same.check()[0].key, "val_shards");
}

#[test]
fn names_of_classes_are_read_from_a_file() {
    let dir = folder(&[("0.tar", NUMBERS), ("words.tar", WORDS)]);
    let path = dir.path().join("names.txt");
    let data = |text: &str, shard: &str| {
        crate::files::write_atomic(&path, text.as_bytes()).unwrap();
        let class_names = Some(path.clone());
        WebDataset { class_names, ..WebDataset::of(&dir.path().join(shard)) }
    };
    let found = survey(&data("cat\nday old chick\nemu\n\n", "0.tar")).unwrap();
    assert_eq!(found.classes, ["cat", "day old chick", "emu"]);
    assert_eq!(found.class_counts, [1, 1, 0]);
    assert_eq!(data("cat", "0.tar").files(&Options::new()).unwrap()[1].name, "class names");
    let few = survey(&data("cat\n", "0.tar")).unwrap_err();
    assert_refused(Err::<(), _>(&few), "`b.cls` is 1, but there are 1 classes");
    assert_refused(survey(&data("cat\ncat\n", "0.tar")), "line 2: is the name of a class before");
    assert_refused(survey(&data("cat\n\nemu\n", "0.tar")), "line 2: is empty");
    assert_refused(survey(&data("\n", "0.tar")), "is empty");
    assert_refused(survey(&data("cat\n7\n", "words.tar")), "those of the shards are words");
    let negative: TarFiles<'_> = &[("a.jpg", b"x"), ("a.cls", b"-1")];
    crate::files::write_atomic(&dir.path().join("1.tar"), &tar(negative)).unwrap();
    let refused = survey(&WebDataset::of(&dir.path().join("1.tar"))).unwrap_err();
    assert_refused(Err::<(), _>(&refused), "1.tar`: `a.cls` is -1, which is no class");
}

#[test]
fn folders_without_shards_are_refused_with_what_they_hold() {
    let dir = folder(&[("two/train-0.tar", NUMBERS), ("two/val-0.tar", NUMBERS)]);
    let write = |name: &str| {
        let path = dir.path().join(name);
        crate::files::create_folder(path.parent().unwrap()).unwrap();
        crate::files::write_atomic(&path, b"").unwrap();
    };
    write("packed/0.tar.gz");
    write("other/README.md");
    let refuse = |path: &str, what: &str, help: &str| {
        let error = survey(&WebDataset::of(&dir.path().join(path))).unwrap_err();
        assert_refused(Err::<(), _>(&error), what);
        assert!(error.help().unwrap().contains(help), "{:?}", error.help());
    };
    refuse("packed", "it holds no files that end in .tar, but packed ones", "`gunzip FILE`");
    refuse("other", "it holds no files that end in .tar", "`data/train-{0000..0127}.tar`");
    refuse("two", "it holds files of several splits: `train`, `val`", "`*train*`");
    refuse("absent", "the shard `", "a tar file of images");
    refuse("two/test-*.tar", "the training shard `", "a tar file of images");
    refuse("two/train-{0..2}.tar", "`train-1.tar`, `train-2.tar` are missing", "name fewer");
}

#[test]
fn a_shard_that_changes_during_a_run_is_an_error_of_its_samples() {
    let picture = {
        let mut bytes = std::io::Cursor::new(Vec::new());
        let picture = image::RgbImage::from_pixel(9, 7, image::Rgb([200, 30, 40]));
        picture.write_to(&mut bytes, image::ImageFormat::Png).unwrap();
        bytes.into_inner()
    };
    let files: TarFiles<'_> =
        &[("a.png", &picture), ("a.cls", b"0"), ("b.png", b"no image"), ("b.cls", b"1")];
    let dir = folder(&[("0.tar", files)]);
    let path = dir.path().join("0.tar");
    let data = WebDataset { val_shards: None, ..WebDataset::of(&path) };
    let transforms = Transforms::default();
    let list = [Choice::of(&Resize::to(Shape2::Both([4, 4])))];
    let survey = SurveyRequest::new("pets", 0, Targets::Classes);
    let reading = OpenRequest {
        survey: &survey,
        found: &Options::new(),
        train_transforms: &list,
        val_transforms: &list,
        transforms: &transforms,
    };
    let train = data.open(&reading).unwrap().train;
    let load = |index: usize| train.load(index, None, &mut Vec::new());
    load(0).unwrap();
    assert_eq!((train.label(1), train.origin(1)), (Some(1), Some((path.clone(), Some(2)))));
    assert_refused(load(1), &format!("cannot read sample `b` of `{}`: ", path.display()));
    crate::files::write_atomic(&path, &tar(&files[..2])).unwrap();
    assert_refused(load(0), "the shard has changed since the run began");
    crate::files::remove_file(&path).unwrap();
    assert_refused(load(0), "cannot read `");
}
