//! Image transforms as asked, and the shape that a sample has after them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Choice, Entry};
use crate::config::{Loaded, Problem};
use crate::plan::{Cameras, DataFacts, KindFacts};

/// Height and width, in pixels.
pub type Sides = (u32, u32);

/// How a value of a pixel is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PixelDtype {
    /// 8 bits, white is 255.
    #[default]
    Uint8,
    /// 16 bits, white is 65,535.
    Uint16,
}

impl PixelDtype {
    /// Whether it has 8 bits, as it has unless something else is asked for.
    pub fn is_usual(&self) -> bool {
        *self == Self::Uint8
    }

    /// Bytes of a value.
    pub fn bytes(self) -> usize {
        match self {
            Self::Uint8 => 1,
            Self::Uint16 => 2,
        }
    }
}

/// The images that a transform gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Images {
    /// 1 (grey) or 3 (RGB).
    pub channels: usize,
    /// Size of all of them; `None` = they may differ.
    pub size: Option<Sides>,
    /// How their values are stored.
    pub dtype: PixelDtype,
    /// Cameras that they are of, where they are part of observations; else 0.
    pub cameras: usize,
}

impl Images {
    /// Images of 8 bits.
    pub fn new(channels: usize, size: Option<Sides>) -> Self {
        Self { channels, size, dtype: PixelDtype::Uint8, cameras: 0 }
    }
}

/// A list of transforms with what is always in it.
#[derive(Clone, Debug, PartialEq)]
pub struct TransformFacts {
    /// All transforms, in order.
    pub list: Vec<Choice>,
    /// Channels of all images after them.
    pub channels: usize,
    /// Size of all images after them; `None` = they may differ.
    pub size: Option<Sides>,
}

/// Both lists, and the shape of a sample after either.
#[derive(Debug)]
pub(crate) struct Transformed {
    pub(crate) train: Vec<Choice>,
    pub(crate) val: Vec<Choice>,
    /// (channels, height, width) or (features).
    pub(crate) input: Vec<usize>,
    /// Images among them, after the transforms.
    pub(crate) cameras: Option<Cameras>,
}

impl Transformed {
    /// Of samples that are images, or hold images of these cameras behind the numbers of each
    /// observation.
    fn new((train, val): (Vec<Choice>, Vec<Choice>), shape: [usize; 3], data: &DataFacts) -> Self {
        let cameras = data
            .cameras
            .as_ref()
            .map(|Cameras { names, .. }| Cameras { names: names.clone(), shape });
        let input = match (&cameras, data.sample.as_deref()) {
            (Some(cameras), Some(&[seen, numbers])) => vec![seen, numbers + cameras.values()],
            _ => shape.to_vec(),
        };
        Self { train, val, input, cameras }
    }
}

/// The lists as asked; what comes out of both must have one shape.
pub(crate) fn decide(
    loaded: &Loaded,
    data: &DataFacts,
    kinds: &dyn KindFacts,
) -> Result<Transformed, Vec<Problem>> {
    let asked = &loaded.experiment.data.transforms;
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
    let decide = |key, asked| list(loaded, (key, asked), &images, data, kinds);
    let train = decide("data.transforms.train", &asked.train);
    let val = decide("data.transforms.val", &asked.val);
    let ((train, input), (val, val_input)) = match (train, val) {
        (Ok(train), Ok(val)) => (train, val),
        (train, val) => return Err([train.err(), val.err()].into_iter().flatten().collect()),
    };
    if input != val_input {
        let what = differing(input, val_input);
        return Err(vec![at_list(loaded, "data.transforms.val", what)]);
    }
    Ok(Transformed::new((train, val), input, data))
}

/// Samples that are transformed by nothing.
fn without_images(loaded: &Loaded, vector: &[usize]) -> Result<Transformed, Problem> {
    let asked = &loaded.experiment.data.transforms;
    let lists = [("data.transforms.train", &asked.train), ("data.transforms.val", &asked.val)];
    if let Some((key, _)) = lists.into_iter().find(|(_, list)| !list.is_empty()) {
        let what = "change images, but the observations hold none".to_owned();
        return Err(at_list(loaded, key, what));
    }
    Ok(Transformed { train: Vec::new(), val: Vec::new(), input: vector.to_vec(), cameras: None })
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
    (key, asked): (&'static str, &[Entry]),
    images: &Images,
    data: &DataFacts,
    kinds: &dyn KindFacts,
) -> Result<(Vec<Choice>, [usize; 3]), Problem> {
    let choices: Vec<Choice> = asked.iter().map(Entry::choice).collect();
    let facts = kinds.transforms(&choices, images, data.pixels.as_ref());
    let facts = facts.map_err(|(index, unfit)| {
        let problem = loaded.problem(&format!("{key}[{index}].{}", unfit.key), unfit.what);
        match unfit.help {
            Some(help) => problem.help(help),
            None => problem,
        }
    })?;
    let (height, width) = facts.size.ok_or_else(|| {
        let what = "produces different sizes, which cannot be batched".to_owned();
        let help = "end with one size: name = \"resize\", size = [224, 224], or a crop";
        at_list(loaded, key, what).help(help)
    })?;
    Ok((facts.list, [facts.channels, height as usize, width as usize]))
}

/// A problem of a whole list, drawn on its last entry, or on the kind of data where there is none.
fn at_list(loaded: &Loaded, key: &str, what: String) -> Problem {
    let transforms = &loaded.experiment.data.transforms;
    let most = transforms.train.len().max(transforms.val.len());
    let names = (0..most).map(|index| format!("{key}[{index}].name"));
    let last = names.rev().find(|name| loaded.is_given(name));
    loaded.problem_at(key, last.as_deref().unwrap_or("data.name"), what)
}
