//! `data.name = "speech"`, folders of WAV files: mel features of every utterance, clean and with
//! noise or another speaker.
//!
//! A sample is (2, frames + 1, bands): features of the clean and of the noisy utterance, padded by
//! zeros; the first number of the last row says how many frames are more. Utterances of less than a
//! second are repeated to one. The target is the class: the name of the file's folder, or in a
//! folder without folders what stands before the first `_` of its name.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Kind, Modality, Offer, Options};
use crate::data::error::{Error, SampleError, shown};
use crate::data::file_names::is_hidden;
use crate::data::listing::paths::{Paths, both};
use crate::data::sources::source::{Asked, DataSource, Files, Reading, Survey};
use crate::data::sources::speech::mel::LogMel;
use crate::data::sources::speech::noise::{self, Augmentation};
use crate::data::sources::speech::wav;
use crate::data::{Dataset, Splits, Target};
use crate::rng::Key;

/// Frames are padded to a multiple of this.
const MULTIPLE: usize = 16;
/// Folders below a root that are looked into.
const DEPTH: usize = 8;
const EXPECTED: &str = "WAV files, or folders of them";

/// folders of WAV files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Speech {
    /// folder of WAV files of one sample rate; a file's class is its folder, or in a folder without
    /// folders what stands before the first `_` of its name.
    #[schemars(extend("format" = "path"), example = "data/train")]
    pub train_dir: PathBuf,
    /// the same classes, to validate on.
    #[schemars(extend("format" = "path"), example = "data/val")]
    pub val_dir: PathBuf,
    /// mel bands.
    #[serde(default = "eighty")]
    #[schemars(range(min = 8, max = 1024), example = 64)]
    pub n_mels: usize,
    /// longer utterances are cut. Half of the training utterances are augmented with noise or
    /// another speaker.
    #[serde(default = "twenty")]
    #[schemars(extend("exclusiveMinimum" = 0.0), example = 10.0)]
    pub max_seconds: f64,
}

fn eighty() -> usize {
    80
}

fn twenty() -> f64 {
    20.0
}

impl Kind for Speech {
    const NAME: &'static str = "speech";
    const OFFERS: &'static [Offer] = &[Offer::Samples(Modality::Speech)];
}

impl DataSource for Speech {
    fn open(&self, reading: &Reading<'_>) -> Result<Splits, Error> {
        let measured = match Measured::of(reading.found) {
            Some(measured) => measured,
            None => self.measure()?,
        };
        self.read(measured)
    }

    fn survey(&self, _: &Asked<'_>) -> Result<Survey, Error> {
        let measured = self.measure()?;
        let Measured { rate, samples } = measured;
        let seconds = samples as f64 / f64::from(rate);
        let (files, bands) = (both(&self.train_dir, &self.val_dir), self.n_mels);
        let line = format!("{files}, up to {seconds:.2} s at {rate} Hz, {bands} mel bands");
        let found = [("rate", rate.into()), ("samples", samples.into())];
        let found = found.map(|(name, number)| (name.to_owned(), number)).into();
        Ok(Survey { line, found, ..Survey::of(&self.read(measured)?) })
    }

    fn files(&self, _: &Options) -> Result<Vec<Files>, Error> {
        Ok(vec![
            Files::many("train", &self.train_dir, list(&self.train_dir)?),
            Files::many("val", &self.val_dir, list(&self.val_dir)?),
        ])
    }
}

/// What all files have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Measured {
    /// Samples a second of every file.
    rate: u32,
    /// Samples of the longest utterance; what is longer is cut.
    samples: usize,
}

impl Measured {
    /// As a survey found it.
    fn of(found: &Options) -> Option<Self> {
        let number = |name: &str| found.get(name)?.as_u64();
        Some(Self { rate: number("rate")? as u32, samples: number("samples")? as usize })
    }
}

impl Speech {
    /// Finds the rate and the longest utterance.
    fn measure(&self) -> Result<Measured, Error> {
        let (train, val) = (list(&self.train_dir)?, list(&self.val_dir)?);
        let (mut rate, mut longest) = (None, 0);
        for file in train.iter().chain(&val) {
            let header = wav::header(file)
                .map_err(|source| Error::Format { path: file.clone(), what: source.to_string() })?;
            let expected = *rate.get_or_insert(header.rate);
            if header.rate != expected {
                let what = format!(
                    "its sample rate is {} Hz, but that of the files before it is {expected} Hz",
                    header.rate
                );
                return Err(Error::Format { path: file.clone(), what });
            }
            longest = longest.max(header.samples);
        }
        let rate = rate.unwrap_or(16_000);
        let most = (self.max_seconds * f64::from(rate)) as usize;
        Ok(Measured { rate, samples: longest.clamp(rate as usize, most.max(rate as usize)) })
    }

    /// Opens both parts, with the classes of both in label order.
    fn read(&self, measured: Measured) -> Result<Splits, Error> {
        let (train, val) = (list(&self.train_dir)?, list(&self.val_dir)?);
        let classes: BTreeSet<String> = train
            .iter()
            .map(|file| class(&self.train_dir, file))
            .chain(val.iter().map(|file| class(&self.val_dir, file)))
            .collect();
        let classes: Vec<String> = classes.into_iter().collect();
        let mel = Arc::new(LogMel::new(measured.rate, self.n_mels));
        let part = |root: &Path, files: Vec<PathBuf>| {
            let mut labelled = Paths::default();
            for file in files {
                let label = classes.binary_search(&class(root, &file)).unwrap_or(0);
                labelled.push_path(&file, label as u32);
            }
            Arc::new(Utterances::new(labelled, mel.clone(), measured))
        };
        let (train, val) = (part(&self.train_dir, train), part(&self.val_dir, val));
        Ok(Splits { train, val, test: None, classes })
    }
}

/// Features of the first second of the file at `path`.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn features(path: &Path) -> Result<Vec<f32>, SampleError> {
    let header = wav::header(path)?;
    let speech = wav::speech(path, header.samples.min(header.rate as usize))?;
    let mel = LogMel::new(header.rate, 8);
    Ok(mel.features(&speech, speech.len(), mel.frames(speech.len())).0)
}

/// All WAV files below `root`, in order, without what begins with a dot.
///
/// # Errors
///
/// The folder is absent, cannot be read or holds none.
pub(crate) fn list(root: &Path) -> Result<Vec<PathBuf>, Error> {
    let missing =
        || Error::Missing { what: "the folder of speech", path: root.into(), expected: EXPECTED };
    if !root.exists() {
        return Err(missing());
    }
    let mut files = Vec::new();
    let mut open = vec![(root.to_owned(), 0)];
    while let Some((folder, depth)) = open.pop() {
        let failed = |source| Error::Io { action: "list", path: folder.clone(), source };
        for entry in std::fs::read_dir(&folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if is_hidden(&entry.file_name()) {
                continue;
            }
            let path = entry.path();
            let is_wav = path.extension().is_some_and(|kind| kind.eq_ignore_ascii_case("wav"));
            if path.is_dir() && depth < DEPTH {
                open.push((path, depth + 1));
            } else if is_wav {
                files.push(path);
            }
        }
    }
    if files.is_empty() {
        return Err(Error::Format {
            path: root.into(),
            what: "it contains no WAV files".to_owned(),
        });
    }
    files.sort();
    Ok(files)
}

/// What `file` says.
fn class(root: &Path, file: &Path) -> String {
    let text =
        |name: Option<&std::ffi::OsStr>| name.unwrap_or_default().to_string_lossy().into_owned();
    match file.parent() {
        Some(folder) if folder != root => text(folder.file_name()),
        _ => {
            let name = text(file.file_stem());
            name.split_once('_').map_or(String::from("speech"), |(class, _)| class.to_owned())
        }
    }
}

/// One part.
struct Utterances {
    files: Paths,
    mel: Arc<LogMel>,
    rate: usize,
    /// Samples of the longest utterance.
    samples: usize,
    shape: [usize; 3],
}

impl Utterances {
    fn new(files: Paths, mel: Arc<LogMel>, measured: Measured) -> Self {
        let frames = mel.frames(measured.samples).next_multiple_of(MULTIPLE);
        let shape = [2, frames + 1, mel.bands()];
        Self { files, mel, rate: measured.rate as usize, samples: measured.samples, shape }
    }

    /// The utterance, repeated to a second if it is shorter.
    fn speech(&self, index: usize) -> Result<Vec<f32>, SampleError> {
        let (path, _) = self.files.get(index);
        let speech = wav::speech(&path, self.samples)?;
        if speech.is_empty() {
            let reason = "it contains no samples".to_owned();
            return Err(SampleError::Decode { path, reason });
        }
        let length = speech.len().max(self.rate);
        Ok(speech.into_iter().cycle().take(length).collect())
    }

    /// The same with what `key` draws mixed into it.
    fn augmented(&self, speech: &[f32], key: Key) -> Result<Vec<f32>, SampleError> {
        let mut draws = key.stream();
        let kind = noise::draw(&mut draws, self.files.len());
        let other = match kind {
            Augmentation::None => return Ok(speech.to_vec()),
            Augmentation::Noise => noise::generated(&mut draws, speech.len()),
            Augmentation::Speaker(other) => self.speech(other)?,
        };
        let mut noisy = speech.to_vec();
        noise::mix(&mut noisy, &other, kind, &mut draws);
        Ok(noisy)
    }
}

impl Dataset for Utterances {
    fn len(&self) -> usize {
        self.files.len()
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn classifies(&self) -> bool {
        true
    }

    fn label(&self, index: usize) -> Option<u32> {
        Some(self.files.get(index).1)
    }

    fn name(&self, index: usize) -> String {
        format!("`{}`", shown(&self.files.get(index).0))
    }

    fn load(
        &self,
        index: usize,
        key: Option<Key>,
        values: &mut Vec<f32>,
    ) -> Result<Target, SampleError> {
        let [_, rows, bands] = self.shape;
        let clean = self.speech(index)?;
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
        Ok(Target::Class(self.files.get(index).1))
    }
}

#[cfg(test)]
mod tests;
