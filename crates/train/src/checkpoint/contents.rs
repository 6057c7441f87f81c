//! Contents of a run's folder of checkpoints: only these are removed with the run. The folder's
//! name comes from a file that may have come from elsewhere.

use std::fs::{self, DirEntry};
use std::path::{Path, PathBuf};

use crate::checkpoint::FILES;
use crate::checkpoint::links::{NAMES, was_a_link};
use crate::checkpoint::load::{PIN, step_of};
use crate::checkpoint::manifest::MANIFEST;
use crate::files;

/// Contents of a folder of checkpoints.
#[derive(Debug, Default, PartialEq)]
pub struct Contents {
    /// Files and links of checkpoints, and whole temporaries.
    pub own: Vec<PathBuf>,
    /// Folders of checkpoints, which can be removed once they are empty.
    pub folders: Vec<PathBuf>,
    /// Everything else.
    pub foreign: Vec<PathBuf>,
}

/// Sorts what is in `folder`. `links` are the names of links beside those to checkpoints.
pub fn contents(folder: &Path, links: &[&str]) -> Contents {
    let mut contents = Contents::default();
    for entry in entries(folder) {
        let path = entry.path();
        let name = entry.file_name();
        let name = name.to_str().unwrap_or_default();
        let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let has_name_of_link = NAMES.contains(&name) || links.contains(&name);
        if files::is_temporary(name) || has_name_of_link && (is_link || was_a_link(&path)) {
            contents.own.push(path);
        } else if is_folder && (step_of(&path).is_some() || name == PIN || NAMES.contains(&name)) {
            for file in entries(&path) {
                let is_file = file.file_type().is_ok_and(|kind| kind.is_file());
                let name = file.file_name();
                let name = name.to_str().unwrap_or_default();
                let is_own = FILES.contains(&name) || name == MANIFEST || files::is_temporary(name);
                let place =
                    if is_file && is_own { &mut contents.own } else { &mut contents.foreign };
                place.push(file.path());
            }
            contents.folders.push(path);
        } else {
            contents.foreign.push(path);
        }
    }
    contents.foreign.sort();
    contents
}

fn entries(folder: &Path) -> impl Iterator<Item = DirEntry> {
    fs::read_dir(folder).into_iter().flatten().flatten()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn what_no_checkpoint_consists_of_is_foreign() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let write = |name: &str| {
            files::create_parent(&at(name)).unwrap();
            files::write_atomic(&at(name), b"{}").unwrap();
        };
        for name in [
            "step-00000010/model.safetensors",
            "step-00000010/MANIFEST.json",
            "pretrained/state.json",
            ".step-00000020.host-1-0011aabb.ddprun-tmp/model.safetensors",
        ] {
            write(name);
        }
        symlink("step-00000010", at("latest")).unwrap();
        symlink("../logs", at("logs")).unwrap();
        let clean = contents(dir.path(), &["logs"]);
        assert_eq!((clean.own.len(), clean.folders.len()), (6, 2), "{clean:?}");
        assert_eq!(clean.foreign, Vec::<PathBuf>::new());
        for name in ["thesis.tex", "step-00000010/notes.txt", "photos/1.jpg", "step-x/state.json"] {
            write(name);
        }
        symlink("/etc", at("step-00000030")).unwrap();
        symlink("/etc", at("data")).unwrap();
        let foreign = contents(dir.path(), &["logs"]).foreign;
        let names: Vec<_> =
            foreign.iter().map(|path| path.strip_prefix(dir.path()).unwrap()).collect();
        let expected =
            ["data", "photos", "step-00000010/notes.txt", "step-00000030", "step-x", "thesis.tex"];
        assert_eq!(names, expected.map(Path::new));
    }
}
