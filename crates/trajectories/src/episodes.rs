//! Episodes in memory with the images of their cameras, and the trait of their readers.

use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::data::transform::{Area, Decoded, Pixels};
use crate::data::{Error, decode_image, read_file};
use crate::plan::Cameras;

/// Episodes one after the other.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Episodes {
    /// One row for each step.
    pub(crate) observations: Vec<Vec<f32>>,
    pub(crate) actions: Vec<Vec<f32>>,
    pub(crate) cameras: Vec<Camera>,
    /// The step after the last one of each episode.
    pub(crate) ends: Vec<usize>,
}

impl Episodes {
    /// The steps of each episode.
    pub(crate) fn steps(&self) -> impl Iterator<Item = Range<usize>> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| start..end)
    }
}

/// Reads one form of stored trajectories.
pub(crate) trait TrajectoryReader: Sync {
    /// True if the file or folder `path` has this form.
    fn reads(&self, path: &Path) -> bool;

    /// All episodes, with the images of `cameras`.
    fn episodes(&self, path: &Path, cameras: &[String]) -> Result<Episodes, Error>;

    /// Cameras whose images can be read beside the numbers.
    fn cameras(&self, path: &Path) -> Result<Vec<String>, Error>;

    /// Files with numbers, and those with images of `cameras`, below the folder `path`.
    fn files(&self, path: &Path, cameras: &[String]) -> Result<[Vec<PathBuf>; 2], Error>;
}

/// What messages call a file of trajectories.
pub(crate) const FILE: &str = "the file of trajectories";

/// Images of a camera.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Camera {
    pub(crate) name: String,
    pub(crate) frames: Frames,
}

/// One image for each step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Frames {
    /// Images in their file format.
    Encoded(Vec<Encoded>),
    /// 8-bit values, (height, width, channels) for each step.
    Values { shape: [usize; 3], values: Vec<u8> },
    /// Drawn from the state of a simulation, so many pixels a side.
    Drawn { side: usize, states: Vec<[f32; 4]> },
}

/// An encoded image.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Encoded {
    Bytes(Vec<u8>),
    File(PathBuf),
}

impl Frames {
    /// Appends those of another file.
    pub(crate) fn extend(&mut self, more: Self) -> Result<(), String> {
        match (self, more) {
            (Self::Encoded(all), Self::Encoded(more)) => all.extend(more),
            _ => return Err("its images are not stored as those of the files before it".into()),
        }
        Ok(())
    }

    /// Bytes in memory.
    pub(crate) fn held(&self) -> u64 {
        let encoded = |image: &Encoded| match image {
            Encoded::Bytes(bytes) => bytes.len() as u64,
            Encoded::File(path) => path.as_os_str().len() as u64,
        };
        match self {
            Self::Encoded(images) => images.iter().map(encoded).sum(),
            Self::Values { values, .. } => values.len() as u64,
            Self::Drawn { states, .. } => (states.len() * size_of::<[f32; 4]>()) as u64,
        }
    }

    /// The image of `step`, or as much of it as `needed` says for one of (height, width).
    pub(crate) fn load(
        &self,
        step: usize,
        needed: impl FnOnce((usize, usize)) -> Area,
    ) -> Result<Decoded, String> {
        let bytes = match self {
            Self::Encoded(images) => match &images[step] {
                Encoded::Bytes(bytes) => bytes.clone(),
                Encoded::File(path) => of_file(path)?,
            },
            Self::Values { shape: [height, width, channels], values } => {
                let n = height * width * channels;
                let data = values[step * n..][..n].to_vec();
                return Ok(Decoded::whole(Pixels::new(*channels, [*height, *width], data)));
            }
            Self::Drawn { side, states } => {
                let data = push_t::draw(states[step], *side);
                return Ok(Decoded::whole(Pixels::new(3, [*side; 2], data)));
            }
        };
        decode_image(bytes, needed)
    }
}

fn of_file(path: &Path) -> Result<Vec<u8>, String> {
    read_file(path).map_err(|error| format!("`{}`: {error}", path.display()))
}

/// Number and shape of the images, by the first of each camera; `None` without cameras.
pub(crate) fn described(cameras: &[Camera]) -> Result<Option<Cameras>, String> {
    let mut found: Option<Cameras> = None;
    for Camera { name, frames } in cameras {
        let first = frames.load(0, Area::whole).map_err(|what| of_first(name, &what))?;
        let shape = [first.pixels.channels, first.pixels.height, first.pixels.width];
        let all = found.get_or_insert(Cameras { names: Vec::new(), shape });
        if all.shape != shape {
            let [[_, h, w], [_, height, width]] = [all.shape, shape];
            return Err(format!(
                "the images of `{name}` are {width}x{height} pixels, those of `{}` {w}x{h}: all \
                 cameras need one size and as many channels",
                all.names[0]
            ));
        }
        all.names.push(name.clone());
    }
    Ok(found)
}

fn of_first(camera: &str, what: &str) -> String {
    format!("the first image of `{camera}` cannot be read: {what}")
}
