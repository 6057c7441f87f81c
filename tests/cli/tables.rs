//! A table of words, dates and empty cells with two targets, from the file to the weights.

use std::fmt::Write;
use std::fs;

use crate::harness::lab::Lab;

const TABLE: &str = r#"
[model]
name = "mlp"
hidden = [8]
embedding_dim = 3
[data]
name = "csv"
train_file = "train.csv"
val_file = "val.csv"
target = ["price", "rooms"]
standardize_target = true
limit = 50
num_workers = 0
[data.features]
categorical = "auto"
dates = ["sold"]
missing = "mean"
missing_indicator = true
[train]
epochs = 4
global_batch_size = 16
batch_size = 2
[loss]
name = "mse"
[optimizer]
name = "adam"
lr = 0.02
[distributed]
shards = 4
threads_per_rank = 1
[checkpoint]
monitor = "val/rmse_unscaled"
[logging]
sinks = ["jsonl", "csv"]
"#;

/// `n` rows, some of which lack an area, a city or a date.
fn rows(n: usize, cities: [&str; 3]) -> String {
    (0..n).fold("area,city,sold,price,rooms\n".to_owned(), |mut rows, i| {
        let area = if i % 7 == 3 { String::new() } else { (30 + 5 * (i % 11)).to_string() };
        let sold = if i % 13 == 5 { "NA".to_owned() } else { format!("2024-{:02}-17", i % 12 + 1) };
        let (city, price) = (cities[i % 3], 100 * (i % 11) + 40 * (i % 3));
        let _ = writeln!(rows, "{area},{city},{sold},{price},{}", 1 + i % 5);
        rows
    })
}

/// A folder with both tables, whose validation rows have a city of their own.
pub(crate) fn lab() -> Lab {
    let lab = Lab::with(TABLE);
    lab.write("train.csv", rows(70, ["Bern", "Rome", ""]));
    lab.write("val.csv", rows(21, ["Bern", "Oslo", "Rome"]));
    lab
}

/// The bytes as a file of zstd that holds them as they are.
fn stored(bytes: &[u8]) -> Vec<u8> {
    assert!(bytes.len() < 128 << 10, "one block");
    let header = ((bytes.len() as u32) << 3 | 1).to_le_bytes();
    [&[0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x58], &header[..3], bytes].concat()
}

#[test]
fn a_table_that_is_packed_by_zstd_trains_and_predicts_as_one_that_is_not() {
    let lab = lab();
    // The metrics of the last evaluation, and predictions of the validation rows.
    let results = |files: &[&str], rows: &str| {
        lab.run_to(0, &[&["small.toml", "distributed.devices=1"], files].concat());
        let last = lab.events().into_iter().rfind(|event| event["event"] == "evaluated").unwrap();
        let predicted = lab.run_to(0, &["predict", "small", rows]).stdout;
        for folder in ["logs", "checkpoints"] {
            fs::remove_dir_all(lab.path(folder)).unwrap();
        }
        let numbers = |line: &str| line.split_once(',').unwrap().1.to_owned();
        (last["metrics"].clone(), predicted.lines().map(numbers).collect::<Vec<_>>())
    };
    let plain = results(&[], "val.csv");
    for name in ["train.csv", "val.csv"] {
        let packed = stored(&fs::read(lab.path(name)).unwrap());
        lab.write(&format!("{name}.zst"), packed);
        fs::remove_file(lab.path(name)).unwrap();
    }
    let files = ["data.train_file=train.csv.zst", "data.val_file=val.csv.zst"];
    assert_eq!(results(&files, "val.csv.zst"), plain);

    // `init` knows it by its name without the ending.
    lab.run_to(0, &["init", "train.csv.zst"]);
    lab.run_to(0, &["plan", "train.toml"]);
    let whole = fs::read(lab.path("train.csv.zst")).unwrap();
    lab.write("train.csv.zst", &whole[..whole.len() - 100]);
    lab.run_to(3, &[&["plan", "small.toml"], &files[..]].concat())
        .says(&["`train.csv.zst`", "unexpected end of file"]);
}

#[test]
fn a_run_keeps_what_it_found_out_about_its_table() {
    let two = lab();
    two.run_to(0, &["small.toml", "distributed.devices=2"]);
    let last = two.events().into_iter().rfind(|event| event["event"] == "evaluated").unwrap();
    assert!(last["metrics"]["val/rmse_unscaled"].is_number(), "{last}");
    let warned = two.events().into_iter().filter(|event| event["event"] == "warned");
    let warned: String = warned.map(|event| event["message"].to_string()).collect();
    assert!(warned.contains("7 of 21 validation rows have a `city`"), "{warned}");

    // Evaluations use it.
    let said = two.run_to(0, &["eval"]).stdout;
    for words in ["val/mae_unscaled", "val: target", "price", "rooms"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    two.write("train.csv", rows(70, ["Oslo", "Lima", "Kyiv"]));
    assert_eq!(two.run_to(0, &["eval"]).stdout, said);
    let refused = two.run_to(3, &["resume", "train.epochs=6"]).stderr;
    assert!(refused.contains("the data changed"), "{refused}");
}

#[test]
fn the_plan_tells_what_became_of_each_column_and_what_does_not_fit() {
    let lab = lab();
    let page = lab.run_to(0, &["plan", "small.toml"]).stdout;
    for words in ["`area`: number, ", "`city`: 3 categories (Bern, Rome, empty)"] {
        assert!(page.contains(words), "{words}: {page}");
    }
    let refused = |code, changes: &[&str], words: &str| {
        let page = lab.run_to(code, &[&["plan", "small.toml"], changes].concat()).stderr;
        let flowing = page.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flowing.contains(words), "{words}: {page}");
    };
    refused(2, &["loss.name=cross_entropy"], "needs one class for each sample");
    refused(
        3,
        &["data.features.categorical=[]"],
        "if the column holds words, set `data.features.categorical",
    );
    refused(
        3,
        &["~data.features.missing", "~data.features.missing_indicator"],
        "line 5: `area` is",
    );
    refused(2, &["data.target=[price,price]"], "names `price` twice");
    for (change, words) in [
        ("data.target=prize", "`data.target`: `train.csv` has no column `prize`"),
        ("data.target=[price,room]", "`data.target[1]`: `train.csv` has no column `room`"),
        ("data.ignore=[are]", "`data.ignore[0]`: `train.csv` has no column `are`"),
        ("data.group=ctiy", "`data.group`: `train.csv` has no column `ctiy`"),
        ("data.features.categorical=[cty]", "`data.features.categorical[0]`: `train.csv`"),
        ("data.features.dates=solld", "`data.features.dates`: `train.csv` has no column"),
    ] {
        // A group needs something to be held back.
        let change = [change, "data.test_fraction=0.1"];
        refused(2, &change, words);
        refused(2, &change, "did you mean `");
    }
    let page = lab.run_to(2, &["plan", "small.toml", "data.target=prize"]).stderr;
    assert!(page.contains("data.target=prize") && page.contains("^^^^^"), "{page}");
    refused(2, &["data.features.missing=mode"], "must be `\"mean\"`");
    refused(2, &["data.features.categoricals=[]"], "did you mean `data.features.categorical");
    refused(2, &["checkpoint.monitor=val/rmse_unscaled", "data.standardize_target=false"], "needs");
}

#[test]
fn a_column_that_only_names_rows_is_warned_of() {
    let lab = lab();
    let name = |(i, line): (usize, &str)| match i {
        0 => format!("owner,{line}\n"),
        _ => format!("owner {i},{line}\n"),
    };
    let named = |table: &str| table.lines().enumerate().map(name).collect::<String>();
    lab.write("train.csv", named(&rows(70, ["Bern", "Rome", ""])));
    lab.write("val.csv", named(&rows(21, ["Bern", "Rome", ""])));
    let page = lab.run_to(0, &["plan", "small.toml", "~data.limit"]);
    let words = page.stdout + &page.stderr;
    let flowing = words.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flowing.contains("`owner` has 70 categories in 70 training rows"), "{words}");
    assert!(!flowing.contains("`city` has"), "{words}");
}

#[test]
fn a_table_trains_in_half_precision_nearly_as_in_full() {
    let losses = |precision: &str| -> Vec<f64> {
        let lab = lab();
        lab.run_to(0, &["small.toml", "distributed.devices=2", precision]);
        let events = lab.events().into_iter().filter(|event| event["event"] == "evaluated");
        events.map(|event| event["metrics"]["val/loss"].as_f64().unwrap()).collect()
    };
    let [full, half] = ["train.precision=fp32", "train.precision=bf16"].map(losses);
    assert_ne!(full, half);
    for (full, half) in full.iter().zip(&half) {
        assert!(half.is_finite() && (full - half).abs() < 0.02 * full, "{full}, {half}");
    }
}

/// 60 houses, each with a price of its own.
fn houses() -> String {
    (0..60).fold("area,price\n".to_owned(), |mut rows, i| {
        let _ = writeln!(rows, "{},{}", 30 + i, 1000 + 7 * i);
        rows
    })
}

#[test]
fn a_table_that_cannot_be_used_is_told_what_to_do() {
    let lab = lab();
    lab.write("houses.csv", houses());
    let held = ["data.train_file=houses.csv", "~data.val_file", "data.val_fraction=0.2"];
    let plain = [
        "data.target=price",
        "~model.embedding_dim",
        "~data.features",
        "data.standardize_target=false",
    ];
    let plan = |changes: &[&'static str]| {
        let monitor = ["checkpoint.monitor=val/loss", "~data.limit"];
        [&["plan", "small.toml"], &held[..], &plain[..], &monitor[..], changes].concat()
    };
    lab.run_to(2, &plan(&["loss.name=cross_entropy"])).says(&[
        "`loss.name`: `price` has 60 distinct values in the 60 rows of `houses.csv`, so 60 classes",
        "loss.name=cross_entropy",
        "^^^^^",
        "use `loss.name = \"mse\"`",
    ]);
    lab.run_to(0, &plan(&[]));
    lab.write("houses.csv", houses().replace(',', ";"));
    lab.run_to(3, &plan(&[])).says(&["`houses.csv`, line 1", "separated by `;`?"]);
    lab.write("houses.tsv", houses().replace(',', "\t"));
    lab.run_to(0, &plan(&["data.train_file=houses.tsv"]));
}
