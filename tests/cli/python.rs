//! The module `ddprun` of Python.

use std::path::PathBuf;
use std::process::Command;

use crate::docs::{blocks, project, read};
use crate::harness::lab::Lab;
use crate::harness::running::{Ended, spawn};
use crate::skipped::python;

/// A folder with the quickstart, whose runs take a second.
fn lab() -> Lab {
    let lab = Lab::new();
    let quickstart = read("experiments/quickstart.toml");
    let (before, _) = quickstart.split_once("[expect]").unwrap();
    let tiny = [("epochs", "2"), ("train_per_class", "8"), ("val_per_class", "2")];
    let set = |line: &str| match tiny.iter().find(|(key, _)| line.starts_with(&format!("{key} =")))
    {
        Some((key, value)) => format!("{key} = {value}\n"),
        None => format!("{line}\n"),
    };
    lab.write("experiments/quickstart.toml", before.lines().map(set).collect::<String>());
    lab
}

/// Runs a script; the program is the one under test.
fn script(lab: &Lab, python: &str, text: &str) -> Ended {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_ddprun"));
    let path = std::env::var("PATH").unwrap();
    let mut command = Command::new(python);
    command
        .args(["-c", text])
        .current_dir(lab.path(""))
        .env("PYTHONPATH", project("python"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("PATH", format!("{}:{path}", program.parent().unwrap().display()));
    spawn(command).wait()
}

#[test]
fn the_page_about_python_runs() {
    let Some(python) = python("pandas") else { return };
    let lab = lab();
    let page: String =
        blocks(&read("docs/python.md")).into_iter().map(|block| block.text).collect();
    let paint = "import glob, shutil, os, ddprun\n\
                 ddprun.train('experiments/quickstart.toml', {'train.steps': 1})\n\
                 images = sorted(glob.glob('data/*/*/val/*/*.png'))\n\
                 os.mkdir('photos')\n\
                 shutil.copy(images[0], 'a.png')\n\
                 shutil.copy(images[1], 'photos')\n";
    let ended = script(&lab, &python, &format!("{paint}{page}"));
    ended.has_code(0);
    assert!(
        ended.stdout.contains("a.png ") && ended.stdout.contains("photos/"),
        "{}",
        ended.stdout
    );
    assert!(ended.stdout.contains("did you mean `train.epochs`?"), "{}", ended.stdout);
    assert!(lab.path("model.onnx").exists());
}

#[test]
fn an_exception_while_events_are_heard_stops_the_run_with_a_checkpoint() {
    let Some(python) = python("json") else { return };
    let lab = lab();
    let text = "
import ddprun

class Enough(Exception): pass

def stop(event):
    if event['event'] == 'step_done':
        raise Enough

try:
    values = {'train.epochs': 500, 'logging.every': '1 steps'}
    ddprun.train('experiments/quickstart.toml', values, on_event=stop)
except Enough:
    pass
run = ddprun.load('quickstart')
assert run.state == 'stopped' and run.info['epoch'] < 500, run.info
step, events = run.info['step'], []
run.resume({'train.epochs': run.info['epoch'] + 2}, on_event=events.append)
assert run.state == 'finished', run
assert events[0]['resumed_from'] == step > 0, events[0]
";
    script(&lab, &python, text).has_code(0);
    assert!(lab.processes().is_empty());
}

#[test]
fn a_run_that_misses_what_was_expected_of_it_is_in_the_error() {
    let Some(python) = python("json") else { return };
    let lab = lab();
    let text = "
import ddprun

try:
    values = {'expect': {'val/accuracy': {'at_least': 1}}, 'train.epochs': 1}
    ddprun.train('experiments/quickstart.toml', values)
except ddprun.Error as error:
    assert error.code == 9, error.code
    assert error.run.metrics['val/accuracy'] <= 1, error.run.info
else:
    raise SystemExit('no error')
";
    script(&lab, &python, text).has_code(0);
}
