//! A folder of class folders -> its classes and files, in exactly torchvision's `ImageFolder`
//! order.
//!
//! Easily got wrong: `ImageFolder` sorts whole directory paths (`sorted(os.walk(..))`), so `a-b/`
//! comes before `a/b/`, and file names only within their directory.
//!
//! Otherwise than there, files and folders whose names begin with a dot are left out: resource
//! forks of macOS (`._1.png`) are no images, and `.ipynb_checkpoints` is no class.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, shown};
use crate::file_names::{IMAGE_ENDINGS, LeftOut, is_hidden, is_image};
use crate::listing::paths::Paths;

/// Endings of images that cannot be read: a user who has some of them wants to know.
const FOREIGN: [&str; 7] = ["gif", "heic", "avif", "jp2", "jxl", "svg", "psd"];
/// Files that are no images, for each that is, from which on they are worth a word: one in ten.
const MANY: u64 = 10;

/// Expected layout of an image folder.
const EXPECTED: &str = "one folder per class, with images in it: <class>/<image>.jpg";

/// Classes and files of an image folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Listing {
    /// Class names in label order: byte order of the folder names.
    pub(crate) classes: Vec<String>,
    /// Files with their labels, in sample order.
    pub(crate) files: Paths,
    /// Files that were left out.
    pub(crate) left_out: LeftOut,
}

impl Listing {
    /// The classes of which there is no image.
    pub(crate) fn empty_classes(&self) -> Vec<String> {
        let counts = self.files.counts(self.classes.len());
        let empty = self.classes.iter().zip(counts).filter(|(_, count)| *count == 0);
        empty.map(|(class, _)| class.clone()).collect()
    }

    /// A note on the files of `root` that were left out, where that may not be intended.
    pub(crate) fn note(&self, root: &Path) -> Option<String> {
        let LeftOut { endings, hidden } = &self.left_out;
        let others: u64 = endings.values().sum();
        let are_foreign = FOREIGN.iter().any(|ending| endings.contains_key(*ending));
        if !are_foreign && *hidden == 0 && others * MANY <= self.files.len() as u64 {
            return None;
        }
        let (root, endings) = (shown(root), IMAGE_ENDINGS.join(" "));
        let others = self.left_out.words()?;
        Some(format!("`{root}`: files that are not read: {others} (images are {endings})"))
    }
}

/// A listing, and what it was read from.
#[derive(Default)]
pub(crate) struct Scan {
    pub(crate) listing: Listing,
    /// Every folder that was read, as it was before it was read; the root first.
    pub(crate) folders: Vec<(PathBuf, Metadata)>,
    /// Links to something that is neither a folder nor called like an image, with what was there: a
    /// folder may take its place while all folders stay as they are.
    pub(crate) links: Vec<(PathBuf, Option<Metadata>)>,
}

/// Lists the image folder `root`, called `what` in messages, without opening a file.
///
/// Links are followed; a link to a folder above itself is not descended into again. Only regular
/// files count, and links that lead nowhere (their samples fail by name when they are loaded).
pub(crate) fn scan(root: &Path, what: &'static str) -> Result<Scan, Error> {
    let mut scan = Scan::default();
    let names = class_names(root, what, &mut scan)?;
    if names.is_empty() {
        return Err(Error::NoClasses { path: root.to_owned() });
    }
    for (label, name) in names.iter().enumerate() {
        list_class(&root.join(name), label as u32, &mut scan)?;
    }
    let classes = names.into_iter().map(|name| name.to_string_lossy().into_owned()).collect();
    scan.listing.classes = classes;
    Ok(scan)
}

/// Gives the files of `listing`, found in `root`, the labels of the folder `train` with its
/// `classes`. Returns the classes of which it has no image: they may be rare, or absent from
/// another site.
pub(crate) fn label_as(
    train: &Path,
    classes: &[String],
    root: &Path,
    listing: &mut Listing,
) -> Result<Vec<String>, Error> {
    let order: BTreeMap<&String, u32> = classes.iter().zip(0..).collect();
    let labels = listing.classes.iter().map(|class| order.get(class).copied());
    let Some(labels) = labels.collect::<Option<Vec<u32>>>() else {
        let missing_in = |from: &[String], other: &[String]| {
            from.iter().filter(|class| !other.contains(class)).cloned().collect()
        };
        return Err(Error::ClassListsDiffer {
            train: train.to_owned(),
            val: root.to_owned(),
            only_train: missing_in(classes, &listing.classes),
            only_val: missing_in(&listing.classes, classes),
        });
    };
    if listing.files.is_empty() {
        let what = "none of its class folders holds an image".to_owned();
        return Err(Error::Format { path: root.to_owned(), what });
    }
    listing.files.relabel(&labels);
    listing.classes = classes.to_vec();
    Ok(listing.empty_classes())
}

/// Names of the root's sub-folders (links to folders included), in byte order.
fn class_names(root: &Path, what: &'static str, scan: &mut Scan) -> Result<Vec<OsString>, Error> {
    let unusable = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => {
            Error::Missing { what, path: root.to_owned(), expected: EXPECTED }
        }
        io::ErrorKind::NotADirectory => {
            Error::NotAFolder { what, path: root.to_owned(), expected: EXPECTED }
        }
        _ => listing_failed(root)(source),
    };
    scan.folders.push((root.to_owned(), fs::metadata(root).map_err(unusable)?));
    let entries = fs::read_dir(root).map_err(unusable)?;
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(listing_failed(root))?;
        // What is no folder here would be a class if it became one, whatever it is called.
        if !is_hidden(&entry.file_name()) && kind(&entry, NameKind::Other, scan)? == Kind::Folder {
            names.push(entry.file_name());
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// A folder of a class with the names of its images.
struct Folder {
    path: PathBuf,
    images: Vec<OsString>,
}

fn list_class(root: &Path, label: u32, scan: &mut Scan) -> Result<(), Error> {
    let mut folders = Vec::new();
    walk(root.to_owned(), &mut Vec::new(), &mut folders, scan)?;
    folders.sort_unstable_by(|a, b| a.path.as_os_str().cmp(b.path.as_os_str()));
    for folder in &mut folders {
        folder.images.sort_unstable();
        let files = &mut scan.listing.files;
        folder.images.iter().for_each(|name| files.push(&folder.path, name, label));
    }
    Ok(())
}

/// Collects the images of `path` and all folders below it. `above` holds (device, inode) of each
/// folder on the way down.
fn walk(
    path: PathBuf,
    above: &mut Vec<(u64, u64)>,
    out: &mut Vec<Folder>,
    scan: &mut Scan,
) -> Result<(), Error> {
    let meta = fs::metadata(&path).map_err(listing_failed(&path))?;
    let identity = (meta.dev(), meta.ino());
    if above.contains(&identity) {
        return Ok(());
    }
    above.push(identity);
    scan.folders.push((path.clone(), meta));
    let mut images = Vec::new();
    let mut below = Vec::new();
    for entry in fs::read_dir(&path).map_err(listing_failed(&path))? {
        let entry = entry.map_err(listing_failed(&path))?;
        let name = entry.file_name();
        let is_image = is_image(&name);
        if is_hidden(&name) {
            scan.listing.left_out.hidden += u64::from(is_image);
            continue;
        }
        let called = if is_image { NameKind::Image } else { NameKind::Other };
        match kind(&entry, called, scan)? {
            Kind::Folder => below.push(entry.path()),
            Kind::File if is_image => images.push(name),
            Kind::File => scan.listing.left_out.count(&name),
            Kind::Other => {}
        }
    }
    out.push(Folder { path, images });
    for folder in below {
        walk(folder, above, out, scan)?;
    }
    above.pop();
    Ok(())
}

#[derive(PartialEq, Eq)]
enum Kind {
    Folder,
    File,
    Other,
}

/// Classification of an entry by its name alone. An entry named like an image is listed, unless it
/// is a folder.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NameKind {
    Image,
    Other,
}

/// The kind of an entry, links followed. Costs a system call for links only.
fn kind(entry: &fs::DirEntry, called: NameKind, scan: &mut Scan) -> Result<Kind, Error> {
    let path = entry.path();
    let mut file_type = entry.file_type().map_err(listing_failed(&path))?;
    if file_type.is_symlink() {
        let target = fs::metadata(&path).ok();
        let leads_to = target.as_ref().map(Metadata::file_type);
        if called == NameKind::Other && leads_to.is_none_or(|target| !target.is_dir()) {
            scan.links.push((path, target));
        }
        match leads_to {
            Some(target) => file_type = target,
            // A dead link or a loop of links: an image that cannot be read.
            None => return Ok(Kind::File),
        }
    }
    Ok(match () {
        () if file_type.is_dir() => Kind::Folder,
        () if file_type.is_file() => Kind::File,
        () => Kind::Other,
    })
}

fn listing_failed(path: &Path) -> impl Fn(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { action: "list", path: path.clone(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::user_error::UserError;

    fn list(root: &Path, what: &'static str) -> Result<Listing, Error> {
        scan(root, what).map(|scan| scan.listing)
    }

    fn tree(files: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for file in files {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::File::create(path).unwrap();
        }
        dir
    }

    fn listed(dir: &Path) -> Vec<String> {
        let listing = list(dir, "the folder").unwrap();
        let relative = |(path, label): (PathBuf, u32)| {
            format!("{} {label}", path.strip_prefix(dir).unwrap().display())
        };
        listing.files.iter().map(relative).collect()
    }

    #[test]
    fn classes_files_and_nested_folders_are_in_torchvision_order() {
        // The order that `sorted(os.walk(.., followlinks=True))` gives, run with Python 3.
        let dir = tree(&[
            "class_2/b.JPG",
            "class_2/a/z.png",
            "class_2/a-b/y.webp",
            "class_2/a/b/x.bmp",
            "class_2/B.jpeg",
            "class_2/notes.txt",
            "class_10/1.tiff",
            "class_10/10.pgm",
            "class_10/2.ppm",
            "readme.md",
        ]);
        assert_eq!(
            listed(dir.path()),
            [
                "class_10/1.tiff 0",
                "class_10/10.pgm 0",
                "class_10/2.ppm 0",
                "class_2/B.jpeg 1",
                "class_2/b.JPG 1",
                "class_2/a/z.png 1",
                "class_2/a-b/y.webp 1",
                "class_2/a/b/x.bmp 1",
            ]
        );
    }

    #[test]
    fn what_begins_with_a_dot_is_neither_image_nor_class() {
        let dir = tree(&[
            "cats/1.png",
            "cats/2.JFIF",
            "cats/._1.png",
            "cats/.DS_Store",
            "cats/.thumbnails/3.png",
            ".ipynb_checkpoints/4.png",
        ]);
        assert_eq!(listed(dir.path()), ["cats/1.png 0", "cats/2.JFIF 0"]);
        let listing = list(dir.path(), "the folder").unwrap();
        assert_eq!(listing.classes, ["cats"]);
        assert_eq!(listing.left_out, LeftOut { endings: BTreeMap::new(), hidden: 1 });
        let note = listing.note(Path::new("train")).unwrap();
        let expected = "`train`: files that are not read: 1 with a name that begins with a dot (";
        assert!(note.starts_with(expected), "{note}");
    }

    #[test]
    fn images_that_cannot_be_read_and_many_other_files_are_counted() {
        let mut files: Vec<String> = (0..20).map(|i| format!("a/{i}.png")).collect();
        let listing = |files: &[String]| {
            let dir = tree(&files.iter().map(String::as_str).collect::<Vec<_>>());
            list(dir.path(), "the folder").unwrap()
        };
        files.extend(["a/readme.txt".to_owned(), "a/Makefile".to_owned()]);
        assert_eq!(listing(&files).note(Path::new("r")), None, "one in ten");
        let some = [&files[..], &["a/x.GIF".to_owned(), "a/y.gif".to_owned()]].concat();
        let note = listing(&some).note(Path::new("r")).unwrap();
        let expected = "`r`: files that are not read: 2 .gif, 1 without an ending, 1 .txt (images";
        assert!(note.starts_with(expected), "{note}");
        files.push("a/notes.md".to_owned());
        assert!(listing(&files).note(Path::new("r")).unwrap().contains("1 .md"));
    }

    #[test]
    fn links_are_followed_and_a_link_upwards_ends() {
        let dir = tree(&["real/a.png", "elsewhere.d/b.png"]);
        let link = |from: &str, to: &str| {
            std::os::unix::fs::symlink(to, dir.path().join(from)).unwrap();
        };
        link("real/up", "..");
        link("linked", "elsewhere.d");
        link("real/dead.jpg", "nowhere");
        let found = listed(dir.path());
        assert!(found.contains(&"linked/b.png 1".to_owned()), "{found:?}");
        assert!(found.contains(&"real/dead.jpg 2".to_owned()), "{found:?}");
        assert_eq!(found.iter().filter(|line| line.starts_with("real/a.png")).count(), 1);
    }

    #[test]
    fn a_fifo_is_not_an_image() {
        let dir = tree(&["a/1.png"]);
        let fifo = dir.path().join("a/2.png");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR).unwrap();
        assert_eq!(listed(dir.path()), ["a/1.png 0"]);
    }

    #[test]
    fn an_empty_class_is_named_and_a_missing_folder_says_what_it_should_hold() {
        let dir = tree(&["cats/1.png", "dogs/readme.txt"]);
        assert_eq!(list(dir.path(), "the training folder").unwrap().empty_classes(), ["dogs"]);
        let error = list(&dir.path().join("absent"), "the training folder").unwrap_err();
        assert!(error.to_string().starts_with("the training folder `"), "{error}");
        assert!(error.help().unwrap().contains("<class>/<image>.jpg"));
        let error = list(&dir.path().join("cats"), "the training folder").unwrap_err();
        assert!(matches!(error, Error::NoClasses { .. }));
        let error = list(&dir.path().join("cats/1.png"), "the training folder").unwrap_err();
        assert!(matches!(error, Error::NotAFolder { .. }));
    }

    #[test]
    fn names_that_are_not_utf8_work() {
        use std::os::unix::ffi::OsStringExt;
        let dir = tree(&["a/1.png"]);
        let odd = OsString::from_vec(b"\xff\n.jpg".to_vec());
        fs::File::create(dir.path().join("a").join(odd)).unwrap();
        assert_eq!(list(dir.path(), "the folder").unwrap().files.len(), 2);
    }

    #[test]
    fn class_lists_that_differ_are_shown_from_both_sides() {
        let train = ["ape", "bear", "cat"].map(str::to_owned);
        let dir = tree(&["ape/1.png", "cow/2.png"]);
        let mut val = list(dir.path(), "the validation folder").unwrap();
        let error = label_as(Path::new("t"), &train, Path::new("v"), &mut val).unwrap_err();
        assert_eq!(
            error.to_string(),
            "class folders differ: only in `t`: `bear`, `cat`; only in `v`: `cow`"
        );
    }

    #[test]
    fn files_of_some_of_the_classes_have_the_labels_of_all() {
        let train = ["ape", "bear", "cat"].map(str::to_owned);
        let root = Path::new("v");
        let labelled = |files: &[&str], empty: &str| {
            let dir = tree(files);
            fs::create_dir_all(dir.path().join(empty)).unwrap();
            let mut val = list(dir.path(), "the validation folder").unwrap();
            let absent = label_as(Path::new("t"), &train, root, &mut val)?;
            Ok::<_, Error>((absent, val.files.labels(), val.classes.len()))
        };
        let found = labelled(&["ape/1.png", "cat/1.png", "cat/2.png"], "cat").unwrap();
        assert_eq!(found, (vec!["bear".to_owned()], vec![0, 2, 2], 3), "its folder is absent");
        assert_eq!(labelled(&["ape/1.png", "cat/1.png", "cat/2.png"], "bear").unwrap(), found);
        let none = labelled(&["ape/readme.txt"], "bear").unwrap_err();
        assert!(none.to_string().contains("none of its class folders"), "{none}");
    }
}
