//! Mel features of every utterance, clean and with noise or another speaker.
//!
//! A sample is (2, frames + 1, bands): features of the clean and of the noisy utterance, padded by
//! zeros; the first number of the last row says how many frames are more. Utterances of less than a
//! second are repeated to one. The target is the class.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::audio::{self, Span};
use crate::config::kind::Options;
use crate::data::{
    Dataset, Paths, SampleError, SplitUnits, Splittable, Target, numbered, shown_path,
};
use crate::mel::LogMel;
use crate::noise::{self, Augmentation};
use crate::resample::resampled;
use crate::rng::{Key, Stream};

/// Frames are padded to a multiple of this.
const MULTIPLE: usize = 16;
/// Seconds that are read beyond what is wanted, which resampling needs.
const BEYOND: f64 = 0.01;

/// Properties that all utterances share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AudioLimits {
    /// Samples a second.
    pub(crate) rate: u32,
    /// Samples of the longest utterance; what is longer is cut.
    pub(crate) samples: usize,
}

impl AudioLimits {
    /// Reads the limits from the survey's results.
    pub(crate) fn of(found: &Options) -> Option<Self> {
        let number = |name: &str| found.get(name)?.as_u64();
        Some(Self { rate: number("rate")? as u32, samples: number("samples")? as usize })
    }
}

/// Features of the first second of the file at `path`.
#[cfg(feature = "fuzzing")]
pub fn features(path: &Path) -> Result<Vec<f32>, SampleError> {
    let header = audio::header(path)?;
    let middle = header.samples as f64 / f64::from(header.rate) / 2.0;
    drop(audio::samples(path, Some(Span { offset: middle, duration: 1.0 }), 1.0)?);
    let (rate, speech) = audio::samples(path, None, 1.0)?;
    let mel = LogMel::new(8000, 8);
    let speech = resampled(speech, rate, 8000);
    Ok(mel.features(&speech, speech.len(), mel.frames(speech.len())).0)
}

/// Samples of recordings, at one rate.
pub(crate) struct Clips {
    recordings: Recordings,
    measured: AudioLimits,
}

impl Clips {
    pub(crate) fn new(recordings: Recordings, measured: AudioLimits) -> Self {
        Self { recordings, measured }
    }

    /// A recording or a part of it, up to so many samples.
    fn read(&self, path: &Path, span: Option<Span>) -> Result<Vec<f32>, SampleError> {
        let AudioLimits { rate, samples } = self.measured;
        let seconds = samples as f64 / f64::from(rate) + BEYOND;
        let (from, values) = audio::samples(path, span, seconds)?;
        let mut values = resampled(values, from, rate);
        values.truncate(samples);
        if values.is_empty() {
            let reason = "it contains no samples".to_owned();
            return Err(SampleError::Decode { path: path.into(), reason });
        }
        Ok(values)
    }

    /// The utterance, repeated to a second if it is shorter.
    fn speech(&self, index: usize) -> Result<Vec<f32>, SampleError> {
        let (path, _) = self.recordings.get(index);
        let speech = self.read(&path, self.recordings.span(index))?;
        let length = speech.len().max(self.measured.rate as usize);
        Ok(speech.into_iter().cycle().take(length).collect())
    }

    /// A part of `n` samples of any recording, or all of one that is shorter, as NeMo draws noise.
    fn noise(&self, draws: &mut Stream, n: usize) -> Result<Vec<f32>, SampleError> {
        let index = draws.below(self.recordings.len() as u64) as usize;
        let share = draws.uniform();
        let seconds = n as f64 / f64::from(self.measured.rate);
        let part = self.recordings.span(index).map(|Span { offset, duration }| {
            let room = (duration - seconds).max(0.0);
            Span { offset: offset + share * room, duration: duration.min(seconds) }
        });
        let noise = self.read(&self.recordings.get(index).0, part)?;
        let is_silent = noise.iter().all(|&value| value == 0.0);
        Ok(if is_silent { noise::generated(draws, n) } else { noise })
    }
}

/// One part of the data.
pub(crate) struct Utterances {
    clips: Clips,
    /// Recorded noise to mix in; noise is generated if there is none.
    noise: Option<Arc<Clips>>,
    mel: Arc<LogMel>,
    shape: [usize; 3],
}

impl Utterances {
    pub(crate) fn new(clips: Clips, noise: Option<Arc<Clips>>, mel: Arc<LogMel>) -> Self {
        let frames = mel.frames(clips.measured.samples).next_multiple_of(MULTIPLE);
        let shape = [2, frames + 1, mel.bands()];
        Self { clips, noise, mel, shape }
    }

    /// `speech` with what `key` draws mixed into it.
    fn augmented(&self, speech: &[f32], key: Key) -> Result<Vec<f32>, SampleError> {
        let mut draws = key.stream();
        let kind = noise::draw(&mut draws, self.len());
        let other = match (kind, &self.noise) {
            (Augmentation::None, _) => return Ok(speech.to_vec()),
            (Augmentation::Noise, None) => noise::generated(&mut draws, speech.len()),
            (Augmentation::Noise, Some(clips)) => clips.noise(&mut draws, speech.len())?,
            (Augmentation::Speaker(other), _) => self.clips.speech(other)?,
        };
        let mut noisy = speech.to_vec();
        noise::mix(&mut noisy, &other, kind, &mut draws);
        Ok(noisy)
    }
}

impl Dataset for Utterances {
    fn len(&self) -> usize {
        self.clips.recordings.len()
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn classifies(&self) -> bool {
        true
    }

    fn label(&self, index: usize) -> Option<u32> {
        Some(self.clips.recordings.get(index).1)
    }

    fn name(&self, index: usize) -> String {
        let path = self.clips.recordings.get(index).0;
        match self.clips.recordings.span(index) {
            Some(span) if span.offset > 0.0 => {
                format!("`{}` from {} s on", shown_path(&path), span.offset)
            }
            _ => format!("`{}`", shown_path(&path)),
        }
    }

    fn origin(&self, index: usize) -> Option<(PathBuf, Option<u64>)> {
        Some((self.clips.recordings.get(index).0, None))
    }

    fn load(
        &self,
        index: usize,
        key: Option<Key>,
        values: &mut Vec<f32>,
    ) -> Result<Target, SampleError> {
        let [_, rows, bands] = self.shape;
        let clean = self.clips.speech(index)?;
        let mut append = |speech: &[f32]| {
            let (features, real) = self.mel.features(speech, speech.len(), rows - 1);
            values.extend(features);
            values.push(real as f32);
            values.resize(values.len() + bands - 1, 0.0);
        };
        append(&clean);
        match key {
            Some(key) => append(&self.augmented(&clean, key)?),
            None => append(&clean),
        }
        Ok(Target::Class(self.clips.recordings.get(index).1))
    }
}

/// The class of utterances that name none.
pub(crate) const UNNAMED: &str = "speech";

/// A recording or a part of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Utterance {
    pub(crate) path: PathBuf,
    pub(crate) class: String,
    /// The part; the whole recording if there is none.
    pub(crate) span: Option<Span>,
    /// Speaker, if known.
    pub(crate) speaker: Option<String>,
}

/// Utterances with their labels, in their order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recordings {
    files: Paths,
    /// Empty where all are whole recordings.
    spans: Vec<Span>,
    /// Speaker of each utterance, whose utterances are held out together; empty without speakers.
    groups: Vec<u32>,
}

impl Splittable for Recordings {
    fn units(&self) -> SplitUnits {
        if self.groups.is_empty() {
            self.files.units()
        } else {
            SplitUnits::Groups(self.groups.clone())
        }
    }

    fn only(&self, places: &[usize]) -> Self {
        let spans = places.iter().filter_map(|&place| self.span(place));
        Self { files: self.files.only(places), spans: spans.collect(), groups: Vec::new() }
    }
}

impl Recordings {
    /// `utterances`, labelled by their place in `classes`, which are in order.
    pub(crate) fn labelled(utterances: &[Utterance], classes: &[String]) -> Self {
        let mut all = Self::default();
        for Utterance { path, class, span, .. } in utterances {
            let label = classes.binary_search(class).unwrap_or(0);
            all.files.push_path(path, label as u32);
            all.spans.extend(*span);
        }
        all
    }

    /// Groups the utterances by speaker.
    pub(crate) fn grouped(self, utterances: &[Utterance]) -> Self {
        let speakers: Vec<String> =
            utterances.iter().filter_map(|utterance| utterance.speaker.clone()).collect();
        Self { groups: numbered(&speakers).unwrap_or_default(), ..self }
    }

    pub(crate) fn len(&self) -> usize {
        self.files.len()
    }

    /// File and label of an utterance.
    pub(crate) fn get(&self, index: usize) -> (PathBuf, u32) {
        self.files.get(index)
    }

    /// The part of its file.
    pub(crate) fn span(&self, index: usize) -> Option<Span> {
        self.spans.get(index).copied()
    }
}
