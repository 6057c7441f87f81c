//! Whole recipes, in which many features meet, and what plan, sweep, evaluation and export make of
//! them. `same_bits` disturbs them.

use std::fmt::Write;

use serde_json::Value;

use crate::harness::lab::Lab;

/// Two ranks, three epochs, steps of several passes.
const COMMON: &str = r#"schema = 1

[experiment]
name = "small"
seed = 5

[distributed]
devices = 2
threads_per_rank = 1
timeout = "60s"

[train]
epochs = 3
batch_size = 3
global_batch_size = 12
"#;

/// A lab with a recipe of three epochs, which goes on in `[train]`.
pub(crate) fn recipe(rest: &str) -> Lab {
    Lab::with(&format!("{COMMON}{rest}"))
}

/// `[data]` of shapes of three classes, in three steps, of which the last does not fill all ranks.
fn shapes(image_size: u32) -> String {
    format!(
        r#"
[data]
name = "shapes"
dir = "data/shapes"
classes = 3
train_per_class = 9
val_per_class = 4
image_size = {image_size}
num_workers = 1
drop_last = false
"#
    )
}

/// A residual network by classes that are drawn alike: augmentation, a weighted focal loss, LAMB
/// with noise on its gradients, gradual unfreezing, synchronised batch norms, averaged weights.
const IMAGES: &str = r#"
sampler = "balanced"

[model]
name = "resnet8"

[[data.transforms.train]]
name = "trivial_augment_wide"

[[data.transforms.train]]
name = "random_vertical_flip"

[[data.transforms.train]]
name = "gaussian_blur"
kernel_size = 3

[[data.transforms.train]]
name = "random_erasing"
p = 0.5

[loss]
name = "focal"
gamma = 1.5
class_weights = "balanced"

[optimizer]
name = "lamb"
lr = 0.02
no_decay = ["norm", "bias"]
gradual_unfreezing = "2 steps"

[[optimizer.groups]]
match = "layer2"
lr_factor = 0.5

[ema]
decay = 0.8
use_buffers = true

[validation]
metrics = ["auroc", "precision"]

[checkpoint]
monitor = "val/f1"
mode = "max"
"#;

/// A transformer of images that are repeated and mixed: Muon with a rate for each layer, a group that
/// is frozen later, weights averaged in the end.
const MIXED: &str = r#"
aug_repeats = 3
transforms.train = [{ name = "rand_augment" }]

[model]
name = "graph"
layers = [
    { name = "conv2d", key = "patches", out_channels = 8, kernel_size = 4, stride = 4 },
    { name = "tokens" },
    { name = "class_token", key = "token" },
    { name = "position_embedding", key = "positions" },
    { name = "repeat", key = "blocks", times = 2, layers = [
        { name = "residual", layers = [
            { name = "layer_norm", key = "norm1" },
            { name = "attention", key = "attn", n_heads = 2, p = 0.1 },
            { name = "stochastic_depth", p = 0.2 },
        ] },
        { name = "residual", layers = [
            { name = "layer_norm", key = "norm2" },
            { name = "linear", key = "fc1", out_features = 16 },
            { name = "gelu" },
            { name = "linear", key = "fc2", out_features = 8 },
        ] },
    ] },
    { name = "layer_norm", key = "norm" },
    { name = "select" },
    { name = "linear", key = "head" },
]

[data.mixup]
mixup_alpha = 0.8
cutmix_alpha = 1.0
mode = "pair"
off_epoch = 2

[loss]
name = "cross_entropy"
label_smoothing = 0.1

[optimizer]
name = "muon"
lr = 0.02
layer_decay = 0.7
no_decay = ["norm", "bias", "embedding"]

[[optimizer.groups]]
match = "patches"
freeze_at_epoch = 1

[swa]
start = "4 steps"
every = "2 steps"
"#;

/// A table of words, dates and empty cells with several labels, held back by patients: Adafactor, a
/// group with another rate, slow weights.
const LABELS: &str = r#"
[model]
name = "mlp"
hidden = [8]
embedding_dim = 2

[data]
name = "csv"
train_file = "rows.csv"
target = ["cat", "dog"]
group = "patient"
ignore = ["id"]
val_fraction = 0.2
test_fraction = 0.1
fraction = 0.9
num_workers = 0
drop_last = false

[data.features]
categorical = "auto"
dates = ["seen"]
missing = "median"
missing_indicator = true

[loss]
name = "bce_with_logits"
pos_weight = "balanced"

[optimizer]
name = "adafactor"
lr = 0.05

[[optimizer.groups]]
match = "*.bias"
lr_factor = 2.0

[lookahead]
k = 2

[checkpoint]
monitor = "val/average_precision"
mode = "max"
"#;

/// The recipe of labels with its table.
pub(crate) fn labels() -> Lab {
    let lab = recipe(LABELS);
    let row = |mut rows: String, i: u32| {
        let size = if i % 7 == 3 { String::new() } else { (10 + i * i % 13).to_string() };
        let (colour, month) = (["red", "blue", ""][i as usize % 3], i % 12 + 1);
        let (cat, dog) = (u32::from(i.is_multiple_of(3)), u32::from(i % 4 == 1));
        let _ = writeln!(rows, "{i},p{},{size},{colour},2024-{month:02}-17,{cat},{dog}", i / 2);
        rows
    };
    let header = "id,patient,size,colour,seen,cat,dog\n".to_owned();
    lab.write("rows.csv", (0..60).fold(header, row));
    lab
}

/// The recipe of images; its first convolution learns in the last of nine steps only.
pub(crate) fn images() -> Lab {
    let clipped = "clip_grad_norm = 1.0\ngradient_noise = 0.01\n".to_owned();
    recipe(&(clipped + &shapes(16) + IMAGES))
}

pub(crate) fn mixed() -> Lab {
    recipe(&(shapes(16) + MIXED))
}

/// Numbers of a table by the Huber loss, of which every second one is far off.
const NUMBERS: &str = r#"
precision = "bf16"

[model]
name = "mlp"
hidden = [8]

[data]
name = "csv"
train_file = "numbers.csv"
val_file = "numbers.csv"
target = "y"
num_workers = 0
drop_last = false

[loss]
name = "huber"
delta = 0.5

[optimizer]
lr = 0.01
"#;

/// [`NUMBERS`] under an optimizer of this name.
pub(crate) fn numbers(optimizer: &str) -> Lab {
    let options = match optimizer {
        "sgd" | "rmsprop" => "momentum = 0.9",
        "adamw" => "amsgrad = true",
        _ => "",
    };
    let lab = recipe(&format!("{NUMBERS}name = \"{optimizer}\"\n{options}\n"));
    let row = |i: u32| format!("{i},{},{}\n", i * i % 7, i % 2 * 5 + i * 3 % 5);
    lab.write("numbers.csv", "a,b,y\n".to_owned() + &(0..30).map(row).collect::<String>());
    lab
}

/// A small airbench94 by its recipe: filters that follow from the images, flips that alternate,
/// slow weights, and a bias that is frozen after the first of three epochs of three steps.
const SPEED_RUN: &str = r#"
[[data.transforms.train]]
name = "alternating_horizontal_flip"

[[data.transforms.train]]
name = "random_crop"
size = 32
padding = 2
padding_mode = "reflect"

[model]
name = "airbench94"
widths = [4, 6, 8]

[loss]
name = "cross_entropy"
label_smoothing = 0.2

[optimizer]
name = "sgd"
lr = 0.05
momentum = 0.85
nesterov = true
weight_decay = 1e-3

[[optimizer.groups]]
match = "whiten.weight"
frozen = true

[[optimizer.groups]]
match = "whiten.bias"
freeze_at_epoch = 1

[[optimizer.groups]]
match = "*.norm?.weight"
frozen = true

[[optimizer.groups]]
match = "*.norm?.bias"
lr_factor = 8.0
weight_decay = 1e-4

[lookahead]
k = 2
alpha = 0.25
power = 3.0

[scheduler]
name = "one_cycle"
anneal_strategy = "linear"
cycle_momentum = false
"#;

pub(crate) fn speed_run() -> Lab {
    recipe(&(shapes(32) + SPEED_RUN))
}

/// A network with batch norms, under AdamW.
pub(crate) fn batch_norms() -> Lab {
    let rest = "[model]\nname = \"resnet8\"\n[optimizer]\nname = \"adamw\"\nlr = 1e-3\n";
    recipe(&format!("{}{rest}", shapes(16)))
}

/// A forecaster with a parameter that no pass uses.
pub(crate) fn forecasts() -> Lab {
    let lab = recipe(
        r#"
[model]
name = "timebridge"
d_model = 8
n_heads = 2
d_ff = 8
period = 4
ca_layers = 1

[data]
name = "csv_forecast"
file = "series.csv"
seq_len = 8
pred_len = 4
num_workers = 0
drop_last = false

[loss]
name = "mse"

[optimizer]
name = "adamw"
lr = 1e-3
"#,
    );
    let row =
        |i: usize| format!("2020-01-{:02} {:02}:00:00,{},{}\n", 1 + i / 24, i % 24, i % 7, i % 5);
    lab.write("series.csv", format!("date,a,b\n{}", (0..60).map(row).collect::<String>()));
    lab
}

#[test]
fn layers_that_are_unfrozen_one_by_one_are_shown_in_the_plan_and_swept() {
    let lab = images();
    let page = lab.run_to(0, &["plan", "small.toml"]).stdout;
    for [layer, trained] in [
        ["head", "always"],
        ["layer3.0", "after 2 steps"],
        ["layer2, layer2.0", "after 4 steps"],
        ["layer1.0", "after 2 epochs"],
        ["stem", "after 8 steps"],
    ] {
        let is_row = |line: &&str| line.starts_with(layer) && line.contains(trained);
        assert!(page.lines().any(|line| is_row(&line)), "{layer} {trained}: {page}");
    }
    let space = "optimizer.gradual_unfreezing=never,1 epoch,4 epochs";
    let ended = lab.run_to(0, &["sweep", "small.toml", "--json", space, "sweep.metric=val/loss"]);
    let found: Value = serde_json::from_str(ended.stdout.lines().last().unwrap()).unwrap();
    let values: Vec<f64> = found["trials"]
        .as_array()
        .unwrap()
        .iter()
        .map(|trial| trial["value"].as_f64().unwrap())
        .collect();
    assert_eq!(values.len(), 3, "{found}");
    assert_ne!(values[0].to_bits(), values[2].to_bits(), "all at once, and the head alone");
    lab.is_clean();
}

#[test]
fn trials_of_a_recipe_agree_whatever_the_size_of_their_passes() {
    let lab = labels();
    let spaces = ["train.batch_size=1,3", "optimizer.lr=0.01,0.03"];
    let ended = lab.run_to(0, &[&["sweep", "small.toml", "--json"], &spaces[..]].concat());
    let found: Value = serde_json::from_str(ended.stdout.lines().last().unwrap()).unwrap();
    let trial = |trial: &Value| {
        let values = &trial["values"];
        let size = values["train.batch_size"].as_u64().unwrap();
        (size, values["optimizer.lr"].as_f64().unwrap(), trial["value"].as_f64().unwrap())
    };
    let trials: Vec<(u64, f64, f64)> =
        found["trials"].as_array().unwrap().iter().map(trial).collect();
    assert_eq!(trials.len(), 4, "{trials:?}");
    for (size, lr, value) in &trials {
        let others = trials.iter().filter(|other| other.1 == *lr && other.0 != *size);
        let apart: Vec<f64> = others.map(|other| (other.2 - value).abs()).collect();
        assert!(apart.len() == 1 && apart[0] < 1e-3, "{trials:?}");
    }
    lab.is_clean();
}

#[test]
fn a_speed_run_is_evaluated_exported_and_starts_others() {
    let lab = speed_run();
    lab.run_to(0, &["small.toml"]);
    let measured = lab.run_to(0, &["eval", "--tta", "hflip_translate"]).stdout;
    assert!(measured.contains("val/accuracy"), "{measured}");
    lab.run_to(0, &["checkpoint", "export", "small", "model.onnx"]);
    // What begins with these weights keeps their filters.
    let again = ["small.toml", "model.pretrained=run:small/best", "train.epochs=2"];
    lab.run_to(0, &[&again[..], &["experiment.name=again"]].concat());
    lab.run_to(2, &["plan", "small.toml", "ema.decay=0.9"])
        .says(&["`lookahead.k`: cannot be combined with `ema.decay`"]);
    lab.run_to(2, &["plan", "small.toml", "data.image_size=16", "data.transforms.train=[]"])
        .says(&["images of 16x16"]);
}
