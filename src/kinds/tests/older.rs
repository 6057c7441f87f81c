//! Files that older versions wrote, or were written for: they are read as they were meant.

use std::path::{Path, PathBuf};

use super::vocabulary;
use crate::config::{load, load_text, resolved, sweep};

/// The kept files of a kind, each with the text in it.
fn samples(folder: &str) -> Vec<(PathBuf, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples").join(folder);
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.map(|path| (path.clone(), std::fs::read_to_string(path).unwrap())).collect()
}

#[test]
fn experiments_of_older_versions_are_understood() {
    let (mut n_experiments, mut n_sweeps) = (0, 0);
    for (path, text) in samples("experiments") {
        let problems = if text.contains("[sweep]") {
            n_sweeps += 1;
            sweep::load(&path, &[], &vocabulary()).err()
        } else {
            n_experiments += 1;
            load(&path, &[], &vocabulary()).err()
        };
        if let Some(problems) = problems {
            panic!("{}", problems.page(false, 100));
        }
    }
    assert!(n_experiments >= 13 && n_sweeps >= 2, "{n_experiments} and {n_sweeps}");
}

/// Each stands for the commit in its name, which was the first to write it so.
#[test]
fn what_older_runs_stored_is_the_same_experiment_again() {
    let samples = samples("resolved");
    assert!(samples.len() >= 11, "{}", samples.len());
    for (path, text) in samples {
        let read = |text: &str| match load_text(&path, text, &[], &vocabulary()) {
            Ok(loaded) => loaded.experiment,
            Err(problems) => panic!("{}", problems.page(false, 100)),
        };
        let experiment = read(&text);
        assert_eq!(experiment.optimizer.options["momentum"], 0.9, "{}", path.display());
        assert_eq!(experiment.optimizer.lr, 3e-4, "{}", path.display());
        let again = resolved(&experiment).unwrap();
        assert_eq!(read(&again), experiment, "{}", path.display());
        // What the file says is what is stored: no value was replaced by a default of today.
        let old: toml::Table = toml::from_str(&text).unwrap();
        let new: toml::Table = toml::from_str(&again).unwrap();
        let lost = lost(&old.into(), &new.into(), "");
        assert_eq!(lost, Vec::<String>::new(), "{}", path.display());
    }
}

/// Keys of `old` that `new` has not, or has with another value.
fn lost(old: &toml::Value, new: &toml::Value, name: &str) -> Vec<String> {
    match (old, new) {
        (toml::Value::Table(old), toml::Value::Table(new)) => old
            .iter()
            .flat_map(|(key, value)| {
                let name = format!("{name}.{key}");
                match new.get(key) {
                    Some(other) => lost(value, other, &name),
                    // Empty tables stood there for what is off.
                    None if value.as_table().is_some_and(toml::Table::is_empty) => Vec::new(),
                    None => vec![name],
                }
            })
            .collect(),
        (toml::Value::Array(old), toml::Value::Array(new)) if old.len() == new.len() => {
            let pairs = old.iter().zip(new).enumerate();
            pairs.flat_map(|(at, (old, new))| lost(old, new, &format!("{name}[{at}]"))).collect()
        }
        _ if old == new => Vec::new(),
        _ => vec![format!("{name}: {old} -> {new}")],
    }
}
