//! Trajectories in an npz file: `obs`, `actions`, and where episodes begin or end.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use candle_core::npy::NpzTensors;
use candle_core::{DType, Tensor};

use crate::error::Error;
use crate::sources::control::episodes::{Camera, Frames};
use crate::sources::control::episodes::{Episodes, TrajectoryReader, not_finite, opened};

/// Names of the arrays, the first that is there counts.
const OBSERVATIONS: [&str; 4] = ["obs", "observations", "state", "states"];
const ACTIONS: [&str; 2] = ["actions", "action"];
const EXPECTED: &str = "arrays `obs` (steps, numbers), `actions` (steps, numbers), and \
                        `episode_starts` (steps) or `episode_ends` (episodes)";

/// Longest header of an array, for which memory is taken before it is read; `NumPy` reads none
/// beyond 10,000.
const MAX_HEADER_BYTES: u32 = 1 << 16;

/// Arrays of an npz file.
pub(super) struct Npz;

impl TrajectoryReader for Npz {
    /// Whatever no other form is, so that it is refused in words.
    fn reads(&self, _: &Path) -> bool {
        true
    }

    fn episodes(&self, path: &Path, cameras: &[String]) -> Result<Episodes, Error> {
        let arrays = Arrays::open(path)?;
        let observations = arrays.rows(&OBSERVATIONS)?;
        let actions = arrays.rows(&ACTIONS)?;
        let steps = observations.len();
        if steps != actions.len() || steps == 0 {
            let what = format!("it has {steps} observations but {} actions", actions.len());
            return Err(arrays.format(what));
        }
        let ends = arrays.ends(steps)?;
        let cameras =
            cameras.iter().map(|name| arrays.camera(name, steps)).collect::<Result<_, _>>()?;
        Ok(Episodes { observations, actions, cameras, ends })
    }

    fn cameras(&self, path: &Path) -> Result<Vec<String>, Error> {
        Ok(Arrays::open(path)?.cameras())
    }

    fn files(&self, path: &Path, _: &[String]) -> Result<[Vec<PathBuf>; 2], Error> {
        Ok([vec![path.to_owned()], Vec::new()])
    }
}

struct Arrays<'a> {
    path: &'a Path,
    bytes: u64,
    file: NpzTensors,
}

impl<'a> Arrays<'a> {
    fn open(path: &'a Path) -> Result<Self, Error> {
        let (file, bytes) = opened(path, EXPECTED)?;
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

    fn format(&self, what: String) -> Error {
        Error::Format { path: self.path.into(), what }
    }

    /// The first of `names` that is there, and its array.
    fn find<'n>(&self, names: &[&'n str]) -> Result<Option<(&'n str, Tensor)>, Error> {
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

    /// An array (steps, numbers), or (steps) of one number each.
    fn rows(&self, names: &[&str]) -> Result<Vec<Vec<f32>>, Error> {
        let missing =
            || self.format(format!("it has no array `{}`: expected {EXPECTED}", names[0]));
        let (name, array) = self.find(names)?.ok_or_else(missing)?;
        let steps = array.dims().first().copied().unwrap_or(0);
        let rows = array
            .reshape((steps, array.elem_count() / steps.max(1)))
            .and_then(|rows| rows.to_dtype(DType::F32)?.to_vec2::<f32>());
        let rows = rows.map_err(|error| self.format(format!("array `{name}`: {error}")))?;
        let bad = |row: &Vec<f32>| row.iter().copied().find(|value| !value.is_finite());
        match rows.iter().enumerate().find_map(|(row, values)| Some((row, bad(values)?))) {
            None => Ok(rows),
            Some((row, value)) => {
                Err(self.format(format!("array `{name}` {}", not_finite(value, row))))
            }
        }
    }

    /// An array of images, (steps, height, width, channels) or (steps, height, width), of bytes.
    fn camera(&self, name: &str, steps: usize) -> Result<Camera, Error> {
        let fails = |what: String| self.format(format!("array `{name}` {what}"));
        let Some((_, array)) = self.find(&[name])? else {
            let path = self.path.to_owned();
            let camera = name.to_owned();
            return Err(Error::NoCamera { path, camera, cameras: self.cameras() });
        };
        let shape = match *array.dims() {
            [n, height, width, channels @ (1 | 3)] if n == steps => [height, width, channels],
            [n, height, width] if n == steps => [height, width, 1],
            _ => {
                let shape = array.shape();
                return Err(fails(format!(
                    "has the shape {shape:?}, not ({steps}, height, width, 1 or 3 channels)"
                )));
            }
        };
        let values = array.flatten_all().and_then(|all| all.to_vec1::<u8>());
        let values = values.map_err(|_| fails(format!("holds {:?}, not uint8", array.dtype())))?;
        Ok(Camera { name: name.to_owned(), frames: Frames::Values { shape, values } })
    }

    /// Arrays that may be images.
    fn cameras(&self) -> Vec<String> {
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

    /// The step after the last one of each episode. Without a word about them all steps are one
    /// episode.
    fn ends(&self, steps: usize) -> Result<Vec<usize>, Error> {
        let numbers = |name: &str| -> Result<Option<Vec<f64>>, Error> {
            let Some((_, array)) = self.find(&[name])? else { return Ok(None) };
            let read = array.flatten_all().and_then(|all| all.to_dtype(DType::F64)?.to_vec1());
            let numbers: Vec<f64> =
                read.map_err(|error| self.format(format!("array `{name}`: {error}")))?;
            if let Some(row) = numbers.iter().position(|number| number.fract() != 0.0) {
                let what = format!("array `{name}`: {} in row {row} is not whole", numbers[row]);
                return Err(self.format(what));
            }
            Ok(Some(numbers))
        };
        let ends: Vec<usize> = if let Some(ends) = numbers("episode_ends")? {
            ends.into_iter().map(|end| end as usize).collect()
        } else if let Some(starts) = numbers("episode_starts")? {
            if starts.len() != steps {
                let what =
                    format!("`episode_starts` has {} entries for {steps} steps", starts.len());
                return Err(self.format(what));
            }
            let begins = (1..steps).filter(|&step| starts[step] != 0.0);
            begins.chain(std::iter::once(steps)).collect()
        } else {
            vec![steps]
        };
        let ascending = ends.windows(2).all(|pair| pair[0] < pair[1]);
        if !ascending || ends.first() == Some(&0) || ends.last() != Some(&steps) {
            let what = format!("`episode_ends` must ascend and end with the {steps} steps");
            return Err(self.format(what));
        }
        Ok(ends)
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
