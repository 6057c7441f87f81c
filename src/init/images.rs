//! Photos: their number in each class, and their size.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::data;
use crate::init::names::{self, count, named};
use crate::init::recognised::unusable;
use crate::user_error::ErrorPage;

/// Most images that are measured, at even distances.
const MAX_MEASURED: usize = 200;
/// Endings of images that are not read.
const UNREAD: [&str; 15] = [
    "heic", "heif", "avif", "gif", "jxl", "jp2", "svg", "psd", "ico", "dng", "cr2", "cr3", "nef",
    "arw", "dcm",
];
/// Remedy for such images.
pub(super) const CONVERT: &str =
    "convert them, for example with ImageMagick: `magick mogrify -format jpg *.heic`";

/// Image files below `folder`.
pub(super) fn below(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = walk(folder).collect();
    found.sort_unstable();
    found
}

/// True if there are image files below `folder`.
pub(super) fn are_below(folder: &Path) -> bool {
    walk(folder).next().is_some()
}

/// Image files below `folder`, one folder after the other.
fn walk(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let mut open = vec![folder.to_owned()];
    let folders = std::iter::from_fn(move || {
        let folder = open.pop()?;
        open.extend(names::folders(&folder));
        Some(folder)
    });
    folders.flat_map(|folder| names::files(&folder)).filter(|file| is_image(file))
}

/// True if folders below `root` hold images.
pub(super) fn has_classes(root: &Path) -> bool {
    names::folders(root).iter().any(|class| are_below(class))
}

/// Names of the class folders in `root`.
pub(super) fn classes(root: &Path) -> Vec<String> {
    names::folders(root).iter().map(|folder| names::name(folder)).collect()
}

/// Images of `root` that are in no class folder.
pub(super) fn directly_in(root: &Path) -> usize {
    names::files(root).iter().filter(|file| is_image(file)).count()
}

/// Checks that `part` has images of the classes of `train`.
///
/// # Errors
///
/// The reason why it is of no use, in words.
pub(super) fn fits(train: &Path, part: &Path) -> Result<(), String> {
    let (own, theirs) = (classes(train), classes(part));
    if own == theirs {
        return Ok(());
    }
    if !has_classes(part) {
        let n = below(part).len();
        return Err(if n == 0 {
            "it holds no images".to_owned()
        } else {
            format!("it has no class folders; `ddprun predict RUN` takes its {} images", count(n))
        });
    }
    let lacking = |of: &[String], other: &[String], what: &str| {
        let lacking: Vec<&str> =
            of.iter().filter(|name| !other.contains(name)).map(String::as_str).collect();
        (!lacking.is_empty()).then(|| format!("{what} {}", named(&lacking)))
    };
    let differences = [lacking(&own, &theirs, "it lacks"), lacking(&theirs, &own, "only it has")];
    let differences: Vec<String> = differences.into_iter().flatten().collect();
    Err(format!("its classes are others: {}", differences.join("; ")))
}

/// Refuses a folder of which some folders hold no image: each would be a class.
pub(super) fn refuse_others(root: &Path) -> Result<(), ErrorPage> {
    let all = names::folders(root);
    let others: Vec<&PathBuf> = all.iter().filter(|folder| !are_below(folder)).collect();
    if others.is_empty() {
        return Ok(());
    }
    if let Some((folder, what)) =
        others.iter().find_map(|folder| Some((folder, unread_below(folder)?)))
    {
        return Err(unusable(folder, &format!("holds {what}, which are not read"), CONVERT));
    }
    let names: Vec<String> = others.iter().map(|folder| names::name(folder)).collect();
    let is_empty =
        |folder: &&PathBuf| names::files(folder).is_empty() && names::folders(folder).is_empty();
    if others.iter().all(is_empty) {
        let what = format!("has empty folders, of which each would be a class: {}", named(&names));
        return Err(unusable(root, &what, "remove them, or put images of the class into each"));
    }
    let what = format!("has folders of images, and others without: {}", named(&names));
    let help = "give the folder of one data set, each of whose folders is a class";
    Err(unusable(root, &what, help))
}

/// True if a file has the extension of an image that can be read.
pub(super) fn is_image(path: &Path) -> bool {
    path.file_name().is_some_and(data::is_image)
}

/// True if a file has the extension of an image format that is not read.
pub(super) fn is_unread(path: &Path) -> bool {
    UNREAD.contains(&&*names::ending(path))
}

/// Images below `folder` that are not read: "12 `.heic` files and 3 `.gif` files".
pub(super) fn unread_below(folder: &Path) -> Option<String> {
    let mut open = vec![folder.to_owned()];
    let mut found = BTreeMap::<String, usize>::new();
    while let Some(folder) = open.pop() {
        open.extend(names::folders(&folder));
        let unread = names::files(&folder).into_iter().filter(|file| is_unread(file));
        unread.for_each(|file| *found.entry(names::ending(&file)).or_default() += 1);
    }
    let words = found.iter().map(|(ending, n)| {
        format!("{} `.{ending}` {}", count(*n), if *n == 1 { "file" } else { "files" })
    });
    let words: Vec<String> = words.collect();
    (!words.is_empty()).then(|| words.join(" and "))
}

/// The median of the shorter sides of some of these images, in pixels.
pub(super) fn median_side(all: &[PathBuf]) -> u32 {
    measured(all).0
}

/// The same, the number of measured images, and of those among them that cannot be read.
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
    /// Number of measured images, and of those among them that cannot be read.
    pub(super) unreadable: (usize, usize),
}

impl Photos {
    /// Counts and measures those of `root`.
    pub(super) fn of(root: &Path) -> Self {
        let mut all = Vec::new();
        let mut classes = Vec::new();
        for class in names::folders(root) {
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
