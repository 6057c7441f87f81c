//! Runs that go on: after kills and damage, with other settings, and what is refused.

use std::fs;
use std::path::PathBuf;

use rustix::process::{Signal, kill_process, kill_process_group};
use test_support::processes::is_alive;

use crate::harness::bits::{bits, undisturbed};
use crate::harness::experiments::SLOW;
use crate::harness::lab::{Lab, SAVED, flip_a_bit};
use crate::harness::running::{pid_of, spawn, until};

#[test]
fn a_grace_that_ends_before_the_step_does_costs_the_steps_since_the_last_checkpoint() {
    let lab = Lab::with(SLOW);
    let mut command = lab.ddprun(&["small.toml"]);
    command.env("DDPRUN_FP", format!("{SAVED}; backward=hang@1,20"));
    let mut running = spawn(command);
    lab.wait_for_step_and_save(&mut running, 19);
    running.signal(Signal::TERM);
    until("the request", || running.stderr().contains("stopping at the end of this step"));
    let group = pid_of(running.pid());
    kill_process_group(group, Signal::KILL).unwrap();
    running.wait().has_code(-9);
    lab.wait_for_all();
    assert!(lab.steps().pop().unwrap().ends_with("step-00000014"));
    lab.run_to(0, &["resume"]).says(&["resumed after step 14", "completed after step 60"]);
    bits(&lab).must_be(&undisturbed(&Lab::with(SLOW), &[]));
    lab.is_clean();
}

#[test]
fn a_run_whose_ranks_are_killed_again_and_again_ends_as_if_nothing_had_happened() {
    let lab = Lab::with(SLOW);
    // Long enough that it is not over when this test gets its turn again.
    let longer = "train.epochs=20";
    let mut running = lab.start(&["small.toml", longer, "--max-restarts", "9"]);
    let mut kills = 0;
    for (step, rank) in [(10, 1), (40, 0), (75, 1), (110, 0)] {
        lab.wait_for_step_and_save(&mut running, step);
        let ranks = running.ranks();
        if let (false, Some(&pid)) = (running.is_over(), ranks.get(rank)) {
            kills += usize::from(kill_process(pid_of(pid), Signal::KILL).is_ok());
            until("the end of the rank", || !is_alive(pid));
        }
    }
    let ended = running.wait();
    ended.has_code(0);
    bits(&lab).must_be(&undisturbed(&Lab::with(SLOW), &[longer]));
    lab.is_clean();
    assert!(kills >= 2, "{kills} ranks were killed; the others were too fast");
    let restarts = ended.stderr.matches(" of 9, from the newest checkpoint: rank ").count();
    assert!((1..=kills).contains(&restarts), "{kills} kills: {}", ended.stderr);
    let last = lab.events().into_iter().rfind(|event| event["event"] == "started");
    let causes = last.unwrap()["restarts"].clone();
    assert_eq!(causes.as_array().map(Vec::len), Some(restarts), "{causes}");
    assert!(causes[0].as_str().unwrap().ends_with("was killed by SIGKILL"), "{causes}");
    // Of this start alone.
    let told = lab.rank_stats();
    assert_eq!(told["memory"].as_array().map(Vec::len), Some(2), "{told}");
    assert_eq!(told["step"], lab.last_step());
}

#[test]
fn a_run_stays_in_its_folders_which_may_be_moved() {
    let lab = Lab::new();
    lab.run_to(0, &["small.toml"]);
    for key in ["checkpoint.dir", "logging.dir"] {
        let elsewhere = format!("{key}=elsewhere");
        let refused = lab.run_to(2, &["resume", "small", "train.epochs=4", &elsewhere]);
        refused.says(&[
            "cannot change on resume",
            &format!("`{key}`"),
            "a run stays in its folders",
        ]);
        assert!(!lab.path("elsewhere").exists());
    }
    for folder in ["checkpoints", "logs"] {
        let moved = lab.path(&format!("other-{folder}"));
        fs::rename(lab.path(folder), &moved).unwrap();
        std::os::unix::fs::symlink(&moved, lab.path(folder)).unwrap();
    }
    lab.run_to(0, &["resume", "small", "train.epochs=4"]).says(&["resumed after step 12"]);
    lab.run_to(0, &["checkpoint", "verify"]);
    lab.is_clean();
}

#[test]
fn a_run_of_one_shard_is_refused_more_ranks_with_what_would_admit_them() {
    let lab = Lab::new();
    lab.run_to(0, &["small.toml", "distributed.devices=1"]);
    let refused = lab.run_to(2, &["resume", "small", "train.epochs=4", "distributed.devices=2"]);
    refused.says(&["1 shard cannot be divided over 2 ranks", "start a run with", "shards = 2"]);
    lab.is_clean();
}

/// A finished run with checkpoints of step 6 and step 12.
fn with_two_checkpoints() -> (Lab, [PathBuf; 2]) {
    let lab = Lab::new();
    lab.run_to(0, &["small.toml"]);
    let steps = lab.steps();
    let [older, newer] = &steps[..] else { panic!("{steps:?}") };
    let checkpoints = [older.clone(), newer.clone()];
    (lab, checkpoints)
}

#[test]
fn a_damaged_checkpoint_is_named_and_the_one_before_it_is_used() {
    let (lab, [_, newer]) = with_two_checkpoints();
    let before = bits(&lab);
    flip_a_bit(&newer.join("model.safetensors"));
    let resumed = lab.run_to(0, &["resume"]);
    resumed.says(&["warning: ", "step-00000012", "is damaged: `model.safetensors`"]);
    resumed.says(&["; using the one of step 6, 6 steps older", "resumed after step 6\n"]);
    bits(&lab).must_be(&before);
    lab.is_clean();
}

#[test]
fn a_damaged_checkpoint_that_is_asked_for_by_name_is_refused_with_the_name_of_an_intact_one() {
    let (lab, [older, newer]) = with_two_checkpoints();
    flip_a_bit(&newer.join("model.safetensors"));
    let refused = lab.run_to(7, &["checkpoint", "export", newer.to_str().unwrap(), "m.onnx"]);
    let name = older.file_name().unwrap().to_str().unwrap();
    refused.says(&["is damaged", "do: use `", &format!("{name}`, which is intact")]);
    flip_a_bit(&older.join("model.safetensors"));
    let refused = lab.run_to(7, &["checkpoint", "export", newer.to_str().unwrap(), "m.onnx"]);
    assert!(!refused.stderr.contains("intact"), "{}", refused.stderr);
}

#[test]
fn a_damaged_newest_checkpoint_is_named_by_all_that_take_the_one_before_it() {
    let (lab, [_, newer]) = with_two_checkpoints();
    flip_a_bit(&newer.join("model.safetensors"));
    let said = ["step-00000012", "is damaged", "; using the one of step 6, 6 steps older"];
    for words in [
        &["eval", "small", "--latest"][..],
        &["checkpoint", "export", "small", "m.safetensors", "--latest"],
        &["plan", "small.toml", "experiment.name=next", "model.pretrained=run:small/latest"],
    ] {
        lab.run_to(0, words).says(&said);
    }
    for words in [
        &["eval", "small", "--latest", "--strict"][..],
        &["checkpoint", "export", "small", "n.safetensors", "--latest", "--strict"],
        &["resume", "small", "--strict"],
    ] {
        let refused = lab.run_to(7, words);
        refused.says(&["step-00000012", "is damaged", "omit `--strict` to use the one of step 6"]);
    }
    lab.is_clean();
}

#[test]
fn a_run_that_saves_only_when_it_is_stopped_ends_with_a_checkpoint_once_it_was() {
    let lab = Lab::with(SLOW);
    let never = ["small.toml", "checkpoint.every=never"];
    let mut running = lab.start(&never);
    lab.wait_for_step(&mut running, 3);
    running.signal(Signal::TERM);
    running.wait().has_code(75);
    lab.run_to(0, &["resume"]);
    assert!(lab.steps().last().unwrap().ends_with("step-00000060"), "{:?}", lab.steps());
    lab.run_to(0, &["resume"]).says(&["already complete: all 60 steps are done"]);

    let lab = Lab::new();
    let ended = lab.run_to(0, &never);
    ended.says(&["no checkpoint was saved, as `checkpoint.every` is \"never\""]);
    assert!(lab.run_to(0, &["ls"]).stdout.contains("completed, no checkpoint"));
    let again = lab.run_to(0, &["resume"]);
    again.says(&["already complete: all 12 steps are done, and none was saved"]);
    let more = lab.run_to(7, &["resume", "train.epochs=3"]);
    more.says(&["error: cannot continue: all 12 steps are done", "--from-scratch"]);
    lab.run_to(7, &["eval", "small"]).says(&["no usable checkpoint"]);
    lab.is_clean();
}

#[test]
fn a_run_without_a_whole_checkpoint_is_refused_with_the_damage_of_each() {
    let (lab, [older, newer]) = with_two_checkpoints();
    flip_a_bit(&older.join("optimizer.safetensors"));
    fs::remove_file(newer.join("state.json")).unwrap();
    let refused = lab.run_to(7, &["resume"]);
    refused.says(&["no usable checkpoint", "step-00000006", "step-00000012"]);
    refused.says(&["`optimizer.safetensors`", "`state.json`"]);
    lab.is_clean();
}

#[test]
fn verify_finds_a_bit_that_was_turned_in_any_file() {
    let (lab, [older, _]) = with_two_checkpoints();
    let folder = lab.checkpoints();
    let folder = folder.to_str().unwrap();
    let whole = lab.run_to(0, &["checkpoint", "verify", folder]);
    assert_eq!(whole.stdout.matches(": intact\n").count(), 2, "{}", whole.stdout);
    let files = ["model.safetensors", "optimizer.safetensors", "state.json"];
    // A manifest that is not what it was cannot be read, or has another seal.
    for (name, named) in files.map(|name| (name, name)).into_iter().chain([("MANIFEST.json", "")]) {
        let path = older.join(name);
        let intact = fs::read(&path).unwrap();
        flip_a_bit(&path);
        let damaged = lab.run_to(7, &["checkpoint", "verify", folder]);
        damaged.says(&["step-00000006` is damaged", named]);
        assert_eq!(damaged.stdout.matches(": intact\n").count(), 1, "{name}: {}", damaged.stdout);
        fs::write(&path, intact).unwrap();
    }
    for words in [&["small"][..], &[]] {
        let again = lab.run_to(0, &[&["checkpoint", "verify"], words].concat());
        assert_eq!(again.stdout.matches(": intact\n").count(), 2, "{}", again.stdout);
    }
    lab.is_clean();
}

#[test]
fn show_says_what_is_in_a_checkpoint_and_what_is_not_there_is_refused() {
    let (lab, [older, newer]) = with_two_checkpoints();
    let page = lab.run_to(0, &["checkpoint", "show"]).stdout;
    for words in ["step-00000006\n  step 6, 6 updates, ", "\n  step 12, 12 updates, ", "val/loss "]
    {
        assert!(page.contains(words), "`{words}` is not in\n{page}");
    }
    assert!(!page.contains("F32"), "{page}");
    let page = lab.run_to(0, &["checkpoint", "show", newer.to_str().unwrap()]).stdout;
    let tensor = page.lines().find(|line| line.contains("F32 [16, 768]"));
    assert!(tensor.is_some_and(|line| line.contains(".weight")), "{page}");
    fs::remove_file(older.join("MANIFEST.json")).unwrap();
    let damaged = lab.run_to(7, &["checkpoint", "show", older.to_str().unwrap()]);
    damaged.says(&["step-00000006` is damaged: `MANIFEST.json` cannot be read"]);
    lab.run_to(7, &["checkpoint", "verify", older.to_str().unwrap()]).says(&["`MANIFEST.json`"]);
    lab.run_to(7, &["checkpoint", "verify", "data"]).says(&["there is no checkpoint in `data`"]);
    lab.run_to(2, &["checkpoint", "verify", "absent"]).says(&["absent", "do: "]);
}

#[test]
fn a_change_that_makes_another_experiment_is_refused_by_name_and_a_safe_one_is_not() {
    let lab = Lab::new();
    lab.run_to(0, &["small.toml"]);
    let before = fs::read(lab.run_folder().join("resolved.toml")).unwrap();
    let refused = lab.run_to(2, &["resume", "optimizer.lr=0.5", "train.epochs=3"]);
    refused.says(&["`optimizer.lr`: 0.001 -> 0.5", "do: ", "`train.epochs`"]);
    assert!(fs::read(lab.run_folder().join("resolved.toml")).unwrap() == before);
    let passed = lab.run_to(0, &["resume", "train.epochs=3"]);
    passed.says(&["changed: `train.epochs`: 2 -> 3", "completed after step 18"]);
    bits(&lab).must_be(&undisturbed(&Lab::new(), &["train.epochs=3"]));
    lab.is_clean();
}

#[test]
fn a_length_that_a_run_is_past_is_refused_and_its_end_is_not() {
    let lab = Lab::new();
    lab.run_to(0, &["small.toml", "train.epochs=3", "scheduler.name=cosine"]);
    let before = bits(&lab);
    let refused = lab.run_to(2, &["resume", "train.epochs=2"]);
    refused.says(&["past `train.epochs` already: 18 steps (3 epochs) are done"]);
    refused.says(&["do: set `train.epochs` to at least 3, or leave it out"]);
    assert!(!refused.stderr.contains("changed: "), "{}", refused.stderr);
    lab.run_to(2, &["resume", "train.steps=17"]).says(&["`train.steps` to at least 18"]);
    assert!(!lab.run_folder().join("resolved.2.toml").exists());
    lab.run_to(0, &["resume", "train.steps=18"]).says(&["all 18 steps are done"]);
    bits(&lab).must_be(&before);
    // The half cosine to step 24 is higher there than that to step 18.
    let longer = lab.run_to(0, &["resume", "train.epochs=4", "~train.steps"]);
    longer.says(&["changed: the learning rate at step 18: ", "`cosine` now spans 24 steps"]);
    longer.says(&["completed after step 24"]);
    lab.is_clean();
}

#[test]
fn a_run_in_use_is_not_resumed_by_a_second_process() {
    let lab = Lab::new();
    let mut running = lab.start(&["small.toml", "train.epochs=1000000", "logging.every=10 steps"]);
    lab.wait_for_step(&mut running, 20);
    let second = lab.run_to(2, &["resume"]);
    second.says(&["is in use by", &format!("pid {} on", running.pid()), "do: "]);
    running.signal(Signal::TERM);
    running.wait().has_code(75);
    lab.is_clean();
}
