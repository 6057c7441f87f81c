//! npz files, as `NumPy` writes them: arrays by their names, read with bounds on what they may claim.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use candle_core::npy::NpzTensors;
use candle_core::{DType, Tensor};

use crate::error::Error;
use crate::read::{not_finite, open_sized};

/// Longest header of an array, for which memory is taken before it is read; `NumPy` reads none
/// beyond 10,000.
const MAX_HEADER_BYTES: u32 = 1 << 16;

/// An open file, of whose arrays nothing is read yet.
pub struct Arrays<'a> {
    path: &'a Path,
    bytes: u64,
    file: NpzTensors,
}

impl<'a> Arrays<'a> {
    /// Opens the file at `path`, which messages call `what` and which should hold `expected`.
    pub fn open(path: &'a Path, what: &'static str, expected: &'static str) -> Result<Self, Error> {
        let (file, bytes) = open_sized(path, what, expected)?;
        let format = |what: String| Error::Format { path: path.into(), what };
        let no_npz =
            |error: &dyn std::fmt::Display| format(format!("it is not an npz file: {error}"));
        let long = long_header(file).map_err(|error| no_npz(&error))?;
        if let Some((name, length)) = long {
            return Err(format(format!("`{name}` claims a header of {length} bytes")));
        }
        let file = NpzTensors::new(path).map_err(|error| no_npz(&error))?;
        Ok(Self { path, bytes, file })
    }

    /// Error about the contents of this file.
    pub fn format(&self, what: String) -> Error {
        Error::Format { path: self.path.into(), what }
    }

    /// The first of `names` that is there, and its array; `None` if none is.
    pub fn find<'n>(&self, names: &[&'n str]) -> Result<Option<(&'n str, Tensor)>, Error> {
        let there = self.file.names();
        let Some(name) = names.iter().find(|name| there.iter().any(|other| other == *name)) else {
            return Ok(None);
        };
        let fails = |error: candle_core::Error| self.format(format!("array `{name}`: {error}"));
        let (shape, dtype) = self.file.get_shape_and_dtype(name).map_err(fails)?;
        // A damaged header must not ask for all memory there is, be it for rows of nothing; no
        // array shrinks a thousandfold in a file.
        if shape.dims().contains(&0) {
            return Err(self.format(format!("array `{name}` is empty: its shape is {shape:?}")));
        }
        let size = shape.dims().iter().fold(dtype.size_in_bytes(), |n, dim| n.saturating_mul(*dim));
        let size = size as u64;
        if size > self.bytes.saturating_mul(1024) {
            let what = format!("array `{name}` claims {size} bytes in a file of {}", self.bytes);
            return Err(self.format(what));
        }
        let array = self.file.get(name).map_err(fails)?;
        Ok(array.map(|array| (*name, array)))
    }

    /// The first of `names` that is there, and the numbers of its rows, one each or several; `None`
    /// if none is.
    ///
    /// # Errors
    ///
    /// A number is not finite in 32 bits.
    pub fn rows<'n>(&self, names: &[&'n str]) -> Result<Option<(&'n str, Vec<Vec<f32>>)>, Error> {
        let Some((name, array)) = self.find(names)? else { return Ok(None) };
        let n = array.dims().first().copied().unwrap_or(0);
        let rows = array
            .reshape((n, array.elem_count() / n.max(1)))
            .and_then(|rows| rows.to_dtype(DType::F32)?.to_vec2::<f32>());
        let rows = rows.map_err(|error| self.format(format!("array `{name}`: {error}")))?;
        let bad = |row: &Vec<f32>| row.iter().copied().find(|value| !value.is_finite());
        match rows.iter().enumerate().find_map(|(row, values)| Some((row, bad(values)?))) {
            None => Ok(Some((name, rows))),
            Some((row, value)) => {
                Err(self.format(format!("array `{name}` {}", not_finite(value, row))))
            }
        }
    }

    /// Arrays that may be images, in the order of their names: bytes in three dimensions or more.
    pub fn images(&self) -> Vec<String> {
        let is_image = |name: &&str| {
            let found = self.file.get_shape_and_dtype(name);
            found.is_ok_and(|(shape, dtype)| dtype == DType::U8 && shape.rank() >= 3)
        };
        let mut names: Vec<String> = self
            .file
            .names()
            .into_iter()
            .map(String::as_str)
            .filter(is_image)
            .map(str::to_owned)
            .collect();
        names.sort_unstable();
        names
    }
}

/// The first array that claims a header longer than any is, and its claim. What is no array is left
/// to the reader.
fn long_header(file: File) -> zip::result::ZipResult<Option<(String, u32)>> {
    let mut archive = zip::ZipArchive::new(BufReader::new(file))?;
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index)?;
        // The format's name, its version, and the length in two bytes or four.
        let mut start = [0; 12];
        if entry.read_exact(&mut start).is_err() {
            continue;
        }
        let [name @ .., major, _, a, b, c, d] = start;
        let length = u32::from_le_bytes(if major == 1 { [a, b, 0, 0] } else { [a, b, c, d] });
        if &name == b"\x93NUMPY" && length > MAX_HEADER_BYTES {
            return Ok(Some((entry.name()?.into_owned(), length)));
        }
    }
    Ok(None)
}
