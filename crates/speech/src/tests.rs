//! Utterances from small files.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::Speech;
use crate::audio::{self, Span};
use crate::config::kind::Options;
use crate::data::{
    DataSource, Dataset, Error, OpenRequest, Splits, Survey, SurveyRequest, Target, Transforms,
};
use crate::folder::class;
use crate::plan::{SplitPlan, Targets};
use crate::rng::{Key, Purpose};

/// Recordings as libsndfile reads them, and resampled ones as torchaudio's
/// (`tests/golden/audio.py`).
#[derive(Deserialize)]
pub(crate) struct Golden {
    pub(crate) files: Vec<GoldenFile>,
    pub(crate) resampled: Vec<Resampled>,
}

/// A file of `tests/golden/audio`: squares in eight equal parts, and samples of the middle.
#[derive(Deserialize)]
pub(crate) struct GoldenFile {
    pub(crate) name: String,
    pub(crate) rate: u32,
    pub(crate) n: usize,
    pub(crate) parts: Vec<f64>,
    pub(crate) middle: Vec<f64>,
}

/// 2000 samples at one rate, at another.
#[derive(Deserialize)]
pub(crate) struct Resampled {
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) n: usize,
    pub(crate) first: Vec<f64>,
    pub(crate) last: Vec<f64>,
    pub(crate) energy: f64,
}

pub(crate) fn golden() -> Golden {
    serde_json::from_str(include_str!("../../../tests/golden/audio.json")).unwrap()
}

fn golden_path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/audio").join(name)
}

/// A tone of `samples` samples at 8 kHz.
fn tone(path: &Path, samples: usize, rate: u32) {
    let spec = hound::WavSpec {
        channels: 1,
        sample_rate: rate,
        bits_per_sample: 16,
        sample_format: hound::SampleFormat::Int,
    };
    let mut bytes = std::io::Cursor::new(Vec::new());
    let mut writer = hound::WavWriter::new(&mut bytes, spec).unwrap();
    for i in 0..samples {
        writer.write_sample((8000.0 * (i as f64 * 0.3).sin()) as i16).unwrap();
    }
    writer.finalize().unwrap();
    crate::files::write_atomic(path, &bytes.into_inner()).unwrap();
}

fn folders() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for folder in ["train", "val"] {
        std::fs::create_dir_all(dir.path().join(folder)).unwrap();
    }
    tone(&dir.path().join("train/1_a_0.wav"), 4000, 8000);
    tone(&dir.path().join("train/0_a_0.wav"), 10_000, 8000);
    tone(&dir.path().join("val/1_b_0.wav"), 8000, 8000);
    dir
}

const ASKED: SurveyRequest<'_> = SurveyRequest::new("x", 0, Targets::Classes);

fn speech(dir: &Path) -> Speech {
    Speech { n_mels: 16, ..Speech::new(dir.join("train"), dir.join("val")) }
}

/// Opens the data as a rank does.
fn opened(speech: &Speech) -> Splits {
    let found = &speech.survey(&ASKED).unwrap().found;
    let (train_transforms, val_transforms) = (&[][..], &[][..]);
    let transforms = &Transforms::empty();
    let reading =
        OpenRequest { survey: &ASKED, found, train_transforms, val_transforms, transforms };
    speech.open(&reading).unwrap()
}

fn facts(dir: &Path) -> Result<Survey, Error> {
    speech(dir).survey(&ASKED)
}

#[test]
fn utterances_of_one_folder_validate_and_others_test() {
    let dir = folders();
    for at in 1..5 {
        tone(&dir.path().join(format!("train/{}_b_{at}.wav", at % 2)), 800, 8000);
    }
    let (test_dir, val_dir) = (Some(dir.path().join("val")), None);
    let data = Speech { val_dir, test_dir, ..speech(dir.path()) };
    let split = SplitPlan { val_fraction: Some(0.34), ..SplitPlan::NONE };
    let found = data.survey(&SurveyRequest { split, ..ASKED }).unwrap();
    assert_eq!((found.n_train, found.n_val, found.n_test), (3, 3, 1));
    assert_eq!(found.class_counts.iter().sum::<u64>(), 3);
}

#[test]
fn utterances_become_padded_features_with_their_length_and_class() {
    let dir = folders();
    let facts = facts(dir.path()).unwrap();
    // 10,000 samples at 80 a frame are 126 frames with the last, padded to 128.
    assert_eq!((facts.n_train, facts.n_val, facts.sample), (2, 1, Some(vec![2, 129, 16])));
    assert_eq!(facts.classes, ["0", "1"]);
    let splits = opened(&speech(dir.path()));
    let load = |index, key| {
        let mut values = Vec::new();
        let target = splits.train.load(index, key, &mut values).unwrap();
        assert_eq!(values.len(), 2 * 129 * 16);
        (values, target)
    };
    let length = |values: &[f32]| values[128 * 16];
    let (long, class) = load(0, None);
    assert_eq!((class, length(&long)), (Target::Class(0), 125.0));
    // Half a second is repeated to one.
    let (short, class) = load(1, None);
    assert_eq!((class, length(&short)), (Target::Class(1), 100.0));
    assert!(short[100 * 16..128 * 16].iter().all(|&value| value == 0.0));
    let (clean, noisy) = short.split_at(129 * 16);
    assert_eq!(clean, noisy, "without a key nothing is random");
    let augmented = (0..20).filter(|&epoch| {
        let (values, _) = load(1, Some(Key::new(1, Purpose::Augment, epoch, 1)));
        let (again, _) = load(1, Some(Key::new(1, Purpose::Augment, epoch, 1)));
        assert!(values == again && values[..129 * 16] == *clean);
        values[129 * 16..] != *clean
    });
    assert!((3..=17).contains(&augmented.count()));
}

#[test]
fn what_cannot_be_used_is_named() {
    let dir = folders();
    let refusal = |what: &str| {
        let error = facts(dir.path()).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    };
    tone(&dir.path().join("val/1_c_0.wav"), 800, 16_000);
    refusal("its sample rate is 16000 Hz, but that of the files before it is 8000 Hz");
    crate::files::write_atomic(&dir.path().join("val/1_c_0.wav"), b"RIFF").unwrap();
    refusal("1_c_0.wav");
    std::fs::remove_file(dir.path().join("val/1_c_0.wav")).unwrap();
    std::fs::remove_file(dir.path().join("val/1_b_0.wav")).unwrap();
    refusal("it contains no WAV, FLAC, OGG or MP3 files");
    std::fs::remove_dir(dir.path().join("val")).unwrap();
    refusal("does not exist");
}

#[test]
fn a_rate_that_no_speech_has_is_refused_before_anything_is_computed_for_it() {
    for rate in [999, 768_001, 1 << 30] {
        let dir = folders();
        tone(&dir.path().join("train/0_rate.wav"), 10, rate);
        let error = facts(dir.path()).unwrap_err().to_string();
        assert!(error.contains("0_rate.wav") && error.contains("its sample rate of"), "{error}");
    }
}

#[test]
fn folders_are_classes_where_there_are_some() {
    let root = Path::new("root");
    assert_eq!(class(root, Path::new("root/yes/a_b.wav")), "yes");
    assert_eq!(class(root, Path::new("root/7_george_3.wav")), "7");
    assert_eq!(class(root, Path::new("root/hello.wav")), "speech");
}

#[test]
fn what_a_file_holds_is_found_without_reading_all_of_it() {
    let dir = folders();
    let path = dir.path().join("train/0_a_0.wav");
    // A second of speech that is followed by a hole of a gibibyte and more, which reading would
    // refuse.
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_len((1 << 30) + 4096).unwrap();
    let header = audio::header(&path).unwrap();
    assert_eq!((header.rate, header.samples), (8000, 10_000));
}

#[test]
fn what_begins_with_a_dot_is_no_speech() {
    let dir = folders();
    crate::files::write_atomic(&dir.path().join("train/._0_a_0.wav"), b"fork").unwrap();
    std::fs::create_dir(dir.path().join("val/.trash")).unwrap();
    tone(&dir.path().join("val/.trash/9_a.wav"), 800, 8000);
    let facts = facts(dir.path()).unwrap();
    assert_eq!((facts.n_train, facts.n_val, facts.classes), (2, 1, vec!["0".into(), "1".into()]));
}

#[test]
fn recordings_are_those_of_libsndfile() {
    for GoldenFile { name, rate, n, parts, middle } in golden().files {
        let path = golden_path(&name);
        let header = audio::header(&path).unwrap();
        assert_eq!((header.rate, header.samples), (rate, n), "{name}");
        let (_, samples) = audio::samples(&path, None, 60.0).unwrap();
        assert_eq!(samples.len(), n, "{name}");
        // FLAC and WAV hold the samples themselves; decoders of the others round in other places.
        let tolerance =
            if ["ogg", "mp3"].iter().any(|end| name.ends_with(end)) { 2e-5 } else { 1e-7 };
        for (found, expected) in samples[4000..].iter().zip(&middle) {
            assert!((f64::from(*found) - expected).abs() < tolerance, "{name}: {found} {expected}");
        }
        for (part, expected) in samples.chunks(n / 8).zip(&parts) {
            let sum: f64 = part.iter().map(|&v| f64::from(v).powi(2)).sum();
            assert!((sum - expected).abs() < 1e-3 * expected, "{name}: {sum} {expected}");
        }
    }
}

#[test]
fn a_part_of_a_recording_is_that_of_the_whole() {
    let dir = tempfile::tempdir().unwrap();
    let long = dir.path().join("long.wav");
    tone(&long, 100_000, 8000);
    let files = golden().files.into_iter().map(|file| golden_path(&file.name));
    for path in files.chain([long]) {
        let (rate, whole) = audio::samples(&path, None, 60.0).unwrap();
        let seconds = whole.len() as f64 / f64::from(rate);
        for share in [0.1, 0.5, 0.9] {
            let span = Span { offset: seconds * share, duration: 0.05 };
            let (_, part) = audio::samples(&path, Some(span), 60.0).unwrap();
            let start = (span.offset * f64::from(rate)) as usize;
            assert!(part == whole[start..start + 400], "{} at {share}", path.display());
        }
        let beyond = Span { offset: seconds + 1.0, duration: 1.0 };
        let error = audio::samples(&path, Some(beyond), 60.0).map(|(_, part)| part.is_empty());
        let is_mp3 = path.extension().is_some_and(|ending| ending == "mp3");
        assert!(error.as_ref().is_err_and(|e| e.to_string().contains("its part begins")) || is_mp3);
    }
}

#[test]
fn a_recording_that_is_cut_short_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["stereo.flac", "stereo24.wav"] {
        let bytes = std::fs::read(golden_path(name)).unwrap();
        let path = dir.path().join(name);
        crate::files::write_atomic(&path, &bytes[..bytes.len() / 2]).unwrap();
        assert!([4800, 24_000].contains(&audio::header(&path).unwrap().samples));
        let error = audio::samples(&path, None, 60.0).unwrap_err().to_string();
        assert!(error.contains("it is cut short"), "{error}");
    }
}

/// Manifests of a training and a validation part, and of noise, in a folder of their own.
fn manifests() -> (tempfile::TempDir, Speech) {
    let dir = tempfile::tempdir().unwrap();
    let line = |name: &str, offset: f64, duration: f64, label: &str| {
        let path = golden_path(name);
        let line = serde_json::json!({"audio_filepath": path, "offset": offset,
            "duration": duration, "label": label});
        line.to_string()
    };
    let write = |name: &str, lines: &[String]| {
        let path = dir.path().join(name);
        crate::files::write_atomic(&path, lines.join("\n").as_bytes()).unwrap();
        Some(path)
    };
    let train = [
        line("stereo.flac", 0.25, 0.5, "low"),
        line("mono.ogg", 0.0, 1.0, "high"),
        line("mono.mp3", 0.0, 0.05, "high"),
    ];
    let speech = Speech {
        train_manifest: write("train.json", &train),
        val_manifest: write("val.json", &[line("float.wav", 0.5, 0.5, "low")]),
        test_manifest: write("test.json", &[line("deep.flac", 0.0, 1.0, "low")]),
        noise_manifest: write("noise.json", &[line("mulaw.wav", 0.1, 0.8, "noise")]),
        min_duration: Some(0.1),
        train_dir: None,
        val_dir: None,
        ..speech(dir.path())
    };
    (dir, speech)
}

#[test]
fn manifests_name_parts_of_recordings_which_are_resampled() {
    let (_dir, speech) = manifests();
    let survey = speech.survey(&ASKED).unwrap();
    assert_eq!((survey.n_train, survey.n_val, survey.n_test), (2, 1, 1));
    assert_eq!(
        (survey.found["rate"].as_u64(), survey.found["samples"].as_u64()),
        (Some(16_000), Some(16_000))
    );
    assert_eq!(survey.classes, ["high", "low"]);
    assert!(
        survey.line.ends_with(", without 1 utterances below `min_duration`"),
        "{}",
        survey.line
    );
    let splits = opened(&speech);
    assert!(splits.train.name(0).ends_with("stereo.flac` from 0.25 s on"));
    let load = |data: &dyn Dataset, index, key| {
        let mut values = Vec::new();
        let target = data.load(index, key, &mut values).unwrap();
        (values, target)
    };
    let (clean, class) = load(&*splits.train, 0, None);
    assert_eq!(class, Target::Class(1));
    // Half a second is repeated to one of 16,000 samples: 100 frames.
    assert_eq!(clean[112 * 16], 100.0);
    let augmented = (0..30).map(|epoch| {
        let key = Key::new(1, Purpose::Augment, epoch, 0);
        let (values, _) = load(&*splits.train, 0, Some(key));
        assert_eq!(values, load(&*splits.train, 0, Some(key)).0);
        values[113 * 16..] != clean[113 * 16..]
    });
    assert!((8..=22).contains(&augmented.filter(|&is| is).count()));
}

#[test]
fn noise_of_a_manifest_is_mixed_in_and_a_missing_file_is_named() {
    let (dir, speech) = manifests();
    let generated = Speech { noise_manifest: None, ..speech.clone() };
    let (ours, theirs) = (opened(&generated), opened(&speech));
    let differ = (0..40).any(|epoch| {
        let key = Some(Key::new(1, Purpose::Augment, epoch, 0));
        let load = |splits: &Splits| {
            let mut values = Vec::new();
            splits.train.load(0, key, &mut values).unwrap();
            values
        };
        load(&ours) != load(&theirs)
    });
    assert!(differ, "noise comes from the manifest");
    let gone = dir.path().join("noise.json");
    crate::files::write_atomic(&gone, br#"{"audio_filepath": "hum.wav", "duration": 1}"#).unwrap();
    let error = speech.survey(&ASKED).unwrap_err().to_string();
    assert!(error.contains("noise.json`, line 1: the recording `"), "{error}");
}

#[test]
fn other_programs_are_told_what_the_features_are_made_by() {
    let dir = folders();
    let told = speech(dir.path()).preprocessing(&Options::new()).unwrap();
    let expected = [("sample_rate", 8000.0), ("n_mels", 16.0), ("hop_length", 80.0)];
    for (name, number) in expected {
        assert_eq!(told[name].as_f64(), Some(number), "{name}");
    }
}

/// A tone of 4000 samples, and where its `data` chunk begins.
fn tone_bytes(dir: &Path) -> (Vec<u8>, usize) {
    let path = dir.join("plain.wav");
    tone(&path, 4000, 8000);
    let bytes = std::fs::read(path).unwrap();
    let data = bytes.windows(4).position(|four| four == b"data").unwrap();
    (bytes, data)
}

#[test]
fn recordings_of_unknown_length_and_with_unpadded_chunks_have_all_their_samples() {
    let dir = folders();
    let (plain, data) = tone_bytes(dir.path());
    let read = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        crate::files::write_atomic(&path, bytes).unwrap();
        let header = audio::header(&path).unwrap();
        let (rate, samples) = audio::samples(&path, None, 10.0).unwrap();
        assert_eq!((header.rate, header.samples, rate, samples.len()), (8000, 4000, 8000, 4000));
        samples
    };
    let expected = read("plain.wav", &plain);
    for unknown in [u32::MAX, u32::MAX - 36, 0x8000_0000, 0x7FFF_FFFF - 36] {
        let mut piped = plain.clone();
        piped[4..8].copy_from_slice(&unknown.to_le_bytes());
        piped[data + 4..data + 8].copy_from_slice(&unknown.to_le_bytes());
        assert_eq!(read("piped.wav", &piped), expected, "{unknown:x}");
    }
    let info = |list: &[u8]| [&plain[..data], list, &plain[data..]].concat();
    // A string of odd length, within a list of odd length: neither is padded.
    let unpadded = info(b"LIST\x11\0\0\0INFOISFT\x05\0\0\0abcde");
    assert_eq!(read("unpadded.wav", &unpadded), expected);
    let padded = info(b"LIST\x11\0\0\0INFOISFT\x05\0\0\0abcde\0");
    assert_eq!(read("padded.wav", &padded), expected);
    let lying = info(b"LIST\x12\0\0\0INFOISFT\xFF\xFF\0\0abcde\0");
    assert_eq!(read("lying.wav", &lying), expected);
    // What was cut short is still no whole recording.
    let path = dir.path().join("cut.wav");
    crate::files::write_atomic(&path, &plain[..plain.len() - 1000]).unwrap();
    let error = audio::samples(&path, None, 10.0).unwrap_err().to_string();
    assert!(error.contains("it is cut short"), "{error}");
}

#[test]
fn a_recording_with_what_is_no_number_is_to_blame_for_it() {
    let dir = folders();
    let path = dir.path().join("train/0_a_0.wav");
    let spec = hound::WavSpec {
        channels: 1,
        sample_rate: 8000,
        bits_per_sample: 32,
        sample_format: hound::SampleFormat::Float,
    };
    let mut writer = hound::WavWriter::create(&path, spec).unwrap();
    (0..4000).for_each(|i| writer.write_sample(if i == 2000 { f32::NAN } else { 0.1 }).unwrap());
    writer.finalize().unwrap();
    let splits = opened(&speech(dir.path()));
    let error = splits.train.load(0, None, &mut Vec::new()).unwrap_err().to_string();
    assert!(error.ends_with("0_a_0.wav`: its sample at 0.250 s is NaN"), "{error}");
}

#[test]
fn a_message_names_the_file_once() {
    let dir = folders();
    crate::files::write_atomic(&dir.path().join("train/0_a_0.wav"), b"RIFF").unwrap();
    let error = facts(dir.path()).unwrap_err().to_string();
    assert_eq!(error.matches("0_a_0.wav").count(), 1, "{error}");
}

/// Ten recordings of each of four speakers, in two classes.
fn spoken() -> (tempfile::TempDir, Speech) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("train")).unwrap();
    for take in 0..10 {
        for (class, speaker) in
            [("0", "ann"), ("1", "ann"), ("0", "bob"), ("1", "eve"), ("0", "joe")]
        {
            tone(&dir.path().join(format!("train/{class}_{speaker}_{take}.wav")), 100, 8000);
        }
    }
    let speech = Speech { val_dir: None, ..speech(dir.path()) };
    (dir, speech)
}

#[test]
fn utterances_of_a_speaker_are_held_back_together_and_a_random_split_of_them_is_noted() {
    let (dir, speech) = spoken();
    let split = SplitPlan { val_fraction: Some(0.5), ..SplitPlan::NONE };
    let request = SurveyRequest { split, ..ASKED };
    let notes = speech.survey(&request).unwrap().notes;
    let expected = "part 2 of the file names, such as `ann`, has 4 values in 50 recordings";
    assert!(notes[0].starts_with(expected), "{notes:?}");
    assert!(notes[0].ends_with("`data.group_part = 2` keeps each on one side"), "{notes:?}");
    assert!(speech.survey(&ASKED).unwrap().notes.is_empty(), "nothing is held back");
    let grouped = Speech { group_part: Some(2), ..speech.clone() };
    assert!(grouped.survey(&request).unwrap().notes.is_empty());
    let reading = OpenRequest {
        survey: &request,
        found: &grouped.survey(&request).unwrap().found,
        train_transforms: &[],
        val_transforms: &[],
        transforms: &Transforms::empty(),
    };
    let splits = grouped.open(&reading).unwrap();
    let speakers = |part: &dyn Dataset| -> std::collections::BTreeSet<String> {
        let name = |index| part.name(index).rsplit('/').next().unwrap().to_owned();
        (0..part.len()).map(|i| name(i).split('_').nth(1).unwrap().to_owned()).collect()
    };
    let (train, val) = (speakers(&*splits.train), speakers(&*splits.val));
    assert_eq!((train.len(), val.len()), (2, 2));
    assert!(train.is_disjoint(&val), "{train:?} {val:?}");
    let absent_part = Speech { group_part: Some(7), ..speech.clone() };
    let error = absent_part.survey(&request).unwrap_err().to_string();
    assert!(error.contains("its name has no part 7 between `_` or `-`"), "{error}");
    // The same by the lines of a manifest.
    let line = |speaker: &str, take: usize| {
        let file = dir.path().join(format!("train/0_ann_{take}.wav"));
        format!(
            "{{\"audio_filepath\": \"{}\", \"duration\": 0.0125, \"label\": \"x\", \"speaker\": \
             \"{speaker}\"}}\n",
            file.display()
        )
    };
    let lines: String =
        (0..10).flat_map(|take| ["ann", "bob"].map(|who| line(who, take))).collect();
    let manifest = dir.path().join("train.json");
    crate::files::write_atomic(&manifest, lines.as_bytes()).unwrap();
    let listed = Speech { train_dir: None, train_manifest: Some(manifest), ..speech };
    let notes = listed.survey(&request).unwrap().notes;
    assert!(notes[0].starts_with("`speaker` names 2 speakers of 20 utterances"), "{notes:?}");
    let grouped = Speech { group: Some("speaker".to_owned()), ..listed.clone() };
    let found = grouped.survey(&request).unwrap();
    assert_eq!((found.n_train, found.n_val, found.notes.len()), (10, 10, 0));
    let wrong = Speech { group: Some("voice".to_owned()), ..listed };
    let error = wrong.survey(&request).unwrap_err().to_string();
    assert!(error.ends_with("line 1: it has no `voice`"), "{error}");
}
