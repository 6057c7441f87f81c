//! A Llama trained on a text, then by adapters on instructions: on one rank and on two, asked, and
//! exported.

use std::fs;

use serde_json::json;
use test_support::hub_server::HubServer;

use crate::harness::lab::{Lab, children};
use crate::harness::running::spawn;

const LLAMA: &str = r#"schema = 1

[experiment]
name = "small"
seed = 7

[model]
name = "llama"
d_model = 8
d_ff = 8
n_layers = 1
n_heads = 2
n_kv_heads = 1
num_classes = 16

[data]
name = "tokens"
file = "text.txt"
tokenizer = "tokenizer.json"
seq_len = 8
num_workers = 0

[train]
steps = 2
global_batch_size = 4

[optimizer]
name = "adamw"
lr = 1e-2
"#;

const ADAPTERS: &str = r#"schema = 1

[model]
name = "llama"
d_model = 8
d_ff = 8
n_layers = 1
n_heads = 2
n_kv_heads = 1
num_classes = 16
pretrained = "base/model.safetensors"

[model.lora]
r = 2
dropout = 0.25
targets = ["q_proj", "v_proj", "up_proj"]

[data]
name = "instructions"
file = "alpaca.json"
tokenizer = "tokenizer.json"
seq_len = 160
mask_prompt = true
val_ratio = 0.25
num_workers = 0

[train]
steps = 3
batch_size = 2
global_batch_size = 4

[optimizer]
name = "adamw"
lr = 1e-2

[distributed]
shards = 2
threads_per_rank = 1
"#;

/// A tokenizer of a few letters, a text, and twelve instructions.
pub(crate) fn lab() -> Lab {
    let lab = Lab::with(LLAMA);
    lab.write("adapters.toml", ADAPTERS);
    let letters = ["</s>", "a", "b", "e", "i", "n", "o", "p", "r", "s", "t", "re"];
    let vocabulary: serde_json::Map<_, _> =
        letters.iter().zip(0..).map(|(letter, i)| ((*letter).to_owned(), json!(i))).collect();
    let end = json!({"id": 0, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true});
    let tokenizer = json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [end],
        "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": ["r e"]}});
    lab.write("tokenizer.json", tokenizer.to_string());
    lab.write("text.txt", "a bee in no prairie rests, and no tree is near\n".repeat(20));
    let entry = |i: usize| json!({"instruction": "bee", "input": "", "output": "bee ".repeat(i)});
    lab.write("alpaca.json", json!((1..=12).map(entry).collect::<Vec<_>>()).to_string());
    lab
}

#[test]
fn adapters_of_a_pretrained_llama_learn_instructions_and_are_exported() {
    let lab = lab();
    let ended = lab.run_to(0, &["small.toml", "data.sample_tokens=4"]);
    assert!(!ended.stdout.trim().is_empty(), "{ended:?}");
    assert_eq!(lab.run_to(0, &["sample", "--tokens", "4"]).stdout, ended.stdout);
    let latest = |name: &str| {
        let run = children(&lab.path(&format!("checkpoints/{name}"))).remove(0);
        run.join("latest").to_str().unwrap().to_owned()
    };
    fs::create_dir_all(lab.path("base")).unwrap();
    lab.run_to(0, &["checkpoint", "export", &latest("small"), "base/model.safetensors"]);
    let refused = lab.run_to(2, &["checkpoint", "export", &latest("small"), "none", "--peft"]);
    assert!(refused.stderr.contains("has no adapters"), "{refused:?}");

    for (name, ranks) in [("one", "1"), ("two", "2")] {
        let name = format!("experiment.name={name}");
        lab.run_to(0, &["adapters.toml", &name, &format!("distributed.devices={ranks}")]);
    }
    let model = |name: &str| fs::read(format!("{}/model.safetensors", latest(name))).unwrap();
    assert!(model("one") == model("two"), "one rank and two have the same bits");

    let asked = lab.run_to(0, &["sample", "one", "--prompt", "bee", "--tokens", "5"]);
    assert!(asked.stdout.starts_with("bee\n"), "{asked:?}");
    lab.run_to(0, &["checkpoint", "export", &latest("one"), "peft", "--peft"]);
    let config = fs::read_to_string(lab.path("peft/adapter_config.json")).unwrap();
    assert!(config.contains("\"base_model_name_or_path\": \"base\""), "{config}");
    let tensors = |name: &str| {
        let cpu = &candle_core::Device::Cpu;
        candle_core::safetensors::load(lab.path(name), cpu).unwrap()
    };
    assert_eq!(tensors("peft/adapter_model.safetensors").len(), 6);
    again_from_what_was_exported(&lab);
    lab.run_to(0, &["checkpoint", "export", &latest("one"), "merged.safetensors", "--merge"]);
    let (base, merged) = (tensors("base/model.safetensors"), tensors("merged.safetensors"));
    assert_eq!(merged.len(), base.len());
    let moved = |name: &str| {
        let difference = (&merged[name] - &base[name]).unwrap().abs().unwrap();
        difference.sum_all().unwrap().to_scalar::<f32>().unwrap() > 0.0
    };
    assert!(moved("model.layers.0.self_attn.q_proj.weight"));
    assert!(!moved("model.layers.0.self_attn.k_proj.weight"));
}

/// Steps that are too small to move anything leave the adapters that a run started from as they
/// were, to the bit.
fn again_from_what_was_exported(lab: &Lab) {
    let more = ["adapters.toml", "experiment.name=again", "model.lora.adapters=peft"];
    let theirs = ["~model.lora.r", "~model.lora.targets", "~model.lora.dropout"];
    lab.run_to(0, &[&more[..], &theirs, &["optimizer.lr=1e-30"]].concat());
    let run = children(&lab.path("checkpoints/again")).remove(0).join("latest");
    lab.run_to(0, &["checkpoint", "export", run.to_str().unwrap(), "peft2", "--peft"]);
    for name in ["adapter_model.safetensors", "adapter_config.json"] {
        let written = |folder| fs::read(lab.path(&format!("{folder}/{name}"))).unwrap();
        assert!(written("peft") == written("peft2"), "{name}");
    }
    let refused = lab.run_to(2, &[&more[..], &["model.lora.r=4"]].concat());
    refused.says(&["`model.lora.r` is 4, but `peft/adapter_config.json` has 2"]);
    let absent = lab.run_to(2, &["adapters.toml", "model.lora.adapters=none"]).stderr;
    assert!(absent.contains("`none/adapter_config.json` cannot be read"), "{absent}");
}

#[test]
fn instructions_in_shards_train_to_the_bits_of_one_file_and_come_from_the_hub_by_name() {
    let lab = lab();
    let line =
        |i: usize| json!({"instruction": "bee", "output": "bee ".repeat(i)}).to_string() + "\n";
    let lines: Vec<String> = (1..=12).map(line).collect();
    let shards = ["train-00000-of-00002.jsonl", "train-00001-of-00002.jsonl"];
    lab.write("alpaca.jsonl", lines.concat());
    lab.write(&format!("shards/{}", shards[0]), lines[..5].concat());
    let second = lab.write(&format!("shards/{}", shards[1]), lines[5..].concat());
    let words = [
        "small.toml",
        "data.name=instructions",
        "data.seq_len=160",
        "data.val_ratio=0.25",
        "distributed.shards=2",
    ];
    let train = |name: &str, file: &str, ranks: &str| {
        let (name, file) = (format!("experiment.name={name}"), format!("data.file={file}"));
        let ranks = format!("distributed.devices={ranks}");
        lab.run_to(0, &[&words[..], &[&name, &file, &ranks]].concat());
    };
    let model = |name: &str| {
        let run = children(&lab.path(&format!("checkpoints/{name}"))).remove(0);
        fs::read(run.join("latest/model.safetensors")).unwrap()
    };
    train("one", "alpaca.jsonl", "1");
    train("folder", "shards", "2");
    train("pattern", "shards/train-*", "1");
    assert!(model("folder") == model("one") && model("pattern") == model("one"));
    let whole = fs::read(&second).unwrap();
    fs::remove_file(&second).unwrap();
    let missing = lab.run_to(3, &["resume", "folder", "train.steps=3"]);
    missing.says(&["`train-00001-of-00002.jsonl` is missing, shard of 2"]);
    fs::write(&second, whole).unwrap();
    lab.run_to(0, &["resume", "folder", "train.steps=3"]).says(&["completed after step 3"]);
    let none = lab.run_to(3, &[&words[..], &["data.file=shards/test-*"]].concat());
    none.says(&["`data.file`: the instructions `shards/test-*` does not exist", "command line:1:"]);

    let hub = HubServer::new();
    let in_data = shards.map(|name| format!("data/{name}"));
    let file = |index: usize| fs::read(lab.path("shards").join(shards[index])).unwrap();
    let (first, second) = (file(0), file(1));
    hub.publish(
        "datasets/me/alpaca",
        &[("README.md", b"hi"), (&in_data[0], &first), (&in_data[1], &second)],
    );
    for (name, repository) in [("hub", "hf:me/alpaca"), ("part", "hf:me/alpaca/data/train-*")] {
        let (named, file) = (format!("experiment.name={name}"), format!("data.file={repository}"));
        let mut command = lab.ddprun(&[&words[..], &[&named, &file]].concat());
        command.env("HF_ENDPOINT", &hub.endpoint).env_remove("HF_HUB_OFFLINE");
        spawn(command).wait().has_code(0);
        assert!(model(name) == model("one"), "{repository}");
    }
    let paths: Vec<String> = hub.take_requests().into_iter().map(|it| it.path).collect();
    assert!(!paths.iter().any(|path| path.ends_with("README.md")), "{paths:?}");
    lab.is_clean();
}
