//! `ddprun init`: an experiment for every kind of data, which can be planned and run as it is
//! written.

use std::fs;
use std::path::Path;

use candle_core::{DType, Device, Tensor};
use image::{Rgb, RgbImage};
use serde_json::json;

use crate::docs::copy_of_the_project;
use crate::harness::lab::Lab;
use crate::hf_dataset::write_pets;
use crate::webdataset::write_tars;

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
fn a_folder_of_parquet_files_of_images_gives_an_experiment() {
    let lab = Lab::new();
    write_pets(&lab, "pets");
    let text = written(&lab, "pets", "pets.toml");
    let words = [
        "name = \"hf_dataset\"",
        "path = \"pets\"",
        "val_fraction = 0.2",
        "test_split = \"test\"",
        "size = [8, 8]",
        "classes: 3 (`cat`, `dog`, `emu`)",
    ];
    for word in words {
        assert!(text.contains(word), "{word}:\n{text}");
    }
    lab.run_to(0, &["pets.toml", "train.epochs=1"]);
}

#[test]
fn a_folder_of_tar_shards_of_images_gives_an_experiment() {
    let lab = Lab::new();
    write_tars(&lab, "tars");
    let text = written(&lab, "tars", "tars.toml");
    let words = [
        "name = \"webdataset\"",
        "train_shards = \"tars/pets-train-*.tar\"",
        "val_fraction = 0.2",
        "test_shards = \"tars/pets-test-*.tar\"",
        "size = [8, 8]",
        "classes: 3 (`0`, `1`, `2`)",
    ];
    for word in words {
        assert!(text.contains(word), "{word}:\n{text}");
    }
    lab.run_to(0, &["tars.toml", "train.epochs=1"]);
}

#[test]
fn without_a_path_the_quickstart_is_written_and_runs_in_an_empty_folder() {
    let lab = Lab::new();
    let said = lab.run_to(0, &["init"]).stdout;
    assert!(said.contains("ddprun quickstart.toml"), "{said}");
    let text = fs::read_to_string(lab.path("quickstart.toml")).unwrap();
    assert!(!text.contains("cargo") && !text.contains("experiments/"), "{text}");
    let few = ["train.epochs=2", "data.train_per_class=20", "data.val_per_class=5"];
    let any = "expect.\"val/accuracy\"={at_least=0.0}";
    lab.run_to(0, &[&["quickstart.toml", any], &few[..]].concat());
    lab.run_to(2, &["init"]).says(&["`quickstart.toml` is there already"]);
}

#[test]
fn every_command_has_a_man_page() {
    let lab = Lab::new();
    lab.run_to(0, &["man-pages", "share/man1"]);
    for page in ["ddprun", "ddprun-sweep", "ddprun-checkpoint-export"] {
        let text = fs::read_to_string(lab.path(&format!("share/man1/{page}.1"))).unwrap();
        assert!(text.contains(".SH SYNOPSIS"), "{page}: {text}");
    }
    assert!(!lab.path("share/man1/ddprun-worker.1").exists(), "a hidden command has a page");
    lab.write("taken", "");
    lab.run_to(6, &["man-pages", "taken"]).says(&["taken"]);
}

#[test]
fn columns_that_are_called_by_numbers_are_series() {
    let lab = Lab::new();
    let row = |row: usize| format!("{}.25,{}.5\n", 60 + row % 7, 50 + row % 5);
    let rows = (0..120).map(row).collect::<String>();
    lab.write("speeds.csv", format!("773869,767541\n{rows}"));
    let text = written(&lab, "speeds.csv", "speeds.toml");
    assert!(text.contains("name = \"csv_forecast\""), "{text}");
    lab.write("plain.csv", format!("0,1\n{rows}"));
    let text = written(&lab, "plain.csv", "plain.toml");
    assert!(text.contains("target = \"1\""), "{text}");
}

#[test]
fn tables_say_which_column_is_predicted_and_why() {
    let lab = Lab::new();
    let row = |row: usize| format!("{row},{},{}\n", row % 7, row % 3);
    let csv = |n: usize| format!("rooms,Class,year\n{}", (0..n).map(row).collect::<String>());
    lab.write("wines/train.csv", csv(200));
    lab.write("wines/test.csv", csv(40));
    let text = written(&lab, "wines", "wines.toml").replace("\n# ", " ");
    assert!(text.contains("target: `Class`, by its name; its 7 whole"), "{text}");
    assert!(text.contains("val_fraction = 0.2") && text.contains("wines/test.csv"), "{text}");
    let page = lab.run_to(0, &["plan", "wines.toml"]).stdout;
    for words in ["the data's target:", "\"cross_entropy\"", "\"val/accuracy\""] {
        assert!(page.contains(words), "{words}: {page}");
    }
    let line =
        |row: usize| format!("{{\"id\": \"{row}\", \"at\": [1, {row}], \"cost\": 0.{row}}}\n");
    lab.write("jobs/train.jsonl", (0..99).map(line).collect::<String>());
    lab.write("jobs/val.jsonl", (0..9).map(line).collect::<String>());
    let text = written(&lab, "jobs/train.jsonl", "jobs.toml");
    assert!(text.contains("inputs = [\"at\"]") && text.contains("target = \"cost\""), "{text}");
    let page = lab.run_to(0, &["plan", "jobs.toml"]).stdout;
    for words in ["the data's target:", "\"mse\"", "[\"rmse_unscaled\"]"] {
        assert!(page.contains(words), "{words}: {page}");
    }
    let flat = |row: usize| {
        let area = if row.is_multiple_of(9) { "null".to_owned() } else { row.to_string() };
        format!(
            "{{\"city\": \"{}\", \"area\": {area}, \"rent\": {row}.5}}\n",
            ["Bern", "Rome"][row % 2]
        )
    };
    lab.write("flats.jsonl", (0..60).map(flat).collect::<String>());
    let text = written(&lab, "flats.jsonl", "flats.toml");
    assert!(text.contains("categorical = [\"city\"], missing = \"median\""), "{text}");
    lab.run_to(0, &["flats.toml", "train.epochs=1"]);
    let refused = lab.run_to(3, &["flats.toml", "~data.features.missing"]);
    refused.says(&["`area` is empty", "or leave it out of `data.inputs`"]);
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
        "There are 40 images in each class",
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
fn tables_that_list_images_give_several_classes_or_numbers() {
    let lab = Lab::new();
    write_images(&lab, "photos", 16, 12);
    let list = |header: &str, row: &dyn Fn(u8, u8) -> String| {
        let rows = (0..2).flat_map(|class| (0..12).map(move |index| (class, index)));
        let line = |(class, index): (u8, u8)| {
            let name = ["ants", "bees"][usize::from(class)];
            format!("{name}/{index}.png,{}\n", row(class, index))
        };
        format!("{header}\n{}", rows.map(line).collect::<String>())
    };
    let classes = |class: u8, index: u8| format!("{class},{},p{}", index % 2, index / 3);
    lab.write("photos/labels.csv", list("file,red,odd,patient", &classes));
    let text = written(&lab, "photos/labels.csv", "labels.toml");
    for word in ["class_columns = [\"red\", \"odd\"]", "image_column = \"file\"", "patient"] {
        assert!(text.contains(word), "{word}:\n{text}");
    }
    lab.run_to(0, &["labels.toml", "train.epochs=1"]);
    lab.write("photos/ages.csv", list("image,age", &|_, index| format!("{index}.5")));
    let text = written(&lab, "photos/ages.csv", "ages.toml");
    assert!(text.contains("target_columns = [\"age\"]") && text.contains("\"mse\""), "{text}");
    lab.write(
        "photos/words.csv",
        list("image,kind", &|class, _| ["ant", "bee"][usize::from(class)].to_owned()),
    );
    let number = list("file,label", &|class, _| class.to_string());
    lab.write("photos/numbers.csv", &number);
    lab.write("photos/lost.csv", number.replace("bees/3.png", "bees/33.png"));
    let lost = "lists 1 image of 24 that is not there: `bees/33.png` in line 17";
    lab.run_to(3, &["init", "photos/lost.csv"]).says(&[lost]);
    let text = written(&lab, "photos/words.csv", "words.toml");
    assert!(text.contains("class_column = \"kind\""), "{text}");
    let text = written(&lab, "photos/numbers.csv", "numbers.toml");
    assert!(text.contains("class_column = \"label\"") && text.contains("cross_entropy"), "{text}");
    fs::create_dir_all(lab.path("shop")).unwrap();
    fs::rename(lab.path("photos"), lab.path("shop/images")).unwrap();
    lab.write("shop/train.csv", number);
    let text = written(&lab, "shop", "shop.toml");
    assert!(text.contains("image_dir = \"shop/images\""), "{text}");
}

#[test]
fn folders_that_are_called_like_parts_are_no_classes() {
    let lab = Lab::new();
    write_images(&lab, "brains/archive/Training", 16, 20);
    write_images(&lab, "brains/archive/Testing", 16, 5);
    let said = lab.run_to(0, &["init", "brains", "brains.toml"]).stdout;
    for words in
        ["classes", "2 (`ants`, `bees`)", "20 % of the images of each class", "Testing`, once"]
    {
        assert!(said.contains(words), "{words}: {said}");
    }
    let text = fs::read_to_string(lab.path("brains.toml")).unwrap();
    for words in
        ["train_dir = \"brains/archive/Training\"", "test_dir = \"brains/archive/Testing\""]
    {
        assert!(text.contains(words), "{words}: {text}");
    }
    write_images(&lab, "single/train", 16, 20);
    let text = written(&lab, "single", "single.toml");
    assert!(text.contains("train_dir = \"single/train\"\nval_fraction = 0.2"), "{text}");
    // Photos to predict, as competitions have them.
    let photo = fs::read(lab.path("single/train/ants/0.png")).unwrap();
    lab.write("single/test/a.png", &photo);
    let said = lab.run_to(0, &["init", "single", "flat.toml"]).stdout;
    assert!(
        said.contains("`single/test`: it has no class folders; `ddprun predict RUN`"),
        "{said}"
    );
    write_images(&lab, "beside", 16, 4);
    lab.write("beside/test/a.png", &photo);
    lab.run_to(3, &["init", "beside"]).says(&["has a folder `test` beside folders of classes"]);
    write_images(&lab, "part/test", 16, 4);
    lab.run_to(3, &["init", "part"]).says(&["has a folder `test`, but none to train on"]);
    lab.write("one/train/ants/a.png", &photo);
    lab.run_to(3, &["init", "one"]).says(&["has images of one class only, `ants`"]);
    write_images(&lab, "phone", 16, 4);
    for i in 0..3 {
        lab.write(&format!("phone/cats/{i}.heic"), "");
        lab.write(&format!("single/train/ants/{i}.heic"), "");
    }
    lab.run_to(3, &["init", "phone"])
        .says(&["`phone/cats` holds 3 `.heic` files, which are not read"]);
    let said = lab.run_to(0, &["init", "single", "heic.toml"]).stdout;
    assert!(said.contains("3 .heic"), "{said}");
}

/// A table of birds: an index, words, dates, a bad cell, and rows without a mass.
fn birds() -> String {
    let row = |i: usize| {
        let species = ["Adelie", "Gentoo", "Chinstrap"][i % 3];
        let island = ["Dream", "Biscoe"][i % 2];
        let mass = if i == 7 { "NA".to_owned() } else { format!("{}", 3000 + 37 * i) };
        let bill = if i == 11 { "39.l".to_owned() } else { format!("{}.5", 30 + i % 9) };
        format!("b{i},{species},{island},2007-11-{:02},{bill},{mass}\n", 1 + i % 28)
    };
    let rows: String = (0..60).map(row).collect();
    format!("id,species,island,seen,bill_mm,body_mass_g\n{rows}")
}

#[test]
fn another_target_of_a_table_is_chosen_by_its_name_alone() {
    let lab = Lab::new();
    lab.write("birds.csv", birds());
    let said = lab.run_to(0, &["init", "birds.csv"]).stdout;
    for words in [
        "`species`, by its name; its 3 words are classes",
        "`id`: each row has its own",
        "`39.l` in `bill_mm`, line 13, is not a number",
        "`seen` (dates)",
        "20 % of the rows, drawn at random",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let short = ["train.epochs=1", "distributed.devices=1"];
    lab.run_to(0, &[&["birds.toml"][..], &short].concat()).says(&["val/accuracy"]);
    let mass =
        [&["birds.toml", "data.target=body_mass_g", "data.drop_unlabelled=true"][..], &short]
            .concat();
    let page = lab.run_to(0, &[&["plan"], &mass[..]].concat()).stdout;
    assert!(page.contains("\"mse\"") && page.contains("species"), "{page}");
    lab.run_to(0, &mass).says(&["rmse_unscaled"]);
    let text = |args: &[&str]| {
        lab.run_to(0, &[&["init", "birds.csv"], args].concat());
        fs::read_to_string(lab.path(args[0])).unwrap()
    };
    let written = text(&["mass.toml", "--target", "body_mass_g"]);
    assert!(written.contains("target = \"body_mass_g\""), "{written}");
    lab.run_to(2, &["init", "birds.csv", "x.toml", "--target", "mass"])
        .says(&["has no column `mass`", "body_mass_g"]);
    lab.run_to(2, &["init", "birds.csv", "x.toml", "--task", "regression"])
        .says(&["`species` is `Adelie` in line 2"]);
    assert!(!lab.path("x.toml").exists());
}

#[test]
fn a_table_to_test_on_is_used_if_it_has_the_target() {
    let lab = Lab::new();
    let rows = |n: usize| (0..n).map(|i| format!("{i},{}.5\n", i % 7)).collect::<Vec<_>>().concat();
    lab.write("houses/train.csv", format!("rooms,price\n{}", rows(50)));
    lab.write(
        "houses/test.csv",
        format!("rooms\n{}", (0..9).map(|i| format!("{i}\n")).collect::<Vec<_>>().concat()),
    );
    let said = lab.run_to(0, &["init", "houses", "a.toml"]).stdout;
    assert!(said.contains("`test.csv` has no `price`: its rows are to be predicted"), "{said}");
    lab.write("houses/test.csv", format!("rooms,price\n{}", rows(9)));
    let text = written(&lab, "houses/train.csv", "b.toml");
    assert!(
        text.contains("test_file = \"houses/test.csv\"") && text.contains("val_fraction"),
        "{text}"
    );
}

#[test]
fn nested_json_gives_an_experiment_that_trains() {
    let lab = Lab::new();
    let line = |i: usize| {
        let nested = json!({"a": i % 3});
        json!({"id": format!("n{i}"), "rooms": i % 7, "flag": i.is_multiple_of(2), "year": "1970-01-01",
            "tags": vec![1; i % 3 + 1], "nested": nested, "price": i as f64 / 4.0})
    };
    let lines: Vec<String> = (0..60).map(|i| format!("{}\n", line(i))).collect();
    let lines = lines.concat();
    lab.write("nested.jsonl", lines);
    let said = lab.run_to(0, &["init", "nested.jsonl"]).stdout;
    for words in
        ["`price`, by its name", "`nested`: it holds objects", "`tags`: its arrays are not"]
    {
        assert!(said.contains(words), "{words}: {said}");
    }
    lab.run_to(0, &["nested.toml", "train.epochs=1", "distributed.devices=1"]);
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
    refuse(3, &["noise.dat"], &["`noise.dat` is in no known format", "a text"]);
    lab.write("part.bin", [1, 0, 2, 0]);
    refuse(3, &["part.bin"], &["no part to validate on", "`train.bin` and `val.bin`"]);
    fs::create_dir(lab.path("void")).unwrap();
    refuse(3, &["void"], &["holds no data in a known format"]);
    lab.write("takes/recordings/7_anna_1.wav", "");
    refuse(3, &["takes"], &["`takes/recordings/7_anna_1.wav`"]);
    lab.write("table.json", "[{\"rooms\": 3}]");
    refuse(3, &["table.json"], &["holds JSON objects of no known kind", "`.jsonl`"]);
    lab.write("alpaca.json", "[]");
    refuse(3, &["alpaca.json"], &["there is no `tokenizer.json` beside it"]);
    write_images(&lab, "photos", 8, 2);
    let photo = fs::read(lab.path("photos/ants/0.png")).unwrap();
    lab.write("plain/a.png", &photo);
    refuse(3, &["plain"], &["holds images, but no class folders", "`<folder>/<class>/<image>`"]);
    lab.write("sets/photos/a.png", &photo);
    lab.write("sets/tables/train.csv", "a,b\n1,2\n");
    refuse(3, &["sets"], &["others without: `tables`", "give the folder of one data set"]);
    lab.write("series.tsf", "@relation x\n@data\n1:2:3\n");
    lab.write("two/a.csv", "a,b\n1,2\n");
    lab.write("two/b.csv", "a,b\n1,2\n");
    refuse(3, &["two"], &["holds several files: `a.csv`, `b.csv`", "give one of them"]);
    refuse(2, &["notes.txt", "x.toml", "--target", "a"], &["`--target` is for tables"]);
    refuse(3, &["series.tsf"], &["is a `.tsf` file, which is not read", "csv"]);
    lab.write("semi.csv", "a;y\n1;2\n3;4\n");
    refuse(3, &["semi.csv"], &["separated by `;`?"]);
    lab.write("headless.csv", "1,2\n3,4\n");
    refuse(3, &["headless.csv"], &["has no header line", "name the columns"]);
    for name in ["nowhere", "empty", "noise", "part", "void", "takes", "table", "alpaca"] {
        assert!(!Path::new(&lab.path(&format!("{name}.toml"))).exists(), "{name}");
    }
}

/// A file of the project's own tests.
fn golden(name: &str) -> Vec<u8> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    fs::read(tests.join(name)).unwrap()
}

#[test]
fn manifests_of_speech_are_found_by_their_lines_and_names() {
    let lab = Lab::new();
    lab.write("speech/a.flac", golden("audio/stereo.flac"));
    let line = |i: usize, label: Option<&str>| {
        let mut line = json!({"audio_filepath": "a.flac", "offset": i, "duration": 0.3});
        line["offset"] = json!(i as f64 / 100.0);
        if let Some(label) = label {
            line["label"] = json!(label);
        }
        format!("{line}\n")
    };
    let labelled =
        |n: usize| (0..n).map(|i| line(i, Some(["yes", "no"][i % 2]))).collect::<String>();
    lab.write("speech/train_manifest.json", labelled(20));
    let text = written(&lab, "speech", "speech.toml").replace("\n# ", " ");
    assert!(text.contains("val_fraction = 0.2") && text.contains("\"fastconformer\""), "{text}");
    assert!(text.contains("speech in 2 classes: 16 samples to train on, 4 to val"), "{text}");
    lab.write("speech/dev_manifest.json", labelled(6));
    lab.write("speech/noise_manifest.json", line(0, None));
    let text = written(&lab, "speech/train_manifest.json", "parts.toml");
    for part in ["train", "noise"] {
        let key = format!("{part}_manifest = \"speech/{part}_manifest.json\"");
        assert!(text.contains(&key), "{text}");
    }
    assert!(text.contains("val_manifest = \"speech/dev_manifest.json\""), "{text}");
    lab.write("sounds.jsonl", (0..20).map(|i| line(i, None)).collect::<String>());
    fs::rename(lab.path("sounds.jsonl"), lab.path("speech/sounds.jsonl")).unwrap();
    let text = written(&lab, "speech/sounds.jsonl", "sounds.toml");
    assert!(text.contains("speech without classes") && text.contains("\"nest\""), "{text}");
}

#[test]
fn recordings_without_a_part_to_validate_on_get_one() {
    let lab = Lab::new();
    for (word, take) in [("yes", 1), ("yes", 2), ("no", 1), ("no", 2), ("no", 3)] {
        lab.write(&format!("words/{word}/{take}.flac"), golden("audio/stereo.flac"));
    }
    let text = written(&lab, "words", "words.toml").replace("\n# ", " ");
    assert!(text.contains("train_dir = \"words\"\nval_fraction = 0.2"), "{text}");
    assert!(text.contains("speech in 2 classes"), "{text}");
}

#[test]
fn conversations_and_instructions_are_learnt_from_scratch_or_by_adapters_of_what_lies_there() {
    let lab = Lab::new();
    lab.write("chat/tokenizer.json", golden("chat/tokenizer.json"));
    let say = |role: &str| json!({"role": role, "content": "ab"});
    let chat = json!({"messages": [say("user"), say("assistant")]}).to_string();
    lab.write("chat/chats.jsonl", vec![chat; 30].join("\n"));
    let text = written(&lab, "chat/chats.jsonl", "chats.toml").replace("\n# ", " ");
    for word in ["chat_template = \"chatml\"", "name = \"gpt\"", "conversations: 27 samples"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let entry = json!({"instruction": "ab", "input": "", "output": "ba"});
    lab.write("chat/alpaca.json", json!(vec![entry; 30]).to_string());
    fs::remove_file(lab.path("chat/chats.jsonl")).unwrap();
    let text = written(&lab, "chat", "alpaca.toml");
    assert!(text.contains("name = \"instructions\"\nfile = \"chat/alpaca.json\""), "{text}");
    let line = json!({"instruction": "ab", "output": "ba"}).to_string();
    lab.write("chat/dolly.jsonl", vec![line; 30].join("\n"));
    let text = written(&lab, "chat/dolly.jsonl", "dolly.toml");
    assert!(text.contains("name = \"instructions\"\nfile = \"chat/dolly.jsonl\""), "{text}");
    fs::remove_file(lab.path("chat/dolly.jsonl")).unwrap();
    write_llama(&lab, "chat");
    let text = written(&lab, "chat", "adapters.toml");
    for word in [
        "pretrained = \"chat/model.safetensors\"",
        "[model.lora]",
        "targets = [\"q_proj\", \"v_proj\"] # more layers: k_proj, o_proj, gate_proj",
        "warmup = \"3 %\"",
    ] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

/// Weights of a small Llama, as the hub has them.
fn write_llama(lab: &Lab, folder: &str) {
    lab.write("llama.toml", LLAMA);
    lab.run_to(0, &["llama.toml"]);
    let run =
        crate::harness::lab::children(&lab.path("checkpoints/llama")).remove(0).join("latest");
    let weights = format!("{folder}/model.safetensors");
    lab.run_to(0, &["checkpoint", "export", run.to_str().unwrap(), &weights]);
    let config = json!({"model_type": "llama", "vocab_size": 263, "hidden_size": 8,
        "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": false});
    lab.write(&format!("{folder}/config.json"), config.to_string());
}

const LLAMA: &str = r#"schema = 1
[model]
name = "llama"
d_model = 8
d_ff = 8
n_layers = 1
n_heads = 2
[data]
name = "instructions"
file = "chat/alpaca.json"
tokenizer = "chat/tokenizer.json"
seq_len = 16
num_workers = 0
[train]
steps = 1
batch_size = 2
[optimizer]
name = "adamw"
lr = 1e-3
[distributed]
devices = 1
threads_per_rank = 1
"#;

#[test]
fn arrays_of_tokens_have_the_vocabulary_of_their_largest() {
    let lab = Lab::new();
    let npy = |n: u16| {
        let header = format!("{{'descr': '<u2', 'fortran_order': False, 'shape': ({n},), }}");
        let header = format!("{header:<117}\n");
        let tokens = (0..n).flat_map(|token| (token % 100).to_le_bytes());
        let start = [b"\x93NUMPY\x01\x00".as_slice(), &118u16.to_le_bytes()].concat();
        [start, header.into_bytes(), tokens.collect()].concat()
    };
    lab.write("ids/train.npy", npy(2000));
    lab.write("ids/val.npy", npy(500));
    let text = written(&lab, "ids", "ids.toml").replace("\n# ", " ");
    assert!(text.contains("train_file = \"ids/train.npy\""), "{text}");
    assert!(text.contains("vocab_size = 128") && text.contains("the largest is 99"), "{text}");
}

#[test]
fn policies_see_the_cameras_of_their_data() {
    let lab = Lab::new();
    let steps = 60;
    let numbers = |n: usize| Tensor::zeros((steps, n), DType::F32, &Device::Cpu).unwrap();
    let ends = Tensor::new(&[20u32, 40, 60], &Device::Cpu).unwrap().to_dtype(DType::I64).unwrap();
    let images = Tensor::zeros((steps, 24, 24, 3), DType::U8, &Device::Cpu).unwrap();
    let arrays =
        [("obs", numbers(2)), ("actions", numbers(2)), ("episode_ends", ends), ("front", images)];
    Tensor::write_npz(&arrays, lab.write("runs.npz", "")).unwrap();
    let text = written(&lab, "runs.npz", "runs.toml").replace("\n# ", " ");
    for word in ["cameras = [\"front\"]", "images of 24x24 pixels by a camera", "resnet8"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    lab.write("pusht/meta/info.json", "{\"features\": {}}");
    lab.write("pusht/data/chunk-000/file-000.parquet", golden("trajectories/long.parquet"));
    let text = written(&lab, "pusht", "states.toml");
    assert!(text.contains("name = \"diffusion_policy\"") && !text.contains("cameras"), "{text}");
    let camera = "pusht/images/observation.images.top";
    for (episode, frame) in (0..4).flat_map(|episode| (0..24).map(move |frame| (episode, frame))) {
        let path = lab.write(&format!("{camera}/episode_{episode:06}/frame_{frame:06}.png"), "");
        RgbImage::from_pixel(96, 96, Rgb([frame, 0, 9])).save(path).unwrap();
    }
    let text = written(&lab, "pusht", "pusht.toml");
    assert!(text.contains("cameras = [\"observation.images.top\"]"), "{text}");
    assert!(text.contains("vision_backbone = \"resnet18\""), "{text}");
}

#[test]
fn a_table_separated_by_tabs_is_one() {
    let lab = Lab::new();
    let row = |i: usize| format!("{i}\t{}\t{}\n", i % 7, 2.5 * (i % 11) as f64);
    let rows: String = (0..60).map(row).collect();
    lab.write("t.tsv", "id\trooms\tprice\n".to_owned() + &rows);
    let text = written(&lab, "t.tsv", "t.toml");
    for words in ["train_file = \"t.tsv\"", "target = \"price\"", "# no features"] {
        assert!(text.contains(words), "{words}: {text}");
    }
}
