//! A Llama that learns preferences: all of it and by adapters, with and without a reference; on one
//! rank and on four, killed and resumed, to the same bits; and what is refused.

use std::fs;

use serde_json::{Value, json};

use crate::harness::lab::{Lab, SAVED, children};
use crate::instructions::lab as instructions;

const DPO: &str = r#"schema = 1

[experiment]
name = "dpo"
seed = 7

[model]
name = "llama"
d_model = 8
d_ff = 8
n_layers = 1
n_heads = 2
n_kv_heads = 1
num_classes = 16
pretrained = "base/model.safetensors"

[data]
name = "preferences"
file = "pairs.jsonl"
tokenizer = "tokenizer.json"
seq_len = 40
val_ratio = 0.25
drop_last = false
num_workers = 0

[loss]
name = "dpo"
beta = 0.5

[train]
epochs = 2
batch_size = 1
global_batch_size = 4

[optimizer]
name = "adamw"
lr = 1e-2

[distributed]
shards = 4
threads_per_rank = 1

[checkpoint]
every = "1 step"
"#;

const LORA: &str = "model.lora={r = 2, targets = [\"all-linear\"]}";

/// Fourteen pairs, of which ten train, with a last step of two, and a base to start from.
fn lab() -> Lab {
    let lab = instructions();
    lab.run_to(0, &["small.toml"]);
    let run = children(&lab.path("checkpoints/small")).remove(0).join("latest");
    fs::create_dir_all(lab.path("base")).unwrap();
    lab.run_to(0, &["checkpoint", "export", run.to_str().unwrap(), "base/model.safetensors"]);
    lab.write("dpo.toml", DPO);
    let pair = |i: usize| {
        let (chosen, rejected) = ("bee ".repeat(1 + i % 3), "a tree ".repeat(1 + i % 4));
        json!({"prompt": "no bee in ", "chosen": chosen, "rejected": rejected}).to_string() + "\n"
    };
    lab.write("pairs.jsonl", (0..14).map(pair).collect::<String>());
    lab
}

/// The newest weights of the run `name`.
fn weights(lab: &Lab, name: &str) -> Vec<u8> {
    let run = children(&lab.path(&format!("checkpoints/{name}"))).remove(0);
    fs::read(run.join("latest/model.safetensors")).unwrap()
}

/// The values of `metric` in the events of the run `name`, of which several may tell one.
fn metrics(lab: &Lab, name: &str, metric: &str) -> Vec<f64> {
    let run = children(&lab.path(&format!("logs/{name}"))).remove(0);
    let events = fs::read_to_string(run.join("events.jsonl")).unwrap();
    let events = events.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    events.filter_map(|event| event["metrics"][metric].as_f64()).collect()
}

#[test]
fn preferences_have_the_same_bits_on_any_ranks_and_after_a_kill() {
    let lab = lab();
    let ways: [(&str, &[&str]); 5] = [
        ("whole", &[]),
        ("lora", &[LORA]),
        ("bf16", &["train.precision=bf16", LORA]),
        ("simpo", &["loss={name = \"simpo\"}"]),
        ("orpo", &["loss={name = \"orpo\"}", "train.batch_size=2", "distributed.shards=2"]),
    ];
    for (way, options) in ways {
        let ranks = if way == "orpo" { "distributed.devices=2" } else { "distributed.devices=4" };
        let names = ["", "-many", "-killed"].map(|end| format!("{way}{end}"));
        let keys = names.each_ref().map(|name| format!("experiment.name={name}"));
        let words =
            |key: usize, devices| [&["dpo.toml", keys[key].as_str(), devices], options].concat();
        lab.run_to(0, &words(0, "distributed.devices=1"));
        let margins = metrics(&lab, way, "val/rewards/margins");
        assert!(margins.last() > margins.first(), "{way}: {margins:?}");
        lab.run_to(0, &words(1, ranks));
        assert_eq!(margins, metrics(&lab, &names[1], "val/rewards/margins"), "{way}");
        let points = format!("{SAVED}; forward=kill@0,5");
        let ended = lab.run_with(&points, &words(2, "distributed.devices=1"));
        assert_ne!(ended.code, 0, "{way}: {ended:?}");
        lab.run_to(0, &["resume", &names[2]]).says(&["completed after step 6"]);
        for name in &names[1..] {
            assert!(weights(&lab, way) == weights(&lab, name), "{name}");
        }
    }
    let evaluated = lab.run_to(0, &["eval", "whole"]).stdout;
    for metric in ["chosen", "rejected", "margins", "accuracies"] {
        assert!(evaluated.contains(&format!("rewards/{metric}")), "{evaluated}");
    }
    lab.run_to(0, &["sample", "lora", "--prompt", "no bee in ", "--tokens", "3"]);
    lab.is_clean();
}

#[test]
fn a_policy_begins_at_its_reference_and_another_one_is_refused() {
    let lab = lab();
    let still = ["dpo.toml", "optimizer.lr=1e-30", "distributed.devices=2"];
    for (name, options) in [("still", &[][..]), ("still-lora", &[LORA][..])] {
        let name_key = format!("experiment.name={name}");
        lab.run_to(0, &[&still[..], &[&name_key], options].concat());
        let loss = metrics(&lab, name, "val/loss");
        assert!(loss.iter().all(|loss| (loss - 2f64.ln()).abs() < 1e-7), "{loss:?}");
        let rewards = metrics(&lab, name, "val/rewards/chosen");
        assert!(rewards.len() > 1 && rewards.iter().all(|reward| *reward == 0.0), "{rewards:?}");
    }
    // Without pretrained weights both are drawn from the seed.
    lab.run_to(0, &[&still[..], &["experiment.name=drawn", "~model.pretrained"]].concat());
    let margins = metrics(&lab, "drawn", "val/rewards/margins");
    assert!(margins.len() > 1 && margins.iter().all(|margin| *margin == 0.0), "{margins:?}");
    let mut bytes = fs::read(lab.path("base/model.safetensors")).unwrap();
    let last = bytes.len() - 2;
    bytes[last] ^= 1;
    fs::write(lab.path("base/model.safetensors"), bytes).unwrap();
    let refused = lab.run_to(7, &["resume", "still", "train.epochs=3"]);
    refused.says(&["the reference of the loss, `base/model.safetensors`, has other weights"]);
}

#[test]
fn data_and_losses_that_do_not_belong_together_are_refused_before_the_start() {
    let lab = lab();
    let plan =
        |code: i32, words: &[&str]| lab.run_to(code, &[&["plan", "dpo.toml"], words].concat());
    plan(2, &["loss.name=cross_entropy", "~loss.beta"]).says(&["compares no pairs of answers"]);
    let single = ["data.name=instructions", "data.file=alpaca.json"];
    plan(2, &single)
        .says(&["`loss.name`: compares pairs of answers, which this data does not have"]);
    plan(2, &["loss.loss_type=hinge", "loss.label_smoothing=0.1"])
        .says(&["does nothing with this `loss_type`"]);
    plan(2, &["validation.metrics=[\"accuracy\"]"]).says(&["compares pairs of answers"]);
    let page = plan(0, &["~loss.name", "~loss.beta"]).stdout;
    assert!(page.contains("pairs of up to 40 tokens") && page.contains("dpo"), "{page}");
    // The reference of adapters is the base below them.
    let memory = |words: &[&str]| {
        let page = plan(0, &[words, &["--json"]].concat()).stdout;
        let page: Value = serde_json::from_str(&page).unwrap();
        page["plan"]["model"]["reference"]["n_weights"].as_u64()
    };
    assert!(memory(&[]).is_some_and(|n| n > 300));
    assert_eq!((memory(&[LORA]), memory(&["loss={name = \"orpo\"}"])), (None, None));
    lab.write("wrong.jsonl", "{\"prompt\": \"a\", \"chosen\": \"b\"}\n");
    plan(3, &["data.file=wrong.jsonl"]).says(&["wrong.jsonl", "it has no `rejected`"]);
}
