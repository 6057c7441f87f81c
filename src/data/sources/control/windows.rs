//! Recorded behaviour for imitation: what was seen last, and the chunk of actions that an expert
//! did then.
//!
//! A sample is a window of `horizon` steps of an episode. Its first `n_obs_steps` observations are
//! the input, all its actions the target: the chunk begins with the actions that led to the newest
//! observation. Windows begin before and end after their episode, as far as is needed to act from
//! its first step to its last; the steps at its ends are repeated there. Every number is scaled to
//! -1 .. 1 by its range in the training episodes.

use std::ops::Range;
use std::sync::Arc;

use crate::config::kind::Options;
use crate::data::error::{Error, SampleError, shown};
use crate::data::sources::control::chunk::{Behaviour, Chunk, Policy, Ranges, scaled};
use crate::data::sources::control::episodes::Episodes;
use crate::data::sources::control::{npz, parquet};
use crate::data::sources::source::Survey;
use crate::data::{Dataset, Splits, Target};
use crate::rng::Key;
use crate::units::Bytes;

fn episodes(from: &Behaviour) -> Result<Episodes, Error> {
    match from {
        Behaviour::Recorded { file } if parquet::is_parquet(file) => parquet::read(file),
        Behaviour::Recorded { file } => npz::read(file),
        Behaviour::PushTLike { episodes, seed } => {
            let shown = push_t::demonstrate(*episodes, *seed);
            Ok(Episodes {
                observations: shown.observations.iter().map(|row| row.to_vec()).collect(),
                actions: shown.actions.iter().map(|row| row.to_vec()).collect(),
                ends: shown.ends,
            })
        }
    }
}

/// Counts the windows of both parts and measures the ranges.
///
/// # Errors
///
/// As [`open`], and a file cannot be read.
pub(crate) fn survey(from: &Behaviour, chunk: Chunk) -> Result<Survey, Error> {
    let episodes = episodes(from)?;
    let n_train = n_training(from, &episodes, chunk)?;
    let last = episodes.ends[n_train - 1];
    let ranges = Ranges {
        observations: ranges(&episodes.observations[..last]),
        actions: ranges(&episodes.actions[..last]),
    };
    let found = Survey::of(&cut(from, episodes, chunk, &ranges)?);
    let numbers = ranges.observations.len() + ranges.actions.len();
    let simulated = from.seed();
    let policy = Policy { chunk, ranges, simulated };
    let policy = serde_json::to_value(policy).unwrap_or_default();
    Ok(Survey {
        line: line(from, chunk),
        // Each step once, its actions beside its observations.
        held: Bytes((found.n_train + found.n_val) as u64 * Bytes::of_f32(numbers).0),
        found: [(Policy::FOUND.to_owned(), policy)].into(),
        ..found
    })
}

fn line(from: &Behaviour, chunk: Chunk) -> String {
    let Chunk { horizon, n_obs_steps, n_action_steps, .. } = chunk;
    let from = match from {
        Behaviour::Recorded { file } => file.display().to_string(),
        Behaviour::PushTLike { episodes, .. } => format!("{episodes} generated episodes"),
    };
    format!("{from}, {n_obs_steps} observations -> {horizon} actions, {n_action_steps} executed")
}

/// Opens both parts; the ranges are those that a survey found, or are measured anew.
///
/// # Errors
///
/// The file cannot be read; there are too few episodes, or they are too short for a chunk.
pub(super) fn open(from: &Behaviour, chunk: Chunk, found: &Options) -> Result<Splits, Error> {
    let policy = match Policy::found(found) {
        Some(policy) => Some(policy),
        None => Policy::found(&survey(from, chunk)?.found),
    };
    let ranges = policy.map(|policy| policy.ranges);
    let ranges = ranges.ok_or_else(|| unusable(from, "it has no ranges".to_owned()))?;
    cut(from, episodes(from)?, chunk, &ranges)
}

fn cut(
    from: &Behaviour,
    episodes: Episodes,
    chunk: Chunk,
    ranges: &Ranges,
) -> Result<Splits, Error> {
    let n_train = n_training(from, &episodes, chunk)?;
    let scale = |rows: &[Vec<f32>], ranges: &[[f32; 2]]| -> Vec<Vec<f32>> {
        let row = |row: &Vec<f32>| row.iter().zip(ranges).map(|(&v, &r)| scaled(v, r)).collect();
        rows.iter().map(row).collect()
    };
    let episodes = Arc::new(Episodes {
        observations: scale(&episodes.observations, &ranges.observations),
        actions: scale(&episodes.actions, &ranges.actions),
        ends: episodes.ends,
    });
    let windows = |part: &'static str, skip, take| {
        let windows = Windows::new(from, &episodes, chunk, skip, take);
        if windows.places.is_empty() {
            let steps = chunk.horizon;
            return Err(unusable(
                from,
                format!("no {part} episode is long enough for `horizon` = {steps}"),
            ));
        }
        Ok(Arc::new(windows))
    };
    let rest = episodes.ends.len() - n_train;
    let (train, val) = (windows("training", 0, n_train)?, windows("validation", n_train, rest)?);
    Ok(Splits { train, val, test: None, classes: Vec::new() })
}

/// Number of training episodes; at least one is held back.
fn n_training(from: &Behaviour, episodes: &Episodes, chunk: Chunk) -> Result<usize, Error> {
    let n = episodes.ends.len();
    let held = ((n as f64 * chunk.val_ratio).round() as usize).max(1);
    n.checked_sub(held).filter(|&train| train > 0).ok_or_else(|| {
        let what = format!(
            "{n} episodes cannot be split into training and validation with `val_ratio` = {}",
            chunk.val_ratio
        );
        unusable(from, what)
    })
}

fn unusable(from: &Behaviour, what: String) -> Error {
    match from {
        Behaviour::Recorded { file } => Error::Format { path: file.clone(), what },
        Behaviour::PushTLike { .. } => Error::Generated { what },
    }
}

/// Least and largest value of each column.
fn ranges(rows: &[Vec<f32>]) -> Vec<[f32; 2]> {
    let columns = rows.first().map_or(0, Vec::len);
    let range = |column: usize| {
        let values = rows.iter().map(|row| row[column]);
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
    shape: [usize; 2],
    target_shape: [usize; 2],
    name: String,
}

impl Windows {
    fn new(
        from: &Behaviour,
        episodes: &Arc<Episodes>,
        chunk: Chunk,
        skip: usize,
        take: usize,
    ) -> Self {
        let (before, after) = (chunk.n_obs_steps - 1, chunk.n_action_steps - 1);
        let places = episodes
            .steps()
            .skip(skip)
            .take(take)
            .flat_map(|steps| {
                let windows = (steps.len() + before + after + 1).saturating_sub(chunk.horizon);
                (0..windows).map(move |first| (steps.clone(), first))
            })
            .collect();
        let width = |rows: &[Vec<f32>]| rows.first().map_or(0, Vec::len);
        Self {
            places,
            before,
            shape: [chunk.n_obs_steps, width(&episodes.observations)],
            target_shape: [chunk.horizon, width(&episodes.actions)],
            name: match from {
                Behaviour::Recorded { file } => format!("`{}`", shown(file)),
                Behaviour::PushTLike { .. } => "the generated episodes".to_owned(),
            },
            episodes: episodes.clone(),
        }
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
        _: Option<Key>,
        values: &mut Vec<f32>,
    ) -> Result<Target, SampleError> {
        for at in 0..self.shape[0] {
            values.extend_from_slice(&self.episodes.observations[self.step(index, at)]);
        }
        let action = |at| &self.episodes.actions[self.step(index, at)];
        Ok(Target::Series((0..self.target_shape[0]).flat_map(action).copied().collect()))
    }
}

#[cfg(test)]
mod tests;
