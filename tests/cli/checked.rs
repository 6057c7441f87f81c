//! `ddprun check`: files alone, as pre-commit and CI have them.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::docs::{project, read};
use crate::harness::experiments::BASE;
use crate::harness::lab::{BINARY, Lab, children};
use crate::harness::running::{Ended, spawn};
use crate::skipped;

const SWEEP: &str = "schema = 1\nbase = \"small.toml\"\n[sweep]\nmethod = \"grid\"\n\
    [sweep.parameters.\"optimizer.lr\"]\nvalues = [0.1, 0.01]\n";

/// Checks these files, which are wrong, and leaves nothing behind.
fn refuses(lab: &Lab, files: &[&str]) -> Ended {
    let before = children(&lab.path(""));
    let ended = lab.run_to(2, &[&["check"], files].concat());
    assert_eq!(children(&lab.path("")), before);
    assert!(!ended.stderr.contains("nothing was started"), "{}", ended.stderr);
    ended
}

#[test]
fn the_files_of_the_project_are_right_without_any_data() {
    let lab = Lab::new();
    let mut files = vec!["small.toml".to_owned(), "ddprun.toml".to_owned()];
    for path in children(&project("experiments")) {
        if path.extension().is_some_and(|end| end == "toml") {
            let name = format!("experiments/{}", path.file_name().unwrap().to_str().unwrap());
            lab.write(&name, read(&name));
            files.push(name);
        }
    }
    lab.write("ddprun.toml", "[cluster.lab]\nkind = \"slurm\"\n[cluster.here]\nkind = \"local\"\n");
    let words: Vec<&str> = ["check"].into_iter().chain(files.iter().map(String::as_str)).collect();
    let mut command = lab.ddprun(&words);
    // The same on every machine: the environment of whoever commits is not that of a run.
    command.env("DDPRUN_TRAIN__EPOCHS", "0");
    let ended = spawn(command).wait();
    ended.has_code(0);
    assert_eq!(ended.stdout, format!("{} files checked, no problems\n", files.len()));
    assert_eq!(ended.stderr, "");
    assert!(!lab.path("logs").exists() && !lab.path("data").exists());
    lab.is_clean();
}

#[test]
fn every_problem_of_every_file_is_shown_and_the_last_line_names_the_files() {
    let lab = Lab::new();
    lab.write("keys.toml", BASE.replace("lr = 1e-3", "lrr = 1e-3").replace("\"mlp\"", "\"mpl\""));
    lab.write("syntax.toml", BASE.replace("lr = 1e-3", "lr = = 1e-3"));
    lab.write("range.toml", BASE.replace("epochs = 2", "epochs = 0"));
    lab.write("extends.toml", format!("extends = \"absent.toml\"\n{BASE}"));
    lab.write("fallback.toml", format!("fallback = \"absent.toml\"\n{BASE}"));
    lab.write("sweep.toml", SWEEP.replace("0.01]", "\"a\"]"));
    lab.write("base.toml", SWEEP.replace("small.toml", "absent.toml"));
    let clusters = "[cluster.lab]\nkind = \"slrm\"\n[cluster.other]\nkind = \"slurm\"\nnodes = 0\n";
    lab.write("ddprun.toml", clusters);
    let model = BASE.replace("\"mlp\"", "\"dlinear\"").replace("hidden = [16]", "");
    lab.write("model.toml", model);
    let files = [
        "small.toml",
        "keys.toml",
        "syntax.toml",
        "range.toml",
        "extends.toml",
        "fallback.toml",
        "sweep.toml",
        "base.toml",
        "ddprun.toml",
        "model.toml",
        "absent.toml",
    ];
    let ended = refuses(&lab, &files);
    for words in [
        "`optimizer.lrr`: ",
        "did you mean `lr`?",
        "keys.toml:",
        "^^^",
        "`model.name`: ",
        "did you mean `mlp`?",
        "syntax.toml:27:",
        "`train.epochs`: ",
        "range.toml:",
        "`extends`: `absent.toml` cannot be read",
        "extends.toml:1:11",
        "`fallback`: `absent.toml` does not exist",
        "fallback.toml:1:12",
        "`optimizer.lr`: ",
        "sweep.toml:6:",
        "`base`: `absent.toml` cannot be read",
        "base.toml:2:",
        "`cluster.lab.kind`: ",
        "did you mean `slurm`?",
        "`cluster.other.nodes`: ",
        "`model.name`: `dlinear` takes series in time, but the data is images",
        "model.toml:",
        "`absent.toml` cannot be read",
    ] {
        assert!(ended.stderr.contains(words), "{words}:\n{}", ended.stderr);
    }
    let line = format!("13 problems in 10 of 11 files: {}\n", files[1..].join(", "));
    assert_eq!(ended.stdout, line, "{}", ended.stderr);
}

#[test]
fn data_and_weights_need_not_be_there() {
    let lab = Lab::new();
    let text = "schema = 1\n[model]\nname = \"resnet18\"\npretrained = \"absent.safetensors\"\n\
        [data]\nname = \"image_folder\"\ntrain_dir = \"/data/a\"\nval_dir = \"/data/b\"\n\
        [train]\nepochs = 1\nbatch_size = 4\n[distributed]\ndevices = 64\n";
    lab.write("far.toml", text);
    lab.run_to(0, &["check", "far.toml"]);
    // It is right as it is written; here it cannot run.
    assert_ne!(lab.run(&["plan", "far.toml"]).code, 0);
}

#[test]
fn what_is_missing_is_told_with_its_file() {
    let lab = Lab::new();
    for name in ["a.toml", "b.toml"] {
        lab.write(name, "schema = 1\n[train]\nepochs = 1\n");
    }
    let ended = refuses(&lab, &["a.toml", "b.toml"]);
    for name in ["a.toml", "b.toml"] {
        let page = format!("error: `model.name`: is missing; there is no default\n--> {name}\n");
        assert!(ended.stderr.contains(&page), "{}", ended.stderr);
    }
    let ended = lab.run_to(2, &["check", "a.toml", "--json"]);
    let first: Value = serde_json::from_str(ended.stdout.lines().next().unwrap()).unwrap();
    assert_eq!((&first["file"], &first["line"]), (&"a.toml".into(), &Value::Null));
}

#[test]
fn a_problem_of_a_file_that_several_extend_is_shown_once() {
    let lab = Lab::new();
    lab.write("base.toml", BASE.replace("epochs = 2", "epochs = 0"));
    lab.write("a.toml", "extends = \"base.toml\"\n");
    lab.write("b.toml", "extends = \"base.toml\"\n");
    let ended = refuses(&lab, &["a.toml", "b.toml"]);
    assert_eq!(ended.stderr.matches("base.toml:").count(), 1, "{}", ended.stderr);
    assert_eq!(ended.stdout, "1 problem in 2 of 2 files: a.toml, b.toml\n");
}

#[test]
fn files_of_other_programs_are_told_apart() {
    let lab = Lab::new();
    lab.write("Cargo.toml", "# a package\n[package]\nname = \"x\"\n[dependencies]\n");
    lab.write("rows.csv", "a,y\n1,2\n");
    fs::create_dir(lab.path("experiments")).unwrap();
    let ended = refuses(&lab, &["Cargo.toml", "rows.csv", "experiments", "small.toml"]);
    ended.says(&[
        "`Cargo.toml` has no key of an experiment, a sweep or a file of clusters",
        "Cargo.toml:2:2",
        "pre-commit passes the files that its key `files` matches",
        "`rows.csv` is a file of data, not an experiment file",
        "`ddprun check experiments/*.toml`",
    ]);
    assert_eq!(ended.stdout, "3 problems in 3 of 4 files: Cargo.toml, rows.csv, experiments\n");
    // A slip in its only table is no other program's file.
    lab.write("ddprun.toml", "[clusters.lab]\nkind = \"local\"\n");
    refuses(&lab, &["ddprun.toml"]).says(&["`clusters`", "did you mean `cluster`?"]);
    lab.run_to(2, &["check"]).says(&["<FILE>"]);
}

#[test]
fn each_file_and_each_problem_is_an_object() {
    let lab = Lab::new();
    lab.write("sweep.toml", SWEEP);
    lab.write("wrong.toml", BASE.replace("epochs = 2", "epochs = 0"));
    let ended = lab.run_to(2, &["check", "small.toml", "sweep.toml", "wrong.toml", "--json"]);
    let objects: Vec<Value> =
        ended.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(objects.len(), 4, "{}", ended.stdout);
    assert_eq!(objects[0]["type"], "error");
    assert_eq!(objects[0]["key"], "train.epochs");
    assert_eq!(objects[0]["file"], "wrong.toml");
    let rows = objects[1..].iter().map(|row| {
        assert_eq!(row["type"], "checked");
        (row["file"].as_str().unwrap(), row["kind"].as_str().unwrap(), row["problems"].as_u64())
    });
    let expected = [
        ("small.toml", "experiment", Some(0)),
        ("sweep.toml", "sweep", Some(0)),
        ("wrong.toml", "experiment", Some(1)),
    ];
    assert_eq!(rows.collect::<Vec<_>>(), expected);
}

#[test]
fn a_hundred_files_take_no_time() {
    let lab = Lab::new();
    let names: Vec<String> = (0..100).map(|index| format!("{index}.toml")).collect();
    for name in &names {
        lab.write(name, BASE);
    }
    let words: Vec<&str> = ["check"].into_iter().chain(names.iter().map(String::as_str)).collect();
    let began = std::time::Instant::now();
    lab.run_to(0, &words);
    // 1.2 s without optimisation, on a busy machine: no model is built.
    assert!(began.elapsed().as_secs() < 30, "{:?}", began.elapsed());
}

/// Runs git as a user without settings.
fn git(folder: &Path, words: &[&str]) {
    let mut command = Command::new("git");
    command.args(["-c", "user.name=a", "-c", "user.email=a@b.c"]).args(words).current_dir(folder);
    command.env("GIT_CONFIG_GLOBAL", "/dev/null");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_hook_for_pre_commit_checks_what_is_committed() {
    let Some(python) = skipped::python("pre_commit") else { return };
    let lab = Lab::new();
    let hooks = lab.path("hooks");
    lab.write("hooks/.pre-commit-hooks.yaml", read(".pre-commit-hooks.yaml"));
    git(&hooks, &["init", "-q"]);
    git(&hooks, &["add", "."]);
    git(&hooks, &["commit", "-q", "-m", "a"]);
    let project = lab.path("project");
    lab.write("project/Cargo.toml", "[package]\nname = \"x\"\n");
    lab.write("project/experiments/a.toml", BASE);
    lab.write("project/ddprun.toml", "[cluster.lab]\nkind = \"local\"\n");
    git(&project, &["init", "-q"]);
    git(&project, &["add", "."]);
    let programs = Path::new(BINARY).parent().unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let run = || {
        let mut command = Command::new(&python);
        let hooks = hooks.to_str().unwrap();
        let words = ["-m", "pre_commit", "try-repo", hooks, "ddprun-check", "--all-files", "-v"];
        command.args(words).current_dir(&project);
        command.env("PATH", &path).env("PRE_COMMIT_HOME", lab.path("cache"));
        let output = command.output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&said).into_owned())
    };
    let (is_right, said) = run();
    assert!(is_right && said.contains("2 files checked, no problems"), "{said}");
    lab.write("project/experiments/a.toml", BASE.replace("epochs = 2", "epochs = 0"));
    let (is_right, said) = run();
    assert!(!is_right && said.contains("`train.epochs`"), "{said}");
    assert!(said.contains("1 problem in 1 of 2 files: experiments/a.toml"), "{said}");
}
