//! The parts of a data set by the names of their folders and files: `train`, `valid`, `Testing` ...

use std::path::{Path, PathBuf};

use crate::cli::init::listing;
use crate::plan::Part;

const TRAIN: [&str; 2] = ["train", "training"];
const VAL: [&str; 5] = ["val", "valid", "validation", "dev", "eval"];
const TEST: [&str; 2] = ["test", "testing"];
/// What may follow: `training_set`, `test-images`.
const ENDINGS: [&str; 4] = ["set", "data", "images", "split"];
/// What macOS puts into archives.
const RESOURCE_FORKS: &str = "__MACOSX";

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

/// Folders or files by what they hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Parts {
    pub(super) train: Option<PathBuf>,
    pub(super) val: Option<PathBuf>,
    pub(super) test: Option<PathBuf>,
    /// Those whose names say nothing.
    pub(super) others: Vec<PathBuf>,
}

impl Parts {
    /// Those among `paths`, by their names without endings.
    pub(super) fn among(paths: Vec<PathBuf>) -> Self {
        let mut parts = Self::default();
        for path in paths {
            let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let place = match part_of(&stem) {
                Some(Part::Train) => &mut parts.train,
                Some(Part::Val) => &mut parts.val,
                Some(Part::Test) => &mut parts.test,
                None => {
                    parts.others.push(path);
                    continue;
                }
            };
            place.get_or_insert(path);
        }
        parts
    }

    /// The folders in `at`.
    pub(super) fn of_folders(at: &Path) -> Self {
        let mut folders = listing::folders(at);
        folders.retain(|folder| listing::name(folder) != RESOURCE_FORKS);
        Self::among(folders)
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
            [only] if listing::files(&at).is_empty() && !listing::folders(only).is_empty() => {
                at.clone_from(only);
            }
            _ => return at,
        }
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
        make("one/recordings");
        assert_eq!(unwrapped(&root.path().join("one")), root.path().join("one"));
    }
}
