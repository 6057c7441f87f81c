//! Recipes for recorded behaviour.

use crate::init::names::count;
use crate::init::recipe::{Recipe, batch_size};
use crate::plan::{Cameras, DataFacts};

/// Shorter side of images up to which a network for small images is taken, in pixels.
const MAX_SMALL_SIDE: usize = 48;
/// Shorter side of images to which larger ones are made smaller.
const MAX_SIDE: usize = 240;

const NUMBERS: &str = "name = \"diffusion_policy\"     # mlp for plain regression\n";
/// The next actions.
pub(super) fn behaviour(n: &str, facts: &DataFacts) -> Recipe {
    let numbers = |shape: &[usize]| shape.last().copied().unwrap_or(0);
    let seen = facts.cameras.as_ref().map_or(String::new(), pictures);
    let about = format!(
        "recorded behaviour, observations of {} numbers{seen}, actions of {}: {n}.",
        facts.sample.as_deref().map_or(0, numbers),
        numbers(&facts.target)
    );
    let (network, transforms) = match &facts.cameras {
        None => (NUMBERS.to_owned(), String::new()),
        Some(cameras) => (sees(cameras), transforms(cameras)),
    };
    let model = format!(
        "[model]
{network}down_dims = [64, 128]         # wider for more kinds of behaviour
diffusion_step_embed_dim = 64
"
    );
    let rest = format!(
        "{transforms}
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
warmup = \"5 %\"

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

/// " and images of 96x96 pixels by 2 cameras"
fn pictures(cameras: &Cameras) -> String {
    let ([_, height, width], n) = (cameras.shape, cameras.names.len());
    let by = if n == 1 { "a camera".to_owned() } else { format!("{} cameras", count(n)) };
    format!(" and images of {width}x{height} pixels by {by}")
}

/// The options of a network that sees images.
fn sees(cameras: &Cameras) -> String {
    let backbone = if shorter(cameras) <= MAX_SMALL_SIDE {
        "vision_backbone = \"resnet8\"   # resnet18 for larger images"
    } else {
        "vision_backbone = \"resnet18\"  # with group norms, as LeRobot's"
    };
    format!("name = \"diffusion_policy_image\"\n{backbone}\n")
}

fn shorter(cameras: &Cameras) -> usize {
    let [_, height, width] = cameras.shape;
    height.min(width)
}

/// Transforms that make large images smaller, in training and in validation alike: an action may be
/// a position in them. Their values are normalized by the statistics of the data.
fn transforms(cameras: &Cameras) -> String {
    if shorter(cameras) <= MAX_SIDE {
        return String::new();
    }
    let part = |part: &str| {
        format!(
            "\n[[data.transforms.{part}]]\nname = \"resize\"               # of the shorter \
             side\nsize = {MAX_SIDE}\n"
        )
    };
    part("train") + &part("val")
}
