//! Weights to start from: looked at before anything starts, evaluated without a run, and no longer
//! needed afterwards.

use std::fs;
use std::path::Path;

use crate::experiments::BASE;
use crate::lab::{Lab, children};
use crate::running::{Ended, flowing};

/// Trains the small experiment and exports its best weights to `weights.safetensors`.
fn trained() -> Lab {
    let lab = Lab::new();
    lab.run_to(0, &["small.toml", "train.epochs=1"]);
    let best = lab.checkpoints().join("best");
    lab.run_to(0, &["checkpoint", "export", best.to_str().unwrap(), "weights.safetensors"]);
    lab
}

fn runs(lab: &Lab) -> usize {
    children(&lab.path("logs/small")).len()
}

#[track_caller]
fn says(ended: &Ended, words: &[&str]) {
    ended.says(words);
}

#[test]
fn given_weights_are_evaluated_without_a_run() {
    let lab = trained();
    let metrics = |args: &[&str]| {
        let found: serde_json::Value = serde_json::from_str(&lab.run_to(0, args).stdout).unwrap();
        found["metrics"].clone()
    };
    let expected = metrics(&["eval", "--json"]);
    let given = ["eval", "--json", "--weights", "weights.safetensors", "small.toml"];
    assert_eq!(metrics(&given), expected);
    // Generated anew with fewer samples: other data, as the changes say.
    let other = [&given[..], &["data.val_per_class=2", "data.dir=data/other"]].concat();
    assert_ne!(metrics(&other), expected);
    let page = lab.run_to(0, &["eval", "--weights", "weights.safetensors", "small.toml"]).stdout;
    assert!(page.starts_with("weights.safetensors\nval/accuracy "), "{page}");
    assert_eq!(runs(&lab), 1);
    says(&lab.run_to(2, &["eval", "--weights", "weights.safetensors"]), &["EXPERIMENT"]);
    says(&lab.run_to(2, &["eval", "small", "train.epochs=1"]), &["--weights"]);
}

#[test]
fn weights_that_are_absent_or_of_another_kind_are_refused_at_their_key() {
    let lab = Lab::new();
    lab.write("small.toml", BASE.replace("hidden = [16]", "hidden = [16]\npretrained = \"none\""));
    for verb in [&["plan"][..], &[]] {
        let ended = lab.run_to(2, &[verb, &["small.toml"]].concat());
        says(
            &ended,
            &["`model.pretrained`", "small.toml:", "`none` cannot be read", "nothing was"],
        );
        assert_eq!(flowing(&ended.stderr).matches("(os error 2)").count(), 1, "{}", ended.stderr);
    }
    lab.write("none", b"PK\x03\x04\x00\x00\x08\x08\x00\x00archive/data.pkl");
    let ended = lab.run_to(2, &["plan", "small.toml"]);
    says(&ended, &["is a pickle, as `torch.save` writes it", "import torch", "save_file("]);
    lab.write("none", b"no weights at all");
    says(&lab.run_to(2, &["plan", "small.toml"]), &["is not a safetensors file"]);
}

#[test]
fn weights_that_do_not_fit_are_told_once_with_what_to_do() {
    let lab = trained();
    let with = "model.pretrained=weights.safetensors";
    for verb in [&["plan"][..], &[]] {
        let other = [verb, &["small.toml", with, "model.name=resnet8", "~model.hidden"]].concat();
        let ended = lab.run_to(2, &other);
        says(&ended, &["does not fit the model", "more", "the names are those of `mlp`"]);
        assert!(ended.stderr.lines().count() < 30, "{}", ended.stderr);
    }
    let head = ["small.toml", with, "model.num_classes=5", "train.epochs=1"];
    says(&lab.run_to(2, &head), &["only the head differs", "model.strict = \"except_head\""]);
    assert_eq!(runs(&lab), 1, "what was refused has left nothing");
    lab.run_to(0, &[&head[..], &["model.strict=except_head"]].concat());
}

#[test]
fn a_run_goes_on_without_the_weights_that_it_started_from() {
    let lab = trained();
    let words = ["small.toml", "experiment.name=second", "train.epochs=1"];
    lab.run_to(0, &[&words[..], &["model.pretrained=weights.safetensors"]].concat());
    fs::remove_file(lab.path("weights.safetensors")).unwrap();
    lab.run_to(0, &["resume", "second", "train.epochs=2"]);
}

#[test]
fn amp_is_fp32_on_a_cpu_and_an_older_run_keeps_what_it_had() {
    let lab = Lab::new();
    let amp = ["small.toml", "train.precision=amp", "train.epochs=1"];
    let page = lab.run_to(0, &[&["plan"][..], &amp].concat()).stdout;
    assert!(flowing(&page).contains("fp32 (amp on a CPU)"), "{page}");
    lab.run_to(0, &amp);
    let run = lab.run_folder();
    // As a version before wrote it.
    let change = |file: &str, from: &str, to: &str| {
        let text = fs::read_to_string(run.join(file)).unwrap();
        assert!(text.contains(from), "{file}: {text}");
        fs::write(run.join(file), text.replace(from, to)).unwrap();
    };
    change("resolved.toml", "precision = \"fp32\"", "precision = \"amp\"");
    change("run.json", "\"precision\": \"fp32\"", "\"precision\": \"bf16\"");
    lab.run_to(0, &["resume", "train.epochs=2"]);
    let is_bf16 = |path: &Path| fs::read_to_string(path).unwrap().contains("\"bf16\"");
    assert!(is_bf16(&run.join("run.2.json")) && is_bf16(&run.join("resolved.2.toml")));
}

#[test]
fn what_may_not_be_meant_is_told_by_plan_and_at_the_start() {
    let lab = Lab::new();
    let sizes = ["train.batch_size=64", "train.global_batch_size=128", "data.drop_last=false"];
    let many = [&["small.toml", "train.epochs=1"][..], &sizes].concat();
    let page = lab.run_to(0, &[&["plan"][..], &many].concat()).stdout;
    let expected = "a step takes 128 samples, but there are only 48 to train on";
    assert!(flowing(&page).contains(&format!("warning {expected}")), "{page}");
    says(&lab.run_to(0, &many), &[&format!("warning: {expected}")]);
    // A quarter of a trillion parameters.
    let wide = format!("model.hidden=[{}]", "65536,".repeat(60).trim_end_matches(','));
    let page = lab.run_to(0, &["plan", "small.toml", &wide]).stdout;
    let words = flowing(&page);
    assert!(
        words.contains("2 ranks need at least ") && words.contains("this machine has"),
        "{page}"
    );
}
