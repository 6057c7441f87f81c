//! The files of a checkpoint, and whether they are what its manifest says.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rayon::iter::{IntoParallelIterator, ParallelIterator};
use rustix::fs::OFlags;

use crate::checkpoint::manifest::{Damage, FileEntry, MANIFEST, Manifest, Part};
use crate::checkpoint::{FILES, load};

/// Bytes that are read and hashed at a time: they stay in a core's cache.
pub(crate) const PIECE: usize = 256 << 10;

/// The files of a checkpoint, open from the moment when its manifest was read: a run that goes on
/// deletes its older checkpoints, and what is open can still be read.
#[derive(Debug)]
pub struct OpenFiles(BTreeMap<&'static str, Result<File, Damage>>);

impl OpenFiles {
    /// Opens the files in `folder`; an error with one is reported when that file is used.
    pub fn open(folder: &Path, manifest: &Manifest) -> Self {
        let open = |name: &'static str| {
            let entry = manifest.files.get(name).ok_or_else(|| Damage::Missing(name.to_owned()));
            (name, entry.and_then(|entry| open_whole(folder, name, entry)))
        };
        let itself = open_file(&folder.join(MANIFEST))
            .map_err(|error| Damage::NoManifest(error.to_string()));
        Self(FILES.into_iter().map(open).chain([(MANIFEST, itself)]).collect())
    }

    /// The file `name`, which has the size that it must have.
    pub(crate) fn get(&self, name: &str) -> Result<&File, Damage> {
        match self.0.get(name) {
            Some(Ok(file)) => Ok(file),
            Some(Err(damage)) => Err(damage.clone()),
            None => Err(Damage::Missing(name.to_owned())),
        }
    }

    /// Checks every byte.
    pub(crate) fn verify(&self, manifest: &Manifest) -> Result<(), Damage> {
        FILES.into_iter().try_for_each(|name| {
            let file = self.get(name)?;
            verify_file(file, name, load::entry(manifest, name)?)
        })
    }
}

/// Opens a file to read it. Anything else, such as a pipe, is refused without waiting for it.
pub(crate) fn open_file(path: &Path) -> io::Result<File> {
    let file = File::options()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("not a file")) }
}

/// Opens the file `name` of a checkpoint, if it has the size that it must have.
pub(crate) fn open_whole(folder: &Path, name: &str, entry: &FileEntry) -> Result<File, Damage> {
    let opened = open_file(&folder.join(name)).and_then(|file| Ok((file.metadata()?.len(), file)));
    let (found, file) = opened.map_err(|error| Damage::reading(name, &error))?;
    if found == entry.bytes {
        return Ok(file);
    }
    Err(Damage::Size { file: name.to_owned(), found, expected: entry.bytes })
}

/// Checks every byte of the file `name`, on all cores of this rank.
pub(crate) fn verify_file(file: &File, name: &str, entry: &FileEntry) -> Result<(), Damage> {
    let mut start = 0;
    let parts: Vec<(u64, &Part)> = entry
        .parts
        .iter()
        .map(|part| {
            start += part.bytes;
            (start - part.bytes, part)
        })
        .collect();
    let damage = |(start, part): (u64, &Part)| match hash_of(file, start, part.bytes) {
        Err(error) => Some(Damage::reading(name, &error)),
        Ok(hash) if hash == part.blake3 => None,
        Ok(_) => Some(contents(name, entry, part)),
    };
    parts.into_par_iter().find_map_first(damage).map_or(Ok(()), Err)
}

/// Other contents than were written, in `part`.
pub(crate) fn contents(name: &str, entry: &FileEntry, part: &Part) -> Damage {
    let part = (entry.parts.len() > 1).then(|| part.name.clone());
    Damage::Contents { file: name.to_owned(), part }
}

/// BLAKE3 of the bytes from `start` on, hexadecimal.
fn hash_of(file: &File, mut start: u64, bytes: u64) -> io::Result<String> {
    let end = start + bytes;
    let mut buffer = vec![0; PIECE.min(bytes as usize)];
    let mut hasher = blake3::Hasher::new();
    while start < end {
        let length = buffer.len().min((end - start) as usize);
        file.read_exact_at(&mut buffer[..length], start)?;
        hasher.update(&buffer[..length]);
        start += length as u64;
    }
    Ok(hasher.finalize().to_hex().to_string())
}
