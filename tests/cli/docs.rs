//! What the pages say can be done: every experiment, every block and command of the pages.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};
use ddprun::config::{self, Vocabulary};
use ddprun::kinds::Kinds;
use ddprun::nn::state_dict::save_state_dict;
use ddprun::plan::ModelPlan;
use hound::{SampleFormat, WavSpec, WavWriter};
use serde_json::json;

use crate::harness::experiments::BASE;
use crate::harness::lab::{Lab, children};
use crate::hf_dataset::write_shard;
use crate::python_data::has_python;

pub(crate) fn project(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

pub(crate) fn read(name: &str) -> String {
    fs::read_to_string(project(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// All experiment files of the project, as paths from its folder.
fn experiments() -> Vec<String> {
    let mut found: Vec<String> = ["experiments", "examples"]
        .iter()
        .flat_map(|folder| children(&project(folder)))
        .filter(|path| path.extension().is_some_and(|kind| kind == "toml"))
        .map(|path| path.strip_prefix(project("")).unwrap().to_str().unwrap().to_owned())
        .collect();
    found.sort();
    found
}

#[expect(dead_code, reason = "its `main` is not called here")]
#[path = "../../examples/custom_backend.rs"]
mod custom_backend;
#[expect(dead_code, reason = "its `main` is not called here")]
#[path = "../../examples/custom_data.rs"]
mod custom_data;
#[expect(dead_code, reason = "its `main` is not called here")]
#[path = "../../examples/custom_optimizer.rs"]
mod custom_optimizer;
#[expect(dead_code, reason = "its `main` is not called here")]
#[path = "../../examples/custom_model.rs"]
mod custom_model;
#[expect(dead_code, reason = "its `main` is not called here")]
#[path = "../../examples/candle_model.rs"]
mod candle_model;

#[expect(dead_code, reason = "its `main` is not called here")]
#[path = "../../examples/custom_search.rs"]
mod custom_search;
#[expect(dead_code, reason = "its `main` is not called here")]
#[path = "../../examples/custom_layer.rs"]
mod custom_layer;
#[expect(dead_code, reason = "its `main` is not called here")]
#[path = "../../examples/custom_sink.rs"]
mod custom_sink;
#[expect(dead_code, reason = "its `main` is not called here")]
#[path = "../../examples/custom_tracker.rs"]
mod custom_tracker;
#[expect(dead_code, reason = "its `main` is not called here")]
#[path = "../../examples/custom_transform.rs"]
mod custom_transform;

/// The pages that show experiments.
const GUIDES: [&str; 5] =
    ["README.md", "docs/data.md", "docs/experiments.md", "docs/models.md", "docs/runs.md"];

/// Whether a file is one of `ddprun sweep`.
fn is_sweep(name: &str) -> bool {
    read(name).lines().any(|line| line == "[sweep]")
}

/// The program's kinds, and those that the examples register.
fn vocabulary() -> Vocabulary {
    let mut own = custom_optimizer::kinds();
    custom_data::register(&mut own);
    own.models = custom_model::kinds().models;
    candle_model::register(&mut own);
    custom_search::register(&mut own);
    own.add_layer::<custom_layer::GlobalResponseNorm>();
    own.sinks = custom_sink::kinds().sinks;
    own.backends = custom_backend::kinds().backends;
    own.sinks.add::<custom_tracker::Tracker>();
    own.transforms = custom_transform::kinds().transforms;
    own.vocabulary()
}

/// A fenced block: its language, what stands behind it, its first line (counted from 1) and its text.
pub(crate) struct Block {
    pub(crate) language: String,
    options: String,
    pub(crate) line: usize,
    pub(crate) text: String,
}

impl Block {
    /// True if this word stands behind the language.
    pub(crate) fn says(&self, word: &str) -> bool {
        self.options.split_whitespace().any(|other| other == word)
    }

    /// The value of an option behind the language: `file=x.toml`.
    pub(crate) fn option(&self, name: &str) -> Option<&str> {
        let options = self.options.split_whitespace().filter_map(|word| word.split_once('='));
        options.into_iter().find(|(option, _)| *option == name).map(|(_, value)| value)
    }
}

pub(crate) fn blocks(page: &str) -> Vec<Block> {
    let mut found: Vec<Block> = Vec::new();
    let mut is_open = false;
    for (index, line) in page.lines().enumerate() {
        match line.trim_start().strip_prefix("```") {
            Some(_) if is_open => is_open = false,
            Some(info) => {
                let (language, options) = info.split_once([',', ' ']).unwrap_or((info, ""));
                let (language, options) = (language.to_owned(), options.to_owned());
                found.push(Block { language, options, line: index + 2, text: String::new() });
                is_open = true;
            }
            None if is_open => found.last_mut().unwrap().text.extend([line, "\n"]),
            None => {}
        }
    }
    assert!(!is_open, "a block is not closed");
    found
}

/// `weak` with the keys of `strong`, table by table.
fn merge(weak: &mut toml::Table, strong: toml::Table) {
    for (key, value) in strong {
        match (weak.get_mut(&key), value) {
            (Some(toml::Value::Table(below)), toml::Value::Table(above)) => merge(below, above),
            (_, value) => drop(weak.insert(key, value)),
        }
    }
}

/// A fragment, completed to an experiment. Where it names another kind, keys of the base's kind
/// fall away.
fn completed(fragment: &str) -> String {
    let strong: toml::Table = toml::from_str(fragment).unwrap();
    let mut weak: toml::Table = toml::from_str(BASE).unwrap();
    for name in ["model", "data", "optimizer"] {
        if strong.get(name).is_some_and(|table| table.get("name").is_some()) {
            weak.remove(name);
        }
    }
    if strong.get("train").is_some_and(|train| train.get("steps").is_some()) {
        weak["train"].as_table_mut().unwrap().remove("epochs");
    }
    merge(&mut weak, strong);
    toml::to_string(&weak).unwrap()
}

#[test]
fn every_experiment_of_the_project_is_understood() {
    let vocabulary = vocabulary();
    assert!(experiments().len() >= 5, "{:?}", experiments());
    for name in experiments() {
        let path = project(&name);
        let problems = if is_sweep(&name) {
            config::sweep::load(&path, &[], &vocabulary).err()
        } else {
            config::load(&path, &[], &vocabulary).err()
        };
        if let Some(problems) = problems {
            panic!("{}", problems.page(false, 100));
        }
    }
}

#[test]
fn every_toml_block_of_the_guides_is_understood() {
    let vocabulary = vocabulary();
    let mut n_blocks = 0;
    for page in GUIDES {
        for block in blocks(&read(page)).into_iter().filter(|block| block.language == "toml") {
            let is_fragment = block.text.starts_with("# fragment");
            let text = if is_fragment { completed(&block.text) } else { block.text };
            let path = format!("{page}, block of line {}", block.line);
            if let Err(problems) = config::load_text(Path::new(&path), &text, &[], &vocabulary) {
                panic!("{path}:\n{}", problems.page(false, 100));
            }
            n_blocks += 1;
        }
    }
    assert!(n_blocks >= 8, "the guides show {n_blocks} experiments");
}

/// Every block of the page about sweeps that is a whole file, or `# fragment` of `[sweep]`, over
/// the quickstart.
#[test]
fn every_toml_block_about_sweeps_is_understood() {
    let vocabulary = vocabulary();
    let lab = Lab::new();
    lab.write("quickstart.toml", read("experiments/quickstart.toml"));
    let blocks = blocks(&read("docs/sweeps.md"));
    let blocks: Vec<Block> = blocks.into_iter().filter(|block| block.language == "toml").collect();
    assert!(blocks.len() >= 5, "{}", blocks.len());
    for block in blocks {
        let is_fragment = block.text.starts_with("# fragment");
        let head = "schema = 1\nbase = \"quickstart.toml\"\n[sweep]\n";
        let text = if is_fragment { head.to_owned() + &block.text } else { block.text };
        let path = lab.write("block.toml", text);
        if let Err(problems) = config::sweep::load(&path, &[], &vocabulary) {
            panic!("docs/sweeps.md, block of line {}:\n{}", block.line, problems.page(false, 100));
        }
    }
}

/// A command line of a page.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Documented {
    /// What another launcher is told: its flags, and variables before it.
    pub(crate) launcher: Vec<String>,
    /// The arguments of ddprun.
    pub(crate) words: Vec<String>,
}

impl Documented {
    /// The value of a flag of the launcher.
    pub(crate) fn flag(&self, names: &[&str]) -> Option<&str> {
        let at = self.launcher.iter().position(|word| names.contains(&word.as_str()))?;
        self.launcher.get(at + 1).map(String::as_str)
    }

    /// The launcher's ranks and machines as flags of ddprun.
    fn launch(&self) -> Vec<String> {
        let ranks = self.flag(&["-n", "-np", "--nproc-per-node", "--ntasks-per-node"]);
        let ranks = ranks.map(|ranks| ["--nproc-per-node".to_owned(), ranks.to_owned()]);
        let nodes = self.flag(&["--nnodes"]);
        let nodes = nodes.map(|nodes| ["--nnodes".to_owned(), nodes.to_owned()]);
        ranks.into_iter().chain(nodes).flatten().collect()
    }
}

/// Every command line of ddprun in `lines`, without its comment and where its output goes.
fn commands<'a>(lines: impl Iterator<Item = &'a str>) -> BTreeSet<Documented> {
    let of_line = |line: &str| {
        let line = line.trim().trim_start_matches("$ ").replace("cargo run --release --", "ddprun");
        let line = line.split("  ").next().unwrap_or_default();
        let line = line.split(" #").next().unwrap_or_default();
        let line = line.split(" > ").next().unwrap_or_default();
        let plain = |word: &str| word.trim_matches(['"', '\'']).to_owned();
        let words: Vec<String> = line.split_whitespace().map(plain).collect();
        let is_it = |word: &String| word == "ddprun" || word.ends_with("/ddprun");
        let at = words.iter().position(is_it)?;
        let (launcher, words) = (words[..at].to_vec(), words[at + 1..].to_vec());
        let is_known = launcher.iter().all(|word| word.contains('='))
            || launcher.iter().any(|word| ["torchrun", "srun", "mpirun"].contains(&word.as_str()));
        is_known.then_some(Documented { launcher, words })
    };
    lines.filter_map(of_line).filter(|command| !command.words.is_empty()).collect()
}

/// The pages in this folder; beside `docs`, those of the project's own.
fn pages(folder: &str) -> Vec<String> {
    let docs = children(&project(folder)).into_iter();
    let docs = docs.filter(|path| path.extension().is_some_and(|end| end == "md"));
    let docs =
        docs.map(|path| path.strip_prefix(project("")).unwrap().to_str().unwrap().to_owned());
    let own = ["README.md", "CONTRIBUTING.md"].map(str::to_owned).into_iter();
    let mut all: Vec<String> = docs.chain(own.filter(|_| folder == "docs")).collect();
    all.sort();
    all
}

/// Commands of the shell blocks of the pages in this folder.
fn commands_of_pages(folder: &str) -> BTreeSet<Documented> {
    let shell = pages(folder)
        .iter()
        .flat_map(|page| blocks(&read(page)))
        .filter(|block| ["sh", "console", "bash", "shell"].contains(&block.language.as_str()))
        .collect::<Vec<_>>();
    commands(shell.iter().flat_map(|block| block.text.lines()))
}

/// Commands of all pages' shell blocks and of the comments of all experiments. Those of `docs/learn`
/// are typed in [`crate::learn`], each in the folder that its page makes.
pub(crate) fn documented() -> BTreeSet<Documented> {
    let mut found = commands_of_pages("docs");
    assert!(found.len() > 60, "the pages show {} commands", found.len());
    for name in experiments() {
        let text = read(&name);
        found.extend(commands(text.lines().filter_map(|line| line.strip_prefix("# "))));
    }
    found
}

/// Data of the kinds that the project's experiments read, as little as their plans need.
fn write_data(lab: &Lab) {
    for split in ["train", "test"] {
        for class in ["cat", "dog"] {
            let name = |index: usize| format!("data/cifar10-images/{split}/{class}/{index}.png");
            (0..512).for_each(|index| drop(lab.write(&name(index), "")));
        }
    }
    for split in ["train", "val"] {
        for class in 0..90 {
            lab.write(&format!("data/animals90/{split}/animal{class:02}/1.jpg"), "");
        }
    }
    for part in ["train", "val"] {
        let images: Vec<String> = (0..64).map(|index| format!("{part}/{index}.jpg")).collect();
        let mut text = "image,fur,feathers,swims,hooves,hunts,farm\n".to_owned();
        for image in images {
            lab.write(&format!("data/animals22/{image}"), "");
            text += &format!("{image},1,0,0,1,0,0\n");
        }
        lab.write(&format!("data/animals22/{part}.csv"), text);
    }
    for (name, rows, series) in
        [("ETTh1", 14_400, 7), ("exchange_rate", 3000, 8), ("traffic", 5000, 9)]
    {
        let header: Vec<String> = (0..series).map(|i| format!("s{i}")).collect();
        let row = vec!["1"; series].join(",");
        let first = jiff::civil::date(2016, 7, 1);
        let dated = |day: usize| format!("{},{row}\n", first + jiff::Span::new().days(day as i64));
        let rows: String = (0..rows).map(dated).collect();
        let text = format!("date,{}\n{rows}", header.join(","));
        lab.write(&format!("data/forecast/{name}.csv"), text);
    }
    write_trajectories(lab);
    write_speech(lab);
    lab.write("data/tinyshakespeare/input.txt", "to be, or not to be\n".repeat(1000));
    lab.write("LICENSE-APACHE", read("LICENSE-APACHE"));
    write_instructions(lab);
    write_repository(lab);
    for split in ["train", "t10k"] {
        let number = |n: u32| n.to_be_bytes();
        let images = [0x803, 3000, 28, 28].map(number).concat();
        let images = [images, vec![0; 3000 * 28 * 28]].concat();
        lab.write(&format!("data/mnist/{split}-images-idx3-ubyte"), images);
        let labels = [0x801, 3000].map(number).concat();
        let labels = [labels, (0..3000).map(|index| (index % 10) as u8).collect()].concat();
        lab.write(&format!("data/mnist/{split}-labels-idx1-ubyte"), labels);
    }
}

/// Twenty episodes of a hundred steps.
fn write_trajectories(lab: &Lab) {
    let numbers = |n: usize| (0..2000 * n).map(|i| (i % 100) as f32).collect::<Vec<_>>();
    let starts: Vec<u8> = (0..2000).map(|step| u8::from(step % 100 == 0)).collect();
    let cpu = &Device::Cpu;
    let arrays = [
        ("obs", Tensor::from_vec(numbers(3), (2000, 3), cpu).unwrap()),
        ("actions", Tensor::from_vec(numbers(1), (2000, 1), cpu).unwrap()),
        ("episode_starts", Tensor::from_vec(starts, 2000, cpu).unwrap()),
    ];
    let path = lab.write("data/control/pendulum_expert.npz", "");
    Tensor::write_npz(&arrays, path).unwrap();
}

/// Snapshot of the Llama of an experiment in the hub's cache.
const SMOL_LM: &str = "hf/hub/models--HuggingFaceTB--SmolLM2-135M/snapshots/\
                       93efa2f097d58c2a74874c7e644dbc9b0cee75a2";

/// Instructions, and the sizes and the tokenizer of a tiny Llama.
fn write_instructions(lab: &Lab) {
    let entries = vec![json!({"instruction": "ab", "input": "", "output": "ba"}); 5000];
    lab.write("data/alpaca_data.json", json!(entries).to_string());
    let sizes = json!({"vocab_size": 8, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": true});
    let commit = SMOL_LM.rsplit('/').next().unwrap();
    lab.write("hf/hub/models--HuggingFaceTB--SmolLM2-135M/refs/main", commit);
    lab.write(&format!("{SMOL_LM}/config.json"), sizes.to_string());
    let vocabulary = json!({"<|endoftext|>": 0, "a": 1, "b": 2});
    let tokenizer = json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []}});
    lab.write(&format!("{SMOL_LM}/tokenizer.json"), tokenizer.to_string());
}

/// Digits of the hub, in its cache.
fn write_repository(lab: &Lab) {
    let folder = "hf/hub/datasets--ylecun--mnist";
    let commit = "77f3279092a1c1579b2250db8eafed0ad422088c";
    lab.write(&format!("{folder}/refs/main"), commit);
    for (split, n) in [("train", 3000), ("test", 1000)] {
        let name = format!("{folder}/snapshots/{commit}/mnist/{split}-00000-of-00001.parquet");
        let rows = (0..n).map(|index| (Vec::from(b"image"), index % 10));
        write_shard(&lab.path(&name), &rows.collect::<Vec<_>>());
    }
}

/// Weights of the model that the experiment `name` starts from, with these changes, as if it had
/// been trained.
fn write_weights(lab: &Lab, name: &str, changes: &[&str], path: &str) {
    let plan =
        [&["plan", "--json", name, "~model.pretrained", "~model.strict"][..], changes].concat();
    let page: serde_json::Value = serde_json::from_str(&lab.run_to(0, &plan).stdout).unwrap();
    let model: ModelPlan = serde_json::from_value(page["plan"]["model"].clone()).unwrap();
    let (_, params) = Kinds::default().models.instantiate(&model, 1).unwrap();
    lab.write(path, save_state_dict(&params).unwrap());
}

/// Half a second of silence for each of ten digits, several times.
fn write_speech(lab: &Lab) {
    let spec = WavSpec {
        channels: 1,
        sample_rate: 8000,
        bits_per_sample: 16,
        sample_format: SampleFormat::Int,
    };
    for (split, takes) in [("train", 6), ("val", 2)] {
        for (digit, take) in (0..10).flat_map(|digit| (0..takes).map(move |take| (digit, take))) {
            let path = lab.write(&format!("data/digits/{split}/{digit}_voice_{take}.wav"), "");
            let mut file = WavWriter::create(path, spec).unwrap();
            (0..4000).for_each(|_| file.write_sample(0i16).unwrap());
            file.finalize().unwrap();
        }
    }
}

/// A lab that looks like the project's folder, with data.
pub(crate) fn copy_of_the_project() -> Lab {
    let lab = Lab::new();
    for name in experiments() {
        lab.write(&name, read(&name));
    }
    write_data(&lab);
    for path in children(&project("experiments/data")) {
        let name = format!("experiments/data/{}", path.file_name().unwrap().to_str().unwrap());
        lab.write(&name, read(&name));
    }
    write_weights(&lab, "experiments/chat_tiny.toml", &[], "weights/chat-tiny/model.safetensors");
    let sizes = json!({"vocab_size": 192, "hidden_size": 64, "intermediate_size": 176,
        "num_hidden_layers": 3, "num_attention_heads": 4, "tie_word_embeddings": true});
    lab.write("weights/chat-tiny/config.json", sizes.to_string());
    let probe = "experiments/probe_digits.toml";
    write_weights(&lab, probe, &[], "weights/nest_digits.safetensors");
    let cifar = "experiments/finetune_cifar10.toml";
    write_weights(&lab, cifar, &[], "weights/resnet20-12fca82f.safetensors");
    let sizes =
        ["num_classes=8", "d_model=16", "d_ff=16", "n_layers=1", "n_heads=2", "n_kv_heads=1"];
    let sizes = sizes.map(|size| format!("model.{size}"));
    let mut changes: Vec<&str> = sizes.iter().map(String::as_str).collect();
    changes.push("model.tie_word_embeddings=true");
    let llama = "experiments/llama_lora.toml";
    write_weights(&lab, llama, &changes, &format!("{SMOL_LM}/model.safetensors"));
    lab
}

#[test]
fn every_experiment_of_the_project_has_a_plan_where_its_data_is() {
    let lab = copy_of_the_project();
    let has_python = has_python();
    let can_be_read = |name: &String| has_python || !name.contains("/python_");
    let ours =
        |name: &String| name.starts_with("experiments/") && !is_sweep(name) && can_be_read(name);
    for name in experiments().into_iter().filter(ours) {
        let page = lab.run_to(0, &["plan", &name]).stdout;
        assert!(page.contains("steps per epoch") || page.contains("step per epoch"), "{page}");
    }
    assert!(!lab.path("logs").exists());
}

#[test]
fn every_documented_training_has_a_plan() {
    let lab = copy_of_the_project();
    let mut plans = BTreeSet::new();
    for command in documented() {
        let launch = command.launch();
        let words = command.words.iter().chain(&launch);
        let words: Vec<&str> = words.map(String::as_str).collect();
        let verb = words.iter().take_while(|word| ["plan", "doctor", "try"].contains(word)).count();
        let words = &words[verb..];
        let Some(file) = words.iter().find(|word| word.contains(".toml")) else { continue };
        // The user's own file, models that only a program of the user's own knows, and sweeps and
        // jobs, which have no plan.
        let is_other = ["sweep", "submit", "eval", "init", "check"].contains(&words[0]);
        let is_python = file.starts_with("experiments/python_") && !has_python();
        if file.starts_with("experiments/") && !is_other && !is_python {
            plans.insert(words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>());
        }
    }
    for words in &plans {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        lab.run_to(0, &[&["plan"], &words[..]].concat());
    }
    assert!(plans.len() > 20, "{plans:?}");
}

#[test]
fn every_documented_verb_exists() {
    let lab = Lab::new();
    for Documented { words, .. } in documented().union(&commands_of_pages("docs/learn")) {
        let is_verb = |word: &&String| !word.contains(['.', '=', '/', '<', '[', '-', '"']);
        let verbs = words.iter().take(2).take_while(is_verb).map(String::as_str);
        let verbs: Vec<&str> = verbs.collect();
        // After `checkpoint` a second verb follows; after the others a run, which may be any word.
        let n_verbs = if verbs.first() == Some(&"checkpoint") { 2 } else { 1 };
        let verbs = &verbs[..verbs.len().min(n_verbs)];
        if !verbs.is_empty() {
            lab.run_to(0, &[verbs, &["--help"]].concat());
        }
    }
}

#[test]
fn every_key_is_documented_by_the_schema_verb() {
    let lab = Lab::new();
    let page = lab.run_to(0, &["schema"]).stdout;
    assert_eq!(page, Kinds::default().vocabulary().reference());
    for key in ["global_batch_size", "find_unused_parameters", "on_bad_sample", "label_smoothing"] {
        assert!(page.contains(key), "{key}");
    }
    let one = lab.run_to(0, &["schema", "data.mixup"]).stdout;
    assert!(one.starts_with("[data.mixup]\n") && page.contains(&one), "{one}");
    assert_eq!(one.lines().filter(|line| line.starts_with('[')).count(), 1, "{one}");
    let list = lab.run_to(0, &["schema", "model"]).stdout;
    assert!(list.lines().count() < 200, "{list}");
    for words in ["# \"resnet18\": ", "num_classes = \"auto\"", "`ddprun schema model "] {
        assert!(list.contains(words), "{words}: {list}");
    }
    let mlp = lab.run_to(0, &["schema", "model", "mlp"]).stdout;
    assert!(mlp.contains("[model]\nname = \"mlp\"\n") && mlp.contains("# hidden = "), "{mlp}");
    assert_eq!(lab.run_to(0, &["schema", "model.mlp"]).stdout, mlp);
    let schema = lab.run_to(0, &["schema", "model.mlp", "--json-schema"]).stdout;
    let schema: serde_json::Value = serde_json::from_str(&schema).unwrap();
    assert_eq!(schema["properties"]["name"]["const"], "mlp");
    let conv = lab.run_to(0, &["schema", "model.layers", "conv2d"]).stdout;
    assert!(conv.contains("[[model.layers]]\nname = \"conv2d\"\n"), "{conv}");
    let near = "did you mean `ddprun schema model resnet18`?";
    lab.run_to(2, &["schema", "model", "resnett18"]).says(&["`model` has no `resnett18`", near]);
    lab.run_to(2, &["schema", "optimiser"]).says(&["did you mean `optimizer`?"]);
    let page = lab.run_to(0, &["schema", "--sweep"]).stdout;
    for key in ["devices_per_trial", "reduction_factor = 3", "\"lr_range\": one run"] {
        assert!(page.contains(key), "{key}");
    }
}
