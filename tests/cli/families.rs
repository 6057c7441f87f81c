//! Each family of language models in the program: packed samples on two ranks, resumed, to the bits
//! of one rank; asked; exported, and the folder taken up again, all of it and by adapters.

use std::fs;

use serde_json::Value;

use crate::harness::lab::children;
use crate::instructions::lab;

const SMALL: &str = r#"schema = 1

[experiment]
name = "family"
seed = 7

[model]
name = "llama"
d_model = 16
d_ff = 8
n_layers = 2
n_heads = 2
num_classes = 16

[data]
name = "instructions"
file = "alpaca.json"
tokenizer = "tokenizer.json"
seq_len = 160
packing = true
val_ratio = 0.25
num_workers = 0

[train]
steps = 4
batch_size = 1
global_batch_size = 2

[optimizer]
name = "adamw"
lr = 1e-2

[distributed]
shards = 2
threads_per_rank = 1
"#;

/// A family, and options that only such models have.
const FAMILIES: [(&str, &[&str]); 12] = [
    ("llama", &["mlp_bias=true", "n_kv_heads=1"]),
    ("mistral", &["sliding_window=9"]),
    ("qwen2", &["n_kv_heads=1"]),
    ("qwen3", &["head_dim=6"]),
    (
        "gemma2",
        &[
            "sliding_window=9",
            "layer_types=[sliding_attention, full_attention]",
            "attn_logit_softcapping=5.0",
            "final_logit_softcapping=3.0",
            "tie_word_embeddings=true",
        ],
    ),
    (
        "gemma3_text",
        &[
            "sliding_window=9",
            "layer_types=[sliding_attention, full_attention]",
            "rope_local_base_freq=100.0",
            "tie_word_embeddings=true",
        ],
    ),
    ("phi3", &["sliding_window=9", "partial_rotary_factor=0.5"]),
    ("smollm3", &["no_rope_layers=[1, 0]"]),
    ("olmo2", &[]),
    ("granite", &["residual_multiplier=0.5", "logits_scaling=2.0"]),
    ("gpt_neox", &["partial_rotary_factor=0.5"]),
    ("opt", &["dropout=0.25", "tie_word_embeddings=true"]),
];

#[test]
fn every_family_trains_packed_on_two_ranks_resumes_is_asked_and_comes_back_from_its_export() {
    let lab = lab();
    lab.write("family.toml", SMALL);
    for (family, options) in FAMILIES {
        let options = options.iter().map(|option| format!("model.{option}"));
        let options: Vec<String> =
            [format!("model.family={family}")].into_iter().chain(options).collect();
        let run = |name: &str, more: &[&str]| {
            let name = format!("experiment.name={name}");
            let options = options.iter().map(String::as_str);
            let words: Vec<&str> = ["family.toml", &name].into_iter().chain(options).collect();
            lab.run_to(0, &[&words[..], more].concat());
        };
        let latest = |name: &str| {
            let run = children(&lab.path(&format!("checkpoints/{name}"))).remove(0);
            run.join("latest").to_str().unwrap().to_owned()
        };
        let model = |name: &str| fs::read(format!("{}/model.safetensors", latest(name))).unwrap();
        let [one, two, again, adapted] =
            ["one", "two", "again", "lora"].map(|name| format!("{family}_{name}"));
        run(&one, &[]);
        run(&two, &["distributed.devices=2", "train.steps=2"]);
        lab.run_to(0, &["resume", &two, "train.steps=4"]);
        assert!(model(&one) == model(&two), "{family}: two ranks and a resume");
        let asked = lab.run_to(0, &["sample", &one, "--prompt", "bee", "--tokens", "3"]);
        assert!(asked.stdout.starts_with("bee\n"), "{family}: {asked:?}");

        let weights = format!("{family}/model.safetensors");
        fs::create_dir_all(lab.path(family)).unwrap();
        lab.run_to(
            0,
            &["checkpoint", "export", &latest(&one), &weights, "--names", "transformers"],
        );
        let config = fs::read_to_string(lab.path(&format!("{family}/config.json"))).unwrap();
        let config: Value = serde_json::from_str(&config).unwrap();
        assert_eq!(config["model_type"], family);
        // Steps that move nothing leave what was exported, to the bit.
        let start = |name: &str, more: &[&str]| {
            let (name, weights) =
                (format!("experiment.name={name}"), format!("model.pretrained={weights}"));
            let sizes = ["d_model", "d_ff", "n_layers", "n_heads"];
            let sizes = sizes.map(|size| format!("~model.{size}"));
            let sizes = sizes.iter().map(String::as_str);
            let words: Vec<&str> =
                ["family.toml", &name, &weights].into_iter().chain(sizes).collect();
            lab.run_to(0, &[&words[..], &["train.steps=1"], more].concat());
        };
        start(&again, &["optimizer.lr=1e-30", "optimizer.weight_decay=0.0"]);
        assert!(model(&again) == model(&one), "{family}: from what was exported");
        start(&adapted, &["model.lora.r=2"]);
        lab.run_to(
            0,
            &["checkpoint", "export", &latest(&adapted), &format!("{family}_peft"), "--peft"],
        );
        let config = lab.path(&format!("{family}_peft/adapter_config.json"));
        let config: Value = serde_json::from_slice(&fs::read(config).unwrap()).unwrap();
        let fused = match family {
            "phi3" => vec!["qkv_proj"],
            "gpt_neox" => vec!["query_key_value"],
            _ => vec!["q_proj", "v_proj"],
        };
        assert_eq!(config["target_modules"], serde_json::json!(fused), "{family}");
    }
}
