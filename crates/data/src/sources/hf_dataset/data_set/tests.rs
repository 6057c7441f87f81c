use std::fs;
use std::path::{Path, PathBuf};

use test_support::assert_refused;

use super::*;
use crate::config::kind::Choice;
use crate::mutated;
use crate::plan::Targets;
use crate::transform::Transforms;
use crate::user_error::UserError;
use crate::{Dataset, Target};

/// A file that `tests/golden/hf_dataset.py` has written.
fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/hf_dataset").join(name)
}

/// A folder with copies of these files, under other names.
fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, of) in files {
        let path = dir.path().join(name);
        crate::files::create_folder(path.parent().unwrap()).unwrap();
        crate::files::write_atomic(&path, &fs::read(golden(of)).unwrap()).unwrap();
    }
    dir
}

fn data_set(path: &Path) -> HfDataset {
    HfDataset::of(path)
}

/// One file as the training split.
fn alone(file: &str) -> (tempfile::TempDir, HfDataset) {
    let dir = folder(&[("train.parquet", file)]);
    let data = data_set(dir.path());
    (dir, data)
}

fn survey(data: &HfDataset) -> Result<Survey, Error> {
    data.survey(&SurveyRequest::new("pets", 0, Targets::Classes))
}

#[test]
fn splits_of_datasets_are_counted_by_their_named_classes() {
    let data = HfDataset { val_split: Some("test".to_owned()), ..data_set(&golden("pets")) };
    let found = survey(&data).unwrap();
    assert_eq!((found.n_train, found.n_val, found.n_test), (48, 12, 0));
    assert_eq!(found.classes, ["cat", "dog", "emu"]);
    assert_eq!(found.class_counts, [16; 3]);
    let words = "images of column `image`, classes of `label`, from `train`, `test`";
    assert_eq!(found.columns, [words]);
    let files = data.files(&Options::new()).unwrap();
    assert_eq!(files.iter().map(|of| of.paths.len()).collect::<Vec<_>>(), [2, 1]);
    let request = SurveyRequest::new("pets", 0, Targets::Classes);
    let split = SplitPlan { val_fraction: Some(0.25), ..SplitPlan::NONE };
    let found = HfDataset { val_split: None, ..data }.survey(&SurveyRequest { split, ..request });
    let found = found.unwrap();
    assert_eq!((found.n_train, found.n_val, &*found.class_counts), (36, 12, &[12; 3][..]));
}

#[test]
fn columns_of_other_programs_are_read() {
    let (_dir, words) = alone("words.parquet");
    let found = survey(&words).unwrap();
    assert_eq!(
        (found.classes, found.n_train),
        (vec!["cat".into(), "dog".into(), "emu".into()], 12)
    );
    assert_eq!(found.columns, ["images of column `photo`, classes of `species`, from `train`"]);
    let (_dir, numbers) = alone("numbers.parquet");
    let found = survey(&numbers).unwrap();
    assert_eq!(found.classes, ["0", "1", "2"]);
    assert_eq!(found.class_counts, [4; 3]);
}

#[test]
fn what_cannot_be_used_is_refused_with_row_and_remedy() {
    let refuse = |file: &str, what: &str, help: &str| {
        let (_dir, data) = alone(file);
        let error = survey(&data).unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
        assert!(error.help().unwrap().contains(help), "{:?}", error.help());
        error.key().map(str::to_owned)
    };
    refuse("null_label.parquet", "train.parquet`: row 2: `label` is null", "leave rows without");
    refuse("unlabelled.parquet", "row 3: `label` is -1, which is no class", "`dataset.filter`");
    refuse("path_only.parquet", "row 4: `image` is without bytes", "`push_to_hub`");
    let none = "it has no column of images; its columns are `id`, `label`";
    refuse("no_image.parquet", none, "write images as bytes");
    let two = "has several columns of classes: `label`, `coarse`";
    let key = refuse("two_labels.parquet", two, "name one with `data.label_column`");
    assert_eq!(key.as_deref(), Some("data.label_column"));

    let (_dir, data) = alone("two_labels.parquet");
    let coarse = HfDataset { label_column: Some("coarse".to_owned()), ..data };
    assert_eq!(survey(&coarse).unwrap().class_counts, [4, 2]);
    let absent = HfDataset { label_column: Some("labels".to_owned()), ..coarse.clone() };
    let error = survey(&absent).unwrap_err();
    assert_refused(Err::<(), _>(&error), "has no column `labels`");
    assert_eq!(
        (error.key(), error.help().unwrap().as_str()),
        (Some("data.label_column"), "did you mean `label`?")
    );
    let images = HfDataset { label_column: Some("image".to_owned()), ..coarse.clone() };
    assert_refused(survey(&images), "column `image` holds images, not classes");
    let numbers = HfDataset { image_column: Some("id".to_owned()), ..coarse };
    assert_refused(survey(&numbers), "column `id` holds whole numbers, not images");
}

#[test]
fn splits_must_have_the_same_classes() {
    let refuse = |val: &str, what: &str| {
        let dir = folder(&[("train.parquet", "null_label.parquet"), ("test.parquet", val)]);
        let train = "pets/data/test-00000-of-00001.parquet";
        fs::copy(golden(train), dir.path().join("train.parquet")).unwrap();
        let data = HfDataset { val_split: Some("test".to_owned()), ..data_set(dir.path()) };
        assert_refused(survey(&data), what);
    };
    refuse("other_names.parquet", "its class 1 is `emu`, but that of the training split `dog`");
    refuse("words.parquet", "has no column `image`");
}

#[test]
fn a_folder_without_what_is_asked_for_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    assert_refused(survey(&data_set(dir.path())), "it has no parquet files");
    assert_refused(survey(&data_set(&dir.path().join("absent"))), "does not exist");
    assert_refused(survey(&data_set(&golden("words.parquet"))), "is not a folder");
    let snapshot = dir.path().join("datasets--me--pets/snapshots/0a1b");
    let gone = survey(&data_set(&snapshot)).unwrap_err();
    let help = "`hf download --repo-type dataset me/pets --revision 0a1b` fetches it again";
    assert_eq!(gone.help().as_deref(), Some(help));
    let files = ["script.py".to_owned()];
    let none = data_set(dir.path()).repository_files("hf:datasets/me/x@v1", &files).unwrap_err();
    assert!(none.to_string().contains("`hf:datasets/me/x@v1`: it has no parquet files"), "{none}");
    assert!(none.help().unwrap().contains("`hf:datasets/me/x@refs/convert/parquet`"));
    // A shard that is cut short.
    let dir = folder(&[("train.parquet", "words.parquet")]);
    let path = dir.path().join("train.parquet");
    let whole = fs::read(&path).unwrap();
    crate::files::write_atomic(&path, &whole[..whole.len() - 9]).unwrap();
    let cut = survey(&data_set(dir.path())).unwrap_err();
    assert!(cut.to_string().contains("its footer is missing or damaged"), "{cut}");
    assert!(cut.help().unwrap().contains("cut short"));
}

/// The training rows of a data set.
fn rows_of(data: &HfDataset) -> SplitRows {
    data.rows().unwrap().0.train
}

/// All images of a store, or the reason why one cannot be read.
fn all(store: &ImageStore, n: usize) -> Result<Vec<Vec<u8>>, String> {
    (0..n).map(|place| store.get(place)).collect()
}

#[test]
fn images_lie_in_one_file_that_is_written_anew_where_it_is_damaged() {
    let cache = tempfile::tempdir().unwrap();
    let images = cache.path().join("images");
    let rows = rows_of(&data_set(&golden("pets")));
    assert!(!image_store::is_ready(&rows, &images).unwrap());
    let expected = all(&ImageStore::open(&rows, None).unwrap(), 48).unwrap();
    assert!(
        expected.iter().all(|image| image.starts_with(b"\x89PNG") || image.starts_with(&[255]))
    );
    let opened = || all(&ImageStore::open(&rows, Some(&images)).unwrap(), 48);
    assert_eq!(opened().unwrap(), expected);
    assert!(image_store::is_ready(&rows, &images).unwrap());
    let names: Vec<PathBuf> = fs::read_dir(&images).unwrap().map(|it| it.unwrap().path()).collect();
    let [path] = &names[..] else { panic!("{names:?}") };
    let whole = fs::read(path).unwrap();
    let damage = |bytes: &[u8]| crate::files::write_atomic(path, bytes).unwrap();
    // A damaged index, or a length that does not fit.
    for at in (whole.len() - 48 * 16 - 48..whole.len()).step_by(7) {
        let mut flipped = whole.clone();
        flipped[at] ^= 1;
        damage(&flipped);
        assert_eq!(opened().unwrap(), expected, "{at}");
    }
    for length in (0..whole.len()).step_by(97) {
        damage(&whole[..length]);
        assert_eq!(opened().unwrap(), expected, "{length}");
    }
    // A damaged image is never given, and what a start finds is removed.
    for at in (0..whole.len() - 48 * 16 - 48).step_by(211) {
        let mut flipped = whole.clone();
        flipped[at] ^= 1;
        damage(&flipped);
        assert!(at < 8 || opened().unwrap_err().contains("is damaged; remove it"), "{at}");
        assert!(!image_store::is_ready(&rows, &images).unwrap());
        assert!(!path.exists());
    }
    assert_eq!(opened().unwrap(), expected);
    assert_eq!(fs::read(path).unwrap(), whole);
}

#[test]
fn a_changed_shard_has_other_images() {
    let cache = tempfile::tempdir().unwrap();
    let (dir, data) = alone("numbers.parquet");
    let rows = rows_of(&data);
    ImageStore::open(&rows, Some(cache.path())).unwrap();
    assert!(image_store::is_ready(&rows, cache.path()).unwrap());
    fs::copy(golden("null_label.parquet"), dir.path().join("train.parquet")).unwrap();
    assert!(!image_store::is_ready(&rows, cache.path()).unwrap());
    fs::remove_file(dir.path().join("train.parquet")).unwrap();
    assert_refused(image_store::is_ready(&rows, cache.path()), "train.parquet`");
}

#[test]
fn processes_that_ask_together_get_the_same_file() {
    let cache = tempfile::tempdir().unwrap();
    let rows = rows_of(&data_set(&golden("pets")));
    let found: Vec<_> = std::thread::scope(|scope| {
        let open = || all(&ImageStore::open(&rows, Some(cache.path())).unwrap(), 48).unwrap();
        let threads: Vec<_> = (0..6).map(|_| scope.spawn(open)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(found.iter().all(|images| *images == found[0]));
    assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 1);
}

#[test]
fn an_image_that_cannot_be_decoded_is_named_by_shard_and_row() {
    let (dir, data) = alone("undecodable.parquet");
    let stored = |rows: &SplitRows| ImageStore::open(rows, None).map(Some);
    let (parts, _) = data.parts(&SplitPlan::NONE, stored).unwrap();
    let mut resize = Choice::named("resize");
    resize.set("size", [8, 8]);
    let transforms = Transforms::default();
    let images = LabelledImages::new(parts.train, &[resize], &transforms, data.decoding()).unwrap();
    let load = |index| images.load(index, None, &mut Vec::new());
    assert_eq!(load(4).unwrap(), Target::Class(1));
    let path = dir.path().join("train.parquet");
    let expected =
        format!("cannot read row 5 of `{}`: not in a known image format", path.display());
    assert_eq!(load(5).unwrap_err().to_string(), expected);
    assert_eq!(images.origin(5), Some((path, Some(6))));
}

#[test]
fn rows_are_found_in_their_shards() {
    let rows = rows_of(&data_set(&golden("pets")));
    let place = |row| {
        let (path, at) = rows.place(row);
        (path.file_name().unwrap().to_str().unwrap()[..11].to_owned(), at)
    };
    let at = |shard: &str, row| (shard.to_owned(), row);
    assert_eq!([0, 23].map(place), [at("train-00000", 0), at("train-00000", 23)]);
    assert_eq!([24, 47].map(place), [at("train-00001", 0), at("train-00001", 23)]);
}

#[test]
fn a_damaged_shard_is_read_or_refused() {
    let originals = ["words.parquet", "numbers.parquet", "two_labels.parquet"];
    let originals = originals.map(|name| fs::read(golden(name)).unwrap());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("train.parquet");
    let (mut read, mut refused) = (0, 0);
    for bytes in mutated::inputs(&originals, 1500, 3) {
        crate::files::write_atomic(&path, &bytes).unwrap();
        match crate::fuzz_readers::image_shard(&path) {
            Ok(_) => read += 1,
            Err(refusal) => {
                refused += 1;
                assert!(!refusal.is_empty());
            }
        }
    }
    assert!(read > 50 && refused > 500, "{read} read, {refused} refused");
}

#[test]
fn a_folder_is_recognised_with_its_splits_and_the_size_of_its_images() {
    let found = HfDataset::recognise(&golden("pets")).unwrap().unwrap();
    assert_eq!((found.side, found.left_out), (8, None));
    assert_eq!((found.data.val_split, found.data.test_split.as_deref()), (None, Some("test")));
    let train = "pets/data/test-00000-of-00001.parquet";
    let files =
        [("train.parquet", train), ("dev.parquet", train), ("test.parquet", "unlabelled.parquet")];
    let found = HfDataset::recognise(folder(&files).path()).unwrap().unwrap();
    assert_eq!((found.data.val_split.as_deref(), found.data.test_split), (Some("dev"), None));
    let (test, why) = found.left_out.unwrap();
    assert!(test == "test" && why.contains("`label` is -1"), "{why}");
    let other = folder(&[("train.parquet", "no_image.parquet")]);
    assert_eq!(HfDataset::recognise(other.path()).unwrap(), None);
    assert_eq!(HfDataset::recognise(&golden("absent")).unwrap(), None);
}
