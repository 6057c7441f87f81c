//! What W&B's own client makes of a run's folder: `wandb sync`, to a server that answers as W&B's
//! does (`tests/wandb/sync.py`). The format itself is tested beside the sink.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::experiments::{BASE, SLOW};
use crate::harness::lab::{BINARY, Lab, SAVED, children};
use crate::harness::running::spawn;
use crate::skipped::{python, skipped};
use crate::sweeps;

const SINKS: &str = "logging.sinks=[jsonl,csv,{name=wandb,project=animals,entity=zoo}]";

/// The folder that a run has for W&B, and the file in it.
fn offline_run(run: &Path) -> (PathBuf, PathBuf) {
    let folders = children(&run.join("wandb"));
    assert_eq!(folders.len(), 1, "{folders:?}");
    let is_log = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "wandb");
    let file = children(&folders[0]).into_iter().find(is_log).unwrap();
    (folders[0].clone(), file)
}

/// What `wandb sync` with these arguments says, and what the server then has.
fn sync(python: &str, lab: &Lab, arguments: &[&str]) -> (String, BTreeMap<String, Value>) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/wandb/sync.py");
    let mut command = Command::new(python);
    command.arg(script).args(arguments).current_dir(lab.path(""));
    let output = command.output().unwrap();
    let failed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{failed}");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let runs = found["runs"].as_object().unwrap().clone();
    (found["said"].as_str().unwrap().to_owned(), runs.into_iter().collect())
}

/// The numbers of `metrics.csv` by step and name, without speeds, which are rounded there.
fn rows(path: &Path) -> BTreeMap<u64, BTreeMap<String, f64>> {
    let mut reader = csv::Reader::from_path(path).unwrap();
    let header = reader.headers().unwrap().clone();
    let mut rows = BTreeMap::<u64, BTreeMap<String, f64>>::new();
    for row in reader.records() {
        let row = row.unwrap();
        let cells = header.iter().zip(&row).skip(1).filter(|(_, cell)| !cell.is_empty());
        let cells = cells.filter(|(name, _)| *name != "samples_per_second");
        let numbers = cells.map(|(name, cell)| (name.to_owned(), cell.parse().unwrap()));
        rows.entry(row[0].parse().unwrap()).or_default().extend(numbers);
    }
    rows
}

/// The same of the rows on the server, whose steps must go up.
fn rows_of(run: &Value) -> BTreeMap<u64, BTreeMap<String, f64>> {
    let rows = run["rows"].as_array().unwrap();
    let step = |row: &Value| row["_step"].as_u64().unwrap();
    assert!(rows.is_sorted_by(|one, next| step(one) < step(next)), "{rows:?}");
    let number = |value: &Value| {
        value.as_f64().unwrap_or_else(|| value.as_str().and_then(|text| text.parse().ok()).unwrap())
    };
    let numbers = |row: &Value| {
        let names = row.as_object().unwrap().iter();
        let own = names.filter(|(name, _)| !name.starts_with('_') && *name != "samples_per_second");
        own.map(|(name, value)| (name.clone(), number(value))).collect()
    };
    rows.iter().map(|row| (step(row), numbers(row))).collect()
}

#[test]
fn wandb_takes_every_number_once_though_a_rank_was_killed() {
    let lab = Lab::with(SLOW);
    let args = ["small.toml", "fault.max_restarts=1", "experiment.tags=[a,b]", SINKS];
    let ended = lab.run_with(&format!("{SAVED}; backward=kill@1,20"), &args);
    ended.has_code(0);
    let (folder, _) = offline_run(&lab.run_folder());
    let own = folder.strip_prefix(lab.path("")).unwrap().to_str().unwrap();
    ended.says(&["wandb sync  ", own]);
    let Some(python) = python("wandb") else { return };
    let (said, runs) = sync(&python, &lab, &[own]);
    assert!(said.contains("Finished syncing") && !said.contains("ERROR"), "{said}");
    let id = lab.run_folder().file_name().unwrap().to_string_lossy().into_owned();
    assert_eq!(runs.keys().collect::<Vec<_>>(), [&id]);
    let run = &runs[&id];
    let keys = ["entity", "project", "displayName", "tags", "jobType"];
    let named = keys.map(|key| run[key].clone());
    let name = format!("small {id}");
    assert_eq!(json!(named), json!(["zoo", "animals", name, ["a", "b"], "train"]));
    assert_eq!((&run["exit_code"], &run["summary"]["_step"]), (&json!(0), &json!(60)));
    assert!(run["summary"]["_wandb"]["runtime"].is_u64(), "{}", run["summary"]);
    assert_eq!(run["config"]["train"]["value"]["batch_size"], json!(4));
    let expected = rows(&lab.run_folder().join("metrics.csv"));
    assert_eq!(expected.len(), 60);
    assert_eq!(rows_of(run), expected);
    let newest = |name: &String| run["summary"][name].as_f64().unwrap();
    let newest = expected[&60].keys().map(|name| (name.clone(), newest(name)));
    assert_eq!(newest.collect::<BTreeMap<_, _>>(), expected[&60]);
    lab.is_clean();
}

#[test]
fn wandb_takes_what_is_whole_of_a_file_that_was_cut_short() {
    let Some(python) = python("wandb") else { return };
    let lab = Lab::new();
    lab.run_to(0, &["small.toml", SINKS]);
    let (_, file) = offline_run(&lab.run_folder());
    let whole = fs::read(&file).unwrap();
    let expected = rows(&lab.run_folder().join("metrics.csv"));
    let mut counts = BTreeSet::new();
    for percent in [60, 85, 99] {
        let cut = format!("cut/offline-run-20261130_030324-{percent}/run-x.wandb");
        let cut = lab.write(&cut, &whole[..whole.len() * percent / 100]);
        let (said, runs) = sync(&python, &lab, &[cut.to_str().unwrap()]);
        assert!(said.contains("Finished") || said.contains("incomplete record"), "{said}");
        let (_, run) = runs.first_key_value().unwrap();
        let found = rows_of(run);
        counts.insert(found.len());
        assert!(found.iter().eq(expected.iter().take(found.len())), "{percent}");
        assert_eq!(run["exit_code"], json!(1), "a run without an end has failed");
    }
    assert!(counts.len() == 3 && !counts.contains(&0), "{counts:?}");
}

#[test]
fn a_run_that_wandb_has_seen_before_goes_on_there_when_it_is_resumed() {
    let Some(python) = python("wandb") else { return };
    let lab = Lab::new();
    lab.run_to(0, &["small.toml", "train.epochs=1", SINKS]);
    let run = lab.run_folder();
    let all = run.join("wandb");
    let all = all.to_str().unwrap();
    let (_, before) = sync(&python, &lab, &[all]);
    let (said, nothing) = sync(&python, &lab, &[all]);
    assert!(nothing.is_empty() && said.contains("Skipped 1 synced run"), "{said}");
    lab.run_to(0, &["resume", "small", "train.epochs=2"]);
    let (said, after) = sync(&python, &lab, &[all]);
    assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>(), "{said}");
    let (_, run_after) = after.first_key_value().unwrap();
    assert_eq!(rows_of(run_after), rows(&run.join("metrics.csv")));
    assert_eq!(rows_of(run_after).len(), 12);
    lab.is_clean();
}

#[test]
fn trials_are_runs_in_the_group_of_their_sweep() {
    let lab = sweeps::lab(&BASE.replace("\"csv\"]", "\"csv\", \"wandb\"]"), sweeps::GRID);
    lab.run_to(0, &["sweep", "tune.toml"]);
    let trials = children(&lab.path("logs/tune")).into_iter().filter(|path| path.is_dir());
    let folders: Vec<PathBuf> = trials.map(|trial| offline_run(&trial).0).collect();
    assert_eq!(folders.len(), 4);
    let Some(python) = python("wandb") else { return };
    let folders: Vec<&str> = folders.iter().map(|folder| folder.to_str().unwrap()).collect();
    let (said, runs) = sync(&python, &lab, &folders);
    assert_eq!(runs.len(), 4, "{said}");
    for (id, run) in &runs {
        assert_eq!(run["groupName"], json!("tune"), "{id}");
        assert!(id.starts_with("tune-trial-000"), "{id}");
        assert_eq!(rows_of(run).len(), 12);
    }
}

#[test]
fn a_full_disk_ends_the_sink_and_not_the_run() {
    let lab = Lab::new();
    lab.run_to(0, &["small.toml", "train.epochs=1", SINKS]);
    let script = "mount -t tmpfs -o size=8k none \"$1\"/wandb || exit 99\nshift\n\
        \"$@\"; code=$?\ntouch mounted\nexit $code";
    let run = lab.run_folder();
    let args = ["-Urm", "sh", "-c", script, "sh", run.to_str().unwrap(), BINARY, "resume", "small"];
    let command = lab.command("unshare", &[&args[..], &["train.epochs=3"]].concat());
    let is_there = Command::new("unshare").arg("--version").output().is_ok();
    let ended = is_there.then(|| spawn(command).wait());
    let Some(ended) = ended.filter(|ended| ended.code != 99 && lab.path("mounted").exists()) else {
        skipped("no mounts of its own (`unshare -Urm`)");
        return;
    };
    ended.has_code(0);
    ended.says(&["the sink `wandb` failed and gets no more events: cannot", "No space left"]);
    ended.says(&["completed after step 18"]);
    assert_eq!(rows(&run.join("metrics.csv")).len(), 18);
    lab.is_clean();
}
