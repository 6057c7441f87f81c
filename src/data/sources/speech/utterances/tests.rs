//! Utterances from small files and from published ones.

use super::*;
use crate::plan::Targets;
use crate::rng::Purpose;

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

const ASKED: Asked<'_> = Asked::new("x", 0, Targets::Classes);

fn speech(dir: &Path) -> Speech {
    let (train_dir, val_dir) = (dir.join("train"), dir.join("val"));
    Speech { train_dir, val_dir, n_mels: 16, max_seconds: 20.0 }
}

fn facts(dir: &Path) -> Result<Survey, Error> {
    speech(dir).survey(&ASKED)
}

#[test]
fn utterances_become_padded_features_with_their_length_and_class() {
    let dir = folders();
    let facts = facts(dir.path()).unwrap();
    // 10,000 samples at 80 a frame are 126 frames with the last, padded to 128.
    assert_eq!((facts.n_train, facts.n_val, facts.sample), (2, 1, Some(vec![2, 129, 16])));
    assert_eq!(facts.classes, ["0", "1"]);
    let splits = speech(dir.path()).read(Measured::of(&facts.found).unwrap()).unwrap();
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
    refusal("it contains no WAV files");
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
    let header = wav::header(&path).unwrap();
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
