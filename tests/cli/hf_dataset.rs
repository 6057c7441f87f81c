//! `hf_dataset`: repositories of parquet shards by name, against a server on this machine, and
//! folders of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use image::{ImageFormat, Rgb, RgbImage};
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use serde_json::Value;
use test_support::hub_server::{Fault, HubServer, etag};

use crate::harness::bits::bits;
use crate::harness::experiments::on_data;
use crate::harness::lab::{Lab, children};
use crate::harness::running::{Ended, flowing, spawn, until};

/// Two ranks train on 48 images of 8 x 8 pixels, in two shards of the library `datasets`.
fn pets_toml() -> String {
    on_data(
        r#"name = "hf_dataset"
path = "pets"
val_split = "test"
num_workers = 1
transforms.train = [
    { name = "random_crop", size = 8, padding = 1 },
    { name = "random_horizontal_flip" },
]
transforms.val = [{ name = "center_crop", size = 8 }]"#,
    )
}

const SHARDS: [&str; 3] = [
    "data/train-00000-of-00002.parquet",
    "data/train-00001-of-00002.parquet",
    "data/test-00000-of-00001.parquet",
];

/// A file that `tests/golden/hf_dataset.py` has written.
fn golden(name: &str) -> Vec<u8> {
    fs::read(Path::new("tests/golden/hf_dataset").join(name)).unwrap()
}

/// The shards in the folder `pets`, and the experiment.
pub(crate) fn pets() -> Lab {
    let lab = Lab::with(&pets_toml());
    write_pets(&lab, "pets");
    lab
}

/// The shards of a data set in the folder `name`.
pub(crate) fn write_pets(lab: &Lab, name: &str) {
    for shard in SHARDS {
        lab.write(&format!("{name}/{shard}"), golden(&format!("pets/{shard}")));
    }
}

/// A lab without data, and a hub that has them as `datasets/me/pets`.
struct Scene {
    lab: Lab,
    hub: HubServer,
}

impl Scene {
    fn new() -> Self {
        let lab = Lab::with(&pets_toml().replace("\"pets\"", "\"hf:datasets/me/pets\""));
        let hub = HubServer::new();
        let shards = SHARDS.map(|shard| golden(&format!("pets/{shard}")));
        let mut files: Vec<(&str, &[u8])> =
            SHARDS.into_iter().zip(shards.iter().map(Vec::as_slice)).collect();
        let more = golden("words.parquet");
        files.push(("README.md", b"pets"));
        files.push(("data/extra-00000-of-00001.parquet", &more));
        hub.publish("datasets/me/pets", &files);
        Self { lab, hub }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.lab.ddprun(args);
        command.env("HF_ENDPOINT", &self.hub.endpoint).env_remove("HF_HUB_OFFLINE");
        command.env("DDPRUN_CACHE", self.lab.path("cache"));
        command
    }

    fn run_to(&self, code: i32, args: &[&str]) -> Ended {
        let ended = spawn(self.command(args)).wait();
        ended.has_code(code);
        ended
    }
}

#[test]
fn a_repository_is_trained_on_by_its_name_with_the_same_bits_at_any_number_of_ranks() {
    let scene = Scene::new();
    let shards = ["distributed.shards=2", "experiment.name=small"];
    let ended = scene.run_to(0, &[&["small.toml"][..], &shards].concat());
    ended.says(&["fetching hf:datasets/me/pets@", "completed after step 12"]);
    let asked: Vec<String> =
        scene.hub.take_requests().into_iter().map(|request| request.path).collect();
    let fetched = |name: &str| {
        let path = format!("/datasets/me/pets/{name}");
        asked.iter().filter(|asked| **asked == path).count()
    };
    assert_eq!(SHARDS.map(fetched), [1; 3], "{asked:?}");
    assert!(!asked.iter().any(|path| path.contains("extra") || path.contains("README")));
    // The same from a folder, on one rank.
    let alone = pets();
    alone.run_to(0, &[&["small.toml", "distributed.devices=1"][..], &shards].concat());
    bits(&alone).must_be(&bits(&scene.lab));
    // What is stored means this commit, without a network, too.
    let resolved = fs::read_to_string(scene.lab.run_folder().join("resolved.toml")).unwrap();
    assert!(resolved.contains("datasets--me--pets/snapshots/"), "{resolved}");
    scene.lab.run_to(0, &["resume", "small", "train.epochs=3"]);
    scene.lab.run_to(0, &["eval", "small"]).says(&[]);
}

#[test]
fn a_plan_tells_counts_and_classes_and_changes_nothing_but_the_cache_of_the_hub() {
    let scene = Scene::new();
    let page = scene.run_to(0, &["plan", "small.toml"]).stdout;
    for words in [
        "48 to train on, 12 to validate, 3 classes (cat, dog, emu)",
        "images of column `image`, classes of `label`",
    ] {
        assert!(flowing(&page).contains(words), "{words}: {page}");
    }
    let page = scene.run_to(0, &["plan", "small.toml", "--json"]).stdout;
    let page: Value = serde_json::from_str(&page).unwrap();
    assert_eq!(page["plan"]["data"]["classes"], serde_json::json!(["cat", "dog", "emu"]));
    assert!(!scene.lab.path("cache").exists() && !scene.lab.path("logs").exists());
}

#[test]
fn the_parts_that_a_repository_lacks_are_drawn_on_their_keys() {
    let scene = Scene::new();
    let page = |code, changes: &[&str]| {
        flowing(&scene.run_to(code, &[&["small.toml"], changes].concat()).stderr)
    };
    let split = page(2, &["data.val_split=tests"]);
    assert!(split.contains("`data.val_split`"), "{split}");
    let splits =
        "`hf:datasets/me/pets` has no split `tests`; its splits are `extra`, `test`, `train`";
    assert!(split.contains(splits) && split.contains("did you mean `test`?"), "{split}");
    let config = page(2, &["data.config_name=cats"]);
    assert!(config.contains("has no configuration `cats`; it has `default`"), "{config}");
    let none = page(2, &["~data.val_split"]);
    assert!(
        none.contains("`data.val_split`: is missing") && none.contains("`val_fraction`"),
        "{none}"
    );
    let same = page(2, &["data.val_split=train"]);
    assert!(same.contains("its metrics would say nothing about new data"), "{same}");
    // A shard that the repository itself has not.
    let shards = SHARDS.map(|shard| golden(&format!("pets/{shard}")));
    scene.hub.publish("datasets/me/half", &[(SHARDS[0], &shards[0]), (SHARDS[2], &shards[2])]);
    let half = page(3, &["data.path=hf:datasets/me/half"]);
    assert!(half.contains("`data/train-00001-of-00002.parquet` is missing, shard of 2"), "{half}");
    // A repository of other files, and its conversion.
    scene.hub.publish("datasets/me/raw", &[("raw.py", b"x"), ("data.zip", b"x")]);
    let raw = page(3, &["data.path=hf:datasets/me/raw"]);
    assert!(raw.contains("`hf:datasets/me/raw`: it has no parquet files"), "{raw}");
    let converted = "hf:datasets/me/raw@refs/convert/parquet";
    assert!(raw.contains(&format!("try `{converted}`")), "{raw}");
    let files: [(&str, &[u8]); 3] = [
        ("default/train/0000.parquet", &shards[0]),
        ("default/train/0001.parquet", &shards[1]),
        ("default/test/0000.parquet", &shards[2]),
    ];
    scene.hub.publish_at("datasets/me/raw", "refs/convert/parquet", &files);
    scene.run_to(0, &["small.toml", &format!("data.path={converted}")]);
    // A folder of a repository, and no cache but what was fetched.
    scene.run_to(0, &["plan", "small.toml", "data.path=hf:datasets/me/pets/data"]);
    let offline = spawn({
        let mut command = scene.command(&["plan", "small.toml", "data.val_split=extra"]);
        command.env("HF_HUB_OFFLINE", "1");
        command
    });
    let offline = offline.wait();
    offline.has_code(2);
    offline.says(&["has no split `extra`", "the cache may lack files of the repository"]);
}

#[test]
fn a_bad_row_ends_the_run_with_its_file_and_place() {
    let lab = pets();
    let check = |code, file: &str, words: &[&str]| {
        lab.write("bad/train.parquet", golden(file));
        lab.write("bad/test.parquet", golden(&format!("pets/{}", SHARDS[2])));
        let ended = lab.run_to(
            code,
            &[
                "small.toml",
                "data.path=bad",
                "train.batch_size=1",
                "train.global_batch_size=2",
                "distributed.shards=2",
            ],
        );
        ended.says(words);
    };
    check(3, "null_label.parquet", &["`bad/train.parquet`: row 2: `label` is null", "do:"]);
    check(3, "path_only.parquet", &["row 4: `image` is without bytes", "push_to_hub"]);
    check(3, "undecodable.parquet", &["cannot read row 5 of `bad/train.parquet`", "image format"]);
    check(2, "two_labels.parquet", &["several columns of classes", "`data.label_column`"]);
    let skipped =
        ["small.toml", "data.path=bad", "data.on_bad_sample=skip", "data.max_bad_fraction=0.5"];
    lab.write("bad/train.parquet", golden("undecodable.parquet"));
    lab.run_to(0, &[&skipped[..], &["train.batch_size=1", "train.global_batch_size=2"]].concat());
}

#[test]
fn a_run_is_evaluated_and_predicts_and_notices_other_shards() {
    let lab = pets();
    lab.run_to(0, &["small.toml", "train.epochs=20", "optimizer.lr=1e-2"]);
    let found = lab.run_to(0, &["eval", "small", "--json"]).stdout;
    let found: Value = serde_json::from_str(&found).unwrap();
    assert_eq!(found["metrics"]["val/accuracy"], 1.0, "{found}");
    assert!(found.to_string().contains("\"emu\""), "{found}");
    // An image of the second class.
    let green = RgbImage::from_fn(8, 8, |x, y| Rgb([45, 185 + (x + y) as u8, 65]));
    green.save_with_format(lab.write("one.png", ""), ImageFormat::Png).unwrap();
    lab.run_to(0, &["predict", "small", "one.png", "--out", "rows.csv"]);
    let rows = fs::read_to_string(lab.path("rows.csv")).unwrap();
    assert_eq!(rows.lines().nth(1).unwrap().split(',').nth(1), Some("dog"), "{rows}");
    lab.write(&format!("pets/{}", SHARDS[1]), golden(&format!("pets/{}", SHARDS[0])));
    let other = lab.run_to(3, &["resume", "small", "train.epochs=21"]);
    other.says(&["the data changed since the run was planned", "train-00001-of-00002.parquet"]);
    lab.run_to(0, &["resume", "small", "train.epochs=21", "--accept-changed-data"]);
    lab.is_clean();
}

#[test]
fn an_interrupted_fetch_goes_on_where_it_was() {
    let scene = Scene::new();
    let shard = golden(&format!("pets/{}", SHARDS[1]));
    let half = shard.len() / 2;
    let path = format!("datasets/me/pets/{}", SHARDS[1]);
    scene.hub.put(&path, Fault::Cut(half));
    scene.hub.put(&path, Fault::Silent(std::time::Duration::from_secs(10)));
    let running = spawn(scene.command(&["small.toml"]));
    let blobs = scene.lab.path("hf/hub/datasets--me--pets/blobs");
    let incomplete = blobs.join(format!("{}.incomplete", etag(&shard)));
    until("half of the second shard is here", || {
        fs::metadata(&incomplete).is_ok_and(|found| found.len() == half as u64)
    });
    running.signal(rustix::process::Signal::KILL);
    assert_eq!(running.wait().code, -9);
    scene.hub.take_requests();
    scene.run_to(0, &["small.toml"]).says(&["completed after step 12"]);
    let asked = scene.hub.take_requests();
    let ranges: Vec<_> = asked.iter().filter_map(|request| request.range.as_deref()).collect();
    assert_eq!(ranges, [format!("bytes={half}-"), format!("bytes={half}-")]);
    assert!(!asked.iter().any(|request| request.path.ends_with(SHARDS[0])), "{asked:?}");
}

/// Writes a shard of these images and labels, ten in a row group.
pub(crate) fn write_shard(path: &Path, rows: &[(Vec<u8>, i64)]) {
    let schema = "message rows { OPTIONAL group image { OPTIONAL BYTE_ARRAY bytes; \
                  OPTIONAL BYTE_ARRAY path (UTF8); } OPTIONAL INT64 label; }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let properties = Arc::new(WriterProperties::builder().build());
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let file = fs::File::create(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, properties).unwrap();
    for rows in rows.chunks(10) {
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let images: Vec<ByteArray> =
            rows.iter().map(|(image, _)| ByteArray::from(image.clone())).collect();
        let (whole, half) = (vec![2; rows.len()], vec![1; rows.len()]);
        column.typed::<ByteArrayType>().write_batch(&images, Some(&whole), None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<ByteArrayType>().write_batch(&[], Some(&half), None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let labels: Vec<i64> = rows.iter().map(|(_, label)| *label).collect();
        column.typed::<Int64Type>().write_batch(&labels, Some(&half), None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    writer.close().unwrap();
}

/// A picture of noise, one of many, brighter if the number is odd; and its label.
fn noise(number: u64) -> (Vec<u8>, i64) {
    let mut state = number + 1;
    let picture = RgbImage::from_fn(48, 48, |_, _| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let [.., a, b, c] = state.to_le_bytes();
        Rgb([a, b, (c & 127) + (number % 2) as u8 * 128])
    });
    let mut bytes = std::io::Cursor::new(Vec::new());
    picture.write_to(&mut bytes, ImageFormat::Png).unwrap();
    (bytes.into_inner(), (number % 2) as i64)
}

/// A lab of images that are too large to be kept in memory.
struct LargeScene {
    lab: Lab,
}

impl LargeScene {
    fn new() -> Self {
        let lab = pets();
        for shard in 0..3 {
            let name = format!("noise/data/train-{shard:05}-of-00003.parquet");
            let rows: Vec<_> = (100 * shard..100 * (shard + 1)).map(noise).collect();
            write_shard(&lab.path(&name), &rows);
        }
        Self { lab }
    }

    fn command(&self, args: &[&str]) -> Command {
        let data = ["data.path=noise", "~data.val_split", "data.val_fraction=0.2"];
        let train = ["train.epochs=1", "distributed.shards=2"];
        let mut command = self.lab.ddprun(&[args, &data, &train].concat());
        command.env("DDPRUN_CACHE", self.lab.path("cache")).env("RUST_BACKTRACE", "0");
        command
    }

    fn cached(&self) -> Vec<PathBuf> {
        children(&self.lab.path("cache/images"))
    }
}

#[test]
fn a_copy_of_the_images_is_made_once_and_one_that_was_killed_or_damaged_anew() {
    let undisturbed = LargeScene::new();
    let mut command = undisturbed.command(&["small.toml", "distributed.devices=1"]);
    command.env("DDPRUN_CACHE", "off");
    spawn(command).wait().has_code(0);
    let expected = bits(&undisturbed.lab);

    let scene = LargeScene::new();
    let run = |points: &str, code: i32| {
        let mut command = scene.command(&["small.toml"]);
        command.env("DDPRUN_FP", points);
        let ended = spawn(command).wait();
        ended.has_code(code);
        ended
    };
    let copies = "copying 300 images (";
    run("images.copy=kill@parent,*,*,17", -9).says(&[copies]);
    assert_eq!(children(&scene.lab.path("logs")), Vec::<PathBuf>::new());
    let left = scene.cached();
    assert!(left.iter().any(|path| path.to_string_lossy().ends_with(".ddprun-tmp")), "{left:?}");
    run("", 0).says(&[copies, "completed after step 30"]);
    bits(&scene.lab).must_be(&expected);
    let [file] = &scene.cached()[..] else { panic!("{:?}", scene.cached()) };
    scene.lab.is_clean();
    // The next run finds it; after a flipped bit it is written again.
    let whole = fs::read(file).unwrap();
    let next = run("", 0);
    assert!(!next.stderr.contains("copying"), "{}", next.stderr);
    crate::harness::lab::flip_a_bit(file);
    run("", 0).says(&[copies]);
    assert_eq!(fs::read(file).unwrap(), whole);
    // A disk that is not to be had is named with what to do.
    fs::remove_dir_all(scene.lab.path("cache")).unwrap();
    scene.lab.write("cache", "a file");
    run("", 6).says(&["DDPRUN_CACHE"]);
}
