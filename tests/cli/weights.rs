//! Weights to start from: looked at before anything starts, evaluated without a run, and no longer
//! needed afterwards.

use std::fs;
use std::path::Path;

use crate::harness::experiments::BASE;
use crate::harness::lab::{Lab, children};
use crate::harness::running::{Ended, flowing};

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
    says(&lab.run_to(2, &head), &["all but the head", "model.strict = \"except_head\""]);
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
fn amp_is_what_pays_on_this_processor_and_an_older_run_keeps_what_it_had() {
    let lab = Lab::new();
    let page = flowing(&lab.run_to(0, &["plan", "small.toml", "train.precision=amp"]).stdout);
    let pays = |way: &&str| page.contains(&format!("bf16 ({way})"));
    let way = ["AMX", "AVX512-BF16"].into_iter().find(pays);
    let not_faster = page.contains("fp32 (amp on a CPU on which bf16 is not faster)");
    assert_ne!(way.is_some(), not_faster, "{page}");
    lab.run_to(0, &["small.toml", "train.precision=fp32", "train.epochs=1"]);
    let run = lab.run_folder();
    // As a version before wrote it.
    let change = |file: &str, from: &str, to: &str| {
        let text = fs::read_to_string(run.join(file)).unwrap();
        assert!(text.contains(from), "{file}: {text}");
        fs::write(run.join(file), text.replace(from, to)).unwrap();
    };
    change("resolved.toml", "precision = \"fp32\"", "precision = \"amp\"");
    change("run.json", "\"precision\": \"fp32\"", "\"precision\": \"bf16\"");
    let ended = lab.run_to(0, &["resume", "train.epochs=2"]);
    if let Some(way) = way {
        let change =
            format!("changed: bf16 by {way}, before by rounded fp32: the last bits differ");
        assert!(ended.stderr.contains(&change), "{}", ended.stderr);
    }
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

/// What a run's `eval` measures.
fn metrics(lab: &Lab, args: &[&str]) -> serde_json::Value {
    let args = [&["eval", "--json"], args].concat();
    let found: serde_json::Value = serde_json::from_str(&lab.run_to(0, &args).stdout).unwrap();
    found["metrics"].clone()
}

#[test]
fn a_run_is_evaluated_on_other_data_and_in_another_precision() {
    let lab = Lab::new();
    lab.run_to(0, &["small.toml", "train.epochs=1"]);
    let expected = metrics(&lab, &[]);
    assert_eq!(metrics(&lab, &["small", "validation.batch_size=4"]), expected);
    let other = ["data.val_per_class=2", "data.dir=data/other"];
    assert_ne!(metrics(&lab, &other), expected);
    let halved = metrics(&lab, &["small", "train.precision=bf16"]);
    assert_ne!(halved["val/loss"], expected["val/loss"]);
    let ended = lab.run_to(0, &["eval", "small", "train.precision=bf16"]);
    says(&ended, &["changed: `train.precision`: \"fp32\" -> \"bf16\""]);
    let refused = ["eval", "small", "train.epochs=9", "optimizer.lr=1.0", "model.hidden=[3]"];
    says(
        &lab.run_to(2, &refused),
        &[
            "`train.epochs`: has no effect on an evaluation: nothing is trained",
            "`optimizer.lr`",
            "the weights were trained in the model as it is",
        ],
    );
    let ended = lab.run_to(3, &["eval", "data.classes=2", "data.dir=data/two"]);
    says(&ended, &["these data do not fit the model of the run", "outputs"]);
    assert_eq!(runs(&lab), 1);
    lab.is_clean();
}

#[test]
fn a_run_starts_from_the_weights_of_another_by_its_name() {
    let lab = Lab::new();
    let averaged = ["small.toml", "train.epochs=1", "ema.decay=0.5", "experiment.name=first"];
    lab.run_to(0, &averaged);
    let expected = metrics(&lab, &["first"]);
    // A run whose learning rate is nearly 0 ends with the weights that it began with.
    let still = ["train.epochs=1", "optimizer.lr=1e-30", "optimizer.weight_decay=0.0"];
    let from = |name: &str, word: &str, more: &[&str]| {
        let (name, word) = (format!("experiment.name={name}"), format!("model.pretrained={word}"));
        let words = [&["small.toml", &name, &word][..], &still, more].concat();
        lab.run_to(0, &words)
    };
    let begun = from("second", "run:first/best", &[]);
    says(&begun, &["weights: step 6 of `checkpoints/first/", "averaged weights"]);
    assert_eq!(metrics(&lab, &["second"]), expected);
    // The bits are the same at one rank, and by any other word for it.
    let one = &["distributed.devices=1", "train.batch_size=4", "distributed.shards=2"];
    from("third", "run:first", one);
    assert_eq!(metrics(&lab, &["third"]), expected);
    let run = children(&lab.path("checkpoints/first")).remove(0);
    let (folder, id) = (run.join("best"), run.file_name().unwrap().to_str().unwrap().to_owned());
    from("fourth", folder.to_str().unwrap(), &[]);
    from("fourth", &format!("run:{id}/latest"), &[]);
    assert_eq!(metrics(&lab, &["fourth"]), expected);
    // The second run keeps no averages.
    let plain = from("fifth", "run:second", &[]);
    assert!(!(plain.stdout + &plain.stderr).contains("averaged weights"));
    // What was taken is kept, and no longer needed.
    let second = children(&lab.path("logs/second")).remove(0);
    let stored = fs::read_to_string(second.join("run.json")).unwrap();
    assert!(stored.contains("\"pretrained_checkpoint\"") && stored.contains("\"fingerprint\""));
    let resolved = fs::read_to_string(second.join("resolved.toml")).unwrap();
    assert!(resolved.contains("/step-00000006\""), "{resolved}");
    fs::remove_dir_all(lab.path("checkpoints/first")).unwrap();
    lab.run_to(0, &["resume", "second", "train.epochs=2"]);
    lab.is_clean();
}

#[test]
fn a_run_that_starts_from_another_has_the_sizes_of_its_model_where_it_says_none() {
    let lab = Lab::new();
    let small = fs::read_to_string(lab.path("small.toml")).unwrap();
    let sizeless: Vec<&str> = small.lines().filter(|line| !line.starts_with("hidden")).collect();
    assert_eq!(sizeless.len() + 1, small.lines().count());
    fs::write(lab.path("tuned.toml"), sizeless.join("\n")).unwrap();
    lab.run_to(0, &["small.toml", "train.epochs=1", "model.hidden=[7,5]"]);
    let still = ["train.epochs=1", "optimizer.lr=1e-30", "optimizer.weight_decay=0.0"];
    let folder = children(&lab.path("checkpoints/small")).remove(0);
    let (folder, step) = (folder.to_str().unwrap(), folder.join("step-00000006"));
    let words = [("tuned", "run:small"), ("again", folder), ("third", step.to_str().unwrap())];
    for (name, word) in words {
        let (name, from) = (format!("experiment.name={name}"), format!("model.pretrained={word}"));
        lab.run_to(0, &[&["tuned.toml", &name, &from][..], &still].concat());
    }
    assert_eq!(metrics(&lab, &["tuned"]), metrics(&lab, &["small"]));
    assert_eq!(metrics(&lab, &["again"]), metrics(&lab, &["small"]));
    assert_eq!(metrics(&lab, &["third"]), metrics(&lab, &["small"]));
    // Each trial of a sweep has them, not only the one that looked for the run.
    let two = ["optimizer.lr=1e-3,1e-2", "model.pretrained=run:small", "train.epochs=1"];
    lab.run_to(0, &[&["sweep", "tuned.toml"][..], &two].concat());
    // The run does not need the other one any more, and keeps the sizes.
    fs::remove_dir_all(lab.path("checkpoints/small")).unwrap();
    fs::remove_dir_all(lab.path("logs/small")).unwrap();
    lab.run_to(0, &["resume", "tuned", "train.epochs=2"]);
    let tuned = children(&lab.path("logs/tuned")).remove(0);
    let resolved = fs::read_to_string(tuned.join("resolved.toml")).unwrap();
    assert!(resolved.contains("hidden = [7, 5]"), "{resolved}");
    lab.is_clean();
}

#[test]
fn a_trial_for_whose_weights_there_is_no_room_is_tried_again_by_the_same_command() {
    let lab = trained();
    // A folder where a file should be stands for a disk that takes nothing.
    let kept = lab.path("logs/small-sweep/pretrained.json");
    fs::create_dir_all(&kept).unwrap();
    let space = ["optimizer.lr=choice(1e-3)", "model.pretrained=run:small", "train.epochs=1"];
    let words = [&["sweep", "small.toml"][..], &space].concat();
    says(&lab.run_to(9, &words), &["trial 1 failed: ", "the same command retries them"]);
    fs::remove_dir(&kept).unwrap();
    says(&lab.run_to(0, &words), &["1 failed and retried", "[1 of 1]"]);
}

#[test]
fn a_run_that_is_misnamed_is_refused_at_its_key_with_the_nearest_name() {
    let lab = trained();
    let from = |word: &str| format!("model.pretrained={word}");
    says(
        &lab.run_to(2, &["plan", "small.toml", &from("run:smal/best")]),
        &["`model.pretrained`", "there is no run `smal`", "did you mean `run:small/best`?"],
    );
    says(
        &lab.run_to(2, &["plan", "small.toml", &from("run:small/bst")]),
        &["`model.pretrained`", "did you mean `run:small/best`?"],
    );
    says(
        &lab.run_to(2, &["small.toml", &from("run:small/step-00000099")]),
        &["`model.pretrained`", "step-00000099"],
    );
    says(
        &lab.run_to(2, &["small.toml", &from("data")]),
        &["`data` is a folder without a checkpoint", "run:NAME"],
    );
    let other = ["small.toml", &from("run:small"), "model.hidden=[5]"];
    says(&lab.run_to(2, &other), &["`model.pretrained`", "does not fit the model"]);
    assert_eq!(runs(&lab), 1, "what was refused has left nothing");
    let head = ["small.toml", &from("run:small"), "data.classes=2", "data.dir=data/two"];
    says(&lab.run_to(2, &head), &["all but the head"]);
    lab.run_to(0, &[&head[..], &["model.strict=except_head", "train.epochs=1"]].concat());
}

#[test]
fn a_run_is_exported_as_onnx_with_what_its_inputs_are_made_of() {
    let lab = trained();
    let json = |name: &str| -> serde_json::Value {
        serde_json::from_str(&fs::read_to_string(lab.path(name)).unwrap()).unwrap()
    };
    let of_weights = json("preprocessing.json");
    lab.run_to(0, &["checkpoint", "export", "small", "out/model.onnx"]);
    assert_eq!(json("out/preprocessing.json"), of_weights);
    assert_eq!(of_weights["input"]["name"], "input");
    assert_eq!(of_weights["classes"].as_array().unwrap().len(), 3);
    let transforms = of_weights["transforms"].as_array().unwrap();
    assert_eq!(transforms.last().unwrap()["name"], "normalize");
    let bytes = fs::read(lab.path("out/model.onnx")).unwrap();
    let graph = ddprun::onnx::ModelProto::read(&bytes).unwrap().graph.unwrap();
    assert!(graph.initializer.iter().any(|tensor| tensor.name == "layers.0.weight"));
    let other = |args: &[&str], words: &[&str]| {
        says(&lab.run_to(2, &[&["checkpoint", "export", "small"], args].concat()), words);
    };
    other(
        &["x.onnx", "--format", "safetensors"],
        &["`x.onnx` would hold safetensors", "x.safetensors"],
    );
    other(&["x.pt", "--format", "onnx"], &["`x.pt` would hold ONNX", "write `x.onnx`"]);
    other(&["x.pt"], &["torch.load", "x.safetensors"]);
    // Wherever a run that is named keeps its files.
    let folders = ["small.toml", "train.epochs=1", "logging.dir=a", "checkpoint.dir=b"];
    lab.run_to(0, &[&folders[..], &["experiment.name=moved"]].concat());
    lab.run_to(0, &["checkpoint", "export", "a/moved", "moved/model.onnx"]);
    assert_eq!(
        json("moved/preprocessing.json")["options"]["hidden"],
        of_weights["options"]["hidden"]
    );
    // Without its run a checkpoint does not say what its model is.
    fs::remove_dir_all(lab.path("logs")).unwrap();
    let best = lab.checkpoints().join("best");
    let ended =
        lab.run_to(0, &["checkpoint", "export", best.to_str().unwrap(), "alone/w.safetensors"]);
    says(&ended, &["the run of this checkpoint is not here"]);
}
