//! Manifests of NVIDIA NeMo: a JSON object a line, which names a recording and says how long its
//! utterance is.

use std::path::{Path, PathBuf};

use rayon::prelude::*;
use serde_json::{Map, Value};

use crate::audio::Span;
use crate::data::{Error, read_table};
use crate::utterances::{UNNAMED, Utterance};

const EXPECTED: &str =
    "lines such as {\"audio_filepath\": \"a.wav\", \"duration\": 2.5}, as NeMo's manifests have";
/// Keys of the recording's file, and of the class, the first that a manifest has.
const FILES: [&str; 2] = ["audio_filepath", "audio_filename"];
const LABELS: [&str; 2] = ["label", "command"];
/// Keys by which manifests of public corpora name the speaker.
const SPEAKERS: [&str; 6] = ["speaker", "speaker_id", "spk", "spk_id", "client_id", "user_id"];

/// Recordings that are looked for before anything starts; of more, a loader finds out which are
/// missing, as on a network file system each costs a question.
const MAX_LOOKED_AT: usize = 100_000;

/// Selection of entries of a manifest.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Filter {
    /// Seconds of the shortest and of the longest utterance.
    pub(crate) min_duration: Option<f64>,
    pub(crate) max_duration: Option<f64>,
    /// The key that holds the class.
    pub(crate) label_key: Option<String>,
    /// The key that holds the speaker, of utterances that are held back together.
    pub(crate) group: Option<String>,
}

/// Utterances of a manifest.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Manifest {
    pub(crate) utterances: Vec<Utterance>,
    /// The line of each.
    pub(crate) lines: Vec<u64>,
    /// Utterances that were left out.
    pub(crate) shorter: usize,
    pub(crate) longer: usize,
    /// The key that names speakers, if one is among those that usually do.
    pub(crate) speaker_key: Option<&'static str>,
}

/// The utterances of the manifest at `path`.
pub(crate) fn read(path: &Path, filter: &Filter) -> Result<Manifest, Error> {
    let bytes = read_table("the manifest", path, EXPECTED)?;
    let mut found = Manifest::default();
    let mut folder = None;
    let mut first: Option<(u64, bool)> = None;
    for (line, text) in (1..).zip(bytes.split(|&byte| byte == b'\n')) {
        if text.trim_ascii().is_empty() {
            continue;
        }
        let wrong = |what| Error::Line { path: path.into(), line, what };
        let (mut utterance, label, speaker_key) = entry(text, filter).map_err(wrong)?;
        found.speaker_key = found.speaker_key.or(speaker_key);
        let (of_first, is_labelled) = *first.get_or_insert((line, label.is_some()));
        if is_labelled != label.is_some() {
            let (with, without) = if is_labelled { (of_first, line) } else { (line, of_first) };
            let what = format!("line {with} names a class, but line {without} does not");
            return Err(wrong(what));
        }
        utterance.class = label.unwrap_or_else(|| UNNAMED.to_owned());
        if utterance.path.is_relative() {
            let folder = folder.get_or_insert_with(|| folder_of(path, &utterance.path));
            utterance.path = folder.join(&utterance.path);
        }
        found.push(utterance, line, filter);
    }
    if found.utterances.is_empty() {
        return Err(Error::Format { path: path.into(), what: found.nothing_left() });
    }
    Ok(found)
}

/// Refuses recordings that do not exist, before anything starts.
pub(crate) fn check_files(path: &Path, manifest: &Manifest) -> Result<(), Error> {
    let Manifest { utterances, lines, .. } = manifest;
    let looked_at = utterances.par_iter().take(MAX_LOOKED_AT);
    let Some(i) = looked_at.position_first(|utterance| !utterance.path.is_file()) else {
        return Ok(());
    };
    let missing = utterances[i].path.display();
    let what = format!(
        "the recording `{missing}` does not exist; relative paths start at the current folder, or \
         at that of the manifest"
    );
    Err(Error::Line { path: path.into(), line: lines[i], what })
}

/// Base folder of relative paths in the manifest at `path`, of which one is `relative`: the current
/// folder if that has the file, else the folder of the manifest, as in NeMo.
fn folder_of(path: &Path, relative: &Path) -> PathBuf {
    if relative.is_file() {
        return PathBuf::new();
    }
    path.parent().unwrap_or(Path::new("")).to_owned()
}

/// An utterance of a line, its class, and the key that usually names a speaker.
type Entry = (Utterance, Option<String>, Option<&'static str>);

fn entry(text: &[u8], filter: &Filter) -> Result<Entry, String> {
    let entry: Map<String, Value> = serde_json::from_slice(text)
        .map_err(|error| format!("it is not a JSON object: {error}; expected are {EXPECTED}"))?;
    let file = FILES.iter().find_map(|key| entry.get(*key));
    let file = file.ok_or("it has no `audio_filepath`, the recording's file")?;
    let path = file.as_str().ok_or("its `audio_filepath` is not the path of one file")?;
    let seconds = |key: &str| match entry.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_f64() {
            Some(number) if number >= 0.0 => Ok(Some(number)),
            _ => Err(format!("its `{key}` is {value}, and should be a number of seconds")),
        },
    };
    let duration = seconds("duration")?;
    let duration = duration.filter(|&seconds| seconds > 0.0).ok_or(
        "it has no `duration`, the utterance's length in seconds (as `soxi -D` prints it)",
    )?;
    let offset = seconds("offset")?.unwrap_or(0.0);
    let span = Some(Span { offset, duration });
    let speaker_key = SPEAKERS.into_iter().find(|key| entry.contains_key(*key));
    let speaker = match filter.group.as_deref() {
        Some(key) => Some(word(&entry, key)?.ok_or_else(|| format!("it has no `{key}`"))?),
        None => speaker_key.and_then(|key| word(&entry, key).ok().flatten()),
    };
    let utterance = Utterance { path: path.into(), class: String::new(), span, speaker };
    Ok((utterance, label(&entry, filter)?, speaker_key))
}

/// The word or number at `key`.
fn word(entry: &Map<String, Value>, key: &str) -> Result<Option<String>, String> {
    match entry.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Number(number)) => Ok(Some(number.to_string())),
        Some(other) => Err(format!("its `{key}` is {other}, and should be a word or a number")),
    }
}

/// The class that a line names.
fn label(entry: &Map<String, Value>, filter: &Filter) -> Result<Option<String>, String> {
    let value = match &filter.label_key {
        Some(key) => Some(entry.get(key).ok_or_else(|| format!("it has no `{key}`"))?),
        None => LABELS.iter().find_map(|key| entry.get(*key)),
    };
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Number(number)) => Ok(Some(number.to_string())),
        Some(other) => Err(format!("its class is {other}, and should be a word or a number")),
    }
}

impl Manifest {
    /// Keeps an utterance, or counts it as left out.
    fn push(&mut self, utterance: Utterance, line: u64, filter: &Filter) {
        let seconds = utterance.span.map_or(0.0, |span| span.duration);
        if filter.min_duration.is_some_and(|least| seconds < least) {
            self.shorter += 1;
        } else if filter.max_duration.is_some_and(|most| seconds > most) {
            self.longer += 1;
        } else {
            self.utterances.push(utterance);
            self.lines.push(line);
        }
    }

    fn nothing_left(&self) -> String {
        match self.shorter + self.longer {
            0 => "it is empty".to_owned(),
            n => format!(
                "`data.min_duration` and `data.max_duration` leave none of its {n} utterances"
            ),
        }
    }

    /// Seconds of the longest utterance.
    pub(crate) fn longest(&self) -> f64 {
        let seconds = |utterance: &Utterance| utterance.span.map_or(0.0, |span| span.duration);
        self.utterances.iter().map(seconds).fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(lines: &[&str]) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("train.json");
        crate::files::write_atomic(&path, lines.join("\n").as_bytes()).unwrap();
        (folder, path)
    }

    #[test]
    fn relative_paths_start_at_the_manifest_and_utterances_are_filtered_by_their_length() {
        let (folder, path) = manifest(&[
            r#"{"audio_filepath": "a/b.flac", "duration": 2.5, "offset": 1, "label": "yes"}"#,
            "",
            r#"{"audio_filename": "/c.wav", "duration": 0.2, "command": 7}"#,
            r#"{"audio_filepath": "d.mp3", "duration": 30, "label": "no"}"#,
        ]);
        let all = read(&path, &Filter::default()).unwrap();
        let utterance = |path: PathBuf, class: &str, offset, duration| {
            let span = Some(Span { offset, duration });
            Utterance { path, class: class.to_owned(), span, speaker: None }
        };
        assert_eq!(all.utterances[0], utterance(folder.path().join("a/b.flac"), "yes", 1.0, 2.5));
        assert_eq!(all.utterances[1], utterance("/c.wav".into(), "7", 0.0, 0.2));
        assert_eq!((all.lines, all.shorter, all.longer), (vec![1, 3, 4], 0, 0));
        let filter =
            Filter { min_duration: Some(0.2), max_duration: Some(20.0), ..Filter::default() };
        let some = read(&path, &filter).unwrap();
        assert_eq!((some.utterances.len(), some.shorter, some.longer), (2, 0, 1));
        let of_label = Filter { label_key: Some("label".into()), ..Filter::default() };
        let error = read(&path, &of_label).unwrap_err().to_string();
        assert!(error.ends_with("train.json`, line 3: it has no `label`"), "{error}");
        let nothing = Filter { min_duration: Some(100.0), ..Filter::default() };
        let error = read(&path, &nothing).unwrap_err().to_string();
        assert!(error.contains("leave none of its 3 utterances"), "{error}");
    }

    #[test]
    fn a_line_that_is_wrong_is_named_with_what_it_should_be() {
        let good = r#"{"audio_filepath": "a.wav", "duration": 1}"#;
        let refused = [
            ("a.wav 2.5", "it is not a JSON object"),
            (r#"{"duration": 1}"#, "it has no `audio_filepath`"),
            (r#"{"audio_filepath": ["a", "b"], "duration": 1}"#, "is not the path of one file"),
            (r#"{"audio_filepath": "a.wav"}"#, "it has no `duration`"),
            (r#"{"audio_filepath": "a.wav", "duration": -1}"#, "its `duration` is -1"),
            (
                r#"{"audio_filepath": "a.wav", "duration": 1, "offset": "x"}"#,
                "its `offset` is \"x\"",
            ),
            (r#"{"audio_filepath": "a.wav", "duration": 1, "label": "y"}"#, "line 2 names a class"),
        ];
        for (line, expected) in refused {
            let (_folder, path) = manifest(&[good, line]);
            let error = read(&path, &Filter::default()).unwrap_err().to_string();
            assert!(error.contains("train.json`, line 2: ") && error.contains(expected), "{error}");
        }
        let (_folder, path) = manifest(&[good]);
        let found = read(&path, &Filter::default()).unwrap();
        let error = check_files(&path, &found).unwrap_err().to_string();
        assert!(error.contains("line 1: the recording `"), "{error}");
    }
}
