//! Commands that are run when something has happened to a run.

use std::fs;

use rustix::process::{Signal, kill_process, kill_process_group};
use serde_json::Value;

use crate::harness::bits::{bits, undisturbed};
use crate::harness::experiments::{BASE, SLOW};
use crate::harness::lab::Lab;
use crate::harness::running::{pid_of, spawn, until};

/// A lab whose experiment has these lines in `[hooks]`.
fn lab(experiment: &str, hooks: &str) -> Lab {
    Lab::with(&format!("{experiment}\n[hooks]\n{hooks}\n"))
}

fn lines(lab: &Lab, name: &str) -> Vec<String> {
    let text = fs::read_to_string(lab.path(name)).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn a_hook_gets_its_event_and_a_run_its_exit_code() {
    let saved = r#"checkpoint_saved = "cat >> saved.jsonl; echo {step} {run} >> saved.txt; ls {checkpoint}/model.safetensors"
run_ended = "echo ended {code} {name} >> ended.txt; cat >> ended.jsonl"
run_failed = "echo failed >> ended.txt""#;
    let lab = lab(BASE, saved);
    lab.run_to(0, &["small.toml"]);
    let run = lab.run_folder().file_name().unwrap().to_str().unwrap().to_owned();
    let told: Vec<Value> =
        lines(&lab, "saved.jsonl").iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let last = told.last().unwrap();
    assert_eq!((&last["event"], &last["step"]), (&"checkpoint_saved".into(), &12.into()));
    assert_eq!((&last["run"], &last["name"]), (&run.clone().into(), &"small".into()));
    assert_eq!(lines(&lab, "saved.txt").last().unwrap(), &format!("12 {run}"));
    let log = fs::read_to_string(lab.run_folder().join("hooks.log")).unwrap();
    assert!(log.contains("step-00000012/model.safetensors"), "{log}");
    assert_eq!(lines(&lab, "ended.txt"), ["ended 0 small"]);
    let ended: Value = serde_json::from_str(&lines(&lab, "ended.jsonl")[0]).unwrap();
    assert_eq!(ended["code"], 0);
    // Resuming may change them, and a run that is done has nothing to say.
    lab.run_to(0, &["resume", "small", "train.epochs=3", "hooks.run_ended=echo more >> ended.txt"]);
    assert_eq!(lines(&lab, "ended.txt"), ["ended 0 small", "more"]);
}

#[test]
fn the_message_of_a_failure_is_no_part_of_the_command() {
    let lab = lab(BASE, r#"run_failed = "echo \"{message}\" {code} > failed.txt""#);
    let mut command = lab.ddprun(&["small.toml"]);
    command.env("DDPRUN_FP", "memory=oom@1,3");
    let ended = spawn(command).wait();
    ended.has_code(8);
    let said = lines(&lab, "failed.txt").join("\n");
    assert!(said.contains("rank 1") && said.ends_with(" 8"), "{said}");
}

#[test]
fn a_hook_that_fails_or_hangs_is_reported_once_and_changes_nothing() {
    let lab = lab(
        BASE,
        "checkpoint_saved = \"echo no room; exit 3\"\nrun_ended = \"sleep 600\"\ntimeout = \"1s\"",
    );
    let ended = lab.run_to(0, &["small.toml", "checkpoint.every=2 steps"]);
    ended.says(&[
        "warning: `hooks.checkpoint_saved` ended with exit status: 3",
        "hooks.log` has what it printed",
        "`hooks.run_ended` was ended after 1 s (`hooks.timeout`)",
    ]);
    assert_eq!(ended.stderr.matches("hooks.checkpoint_saved").count(), 1, "{}", ended.stderr);
    assert!(fs::read_to_string(lab.run_folder().join("hooks.log")).unwrap().contains("no room"));
    lab.is_clean();
}

#[test]
fn ctrl_c_ends_the_wait_for_a_hook() {
    let lab = lab(BASE, "run_ended = \"touch begun; sleep 600\"");
    let running = lab.start(&["small.toml", "train.epochs=1"]);
    until("the hook", || lab.path("begun").exists());
    kill_process(pid_of(running.pid()), Signal::INT).unwrap();
    let ended = running.wait();
    ended.has_code(0);
    ended.says(&["`hooks.run_ended` was ended by Ctrl-C"]);
    lab.is_clean();
}

#[test]
fn a_run_whose_machine_is_lost_goes_on_from_what_a_hook_has_copied() {
    let copy = "checkpoint_saved = \"mkdir -p away && cp -a logs checkpoints away/\"";
    let lab = lab(SLOW, copy);
    let mut running = lab.start(&["small.toml", "checkpoint.every=5 steps"]);
    lab.wait_for_step(&mut running, 30);
    until("a copy", || lab.path("away/checkpoints/small").exists());
    kill_process_group(pid_of(running.pid()), Signal::KILL).unwrap();
    running.wait().has_code(-9);
    until("the end of all ranks", || lab.processes().is_empty());
    // The copy that was under way when the machine was lost ends by itself here.
    std::thread::sleep(std::time::Duration::from_millis(300));
    for folder in ["logs", "checkpoints"] {
        fs::remove_dir_all(lab.path(folder)).unwrap();
        fs::rename(lab.path("away").join(folder), lab.path(folder)).unwrap();
    }
    lab.run_to(0, &["resume", "small", "~hooks.checkpoint_saved"]);
    bits(&lab).must_be(&undisturbed(&Lab::with(SLOW), &[]));
}

#[test]
fn each_trial_of_a_sweep_tells_its_end() {
    let lab =
        lab(BASE, "trial_ended = \"echo {run} {code} >> trials.txt\"\nrun_ended = \"touch no\"");
    lab.run_to(0, &["sweep", "small.toml", "optimizer.lr=1e-3,1e-2", "train.epochs=1"]);
    let told = lines(&lab, "trials.txt");
    assert!(told.len() == 2 && told.iter().all(|line| line.ends_with(" 0")), "{told:?}");
    assert!(!lab.path("no").exists());
}

#[test]
fn a_placeholder_without_a_value_is_refused_by_name() {
    let lab = lab(BASE, "run_ended = \"echo {chekpoints} {step} ${HOME} {a,b}\"\ntimeout = \"0s\"");
    let ended = lab.run_to(2, &["plan", "small.toml"]);
    ended.says(&[
        "`hooks.run_ended`",
        "there is no `{chekpoints}` here",
        "did you mean `{checkpoints}`?",
        "there is no `{step}` here",
        "`hooks.timeout`",
    ]);
    assert!(!ended.stderr.contains("HOME}` here"), "{}", ended.stderr);
}
