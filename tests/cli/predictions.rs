//! Predictions of every kind of data: the numbers are those of `ddprun eval`, the rows the same on
//! any number of ranks, and a command that was stopped goes on.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::experiments::BASE;
use crate::harness::lab::{Lab, children};
use crate::harness::running::{Running, spawn};
use crate::machines::end;

/// Rows of a .jsonl file.
fn rows(lab: &Lab, file: &str) -> Vec<Value> {
    let text = fs::read_to_string(lab.path(file)).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// What `eval` measures of the newest run.
fn metrics(lab: &Lab) -> Value {
    let found = lab.run_to(0, &["eval", "--json", "--part", "val"]).stdout;
    serde_json::from_str::<Value>(&found).unwrap()["metrics"].clone()
}

fn number(row: &Value, key: &str) -> f64 {
    row[key].as_f64().unwrap_or_else(|| panic!("{key} of {row}"))
}

/// A trained run on generated images, which keeps averages, and the folder of those to validate on.
fn images() -> (Lab, PathBuf) {
    let lab = Lab::new();
    lab.run_to(0, &["small.toml", "train.epochs=1", "ema.decay=0.5"]);
    let folder = lab.generated().join("val");
    (lab, folder)
}

#[test]
fn images_have_the_classes_that_an_evaluation_finds_on_any_number_of_ranks() {
    let (lab, folder) = images();
    let folder = folder.to_str().unwrap();
    lab.run_to(0, &["predict", "small", folder, "--out", "one.jsonl"]);
    let found = rows(&lab, "one.jsonl");
    assert_eq!(found.len(), 15);
    let is_right = |row: &&Value| {
        let path = PathBuf::from(row["path"].as_str().unwrap());
        path.parent().unwrap().file_name().unwrap().to_str() == row["class"].as_str()
    };
    let right = found.iter().filter(is_right).count();
    assert_eq!(right as f64 / 15.0, metrics(&lab)["val/accuracy"].as_f64().unwrap());
    // The mean of -ln p is the loss.
    let loss: f64 = found
        .iter()
        .map(|row| {
            let path = PathBuf::from(row["path"].as_str().unwrap());
            let class = path.parent().unwrap().file_name().unwrap().to_str().unwrap();
            -number(row, &format!("p_{class}")).ln()
        })
        .sum();
    let expected = metrics(&lab)["val/loss"].as_f64().unwrap();
    assert!((loss / 15.0 - expected).abs() < 1e-5, "{loss} {expected}");
    let one = fs::read(lab.path("one.jsonl")).unwrap();
    for ranks in ["2", "3"] {
        let args = ["predict", folder, "--nproc-per-node", ranks, "-o", "more.jsonl"];
        lab.run_to(0, &[&args[..], &["--overwrite"]].concat());
        assert_eq!(fs::read(lab.path("more.jsonl")).unwrap(), one, "{ranks} ranks");
    }
    let checkpoint = lab.checkpoints().join("best");
    let csv = lab.run_to(0, &["predict", checkpoint.to_str().unwrap(), folder, "--top", "2"]);
    let mut lines = csv.stdout.lines();
    let head = "path,class,probability,class_2,probability_2,error";
    assert_eq!((lines.next(), lines.count()), (Some(head), 15));
    lab.is_clean();
}

#[test]
fn an_image_that_cannot_be_read_keeps_its_row_and_none_that_can_fails_the_command() {
    let (lab, folder) = images();
    let good = children(&children(&folder)[0])[0].clone();
    lab.write("in/a.png", b"no image");
    fs::copy(good, lab.path("in/b.png")).unwrap();
    lab.write("in/c.GIF", "");
    let ended = lab.run_to(0, &["predict", "in", "--out", "preds.jsonl"]);
    ended.says(&["warning: `in`: files that are not read: 1 .gif; only images (.jpg .jpeg"]);
    ended.says(&["1 of 2 rows has an error", "in/a.png: cannot decode", "wrote `preds.jsonl`"]);
    let found = rows(&lab, "preds.jsonl");
    assert_eq!((&found[0]["class"], &found[1]["error"]), (&Value::Null, &Value::Null));
    assert!(found[0]["error"].as_str().unwrap().contains("cannot decode"));
    lab.run_to(3, &["predict", "small", "in/a.png"]);
    lab.run_to(2, &["predict", "in", "--out", "preds.jsonl"])
        .says(&["`preds.jsonl` exists already", "--overwrite"]);
    lab.run_to(2, &["predict", "in", "--out", "preds.txt"]).says(&[".parquet"]);
    lab.run_to(2, &["predict", "absent"]).says(&["no file, folder, run or checkpoint `absent`"]);
    lab.run_to(2, &["predict", "small"]).says(&["nothing to predict"]);
    lab.run_to(0, &["predict", "in", "--out", "preds.parquet"]);
    assert!(fs::read(lab.path("preds.parquet")).unwrap().starts_with(b"PAR1"));
    lab.is_clean();
}

#[test]
fn neither_an_input_nor_anybody_elses_files_are_replaced_by_predictions() {
    let lab = crate::recipes::recipe(RECIPE);
    let rows = "a,b,y\n1,2,0\n2,1,1\n".to_owned() + &"1,2,0\n2,1,1\n".repeat(11);
    lab.write("numbers.csv", &rows);
    lab.run_to(0, &["small.toml", "distributed.devices=1", "train.epochs=1"]);
    std::os::unix::fs::symlink("numbers.csv", lab.path("link.csv")).unwrap();
    fs::hard_link(lab.path("numbers.csv"), lab.path("hard.csv")).unwrap();
    for out in ["numbers.csv", "link.csv", "hard.csv"] {
        let refused = lab.run_to(2, &["predict", "numbers.csv", "--out", out, "--overwrite"]);
        refused.says(&[&format!("`{out}` is one of the inputs"), "do: choose another file"]);
    }
    assert_eq!(fs::read_to_string(lab.path("numbers.csv")).unwrap(), rows);

    for foreign in
        ["p.csv.parts/thesis.tex", "p.csv.parts/part-000000.json/x", "p.csv.parts/job.json"]
    {
        let theirs = lab.write(foreign, "mine");
        let refused = lab.run_to(2, &["predict", "numbers.csv", "--out", "p.csv", "--overwrite"]);
        refused.says(&["p.csv.parts/", "is none of the parts", "do: move it elsewhere"]);
        assert_eq!(fs::read_to_string(&theirs).unwrap(), "mine");
        fs::remove_dir_all(lab.path("p.csv.parts")).unwrap();
    }
    lab.write("p.csv.parts", "mine");
    lab.run_to(2, &["predict", "numbers.csv", "--out", "p.csv"]).says(&["is none of the parts"]);
    fs::remove_file(lab.path("p.csv.parts")).unwrap();

    // Parts without a job, as a start leaves them that was killed while it cleared up, are stale.
    lab.write("p.csv.parts/part-000000.json", "[]");
    lab.write("p.csv.parts/rank-0.lock", "");
    lab.run_to(0, &["predict", "numbers.csv", "--out", "p.csv"]);
    lab.run_to(0, &["predict", "numbers.csv", "--out", "q.csv"]);
    assert_eq!(fs::read(lab.path("p.csv")).unwrap(), fs::read(lab.path("q.csv")).unwrap());
    let inside = lab.checkpoints().join("best/p.csv");
    let refused = lab.run_to(2, &["predict", "numbers.csv", "--out", inside.to_str().unwrap()]);
    refused.says(&["would lie in a checkpoint"]);
    assert!(!lab.path("p.csv.parts").exists());
    lab.is_clean();
}

/// The rest of a recipe of a table.
const RECIPE: &str = "\n[model]\nname = \"mlp\"\nhidden = [4]\n\n[data]\nname = \"csv\"\n\
    train_file = \"numbers.csv\"\nval_file = \"numbers.csv\"\ntarget = \"y\"\nnum_workers = 0\n\n\
    [loss]\nname = \"mse\"\n\n[optimizer]\nname = \"sgd\"\nlr = 0.01\n";

#[test]
fn a_word_that_is_both_a_run_and_a_folder_is_the_run_where_inputs_follow() {
    let (lab, folder) = images();
    let good = fs::read(&children(&children(&folder)[0])[0]).unwrap();
    lab.write("small/a.png", &good);
    lab.write("small/test/b.png", &good);
    let rows = |args: &[&str], words: &[&str]| {
        let ended = lab.run_to(0, &[&["predict"][..], args].concat());
        ended.says(words);
        ended.stdout.lines().count() - 1
    };
    let run = "`small` is the run; for the folder of that name: `./small`";
    assert_eq!(rows(&["small", "small/test"], &[run]), 1);
    let input = "`small` is the folder; for the run of that name: `run:small`, then inputs";
    assert_eq!(rows(&["small"], &[input]), 2);
    assert_eq!(rows(&["run:small", "small/test"], &[]), 1);
    assert_eq!(rows(&["./small"], &[]), 2);
    lab.run_to(2, &["predict", "small.toml"])
        .says(&["`small.toml` is not data", "name a run of that experiment"]);
    lab.run_to(0, &["eval", "small"]);
    lab.is_clean();
}

#[test]
fn what_a_stopped_command_has_done_is_kept() {
    let (lab, folder) = images();
    let files: Vec<PathBuf> = children(&folder).iter().flat_map(|class| children(class)).collect();
    for at in 0..4200 {
        fs::create_dir_all(lab.path("in")).unwrap();
        fs::hard_link(&files[at % files.len()], lab.path(&format!("in/{at:05}.png"))).unwrap();
    }
    let args = ["predict", "small", "in", "--batch-size", "64", "--out", "all.csv"];
    lab.run_to(0, &args);
    let expected = fs::read(lab.path("all.csv")).unwrap();
    fs::remove_file(lab.path("all.csv")).unwrap();
    let mut running = lab.start(&args);
    let first = lab.path("all.csv.parts/part-000000.json");
    crate::harness::running::until("a part", || running.is_over() || first.is_file());
    if !running.is_over() {
        let pid = crate::harness::running::pid_of(running.pid());
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }
    running.wait();
    if !lab.path("all.csv").is_file() {
        let other = ["predict", "small", "in", "--top", "1", "--out", "all.csv"];
        lab.run_to(2, &other).says(&["holds parts of other predictions", "--overwrite"]);
        lab.run_to(0, &args).says(&["continuing: 4096 of 4200 inputs are done"]);
    }
    assert_eq!(fs::read(lab.path("all.csv")).unwrap(), expected);
    assert!(!lab.path("all.csv.parts").exists());
    lab.is_clean();
}

const TABLE: &str = r#"
[model]
name = "mlp"
hidden = [8]
[data]
name = "csv"
train_file = "train.csv"
val_file = "val.csv"
target = "price"
standardize_target = true
num_workers = 0
[data.features]
categorical = ["city"]
[train]
epochs = 3
batch_size = 4
[loss]
name = "mse"
[optimizer]
name = "adam"
lr = 0.02
[distributed]
devices = 1
[logging]
sinks = ["jsonl"]
"#;

fn table(n: usize) -> String {
    (0..n).fold("area,city,price\n".to_owned(), |mut rows, i| {
        let (area, city) = (30 + 5 * (i % 11), ["Bern", "Rome"][i % 2]);
        let _ = writeln!(rows, "{area},{city},{}", 1000 + 100 * (i % 11) + 40 * (i % 2));
        rows
    })
}

#[test]
fn a_table_is_predicted_in_its_own_unit_and_a_bad_row_keeps_its_place() {
    let lab = Lab::with(TABLE);
    lab.write("train.csv", table(60));
    lab.write("val.csv", table(13));
    lab.run_to(0, &["small.toml"]);
    lab.run_to(0, &["predict", "val.csv", "-o", "preds.jsonl"]);
    let errors = rows(&lab, "preds.jsonl").into_iter().enumerate().map(|(i, row)| {
        assert_eq!(row["row"], i + 1);
        (number(&row, "price") - (1000 + 100 * (i % 11) + 40 * (i % 2)) as f64).abs()
    });
    let mae = errors.sum::<f64>() / 13.0;
    let expected = metrics(&lab)["val/mae_unscaled"].as_f64().unwrap();
    assert!((mae - expected).abs() < 1e-3 * expected, "{mae} {expected}");
    // Other columns, in another order; without the target, and with a cell that is no number.
    lab.write("new.csv", "id,city,area\n7,Rome,40\n8,Bern,big\n9,Oslo,40\n");
    lab.run_to(0, &["predict", "new.csv", "-o", "new.jsonl"])
        .says(&["1 of 3 rows has an error", "new.csv, row 2: `area` is `big`"]);
    let found = rows(&lab, "new.jsonl");
    assert!(found[1]["price"].is_null() && number(&found[2], "price") > 0.0);
    lab.write("other.csv", "id,place\n7,Rome\n");
    lab.run_to(3, &["predict", "other.csv"])
        .says(&["lacks the columns `area`, `city`", "it has `id`, `place`"]);
    lab.run_to(2, &["predict", "new.csv", "--top", "1"]).says(&["`--top` is for classes"]);
}

/// A trained table, and one of 10,000 rows, which are three parts.
fn large_table() -> Lab {
    let lab = Lab::with(&TABLE.replace("epochs = 3", "epochs = 1"));
    lab.write("train.csv", table(60));
    lab.write("val.csv", table(13));
    lab.run_to(0, &["small.toml"]);
    lab.write("large.csv", table(10_000));
    lab
}

/// Such a rank of torchrun, of two.
fn launched(lab: &Lab, rank: &str, out: &str) -> Running {
    let mut command = lab.ddprun(&["predict", "large.csv", "-o", out]);
    command.envs([("RANK", rank), ("LOCAL_RANK", rank)]);
    command.envs([("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "2")]);
    command.envs([("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29500")]);
    spawn(command)
}

#[test]
fn ranks_of_a_launcher_share_the_work_and_one_that_is_gone_leaves_it_to_the_others() {
    let lab = large_table();
    for form in ["csv", "jsonl", "parquet"] {
        let one = format!("one.{form}");
        lab.run_to(0, &["predict", "large.csv", "-o", &one]);
        let one = fs::read(lab.path(&one)).unwrap();
        let out = format!("two.{form}");
        let ended = end((0..2).map(|rank| launched(&lab, &rank.to_string(), &out)).collect());
        assert_eq!((ended[0].code, ended[1].code), (0, 0), "{ended:?}");
        let said = ended.iter().map(|ended| ended.stderr.as_str()).collect::<String>();
        assert_eq!(said.matches("wrote `two").count(), 1, "{said}");
        assert_eq!(fs::read(lab.path(&out)).unwrap(), one, "{form}");
        if form == "csv" {
            let printed = lab.run_to(0, &["predict", "large.csv", "--nproc-per-node", "2"]);
            assert!(printed.stdout.as_bytes() == one, "what is printed is the file");
        }
    }
    // Rank 0 alone: rank 1 never comes.
    launched(&lab, "0", "three.csv").wait().has_code(0);
    let mut all = vec![launched(&lab, "0", "four.csv"), launched(&lab, "1", "four.csv")];
    let held = lab.path("four.csv.parts/rank-1.lock");
    crate::harness::running::until("a share", || held.is_file() || all[0].is_over());
    if !all[1].is_over() {
        all[1].signal(Signal::KILL);
    }
    assert_eq!(end(all)[0].code, 0);
    let one = fs::read(lab.path("one.csv")).unwrap();
    assert!(fs::read(lab.path("three.csv")).unwrap() == one);
    assert!(fs::read(lab.path("four.csv")).unwrap() == one);
    // A rank that comes when all is done has nothing to do; rank 0 does not replace the file.
    launched(&lab, "1", "four.csv").wait().has_code(0);
    let ended = launched(&lab, "0", "four.csv").wait();
    ended.has_code(2);
    ended.says(&["`four.csv` exists already"]);
    lab.is_clean();
}

#[test]
fn what_a_launcher_cannot_share_is_refused() {
    let lab = large_table();
    let rank = |args: &[&str]| {
        let mut command = lab.ddprun(&[&["predict", "val.csv"], args].concat());
        command.envs([("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")]);
        spawn(command).wait()
    };
    let ended = rank(&[]);
    ended.has_code(2);
    ended.says(&["its rows have no common file", "--out FILE"]);
    let ended = rank(&["--out", "x.csv", "--nproc-per-node", "2"]);
    ended.has_code(2);
    ended.says(&["`--nproc-per-node` asks for more"]);
}

#[test]
fn a_forecast_follows_the_last_row_in_the_units_of_the_table() {
    let series = |n: usize| {
        (0..n).fold("date,a,b\n".to_owned(), |mut text, i| {
            let (a, b) = (100 + 10 * (i % 4), 5000 - 1000 * (i % 4));
            let _ = writeln!(text, "2024-01-{:02} {:02}:00:00,{a},{b}", i / 24 + 1, i % 24);
            text
        })
    };
    let lab = Lab::with(
        r#"
[model]
name = "dlinear"
[data]
name = "csv_forecast"
file = "series.csv"
seq_len = 8
pred_len = 4
num_workers = 0
[train]
epochs = 12
batch_size = 16
[loss]
name = "mse"
[optimizer]
name = "adam"
lr = 0.02
[distributed]
devices = 1
[logging]
sinks = ["jsonl"]
"#,
    );
    lab.write("series.csv", series(300));
    lab.run_to(0, &["small.toml"]);
    // The run kept what it needs of its table.
    fs::remove_file(lab.path("series.csv")).unwrap();
    lab.write("new.csv", series(50));
    lab.write("short.csv", series(7));
    let ended = lab.run_to(0, &["predict", "new.csv", "short.csv", "-o", "preds.jsonl"]);
    ended.says(&["short.csv: it has 7 rows, but a forecast needs the last 8"]);
    let found = rows(&lab, "preds.jsonl");
    assert_eq!(found.len(), 5);
    for (step, row) in found[..4].iter().enumerate() {
        let i = 50 + step;
        let date = format!("2024-01-{:02} {:02}:00:00", i / 24 + 1, i % 24);
        assert_eq!((&row["step"], &row["date"]), (&(step + 1).into(), &date.into()));
        let expected = [100.0 + 10.0 * (i % 4) as f64, 5000.0 - 1000.0 * (i % 4) as f64];
        assert!((number(row, "a") - expected[0]).abs() < 4.0, "{row} {expected:?}");
        assert!((number(row, "b") - expected[1]).abs() < 400.0, "{row} {expected:?}");
    }
    // Dates that follow no frequency are not continued.
    let irregular = (0..20).map(|i| format!("2024-01-01 {:02}:{:02},{i},{i}\n", i, i * i % 60));
    lab.write("irregular.csv", "timestamp,a,b\n".to_owned() + &irregular.collect::<String>());
    let ended = lab.run_to(0, &["predict", "irregular.csv", "-o", "irregular.jsonl"]);
    ended.says(&["irregular.csv`: its dates are irregular", "`data.frequency`"]);
    assert!(rows(&lab, "irregular.jsonl").iter().all(|row| row["date"].is_null()));
    lab.write("swapped.csv", "date,b,a\n2024-01-01,1,2\n");
    lab.run_to(3, &["predict", "swapped.csv"]).says(&["its series are b, a"]);
    lab.write("undated.csv", "a,b\n1,2\n");
    let refused = lab.run_to(3, &["predict", "undated.csv"]);
    refused.says(&["it has no dates", "do: put the column of dates first"]);
    let gapped: String = series(50)
        .lines()
        .enumerate()
        .filter(|(line, _)| *line != 48)
        .fold(String::new(), |text, (_, line)| text + line + "\n");
    lab.write("gapped.csv", gapped);
    let ended = lab.run_to(0, &["predict", "gapped.csv", "-o", "gapped.jsonl"]);
    ended.says(&[
        "gapped.csv`: the last 8 rows, which the forecast is made from, are incomplete: 1 gap",
    ]);
}

#[test]
fn a_text_has_the_loss_that_an_evaluation_finds() {
    let lab = Lab::with(
        r#"
[model]
name = "gpt"
n_layers = 1
n_heads = 1
d_model = 16
[data]
name = "tokens"
file = "text.txt"
seq_len = 16
num_workers = 0
[train]
steps = 5
batch_size = 4
[validation]
batch_size = 1
[optimizer]
lr = 1e-2
[distributed]
devices = 1
[logging]
sinks = ["jsonl"]
"#,
    );
    let text = "to be or not to be, ".repeat(40);
    lab.write("text.txt", &text);
    lab.run_to(0, &["small.toml"]);
    // The last tenth validates: 80 characters, of which 4 windows of 16 have a next one.
    lab.write("docs/a.txt", &text[720..785]);
    lab.write("docs/b.txt", "t");
    lab.write("docs/c.jsonl", "{\"text\": \"to be\"}\n{\"text\": \"to BE\"}\n{}\n");
    lab.run_to(0, &["predict", "docs", "-o", "preds.jsonl"]);
    let found = rows(&lab, "preds.jsonl");
    let expected = metrics(&lab);
    assert_eq!(found[0]["tokens"], 64);
    assert_eq!(found[0]["loss"], expected["val/loss"]);
    assert!((number(&found[0], "perplexity") - number(&expected, "val/perplexity")).abs() < 1e-4);
    let errors: BTreeMap<usize, &str> = found
        .iter()
        .enumerate()
        .filter_map(|(at, row)| Some((at, row["error"].as_str()?)))
        .collect();
    assert_eq!(errors.keys().copied().collect::<Vec<_>>(), [1, 3, 4]);
    assert!(errors[&1].contains("fewer than two tokens") && errors[&3].contains("`B` is unknown"));
    assert_eq!((&found[2]["row"], &found[2]["tokens"]), (&1.into(), &4.into()));
}

#[test]
fn a_policy_and_an_older_form_of_inputs_are_refused_in_words() {
    let lab = Lab::with(&BASE.replace("epochs = 2", "epochs = 1"));
    lab.run_to(0, &["small.toml"]);
    lab.write("table.csv", "a,b\n1,2\n");
    lab.write("empty/x.txt", "");
    lab.run_to(3, &["predict", "empty"]).says(&["`empty`", "contains no images"]);
    lab.run_to(3, &["predict", "table.csv"]).says(&["table.csv: cannot decode"]);
}
