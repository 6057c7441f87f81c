//! Safetensors files: their headers alone, or all of their bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use safetensors::tensor::{Metadata, SafeTensorError};

use super::Error;
use super::fit::{Header, TensorInfo};

/// Longest header read: a ResNet-50 has 40 kB.
const MAX_HEADER: u64 = 16 << 20;
/// End of the name of a file that names others.
const INDEX: &str = ".index.json";
/// First bytes of git-lfs' pointers: `version https://git-lfs...`.
const LFS_POINTER: [u8; 8] = *b"version ";
/// First bytes of an archive, such as the files of `torch.save` and of `numpy.savez`.
const ZIP: &[u8] = b"PK\x03\x04";
/// First bytes of the files of `torch.save` before PyTorch 1.6.
const OLD_PICKLE: &[u8] = b"\x80\x02";
/// Files of other programs: first bytes, kind, and remedy.
const OTHERS: [(&[u8], &str, &str); 6] = [
    (
        b"\x93NUMPY",
        "one array of NumPy (`.npy`)",
        "save all arrays under their names: `safetensors.numpy.save_file({\"NAME\": array}, \"{to}\")`",
    ),
    (b"\x89HDF\r\n", "an HDF5 file, as Keras writes it", KERAS),
    (
        b"GGUF",
        "a GGUF file, as llama.cpp reads it",
        "take the safetensors files that it was made of",
    ),
    (b"\x80\x03", "a pickle of Python", OTHER_PICKLE),
    (b"\x80\x04", "a pickle of Python", OTHER_PICKLE),
    (b"\x80\x05", "a pickle of Python", OTHER_PICKLE),
];
const KERAS: &str = "take weights of PyTorch: names and layouts of Keras differ";
const OTHER_PICKLE: &str = "load it with the program that wrote it, and write its tensors with \
                            `safetensors.torch.save_file(state_dict, \"{to}\")`";
const NPZ: &str = "convert it once, if its names are those of PyTorch:\n  python -c 'import numpy; \
                   from safetensors.numpy import save_file; \
                   save_file(dict(numpy.load(\"{from}\")), \"{to}\")'";

/// Names, types and shapes of the tensors in a safetensors file, or in those that an index names,
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
        .map(|(name, tensor)| {
            (name, TensorInfo { dtype: tensor.dtype, shape: tensor.shape.clone() })
        })
        .collect::<BTreeMap<_, _>>())
}

/// The bytes of the file, or of those that the index names.
pub(super) fn read_all(path: &Path) -> Result<Vec<(PathBuf, Vec<u8>)>, Error> {
    let read = |path: PathBuf| read_limited(&path).map(|bytes| (path, bytes));
    files_of(path)?.into_iter().map(read).collect()
}

/// Checks that a file begins as a safetensors file does.
pub(super) fn check_start(path: &Path) -> Result<(), Error> {
    open(path).map(drop)
}

/// The file's bytes, once its header is known to be of a sane length.
pub(super) fn read_limited(path: &Path) -> Result<Vec<u8>, Error> {
    check_start(path)?;
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
    let other = |what, help| Error::OtherFormat { path: path.to_owned(), what, help };
    if first.starts_with(ZIP) {
        let name = first_of_zip(&mut file).unwrap_or_default();
        return Err(match &*name {
            name if Path::new(name).extension().is_some_and(|ending| ending == "npy") => {
                other("an archive of NumPy (`.npz`)", NPZ)
            }
            "metadata.json" | "config.json" => other("a model of Keras", KERAS),
            _ => Error::Pickle { path: path.to_owned() },
        });
    }
    if first.starts_with(OLD_PICKLE) {
        return Err(Error::Pickle { path: path.to_owned() });
    }
    if let Some((_, what, help)) = OTHERS.iter().find(|(magic, ..)| first.starts_with(magic)) {
        return Err(other(what, help));
    }
    let header = u64::from_le_bytes(first);
    match usize::try_from(header) {
        Ok(length) if header <= MAX_HEADER => Ok((file, length)),
        // The version and the producer of a model, as protobuf writes them.
        _ if first[0] == 0x08 && first[2] == 0x12 => {
            Err(other("an ONNX model", "take the weights that it was exported from"))
        }
        _ => Err(Error::Header { path: path.to_owned(), header }),
    }
}

/// The name of the first file in an archive, of which the first eight bytes have been read.
fn first_of_zip(file: &mut File) -> Option<String> {
    let mut rest = [0; 22];
    file.read_exact(&mut rest).ok()?;
    let mut name = vec![0; usize::from(u16::from_le_bytes([rest[18], rest[19]]))];
    file.read_exact(&mut name).ok()?;
    String::from_utf8(name).ok()
}

/// The file itself, or those that the index names, which lie next to it.
pub(super) fn files_of(path: &Path) -> Result<Vec<PathBuf>, Error> {
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
