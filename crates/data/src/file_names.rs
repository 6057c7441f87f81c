//! File names: kinds of files by their endings, and hidden files.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use crate::packed::Packing;

/// Endings of image files, compared without case.
pub const IMAGE_ENDINGS: [&str; 10] =
    [".jpg", ".jpeg", ".jfif", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"];

/// [`IMAGE_ENDINGS`] in words.
pub(crate) const IMAGES: &str = "images (.jpg .jpeg .jfif .png .ppm .bmp .pgm .tif .tiff .webp)";

/// True if the name ends like an image's.
pub fn is_image(name: &OsStr) -> bool {
    let lower = OsString::from_vec(name.as_bytes().to_ascii_lowercase());
    IMAGE_ENDINGS.iter().any(|ending| lower.as_bytes().ends_with(ending.as_bytes()))
}

/// True for names that begin with a dot, which file browsers hide, such as the resource forks of
/// macOS (`._1.png`), and for the folder in which archives of macOS hold these.
pub fn is_hidden(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b".") || name == "__MACOSX"
}

/// The name of a file without the `.gz` or `.zst` that says how it is packed.
pub fn unpacked(path: &Path) -> &Path {
    if Packing::of_name(path).is_none() {
        return path;
    }
    path.file_stem().map_or(path, Path::new)
}

/// Endings that are named.
const MAX_NAMED_ENDINGS: usize = 5;
/// Longest ending that is counted by its name.
const MAX_ENDING_LENGTH: usize = 8;

/// Files in folders that are not called like what is read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeftOut {
    /// Number of files by ending, in small letters without the dot; an empty one for none.
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
    use super::*;

    #[test]
    fn the_words_for_images_name_all_endings() {
        assert_eq!(IMAGES, format!("images ({})", IMAGE_ENDINGS.join(" ")));
    }
}
