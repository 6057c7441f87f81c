//! Trajectories in an npz file: `obs`, `actions`, and where episodes begin or end.

use std::path::{Path, PathBuf};

use candle_core::DType;

use crate::data::Error;
use crate::data::npz::Arrays;
use crate::episodes::{Camera, Episodes, FILE, Frames, TrajectoryReader};

/// Names of the arrays, the first that is there counts.
const OBSERVATIONS: [&str; 4] = ["obs", "observations", "state", "states"];
const ACTIONS: [&str; 2] = ["actions", "action"];
const EXPECTED: &str = "arrays `obs` (steps, numbers), `actions` (steps, numbers), and \
                        `episode_starts` (steps) or `episode_ends` (episodes)";

/// Arrays of an npz file.
pub(crate) struct NpzReader;

impl TrajectoryReader for NpzReader {
    /// Whatever no other form is, so that it is refused in words.
    fn reads(&self, _: &Path) -> bool {
        true
    }

    fn episodes(&self, path: &Path, cameras: &[String]) -> Result<Episodes, Error> {
        let arrays = Arrays::open(path, FILE, EXPECTED)?;
        let observations = rows(&arrays, &OBSERVATIONS)?;
        let actions = rows(&arrays, &ACTIONS)?;
        let steps = observations.len();
        if steps != actions.len() || steps == 0 {
            let what = format!("it has {steps} observations but {} actions", actions.len());
            return Err(arrays.format(what));
        }
        let ends = ends(&arrays, steps)?;
        let cameras = cameras.iter().map(|name| camera(path, &arrays, name, steps));
        let cameras = cameras.collect::<Result<_, _>>()?;
        Ok(Episodes { observations, actions, cameras, ends })
    }

    fn cameras(&self, path: &Path) -> Result<Vec<String>, Error> {
        Ok(Arrays::open(path, FILE, EXPECTED)?.images())
    }

    fn files(&self, path: &Path, _: &[String]) -> Result<[Vec<PathBuf>; 2], Error> {
        Ok([vec![path.to_owned()], Vec::new()])
    }
}

/// An array (steps, numbers), or (steps) of one number each.
fn rows(arrays: &Arrays<'_>, names: &[&str]) -> Result<Vec<Vec<f32>>, Error> {
    let missing = || arrays.format(format!("it has no array `{}`: expected {EXPECTED}", names[0]));
    let (_, rows) = arrays.rows(names)?.ok_or_else(missing)?;
    Ok(rows)
}

/// An array of images, (steps, height, width, channels) or (steps, height, width), of bytes.
fn camera(path: &Path, arrays: &Arrays<'_>, name: &str, steps: usize) -> Result<Camera, Error> {
    let fails = |what: String| arrays.format(format!("array `{name}` {what}"));
    let Some((_, array)) = arrays.find(&[name])? else {
        let path = path.to_owned();
        let camera = name.to_owned();
        return Err(Error::NoCamera { path, camera, cameras: arrays.images() });
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

/// The step after the last one of each episode. Without a word about them all steps are one
/// episode.
fn ends(arrays: &Arrays<'_>, steps: usize) -> Result<Vec<usize>, Error> {
    let numbers = |name: &str| -> Result<Option<Vec<f64>>, Error> {
        let Some((_, array)) = arrays.find(&[name])? else { return Ok(None) };
        let read = array.flatten_all().and_then(|all| all.to_dtype(DType::F64)?.to_vec1());
        let numbers: Vec<f64> =
            read.map_err(|error| arrays.format(format!("array `{name}`: {error}")))?;
        if let Some(row) = numbers.iter().position(|number| number.fract() != 0.0) {
            let what = format!("array `{name}`: {} in row {row} is not whole", numbers[row]);
            return Err(arrays.format(what));
        }
        Ok(Some(numbers))
    };
    let ends: Vec<usize> = if let Some(ends) = numbers("episode_ends")? {
        ends.into_iter().map(|end| end as usize).collect()
    } else if let Some(starts) = numbers("episode_starts")? {
        if starts.len() != steps {
            let what = format!("`episode_starts` has {} entries for {steps} steps", starts.len());
            return Err(arrays.format(what));
        }
        let begins = (1..steps).filter(|&step| starts[step] != 0.0);
        begins.chain(std::iter::once(steps)).collect()
    } else {
        vec![steps]
    };
    let ascending = ends.windows(2).all(|pair| pair[0] < pair[1]);
    if !ascending || ends.first() == Some(&0) || ends.last() != Some(&steps) {
        let what = format!("`episode_ends` must ascend and end with the {steps} steps");
        return Err(arrays.format(what));
    }
    Ok(ends)
}
