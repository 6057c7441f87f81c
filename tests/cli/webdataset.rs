//! `webdataset`: tar shards of images, from folders, by patterns and from the hub.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use test_support::hub_server::HubServer;

use crate::harness::bits::bits;
use crate::harness::experiments::on_data;
use crate::harness::lab::Lab;
use crate::harness::running::{Ended, flowing, spawn};

const SHARDS: [&str; 3] = ["pets-train-00.tar", "pets-train-01.tar", "pets-test-00.tar"];

/// Two ranks train on 48 images of 8 x 8 pixels, in two shards of the library `webdataset`.
fn tars_toml() -> String {
    on_data(
        r#"name = "webdataset"
train_shards = "tars/pets-train-{00..01}.tar"
val_shards = "tars/pets-test-*.tar"
num_workers = 1
transforms.train = [
    { name = "random_crop", size = 8, padding = 1 },
    { name = "random_horizontal_flip" },
]
transforms.val = [{ name = "center_crop", size = 8 }]"#,
    )
}

/// A file that `tests/golden/webdataset_shards.py` has written.
fn golden(name: &str) -> Vec<u8> {
    fs::read(Path::new("tests/golden/webdataset").join(name)).unwrap()
}

/// The shards in the folder `tars`, and the experiment.
pub(crate) fn tars() -> Lab {
    let lab = Lab::with(&tars_toml());
    write_tars(&lab, "tars");
    lab
}

/// The shards of a data set in the folder `name`.
pub(crate) fn write_tars(lab: &Lab, name: &str) {
    for shard in SHARDS {
        lab.write(&format!("{name}/{shard}"), golden(shard));
    }
}

/// A tar file of these files.
fn tar(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, contents) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(contents.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, name, *contents).unwrap();
    }
    archive.into_inner().unwrap()
}

#[test]
fn a_repository_is_trained_on_by_patterns_of_its_shards() {
    let by_name = |shards: &str| format!("hf:datasets/me/tars/{shards}");
    let toml = tars_toml().replace("tars/pets", &by_name("pets"));
    let (lab, hub) = (Lab::with(&toml), HubServer::new());
    let shards = SHARDS.map(golden);
    let mut files: Vec<(&str, &[u8])> =
        SHARDS.into_iter().zip(shards.iter().map(Vec::as_slice)).collect();
    files.extend([("README.md", &b"tars"[..]), ("pets-train-02.tar", b"more")]);
    hub.publish("datasets/me/tars", &files);
    let run_to = |code: i32, args: &[&str]| -> Ended {
        let mut command: Command = lab.ddprun(args);
        command.env("HF_ENDPOINT", &hub.endpoint).env_remove("HF_HUB_OFFLINE");
        let ended = spawn(command).wait();
        ended.has_code(code);
        ended
    };
    let small = ["small.toml", "distributed.shards=2", "experiment.name=small"];
    run_to(0, &small).says(&["fetching hf:datasets/me/tars@", "completed after step 12"]);
    let asked: Vec<String> = hub.take_requests().into_iter().map(|request| request.path).collect();
    let fetched = |name: &str| {
        let path = format!("/datasets/me/tars/{name}");
        asked.iter().filter(|asked| **asked == path).count()
    };
    assert_eq!(SHARDS.map(fetched), [1; 3], "{asked:?}");
    assert_eq!([fetched("pets-train-02.tar"), fetched("README.md")], [0; 2], "{asked:?}");
    // The same from a folder, on one rank.
    let alone = tars();
    alone.run_to(0, &[&small[..], &["distributed.devices=1"]].concat());
    bits(&alone).must_be(&bits(&lab));
    lab.run_to(0, &["resume", "small", "train.epochs=3"]);
    let page = |shards: &str| {
        let shards = format!("data.train_shards=\"{}\"", by_name(shards));
        flowing(&run_to(3, &["small.toml", &shards]).stderr)
    };
    let missing = page("pets-train-{00..03}.tar");
    assert!(missing.contains("`pets-train-03.tar` is missing"), "{missing}");
    let none = page("*.tgz");
    assert!(none.contains("it has no files that end in .tar"), "{none}");
}

#[test]
fn a_run_is_planned_evaluated_and_predicts_and_notices_other_shards() {
    let lab = tars();
    let page = flowing(&lab.run_to(0, &["plan", "small.toml"]).stdout);
    for words in [
        "48 to train on, 12 to validate, 3 classes (0, 1, 2)",
        "classes of `cls`, from 2 shards to train on (",
    ] {
        assert!(page.contains(words), "{words}: {page}");
    }
    lab.write("names.txt", "cat\ndog\nemu\n");
    let named = "data.class_names=names.txt";
    lab.run_to(0, &["small.toml", named, "train.epochs=20", "optimizer.lr=1e-2"]);
    let found = lab.run_to(0, &["eval", "small", "--json"]).stdout;
    let found: Value = serde_json::from_str(&found).unwrap();
    assert_eq!(found["metrics"]["val/accuracy"], 1.0, "{found}");
    // An image of the second class.
    let green = image::RgbImage::from_fn(8, 8, |x, y| image::Rgb([45, 185 + (x + y) as u8, 65]));
    green.save_with_format(lab.write("one.png", ""), image::ImageFormat::Png).unwrap();
    lab.run_to(0, &["predict", "small", "one.png", "--out", "rows.csv"]);
    let rows = fs::read_to_string(lab.path("rows.csv")).unwrap();
    assert_eq!(rows.lines().nth(1).unwrap().split(',').nth(1), Some("dog"), "{rows}");
    lab.write("tars/pets-train-01.tar", golden("pets-train-00.tar"));
    let other = lab.run_to(3, &["resume", "small", "train.epochs=21"]);
    other.says(&["the data changed since the run was planned", "pets-train-01.tar"]);
    lab.run_to(0, &["resume", "small", "train.epochs=21", "--accept-changed-data"]);
    lab.write("names.txt", "cat\ndog\nemus\n");
    lab.run_to(3, &["resume", "small", "train.epochs=22"]).says(&["the data changed since"]);
    lab.is_clean();
}

#[test]
fn bad_shards_are_refused_before_a_run_with_what_to_do() {
    let lab = tars();
    let check = |code: i32, shard: &[u8], words: &[&str]| {
        lab.write("bad/train-0.tar", shard);
        let ended = lab.run_to(code, &["plan", "small.toml", "data.train_shards=bad"]);
        let page = flowing(&ended.stderr);
        for words in words {
            assert!(page.contains(words), "{words}: {page}");
        }
    };
    let whole = golden("pets-train-00.tar");
    check(
        3,
        &whole[..40_000],
        &["`bad/train-0.tar`: it is no whole tar file", "do: copy or fetch it again"],
    );
    let a: (&str, &[u8]) = ("a.jpg", b"x");
    check(3, &tar(&[a]), &["sample `a` has no label; its fields are `jpg`", "a field `cls`"]);
    check(3, &tar(&[a, a]), &["it has `a.jpg` twice"]);
    check(2, &tar(&[a, ("a.png", b"y")]), &["`data.image_field`", "several images: `jpg`, `png`"]);
    let gzip = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3];
    check(3, &gzip, &["it is packed by gzip", "`gunzip --keep FILE` unpacks it"]);
    let none = lab.run_to(3, &["plan", "small.toml", "data.val_shards=none-*.tar"]);
    none.says(&["the validation shard `none-*.tar` does not exist"]);
    let url = lab.run_to(2, &["plan", "small.toml", "data.val_shards=s3://bucket/val.tar"]);
    url.says(&["data.val_shards"]);
    let same = "data.val_shards=\"tars/pets-train-{00..01}.tar\"";
    let same = lab.run_to(2, &["plan", "small.toml", same]);
    same.says(&["its metrics would say nothing about new data"]);
}

#[test]
fn an_entry_that_is_no_image_ends_the_run_or_is_passed_over() {
    let lab = tars();
    let mut files: Vec<(String, Vec<u8>)> = Vec::new();
    let shard = golden("pets-train-00.tar");
    let mut archive = tar::Archive::new(&shard[..]);
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let mut contents = Vec::new();
        std::io::Read::read_to_end(&mut entry, &mut contents).unwrap();
        files.push((entry.path().unwrap().display().to_string(), contents));
    }
    let image = files.iter_mut().find(|(name, _)| name.ends_with("07.jpg")).unwrap();
    image.1 = b"no image".to_vec();
    let files: Vec<(&str, &[u8])> =
        files.iter().map(|(name, contents)| (name.as_str(), &contents[..])).collect();
    lab.write("bad/0.tar", tar(&files));
    let bad = ["small.toml", "data.train_shards=bad"];
    let ended = lab.run_to(3, &bad);
    ended.says(&["cannot read sample `000007` of `bad/0.tar`"]);
    let skipped = ["data.on_bad_sample=skip", "data.max_bad_fraction=0.5"];
    lab.run_to(0, &[&bad[..], &skipped].concat());
}
