//! `data.name = "speech"`: folders of recordings or NeMo's manifests -> utterances with their
//! classes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::audio::{self, Header};
use crate::config::kind::{BuiltinSplits, Capability, Kind, Modality, OptionConflict, Options};
use crate::data::{
    DataSource, Dataset, Error, Files, InputFiles, InputItem, InputItems, Inputs, OpenRequest,
    Parts, PredictionKind, PredictionRequest, SampleError, Splits, Survey, SurveyRequest,
    has_ending, input_files,
};
use crate::folder;
use crate::manifest::{self, Filter, Manifest};
use crate::mel::{self, LogMel};
use crate::plan::SplitPlan;
use crate::utterances::{AudioLimits, Clips, Recordings, Utterance, Utterances};

/// Samples a second of the utterances of manifests, as NeMo's.
const RATE: u32 = 16_000;

/// folders of recordings (WAV, FLAC, OGG Vorbis, MP3), or NVIDIA NeMo manifests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Speech {
    /// training folder; a recording's class is its folder's name or, for files directly in
    /// `train_dir`, the file name up to the first `_`. Or use `train_manifest`.
    #[serde(default)]
    #[schemars(extend("format" = "path"), example = "data/train")]
    pub train_dir: Option<PathBuf>,
    /// validation folder, with the same classes; or hold out training utterances with
    /// `data.val_fraction` or `data.folds`.
    #[serde(default)]
    #[schemars(extend("format" = "path"), example = "data/val")]
    pub val_dir: Option<PathBuf>,
    /// test folder, with the same classes; it is used once, at the end of training.
    #[serde(default)]
    #[schemars(extend("format" = "path"), example = "data/test")]
    pub test_dir: Option<PathBuf>,
    /// training manifest in NeMo's format: one JSON object per line, with `audio_filepath`,
    /// `duration` in seconds, and optionally `offset` and `label`. Relative paths start at the
    /// current folder or, if nothing is found there, at the manifest's folder.
    #[serde(default)]
    #[schemars(extend("format" = "path"), example = "data/train_manifest.json")]
    pub train_manifest: Option<PathBuf>,
    /// validation manifest.
    #[serde(default)]
    #[schemars(extend("format" = "path"), example = "data/val_manifest.json")]
    pub val_manifest: Option<PathBuf>,
    /// test manifest, used once, at the end of training.
    #[serde(default)]
    #[schemars(extend("format" = "path"), example = "data/test_manifest.json")]
    pub test_manifest: Option<PathBuf>,
    /// manifest of noise that is mixed into training utterances. Default: noise is generated.
    #[serde(default)]
    #[schemars(extend("format" = "path"), example = "data/noise_manifest.json")]
    pub noise_manifest: Option<PathBuf>,
    /// key of the class in manifests. Default: `label`, else `command`; without either, all
    /// utterances have the same class.
    #[serde(default)]
    #[schemars(example = &"text")]
    pub label_key: Option<String>,
    /// key of the speaker in manifests: with `data.val_fraction` or `data.folds`, all utterances of
    /// a speaker are on one side, so that the score is that of new voices.
    #[serde(default)]
    #[schemars(example = &"speaker")]
    pub group: Option<String>,
    /// the same for `train_dir`: which part of a file's name is the speaker, counted from 1, between
    /// `_` or `-`; 2 in `7_george_3.wav`.
    #[serde(default)]
    #[schemars(range(min = 1, max = 16), example = 2)]
    pub group_part: Option<usize>,
    /// shorter utterances of manifests are skipped.
    #[serde(default)]
    #[schemars(range(min = 0.0), example = 0.1)]
    pub min_duration: Option<f64>,
    /// longer utterances of manifests are skipped.
    #[serde(default)]
    #[schemars(extend("exclusiveMinimum" = 0.0), example = 20.0)]
    pub max_duration: Option<f64>,
    /// sample rate in Hz; recordings with other rates are resampled, as by torchaudio. Default: the
    /// files' rate, which must be the same for all; 16000 with manifests.
    #[serde(default)]
    #[schemars(range(min = 1000, max = 768_000), example = 16_000)]
    pub sample_rate: Option<u32>,
    /// mel bands.
    #[serde(default = "eighty")]
    #[schemars(range(min = 8, max = 1024), example = 64)]
    pub n_mels: usize,
    /// longer utterances are cut. Half of the training utterances are mixed with noise or another
    /// speaker.
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

/// A folder or a manifest of each part.
const PARTS: BuiltinSplits = BuiltinSplits {
    val: &["val_dir", "val_manifest"],
    test: &["test_dir", "test_manifest"],
    ..BuiltinSplits::FOLDERS
};

impl Kind for Speech {
    const NAME: &'static str = "speech";
    const CAPABILITIES: &'static [Capability] =
        &[Capability::Samples(Modality::Speech), Capability::Split(PARTS)];

    fn check(&self) -> Vec<OptionConflict> {
        let mut wrong = Vec::new();
        let mut say =
            |key, with, what: &str| wrong.push(OptionConflict { key, with, what: what.to_owned() });
        for (dir, manifest, [in_dir, in_manifest]) in self.places() {
            match (in_dir, in_manifest) {
                (None, None) if dir == "train_dir" => {
                    let what = format!("is missing: `speech` needs it, or `{manifest}`");
                    say(dir, &["train_manifest"], &what);
                }
                (Some(_), Some(_)) => {
                    say(manifest, &[], &format!("stands beside `{dir}`: omit one"));
                }
                _ => {}
            }
        }
        let has_manifest = self.places().iter().any(|(.., [_, manifest])| manifest.is_some());
        let only_manifests = [
            ("label_key", self.label_key.is_some()),
            ("min_duration", self.min_duration.is_some()),
            ("max_duration", self.max_duration.is_some()),
        ];
        for (key, _) in only_manifests.into_iter().filter(|&(_, is_set)| is_set && !has_manifest) {
            say(key, &[], "belongs to manifests, and there is none");
        }
        if self.group.is_some() && self.train_manifest.is_none() {
            say("group", &[], "is a key of manifests: for folders, set `group_part`");
        }
        if self.group_part.is_some() && self.train_dir.is_none() {
            say(
                "group_part",
                &[],
                "is a part of the names of files in `train_dir`: for manifests, set `group`",
            );
        }
        if let (Some(min), Some(max)) = (self.min_duration, self.max_duration)
            && min > max
        {
            say("min_duration", &["max_duration"], &format!("is more than `max_duration` = {max}"));
        }
        wrong
    }
}

impl DataSource for Speech {
    fn open(&self, reading: &OpenRequest<'_>) -> Result<Splits, Error> {
        let parts = self.parts()?;
        let measured = match AudioLimits::of(reading.found) {
            Some(measured) => measured,
            None => self.measure(&parts)?,
        };
        self.read(&parts, measured, &reading.survey.split)
    }

    fn survey(&self, request: &SurveyRequest<'_>) -> Result<Survey, Error> {
        let parts = self.parts()?;
        parts.iter().chain(&self.noise()?).try_for_each(Part::check_files)?;
        let measured = self.measure(&parts)?;
        let AudioLimits { rate, samples } = measured;
        let seconds = samples as f64 / f64::from(rate);
        let bands = self.n_mels;
        let names: Vec<String> =
            parts.iter().take(2).map(|part| part.path.display().to_string()).collect();
        let files = names.join(" and ");
        let left_out = left_out(&parts);
        let are_named =
            |part: &Part| part.is_folder() && folder::names_classes(&part.path, part.utterances());
        let by_name = if parts.iter().any(are_named) {
            ", the class before the first `_` of a file's name"
        } else {
            ""
        };
        let line = format!(
            "{files}, up to {seconds:.2} s at {rate} Hz, {bands} mel bands{by_name}{left_out}"
        );
        let found = [("rate", rate.into()), ("samples", samples.into())];
        let found = found.map(|(name, number)| (name.to_owned(), number)).into();
        let notes = self.repeated_speakers(&parts, &request.split).into_iter().collect();
        Ok(Survey {
            notes,
            line,
            found,
            ..Survey::of(&self.read(&parts, measured, &request.split)?)
        })
    }

    /// The parameters of the features. A sample is the features of clean speech, then of noisy
    /// speech, which other programs may set to the same, and one more row, which begins with the
    /// number of frames.
    fn preprocessing(&self, found: &Options) -> Result<Options, Error> {
        let measured = match AudioLimits::of(found) {
            Some(measured) => measured,
            None => self.measure(&self.parts()?)?,
        };
        let AudioLimits { rate, samples } = measured;
        let numbers = [
            ("sample_rate", json!(rate)),
            ("channels", json!("mean")),
            ("resample", json!("torchaudio.functional.resample, with its defaults")),
            ("max_samples", json!(samples)),
            ("min_samples", json!(rate)),
            ("shorter", json!("repeated from the beginning to min_samples")),
            ("n_mels", json!(self.n_mels)),
        ];
        let numbers = numbers.into_iter().chain(mel::described(rate));
        let layout = "[0] and [1] are features of clean and of noisy speech, which may be the same: \
                      frames, then rows of zeros; the first number of the last row is the number \
                      of frames";
        let numbers = numbers.chain([("layout", json!(layout))]);
        Ok(numbers.map(|(name, number)| (name.to_owned(), number)).collect())
    }

    fn inputs(&self, request: &PredictionRequest<'_>) -> Result<Inputs, Error> {
        let why =
            "the run was begun by an earlier ddprun, which kept no sample rate: train it again";
        let measured = AudioLimits::of(&request.plan.source.survey);
        self.recordings(request.paths, measured.ok_or(Error::NotPredicted { why })?)
    }

    fn files(&self, _: &Options) -> Result<Vec<Files>, Error> {
        let parts = self.parts()?.into_iter().chain(self.noise()?);
        Ok(parts.flat_map(Part::files).collect())
    }
}

/// A folder or manifest, and what is in it.
struct Part {
    name: &'static str,
    path: PathBuf,
    /// Utterances; without lines if it is a folder.
    manifest: Manifest,
}

impl Part {
    fn is_folder(&self) -> bool {
        self.manifest.lines.is_empty()
    }

    fn utterances(&self) -> &[Utterance] {
        &self.manifest.utterances
    }

    fn check_files(&self) -> Result<(), Error> {
        if self.is_folder() { Ok(()) } else { manifest::check_files(&self.path, &self.manifest) }
    }

    /// Files that are compared when a run is resumed.
    fn files(self) -> Vec<Files> {
        let is_folder = self.is_folder();
        let mut files: Vec<PathBuf> =
            self.manifest.utterances.into_iter().map(|utterance| utterance.path).collect();
        if is_folder {
            return vec![Files::many(self.name, &self.path, files)];
        }
        // One recording may hold many utterances.
        files.sort();
        files.dedup();
        let list = match self.name {
            "train" => "train manifest",
            "val" => "val manifest",
            "test" => "test manifest",
            _ => "noise manifest",
        };
        let root = self.path.parent().unwrap_or(Path::new(""));
        vec![Files::one(list, &self.path), Files::many(self.name, root, files)]
    }
}

impl Speech {
    /// Utterances of `train_dir` to train on, of `val_dir` to validate on.
    pub fn new(train_dir: PathBuf, val_dir: PathBuf) -> Self {
        let train_dir = Some(train_dir);
        let val_dir = Some(val_dir);
        Self { train_dir, val_dir, n_mels: eighty(), max_seconds: twenty(), ..Self::default() }
    }

    /// The keys of each part, and what they are set to.
    fn places(&self) -> [(&'static str, &'static str, [Option<&PathBuf>; 2]); 3] {
        let train = [self.train_dir.as_ref(), self.train_manifest.as_ref()];
        let val = [self.val_dir.as_ref(), self.val_manifest.as_ref()];
        let test = [self.test_dir.as_ref(), self.test_manifest.as_ref()];
        [
            ("train_dir", "train_manifest", train),
            ("val_dir", "val_manifest", val),
            ("test_dir", "test_manifest", test),
        ]
    }

    fn filter(&self) -> Filter {
        let &Self { min_duration, max_duration, .. } = self;
        let label_key = self.label_key.clone();
        let group = self.group.clone();
        Filter { min_duration, max_duration, label_key, group }
    }

    /// Training, validation and test parts, as far as they exist.
    fn parts(&self) -> Result<Vec<Part>, Error> {
        let mut parts = Vec::new();
        for (name, (.., place)) in ["train", "val", "test"].into_iter().zip(self.places()) {
            let (path, manifest) = match place {
                [_, Some(path)] => {
                    // Who speaks counts only where utterances are held back.
                    let group = if name == "train" { self.group.clone() } else { None };
                    (path, manifest::read(path, &Filter { group, ..self.filter() })?)
                }
                [Some(path), None] => {
                    let group_part = if name == "train" { self.group_part } else { None };
                    let utterances = folder::utterances(path, group_part)?;
                    (path, Manifest { utterances, ..Manifest::default() })
                }
                [None, None] if name != "train" => continue,
                [None, None] => {
                    return Err(Error::MissingKey { key: "data.train_dir", kind: Self::NAME });
                }
            };
            parts.push(Part { name, path: path.clone(), manifest });
        }
        Ok(parts)
    }

    /// Note that utterances are held out at random, though the same speakers say many of them.
    fn repeated_speakers(&self, parts: &[Part], split: &SplitPlan) -> Option<String> {
        let is_grouped = self.group.is_some() || self.group_part.is_some();
        if is_grouped || !split.holds_something() {
            return None;
        }
        let train = parts.first()?;
        let utterances = train.utterances();
        let (speakers, key) = if train.is_folder() {
            let (number, example, n) = folder::likely_speakers(utterances)?;
            let speakers = format!(
                "part {number} of the file names, such as `{example}`, has {n} values in {} \
                 recordings, as names of speakers do",
                utterances.len()
            );
            (speakers, format!("data.group_part = {number}"))
        } else {
            let key = train.manifest.speaker_key?;
            let all: BTreeSet<&String> =
                utterances.iter().filter_map(|utterance| utterance.speaker.as_ref()).collect();
            if all.len() == utterances.len() {
                return None;
            }
            let n = all.len();
            let of = utterances.len();
            (
                format!("`{key}` names {n} speakers of {of} utterances"),
                format!("data.group = \"{key}\""),
            )
        };
        Some(format!(
            "{speakers}, and utterances are held back at random: the same voices are trained and \
             validated on; `{key}` keeps each on one side"
        ))
    }

    /// The noise, if there is any; all of it, however long.
    fn noise(&self) -> Result<Option<Part>, Error> {
        let part = |path: &PathBuf| {
            let manifest = manifest::read(path, &Filter::default())?;
            Ok(Part { name: "noise", path: path.clone(), manifest })
        };
        self.noise_manifest.as_ref().map(part).transpose()
    }

    /// Finds the rate and the longest utterance.
    fn measure(&self, parts: &[Part]) -> Result<AudioLimits, Error> {
        let folders = parts.iter().filter(|part| part.is_folder());
        let headers: Vec<(&Path, Header)> =
            folders.map(headers).collect::<Result<Vec<_>, _>>()?.concat();
        let rate = match (self.sample_rate, headers.first()) {
            (Some(rate), _) => rate,
            (None, Some(_)) if parts.iter().all(Part::is_folder) => same_rate(&headers)?,
            _ => RATE,
        };
        let seconds = |header: &Header| header.samples as f64 / f64::from(header.rate);
        let longest = headers.iter().map(|(_, header)| seconds(header)).fold(0.0, f64::max);
        let longest = parts.iter().map(|part| part.manifest.longest()).fold(longest, f64::max);
        let of = |seconds: f64| (seconds * f64::from(rate) + 1e-6) as usize;
        let most = of(self.max_seconds).max(rate as usize);
        Ok(AudioLimits { rate, samples: of(longest).clamp(rate as usize, most) })
    }

    /// Opens all parts, with the classes of all in label order.
    fn read(
        &self,
        parts: &[Part],
        measured: AudioLimits,
        split: &SplitPlan,
    ) -> Result<Splits, Error> {
        let classes: BTreeSet<&String> =
            parts.iter().flat_map(Part::utterances).map(|utterance| &utterance.class).collect();
        let classes: Vec<String> = classes.into_iter().cloned().collect();
        let mel = Arc::new(LogMel::new(measured.rate, self.n_mels));
        let noise = self.noise()?.map(|noise| Recordings::labelled(noise.utterances(), &[]));
        let noise = noise.map(|recordings| Arc::new(Clips::new(recordings, measured)));
        let is_grouped = self.group.is_some() || self.group_part.is_some();
        let recordings = |name| {
            let part = parts.iter().find(|part| part.name == name)?;
            let recordings = Recordings::labelled(part.utterances(), &classes);
            let is_divided = is_grouped && name == "train";
            Some(if is_divided { recordings.grouped(part.utterances()) } else { recordings })
        };
        let missing = || Error::MissingKey { key: "data.train_dir", kind: Self::NAME };
        let all = Parts {
            train: recordings("train").ok_or_else(missing)?,
            val: recordings("val").unwrap_or_default(),
            test: recordings("test"),
        };
        let unusable = |what| Error::Format { path: parts[0].path.clone(), what };
        let Parts { train, val, test } = all.held_back(split).map_err(unusable)?;
        let open = |recordings| -> Arc<dyn Dataset> {
            let clips = Clips::new(recordings, measured);
            Arc::new(Utterances::new(clips, noise.clone(), mel.clone()))
        };
        Ok(Splits { train: open(train), val: open(val), test: test.map(open), classes })
    }
}

impl Speech {
    /// Recordings of files, folders and manifests (.json, .jsonl), without classes.
    fn recordings(&self, paths: &[PathBuf], measured: AudioLimits) -> Result<Inputs, Error> {
        let what = "WAV, FLAC, OGG or MP3 files, or NeMo's manifests (.json)";
        let mut utterances = Vec::new();
        let mut items = Vec::new();
        let InputFiles { files, notes } = input_files(paths, what, &audio::is_named_so)?;
        for path in files {
            let file = Arc::from(&*path);
            let at = utterances.len();
            if has_ending(&path, &["json", "jsonl"]) {
                let listed = manifest::read(&path, &Filter::default())?.utterances;
                let row = |row: usize| Some(row as u64 + 1);
                let item = |n| InputItem::new(&file, row(n), at + n..at + n + 1);
                items.extend((0..listed.len()).map(item));
                utterances.extend(listed);
            } else {
                items.push(InputItem::new(&file, None, at..at + 1));
                utterances.push(Utterance {
                    path,
                    class: String::new(),
                    span: None,
                    speaker: None,
                });
            }
        }
        let mel = Arc::new(LogMel::new(measured.rate, self.n_mels));
        let clips = Clips::new(Recordings::labelled(&utterances, &[]), measured);
        let samples = Arc::new(Utterances::new(clips, None, mel));
        let items = InputItems::Listed(items);
        let answers = PredictionKind::OfLoss(Vec::new());
        Ok(Inputs { samples, items, answers, notes })
    }
}

/// Headers of the recordings of a folder.
fn headers(part: &Part) -> Result<Vec<(&Path, Header)>, Error> {
    let header = |utterance| {
        let Utterance { path, .. }: &Utterance = utterance;
        let unusable =
            |error: SampleError| Error::Format { path: path.clone(), what: error.reason() };
        Ok((path.as_path(), audio::header(path).map_err(unusable)?))
    };
    let found: Vec<Result<_, Error>> = part.utterances().par_iter().map(header).collect();
    found.into_iter().collect()
}

/// The rate of all recordings.
fn same_rate(headers: &[(&Path, Header)]) -> Result<u32, Error> {
    let rate = headers.first().map_or(RATE, |(_, header)| header.rate);
    match headers.iter().find(|(_, header)| header.rate != rate) {
        None => Ok(rate),
        Some((path, other)) => {
            let what = format!(
                "its sample rate is {} Hz, but that of the files before it is {rate} Hz: set \
                 `data.sample_rate`, and they are resampled",
                other.rate
            );
            Err(Error::Format { path: path.to_path_buf(), what })
        }
    }
}

/// ", without 12 utterances below `min_duration` and 3 above `max_duration`"
fn left_out(parts: &[Part]) -> String {
    let shorter: usize = parts.iter().map(|part| part.manifest.shorter).sum();
    let longer: usize = parts.iter().map(|part| part.manifest.longer).sum();
    match (shorter, longer) {
        (0, 0) => String::new(),
        (n, 0) => format!(", without {n} utterances below `min_duration`"),
        (0, n) => format!(", without {n} utterances above `max_duration`"),
        (n, m) => {
            format!(", without {n} utterances below `min_duration` and {m} above `max_duration`")
        }
    }
}
