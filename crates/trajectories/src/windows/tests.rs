//! Windows of small npz files, of a real one, and of damaged ones.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};

use super::*;
use crate::config::kind::Choice;
use crate::data::transform::{PaddingMode, RandomCrop};
use crate::data::{SurveyRequest, Transforms};
use crate::skipped::shared;

const NONE: &SplitPlan = &SplitPlan::NONE;
const CHUNK: Chunk = Chunk { horizon: 4, n_obs_steps: 2, n_action_steps: 2, val_ratio: 0.25 };

type Arrays = Vec<(&'static str, Tensor)>;

/// Two episodes of 5 and 4 steps: observations (step, 1), actions 10 step.
fn arrays() -> Arrays {
    let steps: Vec<f32> = (0..9).map(|step| step as f32).collect();
    let observations: Vec<f32> = steps.iter().flat_map(|&step| [step, 1.0]).collect();
    let actions: Vec<f32> = steps.iter().map(|step| 10.0 * step).collect();
    let starts: Vec<u8> = (0..9).map(|step| u8::from(step == 0 || step == 5)).collect();
    let cpu = &Device::Cpu;
    vec![
        ("obs", Tensor::from_vec(observations, (9, 2), cpu).unwrap()),
        ("actions", Tensor::from_vec(actions, (9, 1), cpu).unwrap()),
        ("episode_starts", Tensor::from_vec(starts, 9, cpu).unwrap()),
    ]
}

fn file(dir: &Path, arrays: &[(&str, Tensor)]) -> PathBuf {
    let path = dir.join("runs.npz");
    Tensor::write_npz(arrays, &path).unwrap();
    path
}

fn ranges_of(found: &Survey) -> Ranges {
    Policy::found(&found.found).unwrap().ranges
}

/// Opens the data without transforms.
fn opened(from: &Behaviour, chunk: Chunk, found: &Options) -> Result<Splits, Error> {
    let request = SurveyRequest::new("x", 0, crate::plan::Targets::Numbers);
    let transforms = Transforms::default();
    let (train_transforms, val_transforms) = (&[][..], &[][..]);
    let reading = OpenRequest {
        survey: &request,
        found,
        train_transforms,
        val_transforms,
        transforms: &transforms,
    };
    open(from, chunk, &reading)
}

fn refusal(path: PathBuf, chunk: Chunk) -> String {
    survey(&Behaviour::recorded(path), chunk, NONE, None).unwrap_err().to_string()
}

#[test]
fn an_episode_is_held_back_as_a_whole_and_the_rest_sets_the_scale() {
    let dir = tempfile::tempdir().unwrap();
    let from = Behaviour::recorded(file(dir.path(), &arrays()));
    let found = |fold| {
        let split = SplitPlan { folds: Some(2), fold, ..SplitPlan::NONE };
        survey(&from, CHUNK, &split, None).unwrap()
    };
    let mut folds = [found(0), found(1)];
    folds.sort_by_key(|found| found.n_train);
    assert_eq!(folds.each_ref().map(|found| (found.n_train, found.n_val)), [(3, 4), (4, 3)]);
    let observed = folds.each_ref().map(|found| ranges_of(found).observations[0]);
    assert_eq!(observed, [[5.0, 8.0], [0.0, 4.0]]);
}

#[test]
fn a_run_keeps_its_scale_on_other_episodes() {
    let [own, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let found =
        survey(&Behaviour::recorded(file(own.path(), &arrays())), CHUNK, NONE, None).unwrap();
    let on = |arrays: &[(&str, Tensor)]| {
        let from = Behaviour::recorded(file(other.path(), arrays));
        let again = |kept| ranges_of(&survey(&from, CHUNK, NONE, kept).unwrap());
        [again(Some(&found.found)), again(None)]
    };
    let mut wide = arrays();
    wide[1].1 = (&wide[1].1 * 3.0).unwrap();
    let [kept, anew] = on(&wide);
    assert_eq!(kept, ranges_of(&found));
    assert_eq!(anew.actions, [[0.0, 120.0]]);
    // Numbers that the run does not know have the ranges that they have.
    wide[1].1 = Tensor::zeros((9, 2), candle_core::DType::F32, &Device::Cpu).unwrap();
    let [kept, anew] = on(&wide);
    assert_eq!(kept, anew);
}

#[test]
fn windows_repeat_the_ends_of_their_episode_and_never_leave_it() {
    let dir = tempfile::tempdir().unwrap();
    let from = Behaviour::recorded(file(dir.path(), &arrays()));
    let facts = survey(&from, CHUNK, NONE, None).unwrap();
    // 5 + 1 + 1 - 4 + 1 windows of the first episode, 4 of the second.
    assert_eq!((facts.n_train, facts.n_val), (4, 3));
    assert_eq!((facts.sample.clone(), facts.target.clone()), (Some(vec![2, 2]), vec![4, 1]));
    let ranges = ranges_of(&facts);
    assert_eq!(ranges.observations, [[0.0, 4.0], [1.0, 1.0]]);
    assert_eq!(ranges.actions, [[0.0, 40.0]]);
    let splits = opened(&from, CHUNK, &facts.found).unwrap();
    let load = |data: &dyn Dataset, index| {
        let mut values = Vec::new();
        let Ok(Target::Series(actions)) = data.load(index, None, &mut values) else {
            panic!("not loaded")
        };
        (values, actions)
    };
    // Steps 0 0 1 2; the second number never changes.
    let (seen, actions) = load(&*splits.train, 0);
    assert_eq!((seen, actions), (vec![-1.0, 0.0, -1.0, 0.0], vec![-1.0, -1.0, -0.5, 0.0]));
    // Steps 2 3 4 4.
    let (seen, actions) = load(&*splits.train, 3);
    assert_eq!((seen, actions), (vec![0.0, 0.0, 0.5, 0.0], vec![0.0, 0.5, 1.0, 1.0]));
    // Steps 5 5 6 7, on the scale of the training episodes.
    assert_eq!(load(&*splits.val, 0).1, [1.5, 1.5, 2.0, 2.5]);
    assert!(splits.train.name(1).contains("the steps from 0 on of `"), "{}", splits.train.name(1));
}

#[test]
fn episodes_may_be_given_by_their_ends_and_arrays_by_other_names() {
    let dir = tempfile::tempdir().unwrap();
    let mut arrays = arrays();
    arrays[0].0 = "state";
    arrays[1].0 = "action";
    arrays[2] = ("episode_ends", Tensor::new(&[5i64, 9], &Device::Cpu).unwrap());
    let facts = survey(&Behaviour::recorded(file(dir.path(), &arrays)), CHUNK, NONE, None).unwrap();
    assert_eq!((facts.n_train, facts.n_val), (4, 3));
}

#[test]
fn what_cannot_be_used_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let check = |change: &dyn Fn(&mut Arrays), chunk, expected: &str| {
        let mut arrays = arrays();
        change(&mut arrays);
        let message = refusal(file(dir.path(), &arrays), chunk);
        assert!(message.contains(expected), "{message}");
    };
    let row = |n: usize| Tensor::zeros((n, 1), candle_core::DType::F32, &Device::Cpu).unwrap();
    check(&|arrays| arrays[1].0 = "deeds", CHUNK, "it has no array `actions`");
    check(&|arrays| arrays[1].1 = row(8), CHUNK, "9 observations but 8 actions");
    check(&|arrays| arrays[2].1 = row(8), CHUNK, "`episode_starts` has 8 entries for 9 steps");
    let ends = |ends: &[i64]| ("episode_ends", Tensor::new(ends, &Device::Cpu).unwrap());
    for wrong in [&[5i64, 8][..], &[5, 5, 9], &[0, 9], &[-3, 9]] {
        check(&|arrays| arrays[2] = ends(wrong), CHUNK, "`episode_ends` must ascend");
    }
    for (value, word) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (-f32::INFINITY, "-inf")] {
        let actions = [[1.0f32], [2.0], [3.0], [value], [5.0], [6.0], [7.0], [8.0], [9.0]];
        let actions = Tensor::new(&actions, &Device::Cpu).unwrap();
        let expected = format!("runs.npz`: array `actions` holds {word} in row 3, not a finite");
        check(&|arrays| arrays[1].1 = actions.clone(), CHUNK, &expected);
    }
    let wide = |last: f64| Tensor::new(&[0.0, 5.0, last], &Device::Cpu).unwrap();
    let tall = Tensor::new(&[[0.0], [1e39]], &Device::Cpu).unwrap();
    check(&|arrays| arrays[0].1 = tall.clone(), CHUNK, "array `obs` holds inf in row 1");
    for (end, expected) in [(8.5, "8.5 in row 2 is not whole"), (f64::NAN, "NaN in row 2")] {
        check(&|arrays| arrays[2] = ("episode_ends", wide(end)), CHUNK, expected);
    }
    check(
        &|arrays| drop(arrays.pop()),
        CHUNK,
        "1 episodes cannot be split into training and validation",
    );
    let long = Chunk { horizon: 8, ..CHUNK };
    check(&|_| (), long, "no training episode is long enough for `horizon` = 8");
    assert!(refusal(dir.path().join("absent.npz"), CHUNK).contains("does not exist"));
    let whole = std::fs::read(file(dir.path(), &arrays())).unwrap();
    for length in [0, 10, whole.len() / 2] {
        let path = dir.path().join("torn.npz");
        crate::files::write_atomic(&path, &whole[..length]).unwrap();
        assert!(refusal(path, CHUNK).contains("it is not an npz file"), "{length}");
    }
}

/// Writes a compressed archive as `NumPy`'s `savez_compressed`, with a note beside the arrays.
fn packed(path: &Path) -> PathBuf {
    let mut from = zip::ZipArchive::new(File::open(path).unwrap()).unwrap();
    let into = path.with_extension("packed.npz");
    let mut writer = zip::ZipWriter::new(File::create(&into).unwrap());
    let options = zip::write::SimpleFileOptions::default();
    for index in 0..from.len() {
        let mut entry = from.by_index(index).unwrap();
        let packing = options.compression_method(zip::CompressionMethod::Deflated);
        writer.start_file(entry.name().unwrap(), packing).unwrap();
        io::copy(&mut entry, &mut writer).unwrap();
    }
    // What is no array does not matter.
    writer.start_file("notes.txt", options).unwrap();
    io::Write::write_all(&mut writer, b"pushed by hand").unwrap();
    writer.finish().unwrap();
    into
}

#[test]
fn packed_arrays_are_those_that_are_not_packed() {
    let dir = tempfile::tempdir().unwrap();
    let plain = file(dir.path(), &arrays());
    let packed = packed(&plain);
    let mut archive = zip::ZipArchive::new(File::open(&packed).unwrap()).unwrap();
    let first = archive.by_index(0).unwrap();
    assert!(first.compressed_size() < first.size());
    drop(first);
    let [plain, packed] = [plain, packed].map(Behaviour::recorded);
    assert_eq!(samples(&packed, CHUNK), samples(&plain, CHUNK));
}

#[test]
fn an_array_that_claims_more_than_there_is_gets_no_memory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("runs.npz");
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/npz");
    let whole = std::fs::read(corpus.join("starts.npz")).unwrap();
    let damaged = |from: &[u8], to: &[u8]| {
        let at = whole.windows(from.len()).position(|bytes| bytes == from).unwrap();
        let mut bytes = whole.clone();
        bytes[at..at + to.len()].copy_from_slice(to);
        crate::files::write_atomic(&path, &bytes).unwrap();
        refusal(path.clone(), CHUNK)
    };
    // Version 2 has four bytes for the length of the header, here 0x7f7f7f7f.
    let long = damaged(b"\x93NUMPY\x01\x00", b"\x93NUMPY\x02\x00\x7f\x7f\x7f\x7f");
    assert!(long.contains("`obs.npy` claims a header of 2139062143 bytes"), "{long}");
    let rows = damaged(b"(9,2,), }          ", b"(99999999999,0,), }");
    assert!(rows.contains("array `obs` is empty: its shape is [99999999999, 0]"), "{rows}");
    let many = damaged(b"(9,2,), }                     ", b"(9999999999999,8888888888,), }");
    assert!(many.contains("array `obs` claims 18446744073709551615 bytes"), "{many}");
}

#[test]
fn generated_episodes_are_the_same_each_time() {
    let from = |seed| Behaviour::PushTLike { episodes: 4, seed, image_size: None };
    let chunk = Chunk { horizon: 16, n_action_steps: 8, ..CHUNK };
    let facts = |seed| survey(&from(seed), chunk, NONE, None).unwrap();
    assert_eq!(facts(1), facts(1));
    assert_ne!(facts(1), facts(2));
    assert_eq!((facts(1).sample, facts(1).target), (Some(vec![2, 4]), vec![16, 2]));
    let one = Behaviour::PushTLike { episodes: 1, seed: 1, image_size: None };
    assert!(
        survey(&one, chunk, NONE, None)
            .unwrap_err()
            .to_string()
            .contains("1 episodes cannot be split into training and validation")
    );
}

/// Two episodes as columns, written by pyarrow (`tests/golden/trajectories.py`).
fn published(name: &str) -> PathBuf {
    PathBuf::from("../../tests/golden/trajectories").join(format!("{name}.parquet"))
}

/// Every sample of both parts.
fn samples(from: &Behaviour, chunk: Chunk) -> Vec<(Vec<f32>, Vec<f32>)> {
    let splits = opened(from, chunk, &survey(from, chunk, NONE, None).unwrap().found).unwrap();
    let load = |data: &dyn Dataset, index| {
        let mut values = Vec::new();
        let Ok(Target::Series(actions)) = data.load(index, None, &mut values) else {
            panic!("not loaded")
        };
        (values, actions)
    };
    let all = |data: &dyn Dataset| (0..data.len()).map(|i| load(data, i)).collect::<Vec<_>>();
    [all(&*splits.train), all(&*splits.val)].concat()
}

#[test]
fn parquet_files_give_the_samples_of_an_npz_file_of_the_same_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let expected = samples(&Behaviour::recorded(file(dir.path(), &arrays())), CHUNK);
    assert_eq!(expected.len(), 7);
    for name in ["plain", "snappy", "zstd"] {
        let from = Behaviour::recorded(published(name));
        assert_eq!(samples(&from, CHUNK), expected, "{name}");
        // By its first bytes, whatever its name is.
        let renamed = dir.path().join(name);
        crate::files::write_atomic(&renamed, &std::fs::read(published(name)).unwrap()).unwrap();
        assert_eq!(samples(&Behaviour::recorded(renamed), CHUNK), expected, "{name}");
    }
}

/// An expert data set as stable-baselines has it, written by numpy.
#[test]
fn files_of_numpy_are_read_packed_or_not() {
    for name in ["expert.npz", "expert_compressed.npz"] {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name);
        let facts = survey(&Behaviour::recorded(file), CHUNK, NONE, None).unwrap();
        assert_eq!((facts.n_train, facts.n_val), (2 * 3, 3), "{name}");
        assert_eq!(
            (facts.sample.clone(), facts.target.clone()),
            (Some(vec![2, 3]), vec![4, 1]),
            "{name}"
        );
        let ranges = ranges_of(&facts);
        assert_eq!(ranges.actions, [[-0.5, 0.2]], "{name}");
        assert_eq!(ranges.observations[2], [-6.0, 1.0], "{name}");
    }
}

/// The expert of stable-baselines: 100 episodes of 200 steps.
#[test]
fn a_published_file_is_read() {
    let Some(file) = shared("data/control/pendulum_expert.npz") else { return };
    let chunk = Chunk { horizon: 16, n_action_steps: 8, val_ratio: 0.1, ..CHUNK };
    let facts = survey(&Behaviour::recorded(file), chunk, NONE, None).unwrap();
    assert_eq!((facts.n_train, facts.n_val), (90 * 193, 10 * 193));
    assert_eq!((facts.sample.clone(), facts.target.clone()), (Some(vec![2, 3]), vec![16, 1]));
    let ranges = ranges_of(&facts);
    // Cosine, sine and speed of the angle; torques are limited to 2.
    assert!(ranges.actions[0][0] >= -2.0 && ranges.actions[0][1] <= 2.0, "{ranges:?}");
    assert!(ranges.observations.iter().take(2).all(|&[low, high]| low >= -1.0 && high <= 1.0));
}

/// Two cameras of the nine steps of [`arrays`]: in step i all values of the first are 10 i, of the
/// second 200.
fn seen() -> Arrays {
    let cpu = &Device::Cpu;
    let first: Vec<u8> = (0..9u8).flat_map(|step| [10 * step; 4 * 5 * 3]).collect();
    let pictures = [
        ("front", Tensor::from_vec(first, (9, 4, 5, 3), cpu).unwrap()),
        ("wrist", Tensor::from_vec(vec![200u8; 9 * 60], (9, 4, 5, 3), cpu).unwrap()),
        ("grey", Tensor::from_vec(vec![7u8; 9 * 20], (9, 4, 5), cpu).unwrap()),
        ("short", Tensor::from_vec(vec![7u8; 8 * 20], (8, 4, 5), cpu).unwrap()),
        ("numbers", Tensor::from_vec(vec![0f32; 9 * 20], (9, 4, 5), cpu).unwrap()),
    ];
    arrays().into_iter().chain(pictures).collect()
}

fn with_cameras(dir: &Path, names: &[&str]) -> Behaviour {
    let cameras = names.iter().map(|&name| name.to_owned()).collect();
    Behaviour::Recorded { file: file(dir, &seen()), cameras }
}

#[test]
fn images_of_all_cameras_stand_behind_the_numbers_of_their_observation() {
    let dir = tempfile::tempdir().unwrap();
    let from = with_cameras(dir.path(), &["wrist", "front"]);
    let facts = survey(&from, CHUNK, NONE, None).unwrap();
    let cameras = facts.cameras.clone().unwrap();
    assert_eq!((cameras.names, cameras.shape), (vec!["wrist".into(), "front".into()], [3, 4, 5]));
    assert_eq!(facts.sample, Some(vec![2, 2]));
    assert!(facts.line.contains("with 4x5 images of wrist, front"), "{}", facts.line);
    let splits = opened(&from, CHUNK, &facts.found).unwrap();
    assert_eq!(splits.train.shape(), [2, 2 + 2 * 60]);
    let mut values = Vec::new();
    splits.train.load(2, None, &mut values).unwrap();
    // The third window begins at the second step: 1 and 2 of 0 to 4.
    let [first, second] = [&values[..122], &values[122..]];
    assert_eq!((first[0], second[0]), (-0.5, 0.0));
    assert!(first[2..62].iter().all(|&v| v == 200.0 / 255.0));
    assert!(first[62..].iter().all(|&v| v == 10.0 / 255.0), "{:?}", &first[62..]);
    assert!(second[62..].iter().all(|&v| v == 20.0 / 255.0));
}

#[test]
fn images_of_a_camera_are_cropped_alike_in_a_sample_and_by_its_key_only() {
    let dir = tempfile::tempdir().unwrap();
    let cpu = &Device::Cpu;
    // Every image has the same values, different at each place.
    let one: Vec<u8> = (0..8 * 8).map(|place| place as u8).collect();
    let all = Tensor::from_vec(one.repeat(9), (9, 8, 8), cpu).unwrap();
    let both = [arrays(), vec![("a", all.clone()), ("b", all)]].concat();
    let cameras = vec!["a".to_owned(), "b".to_owned()];
    let from = Behaviour::Recorded { file: file(dir.path(), &both), cameras };
    let found = survey(&from, CHUNK, NONE, None).unwrap().found;
    let crop = [Choice::of(&RandomCrop {
        size: crate::config::values::Shape2::Both([4, 4]),
        padding: 0,
        padding_mode: PaddingMode::Constant,
    })];
    let (asked, transforms) =
        (SurveyRequest::new("x", 0, crate::plan::Targets::Numbers), Transforms::default());
    let reading = OpenRequest {
        survey: &asked,
        found: &found,
        train_transforms: &crop,
        val_transforms: &crop,
        transforms: &transforms,
    };
    let train = open(&from, CHUNK, &reading).unwrap().train;
    let corners = |sample: u64| {
        let mut values = Vec::new();
        let key = Key::new(1, crate::rng::Purpose::Augment, 0, sample);
        train.load(0, Some(key), &mut values).unwrap();
        // Two observations of two numbers and two images of 16 values.
        [2, 18, 36, 52].map(|at| values[at])
    };
    let all: Vec<[f32; 4]> = (0..8).map(corners).collect();
    assert!(all.iter().all(|[a, b, again_a, again_b]| a == again_a && b == again_b), "{all:?}");
    assert!(all.iter().any(|[a, b, ..]| a != b) && all.iter().any(|other| *other != all[0]));
    assert_eq!(corners(3), all[3]);
}

#[test]
fn arrays_that_are_no_images_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let refusal = |names: &[&str]| {
        survey(&with_cameras(dir.path(), names), CHUNK, NONE, None).unwrap_err().to_string()
    };
    let absent = refusal(&["top"]);
    assert!(
        absent.contains("has no images `top`; it has `front`, `grey`, `short`, `wrist`"),
        "{absent}"
    );
    assert!(refusal(&["short"]).contains("array `short` has the shape [8, 4, 5], not (9, height"));
    assert!(refusal(&["numbers"]).contains("array `numbers` holds F32, not uint8"));
    assert!(refusal(&["front", "grey"]).contains("all cameras need one size and as many channels"));
}

#[test]
fn a_generated_picture_takes_the_place_of_the_disc() {
    let from = Behaviour::PushTLike { episodes: 4, seed: 1, image_size: Some(16) };
    let chunk = Chunk { horizon: 16, n_action_steps: 8, ..CHUNK };
    let facts = survey(&from, chunk, NONE, None).unwrap();
    assert_eq!(facts.sample, Some(vec![2, 2]));
    assert_eq!(facts.cameras.as_ref().map(|cameras| cameras.shape), Some([3, 16, 16]));
    let splits = opened(&from, chunk, &facts.found).unwrap();
    assert_eq!(splits.val.shape(), [2, 2 + 3 * 16 * 16]);
    let mut values = Vec::new();
    splits.val.load(0, None, &mut values).unwrap();
    let white = values.iter().filter(|&&value| value == 1.0).count();
    assert!(white > values.len() / 2 && white < values.len() * 99 / 100, "{white}");
}

#[test]
fn pixels_are_measured_in_the_training_episodes_and_a_run_keeps_what_it_found() {
    let from = Behaviour::PushTLike { episodes: 4, seed: 3, image_size: Some(24) };
    let found = survey(&from, CHUNK, NONE, None).unwrap();
    let pixels = found.pixels.clone().unwrap();
    let wide = pixels.mean.iter().zip(&pixels.std).all(|(m, s)| *m > 0.5 && *m < 1.0 && *s < 0.5);
    assert!(wide && pixels.mean.len() == 3, "{pixels:?}");
    let again = |found: &Options| survey(&from, CHUNK, NONE, Some(found)).unwrap();
    assert_eq!(again(&found.found).pixels, Some(pixels));
    let mut before = found.found;
    let policy = before.get_mut(Policy::FOUND).unwrap();
    policy.as_object_mut().unwrap().remove("pixels");
    assert_eq!(again(&before).pixels, None, "a run of before it was measured");
}
