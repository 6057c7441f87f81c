//! Where the samples of tar shards lie, kept from one start to the next: reading a million headers
//! takes minutes on a network drive, and every rank needs them.
//!
//! The files are `webdataset/<hash>` beside the listings (`listing/cache.rs`), one for each shard
//! and choice of fields, and may be removed at any time. One is used only if the shard still has the
//! size and times that it had before it was read.

use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::file_state::{SETTLED, is_settled, stamp};
use crate::files;
use crate::sources::webdataset::tar_shard::{NamedFields, TarShard};

/// Version of the files.
const FORMAT: u32 = 1;
/// Smaller shards are read in milliseconds.
const MIN_BYTES: u64 = 1 << 20;

/// The cache of indices.
#[derive(Clone, Debug)]
pub(super) struct IndexCache {
    folder: PathBuf,
    least_bytes: u64,
    settled: Duration,
}

/// A file of the cache: a line with the BLAKE3 of what follows, then this in JSON.
#[derive(Serialize, Deserialize)]
struct CachedIndex<S> {
    format: u32,
    stamp: String,
    shard: S,
}

impl IndexCache {
    /// The user's; `None` where it is switched off or there is no place for it.
    pub(super) fn of_user() -> Option<Self> {
        let folder = files::user_cache()?.join("webdataset");
        Some(Self { folder, least_bytes: MIN_BYTES, settled: SETTLED })
    }

    /// The cache file of a shard, named by a hash of its absolute path and the fields.
    fn file(&self, path: &Path, asked: NamedFields<'_>) -> Option<PathBuf> {
        let path = fs::canonicalize(path).ok()?;
        let mut hasher = blake3::Hasher::new();
        hasher.update(path.as_os_str().as_bytes()).update(b"\0");
        hasher.update(&serde_json::to_vec(&asked).ok()?);
        let name = hasher.finalize().to_hex();
        Some(self.folder.join(&name.as_str()[..32]))
    }

    fn load(&self, path: &Path, asked: NamedFields<'_>, stamp: &str) -> Option<TarShard> {
        let bytes = fs::read(self.file(path, asked)?).ok()?;
        let at = bytes.iter().position(|&byte| byte == b'\n')?;
        let (hash, body) = (&bytes[..at], &bytes[at + 1..]);
        if blake3::hash(body).to_hex().as_bytes() != hash {
            return None;
        }
        let CachedIndex { format, stamp: kept, shard }: CachedIndex<TarShard> =
            serde_json::from_slice(body).ok()?;
        (format == FORMAT && kept == stamp && shard.is_whole()).then_some(shard)
    }

    /// Keeps what was read of a shard since `began`, if it is worth it and later changes would be
    /// seen. One that cannot be kept is read anew the next time.
    fn keep(
        &self,
        path: &Path,
        asked: NamedFields<'_>,
        meta: &Metadata,
        began: SystemTime,
        shard: &TarShard,
    ) {
        if meta.size() < self.least_bytes || !is_settled(meta, began, self.settled) {
            return;
        }
        let Some(file) = self.file(path, asked) else { return };
        let kept = CachedIndex { format: FORMAT, stamp: stamp(meta), shard };
        let Ok(body) = serde_json::to_vec(&kept) else { return };
        let bytes = [blake3::hash(&body).to_hex().as_bytes(), b"\n", &body].concat();
        let _ = files::create_private_folder(&self.folder)
            .and_then(|()| files::write_private(&file, &bytes));
    }
}

/// The samples of the shard at `path`, from `cache` if that holds what is still true.
pub(super) fn index(
    path: &Path,
    asked: NamedFields<'_>,
    cache: Option<&IndexCache>,
) -> Result<TarShard, Error> {
    let Some((cache, before)) = cache.zip(fs::metadata(path).ok()) else {
        return TarShard::read(path, asked);
    };
    if let Some(shard) = cache.load(path, asked, &stamp(&before)) {
        return Ok(shard);
    }
    let began = SystemTime::now();
    let shard = TarShard::read(path, asked)?;
    let is_unchanged = fs::metadata(path).is_ok_and(|after| stamp(&after) == stamp(&before));
    if is_unchanged {
        cache.keep(path, asked, &before, began, &shard);
    }
    Ok(shard)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::webdataset::tar_shard::tests::{FIELDS, tar};

    fn of(folder: &Path) -> IndexCache {
        let folder = folder.join("cache");
        IndexCache { folder, least_bytes: 1, settled: Duration::ZERO }
    }

    fn cached(cache: &IndexCache) -> Vec<PathBuf> {
        let Ok(found) = fs::read_dir(&cache.folder) else { return Vec::new() };
        found.map(|entry| entry.unwrap().path()).collect()
    }

    #[test]
    fn an_index_is_kept_until_its_shard_changes() {
        let dir = tempfile::tempdir().unwrap();
        let (path, cache) = (dir.path().join("0.tar"), of(dir.path()));
        let write = |files: &[(&str, &[u8])]| {
            crate::files::write_atomic(&path, &tar(files)).unwrap();
        };
        let index = |asked| index(&path, asked, Some(&cache)).unwrap();
        write(&[("a.jpg", b"1"), ("a.cls", b"0"), ("b.jpg", b"22"), ("b.cls", b"1")]);
        let first = index(FIELDS);
        assert_eq!(first, TarShard::read(&path, FIELDS).unwrap());
        let [file] = &cached(&cache)[..] else { panic!("{:?}", cached(&cache)) };
        let stamp = stamp(&fs::metadata(&path).unwrap());
        assert_eq!(cache.load(&path, FIELDS, &stamp), Some(first.clone()));
        assert_eq!(index(FIELDS), first);
        // Another field has an index of its own.
        assert_eq!(index(NamedFields { label: Some("cls"), ..FIELDS }), first);
        assert_eq!(cached(&cache).len(), 2);
        // A turned bit is seen.
        let mut bytes = fs::read(file).unwrap();
        let last = bytes.len() - 9;
        bytes[last] ^= 1;
        crate::files::write_atomic(file, &bytes).unwrap();
        assert_eq!(cache.load(&path, FIELDS, &stamp), None);
        assert_eq!(index(FIELDS), first);
        assert_eq!(cache.load(&path, FIELDS, &stamp), Some(first.clone()));
        // As long as before, with other samples, when the clock of the file system has moved on.
        std::thread::sleep(Duration::from_millis(20));
        write(&[("a.jpg", b"1"), ("a.cls", b"0"), ("c.jpg", b"22"), ("c.cls", b"1")]);
        assert_eq!(index(FIELDS).key(1), "c");
        assert_eq!(cached(&cache).len(), 2);
    }

    #[test]
    fn small_and_young_shards_are_not_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.tar");
        crate::files::write_atomic(&path, &tar(&[("a.jpg", b"1"), ("a.cls", b"0")])).unwrap();
        let small = IndexCache { least_bytes: 1 << 20, ..of(dir.path()) };
        let young = IndexCache { settled: Duration::from_hours(1), ..of(dir.path()) };
        for cache in [small, young] {
            assert_eq!(index(&path, FIELDS, Some(&cache)).unwrap().len(), 1);
            assert_eq!(cached(&cache), Vec::<PathBuf>::new());
        }
    }
}
