//! Image transforms with all their numbers, and the shape that a sample has after them.

use serde::{Deserialize, Serialize};

use crate::config::schema::{DataKind, Transform};
use crate::config::values::Shape2;
use crate::config::{Loaded, Problem};
use crate::plan::{DataFacts, Shapes, TransformKind};

/// One image transform with all its numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "snake_case")]
pub enum TransformPlan {
    /// Resize the shorter side to `size`, keeping the aspect. Bilinear, antialiased.
    ResizeShorter {
        /// Pixels.
        size: u32,
    },
    /// Resize to exactly (height, width). Bilinear, antialiased.
    Resize {
        /// Pixels.
        height: u32,
        /// Pixels.
        width: u32,
    },
    /// Cut (height, width) from the middle; zero padding where the image is smaller.
    CenterCrop {
        /// Pixels.
        height: u32,
        /// Pixels.
        width: u32,
    },
    /// Pad by `padding` zeros on each side, then cut (height, width) at a random place.
    RandomCrop {
        /// Pixels.
        height: u32,
        /// Pixels.
        width: u32,
        /// Pixels.
        padding: u32,
    },
    /// Cut a random area fraction and aspect ratio, then resize to (height, width).
    RandomResizedCrop {
        /// Pixels.
        height: u32,
        /// Pixels.
        width: u32,
        /// Area fraction, low and high.
        scale: [f64; 2],
        /// Aspect ratio (width / height), low and high; log-uniform.
        ratio: [f64; 2],
    },
    /// Mirror left to right.
    RandomHorizontalFlip {
        /// Probability.
        p: f64,
    },
    /// Rotate by a uniform angle; nearest neighbour, black fill.
    RandomRotation {
        /// Largest angle in degrees.
        degrees: f64,
    },
    /// Brightness, contrast, saturation and hue in random order.
    ColorJitter {
        /// Factor in [1 - b, 1 + b].
        brightness: f64,
        /// Factor in [1 - c, 1 + c].
        contrast: f64,
        /// Factor in [1 - s, 1 + s].
        saturation: f64,
        /// Shift in [-h, h] turns.
        hue: f64,
    },
    /// `(x / 255 - mean) / std` per channel; always last, and always present (identity numbers if not asked for).
    Normalize {
        /// Per channel (one entry = all channels).
        mean: Vec<f64>,
        /// Per channel (one entry = all channels).
        std: Vec<f64>,
    },
}

/// Both lists, and the shape of a sample after either.
#[derive(Debug)]
pub(crate) struct Transformed {
    pub(crate) train: Vec<TransformPlan>,
    pub(crate) val: Vec<TransformPlan>,
    /// (channels, height, width) or (features).
    pub(crate) input: Vec<usize>,
}

/// Height and width.
type Sides = (u32, u32);

/// The lists as asked; what comes out of both must have one shape.
pub(crate) fn decide(loaded: &Loaded, data: &DataFacts) -> Result<Transformed, Vec<Problem>> {
    let (channels, found) = match data.sample.as_deref() {
        Some(&[channels, height, width]) if data.source.holds_images() => {
            (channels, Some((height as u32, width as u32)))
        }
        Some(vector) => {
            return Ok(Transformed { train: Vec::new(), val: Vec::new(), input: vector.to_vec() });
        }
        None => (3, generated(loaded)),
    };
    let asked = &loaded.experiment.data.transforms;
    let list = |key, asked| List { loaded, key, channels }.decide(asked, found);
    let train = list("data.transforms.train", &asked.train);
    let val = list("data.transforms.val", &asked.val);
    let ((train, train_sides), (val, val_sides)) = match (train, val) {
        (Ok(train), Ok(val)) => (train, val),
        (train, val) => return Err([train.err(), val.err()].into_iter().flatten().collect()),
    };
    if train_sides != val_sides {
        let shown = |(height, width): Sides| format!("{height}x{width}");
        let (train, val) = (shown(train_sides), shown(val_sides));
        let what = format!("gives images of {val}, but training gives {train}");
        return Err(vec![at_list(loaded, "data.transforms.val", what)]);
    }
    let (height, width) = train_sides;
    Ok(Transformed { train, val, input: vec![channels, height as usize, width as usize] })
}

/// Size of generated images, which is known before they are.
fn generated(loaded: &Loaded) -> Option<Sides> {
    let is_generated = loaded.experiment.data.name == DataKind::Shapes;
    is_generated.then(|| Shapes::of(&loaded.experiment).image_size).map(|side| (side, side))
}

/// A problem of a whole list, drawn on its last entry, or on the kind of data where there is none.
fn at_list(loaded: &Loaded, key: &str, what: String) -> Problem {
    let transforms = &loaded.experiment.data.transforms;
    let most = transforms.train.len().max(transforms.val.len());
    let names = (0..most).map(|index| format!("{key}[{index}].name"));
    let last = names.rev().find(|name| loaded.is_given(name));
    loaded.problem_at(key, last.as_deref().unwrap_or("data.name"), what)
}

/// One of the two lists.
struct List<'a> {
    loaded: &'a Loaded,
    key: &'static str,
    channels: usize,
}

impl List<'_> {
    /// The transforms, and the size of every image after them.
    fn decide(
        &self,
        asked: &[Transform],
        found: Option<Sides>,
    ) -> Result<(Vec<TransformPlan>, Sides), Problem> {
        let mut plans = Vec::with_capacity(asked.len() + 1);
        let mut sides = found;
        for (index, transform) in asked.iter().enumerate() {
            let key = format!("{}[{index}]", self.key);
            let plan = self.one(&key, transform)?;
            sides = self.after(&key, &plan, sides)?;
            plans.push(plan);
        }
        if let Some((height, width)) = found.filter(|_| self.channels == 3) {
            // Generated images have this size already; said so that their reader can rely on it.
            plans.insert(0, TransformPlan::Resize { height, width });
        }
        if !matches!(plans.last(), Some(TransformPlan::Normalize { .. })) {
            plans.push(TransformPlan::Normalize { mean: vec![0.0], std: vec![1.0] });
        }
        let Some(sides) = sides else {
            let what = "produces different sizes, which cannot be batched".to_owned();
            let help = "end with one size: name = \"resize\", size = [224, 224], or a crop";
            return Err(at_list(self.loaded, self.key, what).help(help));
        };
        Ok((plans, sides))
    }

    fn one(&self, key: &str, asked: &Transform) -> Result<TransformPlan, Problem> {
        let missing = |name: &str| {
            let what = "is missing".to_owned();
            self.loaded.problem_at(&format!("{key}.{name}"), &format!("{key}.name"), what)
        };
        let sides = || asked.size.map(both).ok_or_else(|| missing("size"));
        Ok(match asked.name {
            TransformKind::Resize => match asked.size.ok_or_else(|| missing("size"))? {
                Shape2::Side(size) => TransformPlan::ResizeShorter { size },
                Shape2::Both([height, width]) => TransformPlan::Resize { height, width },
            },
            TransformKind::CenterCrop => {
                let (height, width) = sides()?;
                TransformPlan::CenterCrop { height, width }
            }
            TransformKind::RandomCrop => {
                let (height, width) = sides()?;
                TransformPlan::RandomCrop { height, width, padding: asked.padding.unwrap_or(0) }
            }
            TransformKind::RandomResizedCrop => {
                let (height, width) = sides()?;
                let scale = asked.scale.unwrap_or([0.08, 1.0]);
                let ratio = asked.ratio.unwrap_or([3.0 / 4.0, 4.0 / 3.0]);
                TransformPlan::RandomResizedCrop { height, width, scale, ratio }
            }
            TransformKind::RandomHorizontalFlip => {
                TransformPlan::RandomHorizontalFlip { p: asked.p.unwrap_or(0.5) }
            }
            TransformKind::RandomRotation => TransformPlan::RandomRotation {
                degrees: asked.degrees.ok_or_else(|| missing("degrees"))?,
            },
            TransformKind::ColorJitter => TransformPlan::ColorJitter {
                brightness: asked.brightness.unwrap_or(0.0),
                contrast: asked.contrast.unwrap_or(0.0),
                saturation: asked.saturation.unwrap_or(0.0),
                hue: asked.hue.unwrap_or(0.0),
            },
            TransformKind::Normalize => TransformPlan::Normalize {
                mean: self.channels("mean", key, asked.mean.as_ref())?,
                std: self.channels("std", key, asked.std.as_ref())?,
            },
        })
    }

    fn channels(
        &self,
        name: &str,
        key: &str,
        numbers: Option<&Vec<f64>>,
    ) -> Result<Vec<f64>, Problem> {
        let numbers = numbers.cloned().unwrap_or_default();
        if numbers.len() == 1 || numbers.len() == self.channels {
            return Ok(numbers);
        }
        let what = format!("has {} numbers, the images {} channels", numbers.len(), self.channels);
        Err(self.loaded.problem(&format!("{key}.{name}"), what))
    }

    /// Size of the images after `plan`, if all have the same.
    fn after(
        &self,
        key: &str,
        plan: &TransformPlan,
        before: Option<Sides>,
    ) -> Result<Option<Sides>, Problem> {
        Ok(match *plan {
            TransformPlan::ResizeShorter { size } => before.map(|sides| shorter(sides, size)),
            TransformPlan::RandomCrop { height, width, padding } => {
                let room = |side: u32| side.saturating_add(2 * padding);
                if let Some((h, w)) = before.filter(|&(h, w)| room(h) < height || room(w) < width) {
                    let what = format!("is larger than the images, {h}x{w} with padding {padding}");
                    return Err(self.loaded.problem(&format!("{key}.size"), what));
                }
                Some((height, width))
            }
            TransformPlan::Resize { height, width }
            | TransformPlan::CenterCrop { height, width }
            | TransformPlan::RandomResizedCrop { height, width, .. } => Some((height, width)),
            TransformPlan::RandomHorizontalFlip { .. }
            | TransformPlan::RandomRotation { .. }
            | TransformPlan::ColorJitter { .. }
            | TransformPlan::Normalize { .. } => before,
        })
    }
}

fn both(shape: Shape2) -> Sides {
    match shape {
        Shape2::Side(side) => (side, side),
        Shape2::Both([height, width]) => (height, width),
    }
}

/// torchvision's `Resize(size)`: the shorter side becomes `size`, the longer is rounded down.
pub(crate) fn shorter((height, width): Sides, size: u32) -> Sides {
    let long = |long: u32, short: u32| {
        (u64::from(size) * u64::from(long) / u64::from(short.max(1))).min(u64::from(u32::MAX))
            as u32
    };
    if height <= width { (size, long(width, height)) } else { (long(height, width), size) }
}
