//! Tokens of large files, cut once and read by all ranks where they lie: cutting a gigabyte takes
//! minutes.
//!
//! The files are `tokens/<hash>` beside the listings (`listing/cache.rs`), named by a hash of what
//! the data, the tokenizer's file and others hold from which tokens follow, so that a change of any
//! is seen; complete or absent; and may be removed at any time. An index, `tokens/of-<hash of all
//! paths>`, says which of them belongs to files of these sizes and times, so that not every rank
//! reads the data to hash it. The survey of a start checks the tokens; ranks look at their header
//! only.

use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::error::Error;
use crate::files;
use crate::read;
use crate::sources::text::budget::Budget;

/// Shorter files are cut in a moment.
const MIN_BYTES: u64 = 1 << 20;
/// Bytes of the checksum at the end.
pub(super) const CHECKSUM: usize = blake3::OUT_LEN;
/// First line of an index entry.
const INDEX_FORMAT: &str = "ddprun tokens of 1";
/// Age of the last change of a file from which on its times tell every later change.
const SETTLED: Duration = Duration::from_secs(5);

/// Cache of tokens.
#[derive(Clone, Debug)]
pub(super) struct TokenCache {
    pub(super) folder: PathBuf,
    pub(super) least_bytes: u64,
}

/// The inputs that tokens depend on, beside this program.
#[derive(Clone, Debug)]
pub(super) struct Origin {
    /// The data, the tokenizer, and what else is read.
    pub(super) paths: Vec<PathBuf>,
    /// Number of the first of them that are the data.
    pub(super) n_texts: usize,
    /// Options of the experiment.
    pub(super) options: String,
}

/// Thoroughness of the check of a cached file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CacheCheck {
    /// Checks all of it, once for all ranks.
    Whole,
    Header,
}

/// Values that can be cached in a file.
pub(super) trait Cacheable: Sized {
    /// Opens the file at `path`, and reads no more than its header. `None` if it is no such file.
    fn open(path: &Path) -> Option<Self>;

    /// The bytes of a file, without its checksum; `None` if it is not to be kept.
    fn encode(&self) -> Option<Vec<u8>>;
}

/// Returns the cached result of `cut` for `origin`, or calls it and caches the result.
pub(super) fn cached<T: Cacheable + Send + 'static>(
    cache: Option<&TokenCache>,
    origin: &Origin,
    look: CacheCheck,
    cut: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let texts = &origin.paths[..origin.n_texts];
    let cut = || match (look, texts.first()) {
        (CacheCheck::Whole, Some(file)) => Budget::of(texts).keep(file, cut),
        // Ranks cut what was cut before they were started.
        _ => cut(),
    };
    let Some((cache, stamp)) = cache.and_then(|cache| Some((cache, Stamp::of(origin)?))) else {
        return cut();
    };
    if stamp.bytes < cache.least_bytes {
        return cut();
    }
    let is_usable = |file: &PathBuf| look == CacheCheck::Header || is_whole(file);
    let known = cache.known(origin, &stamp).filter(is_usable);
    if let Some(kept) = known.and_then(|file| T::open(&file)) {
        return Ok(kept);
    }
    // What cannot be read is named by who cuts it.
    let Ok(file) = cache.file(origin) else { return cut() };
    if is_whole(&file)
        && let Some(kept) = T::open(&file)
    {
        cache.enter(origin, &stamp, &file);
        return Ok(kept);
    }
    let made = cut()?;
    // Files that changed meanwhile are cut anew the next time, as those that cannot be kept.
    let is_same = Stamp::of(origin).is_some_and(|now| now.text == stamp.text);
    let kept = made.encode().filter(|_| is_same).and_then(|bytes| cache.keep(&file, bytes));
    match kept.and_then(|()| T::open(&file)) {
        Some(kept) => {
            cache.enter(origin, &stamp, &file);
            Ok(kept)
        }
        None => Ok(made),
    }
}

/// True if the checksum of the file at `path` is right.
fn is_whole(path: &Path) -> bool {
    let check = || -> io::Result<bool> {
        let mut file = read::open(path)?;
        let body = file.metadata()?.len().saturating_sub(CHECKSUM as u64);
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader((&mut file).take(body))?;
        let mut checksum = Vec::new();
        file.read_to_end(&mut checksum)?;
        Ok(hasher.finalize().as_bytes()[..] == *checksum)
    };
    check().unwrap_or(false)
}

impl TokenCache {
    /// The user's; `None` where it is switched off or there is no place for it.
    pub(super) fn of_user() -> Option<Self> {
        Some(Self { folder: files::user_cache()?.join("tokens"), least_bytes: MIN_BYTES })
    }

    /// The file of the tokens of `origin`. A newer program may cut otherwise.
    fn file(&self, origin: &Origin) -> io::Result<PathBuf> {
        let mut hasher = blake3::Hasher::new();
        for part in [env!("CARGO_PKG_VERSION"), &origin.options] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        for path in &origin.paths {
            let file = read::open(path)?;
            hasher.update(&file.metadata()?.len().to_le_bytes());
            hasher.update_reader(file)?;
        }
        Ok(self.folder.join(&hasher.finalize().to_hex().as_str()[..32]))
    }

    /// Writes a file with a checksum at its end; `None` if that fails.
    fn keep(&self, file: &Path, mut bytes: Vec<u8>) -> Option<()> {
        let checksum = blake3::hash(&bytes);
        bytes.extend_from_slice(checksum.as_bytes());
        files::create_private_folder(&self.folder).ok()?;
        files::write_private(file, &bytes).ok()
    }

    /// The file of the tokens of `origin`, if the index has them.
    fn known(&self, origin: &Origin, stamp: &Stamp) -> Option<PathBuf> {
        let entry = fs::read_to_string(self.index(origin)?).ok()?;
        let [format, name, text] = entry.lines().collect::<Vec<_>>()[..] else { return None };
        let is_name = name.bytes().all(|byte| byte.is_ascii_hexdigit());
        let is_same = format == INDEX_FORMAT && text == stamp.text;
        (is_same && is_name).then(|| self.folder.join(name))
    }

    /// Enters a file of tokens, made of what `origin` was at `stamp`, into the index.
    fn enter(&self, origin: &Origin, stamp: &Stamp, file: &Path) {
        let name = file.file_name().and_then(|name| name.to_str());
        if let (Some(index), Some(name), true) = (self.index(origin), name, stamp.is_settled) {
            let entry = format!("{INDEX_FORMAT}\n{name}\n{}\n", stamp.text);
            // Without an entry the data are hashed the next time.
            let _ = files::write_private(&index, entry.as_bytes());
        }
    }

    /// The index entry of these files. A newer program may cut otherwise.
    fn index(&self, origin: &Origin) -> Option<PathBuf> {
        let mut hasher = blake3::Hasher::new();
        for part in [env!("CARGO_PKG_VERSION"), &origin.options] {
            hasher.update(part.as_bytes()).update(b"\0");
        }
        for path in &origin.paths {
            hasher.update(b"\0").update(fs::canonicalize(path).ok()?.as_os_str().as_bytes());
        }
        Some(self.folder.join(format!("of-{}", &hasher.finalize().to_hex().as_str()[..32])))
    }
}

/// Identities, sizes and times of files.
#[derive(Debug)]
struct Stamp {
    text: String,
    /// Size of the first file.
    bytes: u64,
    /// True if any later change would be seen.
    is_settled: bool,
}

impl Stamp {
    /// The stamp of the files as they are now.
    fn of(origin: &Origin) -> Option<Self> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok()?;
        let bytes = fs::metadata(origin.paths.first()?).ok()?.len();
        let mut stamp = Self { text: String::new(), bytes, is_settled: true };
        for path in &origin.paths {
            let meta = fs::metadata(path).ok()?;
            let times = [(meta.mtime(), meta.mtime_nsec()), (meta.ctime(), meta.ctime_nsec())];
            let device = meta.dev();
            let inode = meta.ino();
            let size = meta.size();
            stamp.text += &format!("{device} {inode} {size} {times:?} ");
            let last = times.map(|(seconds, _)| seconds).into_iter().max().unwrap_or(i64::MAX);
            let age = (now.as_secs() as i64).saturating_sub(last);
            stamp.is_settled &= age > SETTLED.as_secs() as i64;
        }
        Some(stamp)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Bytes, of which those that begin with a blank are not kept.
    #[derive(Clone, Debug, PartialEq)]
    struct Bytes(Vec<u8>);

    impl Cacheable for Bytes {
        fn open(path: &Path) -> Option<Self> {
            let mut bytes = fs::read(path).ok()?;
            bytes.truncate(bytes.len().checked_sub(CHECKSUM)?);
            Some(Self(bytes))
        }

        fn encode(&self) -> Option<Vec<u8>> {
            (self.0[0] != b' ').then(|| self.0.clone())
        }
    }

    struct TestCache {
        cache: TokenCache,
        origin: Origin,
        _folder: tempfile::TempDir,
    }

    impl TestCache {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let paths = ["text", "rules"].map(|name| folder.path().join(name)).to_vec();
            let origin = Origin { paths, n_texts: 1, options: String::new() };
            let cache = TokenCache { folder: folder.path().join("tokens"), least_bytes: 4 };
            let lab = Self { cache, origin, _folder: folder };
            lab.write(0, "the cat");
            lab.write(1, "{}");
            lab
        }

        fn write(&self, at: usize, text: &str) {
            files::write_atomic(&self.origin.paths[at], text.as_bytes()).unwrap();
        }

        /// The cached bytes, and true if they were cut anew.
        fn asked(&self) -> (Bytes, bool) {
            let (was_cut, text) = (Arc::new(AtomicBool::new(false)), self.origin.paths[0].clone());
            let cuts = was_cut.clone();
            let cut = move || {
                cuts.store(true, Ordering::Relaxed);
                Ok(Bytes(fs::read(text).unwrap()))
            };
            let found = cached(Some(&self.cache), &self.origin, CacheCheck::Whole, cut).unwrap();
            (found, was_cut.load(Ordering::Relaxed))
        }

        fn file(&self) -> PathBuf {
            self.cache.file(&self.origin).unwrap()
        }
    }

    #[test]
    fn files_are_cut_once_for_what_they_hold_and_the_options() {
        let mut lab = TestCache::new();
        let (cat, was_cut) = lab.asked();
        assert!(was_cut && cat.0 == b"the cat");
        assert_eq!(lab.asked(), (cat, false));
        lab.write(1, "{ }");
        assert!(lab.asked().1, "another tokenizer");
        lab.write(0, "the rat");
        assert!(lab.asked().1, "another text");
        lab.origin.options.push('x');
        assert!(lab.asked().1, "other options");
        assert!(!lab.asked().1);
        for text in ["the", " blank"] {
            lab.write(0, text);
            assert!(lab.asked().1 && lab.asked().1, "a short text, and one that is not kept");
        }
    }

    #[test]
    fn a_damaged_file_is_replaced_and_an_absent_folder_changes_nothing() {
        let mut lab = TestCache::new();
        let (cat, _) = lab.asked();
        let file = lab.file();
        let whole = fs::read(&file).unwrap();
        let damaged = |bytes: &[u8]| {
            files::write_atomic(&file, bytes).unwrap();
            assert!(!is_whole(&file));
        };
        (0..whole.len()).for_each(|length| damaged(&whole[..length]));
        for at in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[at] ^= 1;
            damaged(&flipped);
        }
        assert_eq!(lab.asked(), (cat.clone(), true));
        assert_eq!(fs::read(&file).unwrap(), whole);
        lab.cache.folder = file.join("below");
        assert_eq!(lab.asked(), (cat, true));
    }

    #[test]
    fn ranks_open_what_the_index_has_unless_a_file_changed() {
        let lab = TestCache::new();
        lab.asked();
        let (cache, origin) = (&lab.cache, &lab.origin);
        let fresh = Stamp::of(origin).unwrap();
        assert!(!fresh.is_settled, "it was written just now");
        assert!(cache.known(origin, &fresh).is_none());
        let settled = Stamp { is_settled: true, ..fresh };
        cache.enter(origin, &settled, &lab.file());
        assert_eq!(cache.known(origin, &settled), Some(lab.file()));
        let other = Origin { options: "x".to_owned(), ..origin.clone() };
        assert!(cache.known(&other, &settled).is_none());
        lab.write(0, "the cot");
        assert!(cache.known(origin, &Stamp::of(origin).unwrap()).is_none());
    }
}
