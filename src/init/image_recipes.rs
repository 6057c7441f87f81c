//! Recipes for images.

use crate::init::images::Photos;
use crate::init::names::{classes, comment, count};
use crate::init::recipe::{ADAMW, Recipe, batch_size, epochs};
use crate::init::recognised::ImageAnswer;
use crate::plan::DataFacts;

/// Shorter side of photos up to which a network for small images is taken, in pixels.
const MAX_SMALL_SIDE: u32 = 48;
/// Photos of a class below which training from scratch is worth a warning.
const MIN_IMAGES_PER_CLASS: usize = 500;

/// Numbers of photos of the classes, in words.
fn sizes_of_classes(photos: &Photos) -> String {
    let (class, fewest) = &photos.smallest;
    if *fewest == photos.largest {
        return format!("There are {} images in each class", count(*fewest));
    }
    let (fewest, most) = (count(*fewest), count(photos.largest));
    format!("The smallest class, \"{class}\", has {fewest} images, the largest {most}")
}

/// Photos in class folders.
pub(super) fn images(photos: &Photos, facts: &DataFacts) -> Recipe {
    let Photos { smallest: (_, fewest), largest, side, unreadable } = photos;
    let unreadable = match unreadable {
        (_, 0) => String::new(),
        (looked_at, n) => format!(
            " {} of the {} that were looked at cannot be read: `data.on_bad_sample = \"skip\"` \
             passes over such.",
            count(*n),
            count(*looked_at)
        ),
    };
    let about = format!(
        "{} images in {} to train on, {} to validate on. {}; the median of their shorter \
         sides is {side} pixels.{unreadable}",
        count(facts.n_train),
        classes(facts.classes.len()),
        count(facts.n_val),
        sizes_of_classes(photos),
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
epochs = {}                   # passes over {} images
batch_size = {batch}               # per rank
precision = \"amp\"             # bf16 where this machine is fast at it, else fp32

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

/// Images that a table lists.
pub(super) fn listed(answer: ImageAnswer, side: u32, n: &str, facts: &DataFacts) -> Recipe {
    let what = match answer {
        ImageAnswer::Labels => format!("any of {}", classes(facts.classes.len())),
        ImageAnswer::Class => format!("one of {}", classes(facts.classes.len())),
        ImageAnswer::Numbers if facts.n_targets <= 1 => "a number".to_owned(),
        ImageAnswer::Numbers => format!("{} numbers", facts.n_targets),
    };
    let about = format!(
        "images with {what} each: {n}; the median of their shorter sides is {side} pixels."
    );
    let (model, transforms) =
        if side <= MAX_SMALL_SIDE { small_images(side) } else { large_images(side, usize::MAX) };
    let (loss, monitor, mode) = match answer {
        ImageAnswer::Labels => ("bce_with_logits", "val/average_precision", "max"),
        ImageAnswer::Class => ("cross_entropy", "val/accuracy", "max"),
        ImageAnswer::Numbers => ("mse", "val/loss", "min"),
    };
    let (n, batch) = (facts.n_train, batch_size(facts.n_train, 32));
    let rest = format!(
        "{transforms}
[train]
epochs = {}
batch_size = {batch}               # per rank
precision = \"amp\"             # bf16 where this machine is fast at it, else fp32

[loss]
name = \"{loss}\"

{ADAMW}
[checkpoint]
monitor = \"{monitor}\"
mode = \"{mode}\"
",
        epochs(n),
    );
    Recipe { about, model, rest }
}

/// The model and the transforms for images of about `side` pixels.
fn small_images(side: u32) -> (String, String) {
    let side = side.max(8);
    let why = "He et al.'s network for images of 32x32, of 0.27 million parameters, trains on a \
               CPU. On a GPU resnet18 with stem = \"cifar\" is better.";
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
            "With {} images in the smallest class, weights of ImageNet help most: put \
             torchvision's resnet18 as safetensors there, and take the comment signs away.",
            count(fewest)
        )
    } else {
        "To begin with weights of ImageNet, put torchvision's resnet18 as safetensors there, and \
         take the comment signs away."
            .to_owned()
    };
    let model = format!(
        "[model]\nname = \"resnet18\"\n{}# pretrained = \"weights/resnet18.safetensors\"\n# \
         strict = \"except_head\"\n",
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

const IMAGENET: &str = "name = \"normalize\"            # mean and deviation of ImageNet\nmean = \
                        [0.485, 0.456, 0.406]\nstd = [0.229, 0.224, 0.225]";

fn transforms(train: &[&str], val: &[&str]) -> String {
    let list = |part: &str, all: &[&str]| -> String {
        let all = all.iter().chain([&IMAGENET]);
        let entries = all.map(|entry| format!("\n[[data.transforms.{part}]]\n{entry}\n"));
        entries.collect::<Vec<_>>().concat()
    };
    list("train", train) + &list("val", val)
}

/// MNIST's digits.
pub(super) fn digits(n: &str) -> Recipe {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_images_keep_their_size_and_large_ones_are_cropped() {
        let photos = |side| Photos {
            smallest: ("ant".to_owned(), 31),
            largest: 200,
            side,
            unreadable: (200, 3),
        };
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
        assert!(large.about.contains("3 of the 200 that were looked at"), "{}", large.about);
        assert!(large.rest.contains("Classes are uneven"), "{}", large.rest);
        let middle = images(&photos(100), &facts);
        assert!(middle.rest.contains("size = 96") && middle.rest.contains("size = 109"));
    }
}
