//! A safetensors file of a checkpoint -> tensors in their places, each checked there.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
#[cfg(any(test, feature = "fuzzing"))]
use std::path::Path;

use rayon::iter::{IntoParallelIterator, ParallelIterator};
use safetensors::Dtype;
use safetensors::tensor::Metadata;

use crate::checkpoint::Error;
use crate::checkpoint::entries::{Entry, Target};
use crate::checkpoint::load::{OpenCheckpoint, entry, misfit};
#[cfg(any(test, feature = "fuzzing"))]
use crate::checkpoint::manifest::HEADER;
use crate::checkpoint::manifest::{Damage, FileEntry, Part};
use crate::checkpoint::state_copy::are_finite;
#[cfg(any(test, feature = "fuzzing"))]
use crate::checkpoint::verify::open_whole;
use crate::checkpoint::verify::{PIECE, contents};

/// Longest header of a safetensors file.
const MAX_HEADER_BYTES: u64 = 16 << 20;

/// Name, type and shape of a tensor in a safetensors file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// PyTorch's name.
    pub name: String,
    /// `F32`, `I64`
    pub dtype: String,
    pub shape: Vec<usize>,
}

/// The tensors of the file `name`, in their order. Their values are not read.
pub fn tensors(opened: &OpenCheckpoint, name: &str) -> Result<Vec<Tensor>, Error> {
    let file = TensorFile::of(opened, name).map_err(Error::damaged(&opened.path))?;
    let names = file.header.offset_keys().into_iter();
    let tensor = |name: String| {
        let info = file.header.info(&name)?;
        Some(Tensor { dtype: format!("{:?}", info.dtype), shape: info.shape.clone(), name })
    };
    Ok(names.filter_map(tensor).collect())
}

/// A safetensors file of a checkpoint that is being read.
struct TensorFile<'a> {
    name: &'a str,
    file: &'a File,
    /// Hash of each tensor.
    parts: BTreeMap<&'a str, &'a Part>,
    /// Bytes before the first tensor.
    data: u64,
    header: Metadata,
}

/// Fills `tensors` from the file `name`, on all cores of this rank.
pub(crate) fn read_tensors<V: Target>(
    opened: &OpenCheckpoint,
    name: &str,
    tensors: Vec<Entry<V>>,
) -> Result<(), Error> {
    let damaged = Error::damaged(&opened.path);
    let file = TensorFile::of(opened, name).map_err(&damaged)?;
    if let Some(why) = file.difference(&tensors) {
        return Err(misfit(&opened.path.join(name), why));
    }
    let first = tensors.into_par_iter().find_map_first(|tensor| file.read(tensor).err());
    first.map_or(Ok(()), |damage| Err(damaged(damage)))
}

impl<'a> TensorFile<'a> {
    fn of(opened: &'a OpenCheckpoint, name: &'a str) -> Result<Self, Damage> {
        Self::new(name, opened.files.get(name)?, entry(&opened.manifest, name)?)
    }

    fn new(name: &'a str, file: &'a File, entry: &'a FileEntry) -> Result<Self, Damage> {
        let mut parts = entry.parts.iter();
        let Some(first) = parts.next() else { return Err(Damage::Missing(name.to_owned())) };
        let bytes = read_header(file, entry)
            .map_err(|error| Damage::reading(name, &error))?
            .filter(|bytes| Part::of(&first.name, bytes) == *first)
            .ok_or_else(|| contents(name, entry, first))?;
        let data = bytes.len() as u64;
        let header: Metadata = serde_json::from_slice(&bytes[8..])
            .map_err(|error| Damage::reading(name, &error.into()))?;
        if data + header.data_len() as u64 != entry.bytes {
            return Err(contents(name, entry, first));
        }
        let parts = parts.map(|part| (part.name.as_str(), part)).collect();
        Ok(Self { name, file, parts, data, header })
    }

    /// Describes the first difference between the file's tensors and `expected`, if there is one.
    fn difference<V>(&self, expected: &[Entry<V>]) -> Option<String> {
        for Entry { name, dtype, shape, .. } in expected {
            match self.header.info(name) {
                None => return Some(format!("it has no `{name}`")),
                Some(info) if info.shape != *shape => {
                    return Some(format!("`{name}` is {:?} instead of {shape:?}", info.shape));
                }
                Some(info) if info.dtype != *dtype => {
                    return Some(format!("`{name}` is {:?} instead of {dtype:?}", info.dtype));
                }
                Some(_) => {}
            }
        }
        let is_expected = |name: &String| expected.iter().any(|entry| entry.name == *name);
        let extra = self.header.offset_keys().into_iter().find(|name| !is_expected(name))?;
        Some(format!("it has `{extra}`, which this experiment does not have"))
    }

    /// Reads one tensor to its place, and checks it there.
    fn read<V: Target>(&self, tensor: Entry<V>) -> Result<(), Damage> {
        let Entry { name, values, dtype, .. } = tensor;
        if !values.is_here() {
            return Ok(());
        }
        let Some(info) = self.header.info(&name) else { return Ok(()) };
        let start = self.data + info.data_offsets.0 as u64;
        let mut hash = Ok(blake3::hash(&[]));
        let mut is_finite = true;
        values
            .fill(|bytes| {
                hash = read_hashed(self.file, start, bytes);
                is_finite = dtype != Dtype::F32 || are_finite(bytes);
            })
            .map_err(|error| Damage::reading(self.name, &std::io::Error::other(error)))?;
        let hash = hash.map_err(|error| Damage::reading(self.name, &error))?;
        let written = self.parts.get(name.as_str()).map(|part| part.blake3.as_str());
        if written != Some(hash.to_hex().as_str()) {
            return Err(Damage::Contents { file: self.name.to_owned(), part: Some(name) });
        }
        if !is_finite {
            return Err(Damage::NotFinite { file: self.name.to_owned(), part: name });
        }
        Ok(())
    }
}

/// Describes the tensors in the file `name` of `folder`, as if a manifest had vouched for the
/// header in `bytes`.
#[cfg(any(test, feature = "fuzzing"))]
pub fn header_of(folder: &Path, name: &str, bytes: &[u8]) -> Result<Option<String>, Damage> {
    let length = bytes.first_chunk().map_or(0, |length| u64::from_le_bytes(*length));
    let header = &bytes[..bytes.len().min(length.saturating_add(8) as usize)];
    let entry = FileEntry { bytes: bytes.len() as u64, parts: vec![Part::of(HEADER, header)] };
    let file = open_whole(folder, name, &entry)?;
    let file = TensorFile::new(name, &file, &entry)?;
    Ok(file.difference::<candle_core::Var>(&[]))
}

/// The length and the header at the start of a safetensors file; `None` if the length is nonsense.
fn read_header(file: &File, entry: &FileEntry) -> std::io::Result<Option<Vec<u8>>> {
    let mut length = [0; 8];
    if entry.bytes < 8 {
        return Ok(None);
    }
    file.read_exact_at(&mut length, 0)?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER_BYTES.min(entry.bytes - 8) {
        return Ok(None);
    }
    let mut bytes = vec![0; 8 + length as usize];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(Some(bytes))
}

fn read_hashed(file: &File, mut start: u64, bytes: &mut [u8]) -> std::io::Result<blake3::Hash> {
    let mut hasher = blake3::Hasher::new();
    for piece in bytes.chunks_mut(PIECE) {
        file.read_exact_at(piece, start)?;
        hasher.update(piece);
        start += piece.len() as u64;
    }
    Ok(hasher.finalize())
}
