//! Speech by manifests and chats by templates: evaluated, predicted, answered, and refused where they
//! are wrong.

use std::fs;
use std::path::Path;

use serde_json::json;

use crate::harness::lab::{Lab, children};
use crate::harness::running::spawn;

const SPEECH: &str = r#"schema = 1

[experiment]
name = "small"
seed = 3

[model]
name = "fastconformer"
d_model = 8
n_heads = 2
n_layers = 1
subsampling_channels = 4

[data]
name = "speech"
train_manifest = "train.json"
val_manifest = "val.json"
test_manifest = "val.json"
noise_manifest = "noise.json"
min_duration = 0.1
n_mels = 8
num_workers = 0

[train]
epochs = 1
batch_size = 2
global_batch_size = 4

[optimizer]
name = "adamw"
lr = 1e-2

[distributed]
shards = 2
threads_per_rank = 1
"#;

/// Manifests of recordings of every format, in parts of some tenths of a second.
pub(crate) fn speech() -> Lab {
    let lab = Lab::with(SPEECH);
    let audio = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/audio");
    let names = ["stereo.flac", "mono.ogg", "mono.mp3", "float.wav", "mulaw.wav"];
    for name in names {
        lab.write(&format!("audio/{name}"), fs::read(audio.join(name)).unwrap());
    }
    let line = |name: &str, offset: f64, duration: f64| {
        json!({"audio_filepath": format!("audio/{name}"), "offset": offset, "duration": duration,
            "label": &name[..4]})
        .to_string()
    };
    let lines = |from: f64, n: usize| {
        let all = names.iter().cycle().take(n).map(|name| line(name, from, 0.3));
        all.collect::<Vec<_>>().join("\n")
    };
    // Seven of ten are left: the last step is short.
    let short = line("mono.mp3", 0.0, 0.05);
    lab.write("train.json", format!("{}\n{short}\n{short}\n{short}\n", lines(0.1, 7)));
    lab.write("val.json", lines(0.5, 5));
    lab.write("noise.json", line("stereo.flac", 0.0, 2.0));
    lab
}

fn model(lab: &Lab, name: &str) -> Vec<u8> {
    let run = children(&lab.path(&format!("checkpoints/{name}"))).remove(0);
    fs::read(run.join("latest/model.safetensors")).unwrap()
}

#[test]
fn speech_of_manifests_is_learnt_evaluated_and_predicted() {
    let lab = speech();
    let planned = lab.run_to(0, &["plan", "small.toml"]).stdout;
    assert!(planned.contains("without 3 utterances below"), "{planned}");
    lab.run_to(0, &["small.toml", "experiment.name=one", "distributed.devices=1"]);
    let found = lab.run_to(0, &["eval", "one", "--json", "--part", "val"]).stdout;
    let found: serde_json::Value = serde_json::from_str(&found).unwrap();
    lab.run_to(0, &["predict", "one", "val.json", "audio", "--out", "preds.jsonl"]);
    let rows = fs::read_to_string(lab.path("preds.jsonl")).unwrap();
    let rows: Vec<serde_json::Value> =
        rows.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let classes: Vec<String> = fs::read_to_string(lab.path("val.json"))
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["label"].clone())
        .map(|label| label.as_str().unwrap().to_owned())
        .collect();
    let right = rows.iter().zip(&classes).filter(|(row, class)| row["class"] == **class).count();
    assert_eq!(right as f64 / 5.0, found["metrics"]["val/accuracy"].as_f64().unwrap());
    assert_eq!((rows.len(), &rows[4]["row"], &rows[5]["row"]), (10, &json!(5), &json!(null)));
    lab.write("noise.json", "{\"audio_filepath\": \"audio/hum.wav\", \"duration\": 1}");
    let refused = lab.run_to(3, &["small.toml"]);
    refused.says(&["noise.json`, line 1: the recording `", "hum.wav` does not exist"]);
    let refused = lab.run_to(2, &["small.toml", "~data.val_manifest"]);
    refused.says(&["`data.val_dir`: is missing: give it or `val_manifest`, or hold out samples"]);
    let refused = lab.run_to(2, &["small.toml", "data.max_duration=0.05"]);
    refused.says(&["`data.min_duration`: is more than `max_duration` = 0.05"]);
}

/// A graph of layers that learns from them.
pub(crate) fn graph() -> Lab {
    let lab = speech();
    let [model, rest] = SPEECH.split_once("[data]").map(|(a, b)| [a, b]).unwrap();
    let model = model.split_once("[model]").unwrap().0;
    let layers = r#"[model]
name = "graph"
layers = [
    { name = "conv1d", key = "conv", out_channels = 8, kernel_size = 3, stride = 2, padding = 1 }, { name = "gelu" },
    { name = "attention", key = "attention", n_heads = 2, p = 0.1 },
    { name = "global_avg_pool" }, { name = "linear", key = "fc" },
]
"#;
    lab.write("small.toml", format!("{model}{layers}\n[data]{rest}"));
    lab
}

#[test]
fn a_graph_that_learns_from_recordings_says_that_it_pays_no_heed_to_padding() {
    let planned = graph().run_to(0, &["plan", "small.toml"]).stdout;
    assert!(planned.contains("attention, 2 heads, without padding"), "{planned}");
}

const CHAT: &str = r#"schema = 1

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

[data]
name = "chat"
file = "chats.jsonl"
tokenizer = "tokenizer.json"
chat_template = "chatml"
seq_len = 48
val_ratio = 0.25
num_workers = 0

[train]
steps = 4
batch_size = 1
global_batch_size = 4

[optimizer]
name = "adamw"
lr = 1e-2

[distributed]
shards = 2
threads_per_rank = 1
"#;

/// Twelve conversations of a few letters.
pub(crate) fn chats() -> Lab {
    let lab = Lab::with(CHAT);
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/chat/tokenizer.json");
    lab.write("tokenizer.json", fs::read(golden).unwrap());
    let say = |role: &str, content: String| json!({"role": role, "content": content});
    let chat = |i: usize| {
        let messages = [say("user", "ab".repeat(i)), say("assistant", "ba".repeat(i + 1))];
        json!({ "messages": messages }).to_string()
    };
    lab.write("chats.jsonl", (0..12).map(chat).collect::<Vec<_>>().join("\n"));
    lab
}

#[test]
fn chats_are_learnt_and_answered() {
    let lab = chats();
    lab.run_to(0, &["small.toml", "experiment.name=one"]);
    let asked = lab.run_to(0, &["sample", "one", "--prompt", "ab", "--tokens", "5"]);
    assert!(asked.stdout.starts_with("ab\n"), "{asked:?}");
    let refused = lab.run_to(3, &["small.toml", "~data.chat_template"]);
    refused.says(&["no chat template stands beside it", "set `data.chat_template`"]);
    lab.write("chats.jsonl", "{\"messages\": []}");
    let refused = lab.run_to(3, &["small.toml"]);
    refused.says(&["chats.jsonl`, line 1: ", "there is nothing to learn"]);
}

#[test]
fn conversations_that_cannot_be_used_are_named_or_skipped() {
    let lab = chats();
    let good = fs::read_to_string(lab.path("chats.jsonl")).unwrap();
    let tools = r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant",
        "content": "b"}], "tools": [{"type": "function", "function": {"name": "f"}}]}"#;
    let tools = tools.replace('\n', "");
    lab.write("chats.jsonl", format!("{{\"id\": 3}}\n{tools}\n{good}"));
    let skip = ["data.on_bad_sample=skip", "data.max_bad_fraction=0.5"];
    let asked = lab.run_to(3, &["plan", "small.toml"]);
    asked.says(&["chats.jsonl`, line 1: it has neither `messages`", "2 of 14 conversations"]);
    let noted = lab.run_to(0, &["plan", "small.toml", skip[0]]);
    let words = noted.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains("2 of 14 conversations cannot be used and are skipped; line 1"),
        "{words}"
    );
    lab.run_to(0, &["small.toml", skip[0], skip[1]]);
    lab.write("chats.jsonl", format!("{good}\n{tools}"));
    let asked = lab.run_to(3, &["plan", "small.toml"]);
    asked.says(&["line 13: it has `tools`, which the chat template does not read"]);
}

#[test]
fn a_model_that_would_mix_packed_conversations_is_refused_in_plan() {
    let lab = chats();
    let (before, rest) = CHAT.split_once("[model]").unwrap();
    let (_, data) = rest.split_once("[data]").unwrap();
    let layers = "layers = [{ name = \"embedding\", out_features = 8 }, { name = \"linear\" }]";
    let graph = format!("{before}[model]\nname = \"graph\"\n{layers}\n\n[data]{data}");
    lab.write("graph.toml", graph);
    lab.run_to(0, &["plan", "graph.toml"]);
    let refused = lab.run_to(2, &["plan", "graph.toml", "data.packing=true"]);
    refused.says(&["`data.packing`: `graph` would mix the texts"]);
}

#[test]
fn long_files_of_conversations_become_tokens_once_for_all_ranks() {
    let lab = chats();
    let few = fs::read_to_string(lab.path("chats.jsonl")).unwrap() + "\n";
    lab.write("chats.jsonl", few.repeat((1 << 20) / few.len() + 1));
    let run = |cache: &str, args: &[&str]| {
        let mut command = lab.ddprun(args);
        command.env("DDPRUN_CACHE", cache);
        spawn(command).wait().has_code(0);
    };
    let train = |name: &str, cache: &str| {
        let name = format!("experiment.name={name}");
        run(cache, &["small.toml", &name, "distributed.devices=2"]);
    };
    let kept = || -> Vec<_> {
        let files = children(&lab.path("cache/tokens")).into_iter();
        files
            .filter(|file| !file.file_name().unwrap().to_string_lossy().starts_with("of-"))
            .collect()
    };
    run("cache", &["plan", "small.toml"]);
    let [file] = &kept()[..] else { panic!("{:?}", kept()) };
    let whole = fs::read(file).unwrap();
    train("kept", "cache");
    assert_eq!(kept(), std::slice::from_ref(file));
    fs::write(file, &whole[..whole.len() / 2]).unwrap();
    train("damaged", "cache");
    assert!(fs::read(file).unwrap() == whole, "it is written anew");
    train("held", "off");
    let bits = model(&lab, "held");
    assert!(bits == model(&lab, "kept") && bits == model(&lab, "damaged"), "the same bits");
}
