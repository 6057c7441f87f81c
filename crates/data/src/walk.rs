//! The files below a folder.

use std::path::{Path, PathBuf};

use walkdir::WalkDir;

use crate::error::Error;
use crate::file_names::is_hidden;

/// The files below `root`, at most `depth` folders down, in the order of their names and without
/// what is hidden. Links are followed, but for one that leads back to a folder above it; one that
/// leads nowhere is a file.
pub fn files_below(root: &Path, depth: usize) -> impl Iterator<Item = Result<PathBuf, Error>> {
    let walk = WalkDir::new(root).max_depth(depth + 1).follow_links(true).sort_by_file_name();
    let entries = walk.into_iter().filter_entry(|entry| {
        // Only what is in the folder can be hidden, not the folder that was named.
        entry.depth() == 0 || !is_hidden(entry.file_name())
    });
    entries.filter_map(move |entry| match entry {
        Ok(entry) => (!entry.file_type().is_dir()).then(|| Ok(entry.into_path())),
        Err(error) => {
            let path = error.path().unwrap_or(root).to_owned();
            let is_hidden = error.depth() > 0 && path.file_name().is_some_and(is_hidden);
            // A link that leads back has no error of the system.
            let is_left_out = is_hidden || error.loop_ancestor().is_some();
            let leads_nowhere = error.depth() > 0 && path.is_symlink() && !path.is_dir();
            match error.into_io_error() {
                _ if is_left_out => None,
                Some(_) if leads_nowhere => Some(Ok(path)),
                Some(source) => Some(Err(Error::Io { action: "list", path, source })),
                None => None,
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn files_below_a_folder_are_in_order_through_links_and_without_what_is_hidden() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        for folder in ["set/b/deep", "set/.hidden", "elsewhere"] {
            fs::create_dir_all(at(folder)).unwrap();
        }
        for file in ["set/b/2", "set/b/deep/1", "set/c", "set/.d", "set/.hidden/5", "elsewhere/6"] {
            fs::File::create(at(file)).unwrap();
        }
        symlink("../elsewhere", at("set/a")).unwrap();
        symlink("..", at("set/b/loop")).unwrap();
        symlink("absent", at("set/nowhere")).unwrap();
        symlink("absent", at("set/.nowhere")).unwrap();
        let listed = |depth| -> Vec<String> {
            let below = at("set");
            let files = files_below(&below, depth).map(|file| file.unwrap());
            files.map(|file| file.strip_prefix(&below).unwrap().display().to_string()).collect()
        };
        assert_eq!(listed(8), ["a/6", "b/2", "b/deep/1", "c", "nowhere"]);
        assert_eq!(listed(1), ["a/6", "b/2", "c", "nowhere"]);
        assert_eq!(listed(0), ["c", "nowhere"]);
        let error = files_below(&at("absent"), 8).next().unwrap().unwrap_err().to_string();
        assert!(error.contains("absent"), "{error}");
    }
}
