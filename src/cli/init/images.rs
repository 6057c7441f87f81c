//! Photos: how many of each class, and how large.

use std::fs;
use std::path::{Path, PathBuf};

use image::ImageFormat;

/// Images whose size is looked up, at even distances.
const MAX_MEASURED: usize = 200;

/// Image files below `folder`.
pub(super) fn below(folder: &Path) -> Vec<PathBuf> {
    let mut open = vec![folder.to_owned()];
    let mut found = Vec::new();
    while let Some(path) = open.pop() {
        let entries = fs::read_dir(&path).into_iter().flatten().flatten().map(|entry| entry.path());
        for path in entries.filter(|path| !is_hidden(path)) {
            if path.is_dir() {
                open.push(path);
            } else if is_image(&path) {
                found.push(path);
            }
        }
    }
    found.sort_unstable();
    found
}

/// Sub-folders of `folder`, in order.
pub(super) fn folders(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found: Vec<PathBuf> =
        entries.filter(|path| path.is_dir() && !is_hidden(path)).collect();
    found.sort_unstable();
    found
}

/// Whether folders below `root` hold images.
pub(super) fn has_classes(root: &Path) -> bool {
    folders(root).iter().any(|class| !below(class).is_empty())
}

fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'))
}

fn is_image(path: &Path) -> bool {
    ImageFormat::from_path(path).is_ok_and(|format| format.reading_enabled())
}

/// Photos of a folder of class folders.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Photos {
    /// Name and number of the smallest class.
    pub(super) smallest: (String, usize),
    /// Number of the largest class.
    pub(super) largest: usize,
    /// The median of the shorter sides, in pixels.
    pub(super) side: u32,
}

impl Photos {
    /// Counts and measures those of `root`.
    pub(super) fn of(root: &Path) -> Self {
        let mut all = Vec::new();
        let mut classes = Vec::new();
        for class in folders(root) {
            let images = below(&class);
            let name = class.file_name().unwrap_or_default().to_string_lossy().into_owned();
            classes.push((name, images.len()));
            all.extend(images);
        }
        let smallest = classes.iter().min_by_key(|(_, n)| *n).cloned().unwrap_or_default();
        let largest = classes.iter().map(|(_, n)| *n).max().unwrap_or(0);
        let stride = all.len().div_ceil(MAX_MEASURED).max(1);
        let sizes =
            all.iter().step_by(stride).filter_map(|path| image::image_dimensions(path).ok());
        let mut sides: Vec<u32> = sizes.map(|(width, height)| width.min(height)).collect();
        sides.sort_unstable();
        let side = sides.get(sides.len() / 2).copied().unwrap_or(224);
        Self { smallest, largest, side }
    }
}
