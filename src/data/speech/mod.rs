//! Folders of WAV files: mel features of every utterance, clean and with noise or another speaker.
//!
//! A sample is (2, frames + 1, bands): features of the clean and of the noisy utterance, padded by zeros; the first number
//! of the last row says how many frames are more. Utterances of less than a second are repeated to one. The target is
//! the class: the name of the file's folder, or in a folder without folders what stands before the first `_` of its name.

mod mel;
mod noise;
mod wav;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::data::error::{Error, SampleError, shown};
use crate::data::listing::is_hidden;
use crate::data::paths::Paths;
use crate::data::{Dataset, Splits, Target};
use crate::plan::{DataFacts, SourcePlan, SpeechSource};
use crate::rng::Key;
pub use mel::LogMel;
use noise::Augmentation;

/// Frames are padded to a multiple of this.
const MULTIPLE: usize = 16;
/// Folders below a root that are looked into.
const DEPTH: usize = 8;
const EXPECTED: &str = "WAV files, or folders of them";

/// Counts utterances and classes, and finds the longest.
///
/// # Errors
///
/// A folder is absent or holds no WAV file; a file is damaged or has another sample rate.
pub(crate) fn survey(
    train: &Path,
    val: &Path,
    n_mels: usize,
    max_seconds: f64,
) -> Result<DataFacts, Error> {
    let (train_files, val_files) = (list(train)?, list(val)?);
    let (mut rate, mut longest) = (None, 0);
    for file in train_files.iter().chain(&val_files) {
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
    let most = (max_seconds * f64::from(rate)) as usize;
    let source = SpeechSource {
        train: train.to_owned(),
        val: val.to_owned(),
        rate,
        samples: longest.clamp(rate as usize, most.max(rate as usize)),
        n_mels,
    };
    let (splits, classes) = open(&source)?;
    Ok(DataFacts {
        n_train: splits.train.len(),
        n_val: splits.val.len(),
        n_test: 0,
        notes: Vec::new(),
        classes,
        sample: Some(splits.train.shape().to_vec()),
        target: Vec::new(),
        source: SourcePlan::Speech(source),
    })
}

/// Opens both parts; also returns the classes of both in label order.
///
/// # Errors
///
/// A folder is absent or holds no WAV file.
pub(crate) fn open(source: &SpeechSource) -> Result<(Splits, Vec<String>), Error> {
    let (train, val) = (list(&source.train)?, list(&source.val)?);
    let classes: BTreeSet<String> = train
        .iter()
        .map(|file| class(&source.train, file))
        .chain(val.iter().map(|file| class(&source.val, file)))
        .collect();
    let classes: Vec<String> = classes.into_iter().collect();
    let mel = Arc::new(LogMel::new(source.rate, source.n_mels));
    let part = |root: &Path, files: Vec<PathBuf>| {
        let mut labelled = Paths::default();
        for file in files {
            let label = classes.binary_search(&class(root, &file)).unwrap_or(0);
            labelled.push_path(&file, label as u32);
        }
        Arc::new(Speech::new(labelled, mel.clone(), source))
    };
    let splits =
        Splits { train: part(&source.train, train), val: part(&source.val, val), test: None };
    Ok((splits, classes))
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
struct Speech {
    files: Paths,
    mel: Arc<LogMel>,
    rate: usize,
    /// Samples of the longest utterance.
    samples: usize,
    shape: [usize; 3],
}

impl Speech {
    fn new(files: Paths, mel: Arc<LogMel>, source: &SpeechSource) -> Self {
        let frames = mel.frames(source.samples).next_multiple_of(MULTIPLE);
        let shape = [2, frames + 1, mel.bands()];
        Self { files, mel, rate: source.rate as usize, samples: source.samples, shape }
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

impl Dataset for Speech {
    fn len(&self) -> usize {
        self.files.len()
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn classifies(&self) -> bool {
        true
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
