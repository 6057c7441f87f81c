//! Generated data: each set is whole or absent, and belongs to the runs that ask for just this
//! one.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Signal, kill_process_group};

use crate::harness::experiments::{BASE, SLOW};
use crate::harness::lab::{Lab, children};
use crate::harness::running::{pid_of, until};

/// History of the only run of this name.
fn history(lab: &Lab, folder: &str) -> String {
    let run = children(&lab.path(folder)).pop().unwrap();
    fs::read_to_string(run.join("training_history.json")).unwrap()
}

/// What a run of this seed learns that has its data for itself.
fn alone(experiment: &str, changes: &[&str]) -> String {
    let lab = Lab::with(experiment);
    lab.run_to(0, &[&["small.toml"], changes].concat());
    history(&lab, "logs/small")
}

/// Contents of all files below a folder.
fn contents(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for path in children(folder) {
        if path.is_dir() {
            found.extend(contents(&path));
        } else {
            found.push((path.clone(), fs::read(&path).unwrap()));
        }
    }
    found.sort();
    found
}

#[test]
fn runs_of_two_seeds_that_name_one_folder_do_not_touch_each_others_images() {
    let expected = alone(SLOW, &[]);
    let lab = Lab::with(SLOW);
    let mut first = lab.start(&["small.toml"]);
    lab.wait_for_step(&mut first, 3);
    let other = ["small.toml", "experiment.seed=12", "experiment.name=other", "train.steps=8"];
    let other = [&other[..], &["~train.epochs", "scheduler.name=constant"]].concat();
    assert!(!first.is_over(), "the first run was too fast");
    lab.run_to(0, &other);
    first.wait().has_code(0);
    assert_eq!(history(&lab, "logs/small"), expected);
    lab.is_clean();
}

#[test]
fn a_sweep_over_the_seed_gives_each_trial_the_data_of_its_seed() {
    let lab = Lab::new();
    let words = ["sweep", "small.toml", "experiment.seed=1,2,3", "sweep.metric=val/loss"];
    let more = ["sweep.concurrent_trials=2", "sweep.devices_per_trial=1", "sweep.name=seeds"];
    lab.run_to(0, &[&words[..], &more].concat());
    for seed in 1..=3 {
        let trial = lab.path(&format!("logs/seeds/trial-{seed:04}/training_history.json"));
        let seed = format!("experiment.seed={seed}");
        let expected = alone(BASE, &[&seed, "distributed.devices=1"]);
        assert_eq!(fs::read_to_string(trial).unwrap(), expected, "{seed}");
    }
    lab.is_clean();
}

#[test]
fn two_processes_that_begin_at_once_and_one_killed_while_it_generates_leave_whole_sets() {
    let images = BASE.replace("train_per_class = 16", "train_per_class = 300");
    let images =
        images.replace("image_size = 16", "image_size = 48").replace("epochs = 2", "steps = 2");
    let expected = Lab::with(&images);
    expected.run_to(0, &["small.toml"]);
    let lab = Lab::with(&images);
    let mut killed = lab.start(&["small.toml"]);
    let half_made = |lab: &Lab| {
        let names = children(&lab.path("data/shapes"));
        names.iter().any(|path| path.to_string_lossy().ends_with(".partial"))
    };
    until("the first images", || killed.is_over() || half_made(&lab));
    kill_process_group(pid_of(killed.pid()), Signal::KILL).unwrap();
    killed.wait();
    let both =
        ["experiment.name=one", "experiment.name=two"].map(|name| lab.start(&["small.toml", name]));
    for run in both {
        run.wait().has_code(0);
    }
    let relative = |lab: &Lab| -> Vec<(PathBuf, Vec<u8>)> {
        let root = lab.generated();
        let named = |(path, bytes): (PathBuf, Vec<u8>)| {
            (path.strip_prefix(&root).unwrap().to_owned(), bytes)
        };
        contents(&root).into_iter().map(named).collect()
    };
    assert!(relative(&lab) == relative(&expected));
    lab.is_clean();
}
