//! Safetensors files: their headers alone, or all of their bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use safetensors::tensor::{Metadata, SafeTensorError};

use super::Error;
use super::fit::{Header, Held};

/// Longest header read: a ResNet-50 has 40 kB.
const MAX_HEADER: u64 = 16 << 20;
/// End of the name of a file that names others.
const INDEX: &str = ".index.json";
/// What git-lfs' pointers begin with: `version https://git-lfs...`.
const LFS_POINTER: [u8; 8] = *b"version ";
/// What the files of `torch.save` begin with: an archive, or before PyTorch 1.6 a pickle.
const PICKLES: [&[u8]; 2] = [b"PK\x03\x04", b"\x80\x02"];

/// Names, types and shapes of what is in a safetensors file, or in those that an index names,
/// without their numbers.
pub fn header(path: &Path) -> Result<Header, Error> {
    let mut all = Header::new();
    for path in files_of(path)? {
        all.extend(header_of(&path)?);
    }
    Ok(all)
}

fn header_of(path: &Path) -> Result<Header, Error> {
    let failed = |source| Error::Read { path: path.to_owned(), source };
    let format = |source| Error::Format { path: path.to_owned(), source };
    let (mut file, length) = open(path)?;
    let mut bytes = vec![0; length];
    let size = file.metadata().map_err(failed)?.len();
    file.read_exact(&mut bytes).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => format(SafeTensorError::InvalidHeaderLength),
        _ => failed(error),
    })?;
    let text =
        std::str::from_utf8(&bytes).map_err(|e| format(SafeTensorError::InvalidHeader(e)))?;
    let metadata: Metadata = serde_json::from_str(text)
        .map_err(|error| format(SafeTensorError::InvalidHeaderDeserialization(error)))?;
    if size != 8 + length as u64 + metadata.data_len() as u64 {
        return Err(format(SafeTensorError::MetadataIncompleteBuffer));
    }
    let tensors = metadata.tensors().into_iter();
    Ok(tensors
        .map(|(name, tensor)| (name, Held { dtype: tensor.dtype, shape: tensor.shape.clone() }))
        .collect::<BTreeMap<_, _>>())
}

/// The bytes of the file, or of those that the index names.
pub(super) fn read_all(path: &Path) -> Result<Vec<(PathBuf, Vec<u8>)>, Error> {
    let read = |path: PathBuf| read_limited(&path).map(|bytes| (path, bytes));
    files_of(path)?.into_iter().map(read).collect()
}

/// The file's bytes, once its header is known to be of a sane length.
pub(super) fn read_limited(path: &Path) -> Result<Vec<u8>, Error> {
    open(path)?;
    std::fs::read(path).map_err(|source| Error::Read { path: path.to_owned(), source })
}

/// The file, after the length of its header.
fn open(path: &Path) -> Result<(File, usize), Error> {
    let failed = |source| Error::Read { path: path.to_owned(), source };
    let mut file = File::open(path).map_err(failed)?;
    let mut first = [0; 8];
    file.read_exact(&mut first).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            Error::Format { path: path.to_owned(), source: SafeTensorError::HeaderTooSmall }
        }
        _ => failed(error),
    })?;
    if first == LFS_POINTER {
        return Err(Error::LfsPointer { path: path.to_owned() });
    }
    if PICKLES.iter().any(|magic| first.starts_with(magic)) {
        return Err(Error::Pickle { path: path.to_owned() });
    }
    let header = u64::from_le_bytes(first);
    match usize::try_from(header) {
        Ok(length) if header <= MAX_HEADER => Ok((file, length)),
        _ => Err(Error::Header { path: path.to_owned(), header }),
    }
}

/// The file itself, or those that the index names, which lie beside it.
fn files_of(path: &Path) -> Result<Vec<PathBuf>, Error> {
    /// The part of an index that counts.
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    if !path.to_str().is_some_and(|name| name.ends_with(INDEX)) {
        return Ok(vec![path.to_owned()]);
    }
    let bytes =
        std::fs::read(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    let index: Index = serde_json::from_slice(&bytes)
        .map_err(|source| Error::Index { path: path.to_owned(), source })?;
    let names: BTreeSet<String> = index.weight_map.into_values().collect();
    Ok(names.iter().map(|name| path.with_file_name(name)).collect())
}
