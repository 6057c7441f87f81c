//! Listings of large image folders, kept from one start to the next: a million names are read in a
//! fraction of a second instead of many, by the parent and by every rank.
//!
//! A kept listing is used only if every folder that it was read from has the same identity, times,
//! size and number of links as just before it was read: making, removing or renaming anything in a
//! folder changes its times. A folder behind a link is looked at where the link leads, and links
//! that lead to no folder must still lead to what they led to, unless they are called like images,
//! which are listed whatever they lead to. Folders that were changed within the last seconds, whose
//! clock may not have moved on since, are not kept. Contents of files are no part of a listing.
//!
//! The files are `listings/<hash of the path>` in `$DDPRUN_CACHE`, else `$XDG_CACHE_HOME/ddprun`,
//! else `~/.cache/ddprun`, and may be removed at any time. `DDPRUN_CACHE=off` keeps nothing.

use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::error::Error;
use crate::file_names::LeftOut;
use crate::file_state::{SETTLED, is_settled, stamp};
use crate::files;
use crate::listing::paths::Paths;
use crate::listing::scan::{self, Listing, Scan};

/// First field of a kept listing: another one is not read.
const FORMAT: &[u8] = b"ddprun listing 2";
/// Fewer files are listed in milliseconds.
const MIN_FILES: usize = 10_000;
/// Bytes of the checksum at the end.
const CHECKSUM: usize = blake3::OUT_LEN;

/// The cache of listings.
#[derive(Clone, Debug)]
pub(crate) struct ListingCache {
    folder: PathBuf,
    least_files: usize,
    settled: Duration,
}

impl ListingCache {
    /// The user's; `None` where it is switched off or there is no place for it.
    pub(crate) fn of_user() -> Option<Self> {
        let folder = files::user_cache()?.join("listings");
        Some(Self { folder, least_files: MIN_FILES, settled: SETTLED })
    }

    /// The cache file of `root`, named by a hash of its absolute path.
    fn file(&self, root: &Path) -> Option<PathBuf> {
        let path = fs::canonicalize(root).ok()?;
        let name = blake3::hash(path.as_os_str().as_bytes()).to_hex();
        Some(self.folder.join(&name.as_str()[..32]))
    }

    /// The kept listing of `root`, if it is still true.
    fn load(&self, root: &Path) -> Option<Listing> {
        decode(&fs::read(self.file(root)?).ok()?, root)
    }

    /// Keeps a listing that was begun at `began`, if it is worth it and later changes would be
    /// seen.
    fn keep(&self, root: &Path, scan: &Scan, began: SystemTime) {
        let is_settled = |(_, meta): &(PathBuf, Metadata)| is_settled(meta, began, self.settled);
        let is_large = scan.listing.files.len() >= self.least_files;
        if !is_large || !scan.folders.iter().all(is_settled) {
            return;
        }
        if let (Some(file), Some(bytes)) = (self.file(root), encode(scan, root)) {
            // A listing that cannot be kept is read anew the next time.
            let _ = files::create_private_folder(&self.folder)
                .and_then(|()| files::write_private(&file, &bytes));
        }
    }
}

/// Lists `root` as [`scan::scan`] does, from `cache` if that holds a listing that is still true.
pub(crate) fn list(
    root: &Path,
    what: &'static str,
    cache: Option<&ListingCache>,
) -> Result<Listing, Error> {
    let Some(cache) = cache else { return Ok(scan::scan(root, what)?.listing) };
    if let Some(listing) = cache.load(root) {
        return Ok(listing);
    }
    let began = SystemTime::now();
    let scan = scan::scan(root, what)?;
    cache.keep(root, &scan, began);
    Ok(scan.listing)
}

/// Text that identifies the target of a link that is no folder.
fn link_stamp(target: Option<&Metadata>) -> String {
    target.map_or_else(|| "nothing".to_owned(), stamp)
}

/// Fields that end with a zero byte, which no path holds: format, counts of folders, links,
/// classes, endings and files; path below the root and stamp of each folder and link; each class;
/// count and ending of what was left out, then the count of hidden images; label and path of each
/// file; then a checksum of all.
fn encode(scan: &Scan, root: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut put = |field: &[u8]| {
        bytes.extend_from_slice(field);
        bytes.push(0);
    };
    let Listing { classes, files, left_out } = &scan.listing;
    let LeftOut { endings, hidden } = left_out;
    put(FORMAT);
    for count in [scan.folders.len(), scan.links.len(), classes.len(), endings.len(), files.len()] {
        put(count.to_string().as_bytes());
    }
    for (path, meta) in &scan.folders {
        put(path.strip_prefix(root).ok()?.as_os_str().as_bytes());
        put(stamp(meta).as_bytes());
    }
    for (path, target) in &scan.links {
        put(path.strip_prefix(root).ok()?.as_os_str().as_bytes());
        put(link_stamp(target.as_ref()).as_bytes());
    }
    for class in classes {
        put(class.as_bytes());
    }
    for (ending, count) in endings {
        put(count.to_string().as_bytes());
        put(ending.as_bytes());
    }
    put(hidden.to_string().as_bytes());
    for (path, label) in files.iter() {
        put(label.to_string().as_bytes());
        put(path.strip_prefix(root).ok()?.as_os_str().as_bytes());
    }
    let checksum = blake3::hash(&bytes);
    bytes.extend_from_slice(checksum.as_bytes());
    Some(bytes)
}

/// The listing in `bytes`, if they are whole and all folders and links below `root` still are as
/// they were.
fn decode(bytes: &[u8], root: &Path) -> Option<Listing> {
    let (body, checksum) = bytes.split_at_checked(bytes.len().checked_sub(CHECKSUM)?)?;
    if blake3::hash(body).as_bytes()[..] != *checksum {
        return None;
    }
    let mut fields = body.split(|&byte| byte == 0);
    let mut next = || fields.next();
    if next()? != FORMAT {
        return None;
    }
    let number = |field: &[u8]| std::str::from_utf8(field).ok()?.parse::<u64>().ok();
    let mut counts = [0; 5];
    for count in &mut counts {
        *count = number(next()?)?;
    }
    let [n_folders, n_links, n_classes, n_endings, n_files] = counts;
    let below = |path: &[u8]| root.join(OsStr::from_bytes(path));
    for _ in 0..n_folders {
        let meta = fs::metadata(below(next()?)).ok()?;
        if stamp(&meta).as_bytes() != next()? {
            return None;
        }
    }
    for _ in 0..n_links {
        let target = fs::metadata(below(next()?)).ok();
        if link_stamp(target.as_ref()).as_bytes() != next()? {
            return None;
        }
    }
    let text = |field: &[u8]| String::from_utf8(field.to_vec()).ok();
    let classes = (0..n_classes).map(|_| text(next()?)).collect::<Option<_>>()?;
    let mut left_out = LeftOut::default();
    for _ in 0..n_endings {
        let count = number(next()?)?;
        left_out.endings.insert(text(next()?)?, count);
    }
    left_out.hidden = number(next()?)?;
    let mut files = Paths::default();
    for _ in 0..n_files {
        let label = number(next()?)?.try_into().ok()?;
        files.push_path(&below(next()?), label);
    }
    Some(Listing { classes, files, left_out })
}

#[cfg(test)]
mod tests {
    use test_support::assert_refused;

    use super::*;

    /// A data folder of two classes, and a cache that keeps everything.
    fn setup() -> (tempfile::TempDir, PathBuf, ListingCache) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("data");
        for name in ["cats/1.png", "cats/old/2.jpg", "dogs/3.png"] {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::File::create(path).unwrap();
        }
        fs::create_dir(root.join("cats/empty")).unwrap();
        let folder = dir.path().join("cache");
        (dir, root, ListingCache { folder, least_files: 1, settled: Duration::ZERO })
    }

    /// Adds files until the clock of the file system has moved on.
    fn change(folder: &Path) {
        let before = stamp(&fs::metadata(folder).unwrap());
        for name in 0.. {
            fs::File::create(folder.join(format!("new-{name}.png"))).unwrap();
            if stamp(&fs::metadata(folder).unwrap()) != before {
                return;
            }
        }
    }

    #[test]
    fn a_kept_listing_is_the_listing() {
        let (_dir, root, cache) = setup();
        let listed = list(&root, "the folder", Some(&cache)).unwrap();
        assert_eq!(cache.load(&root), Some(listed.clone()));
        assert_eq!(list(&root, "the folder", Some(&cache)).unwrap(), listed);
        assert_eq!(list(&root, "the folder", None).unwrap(), listed);
    }

    #[test]
    fn a_file_more_in_any_folder_is_seen() {
        for folder in ["cats", "cats/old", "cats/empty", "dogs", ""] {
            let (_dir, root, cache) = setup();
            let before = list(&root, "the folder", Some(&cache)).unwrap();
            change(&root.join(folder));
            assert_eq!(cache.load(&root), None, "`{folder}`");
            let after = list(&root, "the folder", Some(&cache)).unwrap();
            assert_eq!(after, list(&root, "the folder", None).unwrap());
            assert!(folder.is_empty() || after.files.len() > before.files.len(), "`{folder}`");
        }
    }

    #[test]
    fn a_folder_that_vanished_or_was_replaced_is_seen() {
        let (_dir, root, cache) = setup();
        list(&root, "the folder", Some(&cache)).unwrap();
        fs::rename(&root, root.with_file_name("elsewhere")).unwrap();
        assert_refused(list(&root, "the folder", Some(&cache)), "does not exist");
        let (_other, replacement, _) = setup();
        std::os::unix::fs::symlink(&replacement, &root).unwrap();
        assert_eq!(cache.load(&root), None);
    }

    #[test]
    fn small_and_fresh_folders_are_not_kept() {
        let (_dir, root, keeps_all) = setup();
        let large_only = ListingCache { least_files: 4, ..keeps_all.clone() };
        let settled_only = ListingCache { settled: Duration::from_hours(1), ..keeps_all.clone() };
        for cache in [large_only, settled_only] {
            list(&root, "the folder", Some(&cache)).unwrap();
            assert_eq!(cache.load(&root), None);
        }
    }

    /// Links to a folder, to an image, to nothing and to a file, in a folder that is itself a link.
    #[test]
    fn folders_with_links_are_kept_with_what_the_links_lead_to() {
        let (dir, root, cache) = setup();
        let link = |to: &str, from: &Path| std::os::unix::fs::symlink(to, from).unwrap();
        let far = dir.path().join("far");
        for name in ["birds/5.png", "birds/deep/6.png", "other/7.png"] {
            let path = far.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::File::create(path).unwrap();
        }
        fs::File::create(far.join("note")).unwrap();
        link("../far/birds", &far.join("hop"));
        link("../../far/note", &root.join("cats/note"));
        link("../far/hop", &root.join("birds"));
        link("1.png", &root.join("cats/link.png"));
        link("../../far/later", &root.join("cats/later"));
        let listed = list(&root, "the folder", Some(&cache)).unwrap();
        assert_eq!((listed.files.len(), listed.classes.len()), (6, 3));
        assert_eq!(cache.load(&root), Some(listed.clone()));
        // What a link leads to changes, without a change of any folder below the root.
        change(&far.join("birds/deep"));
        assert_eq!(cache.load(&root), None);
        list(&root, "the folder", Some(&cache)).unwrap();
        fs::remove_file(far.join("hop")).unwrap();
        link("other", &far.join("hop"));
        assert_eq!(cache.load(&root), None, "a link on the way leads elsewhere");
        assert_eq!(list(&root, "the folder", Some(&cache)).unwrap().files.len(), 5);
        fs::create_dir(far.join("later")).unwrap();
        fs::File::create(far.join("later/8.png")).unwrap();
        assert_eq!(cache.load(&root), None, "a folder where a link led to nothing");
        assert_eq!(list(&root, "the folder", Some(&cache)).unwrap().files.len(), 6);
        fs::remove_file(far.join("note")).unwrap();
        fs::create_dir(far.join("note")).unwrap();
        assert_eq!(cache.load(&root), None, "a folder in place of a file");
        list(&root, "the folder", Some(&cache)).unwrap();
        assert!(cache.load(&root).is_some());
    }

    #[test]
    fn a_damaged_or_foreign_file_is_ignored() {
        let (_dir, root, cache) = setup();
        list(&root, "the folder", Some(&cache)).unwrap();
        let file = cache.file(&root).unwrap();
        let whole = fs::read(&file).unwrap();
        for cut in 0..whole.len() {
            assert_eq!(decode(&whole[..cut], &root), None, "{cut} bytes");
        }
        for at in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[at] ^= 1;
            assert_eq!(decode(&flipped, &root), None, "byte {at}");
        }
        assert!(decode(&whole, &root).is_some());
    }

    #[test]
    fn a_cache_that_cannot_be_written_changes_nothing() {
        let (dir, root, cache) = setup();
        let nowhere = ListingCache { folder: dir.path().join("data/cats/1.png"), ..cache };
        let listed = list(&root, "the folder", Some(&nowhere)).unwrap();
        assert_eq!(listed.files.len(), 3);
    }
}
