//! Parquet files as their library writes them, columns that do not fit, and damage.

use crate::user_error::UserError;
use parquet::data_type::{ByteArrayType, DoubleType, FloatType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use super::*;
use crate::mutated;

/// A column: its line of the schema, and how its values are written.
enum Values {
    /// Rows of so many numbers each.
    Lists(Vec<Vec<f32>>),
    Whole(Vec<i64>),
    /// `None` is absent.
    Optional(Vec<Option<f64>>),
    Words(Vec<&'static str>),
}

/// Writes named columns, not packed, as `name` below `folder`.
fn write(folder: &Path, name: &str, columns: &[(&str, Values)]) -> PathBuf {
    let line = |(name, values): &(&str, Values)| match values {
        Values::Lists(_) => format!(
            "optional group {name} (LIST) {{ repeated group list {{ optional float element; }} }}"
        ),
        Values::Whole(_) => format!("required int64 {name};"),
        Values::Optional(_) => format!("optional double {name};"),
        Values::Words(_) => format!("required binary {name} (UTF8);"),
    };
    let lines: String = columns.iter().map(line).collect();
    let schema = parse_message_type(&format!("message schema {{ {lines} }}")).unwrap().into();
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let properties = WriterProperties::builder().build().into();
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, properties).unwrap();
    let mut group = writer.next_row_group().unwrap();
    for (_, values) in columns {
        let mut column = group.next_column().unwrap().unwrap();
        match values {
            Values::Lists(rows) => {
                let (mut full, mut begins) = (Vec::new(), Vec::new());
                for row in rows {
                    full.extend(if row.is_empty() { vec![1] } else { vec![3; row.len()] });
                    begins.extend((0..row.len().max(1)).map(|at| i16::from(at > 0)));
                }
                let column = column.typed::<FloatType>();
                column.write_batch(&rows.concat(), Some(&full), Some(&begins)).unwrap();
            }
            Values::Whole(numbers) => {
                column.typed::<Int64Type>().write_batch(numbers, None, None).unwrap();
            }
            Values::Optional(numbers) => {
                let there: Vec<f64> = numbers.iter().copied().flatten().collect();
                let full: Vec<i16> = numbers.iter().map(|n| i16::from(n.is_some())).collect();
                column.typed::<DoubleType>().write_batch(&there, Some(&full), None).unwrap();
            }
            Values::Words(words) => {
                let words: Vec<_> = words.iter().map(|word| (*word).into()).collect();
                column.typed::<ByteArrayType>().write_batch(&words, None, None).unwrap();
            }
        }
        column.close().unwrap();
    }
    group.close().unwrap();
    crate::files::write_atomic(&path, &writer.into_inner().unwrap()).unwrap();
    path
}

fn lists(rows: &[&[f32]]) -> Values {
    Values::Lists(rows.iter().map(|row| row.to_vec()).collect())
}

/// Four steps of the episodes `numbers`, whose observations are `first`, `first` + 1 ...
fn steps(folder: &Path, name: &str, first: f32, numbers: [i64; 4]) -> PathBuf {
    let seen = (0..4).map(|step| vec![first + step as f32, 1.0]).collect();
    let columns = [
        ("observation.state", Values::Lists(seen)),
        ("action", lists(&[&[1.0], &[2.0], &[3.0], &[4.0]])),
        ("episode_index", Values::Whole(numbers.to_vec())),
    ];
    write(folder, name, &columns)
}

fn refusal(path: &Path) -> String {
    ParquetReader.episodes(path, &[]).unwrap_err().to_string()
}

#[test]
fn a_folder_is_its_files_in_order_without_the_tables_beside_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    steps(path, "data/chunk-000/episode_000001.parquet", 4.0, [1, 1, 2, 2]);
    steps(path, "data/chunk-000/episode_000000.parquet", 0.0, [0, 0, 1, 1]);
    steps(path, "data/chunk-001/episode_000002.parquet", 8.0, [7, 7, 7, 7]);
    write(path, "meta/episodes.parquet", &[("length", Values::Whole(vec![3]))]);
    let all = ParquetReader.episodes(path, &[]).unwrap();
    assert_eq!(all.ends, [2, 6, 8, 12]);
    let first: Vec<f32> = all.observations.iter().map(|row| row[0]).collect();
    assert_eq!(first, (0..12).map(|step| step as f32).collect::<Vec<_>>());
    assert_eq!(all.actions[5], [2.0]);
    assert!(ParquetReader.reads(path));
    steps(path, "data/chunk-002/late.parquet", 0.0, [8, 8, 1, 1]);
    let message = refusal(path);
    assert!(
        message.contains("late.parquet`: column `episode_index`: episode 1 continues in row 2"),
        "{message}"
    );
    std::fs::remove_dir_all(path.join("data")).unwrap();
    std::fs::create_dir(path.join("data")).unwrap();
    assert!(refusal(path).contains("the folder holds 0 parquet files"));
}

#[test]
fn numbers_may_stand_alone() {
    let dir = tempfile::tempdir().unwrap();
    let columns = [
        ("state", Values::Optional(vec![Some(1.0), Some(0.0), Some(-0.5), Some(4.0)])),
        ("action", Values::Whole(vec![1, 2, 3, 4])),
    ];
    let all = ParquetReader.episodes(&write(dir.path(), "a.parquet", &columns), &[]).unwrap();
    assert_eq!(all.observations, [[1.0], [0.0], [-0.5], [4.0]]);
    // Without a column that says more, a file is one episode.
    assert_eq!((all.actions.concat(), all.ends), (vec![1.0, 2.0, 3.0, 4.0], vec![4]));
}

#[test]
fn what_does_not_fit_is_named_with_its_column() {
    let dir = tempfile::tempdir().unwrap();
    let check = |columns: Vec<(&str, Values)>, expected: &str| {
        let message = refusal(&write(dir.path(), "a.parquet", &columns));
        assert!(message.contains("a.parquet`: ") && message.contains(expected), "{message}");
    };
    let whole = |numbers: &[i64]| Values::Whole(numbers.to_vec());
    let seen = || ("state", lists(&[&[1.0], &[2.0]]));
    check(vec![seen()], "it has no column `action`");
    check(vec![("action", lists(&[&[1.0]]))], "it has no column `observation.state`");
    check(
        vec![("state", lists(&[&[1.0, 2.0], &[3.0]])), ("action", whole(&[1, 2]))],
        "column `state`: row 1 has 1 values, but row 0 has 2",
    );
    check(vec![seen(), ("action", lists(&[&[], &[1.0]]))], "column `action`: row 0 has 0 values");
    check(
        vec![seen(), ("action", Values::Words(vec!["a", "b"]))],
        "column `action` holds BYTE_ARRAY",
    );
    let holding = |value| ("state", Values::Optional(vec![Some(1.0), value]));
    let acted = || ("action", whole(&[1, 2]));
    for (value, word) in [
        (None, "null"),
        (Some(f64::NAN), "NaN"),
        (Some(f64::INFINITY), "inf"),
        (Some(1e39), "1000000000000000000000000000000000000000"),
    ] {
        let expected = format!("column `state` holds {word} in row 1, not a finite 32-bit number");
        check(vec![holding(value), acted()], &expected);
    }
    check(
        vec![seen(), acted(), ("episode_index", Values::Optional(vec![Some(0.0), Some(0.5)]))],
        "column `episode_index`: 0.5 in row 1 is not whole",
    );
    check(
        vec![seen(), acted(), ("episode_index", lists(&[&[0.0, 1.0], &[0.0]]))],
        "column `episode_index` does not hold one number for each of 2 rows",
    );
    check(
        vec![seen(), acted(), ("episode_index", whole(&[0, 0])), ("frame_index", whole(&[1, 1]))],
        "column `frame_index`: row 1 does not come after",
    );
    let gzip = refusal(Path::new("../../tests/golden/trajectories/gzip.parquet"));
    assert!(gzip.contains("column `observation.state` is compressed with GZIP"), "{gzip}");
    assert!(refusal(&dir.path().join("absent.parquet")).contains("does not exist"));
}

#[test]
fn a_damaged_file_is_read_or_refused_with_its_name_and_within_its_limits() {
    let names = ["plain", "snappy", "zstd"];
    let path = |name| format!("../../tests/golden/trajectories/{name}.parquet");
    let originals = names.map(|name| std::fs::read(path(name)).unwrap());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("torn.parquet");
    let (mut used, mut refused, mut by_column) = (0, 0, 0);
    let mut check = |bytes: &[u8]| {
        crate::files::write_atomic(&path, bytes).unwrap();
        match ParquetReader.episodes(&path, &[]) {
            Ok(all) => {
                used += 1;
                assert_eq!(all.ends.last(), Some(&all.actions.len()));
                assert!(all.observations.len() == all.actions.len() && !all.actions.is_empty());
            }
            Err(error) => {
                refused += 1;
                let error = error.to_string();
                assert!(error.contains("torn.parquet"), "{error}");
                by_column += usize::from(error.contains("column `"));
            }
        }
    };
    for bytes in mutated::inputs(&originals, 1500, 71) {
        check(&bytes);
    }
    for original in &originals {
        for length in (0..original.len()).step_by(17) {
            check(&original[..length]);
        }
    }
    assert!(
        used > 50 && refused > 500 && by_column > 50,
        "{used} used, {refused} refused, {by_column} by column"
    );
}

/// Bytes of an image of one colour.
fn png(value: u8) -> Vec<u8> {
    let mut bytes = std::io::Cursor::new(Vec::new());
    let image = image::RgbImage::from_pixel(6, 4, image::Rgb([value, 0, 255]));
    image.write_to(&mut bytes, image::ImageFormat::Png).unwrap();
    bytes.into_inner()
}

/// The red of the first pixel of each step.
fn reds(camera: &Camera, steps: usize) -> Vec<u8> {
    let load = |step| camera.frames.load(step, crate::data::transform::Area::whole).unwrap();
    let images: Vec<_> = (0..steps).map(load).collect();
    assert!(images.iter().all(|image| image.size == (4, 6) && image.pixels.data[2] == 255));
    images.iter().map(|image| image.pixels.data[0]).collect()
}

const STEPS: [u8; 9] = [0, 10, 20, 30, 40, 50, 60, 70, 80];

#[test]
fn images_of_a_column_are_read_as_datasets_writes_them() {
    let path = Path::new("../../tests/golden/trajectories/images.parquet");
    let top = "observation.images.top".to_owned();
    let all = ParquetReader.episodes(path, std::slice::from_ref(&top)).unwrap();
    assert_eq!((all.ends.as_slice(), all.cameras.len()), (&[5, 9][..], 1));
    assert_eq!(reds(&all.cameras[0], 9), STEPS);
    let refusal =
        |camera: &str| ParquetReader.episodes(path, &[camera.to_owned()]).unwrap_err().to_string();
    let torn = refusal("observation.images.torn");
    assert!(torn.contains("`observation.images.torn` holds nothing in row 3, not an"), "{torn}");
    let absent = refusal("observation.images.left");
    let has = "no images `observation.images.left`; it has `observation.images.top`, \
               `observation.images.torn`";
    assert!(absent.contains(has), "{absent}");
}

/// A data set whose images lie in its folder, as `LeRobot` records them.
fn folder(videos: bool) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let put = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        crate::files::write_atomic(&path, bytes).unwrap();
    };
    let table = std::fs::read("../../tests/golden/trajectories/plain.parquet").unwrap();
    put("data/chunk-000/episode_000000.parquet", &table);
    let dtype = if videos { "video" } else { "image" };
    let info = serde_json::json!({ "features": {
        "action": { "dtype": "float32" }, "observation.images.top": { "dtype": dtype } } });
    put("meta/info.json", info.to_string().as_bytes());
    for (step, value) in STEPS.into_iter().enumerate().filter(|_| !videos) {
        let (episode, frame) = (step / 5, step % 5);
        let name = format!("episode_{episode:06}/frame_{frame:06}.png");
        put(&format!("images/observation.images.top/{name}"), &png(value));
    }
    dir
}

#[test]
fn images_beside_the_tables_are_found_by_episode_and_frame_and_videos_refused() {
    let dir = folder(false);
    let cameras = ["observation.images.top".to_owned()];
    let all = ParquetReader.episodes(dir.path(), &cameras).unwrap();
    assert_eq!(reds(&all.cameras[0], 9), STEPS);
    assert_eq!(listed_images(dir.path(), &cameras).unwrap().len(), 9);
    let lost = "images/observation.images.top/episode_000001/frame_000002.png";
    std::fs::remove_file(dir.path().join(lost)).unwrap();
    let error = ParquetReader.episodes(dir.path(), &cameras).unwrap_err().to_string();
    assert!(error.contains("holds nothing in row 7"), "{error}");

    let dir = folder(true);
    let error = ParquetReader.episodes(dir.path(), &cameras).unwrap_err();
    assert!(error.to_string().contains("are videos, which ddprun does not decode"), "{error}");
    assert!(error.help().unwrap().contains("ffmpeg -i"), "{:?}", error.help());
    assert_eq!(error.key(), Some("data.cameras"));
    let other = ParquetReader.episodes(dir.path(), &["top".to_owned()]).unwrap_err().to_string();
    assert!(other.contains("has no images `top`; it has `observation.images.top`"), "{other}");
}

#[test]
fn damaged_images_of_a_column_are_read_or_refused() {
    let original = std::fs::read("../../tests/golden/trajectories/images.parquet").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("torn.parquet");
    let (mut used, mut refused) = (0, 0);
    for bytes in mutated::inputs(std::slice::from_ref(&original), 400, 72) {
        crate::files::write_atomic(&path, &bytes).unwrap();
        match ParquetReader.episodes(&path, &["observation.images.top".to_owned()]) {
            Ok(all) => {
                used += 1;
                // Whatever an image holds, it is one or an error.
                (0..all.actions.len()).for_each(|step| {
                    drop(all.cameras[0].frames.load(step, crate::data::transform::Area::whole));
                });
            }
            Err(_) => refused += 1,
        }
    }
    assert!(used > 20 && refused > 100, "{used} used, {refused} refused");
}
