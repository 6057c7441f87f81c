//! The parts of a data set by the names of their folders and files: `train`, `valid`, `Testing` ...

use std::path::{Path, PathBuf};

use crate::init::names;
use crate::plan::Part;

const TRAIN: [&str; 2] = ["train", "training"];
const VAL: [&str; 5] = ["val", "valid", "validation", "dev", "eval"];
const TEST: [&str; 2] = ["test", "testing"];
/// Words that may follow: `training_set`, `test-images`.
const ENDINGS: [&str; 4] = ["set", "data", "images", "split"];
/// Words for a part among others in a name (`seg_train`, `train1`), also in other languages.
const TRAIN_WORDS: [&str; 11] = [
    "trn",
    "trainset",
    "trainval",
    "traindata",
    "entrenamiento",
    "entrainement",
    "entraînement",
    "treino",
    "treinamento",
    "addestramento",
    "trainingsdaten",
];
const VAL_WORDS: [&str; 7] =
    ["validacion", "validación", "validacao", "validação", "validazione", "validierung", "valset"];
const TEST_WORDS: [&str; 8] =
    ["tst", "testset", "testdata", "prueba", "pruebas", "teste", "essai", "testdaten"];

/// The part that a folder or the stem of a file of this name holds.
pub(super) fn part_of(name: &str) -> Option<Part> {
    let name = name.to_lowercase();
    let whole = name.as_str();
    let stems = ENDINGS.iter().filter_map(|ending| whole.strip_suffix(ending));
    let stems = stems.map(|stem| stem.trim_end_matches(['_', '-', ' '])).chain([whole]);
    let is_in = |names: &[&str]| stems.clone().any(|stem| names.contains(&stem));
    [(Part::Train, &TRAIN[..]), (Part::Val, &VAL[..]), (Part::Test, &TEST[..])]
        .into_iter()
        .find_map(|(part, names)| is_in(names).then_some(part))
}

/// The part that the words of a name stand for, if they do not contradict each other. A class may
/// have such a name, too, so this counts only together with other signs.
fn part_by_word(name: &str) -> Option<Part> {
    let mut found = words(name).into_iter().filter_map(|word| {
        let is_in = |names: &[&str]| names.contains(&word.as_str());
        part_of(&word)
            .or_else(|| is_in(&TRAIN_WORDS).then_some(Part::Train))
            .or_else(|| is_in(&VAL_WORDS).then_some(Part::Val))
            .or_else(|| is_in(&TEST_WORDS).then_some(Part::Test))
    });
    let first = found.next()?;
    found.all(|part| part == first).then_some(first)
}

/// The words of a name, without digits: `seg_train`, `train1` and `myTrain` hold `train`.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut is_lower = false;
    for c in name.chars() {
        let begins = !c.is_alphabetic() || (is_lower && c.is_uppercase());
        if begins {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| c.is_alphabetic()) {
            word.extend(c.to_lowercase());
        }
        is_lower = c.is_lowercase();
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Folders or files by the part that they hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Parts {
    pub(super) train: Option<PathBuf>,
    pub(super) val: Option<PathBuf>,
    pub(super) test: Option<PathBuf>,
    /// Paths whose names stand for no part.
    pub(super) others: Vec<PathBuf>,
}

impl Parts {
    /// Sorts `paths` by their names without extensions.
    pub(super) fn among(paths: Vec<PathBuf>) -> Self {
        Self::by(paths, part_of)
    }

    /// Sorts `paths` by single words in their names.
    pub(super) fn by_words(paths: Vec<PathBuf>) -> Self {
        Self::by(paths, part_by_word)
    }

    fn by(paths: Vec<PathBuf>, part_of: fn(&str) -> Option<Part>) -> Self {
        let mut parts = Self::default();
        for path in paths {
            let place = match part_of(&names::stem(&path)) {
                Some(Part::Train) => &mut parts.train,
                Some(Part::Val) => &mut parts.val,
                Some(Part::Test) => &mut parts.test,
                None => {
                    parts.others.push(path);
                    continue;
                }
            };
            match place {
                Some(_) => parts.others.push(path),
                None => *place = Some(path),
            }
        }
        parts
    }

    /// Sorts the folders in `at`.
    pub(super) fn of_folders(at: &Path) -> Self {
        Self::among(names::folders(at))
    }

    /// True if the names of all differ only in the word for the part: `train1` and `test1`, but not
    /// `bullet_train` and `test_tube`.
    pub(super) fn are_called_alike(&self) -> bool {
        let rest = |path: &PathBuf| {
            let mut words = words(&names::stem(path));
            words.retain(|word| part_by_word(word).is_none());
            words
        };
        let mut all = [&self.train, &self.val, &self.test].into_iter().flatten().map(rest);
        let first = all.next();
        self.are_split()
            && self.others.is_empty()
            && all.all(|words| Some(&words) == first.as_ref())
    }

    /// True if there is one to train on, and another.
    pub(super) fn are_split(&self) -> bool {
        self.train.is_some() && (self.val.is_some() || self.test.is_some())
    }
}

/// The folder that holds the data, where `at` holds nothing but a folder of folders, as unpacked
/// archives do.
pub(super) fn unwrapped(at: &Path) -> PathBuf {
    let mut at = at.to_owned();
    loop {
        let Parts { train: None, val: None, test: None, others } = Parts::of_folders(&at) else {
            return at;
        };
        match &others[..] {
            [only] if names::files(&at).is_empty() && !names::folders(only).is_empty() => {
                at.clone_from(only);
            }
            _ => return at,
        }
    }
}

/// The folder that holds the data of a part, whatever the names of the folders in it: Kaggle's
/// archives have `training_set/training_set` and `seg_pred/seg_pred`.
pub(super) fn unwrapped_part(at: &Path) -> PathBuf {
    let mut at = at.to_owned();
    loop {
        let folders = names::folders(&at);
        let [only] = &folders[..] else { return at };
        let repeats = names::name(only).eq_ignore_ascii_case(&names::name(&at));
        let is_class = !repeats && names::folders(only).is_empty();
        if is_class || !names::files(&at).is_empty() {
            return at;
        }
        at.clone_from(only);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files;

    #[test]
    fn parts_are_known_by_their_usual_names() {
        for (name, part) in [
            ("train", Some(Part::Train)),
            ("Training", Some(Part::Train)),
            ("training_set", Some(Part::Train)),
            ("TRAIN-images", Some(Part::Train)),
            ("valid", Some(Part::Val)),
            ("Validation", Some(Part::Val)),
            ("dev", Some(Part::Val)),
            ("Testing", Some(Part::Test)),
            ("test_set", Some(Part::Test)),
            ("trains", None),
            ("contest", None),
            ("set", None),
        ] {
            assert_eq!(part_of(name), part, "{name}");
        }
    }

    #[test]
    fn parts_are_known_by_a_word_in_their_names_beside_other_signs() {
        for (name, part) in [
            ("seg_train", Some(Part::Train)),
            ("train1", Some(Part::Train)),
            ("asl-test", Some(Part::Test)),
            ("myValidation", Some(Part::Val)),
            ("Entrenamiento", Some(Part::Train)),
            ("prueba", Some(Part::Test)),
            ("train_test", None),
            ("fold1", None),
            ("contest", None),
        ] {
            assert_eq!(part_by_word(name), part, "{name}");
        }
        let paths = ["cv1_train", "cv1_test", "cv2_train"].map(PathBuf::from).to_vec();
        let parts = Parts::by_words(paths);
        assert!(parts.are_split() && parts.others == [PathBuf::from("cv2_train")], "{parts:?}");
    }

    #[test]
    fn folders_in_the_way_are_passed() {
        let root = tempfile::tempdir().unwrap();
        let make = |path: &str| files::create_folder(&root.path().join(path)).unwrap();
        make("archive/brains/Training/glioma");
        make("archive/brains/Testing/glioma");
        make("archive/__MACOSX");
        assert_eq!(unwrapped(&root.path().join("archive")), root.path().join("archive/brains"));
        make("plain/cats");
        make("plain/dogs");
        assert_eq!(unwrapped(&root.path().join("plain")), root.path().join("plain"));
        make("training_set/training_set/cats");
        make("training_set/training_set/dogs");
        let part = root.path().join("training_set");
        assert_eq!(unwrapped_part(&part), part.join("training_set"));
        make("train/cats");
        assert_eq!(unwrapped_part(&root.path().join("train")), root.path().join("train"));
        make("one/recordings");
        assert_eq!(unwrapped(&root.path().join("one")), root.path().join("one"));
    }
}
