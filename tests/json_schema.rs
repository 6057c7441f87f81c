//! The JSON schemas of experiments and sweeps: they take what ddprun takes, and refuse what is
//! wrong with a single key.
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

fn sweep_validator() -> Validator {
    let schema = config::sweep::json_schema(&Kinds::default().vocabulary());
    jsonschema::validator_for(&schema).unwrap()
}

/// What the schema finds wrong.
fn errors(validator: &Validator, text: &str) -> Vec<String> {
    let json = json(text);
    validator
        .iter_errors(&json)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect()
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
fn every_experiment_and_sweep_of_the_project_fits() {
    let (experiments, sweeps) = (validator(), sweep_validator());
    let mut n_fitting = [0, 0];
    for path in files("experiments") {
        let text = fs::read_to_string(&path).unwrap();
        let is_sweep = text.lines().any(|line| line == "[sweep]");
        let errors = errors(if is_sweep { &sweeps } else { &experiments }, &text);
        assert!(errors.is_empty(), "{}: {errors:?}", path.display());
        n_fitting[usize::from(is_sweep)] += 1;
    }
    assert!(n_fitting[0] >= 20 && n_fitting[1] >= 3, "{n_fitting:?}");
}

/// What ddprun finds wrong with an experiment at `path`.
fn problems(path: &Path, text: &str) -> Vec<String> {
    let whole = config::load_text(path, text, &[], &Kinds::default().vocabulary());
    whole.err().map_or_else(Vec::new, |problems| {
        problems.iter().map(|problem| format!("{}: {}", problem.key(), problem.what())).collect()
    })
}

/// Whether ddprun finds fault with something else than with an empty file, which lacks what no
/// schema asks for.
fn is_refused(text: &str) -> bool {
    let [empty, own] = ["", text].map(|text| problems(Path::new("x.toml"), text));
    own.iter().any(|problem| !empty.contains(problem))
}

#[test]
fn the_fuzzers_experiments_are_taken_and_refused_by_both() {
    let validator = validator();
    let mut n_files = 0;
    for path in files("fuzz/corpus/config") {
        let text = fs::read_to_string(&path).unwrap();
        let errors = errors(&validator, &text);
        let mut problems = problems(&path, &text);
        let lacking = self::problems(&path, "");
        problems.retain(|problem| !lacking.contains(problem));
        assert_eq!(
            problems.is_empty(),
            errors.is_empty(),
            "{}: {problems:?}, {errors:?}",
            path.display()
        );
        n_files += 1;
    }
    assert!(n_files >= 9, "{n_files}");
}

/// A key that is wrong by itself, each with a file that lacks nothing else.
const WRONG: [&str; 17] = [
    "[model]\nname = \"resnet18\"\nhidden = [8]",
    "[logging]\nsinks = [\"excel\"]",
    "[logging]\nsinks = [\"csv\", \"csv\"]",
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
const RIGHT: [&str; 7] = [
    "[logging]\nsinks = [\"csv\", \"tensorboard\"]",
    "[train]\nepochs = 3\nbatch_size = \"auto\"",
    "[train]\nbatch_size = 64\nprecision = \"bf16\"\nconvolutions = \"direct\"",
    "[optimizer]\nlr = 0\nmomentum = 0.9\nnesterov = true",
    "[optimizer]\nname = \"lion\"\nbetas = [0.9, 0.98]",
    "[distributed]\ndevices = [0, 1]\nbucket_cap = \"25MiB\"",
    "[model]\nname = \"graph\"\n[[model.layers]]\nname = \"relu\"",
];

#[test]
fn what_is_wrong_with_a_key_is_refused_as_ddprun_refuses_it() {
    let validator = validator();
    for text in WRONG {
        assert!(is_refused(text), "ddprun takes {text:?}");
        assert!(!validator.is_valid(&json(text)), "the schema takes {text:?}");
    }
    for text in RIGHT {
        assert!(validator.is_valid(&json(text)), "the schema refuses {text:?}");
    }
}

/// Rules of experiments that a schema cannot say, by their words in docs/experiments.md: the schema
/// takes what breaks them, and ddprun refuses it.
const RULES: [(&str, &str); 7] = [
    ("keys that require", "[ema]\npower = 0.75"),
    ("or exclude each other", "[optimizer]\nnesterov = true\nmomentum = 0.0"),
    ("unknown metrics", "[early_stopping]\nmonitor = \"val/acuracy\"\npatience = 3"),
    ("empty paths", "[data]\nname = \"mnist\"\ndir = \"\""),
    ("invalid folder names", "[experiment]\nname = \"a/b\""),
    ("and tags", "[experiment]\ntags = [\"two words\"]"),
    ("schedules without an end", "[train]\ntime = \"1h\"\n[scheduler]\nname = \"cosine\""),
];

#[test]
fn rules_between_keys_are_ddpruns_alone_and_listed() {
    let (validator, sweep_validator) = (validator(), sweep_validator());
    let page =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/experiments.md"))
            .unwrap();
    let own = RULES.map(|(rule, text)| (rule, text.to_owned(), is_refused(text), &validator));
    let of_sweeps = SWEEP_RULES.map(|(rule, text)| {
        let text = sweep(text);
        let is_refused = sweep_is_refused(&text);
        (rule, text, is_refused, &sweep_validator)
    });
    for (rule, text, is_refused, validator) in own.into_iter().chain(of_sweeps) {
        assert!(page.contains(rule), "docs/experiments.md does not list {rule:?}");
        assert!(is_refused, "{rule}: ddprun takes {text:?}");
        let errors = errors(validator, &text);
        assert!(errors.is_empty(), "{rule}: the schema refuses {text:?}: {errors:?}");
    }
}

/// A sweep over the quickstart with these keys, and a parameter if they hold none.
fn sweep(keys: &str) -> String {
    let head = format!("schema = 1\nbase = \"experiments/quickstart.toml\"\n[sweep]\n{keys}\n");
    let has_space = ["parameters", "list", "lr_range"].iter().any(|word| keys.contains(word));
    if has_space { head } else { head + "[sweep.parameters]\n\"optimizer.lr\" = [0.1, 0.01]\n" }
}

fn sweep_is_refused(text: &str) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let base = root.join("experiments/quickstart.toml");
    let path = folder.path().join("x.toml");
    let text = text.replace("experiments/quickstart.toml", base.to_str().unwrap());
    ddprun::internals::files::write_atomic(&path, text.as_bytes()).unwrap();
    config::sweep::load(&path, &[], &Kinds::default().vocabulary()).is_err()
}

/// Keys of `[sweep]` that are wrong by themselves.
const WRONG_SWEEPS: [&str; 19] = [
    "methd = \"grid\"",
    "method = \"gird\"",
    "metric = \"train/loss\"",
    "goal = \"more\"",
    "trials = 0",
    "seed = -1",
    "concurrent_trials = \"many\"",
    "devices_per_trial = 2000",
    "keep_pruned_checkpoints = 1",
    "name = \".hidden\"",
    "pruner = \"asah\"",
    "[sweep.pruner]\nmin_resource = \"1 epoch\"",
    "[sweep.pruner]\nname = \"median\"\nreduction_factor = 3",
    "[sweep.pruner]\nname = \"asha\"\nreduction_factor = 1",
    "[sweep.pruner]\nname = \"asha\"\nmin_resource = \"never\"",
    "[sweep.parameters]\n\"optimizer.lrr\" = [0.1]",
    "[sweep.parameters]\n\"logging.dir\" = [\"a\"]",
    "[sweep.parameters.\"optimizer.lr\"]\ndistribution = \"log_uniform\"\nmin = 0.0\nmax = 1.0",
    "[sweep.parameters.\"optimizer.lr\"]\ndistribution = \"uniform\"\nmin = 0.1",
];

/// Keys of `[sweep]` that are right.
const RIGHT_SWEEPS: [&str; 12] = [
    "method = \"random\"\ntrials = 3\npruner = \"median\"",
    "method = \"tpe\"\ntrials = 3\n[sweep.pruner]\nname = \"asha\"\nmin_resource = \"20 steps\"",
    "constraints = \"optimizer.lr < 1\"\nconcurrent_trials = 2",
    "repeats = 3\npatience = 20",
    "[sweep.parameters]\n\"optimizer\" = [{ name = \"sgd\", lr = 0.1 }, { name = \"adamw\" }]",
    "[sweep.parameters]\n\"data.transforms.train[0].size\" = [24, 32]",
    "[sweep.parameters.\"train.global_batch_size\"]\ndistribution = \"int_log_uniform\"\nmin = 8\n\
     max = 64\nwhen = { \"model.name\" = \"resnet8\" }",
    "method = \"lr_range\"\nlr_range = { min = 1e-5, max = 10, steps = 100 }",
    "method = \"list\"\n[[sweep.list]]\noptimizer.lr = 0.1\n[[sweep.list]]\n\"optimizer.lr\" = 1",
    "[sweep.parameters.train.global_batch_size]\nvalues = [64, 128]",
    "[sweep.parameters.\"optimizer.lr\"]\ndistribution = \"q_uniform\"\nmin = 0.1\nmax = 1\nq = 0.1",
    "[sweep.parameters]\n\"optimizer.name\" = [\"sgd\", \"adam\"]\n\
     \"optimizer.lr\" = [{ values = [0.1], when = { \"optimizer.name\" = \"sgd\" } }]",
];

/// Rules of sweeps that a schema cannot say, as [`RULES`].
const SWEEP_RULES: [(&str, &str); 10] = [
    ("keys that its method needs", "method = \"tpe\""),
    ("or does not use", "[[sweep.list]]\n\"optimizer.lr\" = 0.1"),
    (
        "`min` above `max`",
        "[sweep.parameters.\"optimizer.lr\"]\ndistribution = \"uniform\"\nmin = 1.0\nmax = 0.1\n",
    ),
    (
        "`min_resource` above `max_resource`",
        "[sweep.pruner]\nname = \"asha\"\nmin_resource = \"2 epochs\"\nmax_resource = \"1 epoch\"",
    ),
    (
        "infinite grids",
        "[sweep.parameters.\"optimizer.lr\"]\ndistribution = \"uniform\"\nmin = 0.1\nmax = 1",
    ),
    (
        "conditions on unknown parameters",
        "[sweep.parameters.\"optimizer.lr\"]\nvalues = [0.1]\nwhen = { \"optimizer.nam\" = \"sgd\" }",
    ),
    (
        "entries of a key that are active at the same time",
        "[sweep.parameters]\n\"optimizer.lr\" = [{ values = [0.1] }, { values = [0.2] }]",
    ),
    ("syntax errors in constraints", "constraints = [\"optimizer.lr <\"]"),
    ("values that the base refuses", "[sweep.parameters]\n\"train.precision\" = [\"fp8\"]"),
    (
        "learning rates that do not rise",
        "method = \"lr_range\"\nlr_range = { min = 1.0, max = 0.1 }",
    ),
];

#[test]
fn what_is_wrong_with_a_key_of_a_sweep_is_refused_as_ddprun_refuses_it() {
    let validator = sweep_validator();
    for text in WRONG_SWEEPS.map(sweep) {
        assert!(sweep_is_refused(&text), "ddprun takes {text:?}");
        assert!(!validator.is_valid(&json(&text)), "the schema takes {text:?}");
    }
    for text in RIGHT_SWEEPS.map(sweep) {
        assert!(!sweep_is_refused(&text), "ddprun refuses {text:?}");
        let errors = errors(&validator, &text);
        assert!(errors.is_empty(), "the schema refuses {text:?}: {errors:?}");
    }
}
