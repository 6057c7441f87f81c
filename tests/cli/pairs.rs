//! Every kind of data with every model: a pair takes a step, or is refused before anything starts,
//! with what the model takes and what the data is.

use candle_core::{Device, Tensor};
use ddprun::kinds::Kinds;
use hound::{SampleFormat, WavSpec, WavWriter};
use serde_json::{Map, Value, json};

use crate::harness::lab::{Lab, SAVED, children};
use crate::harness::running::flowing;
use crate::hf_dataset::write_pets;
use crate::webdataset::write_tars;

/// A name, its `[data]`, and the loss for which its targets are.
const DATA: [(&str, &str, &str); 11] = [
    (
        "shapes",
        "name = \"shapes\"\ndir = \"shapes\"\nclasses = 2\ntrain_per_class = 2\nval_per_class = 1\nimage_size = 32",
        "cross_entropy",
    ),
    (
        "image_folder",
        "name = \"image_folder\"\ntrain_dir = \"photos/train\"\nval_dir = \"photos/val\"\n\
         transforms.train = [{ name = \"resize\", size = [32, 32] }]\n\
         transforms.val = [{ name = \"resize\", size = [32, 32] }]",
        "cross_entropy",
    ),
    ("mnist", "name = \"mnist\"\ndir = \"mnist\"", "cross_entropy"),
    (
        "classes",
        "name = \"csv\"\ntrain_file = \"table.csv\"\nval_file = \"table.csv\"\ntarget = \"y\"",
        "cross_entropy",
    ),
    (
        "numbers",
        "name = \"csv\"\ntrain_file = \"table.csv\"\nval_file = \"table.csv\"\ntarget = \"y\"",
        "mse",
    ),
    (
        "series",
        "name = \"csv_forecast\"\nfile = \"series.csv\"\nseq_len = 48\npred_len = 24",
        "mse",
    ),
    ("text", "name = \"tokens\"\nfile = \"text.txt\"\nseq_len = 8", "cross_entropy"),
    (
        "instructions",
        "name = \"instructions\"\nfile = \"alpaca.json\"\ntokenizer = \"tokenizer.json\"\nseq_len = 16\nval_ratio = 0.5",
        "cross_entropy",
    ),
    ("trajectories", "name = \"trajectories\"\nfile = \"runs.npz\"\nval_ratio = 0.5", "mse"),
    ("push_t_like", "name = \"push_t_like\"\nepisodes = 4\nval_ratio = 0.5", "mse"),
    ("speech", "name = \"speech\"\ntrain_dir = \"speech\"\nval_dir = \"speech\"", "cross_entropy"),
];

/// Kinds whose models are those of another kind above.
const MORE: [(&str, &str, &str); 6] = [
    (
        "chat",
        "name = \"chat\"\nfile = \"alpaca.json\"\ntokenizer = \"letters.json\"\n\
         chat_template = \"chatml\"\nseq_len = 64\neos_token = \"<|endoftext|>\"",
        "cross_entropy",
    ),
    (
        "preferences",
        "name = \"preferences\"\nfile = \"pairs.jsonl\"\ntokenizer = \"letters.json\"\nseq_len = 64\n\
         eos_token = \"<|endoftext|>\"",
        "dpo",
    ),
    (
        "jsonl",
        "name = \"jsonl\"\ntrain_file = \"table.jsonl\"\ninputs = [\"a\"]\ntarget = \"y\"",
        "mse",
    ),
    (
        "image_table",
        "name = \"image_table\"\ntrain_file = \"photos.csv\"\nclass_columns = [\"cat\"]\n\
         transforms.train = [{ name = \"resize\", size = [32, 32] }]\n\
         transforms.val = [{ name = \"resize\", size = [32, 32] }]",
        "bce_with_logits",
    ),
    (
        "webdataset",
        "name = \"webdataset\"\ntrain_shards = \"tars/pets-train-*.tar\"\n\
         val_shards = \"tars/pets-test-00.tar\"\n\
         transforms.train = [{ name = \"resize\", size = [32, 32] }]\n\
         transforms.val = [{ name = \"resize\", size = [32, 32] }]",
        "cross_entropy",
    ),
    (
        "hf_dataset",
        "name = \"hf_dataset\"\npath = \"pets\"\nval_split = \"test\"\n\
         transforms.train = [{ name = \"resize\", size = [32, 32] }]\n\
         transforms.val = [{ name = \"resize\", size = [32, 32] }]",
        "cross_entropy",
    ),
];

/// Small sizes of a model.
fn sizes(model: &str) -> &'static str {
    match model {
        "mlp" => "hidden = [4]",
        "gpt" => "d_model = 8\nn_heads = 2\nn_layers = 1",
        "llama" | "itransformer" | "patchtst" => "d_model = 8\nn_heads = 2\nn_layers = 1\nd_ff = 8",
        "timebridge" => "d_model = 8\nn_heads = 2\nd_ff = 8",
        "diffusion_policy_image" => {
            "vision_backbone = \"resnet8\"\nspatial_softmax_num_keypoints = 2\ndown_dims = [8, 16]\n\
             diffusion_step_embed_dim = 8\nn_groups = 4\nnum_inference_steps = 2"
        }
        "diffusion_policy" => {
            "down_dims = [8, 16]\ndiffusion_step_embed_dim = 8\nn_groups = 4\nnum_inference_steps = 2"
        }
        "nest" => {
            "d_model = 8\nn_heads = 2\nn_layers = 1\nsubsampling_channels = 4\ncodebook_size = 8"
        }
        "fastconformer" => "d_model = 8\nn_heads = 2\nn_layers = 1\nsubsampling_channels = 4",
        "graph" => "layers = [{ name = \"flatten\" }, { name = \"linear\" }]",
        _ => "",
    }
}

/// All data but what is generated.
fn lab() -> Lab {
    let lab = Lab::new();
    for split in ["train", "t10k"] {
        let head =
            |numbers: &[u32]| numbers.iter().flat_map(|n| n.to_be_bytes()).collect::<Vec<_>>();
        // Pixels that differ: a batch norm of equal values divides by the root of its `eps`.
        let pixels = (0..4 * 28 * 28).map(|i| (i * i % 251) as u8).collect();
        let images = [head(&[0x803, 4, 28, 28]), pixels].concat();
        lab.write(&format!("mnist/{split}-images-idx3-ubyte"), images);
        let labels = [head(&[0x801, 4]), vec![0, 1, 0, 1]].concat();
        lab.write(&format!("mnist/{split}-labels-idx1-ubyte"), labels);
    }
    lab.write("table.csv", format!("a,b,y\n{}", "1,2,0\n2,1,1\n".repeat(4)));
    let row =
        |i: usize| format!("2020-01-{:02} {:02}:00:00,{},{}\n", 1 + i / 24, i % 24, i % 7, i % 5);
    lab.write("series.csv", format!("date,a,b\n{}", (0..400).map(row).collect::<String>()));
    lab.write("text.txt", "to be, or not to be\n".repeat(20));
    let entries = vec![json!({"instruction": "ab", "input": "", "output": "ba"}); 8];
    lab.write("alpaca.json", json!(entries).to_string());
    let tokenizer = |letters: &str| {
        let letters = letters.chars().map(String::from);
        let words = std::iter::once("<|endoftext|>".to_owned()).chain(letters);
        let vocabulary: Map<String, Value> = words.zip((0..).map(Value::from)).collect();
        let model = json!({"type": "BPE", "vocab": vocabulary, "merges": []});
        let tokenizer = json!({"version": "1.0", "truncation": null, "padding": null,
            "added_tokens": [], "normalizer": null, "pre_tokenizer": null, "post_processor": null,
            "decoder": null, "model": model});
        tokenizer.to_string()
    };
    lab.write("tokenizer.json", tokenizer("ab"));
    lab.write("letters.json", tokenizer("abdeimnrstu_<|>\n"));
    let pair = |i: usize| {
        let (chosen, rejected) = ("ab".repeat(1 + i % 3), "ba".repeat(1 + i % 4));
        format!("{}\n", json!({"prompt": "a", "chosen": chosen, "rejected": rejected}))
    };
    lab.write("pairs.jsonl", (0..entries.len()).map(pair).collect::<String>());
    let line = |i: usize| format!("{}\n", json!({"a": i % 3, "y": i % 2}));
    lab.write("table.jsonl", (0..8).map(line).collect::<String>());
    write_photos(&lab);
    write_pets(&lab, "pets");
    write_tars(&lab, "tars");
    write_runs(&lab);
    write_speech(&lab);
    lab
}

/// Two grey pictures of each of two classes.
fn write_photos(lab: &Lab) {
    for (split, class) in [("train", "a"), ("train", "b"), ("val", "a"), ("val", "b")] {
        for shade in [50, 200] {
            let picture = [b"P6 32 32 255\n".to_vec(), vec![shade; 3 * 32 * 32]].concat();
            lab.write(&format!("photos/{split}/{class}/{shade}.ppm"), picture);
        }
    }
    let rows = [("a/50", 1), ("a/200", 1), ("b/50", 0), ("b/200", 0)];
    let rows = rows.map(|(path, cat)| format!("photos/train/{path}.ppm,{cat}\n"));
    lab.write("photos.csv", format!("image,cat\n{}", rows.concat()));
}

/// Four episodes of 30 steps.
fn write_runs(lab: &Lab) {
    let cpu = &Device::Cpu;
    let numbers = |n: usize| (0..120 * n).map(|i| (i % 11) as f32).collect::<Vec<_>>();
    let starts: Vec<u8> = (0..120).map(|step| u8::from(step % 30 == 0)).collect();
    let arrays = [
        ("obs", Tensor::from_vec(numbers(3), (120, 3), cpu).unwrap()),
        ("actions", Tensor::from_vec(numbers(2), (120, 2), cpu).unwrap()),
        ("episode_starts", Tensor::from_vec(starts, 120, cpu).unwrap()),
    ];
    Tensor::write_npz(&arrays, lab.write("runs.npz", "")).unwrap();
}

/// Half a second of silence for each of two digits, twice.
fn write_speech(lab: &Lab) {
    let spec = WavSpec {
        channels: 1,
        sample_rate: 8000,
        bits_per_sample: 16,
        sample_format: SampleFormat::Int,
    };
    for (digit, take) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let path = lab.write(&format!("speech/{digit}_voice_{take}.wav"), "");
        let mut file = WavWriter::create(path, spec).unwrap();
        (0..4000).for_each(|_| file.write_sample(0i16).unwrap());
        file.finalize().unwrap();
    }
}

/// Sizes that are trained on all data as well.
const SMALL_SIZES: [&str; 4] = ["resnet8", "resnet20", "mobilenet_v3_large", "gru"];

/// Models that are planned only.
const LARGEST: [&str; 4] = ["efficientnet_b0", "regnet_y_400mf", "densenet121", "vgg11"];

#[test]
fn every_model_takes_a_step_on_every_kind_of_data_or_is_refused_in_plan() {
    let lab = lab();
    let registry = Kinds::default().models;
    let (mut trained, mut refused, mut tried) = (Vec::new(), 0, 0);
    for (kind, data, loss) in DATA {
        for model in registry.names() {
            // Of a family of sizes one sees all data, and the others are planned for images.
            let is_size = registry.is_variant(model) && !SMALL_SIZES.contains(&model);
            if is_size && kind != "shapes" {
                continue;
            }
            tried += 1;
            let text = format!(
                "[experiment]\nname = \"pair\"\n[model]\nname = \"{model}\"\n{}\n[data]\n{data}\nnum_workers = 0\n\
                 [train]\nsteps = 1\nbatch_size = 2\n[loss]\nname = \"{loss}\"\n[optimizer]\nname = \"sgd\"\nlr = 1e-9\n\
                 [distributed]\ndevices = 1\nthreads_per_rank = 1\n[logging]\nsinks = [\"jsonl\"]\n",
                sizes(model)
            );
            lab.write("pair.toml", text);
            // Large ones see images of one kind only, and few see folders, whose images are those of
            // shapes. The statistics of one step say nothing of a validation through a hundred batch
            // norms, and the largest are sizes of others.
            let is_large = ["convnext_tiny", "vit_tiny"].contains(&model);
            let is_again = kind == "image_folder" && !["mlp", "resnet8"].contains(&model);
            let is_other = is_again || is_large && kind != "shapes";
            let is_planned = is_other || is_size || LARGEST.contains(&model);
            let verb = if is_planned { &["plan"][..] } else { &[] };
            let ended = lab.run(&[verb, &["pair.toml"]].concat());
            match ended.code {
                0 => trained.push((model, kind)),
                2 => {
                    let told = flowing(&ended.stderr);
                    assert!(told.contains("nothing was started"), "{model} {kind}: {told}");
                    let takes = told.contains(&format!("`{model}` takes"));
                    // Images may be too small for it, or no whole number of its patches.
                    let fits =
                        told.contains("images have at least") || told.contains("divide images");
                    let says = takes || fits || model == "graph";
                    assert!(says, "{model} {kind}: {told}");
                    refused += 1;
                }
                _ => panic!("{model} on {kind}: {ended:?}"),
            }
        }
    }
    for pair in [("mlp", "shapes"), ("mlp", "numbers"), ("mlp", "series"), ("mlp", "trajectories")]
    {
        assert!(trained.contains(&pair), "{trained:?}");
    }
    for pair in [("gpt", "text"), ("llama", "instructions"), ("dlinear", "series")] {
        assert!(trained.contains(&pair), "{trained:?}");
    }
    for pair in [("diffusion_policy", "push_t_like"), ("nest", "speech"), ("graph", "classes")] {
        assert!(trained.contains(&pair), "{trained:?}");
    }
    assert_eq!(trained.len() + refused, tried);
}

/// What is left of a kind's `[data]` where training samples are held out to validate.
fn without_val(data: &str) -> String {
    let keys = ["val_dir", "val_file", "val_ratio", "val_shards", "val_split"];
    let lines = data.lines().filter(|line| !keys.iter().any(|key| line.starts_with(key)));
    lines.flat_map(|line| [line, "\n"]).collect()
}

#[test]
fn a_run_on_any_data_of_which_some_are_held_out_is_planned_from_what_it_stored_and_resumed() {
    let lab = lab();
    for (kind, data, loss) in DATA.into_iter().chain(MORE) {
        // A series is cut in parts of its own.
        let held_out: &[&str] = match kind {
            "series" => &["data.drop_last=true"],
            "text" => &["data.val_fraction=0.5", "data.test_fraction=0.2"],
            "chat" | "push_t_like" => &["data.folds=2", "data.fold=1"],
            _ => &["data.val_fraction=0.5"],
        };
        let is_text = ["text", "instructions", "chat", "preferences"].contains(&kind);
        let model = match kind {
            "speech" => "fastconformer",
            _ if is_text => "gpt",
            _ => "mlp",
        };
        let text = format!(
            "[model]\nname = \"{model}\"\n{}\n[data]\n{}num_workers = 0\n\
             [train]\nsteps = 3\nbatch_size = 1\n[loss]\nname = \"{loss}\"\n[optimizer]\n\
             name = \"sgd\"\nlr = 1e-9\n[distributed]\ndevices = 1\nthreads_per_rank = 1\n\
             [checkpoint]\nevery = \"1 step\"\n",
            sizes(model),
            without_val(data)
        );
        let file = format!("{kind}.toml");
        lab.write(&file, text);
        let words: Vec<&str> = std::iter::once(file.as_str()).chain(held_out.to_vec()).collect();
        let ended = lab.run_with(&format!("{SAVED}; forward=kill@0,3"), &words);
        assert!(![0, 2, 3].contains(&ended.code), "{kind} was not killed: {ended:?}");
        let run = children(&lab.path(&format!("logs/{kind}"))).remove(0);
        let stored = run.join("resolved.toml");
        lab.run_to(0, &["plan", stored.to_str().unwrap(), "experiment.name=again"]);
        let resumed = lab.run_to(0, &["resume", kind]);
        resumed.says(&["resumed after step 2"]);
        lab.run_to(0, &["resume", kind, "train.steps=4"]);
    }
}
