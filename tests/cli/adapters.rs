//! Adapters on the weights of a file, which stay in that file: what checkpoints hold, what a resume
//! compares, and what `ddprun plan` counts without building anything.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor, safetensors};
use serde_json::{Value, json};

use crate::harness::lab::{BINARY, Lab, children};
use crate::harness::running::spawn;

/// A Llama of some thousand weights, which learns a text letter by letter.
const BASE: &str = r#"schema = 1

[experiment]
name = "base"
seed = 7

[model]
name = "llama"
d_model = 16
d_ff = 24
n_layers = 2
n_heads = 2
n_kv_heads = 1

[data]
name = "tokens"
file = "text.txt"
seq_len = 8
num_workers = 0

[train]
steps = 4
global_batch_size = 4

[optimizer]
name = "adamw"
lr = 1e-2

[distributed]
shards = 2
threads_per_rank = 1
"#;

const LORA: &str = "
[model.lora]
r = 2
dropout = 0.25
targets = [\"q_proj\", \"v_proj\", \"down_proj\"]

[checkpoint]
every = \"2 steps\"
";

type Tensors = HashMap<String, Tensor>;

/// A lab whose `small.toml` trains adapters on the bf16 weights in `base`, which an index names.
fn lab() -> Lab {
    let lab = Lab::with(&(BASE.replace("\"base\"", "\"small\"") + LORA));
    lab.write("base.toml", BASE);
    lab.write("text.txt", "a bee in no prairie rests, and no tree is near\n".repeat(20));
    lab.run_to(0, &["base.toml"]);
    let latest = children(&lab.path("checkpoints/base")).remove(0).join("latest");
    lab.run_to(0, &["checkpoint", "export", latest.to_str().unwrap(), "f32/model.safetensors"]);
    let halves: Tensors = tensors(&lab.path("f32/model.safetensors"))
        .into_iter()
        .map(|(name, tensor)| (name, tensor.to_dtype(DType::BF16).unwrap()))
        .collect();
    write_base(&lab, "base", &halves);
    let pretrained = "pretrained = \"base/model.safetensors.index.json\"\nn_heads";
    let text = fs::read_to_string(lab.path("small.toml")).unwrap();
    lab.write("small.toml", text.replacen("n_heads", pretrained, 1));
    lab
}

/// Writes two files of weights and their index.
fn write_base(lab: &Lab, folder: &str, all: &Tensors) {
    let name = |name: &str| {
        let part = 1 + usize::from(name.contains("layers.1") || name == "lm_head.weight");
        format!("model-0000{part}-of-00002.safetensors")
    };
    let mut parts: BTreeMap<String, Tensors> = BTreeMap::new();
    for (key, tensor) in all.iter().collect::<BTreeMap<_, _>>() {
        parts.entry(name(key)).or_default().insert(key.clone(), tensor.clone());
    }
    let weight_map: BTreeMap<&String, String> = all.keys().map(|key| (key, name(key))).collect();
    let index = json!({ "metadata": {}, "weight_map": weight_map });
    lab.write(&format!("{folder}/model.safetensors.index.json"), index.to_string());
    for (name, tensors) in parts {
        // A new file in the place of the old one, which a run may have mapped.
        let path = lab.path(folder).join(name);
        let new = path.with_extension("new");
        safetensors::save(&tensors, &new).unwrap();
        fs::rename(new, path).unwrap();
    }
}

fn tensors(path: &Path) -> Tensors {
    safetensors::load(path, &Device::Cpu).unwrap()
}

/// The newest checkpoint of the only run of this name.
fn latest(lab: &Lab, name: &str) -> PathBuf {
    children(&lab.path(&format!("checkpoints/{name}"))).remove(0).join("latest")
}

fn weights(lab: &Lab, name: &str) -> Vec<u8> {
    fs::read(latest(lab, name).join("model.safetensors")).unwrap()
}

#[test]
fn a_checkpoint_of_adapters_holds_them_and_names_the_base() {
    let lab = lab();
    let planned = lab.run_to(0, &["plan", "small.toml"]).stdout;
    assert!(planned.contains("llama: 384 trainable of "), "{planned}");
    assert!(planned.contains("base, in its file, "), "{planned}");
    let run = |name: &str, more: &[&str]| {
        let name = format!("experiment.name={name}");
        lab.run_to(0, &[&["small.toml", &name], more].concat());
    };
    run("one", &[]);
    run("two", &["distributed.devices=2"]);
    run(
        "wide",
        &["model.pretrained=wide.safetensors"].map(|it| {
            let wide = tensors(&lab.path("base/model-00001-of-00002.safetensors")).into_iter();
            let wide = wide.chain(tensors(&lab.path("base/model-00002-of-00002.safetensors")));
            let wide: Tensors =
                wide.map(|(name, tensor)| (name, tensor.to_dtype(DType::F32).unwrap())).collect();
            safetensors::save(&wide, lab.path("wide.safetensors")).unwrap();
            it
        }),
    );
    let one = weights(&lab, "one");
    assert!(one == weights(&lab, "two"), "one rank and two have the same bits");
    assert!(one == weights(&lab, "wide"), "bf16 in the file, and the same numbers in f32");
    let held = tensors(&latest(&lab, "one").join("model.safetensors"));
    assert_eq!(held.len(), 12);
    assert!(held.keys().all(|name| name.contains(".lora_")), "{:?}", held.keys());
    let shown =
        lab.run_to(0, &["checkpoint", "show", latest(&lab, "one").to_str().unwrap()]).stdout;
    assert!(shown.contains("adapters on `") && shown.contains("index.json`"), "{shown}");

    let exported = |args: &[&str]| {
        let checkpoint = latest(&lab, "one");
        let args = [&["checkpoint", "export", checkpoint.to_str().unwrap()], args].concat();
        lab.run_to(0, &args);
    };
    exported(&["merged.safetensors", "--merge"]);
    let (base, merged) =
        (tensors(&lab.path("wide.safetensors")), tensors(&lab.path("merged.safetensors")));
    let differs = |name: &String| {
        let difference = (&base[name] - &merged[name]).unwrap().abs().unwrap();
        difference.sum_all().unwrap().to_scalar::<f32>().unwrap() > 0.0
    };
    let changed: Vec<&String> = base.keys().filter(|name| differs(name)).collect();
    assert_eq!((merged.len(), changed.len()), (base.len(), 6), "{changed:?}");
    exported(&["whole.safetensors"]);
    assert_eq!(tensors(&lab.path("whole.safetensors")).len(), base.len() + 12);
    exported(&["model.onnx"]);
    exported(&["peft", "--peft"]);
    assert_eq!(tensors(&lab.path("peft/adapter_model.safetensors")).len(), 12);
    // From a checkpoint of adapters with all that is below them.
    run("again", &["model.pretrained=run:one/latest"]);
    assert_eq!(tensors(&latest(&lab, "again").join("model.safetensors")).len(), base.len() + 12);
    for word in ["one", "again"] {
        let told = lab.run_to(0, &["eval", word]).stdout;
        assert!(told.contains("loss"), "{told}");
        let said = lab.run_to(0, &["sample", word, "--prompt", "a bee", "--tokens", "5"]).stdout;
        assert!(said.starts_with("a bee"), "{said}");
    }
    lab.is_clean();
}

#[test]
fn a_resume_takes_the_base_again_and_refuses_another() {
    let lab = lab();
    let run = |name: &str, more: &[&str]| {
        let name = format!("experiment.name={name}");
        lab.run_to(0, &[&["small.toml", &name], more].concat());
    };
    run("whole", &["train.steps=6"]);
    run("again", &["train.steps=6", "model.pretrained=f32/model.safetensors"]);
    run("part", &["train.steps=2"]);
    lab.run_to(0, &["resume", "part", "train.steps=6", "distributed.devices=2"]);
    assert!(weights(&lab, "part") == weights(&lab, "whole"));
    assert!(weights(&lab, "again") != weights(&lab, "whole"));

    // Base weights in the checkpoint, as those of another run are.
    run("below", &["model.pretrained=run:base", "train.steps=2"]);
    run("through", &["model.pretrained=run:base", "train.steps=6"]);
    lab.run_to(0, &["resume", "below", "train.steps=6"]);
    assert!(weights(&lab, "below") == weights(&lab, "through"));

    let index = lab.path("base/model.safetensors.index.json");
    let there = fs::read(&index).unwrap();
    fs::remove_file(&index).unwrap();
    let words = ["index.json`, on which the adapters were trained, cannot be used"];
    lab.run_to(7, &["resume", "part", "train.steps=8"]).says(&words);
    lab.run_to(7, &["sample", "part", "--prompt", "a"]).says(&words);
    let checkpoint = latest(&lab, "part");
    let export = ["checkpoint", "export", checkpoint.to_str().unwrap()];
    let refused = lab.run_to(7, &[&export[..], &["x.safetensors", "--merge"]].concat());
    refused.says(&[words[0], "put the file back, or a link to it"]);
    lab.run_to(0, &["checkpoint", "verify", export[2]]);
    lab.run_to(0, &[&export[..], &["peft", "--peft"]].concat());
    fs::write(&index, there).unwrap();
    let mut others = tensors(&lab.path("base/model-00001-of-00002.safetensors"));
    others.extend(tensors(&lab.path("base/model-00002-of-00002.safetensors")));
    let norm = others.get_mut("model.norm.weight").unwrap();
    *norm = (&*norm * 2.0).unwrap();
    write_base(&lab, "base", &others);
    let words = ["the adapters were not trained on `", "base/model.safetensors.index.json`, whose"];
    lab.run_to(7, &["resume", "part", "train.steps=8"]).says(&words);
    lab.run_to(7, &["eval", "part"]).says(&words);
    lab.wait_for_all();
}

#[test]
fn a_run_of_adapters_goes_on_from_its_mirror() {
    let lab = lab();
    fs::create_dir(lab.path("mirror")).unwrap();
    lab.run_to(0, &["small.toml", "experiment.name=whole", "train.steps=6"]);
    lab.run_to(0, &["small.toml", "checkpoint.mirror=mirror"]);
    for folder in ["logs/small", "checkpoints/small"] {
        fs::remove_dir_all(lab.path(folder)).unwrap();
    }
    lab.run_to(0, &["resume", "--from", "mirror", "train.steps=6"]);
    assert!(weights(&lab, "small") == weights(&lab, "whole"));
}

/// The header of a safetensors file with these bf16 tensors, and zeros that take no space.
fn sparse(path: &Path, tensors: &[(String, Vec<usize>)]) {
    let mut at = 0;
    let mut header = serde_json::Map::new();
    for (name, shape) in tensors {
        let end = at + 2 * shape.iter().product::<usize>();
        let tensor = json!({ "dtype": "BF16", "shape": shape, "data_offsets": [at, end] });
        header.insert(name.clone(), tensor);
        at = end;
    }
    let text = Value::Object(header).to_string();
    let start = [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    fs::write(path, &start).unwrap();
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_len((start.len() + at) as u64).unwrap();
}

#[test]
fn eight_billion_weights_are_planned_without_being_read() {
    let lab = Lab::with(
        "[model]\nname = \"llama\"\npretrained = \"8b/model.safetensors\"\nlora.r = 8\n[data]\n\
         name = \"tokens\"\nfile = \"text.txt\"\nseq_len = 128\n[train]\nsteps = 2\nglobal_batch_size = 2\n[optimizer]\n\
         name = \"adamw\"\n[distributed]\ndevices = 2\n",
    );
    lab.write("text.txt", "a bee in no prairie rests, and no tree is near\n".repeat(60));
    let letters = fs::read_to_string(lab.path("text.txt")).unwrap();
    let letters: std::collections::BTreeSet<char> = letters.chars().collect();
    let (width, inner, kept, vocabulary) = (4096, 14_336, 1024, letters.len());
    let config = json!({
        "model_type": "llama", "hidden_size": width, "intermediate_size": inner,
        "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 36,
        "vocab_size": vocabulary, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0, "tie_word_embeddings": false, "hidden_act": "silu"
    });
    lab.write("8b/config.json", config.to_string());
    let mut all = vec![("model.embed_tokens.weight".to_owned(), vec![vocabulary, width])];
    for layer in 0..36 {
        let name = |part: &str| format!("model.layers.{layer}.{part}.weight");
        for (part, shape) in [
            ("self_attn.q_proj", vec![width, width]),
            ("self_attn.k_proj", vec![kept, width]),
            ("self_attn.v_proj", vec![kept, width]),
            ("self_attn.o_proj", vec![width, width]),
            ("mlp.gate_proj", vec![inner, width]),
            ("mlp.up_proj", vec![inner, width]),
            ("mlp.down_proj", vec![width, inner]),
            ("input_layernorm", vec![width]),
            ("post_attention_layernorm", vec![width]),
        ] {
            all.push((name(part), shape));
        }
    }
    all.push(("model.norm.weight".to_owned(), vec![width]));
    all.push(("lm_head.weight".to_owned(), vec![vocabulary, width]));
    sparse(&lab.path("8b/model.safetensors"), &all);
    // Two gigabytes of addresses beside the threads' stacks: the weights would not find room.
    let limited = format!("ulimit -v 4000000; exec {BINARY} plan small.toml");
    let planned = spawn(lab.command("sh", &["-c", &limited])).wait();
    planned.has_code(0);
    let page = planned.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    for words in [
        "llama: 3,833,856 trainable of 7.86 B in 144 tensors",
        "base, in its file, 14.6",
        "in all: ",
        " into this machine's ",
    ] {
        assert!(page.contains(words), "{words}: {page}");
    }
    fs::remove_file(lab.path("8b/model.safetensors")).unwrap();
    let absent = lab.run_to(2, &["plan", "small.toml"]);
    absent.says(&["`8b/model.safetensors` cannot be read", "pretrained = "]);
}
