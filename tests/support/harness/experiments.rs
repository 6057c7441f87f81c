//! What the tests train: small, and fast enough to be run a hundred times.

use std::fs;
use std::path::PathBuf;

use crate::harness::lab::Lab;

/// Two ranks train a small network on 48 generated images of 3 classes: 6 steps in each of 2
/// epochs.
pub(crate) const BASE: &str = r#"schema = 1

[experiment]
name = "small"
seed = 7

[model]
name = "mlp"
hidden = [16]

[data]
name = "shapes"
dir = "data/shapes"
classes = 3
train_per_class = 16
val_per_class = 5
image_size = 16
num_workers = 1

[train]
epochs = 2
batch_size = 4
global_batch_size = 8

[optimizer]
name = "adamw"
lr = 1e-3

[distributed]
devices = 2
threads_per_rank = 1
timeout = "60s"

[logging]
every = "1 step"
sinks = ["jsonl", "csv"]
"#;

/// [`BASE`] on other data: `options` are those of its `[data]`.
pub(crate) fn on_data(options: &str) -> String {
    let (before, rest) = BASE.split_once("[data]\n").unwrap();
    let (_, after) = rest.split_once("\n\n").unwrap();
    format!("{before}[data]\n{options}\n\n{after}")
}

/// A small ResNet on augmented images, 60 steps of some milliseconds: long enough to be stopped in
/// the middle of an epoch, every random number and every kind of state in use.
pub(crate) const SLOW: &str = r#"schema = 1

[experiment]
name = "small"
seed = 11

[model]
name = "resnet8"

[data]
name = "shapes"
dir = "data/shapes"
classes = 3
train_per_class = 64
val_per_class = 7
image_size = 16
num_workers = 1
transforms.train = [
    { name = "random_crop", size = 16, padding = 2 },
    { name = "random_horizontal_flip" },
    { name = "color_jitter", brightness = 0.2, hue = 0.1 },
]

[train]
epochs = 5
batch_size = 4
global_batch_size = 16
clip_grad_norm = 1.0

[optimizer]
name = "sgd"
lr = 0.05
momentum = 0.9
nesterov = true
weight_decay = 5e-4

[scheduler]
name = "cosine"
interval = "step"
warmup = "5 steps"

[distributed]
devices = 2
shards = 4
threads_per_rank = 1
timeout = "60s"

[checkpoint]
every = "7 steps"

[logging]
every = "1 step"
sinks = ["jsonl", "csv"]
"#;

/// [`BASE`] with so many epochs of 6 steps, and a checkpoint at every second step.
pub(crate) fn saving(epochs: u32) -> String {
    BASE.replace("epochs = 2", &format!("epochs = {epochs}"))
        + "\n[checkpoint]\nevery = \"2 steps\"\n"
}

/// Four steps with two checkpoints, of which the first is rotated away.
pub(crate) fn four_steps() -> String {
    saving(2).replace("epochs = 2", "steps = 4")
}

impl Lab {
    /// An image of one colour, so that the classes `red`, `green` ... can be told apart.
    pub(crate) fn write_image(&self, name: &str, color: [u8; 3]) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        image::RgbImage::from_pixel(16, 16, image::Rgb(color)).save(&path).unwrap();
        path
    }

    /// `data/train` and `data/val` with 8 and 4 images of two classes, and `photos.toml` that
    /// trains on them.
    pub(crate) fn write_photos(&self) {
        for (split, n) in [("train", 8), ("val", 4)] {
            for (class, color) in [("blue", [0, 0, 200]), ("red", [200, 0, 0])] {
                for index in 0..n {
                    self.write_image(&format!("data/{split}/{class}/{index}.png"), color);
                }
            }
        }
        let shapes = BASE.lines().filter(|line| {
            !["dir =", "classes", "train_per", "val_per", "image_size"]
                .iter()
                .any(|key| line.starts_with(key))
        });
        let photos: Vec<&str> = shapes.collect();
        let folders = "name = \"image_folder\"\ntrain_dir = \"data/train\"\nval_dir = \"data/val\"\n\
            transforms.train = [{ name = \"resize\", size = [16, 16] }]\n\
            transforms.val = [{ name = \"resize\", size = [16, 16] }]";
        self.write("photos.toml", photos.join("\n").replace("name = \"shapes\"", folders));
    }
}
