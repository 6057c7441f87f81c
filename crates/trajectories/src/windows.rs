//! Recorded behaviour for imitation: what was seen last, and the chunk of actions that an expert
//! did then.
//!
//! A sample is a window of `horizon` steps of an episode. Its first `n_obs_steps` observations are
//! the input, all its actions the target: the chunk begins with the actions that led to the newest
//! observation. Windows begin before and end after their episode, as far as is needed to act from
//! its first step to its last; the steps at its ends are repeated there. Every number is scaled to
//! -1 .. 1 by its range in the training episodes. Images stand behind the numbers of their
//! observation; those of one camera are augmented alike, so that what moves between them has moved.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::chunk::Behaviour;
use crate::config::kind::Options;
use crate::data::{
    CameraTransform, Chunk, Dataset, Error, OpenRequest, Parts, Policy, Ranges, SampleError,
    SampleIndices, Splits, Survey, Target, scaled, shown_path,
};
use crate::episodes::{Camera, Episodes, Frames, TrajectoryReader, described};
use crate::npz_reader::NpzReader;
use crate::parquet_reader::ParquetReader;
use crate::pixel_stats;
use crate::plan::{Cameras, PixelStats, SplitPlan};
use crate::rng::Key;
use crate::units::Bytes;

/// Forms of stored trajectories, the first that has a file reads it.
const READERS: [&dyn TrajectoryReader; 2] = [&ParquetReader, &NpzReader];

/// The reader for the file or folder `path`.
pub(crate) fn reader_of(path: &Path) -> &'static dyn TrajectoryReader {
    READERS.into_iter().find(|reader| reader.reads(path)).unwrap_or(&NpzReader)
}

fn episodes(from: &Behaviour) -> Result<Episodes, Error> {
    match from {
        Behaviour::Recorded { file, cameras } => reader_of(file).episodes(file, cameras),
        Behaviour::PushTLike { episodes, seed, image_size } => {
            Ok(generated(*episodes, *seed, *image_size))
        }
    }
}

/// Cameras whose images can be read beside the numbers of the file or folder `path`.
pub fn cameras(path: &Path) -> Result<Vec<String>, Error> {
    reader_of(path).cameras(path)
}

fn generated(n: usize, seed: u64, image_size: Option<usize>) -> Episodes {
    let shown = push_t::demonstrate(n, seed);
    let numbers = numbers_seen(image_size);
    let camera = |side| {
        let frames = Frames::Drawn { side, states: shown.observations.clone() };
        Camera { name: "top".to_owned(), frames }
    };
    Episodes {
        observations: shown.observations.iter().map(|row| row[..numbers].to_vec()).collect(),
        actions: shown.actions.iter().map(|row| row.to_vec()).collect(),
        cameras: image_size.map(camera).into_iter().collect(),
        ends: shown.ends,
    }
}

/// Numbers of a generated observation: where the agent is, and where the disc is if no picture
/// shows it.
pub(crate) fn numbers_seen(image_size: Option<usize>) -> usize {
    if image_size.is_some() { 2 } else { 4 }
}

/// Counts the windows of both parts and measures the ranges; those that a run has `found` stay.
pub(crate) fn survey(
    from: &Behaviour,
    chunk: Chunk,
    split: &SplitPlan,
    found: Option<&Options>,
) -> Result<Survey, Error> {
    let episodes = episodes(from)?;
    let parts = parts(from, &episodes, chunk, split)?;
    // A run goes on with what it began with.
    let kept = found.and_then(Policy::found);
    let ranges = kept
        .as_ref()
        .map(|policy| policy.ranges.clone())
        .filter(|ranges| fit(ranges, &episodes))
        .unwrap_or_else(|| measured(&episodes, &parts.train));
    let cameras = described(&episodes.cameras).map_err(|what| unusable(from, what))?;
    let pixels = match kept {
        Some(policy) => policy.pixels,
        None => cameras.as_ref().and_then(|all| pixels(from, &episodes, &parts.train, all)),
    };
    let images: u64 = episodes.cameras.iter().map(|camera| camera.frames.held()).sum();
    let found = Survey::of(&cut(from, episodes, chunk, &parts, &ranges, [None, None])?);
    let numbers = ranges.observations.len() + ranges.actions.len();
    let policy = Policy {
        chunk,
        ranges,
        simulated: from.seed(),
        cameras: cameras.clone(),
        pixels: pixels.clone(),
    };
    let policy = serde_json::to_value(policy).unwrap_or_default();
    let steps = found.n_train + found.n_val + found.n_test;
    Ok(Survey {
        line: line(from, chunk, cameras.as_ref()),
        // Each step once, its actions beside its observations.
        held: Bytes(steps as u64 * Bytes::of_f32(numbers).0 + images),
        found: [(Policy::FOUND.to_owned(), policy)].into(),
        cameras,
        pixels,
        ..found
    })
}

/// Pixel statistics stored with the data set, or measured in the training episodes.
fn pixels(
    from: &Behaviour,
    episodes: &Episodes,
    SampleIndices(train): &SampleIndices,
    cameras: &Cameras,
) -> Option<PixelStats> {
    let ([channels, ..], seen) = (cameras.shape, &episodes.cameras);
    let stored = match from {
        Behaviour::Recorded { file, .. } => pixel_stats::stored(file, seen, channels),
        Behaviour::PushTLike { .. } => None,
    };
    let all: Vec<Range<usize>> = episodes.steps().collect();
    let steps: Vec<usize> =
        train.iter().flat_map(|&episode| all[episode as usize].clone()).collect();
    stored.or_else(|| pixel_stats::measured(seen, &steps, channels))
}

fn line(from: &Behaviour, chunk: Chunk, cameras: Option<&Cameras>) -> String {
    let Chunk { horizon, n_obs_steps, n_action_steps, .. } = chunk;
    let from = match from {
        Behaviour::Recorded { file, .. } => file.display().to_string(),
        Behaviour::PushTLike { episodes, .. } => format!("{episodes} generated episodes"),
    };
    let images = cameras.map_or(String::new(), |Cameras { names, shape: [_, height, width] }| {
        format!(" with {height}x{width} images of {}", names.join(", "))
    });
    format!(
        "{from}, {n_obs_steps} observations{images} -> {horizon} actions, {n_action_steps} executed"
    )
}

/// Opens all parts; the ranges are those that a survey found, or are measured anew.
pub(crate) fn open(
    from: &Behaviour,
    chunk: Chunk,
    reading: &OpenRequest<'_>,
) -> Result<Splits, Error> {
    let split = &reading.survey.split;
    let policy = match Policy::found(reading.found) {
        Some(policy) => Some(policy),
        None => Policy::found(&survey(from, chunk, split, None)?.found),
    };
    let policy = policy.ok_or_else(|| unusable(from, "it has no ranges".to_owned()))?;
    let sight = |list| {
        let cameras = policy.cameras.as_ref();
        let sight = cameras.map(|cameras| CameraTransform::new(cameras, list, reading.transforms));
        Ok::<_, Error>(sight.transpose()?.map(Arc::new))
    };
    let sight = [sight(reading.train_transforms)?, sight(reading.val_transforms)?];
    let episodes = episodes(from)?;
    let parts = parts(from, &episodes, chunk, split)?;
    cut(from, episodes, chunk, &parts, &policy.ranges, sight)
}

fn cut(
    from: &Behaviour,
    episodes: Episodes,
    chunk: Chunk,
    parts: &Parts<SampleIndices>,
    ranges: &Ranges,
    [train_sight, val_sight]: [Option<Arc<CameraTransform>>; 2],
) -> Result<Splits, Error> {
    let scale = |rows: &[Vec<f32>], ranges: &[[f32; 2]]| -> Vec<Vec<f32>> {
        let row = |row: &Vec<f32>| row.iter().zip(ranges).map(|(&v, &r)| scaled(v, r)).collect();
        rows.iter().map(row).collect()
    };
    let episodes = Arc::new(Episodes {
        observations: scale(&episodes.observations, &ranges.observations),
        actions: scale(&episodes.actions, &ranges.actions),
        cameras: episodes.cameras,
        ends: episodes.ends,
    });
    let windows = |part: &'static str,
                   sight: Option<Arc<CameraTransform>>,
                   of: &SampleIndices|
     -> Result<Arc<dyn Dataset>, Error> {
        let windows = Windows::new(from, &episodes, chunk, of).seen_by(sight);
        if windows.places.is_empty() {
            let steps = chunk.horizon;
            return Err(unusable(
                from,
                format!("no {part} episode is long enough for `horizon` = {steps}"),
            ));
        }
        Ok(Arc::new(windows))
    };
    let train = windows("training", train_sight, &parts.train)?;
    let val = windows("validation", val_sight.clone(), &parts.val)?;
    let test = parts.test.as_ref().map(|test| windows("test", val_sight, test)).transpose()?;
    Ok(Splits { train, val, test, classes: Vec::new() })
}

/// Splits the episodes into parts: the last ones validate, at least one, unless they are held out
/// at random.
fn parts(
    from: &Behaviour,
    episodes: &Episodes,
    chunk: Chunk,
    split: &SplitPlan,
) -> Result<Parts<SampleIndices>, Error> {
    let n = episodes.ends.len();
    let held = ((n as f64 * chunk.val_ratio).round() as usize).max(1);
    let held = if split.holds_val() { 0 } else { held };
    let n_train = n.checked_sub(held).filter(|&train| train > 0).ok_or_else(|| {
        let what = format!(
            "{n} episodes cannot be split into training and validation with `val_ratio` = {}",
            chunk.val_ratio
        );
        unusable(from, what)
    })?;
    let places = |range: Range<usize>| SampleIndices(range.map(|place| place as u32).collect());
    let own = Parts { train: places(0..n_train), val: places(n_train..n), test: None };
    own.held_back(split).map_err(|what| unusable(from, what))
}

fn unusable(from: &Behaviour, what: String) -> Error {
    match from {
        Behaviour::Recorded { file, .. } => Error::Format { path: file.clone(), what },
        Behaviour::PushTLike { .. } => Error::Generated { what },
    }
}

/// True if each number of these episodes has a range.
fn fit(ranges: &Ranges, episodes: &Episodes) -> bool {
    let width = |rows: &[Vec<f32>]| rows.first().map_or(0, Vec::len);
    ranges.observations.len() == width(&episodes.observations)
        && ranges.actions.len() == width(&episodes.actions)
}

/// The ranges in some episodes.
fn measured(episodes: &Episodes, of: &SampleIndices) -> Ranges {
    Ranges {
        observations: ranges(&episodes.observations, episodes, of),
        actions: ranges(&episodes.actions, episodes, of),
    }
}

/// Least and largest value of each column in some episodes.
fn ranges(
    rows: &[Vec<f32>],
    episodes: &Episodes,
    SampleIndices(of): &SampleIndices,
) -> Vec<[f32; 2]> {
    let columns = rows.first().map_or(0, Vec::len);
    let steps: Vec<Range<usize>> = episodes.steps().collect();
    let range = |column: usize| {
        let rows = of.iter().flat_map(|&episode| &rows[steps[episode as usize].clone()]);
        let values = rows.map(|row| row[column]);
        values.fold([f32::INFINITY, f32::NEG_INFINITY], |[low, high], v| [low.min(v), high.max(v)])
    };
    (0..columns).map(range).collect()
}

/// The windows of some episodes.
struct Windows {
    episodes: Arc<Episodes>,
    /// The steps of the episode, and how far into it the window begins, `before` steps early.
    places: Vec<(Range<usize>, usize)>,
    before: usize,
    /// `None` where images are not looked at.
    sight: Option<Arc<CameraTransform>>,
    shape: [usize; 2],
    target_shape: [usize; 2],
    name: String,
}

impl Windows {
    fn new(
        from: &Behaviour,
        episodes: &Arc<Episodes>,
        chunk: Chunk,
        SampleIndices(of): &SampleIndices,
    ) -> Self {
        let before = chunk.n_obs_steps - 1;
        let after = chunk.n_action_steps - 1;
        let steps: Vec<Range<usize>> = episodes.steps().collect();
        let places = of
            .iter()
            .flat_map(|&episode| {
                let steps = steps[episode as usize].clone();
                let windows = (steps.len() + before + after + 1).saturating_sub(chunk.horizon);
                (0..windows).map(move |first| (steps.clone(), first))
            })
            .collect();
        let width = |rows: &[Vec<f32>]| rows.first().map_or(0, Vec::len);
        Self {
            places,
            before,
            sight: None,
            shape: [chunk.n_obs_steps, width(&episodes.observations)],
            target_shape: [chunk.horizon, width(&episodes.actions)],
            name: match from {
                Behaviour::Recorded { file, .. } => format!("`{}`", shown_path(file)),
                Behaviour::PushTLike { .. } => "the generated episodes".to_owned(),
            },
            episodes: episodes.clone(),
        }
    }

    /// Appends the images of each observation to its numbers.
    fn seen_by(mut self, sight: Option<Arc<CameraTransform>>) -> Self {
        let pixels = sight.as_ref().map_or(0, |sight| sight.values());
        self.shape[1] += self.episodes.cameras.len() * pixels;
        self.sight = sight;
        self
    }

    /// Appends the images of `step`.
    fn see(&self, step: usize, key: Option<Key>, values: &mut Vec<f32>) -> Result<(), SampleError> {
        let Some(sight) = &self.sight else { return Ok(()) };
        for (number, Camera { name, frames }) in self.episodes.cameras.iter().enumerate() {
            let key = key.map(|key| key.with(number as u64));
            let image = frames.load(step, |size| sight.needed(size, key));
            image.and_then(|image| sight.see_part(number, image, key, values)).map_err(
                |reason| {
                    let name = format!("the image of `{name}` at step {step} of {}", self.name);
                    SampleError::Image { name, reason }
                },
            )?;
        }
        Ok(())
    }

    /// The step of the data at place `at` of window `index`.
    fn step(&self, index: usize, at: usize) -> usize {
        let (steps, first) = &self.places[index];
        (steps.start + first + at).saturating_sub(self.before).clamp(steps.start, steps.end - 1)
    }
}

impl Dataset for Windows {
    fn len(&self) -> usize {
        self.places.len()
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn target_shape(&self) -> &[usize] {
        &self.target_shape
    }

    fn classifies(&self) -> bool {
        false
    }

    fn name(&self, index: usize) -> String {
        format!("the steps from {} on of {}", self.step(index, 0), self.name)
    }

    fn load(
        &self,
        index: usize,
        key: Option<Key>,
        values: &mut Vec<f32>,
    ) -> Result<Target, SampleError> {
        for at in 0..self.shape[0] {
            let step = self.step(index, at);
            values.extend_from_slice(&self.episodes.observations[step]);
            self.see(step, key, values)?;
        }
        let action = |at| &self.episodes.actions[self.step(index, at)];
        Ok(Target::Series((0..self.target_shape[0]).flat_map(action).copied().collect()))
    }
}

#[cfg(test)]
mod tests;
