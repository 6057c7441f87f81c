//! Image transforms, the shape of a sample after them, and warnings about doubtful ones.

use crate::config::kind::{Choice, Entry};
use crate::config::{Loaded, Problem};
use crate::plan::{Cameras, DataFacts, Facts, Images, PixelStats, Sides, TrainedOn, Unfit};
use crate::terminal::format_number;

/// A list of transforms, with those that are always in it.
#[derive(Clone, Debug, PartialEq)]
pub struct TransformFacts {
    /// All transforms, in order.
    pub list: Vec<Choice>,
    /// Channels of all images after them.
    pub channels: usize,
    /// Size of all images after them; `None` = they may differ.
    pub size: Option<Sides>,
    /// Black and white in each channel after the experiment's own list, if it normalizes.
    pub values: Option<Vec<[f64; 2]>>,
    /// Names of the random transforms.
    pub random: Vec<String>,
}

/// Returns the facts of a list of transforms of such images, which the statistics normalize where
/// no transform does, or the index of the transform that does not fit.
pub(super) type DescribeTransforms<'a> =
    &'a dyn Fn(&[Choice], &Images, Option<&PixelStats>) -> Result<TransformFacts, (usize, Unfit)>;

/// The transforms of `[data.transforms]`, and the shape of a sample after them.
#[derive(Debug)]
pub(super) struct TransformPlan {
    pub(super) train: Vec<Choice>,
    pub(super) val: Vec<Choice>,
    /// (channels, height, width) or (features).
    pub(super) input: Vec<usize>,
    /// Cameras of an observation, with the shape of their images after the transforms.
    pub(super) cameras: Option<Cameras>,
    /// Warnings about transforms that look like mistakes.
    pub(super) notes: Vec<String>,
}

impl TransformPlan {
    /// The plan for samples that are images of `shape`, or hold such images behind the numbers of
    /// each observation.
    fn new(train: Vec<Choice>, val: Vec<Choice>, shape: [usize; 3], data: &DataFacts) -> Self {
        let cameras = data
            .cameras
            .as_ref()
            .map(|Cameras { names, .. }| Cameras { names: names.clone(), shape });
        let input = match (&cameras, data.sample.as_deref()) {
            (Some(cameras), Some(&[seen, numbers])) => vec![seen, numbers + cameras.values()],
            _ => shape.to_vec(),
        };
        Self { train, val, input, cameras, notes: Vec::new() }
    }
}

/// The plan of `[data.transforms]`. Both lists must lead to the same shape.
pub(super) fn decide(
    loaded: &Loaded,
    facts: &Facts,
    describe: DescribeTransforms<'_>,
) -> Result<TransformPlan, Vec<Problem>> {
    let config = &loaded.experiment.data.transforms;
    let data = &facts.data;
    let of = |[channels, height, width]: [usize; 3]| {
        Images::new(channels, Some((height as u32, width as u32)))
    };
    let images = match (data.sample.as_deref(), &data.cameras) {
        (_, Some(cameras)) => Images { cameras: cameras.names.len(), ..of(cameras.shape) },
        (Some(&[channels, height, width]), None) if data.source.holds_images() => {
            of([channels, height, width])
        }
        (Some(vector), None) => {
            let none = without_images(loaded, vector);
            return none.map_err(|problem| vec![problem]);
        }
        (None, None) => Images { dtype: data.pixel_dtype, ..Images::new(3, None) },
    };
    let decide = |key, entries: &[Entry]| list(loaded, key, entries, &images, data, describe);
    let train = decide("data.transforms.train", &config.train);
    let val = decide("data.transforms.val", &config.val);
    let ((train, input), (val, val_input)) = match (train, val) {
        (Ok(train), Ok(val)) => (train, val),
        (train, val) => return Err([train.err(), val.err()].into_iter().flatten().collect()),
    };
    let weights = PretrainedSource::of(loaded, facts);
    let notes = if data.pixels.is_some() { Vec::new() } else { doubtful(&train, &val, &weights) };
    if input != val_input {
        let what = differing(input, val_input);
        return Err(vec![at_list(loaded, "data.transforms.val", what)]);
    }
    Ok(TransformPlan { notes, ..TransformPlan::new(train.list, val.list, input, data) })
}

/// The plan for samples without images, which no transform may change.
fn without_images(loaded: &Loaded, vector: &[usize]) -> Result<TransformPlan, Problem> {
    let config = &loaded.experiment.data.transforms;
    let lists = [("data.transforms.train", &config.train), ("data.transforms.val", &config.val)];
    if let Some((key, _)) = lists.into_iter().find(|(_, list)| !list.is_empty()) {
        let what = "change images, but the observations hold none".to_owned();
        return Err(at_list(loaded, key, what));
    }
    Ok(TransformPlan {
        train: Vec::new(),
        val: Vec::new(),
        input: vector.to_vec(),
        cameras: None,
        notes: Vec::new(),
    })
}

/// "gives images of 32x32, but training gives 64x64"
fn differing([channels, height, width]: [usize; 3], val: [usize; 3]) -> String {
    let [val_channels, val_height, val_width] = val;
    if channels != val_channels {
        return format!("gives {val_channels} channels, but training gives {channels}");
    }
    format!("gives images of {val_height}x{val_width}, but training gives {height}x{width}")
}

/// The transforms, and (channels, height, width) of every image after them.
fn list(
    loaded: &Loaded,
    key: &'static str,
    entries: &[Entry],
    images: &Images,
    data: &DataFacts,
    describe: DescribeTransforms<'_>,
) -> Result<(TransformFacts, [usize; 3]), Problem> {
    let choices: Vec<Choice> = entries.iter().map(Entry::choice).collect();
    let facts = describe(&choices, images, data.pixels.as_ref()).map_err(|(index, unfit)| {
        let key = format!("{key}[{index}].{}", unfit.key);
        unfit.problem(|what| loaded.problem(&key, what))
    })?;
    let (height, width) = facts.size.ok_or_else(|| {
        let what = "produces different sizes, which cannot be batched".to_owned();
        let help = "end with one size: name = \"resize\", size = [224, 224], or a crop";
        at_list(loaded, key, what).help(help)
    })?;
    let shape = [facts.channels, height as usize, width as usize];
    Ok((facts, shape))
}

/// A problem of a whole list, drawn on its last entry, or on the kind of data where there is none.
fn at_list(loaded: &Loaded, key: &str, what: String) -> Problem {
    let transforms = &loaded.experiment.data.transforms;
    let most = transforms.train.len().max(transforms.val.len());
    let names = (0..most).map(|index| format!("{key}[{index}].name"));
    let last = names.rev().find(|name| loaded.is_given(name));
    loaded.problem_at(key, last.as_deref().unwrap_or("data.name"), what)
}

/// Origin of the weights that images are prepared for.
enum PretrainedSource<'a> {
    /// Random weights, or those of a run of ddprun.
    Own,
    /// Weights of another program, without a description of their preprocessing.
    Foreign,
    /// Weights of another program, with a description of their preprocessing.
    Described(&'a TrainedOn),
}

impl<'a> PretrainedSource<'a> {
    fn of(loaded: &Loaded, facts: &'a Facts) -> Self {
        match (&loaded.experiment.model.pretrained, &facts.trained_on) {
            (Some(_), Some(described)) => Self::Described(described),
            (Some(_), None) if loaded.pretrained.is_none() => Self::Foreign,
            _ => Self::Own,
        }
    }
}

/// Warnings about transforms that look like mistakes.
fn doubtful(
    train: &TransformFacts,
    val: &TransformFacts,
    weights: &PretrainedSource<'_>,
) -> Vec<String> {
    const LISTS: [&str; 2] = ["data.transforms.train", "data.transforms.val"];
    let mut notes = Vec::new();
    let [of_train, of_val] = [train, val].map(|list| list.values.as_deref().map(statistics));
    match (&of_train, &of_val) {
        (Some(_), None) => notes.push(one_sided(LISTS[0], LISTS[1])),
        (None, Some(_)) => notes.push(one_sided(LISTS[1], LISTS[0])),
        (Some(train), Some(val)) if !is_near(train, val) => notes.push(
            "training and validation images are normalized with different numbers: `mean` and \
             `std` should be the same in `data.transforms.train` and `data.transforms.val`"
                .to_owned(),
        ),
        _ => {}
    }
    for (list, found) in LISTS.into_iter().zip([&of_train, &of_val]) {
        let Some((mean, std)) = found else { continue };
        if mean.iter().any(|mean| mean.abs() > 1.0) || std.iter().any(|&std| std > 2.0) {
            let transforms = if list == LISTS[0] { train } else { val };
            let (mean, std) = as_written(transforms).unwrap_or((numbers(mean), numbers(std)));
            notes.push(format!(
                "`{list}`: `mean = {mean}` and `std = {std}` seem to be of values from 0 to 255; \
                 here they are from 0 to 1, so divide both by 255"
            ));
            break;
        }
    }
    match (weights, of_train.as_ref().or(of_val.as_ref())) {
        (PretrainedSource::Foreign, None) => notes.push(
            "images are not normalized, but the weights of `model.pretrained` were probably \
             trained on images that were: ImageNet's are `mean = [0.485, 0.456, 0.406]` and `std = \
             [0.229, 0.224, 0.225]` of the transform `normalize`"
                .to_owned(),
        ),
        (PretrainedSource::Described(described), found) => {
            let theirs = (described.mean.clone(), described.std.clone());
            let identity = (vec![0.0], vec![1.0]);
            let ours = found.unwrap_or(&identity);
            if !is_near(ours, &theirs) {
                notes.push(format!(
                    "the weights of `model.pretrained` were trained on images of `mean = {}` and \
                     `std = {}`, as `{}` says; here they are {}",
                    numbers(&theirs.0),
                    numbers(&theirs.1),
                    described.file.display(),
                    match found {
                        None => "not normalized".to_owned(),
                        Some((mean, std)) => {
                            let transforms = if of_train.is_some() { train } else { val };
                            let written = as_written(transforms);
                            let (mean, std) = written.unwrap_or((numbers(mean), numbers(std)));
                            format!("`mean = {mean}` and `std = {std}`")
                        }
                    }
                ));
            }
            if let (Some(theirs), Some(ours)) = (&described.interpolation, interpolation(&val.list))
                && theirs != ours
            {
                notes.push(format!(
                    "the weights of `model.pretrained` were trained on images that were resized by \
                     `{theirs}` interpolation, as `{}` says; here it is `{ours}`: set \
                     `interpolation` of the transforms",
                    described.file.display()
                ));
            }
        }
        _ => {}
    }
    if !val.random.is_empty() {
        notes.push(format!(
            "`data.transforms.val` has `{}`, which is random: nothing is drawn in evaluations, so it \
             does what it always does, or nothing",
            val.random.join("`, `")
        ));
    }
    notes
}

/// Interpolation by which images are resized, if they are; torchvision's default is `bilinear`.
fn interpolation(list: &[Choice]) -> Option<&str> {
    let resize = list.iter().find(|transform| transform.name.contains("resize"))?;
    let given = resize.options.get("interpolation").and_then(|value| value.as_str());
    Some(given.unwrap_or("bilinear"))
}

fn one_sided(with: &str, without: &str) -> String {
    format!(
        "`{with}` normalizes images, `{without}` does not: the model is evaluated on other values \
         than it is trained on"
    )
}

/// Mean and standard deviation of each channel, from the values of black and white.
fn statistics(values: &[[f64; 2]]) -> (Vec<f64>, Vec<f64>) {
    let std = |[black, white]: &[f64; 2]| 1.0 / (white - black);
    let mean = |pair: &[f64; 2]| -pair[0] * std(pair);
    (values.iter().map(mean).collect(), values.iter().map(std).collect())
}

/// True if two pairs of lists are the same but for rounding; one number stands for all channels.
fn is_near((mean, std): &(Vec<f64>, Vec<f64>), other: &(Vec<f64>, Vec<f64>)) -> bool {
    let near = |a: &[f64], b: &[f64]| {
        let n = a.len().max(b.len());
        let at = |list: &[f64], i: usize| list.get(i % list.len().max(1)).copied();
        (0..n).all(|i| at(a, i).zip(at(b, i)).is_some_and(|(a, b)| (a - b).abs() < 2e-3))
    };
    near(mean, &other.0) && near(std, &other.1)
}

/// `mean` and `std` as the experiment gives them, if a transform has them. Those from the values of
/// black and white, which are f32, differ in the last digits.
fn as_written(transforms: &TransformFacts) -> Option<(String, String)> {
    let found = transforms.list.iter().rev();
    let mut pairs = found.filter_map(|it| it.options.get("mean").zip(it.options.get("std")));
    pairs.next().map(|(mean, std)| {
        let spaced = |list: &serde_json::Value| list.to_string().replace(',', ", ");
        (spaced(mean), spaced(std))
    })
}

/// "[0.485, 0.456, 0.406]"
fn numbers(list: &[f64]) -> String {
    let rounded = |&number: &f64| format_number((number * 1e4).round() / 1e4);
    format!("[{}]", list.iter().map(rounded).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    const IMAGENET: ([f64; 3], [f64; 3]) = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);

    fn list(normalize: Option<([f64; 3], [f64; 3])>, random: &[&str]) -> TransformFacts {
        let values = normalize.map(|(mean, std)| {
            mean.iter().zip(std).map(|(mean, std)| [-mean / std, (1.0 - mean) / std]).collect()
        });
        let random = random.iter().map(|&name| name.to_owned()).collect();
        TransformFacts { list: Vec::new(), channels: 3, size: None, values, random }
    }

    #[track_caller]
    fn check(
        train: &TransformFacts,
        val: &TransformFacts,
        weights: &PretrainedSource<'_>,
        says: &[&str],
    ) {
        let notes = doubtful(train, val, weights);
        assert_eq!(notes.len(), says.len(), "{notes:?}");
        assert!(notes.iter().zip(says).all(|(note, says)| note.contains(says)), "{notes:?}");
    }

    #[test]
    fn lists_that_do_not_agree_are_noted() {
        let (with, without) = (list(Some(IMAGENET), &[]), list(None, &[]));
        check(&with, &with, &PretrainedSource::Own, &[]);
        check(&without, &without, &PretrainedSource::Own, &[]);
        let one = "`data.transforms.train` normalizes images, `data.transforms.val` does not";
        check(&with, &without, &PretrainedSource::Own, &[one]);
        let other = "`data.transforms.val` normalizes images, `data.transforms.train` does not";
        check(&without, &with, &PretrainedSource::Own, &[other]);
        let half = list(Some(([0.5; 3], [0.5; 3])), &[]);
        check(&with, &half, &PretrainedSource::Own, &["different numbers"]);
    }

    #[test]
    fn numbers_of_bytes_and_chance_in_evaluations_are_noted() {
        let bytes = list(Some(([123.675, 116.28, 103.53], [58.395, 57.12, 57.375])), &[]);
        check(&bytes, &bytes, &PretrainedSource::Own, &["`mean = [123.675, 116.28, 103.53]`"]);
        // As f32 they would be 116.281 and 58.4002.
        let written = [("mean", [116.28]), ("std", [58.4])];
        let options = written.map(|(key, list)| (key.to_owned(), list.as_slice().into())).into();
        let normalize = Choice { name: "normalize".to_owned(), options };
        let bytes = TransformFacts { list: vec![normalize], ..bytes };
        check(
            &bytes,
            &bytes,
            &PretrainedSource::Own,
            &["`mean = [116.28]` and `std = [58.4]` seem"],
        );
        let plain = list(None, &[]);
        check(&plain, &list(None, &["random_crop"]), &PretrainedSource::Own, &["`random_crop`"]);
        check(&list(None, &["random_crop"]), &plain, &PretrainedSource::Own, &[]);
    }

    #[test]
    fn weights_of_others_want_the_images_that_they_were_trained_on() {
        let (with, without) = (list(Some(IMAGENET), &[]), list(None, &[]));
        check(&without, &without, &PretrainedSource::Foreign, &["ImageNet's are `mean = [0.485"]);
        check(&with, &with, &PretrainedSource::Foreign, &[]);
        let file = PathBuf::from("w/config.json");
        let half = TrainedOn { file, mean: vec![0.5; 3], std: vec![0.5; 3], interpolation: None };
        let said = "trained on images of `mean = [0.5, 0.5, 0.5]` and `std = [0.5, 0.5, 0.5]`, as \
                    `w/config.json` says; here they are ";
        let given = said.to_owned() + "`mean = [0.485";
        check(&with, &with, &PretrainedSource::Described(&half), &[&given]);
        let none = said.to_owned() + "not normalized";
        check(&without, &without, &PretrainedSource::Described(&half), &[&none]);
        let same = list(Some(([0.5; 3], [0.5; 3])), &[]);
        check(&same, &same, &PretrainedSource::Described(&half), &[]);
        let resized = |how: Option<&str>| {
            let how = how.map(|how| ("interpolation".to_owned(), how.into()));
            let options = how.into_iter().collect();
            let choice = Choice { name: "resize".to_owned(), options };
            TransformFacts { list: vec![choice], ..list(Some(([0.5; 3], [0.5; 3])), &[]) }
        };
        let bicubic = TrainedOn { interpolation: Some("bicubic".to_owned()), ..half };
        let plain = resized(None);
        let here = ["`bicubic` interpolation, as `w/config.json` says; here it is `bilinear`"];
        check(&plain, &plain, &PretrainedSource::Described(&bicubic), &here);
        let same = resized(Some("bicubic"));
        check(&same, &same, &PretrainedSource::Described(&bicubic), &[]);
    }
}
