//! Photos: how many of each class, and how large.

use std::path::{Path, PathBuf};

use image::ImageFormat;

use crate::cli::Refusal;
use crate::cli::init::listing;
use crate::cli::init::recognised::unusable;

/// Images whose size is looked up, at even distances.
const MAX_MEASURED: usize = 200;
/// Folders that a message names.
const MAX_NAMED: usize = 5;

/// Image files below `folder`.
pub(super) fn below(folder: &Path) -> Vec<PathBuf> {
    let mut open = vec![folder.to_owned()];
    let mut found = Vec::new();
    while let Some(folder) = open.pop() {
        open.extend(listing::folders(&folder));
        found.extend(listing::files(&folder).into_iter().filter(|file| is_image(file)));
    }
    found.sort_unstable();
    found
}

/// Whether folders below `root` hold images.
pub(super) fn has_classes(root: &Path) -> bool {
    listing::folders(root).iter().any(|class| !below(class).is_empty())
}

/// Refuses a folder of which some folders hold no image: each would be a class.
pub(super) fn refuse_others(root: &Path) -> Result<(), Refusal> {
    let others: Vec<String> = listing::folders(root)
        .iter()
        .filter(|folder| below(folder).is_empty())
        .map(|folder| format!("`{}`", listing::name(folder)))
        .collect();
    if others.is_empty() {
        return Ok(());
    }
    let shown = others.iter().take(MAX_NAMED).cloned().collect::<Vec<_>>().join(", ");
    let more = others.len().saturating_sub(MAX_NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let what = format!("has folders of images, and others without: {shown}{more}");
    let help = "give the folder of one data set, each of whose folders is a class";
    Err(unusable(root, &what, help))
}

/// Whether a file is called as an image that can be read.
pub(super) fn is_image(path: &Path) -> bool {
    ImageFormat::from_path(path).is_ok_and(|format| format.reading_enabled())
}

/// The median of the shorter sides of some of these images, in pixels.
pub(super) fn median_side(all: &[PathBuf]) -> u32 {
    measured(all).0
}

/// The same, how many have been looked at, and how many of these cannot be read.
fn measured(all: &[PathBuf]) -> (u32, usize, usize) {
    let stride = all.len().div_ceil(MAX_MEASURED).max(1);
    let looked_at = all.len().div_ceil(stride);
    let sizes = all.iter().step_by(stride).filter_map(|path| image::image_dimensions(path).ok());
    let mut sides: Vec<u32> = sizes.map(|(width, height)| width.min(height)).collect();
    sides.sort_unstable();
    let side = sides.get(sides.len() / 2).copied().unwrap_or(224);
    (side, looked_at, looked_at - sides.len())
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
    /// Those that have been looked at, and those of them that cannot be read.
    pub(super) unreadable: (usize, usize),
}

impl Photos {
    /// Counts and measures those of `root`.
    pub(super) fn of(root: &Path) -> Self {
        let mut all = Vec::new();
        let mut classes = Vec::new();
        for class in listing::folders(root) {
            let images = below(&class);
            let name = class.file_name().unwrap_or_default().to_string_lossy().into_owned();
            classes.push((name, images.len()));
            all.extend(images);
        }
        let smallest = classes.iter().min_by_key(|(_, n)| *n).cloned().unwrap_or_default();
        let largest = classes.iter().map(|(_, n)| *n).max().unwrap_or(0);
        let (side, looked_at, unreadable) = measured(&all);
        Self { smallest, largest, side, unreadable: (looked_at, unreadable) }
    }
}
