//! Losses and metrics that only some runs have, from the experiment to the records.

use std::fmt::Write;

use crate::harness::lab::Lab;
use crate::harness::running::flowing;

const TABLE: &str = r#"
[model]
name = "mlp"
hidden = [16]
[data]
name = "csv"
train_file = "rows.csv"
val_file = "rows.csv"
target = "y"
num_workers = 0
[train]
epochs = 3
batch_size = 8
[optimizer]
name = "adam"
lr = 0.02
[distributed]
devices = 2
threads_per_rank = 1
[logging]
sinks = ["jsonl", "csv"]
"#;

/// Rows of one feature with `target` of it.
fn rows(target: impl Fn(u32) -> String) -> String {
    (0..64).fold("x,y\n".to_owned(), |mut rows, row| {
        let _ = writeln!(rows, "{},{}", f64::from(row) / 64.0, target(row));
        rows
    })
}

/// The value of each evaluation.
fn evaluated(lab: &Lab, metric: &str) -> Vec<f64> {
    let events = lab.events().into_iter().filter(|event| event["event"] == "evaluated");
    events.filter_map(|event| event["metrics"][metric].as_f64()).collect()
}

#[test]
fn huber_trains_on_a_table_of_numbers() {
    let lab = Lab::with(&(TABLE.to_owned() + "[loss]\nname = \"huber\"\ndelta = 0.5\n"));
    lab.write("rows.csv", rows(|row| (f64::from(row * row) / 1024.0).to_string()));
    lab.run_to(0, &["small.toml"]);
    let losses = evaluated(&lab, "val/loss");
    assert_eq!((losses.len(), evaluated(&lab, "val/mse").len()), (3, 3));
    assert!(losses[2] < losses[0], "{losses:?}");
    let resolved = std::fs::read_to_string(lab.run_folder().join("resolved.toml")).unwrap();
    assert!(resolved.contains("name = \"huber\"\ndelta = 0.5"), "{resolved}");
}

#[test]
fn the_label_among_the_five_largest_is_measured_where_there_are_six_classes() {
    let watched = "[checkpoint]\nmonitor = \"val/top5_accuracy\"\nmode = \"max\"\n\
                   [expect]\n\"val/top5_accuracy\" = { at_least = 0.5 }\n";
    let lab = Lab::with(&(TABLE.to_owned() + watched));
    lab.write("rows.csv", rows(|row| format!("class{}", row / 10)));
    lab.run_to(0, &["small.toml"]);
    let shares = evaluated(&lab, "val/top5_accuracy");
    let correct = evaluated(&lab, "val/accuracy");
    assert_eq!((shares.len(), correct.len()), (3, 3));
    assert!(shares.iter().zip(&correct).all(|(among, first)| among >= first), "{shares:?}");
    let logs = lab.run_folder();
    let table = std::fs::read_to_string(logs.join("metrics.csv")).unwrap();
    let fields = |line: &str| line.split(',').count();
    let columns: Vec<&str> = table.lines().next().unwrap().split(',').collect();
    assert!(["val/top5_accuracy", "test/top5_accuracy"].iter().all(|it| columns.contains(it)));
    assert!(table.lines().all(|line| fields(line) == fields(table.lines().next().unwrap())));
    let history = std::fs::read_to_string(logs.join("epochs.jsonl")).unwrap();
    assert!(history.contains("val/top5_accuracy"), "{history}");

    lab.write("rows.csv", rows(|row| format!("class{}", row / 16)));
    let refused = lab.run_to(2, &["small.toml"]).stderr;
    assert!(refused.contains("needs at least 6"), "{refused}");
}

#[test]
fn eval_tells_of_classes_and_of_the_samples_that_a_model_is_most_wrong_about() {
    let watched = "[checkpoint]\nmonitor = \"val/f1\"\nmode = \"max\"\n\
                   [validation]\nmetrics = [\"auroc\"]\n\
                   [loss]\nclass_weights = \"balanced\"\n";
    let lab = Lab::with(&(TABLE.to_owned() + watched));
    lab.write("rows.csv", rows(|row| format!("class{}", row / 20)));
    lab.run_to(0, &["small.toml"]);
    assert_eq!((evaluated(&lab, "val/f1").len(), evaluated(&lab, "val/auroc").len()), (3, 3));
    assert!(evaluated(&lab, "val/precision").is_empty());
    let found = lab.run_to(0, &["eval", "--json"]).stdout;
    let found: serde_json::Value = serde_json::from_str(&found).unwrap();
    assert_eq!(
        found["metrics"]["val/f1"].as_f64(),
        evaluated(&lab, "val/f1").into_iter().reduce(f64::max)
    );
    let details = &found["details"][0];
    let samples: Vec<u64> = details["classes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|class| class["samples"].as_u64().unwrap())
        .collect();
    assert_eq!(samples, [20, 20, 20, 4]);
    let confusion: Vec<Vec<u64>> = serde_json::from_value(details["confusion"].clone()).unwrap();
    assert_eq!(confusion.iter().map(|row| row.iter().sum::<u64>()).collect::<Vec<_>>(), samples);
    let losses: Vec<f64> = details["worst"]
        .as_array()
        .unwrap()
        .iter()
        .map(|worst| worst["loss"].as_f64().unwrap())
        .collect();
    assert!(losses.len() == 20 && losses.is_sorted_by(|a, b| a >= b), "{losses:?}");
    let page = lab.run_to(0, &["eval", "--out", "found"]).stdout;
    for name in ["eval.json", "confusion_val.png", "confusion_val.svg"] {
        assert!(lab.path("found").join(name).is_file(), "{name}");
    }
    for words in ["val/precision", "val: class", "val: largest losses", "of rows.csv"] {
        assert!(page.contains(words), "{words}: {page}");
    }
    // Other metrics from here on: the columns stay those of their names.
    lab.run_to(0, &["resume", "train.epochs=4", "validation.metrics=[precision]"]);
    let table = std::fs::read_to_string(lab.run_folder().join("metrics.csv")).unwrap();
    let header: Vec<&str> = table.lines().next().unwrap().split(',').collect();
    let column = |name: &str| header.iter().position(|column| *column == name).unwrap();
    let values = |at: usize| {
        table.lines().skip(1).filter(|line| !line.split(',').nth(at).unwrap().is_empty()).count()
    };
    assert_eq!((values(column("val/f1")), values(column("val/precision"))), (4, 1));
    assert_eq!(values(column("val/auroc")), 3, "what is measured no more stays");
}

#[test]
fn a_metric_that_there_is_not_is_refused_at_its_place() {
    let lab = Lab::with(TABLE);
    lab.write("rows.csv", rows(|row| format!("class{}", row / 20)));
    let refused = |word: &str| lab.run_to(2, &["small.toml", word]).stderr;
    let page = refused("validation.metrics=[auroc, recal]");
    assert!(page.contains("did you mean `recall`?"), "{page}");
    let page = refused("validation.metrics=[rmse]");
    assert!(page.contains("`val/rmse` is a regression metric"), "{page}");
    let page = refused("loss.class_weights=[1, 2]");
    assert!(page.contains("has 2 weights, but the data has 4 classes"), "{page}");
}

const IMAGES: &str = r#"
[model]
name = "mlp"
hidden = [16]
[data]
name = "image_table"
train_file = "images.csv"
val_file = "images.csv"
class_columns = ["red", "blue"]
num_workers = 0
[[data.transforms.train]]
name = "resize"
size = [2, 2]
[[data.transforms.val]]
name = "resize"
size = [2, 2]
[train]
epochs = 6
batch_size = 4
[loss]
name = "bce_with_logits"
pos_weight = "balanced"
[optimizer]
name = "adam"
lr = 0.05
[checkpoint]
monitor = "val/average_precision"
mode = "max"
[distributed]
devices = 2
threads_per_rank = 1
"#;

/// A folder with images of 2 x 2 pixels that are red, blue, both or neither, and a table of them.
fn images(experiment: &str) -> Lab {
    let lab = Lab::with(experiment);
    let mut table = "image,red,blue,x,y\n".to_owned();
    for number in 0..32u8 {
        let [red, blue] = [number % 2, u8::from(number % 3 == 0)];
        let pixel = [red * 200 + number, 20, blue * 200 + number];
        lab.write(&format!("{number}.ppm"), [b"P6 2 2 255 ".as_slice(), &pixel.repeat(4)].concat());
        let _ = writeln!(table, "{number}.ppm,{red},{blue},{},{}", 2 * red, 1 - red);
    }
    lab.write("images.csv", table);
    lab
}

#[test]
fn images_with_several_classes_are_learnt_from_a_table() {
    let lab = images(IMAGES);
    lab.run_to(0, &["small.toml"]);
    let precision = evaluated(&lab, "val/average_precision");
    assert!(precision.len() == 6 && precision[5] > 0.9, "{precision:?}");
    assert_eq!(evaluated(&lab, "val/exact_match").len(), 6);
    let found = lab.run_to(0, &["eval", "--json"]).stdout;
    let found: serde_json::Value = serde_json::from_str(&found).unwrap();
    assert!(found["metrics"]["val/f1_micro"].as_f64().is_some_and(|f1| f1 > 0.5), "{found}");
    assert_eq!(found["details"][0]["classes"][1]["samples"], 11);
    let worst = found["details"][0]["worst"][0]["sample"].as_str().unwrap();
    assert!(worst.contains(".ppm"), "{worst}");
    for (word, expected) in [
        ("loss.name=cross_entropy", "but these may have several"),
        ("model.num_classes=3", "is 3, but a sample has 2 targets"),
        ("data.class_columns=[red, green]", "has no column `green`"),
        ("data.class_columns=[red, x]", "`x` is `2`, which is neither 0 nor 1"),
        ("checkpoint.monitor=val/accuracy", "these may have several"),
    ] {
        let code = if expected.contains("neither 0 nor 1") { 3 } else { 2 };
        let page = lab.run_to(code, &["small.toml", word]);
        assert!(flowing(&page.stderr).contains(expected), "{word}: {}", page.stderr);
    }
}

#[test]
fn several_numbers_are_predicted_from_an_image() {
    let numbers = IMAGES
        .replace("class_columns = [\"red\", \"blue\"]", "target_columns = [\"x\", \"y\"]")
        .replace("name = \"bce_with_logits\"\npos_weight = \"balanced\"", "name = \"smooth_l1\"")
        .replace("val/average_precision", "val/r2");
    let lab = images(&numbers);
    lab.run_to(0, &["small.toml"]);
    let r2 = evaluated(&lab, "val/r2");
    assert!(r2.len() == 6 && r2[5] > r2[0], "{r2:?}");
    assert_eq!(evaluated(&lab, "val/mse").len(), 6);
}

#[test]
fn images_with_one_class_each_are_learnt_from_a_table_and_predicted() {
    let one = IMAGES
        .replace("class_columns = [\"red\", \"blue\"]", "class_column = \"red\"")
        .replace(
            "name = \"bce_with_logits\"\npos_weight = \"balanced\"",
            "name = \"cross_entropy\"",
        )
        .replace("val/average_precision", "val/f1_binary");
    let lab = images(&one);
    lab.run_to(0, &["small.toml"]);
    let found = evaluated(&lab, "val/f1_binary");
    assert!(found.len() == 6 && found[5] > 0.6, "{found:?}");
    let page = lab.run_to(0, &["eval"]).stdout;
    let head = page.lines().find(|line| line.starts_with("val: true \\ predicted")).unwrap();
    assert_eq!(head.split_whitespace().collect::<Vec<_>>()[4..], ["0", "1"], "{page}");
    let rows = lab.run_to(0, &["predict", "0.ppm", "1.ppm"]).stdout;
    assert!(rows.starts_with("path,class,p_0,p_1,error\n"), "{rows}");
}
