use std::fs;

use super::*;
use crate::config::kind::{Choice, Kind};
use crate::files;
use crate::plan::Targets;
use crate::{Csv, DataSources, ImageFolder, SurveyRequest, survey};

fn image_folder(root: &Path) -> DataFacts {
    for split in ["train", "val"] {
        for class in ["bird", "cat", "dog"] {
            files::create_folder(&root.join(split).join(class)).unwrap();
            for index in 0..4 {
                let file = root.join(format!("{split}/{class}/{index}.png"));
                files::write_atomic(&file, format!("a {class:4} {index}").as_bytes()).unwrap();
            }
        }
    }
    facts(root)
}

fn facts(root: &Path) -> DataFacts {
    counted(&folders(root))
}

fn folders(root: &Path) -> ImageFolder {
    ImageFolder::new(root.join("train"), root.join("val"))
}

fn counted<K: Kind>(data: &K) -> DataFacts {
    let request = SurveyRequest::new("x", 0, Targets::Numbers);
    survey(&DataSources::default(), &Choice::of(data), &request).unwrap()
}

/// The fingerprint of counted data.
fn of(facts: &DataFacts) -> Fingerprint {
    let source = DataSources::default().build(&facts.source.kind).unwrap();
    Fingerprint::of(facts, source.as_ref()).unwrap()
}

/// Differences after `change` of an image folder.
fn after(change: impl Fn(&Path)) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let then = of(&image_folder(dir.path()));
    change(dir.path());
    let now = of(&facts(dir.path()));
    assert_eq!(now == then, now.differences(&then).is_empty());
    now.differences(&then)
}

fn rename(root: &Path, from: &str, to: &str) {
    for split in ["train", "val"] {
        fs::rename(root.join(split).join(from), root.join(split).join(to)).unwrap();
    }
}

#[test]
fn the_same_data_have_no_differences_wherever_they_are() {
    assert!(after(|_| ()).is_empty());
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let one = of(&image_folder(here.path()));
    assert_eq!(one, of(&image_folder(there.path())));
    let path = here.path().join("data.json");
    files::write_atomic(&path, &one.written()).unwrap();
    assert_eq!(Fingerprint::read(&path).unwrap(), Some(one));
    assert_eq!(Fingerprint::read(&here.path().join("none.json")).unwrap(), None);
}

#[test]
fn labels_that_were_permuted_are_named_with_both_numbers() {
    let swapped = after(|root| {
        rename(root, "bird", "x");
        rename(root, "dog", "bird");
        rename(root, "x", "dog");
    });
    assert_eq!(
        swapped,
        ["train", "val"].map(|split| {
            format!("{split}: 8 files have changed, e.g. the contents of `bird/0.png` changed")
        })
    );
    let renamed = after(|root| rename(root, "bird", "eagle"));
    assert_eq!(
        renamed[..3],
        [
            "class `bird` (label 0) is gone",
            "class `eagle` (label 2) is new",
            "class `cat` is now label 0, was 1"
        ]
    );
    assert_eq!(renamed[3], "class `dog` is now label 1, was 2");
}

#[test]
fn images_that_are_missing_new_or_changed_are_counted_and_one_is_named() {
    let missing = after(|root| {
        fs::remove_file(root.join("train/dog/1.png")).unwrap();
        fs::remove_file(root.join("train/dog/2.png")).unwrap();
    });
    assert_eq!(
        missing,
        ["train: 10 samples, was 12", "train: 2 files are missing, e.g. `dog/1.png`"]
    );
    let replaced = after(|root| {
        fs::rename(root.join("val/cat/0.png"), root.join("val/cat/9.png")).unwrap();
    });
    let words = "val: 1 file is missing, e.g. `cat/0.png`; 1 file is new, e.g. `cat/9.png`";
    assert_eq!(replaced, [words]);
    let longer = after(|root| {
        files::write_atomic(&root.join("val/cat/0.png"), b"longer than before").unwrap();
    });
    assert_eq!(longer, ["val: `cat/0.png` has 18 bytes, had 8"]);
}

#[test]
fn of_a_folder_too_large_to_list_the_counts_of_its_folders_are_compared() {
    let dir = tempfile::tempdir().unwrap();
    let facts_then = image_folder(dir.path());
    let unlisted = |facts: &DataFacts| {
        let mut found = of(facts);
        found.parts.iter_mut().for_each(|part| part.listing = None);
        found
    };
    let then = unlisted(&facts_then);
    fs::remove_file(dir.path().join("train/dog/1.png")).unwrap();
    files::write_atomic(&dir.path().join("val/cat/0.png"), b"longer than before").unwrap();
    assert_eq!(
        unlisted(&facts(dir.path())).differences(&then),
        [
            "train: 11 samples, was 12",
            "train: `dog` has 3 files, had 4",
            "val: file names or sizes changed"
        ]
    );
}

#[test]
fn one_cell_of_a_table_is_enough_and_an_earlier_run_is_compared_as_far_as_it_is_known() {
    let dir = tempfile::tempdir().unwrap();
    let (train, val) = (dir.path().join("train.csv"), dir.path().join("val.csv"));
    files::write_atomic(&train, b"a,y\n1,2\n3,4\n").unwrap();
    files::write_atomic(&val, b"a,y\n1,2\n").unwrap();
    let table = Csv::new(train.clone(), val, "y");
    let facts = counted(&table);
    let then = of(&facts);
    files::write_atomic(&train, b"a,y\n1,2\n3,5\n").unwrap();
    let now = of(&facts);
    assert_eq!(now.differences(&then), ["train: the contents of `train.csv` changed"]);
    let kept = dir.path().join("data.json");
    files::write_atomic(&kept, &then.written()).unwrap();
    let error = Fingerprint::refuse_other_files(&kept, &table, &facts.source).unwrap_err();
    assert!(error.to_string().contains("the contents of `train.csv` changed"), "{error}");
    let wider = Fingerprint { sample: Some(vec![2]), ..now.clone() };
    assert_eq!(wider.differences(&now), ["the shape of a sample is [2], was [1]"]);
    let earlier = Fingerprint { sample: None, target: None, parts: vec![], ..then };
    assert!(now.differences(&earlier).is_empty());
}

#[test]
fn of_a_very_long_file_its_size_both_ends_and_pieces_between_count() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("long");
    let file = File::create(&path).unwrap();
    let length = (64 << 10) * 100 + 7;
    file.set_len(length).unwrap();
    let digest = || pieces(&File::open(&path).unwrap(), length).unwrap();
    let before = digest();
    for at in [0, length - 1] {
        file.write_all_at(&[1], at).unwrap();
        assert_ne!(digest(), before, "byte {at}");
        file.write_all_at(&[0], at).unwrap();
    }
    assert_eq!(digest(), before);
}
