//! What an export says of its inputs, followed by another program: `examples/preprocess.py` has the
//! files of the export alone, and answers as `ddprun predict` does.

use std::f64::consts::TAU;
use std::process::Command;

use serde_json::Value;

use crate::harness::lab::Lab;
use crate::skipped::python;

/// What every experiment here has.
const REST: &str = r#"
[optimizer]
lr = 1e-2
[distributed]
devices = 1
[logging]
sinks = ["jsonl"]
"#;

/// What Python makes of `file` with the export alone, which is copied to a folder of its own.
fn answers(lab: &Lab, python: &str, file: &str) -> Value {
    lab.run_to(0, &["checkpoint", "export", "small", "out/model.onnx", "--overwrite"]);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/preprocess.py");
    let [model, file] = ["out/model.onnx", file].map(|name| lab.path(name));
    let output = Command::new(python).arg(script).args([model, file]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The rows that `ddprun predict` gives for `file`.
fn predicted(lab: &Lab, file: &str) -> Vec<Value> {
    let out = ["--out", "preds.jsonl", "--overwrite", "--latest"];
    lab.run_to(0, &[&["predict", "run:small", file][..], &out].concat());
    let rows = std::fs::read_to_string(lab.path("preds.jsonl")).unwrap();
    rows.lines().map(|row| serde_json::from_str(row).unwrap()).collect()
}

#[track_caller]
fn near(found: &Value, expected: &Value) {
    let (found, expected) = (found.as_f64().unwrap(), expected.as_f64().unwrap());
    assert!((found - expected).abs() < 2e-4 * expected.abs().max(1.0), "{found}, not {expected}");
}

/// The probabilities of each class of the first row.
#[track_caller]
fn near_classes(found: &Value, row: &Value, classes: &[&str]) {
    for (at, class) in classes.iter().enumerate() {
        near(&found[0][at], &row[format!("p_{class}")]);
    }
}

#[test]
fn images_are_prepared_by_the_description_alone() {
    let Some(python) = python("numpy, onnxruntime, PIL") else { return };
    let step = |part: &str, size: &str| {
        format!(
            "[[data.transforms.{part}]]\nname = \"resize\"\nsize = {size}\ninterpolation = \
             \"bicubic\"\n[[data.transforms.{part}]]\nname = \"center_crop\"\nsize = [15, 17]\n\
             [[data.transforms.{part}]]\nname = \"normalize\"\nmean = [0.4, 0.5, 0.6]\nstd = [0.2, \
             0.3, 0.25]\n"
        )
    };
    let steps = step("train", "22") + &step("val", "22");
    let lab = Lab::with(&format!(
        "[model]\nname = \"simple_cnn\"\n[data]\nname = \"image_folder\"\ntrain_dir = \
         \"photos\"\nval_fraction = 0.25\nexif = \"apply\"\n{steps}[train]\nepochs = 1\nbatch_size \
         = 4\n{REST}"
    ));
    for (class, red) in [("dark", 20), ("light", 200)] {
        for index in 0..6_u32 {
            let pixel = |x: u32, y: u32| {
                image::Rgb([red, (x * 7 + index * 20) as u8, (y * 5 + x * y / 3) as u8])
            };
            let path = lab.write(&format!("photos/{class}/{index}.png"), "");
            image::RgbImage::from_fn(31 + 5 * index, 44, pixel).save(path).unwrap();
        }
    }
    lab.run_to(0, &["small.toml"]);
    for file in ["photos/dark/0.png", "photos/light/3.png"] {
        let row = &predicted(&lab, file)[0];
        near_classes(&answers(&lab, &python, file), row, &["dark", "light"]);
    }
    let processor = lab.path("out/preprocessor_config.json");
    assert!(!processor.exists(), "Hugging Face's processors do not apply EXIF");
}

#[test]
fn a_hugging_face_processor_is_written_where_one_does_the_same() {
    let step = |part: &str| {
        format!(
            "[[data.transforms.{part}]]\nname = \"resize\"\nsize = 20\ninterpolation = \
             \"bicubic\"\n[[data.transforms.{part}]]\nname = \"center_crop\"\nsize = \
             16\n[[data.transforms.{part}]]\nname = \"normalize\"\nmean = [0.4, 0.5, 0.6]\nstd = \
             [0.2, 0.3, 0.25]\n"
        )
    };
    let steps = step("train") + &step("val");
    let lab = Lab::with(&format!(
        "[model]\nname = \"mlp\"\nhidden = [4]\n[data]\nname = \"image_folder\"\ntrain_dir = \
         \"photos\"\nval_dir = \"photos\"\n{steps}[train]\nepochs = 1\nbatch_size = 2\n{REST}"
    ));
    for class in ["dark", "light"] {
        let path = lab.write(&format!("photos/{class}/0.png"), "");
        image::RgbImage::from_pixel(30, 24, image::Rgb([9, 99, 199])).save(path).unwrap();
    }
    lab.run_to(0, &["small.toml"]);
    lab.run_to(0, &["checkpoint", "export", "small", "out/model.safetensors"]);
    let text = std::fs::read_to_string(lab.path("out/preprocessor_config.json")).unwrap();
    let found: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&found["size"]["shortest_edge"], &found["resample"]), (&20.into(), &3.into()));
    assert_eq!((&found["crop_size"]["height"], &found["do_rescale"]), (&16.into(), &true.into()));
    assert_eq!(found["image_std"][2], 0.25);
}

#[test]
fn rows_of_a_table_are_prepared_by_the_description_alone() {
    let Some(python) = python("numpy, onnxruntime") else { return };
    let lab = Lab::with(&format!(
        "[model]\nname = \"mlp\"\nhidden = [8]\n[data]\nname = \"csv\"\ntrain_file = \
         \"t.csv\"\nval_file = \"t.csv\"\ntarget = \"sort\"\n[data.features]\ncategorical = \
         [\"city\"]\nmissing = \"mean\"\nmissing_indicator = true\n[train]\nepochs = 2\nbatch_size = \
         8\n[loss]\nname = \"cross_entropy\"\n{REST}"
    ));
    let cities = ["Bern", "Rome", ""];
    let row = |i: usize| {
        let rooms = if i.is_multiple_of(5) { "NA".to_owned() } else { (i % 7).to_string() };
        format!("{rooms},{},{},{}\n", cities[i % 3], 1.5 * (i % 11) as f64, ["a", "b"][i % 2])
    };
    lab.write("t.csv", "rooms,city,size,sort\n".to_owned() + &(0..40).map(row).collect::<String>());
    lab.run_to(0, &["small.toml"]);
    lab.write("new.csv", "rooms,city,size\n3,Rome,2.5\n,Bern,7\nNA,Oslo,1\n1,,3\n");
    let rows = predicted(&lab, "new.csv");
    let found = answers(&lab, &python, "new.csv");
    for (at, row) in rows.iter().enumerate() {
        near(&found[at][0], &row["p_a"]);
        near(&found[at][1], &row["p_b"]);
    }
    assert_eq!(rows.len(), 4);
}

#[test]
fn a_recording_is_prepared_by_the_description_alone() {
    let Some(python) = python("numpy, onnxruntime") else { return };
    let lab = Lab::with(&format!(
        "[model]\nname = \"graph\"\n[[model.layers]]\nname = \"linear\"\nout_features = \
         8\n[[model.layers]]\nname = \"relu\"\n[[model.layers]]\nname = \"global_avg_pool\"\n[[model.layers]]\nname = \
         \"linear\"\n[data]\nname = \"speech\"\ntrain_dir = \"speech\"\nval_dir = \
         \"speech\"\nn_mels = 16\n[train]\nepochs = 1\nbatch_size = 2\n[loss]\nname = \
         \"cross_entropy\"\n{REST}"
    ));
    let spec = hound::WavSpec {
        channels: 1,
        sample_rate: 8000,
        bits_per_sample: 16,
        sample_format: hound::SampleFormat::Int,
    };
    // Some are shorter than a second, and are repeated.
    for (name, pitch, samples) in
        [("no/a", 220.0, 3000), ("no/b", 250.0, 9000), ("yes/a", 900.0, 8500)]
    {
        let path = lab.write(&format!("speech/{name}.wav"), "");
        let mut file = hound::WavWriter::create(path, spec).unwrap();
        for i in 0..samples {
            let t = f64::from(i) / 8000.0;
            let wave = (TAU * pitch * t).sin() + 0.3 * (TAU * 31.0 * t * t * 40.0).sin();
            file.write_sample((9000.0 * wave) as i16).unwrap();
        }
        file.finalize().unwrap();
    }
    lab.run_to(0, &["small.toml"]);
    for file in ["speech/no/a.wav", "speech/yes/a.wav"] {
        let row = &predicted(&lab, file)[0];
        near_classes(&answers(&lab, &python, file), row, &["no", "yes"]);
    }
}

#[test]
fn a_series_is_prepared_by_the_description_alone() {
    let Some(python) = python("numpy, onnxruntime") else { return };
    let lab = Lab::with(&format!(
        "[model]\nname = \"itransformer\"\n[data]\nname = \"csv_forecast\"\nfile = \
         \"s.csv\"\nseq_len = 12\npred_len = 3\n[train]\nsteps = 3\nbatch_size = 4\n[loss]\nname = \
         \"mse\"\n{REST}"
    ));
    // With dates in a format of their own, and without any.
    for is_dated in [true, false] {
        let row = |hour: usize| {
            let (day, of_day) = (hour / 24 + 1, hour % 24);
            let load = (TAU * hour as f64 / 24.0).sin() * 30.0 + 100.0;
            let date = if is_dated { format!("{day}/2/2024 {of_day}:00,") } else { String::new() };
            format!("{date}{load:.3},{:.3}\n", 0.1 * hour as f64)
        };
        let header = if is_dated { "date,load,rise\n" } else { "load,rise\n" };
        lab.write("s.csv", header.to_owned() + &(0..400).map(row).collect::<String>());
        lab.run_to(0, &["small.toml"]);
        let (rows, found) = (predicted(&lab, "s.csv"), answers(&lab, &python, "s.csv"));
        assert_eq!(rows.len(), 3);
        for (step, row) in rows.iter().enumerate() {
            near(&found[0][step][0], &row["load"]);
            near(&found[0][step][1], &row["rise"]);
        }
    }
}

#[test]
fn numbers_to_predict_are_in_their_unit_by_the_description_alone() {
    let Some(python) = python("numpy, onnxruntime") else { return };
    let features = "categorical = [\"city\"]\ndates = [\"sold\"]\nmissing = \
                    \"median\"\nmissing_indicator = true\ndate_features = [\"year\", \"month\", \
                    \"day\", \"day_of_week\", \"day_of_year\", \"hour\", \"minute\", \
                    \"elapsed_days\"]";
    let lab = Lab::with(&format!(
        "[model]\nname = \"mlp\"\nhidden = [8]\n[data]\nname = \"csv\"\ntrain_file = \
         \"t.csv\"\nval_file = \"t.csv\"\ntarget = [\"price\", \"rent\"]\nstandardize_target = \
         true\nmissing_values = [\"pandas\", -999]\n[data.features]\n{features}\n[train]\nepochs = \
         2\nbatch_size = 8\n[loss]\nname = \"mse\"\n[checkpoint]\nmonitor = \"val/loss\"\n{REST}"
    ));
    let row = |i: usize| {
        let sold =
            if i % 7 == 3 { String::new() } else { format!("{}/3/2024 {}:15", i % 28 + 1, i % 24) };
        let rooms = if i % 5 == 1 { "-999.0".to_owned() } else { i.to_string() };
        let (city, flag) = (["Bern", "Rome", ""][i % 3], ["True", "false"][i % 2]);
        (rooms, city, flag, sold, 1000 + 7 * i, 0.5 * i as f64)
    };
    let csv = |i: usize| {
        let (rooms, city, flag, sold, price, rent) = row(i);
        format!("{rooms},{city},{flag},{sold},{price},{rent}\n")
    };
    let table =
        "rooms,city,flag,sold,price,rent\n".to_owned() + &(0..40).map(csv).collect::<String>();
    lab.write("t.csv", table);
    lab.run_to(0, &["small.toml"]);
    let check = |file: &str| {
        let (rows, found) = (predicted(&lab, file), answers(&lab, &python, file));
        for (at, row) in rows.iter().enumerate() {
            near(&found[at][0], &row["price"]);
            near(&found[at][1], &row["rent"]);
        }
        assert!(rows.len() == 40 && rows[9]["price"].as_f64().unwrap() > 300.0);
    };
    check("t.csv");
    let jsonl = |i: usize| {
        let (rooms, city, flag, sold, price, rent) = row(i);
        format!(
            "{{\"rooms\": {rooms}, \"city\": \"{city}\", \"flag\": {}, \"sold\": \"{sold}\", \
             \"pair\": [{i}, null], \"price\": {price}, \"rent\": {rent}}}\n",
            flag.to_lowercase()
        )
        .replace("null", if i.is_multiple_of(4) { "null" } else { "2.5" })
    };
    lab.write("t.jsonl", (0..40).map(jsonl).collect::<String>());
    let text = std::fs::read_to_string(lab.path("small.toml")).unwrap();
    let inputs = "inputs = [\"rooms\", \"city\", \"flag\", \"sold\", \"pair\"]";
    let text = text.replace("\"csv\"", "\"jsonl\"").replace("t.csv", "t.jsonl");
    lab.write(
        "small.toml",
        text.replace("standardize_target", &format!("{inputs}\nstandardize_target")),
    );
    lab.run_to(0, &["small.toml"]);
    check("t.jsonl");
}

#[test]
fn a_text_is_prepared_by_the_description_alone() {
    let Some(python) = python("numpy, onnxruntime") else { return };
    let lab = Lab::with(&format!(
        "[model]\nname = \"gpt\"\nn_layers = 1\nn_heads = 1\nd_model = 16\n[data]\nname = \
         \"tokens\"\nfile = \"text.txt\"\nseq_len = 16\n[train]\nsteps = 5\nbatch_size = 4\n{REST}"
    ));
    lab.write("text.txt", "to be or not to be, ".repeat(40));
    lab.run_to(0, &["small.toml"]);
    lab.write("new.txt", "not to be, to be");
    let loss = predicted(&lab, "new.txt")[0]["loss"].clone();
    let found = answers(&lab, &python, "new.txt");
    let text = std::fs::read_to_string(lab.path("out/preprocessing.json")).unwrap();
    let told: Value = serde_json::from_str(&text).unwrap();
    let classes: Vec<&str> =
        told["classes"].as_array().unwrap().iter().map(|class| class.as_str().unwrap()).collect();
    let tokens: Vec<usize> = "not to be, to be"
        .chars()
        .map(|c| classes.iter().position(|class| *class == c.to_string()).unwrap())
        .collect();
    let terms = tokens.iter().skip(1).enumerate();
    let sum: f64 = terms.map(|(at, &next)| -found[0][at][next].as_f64().unwrap().ln()).sum();
    near(&(sum / (tokens.len() - 1) as f64).into(), &loss);
}
