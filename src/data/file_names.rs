//! What the name of a file says of it, and the files below a folder.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use walkdir::WalkDir;

use crate::data::error::Error;

/// Endings of image files, compared without case.
pub(crate) const IMAGE_ENDINGS: [&str; 10] =
    [".jpg", ".jpeg", ".jfif", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"];

/// The same in words.
pub(crate) const IMAGES: &str = "images (.jpg .jpeg .jfif .png .ppm .bmp .pgm .tif .tiff .webp)";

/// Whether it is called like an image.
pub(crate) fn is_image(name: &OsStr) -> bool {
    let lower = OsString::from_vec(name.as_bytes().to_ascii_lowercase());
    IMAGE_ENDINGS.iter().any(|ending| lower.as_bytes().ends_with(ending.as_bytes()))
}

/// Whether a name begins with a dot: what a file browser hides, such as the resource forks of macOS
/// (`._1.png`).
pub(crate) fn is_hidden(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b".")
}

/// The files below `root`, at most `depth` folders down, in the order of their names and without
/// what is hidden. Links are followed, but for one that leads back to a folder above it; one that
/// leads nowhere is a file.
pub(crate) fn files_below(
    root: &Path,
    depth: usize,
) -> impl Iterator<Item = Result<PathBuf, Error>> {
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

/// Endings that are named.
const MAX_NAMED_ENDINGS: usize = 5;
/// Longest ending that is counted by its name.
const MAX_ENDING_LENGTH: usize = 8;

/// Files in folders that are not called like what is read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeftOut {
    /// How many of each ending, in small letters without the dot; empty for none.
    pub(crate) endings: BTreeMap<String, u64>,
    /// Files that are called so, with a dot before it.
    pub(crate) hidden: u64,
}

impl LeftOut {
    /// Counts a file.
    pub(crate) fn count(&mut self, name: &OsStr) {
        *self.endings.entry(ending(name)).or_default() += 1;
    }

    /// "3 .gif, 1 without an ending", if there is any.
    pub(crate) fn words(&self) -> Option<String> {
        let Self { endings, hidden } = self;
        let mut counts: Vec<_> = endings.iter().collect();
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let named =
            counts.iter().take(MAX_NAMED_ENDINGS).map(|(ending, count)| match ending.as_str() {
                "" => format!("{count} without an ending"),
                ending => format!("{count} .{ending}"),
            });
        let rest = counts.len().saturating_sub(MAX_NAMED_ENDINGS);
        let rest = (rest > 0).then(|| format!("{rest} more endings"));
        let hidden = (*hidden > 0).then(|| format!("{hidden} with a name that begins with a dot"));
        let all: Vec<String> = named.chain(rest).chain(hidden).collect();
        (!all.is_empty()).then(|| all.join(", "))
    }
}

/// The ending of a name without the dot, in small letters; one that is no usual ending counts as
/// none.
fn ending(name: &OsStr) -> String {
    let ending = Path::new(name).extension().and_then(OsStr::to_str).unwrap_or_default();
    let is_one =
        ending.len() <= MAX_ENDING_LENGTH && ending.bytes().all(|b| b.is_ascii_alphanumeric());
    if is_one { ending.to_ascii_lowercase() } else { String::new() }
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

    #[test]
    fn the_words_for_images_name_all_endings() {
        assert_eq!(IMAGES, format!("images ({})", IMAGE_ENDINGS.join(" ")));
    }
}
