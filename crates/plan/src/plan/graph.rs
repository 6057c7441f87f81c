//! The model `graph`, written down layer by layer: every layer with its shapes, or the one that
//! does not fit; and the table of layers in `ddprun plan`.
//!
//! Shapes are inferred from the data forward, before anything is built, by the layers themselves.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::config::kind::{Choice, Entry};
use crate::config::schema::Model;
use crate::config::{Loaded, Problem};
use crate::plan::{DataFacts, Modality, Unfit};
use crate::terminal::{scaled, thousands};

/// A layer with all its numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerPlan {
    /// Prefix of its parameters' names: `layer1.0.conv1`.
    pub path: String,
    /// Name that keys its random numbers, where an earlier random layer has the same `path`.
    #[serde(rename = "draws", default, skip_serializing_if = "Option::is_none")]
    pub rng_path: Option<String>,
    /// The layer with all its options but the layers inside.
    pub kind: Choice,
    /// Text after its name in the table of layers.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub details: String,
    /// Shape of its input.
    pub input: Flow,
    /// Shape of its output.
    pub output: Flow,
    /// Elements of the parameters of the layer itself.
    pub own_parameters: usize,
    /// Operations of the layer itself in the forward pass of one sample.
    pub own_flops: u64,
    /// The layers inside.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<LayerPlan>,
    /// The layers of the shortcut around them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shortcut: Vec<LayerPlan>,
}

/// Why a layer does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerMisfit {
    /// Path of the layer: `model.layers[3].layers[0]`; empty = the layer that returns this.
    pub at: String,
    /// The reason.
    pub unfit: Unfit,
}

impl From<Unfit> for LayerMisfit {
    fn from(unfit: Unfit) -> Self {
        Self { at: String::new(), unfit }
    }
}

/// The layers of the model `graph` for samples of shape `input`; none for any other model. `infer`
/// returns the layers with their shapes, from the shape of the input and the number of outputs.
pub(super) fn decide(
    loaded: &Loaded,
    input: &[usize],
    data: &DataFacts,
    outputs: usize,
    infer: impl FnOnce(&[Entry], Flow, usize) -> Result<Vec<LayerPlan>, LayerMisfit>,
) -> Result<Vec<LayerPlan>, Problem> {
    let Model { name, layers, .. } = &loaded.experiment.model;
    if name == "graph" && layers.is_empty() {
        let help = "add one, such as `[[model.layers]]` with `name = \"linear\"`; `ddprun schema` \
                    lists all";
        let what = "is missing: `graph` is made of layers";
        return Err(loaded.problem_at("model.layers", "model.name", what).help(help));
    }
    let modality = data.source.modality;
    let target = &data.target[..];
    if name != "graph" {
        return Ok(Vec::new());
    }
    let Some(start) = Flow::of(modality, input, target) else { return Ok(Vec::new()) };
    let plans = infer(layers, start, outputs).map_err(|misfit| problem(loaded, misfit))?;
    let given = plans.last().map_or(start, |layer| layer.output);
    let needed = Flow::needed(outputs, target);
    if given != needed {
        let last = format!("model.layers[{}].name", layers.len() - 1);
        let what = format!("gives {}, but the data needs {}", given.in_words(), needed.in_words());
        let help = "end with `linear`: its `out_features` is what the data needs";
        return Err(loaded.problem(&last, what).help(help));
    }
    Ok(plans)
}

/// The problem of a layer, drawn under the option that is wrong, or under the layer's name.
fn problem(loaded: &Loaded, misfit: LayerMisfit) -> Problem {
    let LayerMisfit { at, unfit } = misfit;
    let key = unfit.key;
    let name = format!("{at}.name");
    let option = format!("{at}.{key}");
    unfit.problem(|what| match key {
        "" => loaded.problem_at(&at, &name, what),
        _ if loaded.is_given(&option) => loaded.problem(&option, what),
        _ => loaded.problem_at(&option, &name, what),
    })
}

impl LayerPlan {
    /// Floating-point operations of the forward pass of one sample: two for each multiplication of
    /// a product.
    pub fn flops(&self) -> u64 {
        self.own_flops + self.inside().map(Self::flops).sum::<u64>()
    }

    /// Elements of all parameters, those of the layers inside among them.
    pub fn parameters(&self) -> usize {
        self.own_parameters + self.inside().map(Self::parameters).sum::<usize>()
    }

    /// The layers inside, and those of the shortcut around them.
    fn inside(&self) -> impl Iterator<Item = &Self> {
        self.layers.iter().chain(&self.shortcut)
    }
}

/// Shape of one sample between two layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Flow {
    /// Channels, height, width.
    Image([usize; 3]),
    /// Steps, features.
    Sequence([usize; 2]),
    /// Steps, features, and frames from one step to the next, of recordings that are padded to one
    /// length. The length of a recording is counted in frames.
    Padded([usize; 3]),
    /// Features.
    Vector(usize),
    /// Steps, each a token.
    Tokens(usize),
}

impl Flow {
    /// The shape of a sample of shape `input` whose target has shape `target`: with a target per
    /// element it is a text. For speech, the row that holds the number of frames is left out.
    fn of(modality: Modality, input: &[usize], target: &[usize]) -> Option<Self> {
        Some(match *input {
            [_, rows, bands] if modality == Modality::Speech => {
                Self::Padded([rows.saturating_sub(1), bands, 1])
            }
            [channels, height, width] => Self::Image([channels, height, width]),
            [steps, features] => Self::Sequence([steps, features]),
            [steps] if *target == [steps] => Self::Tokens(steps),
            [features] => Self::Vector(features),
            _ => return None,
        })
    }

    /// The shape that the loss needs: `outputs` numbers, or as many for each step of the target.
    fn needed(outputs: usize, target: &[usize]) -> Self {
        match *target {
            [steps, ..] => Self::Sequence([steps, outputs]),
            [] => Self::Vector(outputs),
        }
    }

    /// Channels or features; none for tokens.
    pub fn features(self) -> Option<usize> {
        match self {
            Self::Image([features, ..])
            | Self::Sequence([_, features])
            | Self::Padded([_, features, _])
            | Self::Vector(features) => Some(features),
            Self::Tokens(_) => None,
        }
    }

    /// The shape with another number of channels or features.
    #[must_use]
    pub fn with_features(self, features: usize) -> Self {
        match self {
            Self::Image([_, height, width]) => Self::Image([features, height, width]),
            Self::Sequence([steps, _]) | Self::Tokens(steps) => Self::Sequence([steps, features]),
            Self::Padded([steps, _, stride]) => Self::Padded([steps, features, stride]),
            Self::Vector(_) => Self::Vector(features),
        }
    }

    /// The sequence that a sliding window makes. It stays padded, with a known number of frames per
    /// step, if the window gives one step per stride.
    #[must_use]
    pub fn slid(self, steps: usize, features: usize, stride: usize) -> Self {
        match self {
            Self::Padded([before, _, frames]) if steps == before.div_ceil(stride.max(1)) => {
                Self::Padded([steps, features, frames * stride])
            }
            _ => Self::Sequence([steps, features]),
        }
    }

    /// The frames from one step to the next, if steps beyond a sample's own length are padding.
    pub fn padded(self) -> Option<usize> {
        match self {
            Self::Padded([_, _, frames]) => Some(frames),
            _ => None,
        }
    }

    /// Vectors of features in one sample.
    pub fn rows(self) -> usize {
        match self {
            Self::Image([_, height, width]) => height * width,
            Self::Sequence([steps, _]) | Self::Padded([steps, ..]) | Self::Tokens(steps) => steps,
            Self::Vector(_) => 1,
        }
    }

    /// (channels, height, width) of an image.
    pub fn image(self) -> Result<[usize; 3], Unfit> {
        match self {
            Self::Image(sides) => Ok(sides),
            _ => Err(self.is_no("an image")),
        }
    }

    /// (steps, features) of a sequence.
    pub fn sequence(self) -> Result<[usize; 2], Unfit> {
        match self {
            Self::Sequence(sides) => Ok(sides),
            Self::Padded([steps, features, _]) => Ok([steps, features]),
            _ => Err(self.is_no("a sequence")),
        }
    }

    /// The shape itself, unless it holds tokens.
    pub fn numbers(self) -> Result<Self, Unfit> {
        match self {
            Self::Tokens(_) => {
                let help = Some("put `embedding` before it");
                Err(Unfit { help, ..self.is_no("numbers") })
            }
            _ => Ok(self),
        }
    }

    /// The misfit of this shape with a layer that needs `what`.
    pub fn is_no(self, what: &str) -> Unfit {
        Unfit::of_all(format!("needs {what}, but gets {}", self.in_words()))
    }

    /// "an image of 64x56x56"
    pub fn in_words(self) -> String {
        match self {
            Self::Image(_) => format!("an image of {self}"),
            Self::Sequence([steps, features]) | Self::Padded([steps, features, _]) => {
                format!("a sequence of {steps} steps with {features} features")
            }
            Self::Vector(features) => format!("a vector of {features}"),
            Self::Tokens(steps) => format!("a text of {steps} tokens"),
        }
    }
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Image([channels, height, width]) => write!(f, "{channels}x{height}x{width}"),
            Self::Sequence([steps, features]) | Self::Padded([steps, features, _]) => {
                write!(f, "{steps}x{features}")
            }
            Self::Vector(length) | Self::Tokens(length) => write!(f, "{length}"),
        }
    }
}

/// Header and rows of the table of layers: layer, key, output, parameters, operations; layers
/// inside a layer are indented.
pub fn rows(layers: &[LayerPlan]) -> Vec<[String; 5]> {
    let head = ["layer", "key", "output", "parameters", "FLOPs"].map(str::to_owned);
    let mut rows = vec![head];
    for layer in layers {
        add(layer, 0, &mut rows);
    }
    let parameters: usize = layers.iter().map(LayerPlan::parameters).sum();
    let flops: u64 = layers.iter().map(LayerPlan::flops).sum();
    let sums = [thousands(parameters), scaled(flops)];
    let mut all = named("all".to_owned());
    all[3..].clone_from_slice(&sums);
    rows.push(all);
    rows
}

fn add(layer: &LayerPlan, depth: usize, rows: &mut Vec<[String; 5]>) {
    let or_blank = |n: u64, shown: String| if n == 0 { String::new() } else { shown };
    // Those of layers inside stand in their own rows.
    let n = layer.own_parameters;
    let flops = layer.own_flops;
    rows.push([
        "  ".repeat(depth) + &layer.kind.name + &layer.details,
        or_blank(n as u64, layer.path.clone()),
        layer.output.to_string(),
        or_blank(n as u64, thousands(n)),
        or_blank(flops, scaled(flops)),
    ]);
    for layer in &layer.layers {
        add(layer, depth + 1, rows);
    }
    if !layer.shortcut.is_empty() {
        rows.push(named("  ".repeat(depth + 1) + "shortcut:"));
        for layer in &layer.shortcut {
            add(layer, depth + 1, rows);
        }
    }
}

/// A row with nothing but a name.
fn named(name: String) -> [String; 5] {
    let mut row = <[String; 5]>::default();
    row[0] = name;
    row
}
