//! Losses and metrics that only some runs have, from the experiment to the records.

use std::fmt::Write;

use crate::lab::Lab;

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
    assert!(table.lines().next().unwrap().ends_with("val/top5_accuracy,test/top5_accuracy"));
    assert!(table.lines().all(|line| fields(line) == fields(table.lines().next().unwrap())));
    let history = std::fs::read_to_string(logs.join("epochs.jsonl")).unwrap();
    assert!(history.contains("val/top5_accuracy"), "{history}");

    lab.write("rows.csv", rows(|row| format!("class{}", row / 16)));
    let refused = lab.run_to(2, &["small.toml"]).stderr;
    assert!(refused.contains("needs at least 6"), "{refused}");
}
