//! The JSON schema of experiments: it takes what ddprun takes, and refuses what is wrong with a single key.
#![expect(clippy::unwrap_used, reason = "a test's helper may stop the test")]

use std::fs;
use std::path::{Path, PathBuf};

use ddprun::config;
use ddprun::kinds::Kinds;
use jsonschema::Validator;
use serde_json::Value;

fn validator() -> Validator {
    let schema = config::json_schema(&Kinds::default().vocabulary());
    jsonschema::validator_for(&schema).unwrap()
}

fn json(text: &str) -> Value {
    serde_json::to_value(toml::from_str::<toml::Table>(text).unwrap()).unwrap()
}

/// The files in `folder` and below that end in `.toml`.
fn files(folder: &str) -> Vec<PathBuf> {
    let mut open = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)];
    let mut found = Vec::new();
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "toml") {
            found.push(path);
        }
    }
    found
}

#[test]
fn every_experiment_of_the_project_fits() {
    let validator = validator();
    let mut n_experiments = 0;
    for path in files("experiments") {
        let text = fs::read_to_string(&path).unwrap();
        if text.lines().any(|line| line == "[sweep]") {
            continue;
        }
        n_experiments += 1;
        let errors: Vec<String> = validator
            .iter_errors(&json(&text))
            .map(|error| format!("{}: {error}", error.instance_path()))
            .collect();
        assert!(errors.is_empty(), "{}: {errors:?}", path.display());
    }
    assert!(n_experiments >= 20, "{n_experiments}");
}

/// A key that is wrong by itself, each with a file that lacks nothing else.
const WRONG: [&str; 14] = [
    "[train]\nepohcs = 3",
    "[train]\nepochs = 0",
    "[train]\nepochs = \"three\"",
    "[train]\nprecision = \"fp8\"",
    "[train]\nconvolutions = \"slow\"",
    "[optimizer]\nlr = -1.0",
    "[optimizer]\nname = \"adma\"",
    "[optimizer]\nmomentum = 1.5",
    "[optimizer]\nname = \"adamw\"\nmomentum = 0.5",
    "[optimizer]\nname = \"adamw\"\nbetas = [0.9]",
    "[optimizer]\nname = \"adamw\"\nbetas = [0.9, 1.0]",
    "[data]\nnum_workers = 1000",
    "[distributed]\ndevices = \"all\"",
    "[banana]\nripe = true",
];

/// Keys that are right.
const RIGHT: [&str; 6] = [
    "[train]\nepochs = 3\nbatch_size = \"auto\"",
    "[train]\nbatch_size = 64\nprecision = \"bf16\"\nconvolutions = \"direct\"",
    "[optimizer]\nlr = 0\nmomentum = 0.9\nnesterov = true",
    "[optimizer]\nname = \"lion\"\nbetas = [0.9, 0.98]",
    "[distributed]\ndevices = [0, 1]\nbucket_cap = \"25MiB\"",
    "[model]\nname = \"graph\"\n[[model.layers]]\nname = \"relu\"",
];

#[test]
fn what_is_wrong_with_a_key_is_refused_as_ddprun_refuses_it() {
    let (validator, vocabulary) = (validator(), Kinds::default().vocabulary());
    // Whether ddprun finds fault with something else than what is missing.
    let is_refused = |text: &str| {
        let whole = config::load_text(Path::new("x.toml"), text, &[], &vocabulary);
        let problems = whole.err().map_or_else(Vec::new, |problems| {
            problems.iter().map(|problem| problem.what().to_owned()).collect()
        });
        problems.iter().any(|what| !what.contains("missing") && !what.contains("nothing says"))
    };
    for text in WRONG {
        assert!(is_refused(text), "ddprun takes {text:?}");
        assert!(!validator.is_valid(&json(text)), "the schema takes {text:?}");
    }
    for text in RIGHT {
        assert!(validator.is_valid(&json(text)), "the schema refuses {text:?}");
    }
}
