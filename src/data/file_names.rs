//! What the name of a file says of it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Endings of image files, compared without case.
pub(crate) const IMAGE_ENDINGS: [&str; 10] =
    [".jpg", ".jpeg", ".jfif", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"];

/// Whether it is called like an image.
pub(crate) fn is_image(name: &OsStr) -> bool {
    let lower = OsString::from_vec(name.as_bytes().to_ascii_lowercase());
    IMAGE_ENDINGS.iter().any(|ending| lower.as_bytes().ends_with(ending.as_bytes()))
}

/// Whether a name begins with a dot: what a file browser hides, such as the resource forks of macOS
/// (`._1.png`), or is that of the folder in which archives of macOS hold these.
pub(crate) fn is_hidden(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b".") || name == "__MACOSX"
}
