//! Conversations, manifests of speech, policies that see pictures and optimizers, where features
//! meet: four ranks, a rank that is killed, a parent that is killed.

use ddprun::optim::Optimizers;

use crate::lab::Lab;
use crate::media::{chats, speech};
use crate::policies::seeing;
use crate::resume::{Bits, bits, must_be_whole};
use crate::running::{Ended, spawn};

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
pub(crate) fn shapes(image_size: u32) -> String {
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

/// Four shards, a checkpoint at each step, and so many epochs or steps.
const EACH: [&str; 4] = [
    "distributed.shards=4",
    "checkpoint.every=1 step",
    "validation.every=1 step",
    "logging.every=1 step",
];

/// What `points` do to a run, whose checkpoints are on the disk before the next step.
pub(crate) fn disturbed(lab: &Lab, points: &str, args: &[&str]) -> Ended {
    let mut command = lab.ddprun(&[&["small.toml"], args, &EACH[..]].concat());
    command.env("DDPRUN_FP", format!("checkpoint.queued=wait@*,*,*; {points}"));
    spawn(command).wait()
}

fn check(lab: &Lab, expected: &Bits) {
    bits(lab).must_be(expected);
    must_be_whole(lab);
    lab.is_clean();
}

/// The end of a run on one rank.
fn undisturbed(make: &dyn Fn() -> Lab, more: &[&str]) -> Bits {
    let whole = make();
    whole.run_to(0, &[&["small.toml", "distributed.devices=1"], more, &EACH[..]].concat());
    bits(&whole)
}

/// A run that is killed in its third step, and goes on with another number of ranks.
fn killed_and_resumed(make: &dyn Fn() -> Lab, [ranks, then]: [u32; 2], more: &[&str]) -> Lab {
    let [ranks, then] = [ranks, then].map(|n| format!("distributed.devices={n}"));
    let lab = make();
    let args = [&[&*ranks], more].concat();
    disturbed(&lab, "forward=kill(parent)@0,3", &args).has_code(-9);
    lab.run_to(0, &["resume", &then]).says(&["resumed after step 2"]);
    lab
}

/// A run on one rank, and the same disturbed in several ways.
pub(crate) fn ends_alike_however_it_is_disturbed(make: &dyn Fn() -> Lab, more: &[&str]) {
    let expected = undisturbed(make, more);
    let four = make();
    four.run_to(0, &[&["small.toml", "distributed.devices=4"], more, &EACH[..]].concat());
    check(&four, &expected);

    let restarted = make();
    let again = [&["--max-restarts", "1", "distributed.devices=2"], more].concat();
    let ended = disturbed(&restarted, "forward=kill@1,3", &again);
    ended.has_code(0);
    ended.says(&["rank 1 was killed by SIGKILL"]);
    check(&restarted, &expected);

    check(&killed_and_resumed(make, [2, 4], more), &expected);
}

/// The same in full precision, and in bf16 with smaller passes.
pub(crate) fn ends_alike_in_full_and_in_half(make: &dyn Fn() -> Lab, more: &[&str]) {
    ends_alike_however_it_is_disturbed(make, more);
    let half = ["train.precision=bf16", "train.batch_size=1"];
    ends_alike_however_it_is_disturbed(make, &[more, &half].concat());
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

#[test]
fn every_optimizer_resumes_in_bf16_to_the_same_bits_on_one_rank_and_on_two() {
    let options = |name| match name {
        "sgd" | "rmsprop" => "momentum = 0.9",
        "adamw" => "amsgrad = true",
        _ => "",
    };
    for optimizer in Optimizers::default().names() {
        let rule = format!("name = \"{optimizer}\"\n{}\n", options(optimizer));
        let make = || {
            let lab = recipe(&format!("{NUMBERS}{rule}"));
            let row = |i: u32| format!("{i},{},{}\n", i * i % 7, i % 2 * 5 + i * 3 % 5);
            lab.write("numbers.csv", "a,b,y\n".to_owned() + &(0..30).map(row).collect::<String>());
            lab
        };
        let expected = undisturbed(&make, &[]);
        for ranks in [1, 2] {
            println!("{optimizer} on {ranks}");
            check(&killed_and_resumed(&make, [ranks; 2], &[]), &expected);
        }
    }
}

#[test]
fn conversations_have_the_same_bits_on_four_ranks_and_after_kills() {
    ends_alike_however_it_is_disturbed(&chats, &[]);
}

#[test]
fn manifests_of_speech_have_the_same_bits_on_four_ranks_and_after_kills() {
    ends_alike_however_it_is_disturbed(&speech, &["train.batch_size=1", "train.epochs=4"]);
}

#[test]
fn a_policy_that_sees_pictures_has_the_same_bits_on_four_ranks_and_after_kills() {
    let make = || Lab::with(&seeing());
    ends_alike_however_it_is_disturbed(&make, &["train.batch_size=2", "train.steps=4"]);
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

fn speed_run() -> Lab {
    recipe(&(shapes(32) + SPEED_RUN))
}

#[test]
fn a_speed_run_has_the_same_bits_on_four_ranks_and_after_kills() {
    ends_alike_in_full_and_in_half(&speed_run, &[]);
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
