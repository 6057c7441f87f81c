//! A run and its checkpoints by every word for them, in every command; and runs that start from
//! the weights of another: in sweeps, under a launcher, after a kill.

use std::fs;
use std::path::Path;

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::experiments::{BASE, SLOW};
use crate::harness::lab::{BINARY, Lab, children};
use crate::harness::running::{Ended, Running, spawn};
use crate::machines::end;
use crate::sweeps::journal;

/// What `eval` measures of what `word` names, from a folder of the lab.
fn metrics_in(lab: &Lab, folder: &Path, word: &str) -> Value {
    let mut command = lab.command(BINARY, &["eval", word, "--json", "--part", "val"]);
    command.current_dir(folder);
    let ended = spawn(command).wait();
    assert_eq!(ended.code, 0, "{word}: {}", ended.stderr);
    serde_json::from_str::<Value>(&ended.stdout).unwrap()["metrics"].clone()
}

fn metrics(lab: &Lab, word: &str) -> Value {
    metrics_in(lab, &lab.path(""), word)
}

/// The only run below a folder of logs or checkpoints.
fn only(folder: &Path) -> String {
    children(folder).remove(0).to_str().unwrap().to_owned()
}

fn in_elsewhere(lab: &Lab, args: &[&str]) -> Ended {
    let mut command = lab.command(BINARY, args);
    command.current_dir(lab.path("elsewhere"));
    let ended = spawn(command).wait();
    assert_eq!(ended.code, 0, "{args:?}: {}", ended.stderr);
    ended
}

#[test]
fn a_run_and_a_checkpoint_are_what_they_are_by_every_word_and_from_everywhere() {
    for (logs, checkpoints) in [("logs", "checkpoints"), ("out/records", "far/off/weights")] {
        let lab = Lab::new();
        let [to, from] = [format!("logging.dir={logs}"), format!("checkpoint.dir={checkpoints}")];
        lab.run_to(0, &["small.toml", &to, &from]);
        fs::create_dir(lab.path("elsewhere")).unwrap();
        let [logs, run] =
            [logs, checkpoints].map(|folder| only(&lab.path(&format!("{folder}/small"))));
        let step = only(Path::new(&run));
        let step = if step.contains("step-") { step } else { format!("{run}/best") };
        let mut words = vec![
            logs.clone(),
            run.clone(),
            step.clone(),
            format!("{logs}/best"),
            format!("{run}/best"),
        ];
        let expected = metrics(&lab, &words[0]);
        if checkpoints == "checkpoints" {
            let names = ["small", "run:small", "run:small/best", "small/best"];
            words.extend(names.map(str::to_owned));
        }
        let images = lab.generated().join("val");
        let images = images.to_str().unwrap();
        let mut seen = Vec::new();
        for word in &words {
            let is_path = word.starts_with('/');
            let here = if is_path { lab.path("elsewhere") } else { lab.path("") };
            if !word.contains("step-") {
                assert_eq!(metrics_in(&lab, &here, word), expected, "{word}");
            }
            lab.run_to(0, &["predict", word, images, "-o", "p.csv", "--overwrite"]);
            if !word.contains("step-") {
                seen.push(fs::read(lab.path("p.csv")).unwrap());
            }
            lab.run_to(0, &["checkpoint", "export", word, "w.onnx", "--overwrite"]);
            fs::remove_file(lab.path("preprocessing.json")).unwrap();
            let pretrained = format!("model.pretrained={word}");
            if is_path || word.starts_with("run:") {
                lab.run_to(0, &["plan", "small.toml", &pretrained]);
            }
        }
        assert!(seen.windows(2).all(|two| two[0] == two[1]));
        in_elsewhere(&lab, &["checkpoint", "export", &format!("{run}/best"), "x.safetensors"]);
        assert!(lab.path("elsewhere/preprocessing.json").is_file());
        let ended = lab.run_to(7, &["eval", &format!("{logs}/step-00000099")]);
        ended.says(&["no checkpoint `step-00000099` is kept", "do: choose one of step-000000"]);
    }
}

#[test]
fn a_run_that_was_moved_is_found_from_its_checkpoints() {
    let lab = Lab::new();
    lab.run_to(0, &["small.toml"]);
    let expected = metrics(&lab, "small");
    for folder in ["logs", "checkpoints", "data"] {
        fs::create_dir_all(lab.path("moved")).unwrap();
        if lab.path(folder).exists() {
            fs::rename(lab.path(folder), lab.path(&format!("moved/{folder}"))).unwrap();
        }
    }
    let run = only(&lab.path("moved/checkpoints/small"));
    for word in [run.clone(), format!("{run}/best"), only(&lab.path("moved/logs/small"))] {
        assert_eq!(metrics(&lab, &word), expected, "{word}");
    }
    // A checkpoint that stands alone has no run.
    fs::rename(Path::new(&run).join("best").canonicalize().unwrap(), lab.path("alone")).unwrap();
    let ended = lab.run_to(2, &["eval", "alone"]);
    ended.says(&["the run of ", "alone` is not here", "copy its logs beside it"]);
    lab.run_to(0, &["checkpoint", "export", "alone", "w.safetensors"]);
}

/// Such a rank of torchrun, of so many.
fn launched(lab: &Lab, rank: usize, world: &str, args: &[&str]) -> Running {
    let (mut command, rank) = (lab.ddprun(args), rank.to_string());
    command.envs([("RANK", rank.as_str()), ("LOCAL_RANK", &rank)]);
    command.envs([("WORLD_SIZE", world), ("LOCAL_WORLD_SIZE", world)]);
    command.envs([("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29511")]);
    spawn(command)
}

/// The weights of the only run of a name.
fn weights(lab: &Lab, name: &str) -> Vec<u8> {
    let run = only(&lab.path(&format!("checkpoints/{name}")));
    fs::read(Path::new(&run).join("latest/model.safetensors")).unwrap()
}

#[test]
fn a_run_starts_from_another_under_a_launcher_as_with_ranks_of_its_own() {
    let lab = Lab::with(&BASE.replace("epochs = 2", "epochs = 1"));
    lab.run_to(0, &["small.toml", "experiment.name=first"]);
    for world in ["2", "4"] {
        let (own, other) = (format!("own{world}"), format!("other{world}"));
        let name = |name: &str| format!("experiment.name={name}");
        let ranks = format!("distributed.devices={world}");
        let from = "model.pretrained=run:first/best";
        let same = ["train.batch_size=2", "distributed.shards=4"];
        let args = [&["small.toml", from, &ranks][..], &same].concat();
        lab.run_to(0, &[&args[..], &[&name(&own)]].concat());
        let other_name = name(&other);
        let args = [&args[..], &[&other_name]].concat();
        let n: usize = world.parse().unwrap();
        let ended = end((0..n).map(|rank| launched(&lab, rank, world, &args)).collect());
        assert!(ended.iter().all(|ended| ended.code == 0), "{ended:?}");
        assert!(weights(&lab, &own) == weights(&lab, &other), "{world} ranks");
        assert_ne!(weights(&lab, &own), weights(&lab, "first"));
    }
    assert!(weights(&lab, "own2") == weights(&lab, "own4"), "the same bits at 2 and 4 ranks");
    lab.is_clean();
}

#[test]
fn a_killed_run_that_started_from_another_goes_on_to_the_same_bits_without_it() {
    let lab = Lab::with(SLOW);
    lab.run_to(0, &["small.toml", "experiment.name=first"]);
    let args = |name: &str| {
        [
            "small.toml".into(),
            "model.pretrained=run:first".into(),
            format!("experiment.name={name}"),
        ]
    };
    let (whole, killed) = (args("whole"), args("killed"));
    lab.run_to(0, &whole.each_ref().map(String::as_str));
    let running = lab.start(&killed.each_ref().map(String::as_str));
    let checkpoints = lab.path("checkpoints/killed");
    let has_saved = || {
        let runs = fs::read_dir(&checkpoints).into_iter().flatten().flatten();
        runs.into_iter().any(|run| run.path().join("latest").exists())
    };
    crate::harness::running::until("a checkpoint", has_saved);
    running.signal(Signal::KILL);
    running.wait().has_code(-9);
    fs::remove_dir_all(lab.path("checkpoints/first")).unwrap();
    lab.run_to(0, &["resume", "killed"]);
    assert!(weights(&lab, "killed") == weights(&lab, "whole"));
    lab.is_clean();
}

#[test]
fn all_trials_start_from_the_checkpoint_that_the_word_meant_at_first() {
    let base = BASE.replace("epochs = 2", "epochs = 1");
    let lab =
        Lab::with(&base.replace("hidden = [16]", "hidden = [16]\npretrained = \"run:first\""));
    lab.write("first.toml", &base);
    lab.run_to(0, &["first.toml", "experiment.name=first"]);
    let sweep = |trials: &str| {
        let text = format!(
            "schema = 1\nbase = \"small.toml\"\n[sweep]\nmetric = \"val/loss\"\n\
             devices_per_trial = 2\nconcurrent_trials = 1\n[sweep.parameters]\n\
             \"optimizer.lr\" = {trials}\n"
        );
        lab.write("tune.toml", text);
    };
    sweep("[1e-30, 1e-3]");
    // Stopped by its first trial's end, and begun again when the word means another run.
    let running = lab.start(&["sweep", "tune.toml"]);
    let has_ended = || journal(&lab).iter().any(|line| line["record"] == "ended");
    crate::harness::running::until("a trial", has_ended);
    if lab.path("logs/tune").exists() {
        let _ = rustix::process::kill_process(
            crate::harness::running::pid_of(running.pid()),
            Signal::KILL,
        );
    }
    running.wait();
    lab.run_to(0, &["first.toml", "experiment.name=first", "experiment.seed=7"]);
    lab.run_to(0, &["sweep", "tune.toml"]);
    let stored = |trial: &str| -> Value {
        let text = fs::read(lab.path(&format!("logs/tune/{trial}/run.json"))).unwrap();
        serde_json::from_slice::<Value>(&text).unwrap()["plan"]["model"].clone()
    };
    let (one, two) = (stored("trial-0001"), stored("trial-0002"));
    assert_eq!(one["pretrained_checkpoint"], two["pretrained_checkpoint"]);
    assert!(one["pretrained"].as_str().unwrap().contains("checkpoints/first/"), "{one}");
    assert_eq!(one["pretrained"], two["pretrained"]);
    lab.is_clean();
}
