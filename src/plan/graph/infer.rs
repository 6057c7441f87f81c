//! One layer after another: what it makes of the shape before it, or why it cannot.

use std::collections::BTreeSet;

use super::{Flow, LayerInit, LayerOp, LayerPlan, WindowPlan, inner};
use crate::config::schema::{Layer, LayerKind, ResidualActivation};
use crate::config::values::Auto;
use crate::config::{Loaded, Problem};

/// Layers in layers in layers; a file that goes deeper is no model.
const DEEPEST: usize = 16;
/// Most layers of a graph, with every repetition counted.
const MOST_LAYERS: usize = 100_000;
/// Most channels, features or places: past them products overflow.
const MOST: usize = 1 << 24;

/// The work at hand.
pub(super) struct Inference<'a> {
    loaded: &'a Loaded,
    /// Width that the data needs at the end.
    outputs: usize,
    /// Names that have parameters already.
    taken: BTreeSet<String>,
    /// Names that random numbers are drawn by already.
    drawn: BTreeSet<String>,
    layers: usize,
    depth: usize,
}

/// Where a layer stands: in the file, and in the model.
struct Place<'a> {
    /// `model.layers[3]`
    at: &'a str,
    /// `layer1.0.conv1`
    path: &'a str,
    input: Flow,
}

impl<'a> Inference<'a> {
    pub(super) fn new(loaded: &'a Loaded, outputs: usize) -> Self {
        Self {
            loaded,
            outputs,
            taken: BTreeSet::new(),
            drawn: BTreeSet::new(),
            layers: 0,
            depth: 0,
        }
    }

    /// Layers one after another; their parameters are called by `prefix` and their own keys.
    pub(super) fn sequence(
        &mut self,
        list: &str,
        layers: &[Layer],
        mut input: Flow,
        prefix: &str,
    ) -> Result<Vec<LayerPlan>, Problem> {
        let mut plans = Vec::with_capacity(layers.len());
        for (index, layer) in layers.iter().enumerate() {
            let at = format!("{list}[{index}]");
            let path = path_of(prefix, index, layer);
            let found = self.repeated(&Place { at: &at, path: &path, input }, layer)?;
            input = found.last().map_or(input, |last| last.output);
            plans.extend(found);
        }
        Ok(plans)
    }

    /// One plan; of a repetition, one for each time.
    fn repeated(&mut self, place: &Place<'_>, layer: &Layer) -> Result<Vec<LayerPlan>, Problem> {
        self.layers += 1;
        self.depth += 1;
        if self.layers > MOST_LAYERS || self.depth > DEEPEST {
            let what = format!("is more than {MOST_LAYERS} layers, or deeper than {DEEPEST}");
            return Err(self.refused(place, what));
        }
        let found = if layer.name == LayerKind::Repeat {
            self.repeat(place, layer)
        } else {
            self.one(place, layer).map(|plan| vec![plan])
        };
        self.depth -= 1;
        found
    }

    fn repeat(&mut self, place: &Place<'_>, layer: &Layer) -> Result<Vec<LayerPlan>, Problem> {
        let times = self.size(place, "times", layer.times, 1)?;
        let (layers, _) = inner(layer);
        let list = format!("{}.layers", place.at);
        let (mut input, mut plans) = (place.input, Vec::new());
        for time in 0..times {
            let path = format!("{}.{time}", place.path);
            let layers = self.sequence(&list, layers, input, &path)?;
            let output = layers.last().map_or(input, |last| last.output);
            let op = LayerOp::Sequential { layers };
            plans.push(LayerPlan { path, draws: None, op, input, output });
            input = output;
        }
        Ok(plans)
    }

    fn one(&mut self, place: &Place<'_>, layer: &Layer) -> Result<LayerPlan, Problem> {
        let (op, output) = self.decide(place, layer)?;
        let (path, draws) = (place.path.to_owned(), self.draws(place, &op));
        let plan = LayerPlan { path, draws, op, input: place.input, output };
        let is_leaf = inner(layer).0.is_empty();
        if is_leaf && plan.parameters() > 0 && !self.taken.insert(plan.path.clone()) {
            let what =
                format!("has the parameters of `{}`, which another layer has as well", plan.path);
            return Err(self.refused(place, what).help("give one of them another `key`"));
        }
        Ok(plan)
    }

    /// A name of its own for the random numbers of a layer whose path another one has: containers without a key add
    /// nothing to the paths of their layers.
    fn draws(&mut self, place: &Place<'_>, op: &LayerOp) -> Option<String> {
        let draws = matches!(op, LayerOp::Dropout { .. } | LayerOp::Attention { .. });
        let is_twin = draws && !self.drawn.insert(place.path.to_owned());
        is_twin.then(|| format!("{} at {}", place.path, place.at))
    }

    fn decide(&mut self, place: &Place<'_>, layer: &Layer) -> Result<(LayerOp, Flow), Problem> {
        let same = place.input;
        Ok(match layer.name {
            LayerKind::Conv2d | LayerKind::Conv1d => self.convolution(place, layer)?,
            LayerKind::MaxPool2d | LayerKind::AvgPool2d => self.pooling(place, layer)?,
            LayerKind::BatchNorm => (LayerOp::BatchNorm, self.with_features(place)?),
            LayerKind::LayerNorm => {
                self.with_features(place)?;
                (LayerOp::LayerNorm { bias: layer.bias.unwrap_or(true) }, same)
            }
            LayerKind::Linear => self.linear(place, layer)?,
            LayerKind::Embedding => self.embedding(place, layer)?,
            LayerKind::PositionEmbedding => {
                self.sequence_of(place)?;
                (LayerOp::PositionEmbedding, same)
            }
            LayerKind::Attention => self.attention(place, layer)?,
            LayerKind::Relu => (LayerOp::Relu, self.with_features(place)?),
            LayerKind::Gelu => (LayerOp::Gelu, self.with_features(place)?),
            LayerKind::Silu => (LayerOp::Silu, self.with_features(place)?),
            LayerKind::Sigmoid => (LayerOp::Sigmoid, self.with_features(place)?),
            LayerKind::Tanh => (LayerOp::Tanh, self.with_features(place)?),
            LayerKind::Dropout => {
                self.with_features(place)?;
                (LayerOp::Dropout { p: self.probability(place, layer)? }, same)
            }
            LayerKind::GlobalAvgPool => match place.input {
                Flow::Image([features, ..]) | Flow::Sequence([_, features]) => {
                    (LayerOp::GlobalAvgPool, Flow::Vector(features))
                }
                _ => return Err(self.needs(place, "an image or a sequence")),
            },
            LayerKind::Flatten => {
                let features = self.with_features(place)?.features().unwrap_or(0);
                (LayerOp::Flatten, Flow::Vector(features * same.rows()))
            }
            LayerKind::Tokens => {
                let [channels, height, width] = self.image_of(place)?;
                (LayerOp::Tokens, Flow::Sequence([height * width, channels]))
            }
            LayerKind::Transpose => {
                let [steps, features] = self.sequence_of(place)?;
                (LayerOp::Transpose, Flow::Sequence([features, steps]))
            }
            LayerKind::Sequential | LayerKind::Repeat => {
                let layers = self.inside(place, layer)?;
                let output = layers.last().map_or(same, |last| last.output);
                (LayerOp::Sequential { layers }, output)
            }
            LayerKind::Residual => self.residual(place, layer)?,
            LayerKind::Concat => self.concat(place, layer)?,
        })
    }

    fn convolution(&self, place: &Place<'_>, layer: &Layer) -> Result<(LayerOp, Flow), Problem> {
        let window = self.window(place, layer, 1)?;
        let (inputs, sides) = match (layer.name, place.input) {
            (LayerKind::Conv1d, Flow::Sequence([steps, features])) => (features, vec![steps]),
            (LayerKind::Conv1d, _) => return Err(self.needs(place, "a sequence")),
            _ => {
                let [channels, height, width] = self.image_of(place)?;
                (channels, vec![height, width])
            }
        };
        let outputs = self.size(place, "out_channels", layer.out_channels, 1)?;
        let groups = self.size(place, "groups", Some(layer.groups.unwrap_or(1)), 1)?;
        if inputs % groups != 0 || outputs % groups != 0 {
            let what = format!("{groups} do not divide {inputs} channels into {outputs}");
            return Err(self.wrong(place, "groups", what));
        }
        let bias = layer.bias.unwrap_or(true);
        let sides = self.slid(place, window, &sides)?;
        Ok(match sides[..] {
            [height, width] => {
                let init = layer.init.unwrap_or(LayerInit::Torch);
                let op = LayerOp::Conv2d { window, groups, bias, init };
                (op, Flow::Image([outputs, height, width]))
            }
            _ => (LayerOp::Conv1d { window, groups, bias }, Flow::Sequence([sides[0], outputs])),
        })
    }

    fn pooling(&self, place: &Place<'_>, layer: &Layer) -> Result<(LayerOp, Flow), Problem> {
        let [channels, height, width] = self.image_of(place)?;
        // As PyTorch's: windows that do not overlap.
        let window = self.window(place, layer, layer.kernel_size.unwrap_or(1))?;
        if 2 * window.padding > window.kernel {
            let what = format!("must be at most half of kernel_size = {}", window.kernel);
            return Err(self.wrong(place, "padding", what));
        }
        let sides = self.slid(place, window, &[height, width])?;
        let op = if layer.name == LayerKind::MaxPool2d {
            LayerOp::MaxPool2d { window }
        } else {
            LayerOp::AvgPool2d { window }
        };
        Ok((op, Flow::Image([channels, sides[0], sides[1]])))
    }

    fn linear(&self, place: &Place<'_>, layer: &Layer) -> Result<(LayerOp, Flow), Problem> {
        let flow = match place.input {
            Flow::Vector(_) | Flow::Sequence(_) => place.input,
            _ => {
                let problem = self.needs(place, "a vector or a sequence");
                return Err(problem.help("put `global_avg_pool` or `flatten` before it"));
            }
        };
        let given = layer.out_features.and_then(Auto::given);
        let outputs = given.map_or(self.outputs as u32, |given| given);
        let outputs = self.size(place, "out_features", Some(outputs), 1)?;
        Ok((LayerOp::Linear { bias: layer.bias.unwrap_or(true) }, flow.with_features(outputs)))
    }

    fn embedding(&self, place: &Place<'_>, layer: &Layer) -> Result<(LayerOp, Flow), Problem> {
        let Flow::Tokens(_) = place.input else { return Err(self.needs(place, "tokens")) };
        let given = layer.out_features.and_then(Auto::given);
        let width = self.size(place, "out_features", given, 1)?;
        Ok((LayerOp::Embedding { rows: self.outputs }, place.input.with_features(width)))
    }

    fn attention(&self, place: &Place<'_>, layer: &Layer) -> Result<(LayerOp, Flow), Problem> {
        let [_, features] = self.sequence_of(place)?;
        let heads = self.size(place, "n_heads", layer.n_heads, 1)?;
        if features % heads != 0 {
            let what = format!("{heads} heads do not divide {features} features");
            return Err(self.wrong(place, "n_heads", what));
        }
        let dropout = if layer.p.is_some() { self.probability(place, layer)? } else { 0.0 };
        let causal = layer.causal.unwrap_or(false);
        Ok((LayerOp::Attention { heads, causal, dropout }, place.input))
    }

    fn residual(&mut self, place: &Place<'_>, layer: &Layer) -> Result<(LayerOp, Flow), Problem> {
        let layers = self.inside(place, layer)?;
        let list = format!("{}.shortcut", place.at);
        let shortcut = self.sequence(&list, inner(layer).1, place.input, place.path)?;
        let end = |layers: &[LayerPlan]| layers.last().map_or(place.input, |last| last.output);
        let (output, round) = (end(&layers), end(&shortcut));
        if output != round {
            let way = if shortcut.is_empty() { "its input is" } else { "its shortcut gives" };
            let (output, round) = (output.in_words(), round.in_words());
            let problem = self.refused(place, format!("gives {output}, but {way} {round}"));
            return Err(problem.help("both are added: make them one shape, such as by `shortcut`"));
        }
        let relu = layer.activation == Some(ResidualActivation::Relu);
        Ok((LayerOp::Residual { layers, shortcut, relu }, output))
    }

    fn concat(&mut self, place: &Place<'_>, layer: &Layer) -> Result<(LayerOp, Flow), Problem> {
        let mut branches = Vec::new();
        let list = format!("{}.layers", place.at);
        for (index, branch) in inner(layer).0.iter().enumerate() {
            let at = format!("{list}[{index}]");
            let path = path_of(place.path, index, branch);
            let found =
                self.repeated(&Place { at: &at, path: &path, input: place.input }, branch)?;
            let [plan] = <[_; 1]>::try_from(found).map_err(|_| {
                let what = "`repeat` is not a branch: wrap it in `sequential`".to_owned();
                self.loaded.problem(&format!("{at}.name"), what)
            })?;
            branches.push(plan);
        }
        let first = branches.first().map_or(place.input, |branch| branch.output);
        let mut features = 0;
        for (index, branch) in branches.iter().enumerate() {
            let other = branch.output;
            let Some(more) = other.features().filter(|&n| other == first.with_features(n)) else {
                let what = format!("gives {}, the first {}", other.in_words(), first.in_words());
                let key = format!("{list}[{index}].name");
                return Err(self
                    .loaded
                    .problem(&key, what)
                    .help("branches may differ in features only"));
            };
            features += more;
        }
        Ok((LayerOp::Concat { layers: branches }, first.with_features(features)))
    }

    fn inside(&mut self, place: &Place<'_>, layer: &Layer) -> Result<Vec<LayerPlan>, Problem> {
        let list = format!("{}.layers", place.at);
        let (layers, _) = inner(layer);
        if layers.is_empty() {
            return Err(self.refused(place, "has no layers inside".to_owned()));
        }
        self.sequence(&list, layers, place.input, place.path)
    }

    fn window(&self, place: &Place<'_>, layer: &Layer, stride: u32) -> Result<WindowPlan, Problem> {
        Ok(WindowPlan {
            kernel: self.size(place, "kernel_size", layer.kernel_size, 1)?,
            stride: self.size(place, "stride", Some(layer.stride.unwrap_or(stride)), 1)?,
            padding: self.size(place, "padding", Some(layer.padding.unwrap_or(0)), 0)?,
        })
    }

    /// Sides after the window slid over them.
    fn slid(
        &self,
        place: &Place<'_>,
        window: WindowPlan,
        sides: &[usize],
    ) -> Result<Vec<usize>, Problem> {
        let WindowPlan { kernel, stride, padding } = window;
        let after = |&side: &usize| Some((side + 2 * padding).checked_sub(kernel)? / stride + 1);
        sides.iter().map(after).collect::<Option<_>>().ok_or_else(|| {
            let what = format!(
                "{kernel} is larger than {} with padding {padding}",
                place.input.in_words()
            );
            self.wrong(place, "kernel_size", what)
        })
    }

    fn size(
        &self,
        place: &Place<'_>,
        key: &str,
        given: Option<u32>,
        least: usize,
    ) -> Result<usize, Problem> {
        match given.map(|given| given as usize) {
            Some(size) if (least..=MOST).contains(&size) => Ok(size),
            Some(size) => {
                Err(self.wrong(place, key, format!("must be from {least} to {MOST}, not {size}")))
            }
            None => Err(self.refused(place, format!("needs `{key}`"))),
        }
    }

    fn probability(&self, place: &Place<'_>, layer: &Layer) -> Result<f64, Problem> {
        match layer.p {
            Some(p) if (0.0..1.0).contains(&p) => Ok(p),
            Some(p) => {
                Err(self.wrong(place, "p", format!("must be at least 0 and less than 1, not {p}")))
            }
            None => Err(self.refused(place, "needs `p`".to_owned())),
        }
    }

    fn image_of(&self, place: &Place<'_>) -> Result<[usize; 3], Problem> {
        match place.input {
            Flow::Image(sides) => Ok(sides),
            _ => Err(self.needs(place, "an image")),
        }
    }

    fn sequence_of(&self, place: &Place<'_>) -> Result<[usize; 2], Problem> {
        match place.input {
            Flow::Sequence(sides) => Ok(sides),
            _ => Err(self.needs(place, "a sequence")),
        }
    }

    fn with_features(&self, place: &Place<'_>) -> Result<Flow, Problem> {
        match place.input {
            Flow::Tokens(_) => Err(self.needs(place, "numbers").help("put `embedding` before it")),
            flow => Ok(flow),
        }
    }

    fn needs(&self, place: &Place<'_>, what: &str) -> Problem {
        self.refused(place, format!("needs {what}, but gets {}", place.input.in_words()))
    }

    /// Drawn under the layer's name.
    fn refused(&self, place: &Place<'_>, what: String) -> Problem {
        self.loaded.problem_at(place.at, &format!("{}.name", place.at), what)
    }

    /// Drawn under one of the layer's numbers.
    fn wrong(&self, place: &Place<'_>, key: &str, what: String) -> Problem {
        let key = format!("{}.{key}", place.at);
        let drawn =
            if self.loaded.is_given(&key) { key.clone() } else { format!("{}.name", place.at) };
        self.loaded.problem_at(&key, &drawn, what)
    }
}

/// What the parameters of the layer are called by: its key; of a layer without one, its place in the list. Layers
/// that hold layers need no name of their own.
fn path_of(prefix: &str, index: usize, layer: &Layer) -> String {
    let own = match &layer.key {
        Some(key) => key.clone(),
        None if layer.layers.is_some() => return prefix.to_owned(),
        None => index.to_string(),
    };
    if prefix.is_empty() { own } else { format!("{prefix}.{own}") }
}
