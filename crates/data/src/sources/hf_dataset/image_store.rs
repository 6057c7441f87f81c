//! Encoded images of parquet shards in one file, in which each is read where it lies: a row of a
//! shard can only be read with hundreds of others, which are unpacked for it.
//!
//! The files are `images/<hash>` beside the listings (`listing/cache.rs`), complete or absent, and
//! may be removed at any time. The hash is that of the paths, sizes and times of the shards, so that
//! a change of any makes another file. One process writes it, before ranks start; others wait for
//! it.
//!
//! ```text
//! format, images, for each image (its end, the first 8 bytes of its BLAKE3), then: the number of
//! images, the BLAKE3 of all after the images, format; numbers have 8 bytes, little-endian
//! ```

use std::fs::{self, File, TryLockError};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::files::{self, AtomicFile};
use crate::sources::hf_dataset::features::NamedColumns;
use crate::sources::hf_dataset::rows::{Shard, SplitRows};
use crate::{failpoint, read};

/// First and last bytes of a file.
const FORMAT: &[u8; 8] = b"ddpimg 1";
/// Bytes of an entry of the index: an end and a hash.
const ENTRY: usize = 16;
/// Bytes after the index.
const TRAILER: usize = 8 + blake3::OUT_LEN + FORMAT.len();
/// Fewer bytes of images are kept in memory.
const MIN_BYTES: u64 = 1 << 20;
/// Longest file of which all images are checked before a run; the index and what is loaded always
/// are.
const MAX_CHECKED: u64 = 1 << 30;
/// Longest wait for another process that writes the same file.
const WRITING_TIMEOUT: Duration = Duration::from_hours(2);
const TURN: Duration = Duration::from_millis(50);
const BUFFER: usize = 1 << 20;

/// The images of a split.
#[derive(Debug)]
pub(super) struct ImageStore {
    bytes: Stored,
    index: Vec<Entry>,
}

/// The end of an image among the bytes, and its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    end: u64,
    hash: [u8; 8],
}

#[derive(Debug)]
enum Stored {
    /// Images of a file, from the end of its format on.
    File(File, PathBuf),
    /// Without a file.
    Memory(Vec<u8>),
}

/// The folder of the file of `rows`; `None` where the cache is switched off or there is no place for
/// it, or where so few bytes are kept in memory.
pub(super) fn folder(rows: &SplitRows) -> Option<PathBuf> {
    (rows.bytes >= MIN_BYTES).then(files::user_cache)?.map(|cache| cache.join("images"))
}

impl ImageStore {
    /// The images of `rows`, from the file in `folder`, which is written if it is not there.
    pub(super) fn open(rows: &SplitRows, folder: Option<&Path>) -> Result<Self, Error> {
        let Some(folder) = folder else {
            let mut bytes = Vec::new();
            let index = copy_images(rows, |image| {
                bytes.extend_from_slice(image);
                Ok(())
            })?;
            return Ok(Self { bytes: Stored::Memory(bytes), index });
        };
        let path = folder.join(name(rows)?);
        match Self::read(&path, rows.len()) {
            Some(store) => Ok(store),
            None => write(rows, &path),
        }
    }

    /// The image at `place`; the reason where it cannot be read.
    pub(super) fn get(&self, place: usize) -> Result<Vec<u8>, String> {
        let start = place.checked_sub(1).map_or(0, |before| self.index[before].end);
        let Entry { end, hash } = self.index[place];
        let length = (end - start) as usize;
        match &self.bytes {
            Stored::Memory(bytes) => Ok(bytes[start as usize..][..length].to_vec()),
            Stored::File(file, path) => {
                let mut bytes = vec![0; length];
                let place = start + FORMAT.len() as u64;
                let path = path.display();
                file.read_exact_at(&mut bytes, place)
                    .map_err(|error| format!("the cache `{path}` cannot be read: {error}"))?;
                if hash_of(&bytes) != hash {
                    return Err(format!("the cache `{path}` is damaged; remove it"));
                }
                Ok(bytes)
            }
        }
    }

    /// Bytes of all images.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn bytes(&self) -> u64 {
        self.index.last().map_or(0, |last| last.end)
    }

    /// The file at `path`, if it is a whole one of so many images. Only its index is read.
    fn read(path: &Path, n: usize) -> Option<Self> {
        let file = read::open(path).ok()?;
        let length = file.metadata().ok()?.len();
        let (tail, head) = (n.checked_mul(ENTRY)?.checked_add(TRAILER)?, FORMAT.len() as u64);
        let images = length.checked_sub(head)?.checked_sub(tail as u64)?;
        let mut bytes = vec![0; tail];
        file.read_exact_at(&mut bytes, head + images).ok()?;
        let (index, trailer) = bytes.split_at(tail - TRAILER);
        if trailer != trailer_of(index) {
            return None;
        }
        let (entries, _) = index.as_chunks::<ENTRY>();
        let entry = |[a, b, c, d, e, f, g, h, hash @ ..]: [u8; ENTRY]| Entry {
            end: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            hash,
        };
        let index: Vec<Entry> = entries.iter().copied().map(entry).collect();
        let is_whole = index.last().is_some_and(|last| last.end == images)
            && index.is_sorted_by_key(|entry| entry.end);
        is_whole.then(|| Self { bytes: Stored::File(file, path.to_owned()), index })
    }

    /// True if all images have their hashes, as far as they are looked at.
    fn is_sound(&self) -> bool {
        let Stored::File(file, path) = &self.bytes else { return true };
        let is_long = file.metadata().is_ok_and(|meta| meta.len() > MAX_CHECKED);
        is_long || self.has_its_hashes(path).unwrap_or(false)
    }

    fn has_its_hashes(&self, path: &Path) -> io::Result<bool> {
        let mut file = BufReader::with_capacity(BUFFER, read::open(path)?);
        let mut format = [0; FORMAT.len()];
        file.read_exact(&mut format)?;
        let mut image = Vec::new();
        let mut start = 0;
        for Entry { end, hash } in &self.index {
            image.resize((end - start) as usize, 0);
            file.read_exact(&mut image)?;
            if hash_of(&image) != *hash {
                return Ok(false);
            }
            start = *end;
        }
        Ok(format == *FORMAT)
    }
}

/// True if the images of `rows` lie in `folder`. A damaged file is removed.
pub(super) fn is_ready(rows: &SplitRows, folder: &Path) -> Result<bool, Error> {
    let path = folder.join(name(rows)?);
    match ImageStore::read(&path, rows.len()) {
        None => Ok(false),
        Some(store) if store.is_sound() => Ok(true),
        Some(_) => {
            files::remove_file(&path).map_err(Error::Cache)?;
            Ok(false)
        }
    }
}

/// Writes the images of `rows` to `path`, unless another process does so first.
fn write(rows: &SplitRows, path: &Path) -> Result<ImageStore, Error> {
    files::create_private_folder(path.parent().unwrap_or(path)).map_err(Error::Cache)?;
    let lock_path = path.with_extension("lock");
    let lock = lock(&lock_path, path)?;
    if let Some(store) = ImageStore::read(path, rows.len()) {
        return Ok(store);
    }
    // What a killed process has left.
    files::remove_temporaries_of(path).map_err(Error::Cache)?;
    let file = AtomicFile::create(path).map_err(Error::Cache)?;
    let failed = |error| Error::Cache(files::Error::io("write", path)(error));
    let mut file = BufWriter::with_capacity(BUFFER, file);
    file.write_all(FORMAT).map_err(failed)?;
    let index = copy_images(rows, |image| file.write_all(image).map_err(failed))?;
    let index: Vec<u8> = index
        .iter()
        .flat_map(|Entry { end, hash }| end.to_le_bytes().into_iter().chain(*hash))
        .collect();
    file.write_all(&index).map_err(failed)?;
    file.write_all(&trailer_of(&index)).map_err(failed)?;
    let file = file.into_inner().map_err(|error| failed(error.into_error()))?;
    if path.file_name() != Some(name(rows)?.as_ref()) {
        let path = rows.shards.first().cloned().unwrap_or_default();
        let what = "a shard was changed while it was read";
        let help = "run the command again";
        return Err(Error::WithHelp { path, what: what.to_owned(), help: help.to_owned() });
    }
    file.complete().map_err(Error::Cache)?;
    // Whoever waits for it finds the file.
    let _ = files::remove_file(&lock_path);
    drop(lock);
    ImageStore::read(path, rows.len()).ok_or_else(|| {
        let what = "it was changed while it was written".to_owned();
        Error::Format { path: path.to_owned(), what }
    })
}

/// Gives the images of all rows to `put`, one after the other, and returns their index.
fn copy_images(
    rows: &SplitRows,
    mut put: impl FnMut(&[u8]) -> Result<(), Error>,
) -> Result<Vec<Entry>, Error> {
    let asked = NamedColumns { images: Some(&rows.images), labels: Some(&rows.labelled_by) };
    let mut index = Vec::with_capacity(rows.len());
    let mut end = 0;
    for path in &rows.shards {
        let mut shard = Shard::open(path, asked)?;
        let mut row = 0;
        for group in 0..shard.groups() {
            failpoint::reach("images.copy");
            for image in shard.images(group, row)? {
                put(&image)?;
                end += image.len() as u64;
                index.push(Entry { end, hash: hash_of(&image) });
                row += 1;
            }
        }
    }
    if index.len() == rows.len() {
        return Ok(index);
    }
    let path = rows.shards.first().cloned().unwrap_or_default();
    let what = format!("the split has {} images for {} labels", index.len(), rows.len());
    Err(Error::Format { path, what })
}

fn hash_of(image: &[u8]) -> [u8; 8] {
    let [a, b, c, d, e, f, g, h, ..] = *blake3::hash(image).as_bytes();
    [a, b, c, d, e, f, g, h]
}

fn trailer_of(index: &[u8]) -> [u8; TRAILER] {
    let n = ((index.len() / ENTRY) as u64).to_le_bytes();
    let hash = blake3::Hasher::new().update(index).update(&n).finalize();
    let mut trailer = [0; TRAILER];
    trailer[..8].copy_from_slice(&n);
    trailer[8..][..blake3::OUT_LEN].copy_from_slice(hash.as_bytes());
    trailer[8 + blake3::OUT_LEN..].copy_from_slice(FORMAT);
    trailer
}

/// Name of the file of the images of `rows`: another one after any change of a shard.
fn name(rows: &SplitRows) -> Result<String, Error> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(FORMAT).update(rows.images.as_bytes());
    for path in &rows.shards {
        let failed = |source| Error::Io { action: "read", path: path.clone(), source };
        let canonical = fs::canonicalize(path).map_err(failed)?;
        let meta = fs::metadata(path).map_err(failed)?;
        hasher.update(b"\0").update(canonical.as_os_str().as_bytes());
        let (size, modified) = (meta.size(), (meta.mtime(), meta.mtime_nsec()));
        let changed = (meta.ctime(), meta.ctime_nsec());
        hasher.update(format!("\0{size} {modified:?} {changed:?}").as_bytes());
    }
    Ok(hasher.finalize().to_hex().as_str()[..32].to_owned())
}

/// Takes the lock of the file at `path`; it is let go of when the process ends, however it ends.
/// Where a file system has no locks it is as if taken: the file has its name only once it is whole.
fn lock(lock: &Path, path: &Path) -> Result<File, Error> {
    let file = files::open_lock(lock)
        .map_err(|error| Error::Cache(files::Error::io("open", lock)(error)))?;
    let deadline = Instant::now() + WRITING_TIMEOUT;
    loop {
        match file.try_lock() {
            Ok(()) | Err(TryLockError::Error(_)) => return Ok(file),
            Err(TryLockError::WouldBlock) if Instant::now() > deadline => {
                let seconds = WRITING_TIMEOUT.as_secs();
                return Err(Error::Busy { path: path.to_owned(), seconds });
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(TURN),
        }
    }
}
