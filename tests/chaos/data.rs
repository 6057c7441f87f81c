//! Data of every kind, a handful of samples each, and the models that are trained on them.

use std::fs;
use std::path::Path;

use candle_core::{Device, Tensor};
use serde_json::json;

use crate::harness::lab::Lab;

/// A kind of data with what trains on it.
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    /// Its table `[data]`.
    data: &'static str,
    /// Names and sizes of models.
    pub(crate) models: &'static [(&'static str, &'static str)],
    loss: &'static str,
    /// Whether a part of an epoch is enough: its epochs are long.
    pub(crate) is_long: bool,
    /// What `predict` may be given.
    pub(crate) input: Option<&'static str>,
    /// The keys that go where samples are held out to validate; none where that cannot be.
    pub(crate) folds: Option<&'static [&'static str]>,
    write: fn(&Lab),
}

const MLP: (&str, &str) = ("mlp", "hidden = [4]");
const GRAPH: (&str, &str) = ("graph", "layers = [{ name = \"flatten\" }, { name = \"linear\" }]");
const RESNET: (&str, &str) = ("resnet8", "");
const GPT: (&str, &str) = ("gpt", "d_model = 8\nn_heads = 2\nn_layers = 1");
const LLAMA: (&str, &str) =
    ("llama", "d_model = 8\nn_heads = 2\nn_kv_heads = 1\nn_layers = 1\nd_ff = 8");

pub(crate) const KINDS: [Kind; 17] = [
    Kind {
        name: "shapes",
        data: "name = \"shapes\"\ndir = \"shapes\"\nclasses = 3\ntrain_per_class = 6\n\
               val_per_class = 2\nimage_size = 12\n",
        models: &[MLP, RESNET, GRAPH],
        loss: "cross_entropy",
        is_long: false,
        input: None,
        folds: Some(&[]),
        write: |_| (),
    },
    Kind {
        name: "image_folder",
        data: "name = \"image_folder\"\ntrain_dir = \"photos/train\"\nval_dir = \"photos/val\"\n\
               transforms.train = [{ name = \"random_crop\", size = 8 }, \
               { name = \"random_horizontal_flip\" }]\n\
               transforms.val = [{ name = \"center_crop\", size = 8 }]\n",
        models: &[MLP, RESNET],
        loss: "cross_entropy",
        is_long: false,
        input: Some("photos/val"),
        folds: Some(&["~data.val_dir"]),
        write: photos,
    },
    Kind {
        name: "image_table",
        data: "name = \"image_table\"\ntrain_file = \"photos.csv\"\nval_file = \"photos.csv\"\n\
               class_columns = [\"red\", \"blue\"]\n\
               transforms.train = [{ name = \"resize\", size = [8, 8] }]\n\
               transforms.val = [{ name = \"resize\", size = [8, 8] }]\n",
        models: &[MLP],
        loss: "bce_with_logits",
        is_long: false,
        input: Some("photos/val"),
        folds: Some(&["~data.val_file"]),
        write: photos,
    },
    Kind {
        name: "hf_dataset",
        data: "name = \"hf_dataset\"\npath = \"pets\"\nval_split = \"test\"\n\
               transforms.train = [{ name = \"random_crop\", size = 8, padding = 1 }]\n\
               transforms.val = [{ name = \"center_crop\", size = 8 }]\n",
        models: &[MLP],
        loss: "cross_entropy",
        is_long: false,
        input: None,
        folds: Some(&["~data.val_split"]),
        write: |lab| {
            golden(lab, "hf_dataset/numbers.parquet", "pets/train.parquet");
            golden(lab, "hf_dataset/numbers.parquet", "pets/test.parquet");
        },
    },
    Kind {
        name: "webdataset",
        data: "name = \"webdataset\"\ntrain_shards = \"tars/train\"\nval_shards = \"tars/val\"\n\
               label_field = \"json\"\n\
               transforms.train = [{ name = \"random_crop\", size = 8, padding = 1 }]\n\
               transforms.val = [{ name = \"center_crop\", size = 8 }]\n",
        models: &[MLP],
        loss: "cross_entropy",
        is_long: false,
        input: None,
        folds: Some(&["~data.val_shards"]),
        write: |lab| {
            golden(lab, "webdataset/objects.tar", "tars/train/0.tar");
            golden(lab, "webdataset/objects.tar", "tars/val/0.tar");
        },
    },
    Kind {
        name: "mnist",
        data: "name = \"mnist\"\ndir = \"mnist\"\n",
        models: &[MLP],
        loss: "cross_entropy",
        is_long: false,
        input: None,
        folds: Some(&[]),
        write: mnist,
    },
    Kind {
        name: "classes",
        data: "name = \"csv\"\ntrain_file = \"table.csv\"\nval_file = \"val.csv\"\n\
               target = \"class\"\nignore = [\"y\"]\n",
        models: &[MLP, GRAPH],
        loss: "cross_entropy",
        is_long: false,
        input: Some("val.csv"),
        folds: Some(&["~data.val_file"]),
        write: tables,
    },
    Kind {
        name: "numbers",
        data: "name = \"csv\"\ntrain_file = \"table.csv\"\nval_file = \"val.csv\"\n\
               target = \"y\"\nignore = [\"class\"]\n",
        models: &[MLP],
        loss: "mse",
        is_long: false,
        input: Some("val.csv"),
        folds: Some(&["~data.val_file"]),
        write: tables,
    },
    Kind {
        name: "jsonl",
        data: "name = \"jsonl\"\ntrain_file = \"table.jsonl\"\nval_file = \"val.jsonl\"\n\
               inputs = [\"a\", \"b\"]\ntarget = \"y\"\n",
        models: &[MLP],
        loss: "huber",
        is_long: false,
        input: Some("val.jsonl"),
        folds: Some(&["~data.val_file"]),
        write: tables,
    },
    Kind {
        name: "series",
        data: "name = \"csv_forecast\"\nfile = \"series.csv\"\nseq_len = 8\npred_len = 4\n",
        models: &[
            ("dlinear", ""),
            (
                "patchtst",
                "d_model = 8\nn_heads = 2\nn_layers = 1\nd_ff = 8\npatch_len = 4\nstride = 2",
            ),
            ("itransformer", "d_model = 8\nn_heads = 2\nn_layers = 1\nd_ff = 8"),
            MLP,
        ],
        loss: "mse",
        is_long: true,
        input: None,
        folds: None,
        write: tables,
    },
    Kind {
        name: "tokens",
        data: "name = \"tokens\"\nfile = \"text.txt\"\nseq_len = 8\n",
        models: &[GPT, LLAMA],
        loss: "cross_entropy",
        is_long: false,
        input: None,
        folds: None,
        write: texts,
    },
    Kind {
        name: "instructions",
        data: "name = \"instructions\"\nfile = \"alpaca.json\"\ntokenizer = \"tokenizer.json\"\n\
               seq_len = 64\nval_ratio = 0.2\n",
        models: &[GPT, LLAMA],
        loss: "cross_entropy",
        is_long: false,
        input: None,
        folds: Some(&["~data.val_ratio"]),
        write: texts,
    },
    Kind {
        name: "chat",
        data: "name = \"chat\"\nfile = \"chats.jsonl\"\ntokenizer = \"tokenizer.json\"\n\
               chat_template = \"chatml\"\nseq_len = 96\nval_ratio = 0.2\n",
        models: &[LLAMA],
        loss: "cross_entropy",
        is_long: false,
        input: None,
        folds: Some(&["~data.val_ratio"]),
        write: texts,
    },
    Kind {
        name: "preferences",
        data: "name = \"preferences\"\nfile = \"pairs.jsonl\"\ntokenizer = \"tokenizer.json\"\n\
               chat_template = \"chatml\"\nseq_len = 96\nval_ratio = 0.2\n",
        models: &[LLAMA],
        loss: "dpo",
        is_long: false,
        input: None,
        folds: Some(&["~data.val_ratio"]),
        write: texts,
    },
    Kind {
        name: "trajectories",
        data: "name = \"trajectories\"\nfile = \"runs.npz\"\nval_ratio = 0.5\n",
        models: &[MLP],
        loss: "mse",
        is_long: true,
        input: None,
        folds: Some(&["~data.val_ratio"]),
        write: trajectories,
    },
    Kind {
        name: "push_t_like",
        data: "name = \"push_t_like\"\nepisodes = 4\nval_ratio = 0.25\n",
        models: &[MLP],
        loss: "mse",
        is_long: true,
        input: None,
        folds: Some(&["~data.val_ratio"]),
        write: |_| (),
    },
    Kind {
        name: "speech",
        data: "name = \"speech\"\ntrain_manifest = \"train.json\"\nval_manifest = \"val.json\"\n\
               min_duration = 0.1\nn_mels = 8\n",
        models: &[(
            "fastconformer",
            "d_model = 8\nn_heads = 2\nn_layers = 1\nsubsampling_channels = 4",
        )],
        loss: "cross_entropy",
        is_long: false,
        input: Some("val.json"),
        folds: None,
        write: speech,
    },
];

/// `small.toml` of a model on this kind, for up to four ranks.
pub(crate) fn experiment(kind: &Kind, (model, sizes): (&str, &str)) -> String {
    let length = if kind.is_long {
        "steps = 10\nbatch_size = 1\nglobal_batch_size = 4\n\n[validation]\nevery = \"4 steps\"\n"
    } else {
        "epochs = 2\nbatch_size = 1\nglobal_batch_size = 4\n"
    };
    let Kind { data, loss, .. } = kind;
    format!(
        "schema = 1\n\n[experiment]\nname = \"small\"\nseed = 7\n\n[model]\nname = \"{model}\"\n\
         {sizes}\n\n[data]\n{data}num_workers = 0\n\n[train]\n{length}\n\
         [loss]\nname = \"{loss}\"\n\n[optimizer]\nname = \"adamw\"\nlr = 1e-2\n\n\
         [distributed]\nshards = 4\nthreads_per_rank = 1\ntimeout = \"20s\"\n\n\
         [checkpoint]\nevery = \"2 steps\"\n\n\
         [fault]\nmax_restarts = 2\n\n\
         [logging]\nevery = \"1 step\"\nsinks = [\"jsonl\", \"csv\"]\n"
    )
}

/// A lab with the data of this kind.
pub(crate) fn lab(kind: &Kind, model: (&str, &str)) -> Lab {
    let lab = Lab::with(&experiment(kind, model));
    (kind.write)(&lab);
    lab
}

/// Copies a file of `tests/golden`.
fn golden(lab: &Lab, from: &str, to: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(from);
    lab.write(to, fs::read(path).unwrap());
}

/// Pictures of 10 x 10 pixels, and their table.
fn photos(lab: &Lab) {
    let mut table = "image,red,blue\n".to_owned();
    for (split, n) in [("train", 9), ("val", 3)] {
        for (class, color) in [("blue", [0, 0, 200]), ("red", [200, 0, 0])] {
            for index in 0..n {
                let name = format!("photos/{split}/{class}/{index}.png");
                let path = lab.write(&name, "");
                let shade = image::Rgb([color[0], 20 * index, color[2]]);
                image::RgbImage::from_pixel(10, 10, shade).save(path).unwrap();
                let [red, blue] = [class == "red", class == "blue"].map(u8::from);
                table += &format!("{name},{red},{blue}\n");
            }
        }
    }
    lab.write("photos.csv", table);
}

fn mnist(lab: &Lab) {
    for (split, n) in [("train", 18_u32), ("t10k", 6)] {
        let head =
            |numbers: &[u32]| numbers.iter().flat_map(|n| n.to_be_bytes()).collect::<Vec<_>>();
        let pixels = (0..n * 28 * 28).map(|i| (i * i % 251) as u8).collect();
        let images = [head(&[0x803, n, 28, 28]), pixels].concat();
        lab.write(&format!("mnist/{split}-images-idx3-ubyte"), images);
        let labels = [head(&[0x801, n]), (0..n).map(|i| (i % 3) as u8).collect()].concat();
        lab.write(&format!("mnist/{split}-labels-idx1-ubyte"), labels);
    }
}

fn tables(lab: &Lab) {
    let row = |i: usize| format!("{i},{},{},{}\n", i * i % 7, i % 5, ["x", "y", "z"][i % 3]);
    let table = |n: usize| "a,b,y,class\n".to_owned() + &(0..n).map(row).collect::<String>();
    lab.write("table.csv", table(18));
    lab.write("val.csv", table(5));
    let line = |i: usize| format!("{}\n", json!({"a": i % 4, "b": i, "y": i % 5}));
    lab.write("table.jsonl", (0..18).map(line).collect::<String>());
    lab.write("val.jsonl", (0..5).map(line).collect::<String>());
    let row =
        |i: usize| format!("2020-01-{:02} {:02}:00:00,{},{}\n", 1 + i / 24, i % 24, i % 7, i % 5);
    lab.write("series.csv", format!("date,a,b\n{}", (0..90).map(row).collect::<String>()));
}

fn texts(lab: &Lab) {
    lab.write("text.txt", "to be, or not to be\n".repeat(10));
    golden(lab, "chat/tokenizer.json", "tokenizer.json");
    let entry = |i: usize| json!({"instruction": "ab".repeat(i), "input": "", "output": "ba".repeat(i + 1)});
    lab.write("alpaca.json", json!((1..21).map(entry).collect::<Vec<_>>()).to_string());
    let say = |role: &str, content: String| json!({"role": role, "content": content});
    let chat = |i: usize| {
        let messages = [say("user", "ab".repeat(i)), say("assistant", "ba".repeat(i + 1))];
        format!("{}\n", json!({ "messages": messages }))
    };
    lab.write("chats.jsonl", (1..21).map(chat).collect::<String>());
    let pair = |i: usize| {
        let prompt = [say("user", "ab".repeat(i))];
        let answers = [1, 2].map(|n| [say("assistant", "ba".repeat(n * i))]);
        let [chosen, rejected] = answers;
        format!("{}\n", json!({ "prompt": prompt, "chosen": chosen, "rejected": rejected }))
    };
    lab.write("pairs.jsonl", (1..21).map(pair).collect::<String>());
}

/// Four episodes of 30 steps.
fn trajectories(lab: &Lab) {
    let numbers = |width: usize| (0..120 * width).map(|i| (i * i % 97) as f32).collect::<Vec<_>>();
    let starts = (0..120).map(|step| u8::from(step % 30 == 0)).collect::<Vec<_>>();
    let cpu = &Device::Cpu;
    let arrays = [
        ("obs", Tensor::from_vec(numbers(3), (120, 3), cpu).unwrap()),
        ("actions", Tensor::from_vec(numbers(2), (120, 2), cpu).unwrap()),
        ("episode_starts", Tensor::from_vec(starts, 120, cpu).unwrap()),
    ];
    Tensor::write_npz(&arrays, lab.write("runs.npz", "")).unwrap();
}

fn speech(lab: &Lab) {
    let names = ["float.wav", "mulaw.wav", "mono.mp3"];
    for name in names {
        golden(lab, &format!("audio/{name}"), &format!("audio/{name}"));
    }
    let line = |i: usize| {
        let name = names[i % names.len()];
        let entry = json!({"audio_filepath": format!("audio/{name}"), "offset": 0.02 * i as f64,
            "duration": 0.2, "label": &name[..4]});
        format!("{entry}\n")
    };
    lab.write("train.json", (0..10).map(line).collect::<String>());
    lab.write("val.json", (0..3).map(line).collect::<String>());
}
