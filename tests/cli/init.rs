//! `ddprun init`: an experiment for every kind of data, which can be planned and run as it is
//! written.

use std::fs;
use std::path::Path;

use image::{Rgb, RgbImage};

use crate::docs::copy_of_the_project;
use crate::lab::Lab;

/// Writes an experiment for `data` and plans it; the experiment.
fn written(lab: &Lab, data: &str, file: &str) -> String {
    let said = lab.run_to(0, &["init", data, file]).stdout;
    assert!(said.contains(&format!("ddprun plan {file}")), "{said}");
    let page = lab.run_to(0, &["plan", file]).stdout;
    assert!(page.contains("per epoch"), "{page}");
    fs::read_to_string(lab.path(file)).unwrap()
}

/// Images of one colour, `n` of each class.
fn write_images(lab: &Lab, folder: &str, side: u32, n: u8) {
    for (class, red) in [("ants", 40), ("bees", 200)] {
        for index in 0..n {
            let path = lab.write(&format!("{folder}/{class}/{index}.png"), "");
            let image = RgbImage::from_pixel(side, side + 2, Rgb([red, index, 0]));
            image.save(path).unwrap();
        }
    }
}

#[test]
fn each_kind_of_data_gives_an_experiment_that_has_a_plan() {
    let lab = copy_of_the_project();
    for (data, words) in [
        ("data/mnist", vec!["name = \"mnist\"", "MNIST's files: 3,000 samples to train on"]),
        ("data/forecast/ETTh1.csv", vec!["7 series, 14,400 rows in time", "name = \"dlinear\""]),
        ("data/tinyshakespeare/input.txt", vec!["name = \"gpt\"", "seq_len = 64"]),
        ("data/tinyshakespeare", vec!["file = \"data/tinyshakespeare/input.txt\""]),
        ("data/control", vec!["observations of 3 numbers, actions of 1", "diffusion_policy"]),
        ("data/digits", vec!["speech in 10 classes: 60 samples to train on", "fastconformer"]),
    ] {
        let text = written(&lab, data, &format!("{}.toml", data.replace('/', "-")));
        let flowing = text.replace("\n# ", " ");
        for word in words {
            assert!(flowing.contains(word), "{word}:\n{text}");
        }
        assert!(text.lines().all(|line| line.len() <= 120), "{text}");
    }
}

#[test]
fn tables_say_which_column_is_predicted_and_why() {
    let lab = Lab::new();
    let row = |row: usize| format!("{row},{},{}\n", row % 7, row % 3);
    let csv = |n: usize| format!("rooms,Class,year\n{}", (0..n).map(row).collect::<String>());
    lab.write("wines/train.csv", csv(200));
    lab.write("wines/test.csv", csv(40));
    let text = written(&lab, "wines", "wines.toml").replace("\n# ", " ");
    assert!(text.contains("`Class` is taken for the target by its name; its 7 whole"), "{text}");
    assert!(text.contains("name = \"cross_entropy\""), "{text}");
    let line =
        |row: usize| format!("{{\"id\": \"{row}\", \"at\": [1, {row}], \"cost\": 0.{row}}}\n");
    lab.write("jobs/train.jsonl", (0..99).map(line).collect::<String>());
    lab.write("jobs/val.jsonl", (0..9).map(line).collect::<String>());
    let text = written(&lab, "jobs/train.jsonl", "jobs.toml");
    assert!(text.contains("inputs = [\"at\"]") && text.contains("target = \"cost\""), "{text}");
    assert!(text.contains("name = \"mse\""), "{text}");
}

#[test]
fn images_are_counted_and_measured_and_the_experiment_trains() {
    let lab = Lab::new();
    write_images(&lab, "photos/train", 30, 40);
    write_images(&lab, "photos/val", 30, 4);
    lab.run_to(0, &["init", "photos"]);
    let text = fs::read_to_string(lab.path("photos.toml")).unwrap();
    let words = text.replace("\n# ", " ");
    for word in [
        "80 images in 2 classes to train on, 8 to validate on",
        "The smallest class, \"ants\", has 40",
        "median of their shorter sides is 30 pixels",
        "name = \"resnet20\"",
    ] {
        assert!(words.contains(word), "{word}:\n{text}");
    }
    let short = ["train.epochs=2", "distributed.devices=1", "data.num_workers=0"];
    lab.run_to(0, &[&["photos.toml"][..], &short].concat());
    assert!(lab.path("logs/photos").is_dir());
    lab.is_clean();
}

#[test]
fn samples_are_held_back_where_there_is_no_part_to_validate_on() {
    let lab = Lab::new();
    write_images(&lab, "unsplit", 16, 20);
    let text = written(&lab, "unsplit", "unsplit.toml").replace("\n# ", " ");
    assert!(text.contains("val_fraction = 0.2"), "{text}");
    assert!(text.contains("32 images in 2 classes to train on, 8 to validate on"), "{text}");
    let rows: Vec<String> = (0..50).map(|row| format!("{row},{}.5\n", row % 7)).collect();
    lab.write("houses.csv", format!("rooms,price\n{}", rows.concat()));
    let text = written(&lab, "houses.csv", "houses.toml").replace("\n# ", " ");
    assert!(text.contains("val_fraction = 0.2") && !text.contains("val_file"), "{text}");
    assert!(text.contains("40 samples to train on, 10 to validate on"), "{text}");
}

#[test]
fn nothing_is_overwritten_and_what_cannot_be_used_is_named() {
    let lab = Lab::new();
    let refuse = |code: i32, args: &[&str], words: &[&str]| {
        lab.run_to(code, &[&["init"], args].concat()).says(words);
    };
    lab.write("notes.txt", "to be or not to be ".repeat(200));
    lab.run_to(0, &["init", "notes.txt"]);
    let first = fs::read(lab.path("notes.toml")).unwrap();
    refuse(2, &["notes.txt"], &["`notes.toml` is there already", "name another file"]);
    assert_eq!(fs::read(lab.path("notes.toml")).unwrap(), first);

    refuse(3, &["nowhere"], &["`nowhere` cannot be read", "check its path"]);
    lab.write("empty.csv", "");
    refuse(3, &["empty.csv"], &["`empty.csv` is empty"]);
    lab.write("noise.dat", [0, 255, 0, 1]);
    refuse(3, &["noise.dat"], &["`noise.dat` is nothing that is recognised", "a text"]);
    lab.write("houses.jsonl", "{\"rooms\": 3, \"price\": 200}\n");
    refuse(3, &["houses.jsonl"], &["no part to validate on", "`train.jsonl` and `val.jsonl`"]);
    fs::create_dir(lab.path("void")).unwrap();
    refuse(3, &["void"], &["holds nothing that is recognised"]);
    lab.write("takes/recordings/7_anna_1.wav", "");
    refuse(3, &["takes"], &["has recordings, but none to validate on"]);
    lab.write("alpaca.json", "[]");
    refuse(3, &["alpaca.json"], &["there is no `tokenizer.json` beside it"]);
    for name in ["nowhere", "empty", "noise", "houses", "void", "takes", "alpaca"] {
        assert!(!Path::new(&lab.path(&format!("{name}.toml"))).exists(), "{name}");
    }
}
