//! What is known of data -> the tables of an experiment, with the reasons for their values.

use crate::cli::init::formatting::{comment, count};
use crate::cli::init::images::Photos;
use crate::cli::init::recognised::{Recognised, Task};
use crate::plan::DataFacts;

/// Shorter side of photos up to which a network for small images is taken, in pixels.
const MAX_SMALL_SIDE: u32 = 48;
/// Photos of a class below which training from scratch is worth a warning.
const MIN_IMAGES_PER_CLASS: usize = 500;

/// An experiment without its `[data]` table.
pub(super) struct Recipe {
    /// What the data are, in words.
    pub(super) about: String,
    /// Tables before `[data]`.
    pub(super) model: String,
    /// What follows the options of `[data]`.
    pub(super) rest: String,
}

/// The recipe for `found`.
pub(super) fn recipe(found: &Recognised, facts: &DataFacts) -> Recipe {
    let n = format!(
        "{} samples to train on, {} to validate on",
        count(facts.n_train),
        count(facts.n_val)
    );
    match &found.task {
        Task::Images(train) => images(&Photos::of(train), facts),
        Task::Digits => digits(&n),
        Task::Table { classify, why } => table(*classify, &format!("{n}; {why}"), facts),
        Task::Series { rows } => series(&format!("{} rows in time", count(*rows)), facts),
        Task::Text => text(&format!("a text: {n}"), facts),
        Task::Tokens => text(&format!("tokens: {n}"), facts),
        Task::Instructions => text(&format!("instructions: {n}"), facts),
        Task::Behaviour => behaviour(&n, facts),
        Task::Speech => speech(&n, facts),
    }
}

/// A power of two of which an epoch has at least eight.
fn batch_size(n_train: usize, most: usize) -> usize {
    let fits = (n_train / 8).clamp(2, most);
    1 << fits.ilog2()
}

/// Epochs that see some 60,000 samples in all.
fn epochs(n_train: usize) -> usize {
    (60_000 / n_train.max(1)).clamp(10, 100)
}

fn images(photos: &Photos, facts: &DataFacts) -> Recipe {
    let Photos { smallest: (class, fewest), largest, side } = photos;
    let about = format!(
        "{} images in {} classes to train on, {} to validate on. The smallest class, \"{class}\", has {} \
         images, the largest {}; the median of their shorter sides is {side} pixels.",
        count(facts.n_train),
        facts.classes.len(),
        count(facts.n_val),
        count(*fewest),
        count(*largest),
    );
    let (model, transforms) =
        if *side <= MAX_SMALL_SIDE { small_images(*side) } else { large_images(*side, *fewest) };
    let balance = if *fewest * 4 < *largest {
        comment("Classes are uneven: look at each class, not only at the accuracy of all.")
    } else {
        String::new()
    };
    let (n, batch) = (facts.n_train, batch_size(facts.n_train, 32));
    let rest = format!(
        "{transforms}
[train]
epochs = {}                   # {} images each
batch_size = {batch}               # per rank
precision = \"amp\"             # the fastest of this machine that trains alike

{balance}[loss]
name = \"cross_entropy\"
label_smoothing = 0.1

{ADAMW}
[checkpoint]
monitor = \"val/accuracy\"      # the best epoch is kept
mode = \"max\"
",
        epochs(n),
        count(n),
    );
    Recipe { about, model, rest }
}

const ADAMW: &str = "[optimizer]
name = \"adamw\"
lr = 1e-3
weight_decay = 0.05

[scheduler]
name = \"cosine\"
interval = \"step\"
warmup = \"1 epoch\"
";

/// The model and the transforms for images of about `side` pixels.
fn small_images(side: u32) -> (String, String) {
    let side = side.max(8);
    let why = "He et al.'s network for images of 32x32, of 0.27 million parameters, trains on a CPU. On a GPU \
               resnet18 with stem = \"cifar\" is better.";
    let model = format!("{}[model]\nname = \"resnet20\"\n", comment(why));
    let size = format!(
        "name = \"resize\"               # a batch needs one size\nsize = [{side}, {side}]"
    );
    let crop = format!(
        "name = \"random_crop\"          # shifts by up to an eighth\nsize = {side}\npadding = {}",
        side / 8
    );
    let flip =
        "name = \"random_horizontal_flip\" # remove it where left and right differ, as in digits";
    (model, transforms(&[&size, &crop, flip], &[&size]))
}

fn large_images(side: u32, fewest: usize) -> (String, String) {
    let size = if side >= 200 { 224 } else { (side / 32).max(2) * 32 };
    let scratch = if fewest < MIN_IMAGES_PER_CLASS {
        format!(
            "With {} images in the smallest class, weights of ImageNet help most: put torchvision's resnet18 as \
             safetensors there, and take the comment signs away.",
            count(fewest)
        )
    } else {
        "To begin with weights of ImageNet, put torchvision's resnet18 as safetensors there, and take the comment \
         signs away."
            .to_owned()
    };
    let model = format!(
        "[model]\nname = \"resnet18\"\n{}# pretrained = \"weights/resnet18.safetensors\"\n# strict = \"except_head\"\n",
        comment(&scratch)
    );
    let crop = format!(
        "name = \"random_resized_crop\"  # as for ImageNet; less memory with less\nsize = {size}"
    );
    let flip = "name = \"random_horizontal_flip\" # remove it where left and right differ";
    let resize = format!("name = \"resize\"\nsize = {}", size * 8 / 7);
    let center = format!("name = \"center_crop\"\nsize = {size}");
    (model, transforms(&[&crop, flip], &[&resize, &center]))
}

const IMAGENET: &str = "name = \"normalize\"            # mean and deviation of ImageNet\nmean = [0.485, 0.456, 0.406]\nstd = [0.229, 0.224, 0.225]";

fn transforms(train: &[&str], val: &[&str]) -> String {
    let list = |part: &str, all: &[&str]| -> String {
        let all = all.iter().chain([&IMAGENET]);
        let entries = all.map(|entry| format!("\n[[data.transforms.{part}]]\n{entry}\n"));
        entries.collect::<Vec<_>>().concat()
    };
    list("train", train) + &list("val", val)
}

fn digits(n: &str) -> Recipe {
    let normalize = "name = \"normalize\"\nmean = [0.1307]\nstd = [0.3081]\n";
    let rest = format!(
        "
[[data.transforms.train]]
{normalize}
[[data.transforms.val]]
{normalize}
[train]
epochs = 5
batch_size = 64

{ADAMW}
[checkpoint]
monitor = \"val/accuracy\"
mode = \"max\"
"
    );
    let model = "[model]\nname = \"simple_cnn\"           # small convolutions, quick on a CPU\n"
        .to_owned();
    Recipe { about: format!("MNIST's files: {n}."), model, rest }
}

fn table(classify: bool, about: &str, facts: &DataFacts) -> Recipe {
    let (loss, monitor, mode) = if classify {
        ("cross_entropy", "val/accuracy", "max")
    } else {
        ("mse", "val/loss", "min")
    };
    let inputs = facts.sample.as_ref().map_or(0, |sample| sample.iter().product::<usize>());
    let about = format!("a table with {inputs} features: {about}. Features are standardised.");
    let batch = batch_size(facts.n_train, 64);
    let rest = format!(
        "
[train]
epochs = {}
batch_size = {batch}

[loss]
name = \"{loss}\"{}

[optimizer]
name = \"adamw\"
lr = 1e-3
weight_decay = 0.01

[checkpoint]
monitor = \"{monitor}\"
mode = \"{mode}\"
",
        epochs(facts.n_train),
        if classify { "" } else { "                  # huber, if some targets are far off" },
    );
    let model = "[model]\nname = \"mlp\"\nhidden = [64, 64]             # wider for more rows\n";
    Recipe { about, model: model.to_owned(), rest }
}

fn series(about: &str, facts: &DataFacts) -> Recipe {
    let n_series = facts.target.get(1).copied().unwrap_or(1);
    let about = format!(
        "{n_series} series, {about}: {} windows to train on, {} to validate and {} to test on.",
        count(facts.n_train),
        count(facts.n_val),
        count(facts.n_test)
    );
    let rest = format!(
        "
[train]
epochs = 10
batch_size = {}

[loss]
name = \"mse\"

[optimizer]
name = \"adam\"
lr = 1e-3

[checkpoint]
monitor = \"val/mse\"

[early_stopping]
monitor = \"val/mse\"
patience = 3
",
        batch_size(facts.n_train, 32)
    );
    let why = "A linear model is hard to beat, and trains in a minute; then try itransformer, patchtst or timebridge.";
    Recipe { about, model: format!("{}[model]\nname = \"dlinear\"\n", comment(why)), rest }
}

fn text(about: &str, facts: &DataFacts) -> Recipe {
    let about = format!("{about}, and a vocabulary of {}.", count(facts.classes.len()));
    let model = "[model]
name = \"gpt\"                  # nanoGPT's recipe for a laptop: minutes on a CPU
n_layers = 4
n_heads = 4
d_model = 128
dropout = 0.0                 # 0.2 for more steps on a short text
bias = false
"
    .to_owned();
    let rest = format!(
        "
[train]
steps = 2000
batch_size = {}
clip_grad_norm = 1.0

[optimizer]
name = \"adamw\"
lr = 1e-3
betas = [0.9, 0.99]
weight_decay = 0.1
no_decay_on_1d = true

[scheduler]
name = \"cosine\"
interval = \"step\"
warmup = \"100 steps\"
eta_min = 1e-4

[validation]
every = \"250 steps\"
batch_size = 64

[checkpoint]
every = \"250 steps\"

[logging]
every = \"50 steps\"
",
        batch_size(facts.n_train, 8)
    );
    Recipe { about, model, rest }
}

fn behaviour(n: &str, facts: &DataFacts) -> Recipe {
    let numbers = |shape: &[usize]| shape.last().copied().unwrap_or(0);
    let about = format!(
        "recorded behaviour, observations of {} numbers, actions of {}: {n}.",
        facts.sample.as_deref().map_or(0, numbers),
        numbers(&facts.target)
    );
    let model = "[model]
name = \"diffusion_policy\"     # mlp for plain regression
down_dims = [64, 128]         # wider for more kinds of behaviour
diffusion_step_embed_dim = 64
"
    .to_owned();
    let rest = format!(
        "
[train]
steps = 4000
batch_size = {}

[loss]
name = \"mse\"

[optimizer]
name = \"adamw\"
lr = 1e-3
betas = [0.95, 0.999]
weight_decay = 1e-6

[scheduler]
name = \"cosine\"
interval = \"step\"
warmup = \"200 steps\"

[ema]                         # what is validated, sampled and exported
decay = 0.9999
power = 0.75

[validation]
every = \"1000 steps\"
batch_size = 256

[checkpoint]
every = \"1000 steps\"

[logging]
every = \"100 steps\"
",
        batch_size(facts.n_train, 64)
    );
    Recipe { about, model, rest }
}

fn speech(n: &str, facts: &DataFacts) -> Recipe {
    let about = format!("speech in {} classes: {n}.", facts.classes.len());
    let model = "[model]
name = \"fastconformer\"        # NEST's encoder, small enough for a CPU
d_model = 96
n_heads = 4
n_layers = 4
subsampling_channels = 32
"
    .to_owned();
    let rest = format!(
        "
[train]
epochs = 30
batch_size = {}

{ADAMW}
[checkpoint]
monitor = \"val/accuracy\"
mode = \"max\"
",
        batch_size(facts.n_train, 16)
    );
    Recipe { about, model, rest }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_a_power_of_two_of_which_an_epoch_has_eight() {
        for (n_train, batch) in [(3, 2), (16, 2), (100, 8), (256, 32), (1_000_000, 32)] {
            assert_eq!(batch_size(n_train, 32), batch, "{n_train} samples");
        }
    }

    #[test]
    fn small_images_keep_their_size_and_large_ones_are_cropped() {
        let photos = |side| Photos { smallest: ("ant".to_owned(), 31), largest: 200, side };
        let facts = DataFacts {
            n_train: 1440,
            n_val: 280,
            classes: vec!["ant".to_owned(), "bee".to_owned()],
            ..DataFacts::default()
        };
        let small = images(&photos(32), &facts);
        assert!(small.model.contains("resnet20") && small.rest.contains("size = [32, 32]"));
        let large = images(&photos(333), &facts);
        assert!(large.model.contains("resnet18") && large.rest.contains("size = 224"));
        assert!(large.about.starts_with("1,440 images in 2 classes"), "{}", large.about);
        assert!(large.rest.contains("Classes are uneven"), "{}", large.rest);
        let middle = images(&photos(100), &facts);
        assert!(middle.rest.contains("size = 96") && middle.rest.contains("size = 109"));
    }
}
