//! Optimizer state, and gradients, in parts (`distributed.zero_stage`): the bits of plain DDP on the
//! same GPUs. Two numbers have one sum, so this holds for two ranks whatever order NCCL adds in.

use std::path::{Path, PathBuf};
use std::process::Output;

use ddprun::ops;

use crate::{ddprun, walkdir};

/// 33 images of 3 classes: the last step of an epoch is short, and has none for one of the ranks.
/// Several buckets.
const SMALL: &str = r#"schema = 1
[experiment]
name = "parts"
seed = 3
[model]
name = "mlp"
hidden = [96, 64]
[data]
name = "shapes"
classes = 3
train_per_class = 11
val_per_class = 4
image_size = 16
[train]
epochs = 2
batch_size = 4
[optimizer]
name = "adamw"
lr = 0.003
[scheduler]
name = "constant"
[distributed]
devices = 2
bucket_cap = "64KiB"
first_bucket_cap = "16KiB"
timeout = "60s"
[checkpoint]
every = "1 step"
"#;

/// What is trained, beyond that.
const RUNS: [(&str, &[&str]); 7] = [
    ("adamw", &[]),
    (
        "bf16, two passes, clipping, averages",
        &[
            "train.precision=bf16",
            "train.gradient_accumulation_steps=2",
            "train.clip_grad_norm=0.05",
            "ema.decay=0.5",
        ],
    ),
    ("fp16", &["train.precision=fp16", "optimizer.name=sgd", "optimizer.momentum=0.9"]),
    ("two shards on each", &["distributed.shards=4", "train.batch_size=2"]),
    (
        "an optimizer on the CPU, averages, noise",
        &["optimizer.name=lamb", "ema.decay=0.5", "train.gradient_noise=0.01"],
    ),
    ("gradients in bf16", &["distributed.comm_hook=bf16"]),
    ("batch norms, averages of theirs", &["model.name=resnet8", "~model.hidden", "ema.decay=0.5"]),
];

fn start(folder: &Path, words: &[&str]) -> Output {
    let mut command = ddprun(folder);
    for key in ["DDPRUN_DATA__TRAIN_PER_CLASS", "DDPRUN_DATA__VAL_PER_CLASS"] {
        command.env_remove(key);
    }
    command.args(words).output().unwrap()
}

/// What a run said that ended well.
#[track_caller]
fn succeeds(folder: &Path, words: &[&str]) -> String {
    let ended = start(folder, words);
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.success(), "{words:?}: {said}");
    said
}

fn experiment() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("parts.toml");
    ddprun::internals::files::write_atomic(&file, SMALL.as_bytes()).unwrap();
    folder
}

/// Weights and state of the optimizer at the end of the one run in `folder`.
fn bits(folder: &Path) -> [Vec<u8>; 2] {
    let files = walkdir(folder);
    let last = |name: &str| {
        let found = files.iter().filter(|path| path.ends_with(name));
        let mut found: Vec<&PathBuf> = found.collect();
        found.sort_by_key(|path| path.parent().map(|step| step.file_name().unwrap().to_owned()));
        std::fs::read(found.iter().rfind(|path| path.to_string_lossy().contains("step-")).unwrap())
            .unwrap()
    };
    ["model.safetensors", "optimizer.safetensors"].map(last)
}

fn trained(changes: &[&str], stage: u8) -> (String, [Vec<u8>; 2]) {
    let folder = experiment();
    let zero = format!("distributed.zero_stage={stage}");
    let words = [&["parts.toml", &zero], changes].concat();
    (succeeds(folder.path(), &words), bits(folder.path()))
}

fn gpus() -> usize {
    ops::visible_gpus().and_then(std::result::Result::ok).map_or(0, |gpus| gpus.len())
}

#[track_caller]
fn has_the_bits_of_plain_ddp(name: &str, changes: &[&str]) {
    let (_, plain) = trained(changes, 0);
    for stage in [1, 2] {
        let (said, parts) = trained(changes, stage);
        assert!(said.contains("optimizer state in 2 parts: rank 0 keeps"), "{name}: {said}");
        for (what, (parts, plain)) in ["weights", "state"].iter().zip(parts.iter().zip(&plain)) {
            assert!(parts == plain, "{name}, {stage}: other {what} than with plain DDP");
        }
        println!("TABLE | {name}, {stage} | the bits of plain DDP |");
    }
}

#[test]
fn gpu_state_in_parts_over_nccl_has_the_bits_of_plain_ddp() {
    if gpus() < 2 {
        return println!("SKIPPED state in parts over NCCL: {} GPUs", gpus());
    }
    for (name, changes) in RUNS {
        has_the_bits_of_plain_ddp(name, changes);
    }
}

#[test]
fn gpu_state_in_parts_of_two_ranks_on_one_gpu_has_the_bits_of_plain_ddp() {
    if gpus() == 0 {
        return println!("SKIPPED state in parts on one GPU: no GPU");
    }
    for (name, changes) in &RUNS[..3] {
        let shared = [&["distributed.devices=[0, 0]"], *changes].concat();
        has_the_bits_of_plain_ddp(&format!("one GPU, {name}"), &shared);
    }
}

/// One rank continues with the same bits. Four add in NCCL's order, which is another one.
#[test]
fn gpu_a_checkpoint_of_two_ranks_with_parts_goes_on_at_one_and_four() {
    if gpus() < 2 {
        return println!("SKIPPED resuming state in parts: {} GPUs", gpus());
    }
    let shards = ["distributed.shards=4", "train.batch_size=2", "ema.decay=0.5"];
    let (_, whole) = trained(&shards, 0);
    for (stage, ranks) in [(1, 1), (2, 1), (1, 4), (2, 4)] {
        if ranks > gpus() {
            println!("SKIPPED resuming at {ranks} ranks: {} GPUs", gpus());
            continue;
        }
        let folder = experiment();
        let zero = format!("distributed.zero_stage={stage}");
        let first = ["parts.toml", &zero, "train.epochs=1"];
        succeeds(folder.path(), &[&first[..], &shards].concat());
        let ranks_word = format!("distributed.devices={ranks}");
        let said = succeeds(folder.path(), &["resume", "train.epochs=2", &ranks_word]);
        assert!(said.contains("resumed after step "), "{said}");
        if ranks == 1 {
            assert!(bits(folder.path()) == whole, "{stage} at 1 rank: other bits");
        }
        println!("TABLE | {stage} of 2 ranks | continued at {ranks} |");
    }
}
