//! Shape inference, one layer after another.

use std::collections::BTreeSet;
use std::mem::replace;

use serde_json::Value;

use crate::config::kind::{Choice, Entry, Key};
use crate::model::layers::{Layer, Layers, Sizes};
use crate::plan::{Flow, LayerMisfit, LayerPlan, Unfit};

/// Layers in layers in layers; a file that goes deeper is no model.
const MAX_DEPTH: usize = 16;
/// Largest number of layers of a graph, every repetition counted.
const MAX_LAYERS: usize = 100_000;

/// Output shape of a layer, and the plans of the layers inside it.
#[derive(Debug, PartialEq)]
pub struct InferredLayer {
    /// Output shape.
    pub output: Flow,
    /// The layers inside.
    pub layers: Vec<LayerPlan>,
    /// Layers of the shortcut.
    pub shortcut: Vec<LayerPlan>,
}

impl From<Flow> for InferredLayer {
    /// A layer without layers inside.
    fn from(output: Flow) -> Self {
        Self { output, layers: Vec::new(), shortcut: Vec::new() }
    }
}

/// Position of a layer in the file and in the model.
#[derive(Clone, Debug, Default)]
struct LayerPosition {
    /// `model.layers[3]`
    at: String,
    /// `layer1.0.conv1`
    path: String,
}

/// State of the shape inference at one layer.
#[derive(Debug)]
pub struct Scope<'a> {
    layers: &'a Layers,
    /// Numbers that the data needs at the end.
    needed: usize,
    position: LayerPosition,
    /// Keys that have parameters already.
    taken: BTreeSet<String>,
    /// Names of random numbers that are in use already.
    drawn: BTreeSet<String>,
    n_layers: usize,
    depth: usize,
}

impl<'a> Scope<'a> {
    pub(super) fn new(layers: &'a Layers, needed: usize) -> Self {
        Self {
            layers,
            needed,
            position: LayerPosition::default(),
            taken: BTreeSet::new(),
            drawn: BTreeSet::new(),
            n_layers: 0,
            depth: 0,
        }
    }

    pub(super) fn all(
        mut self,
        layers: &[Entry],
        input: Flow,
    ) -> Result<Vec<LayerPlan>, LayerMisfit> {
        self.in_list("model.layers", layers, input)
    }

    /// Numbers that the data needs at the end of the model: classes, or tokens of the vocabulary.
    pub fn needed(&self) -> usize {
        self.needed
    }

    /// True if an earlier layer has parameters under `key`.
    pub fn has_parameters(&self, key: &str) -> bool {
        self.taken.contains(key)
    }

    /// Plans the layers of the current layer's option `list`, one after another.
    pub fn sequence(
        &mut self,
        list: &str,
        layers: &[Entry],
        input: Flow,
    ) -> Result<Vec<LayerPlan>, LayerMisfit> {
        let list = format!("{}.{list}", self.position.at);
        self.in_list(&list, layers, input)
    }

    /// Plans each layer of the current layer's option `list` on the same input.
    pub fn branches(
        &mut self,
        list: &str,
        layers: &[Entry],
        input: Flow,
    ) -> Result<Vec<LayerPlan>, LayerMisfit> {
        let list = format!("{}.{list}", self.position.at);
        let mut branches = Vec::with_capacity(layers.len());
        for (index, entry) in layers.iter().enumerate() {
            let position = self.position_of(&list, index, entry);
            let at = position.at.clone();
            let [plan] = <[_; 1]>::try_from(self.entry(position, entry, input)?).map_err(|_| {
                let what = "`repeat` is not a branch: wrap it in `sequential`".to_owned();
                LayerMisfit { at, unfit: Unfit { key: "name", what, help: None } }
            })?;
            branches.push(plan);
        }
        Ok(branches)
    }

    /// The error that branch `index` of the option `list` does not go with the others.
    pub fn misfit_of(&self, list: &str, index: usize, unfit: Unfit) -> LayerMisfit {
        LayerMisfit { at: format!("{}.{list}[{index}]", self.position.at), unfit }
    }

    fn in_list(
        &mut self,
        list: &str,
        layers: &[Entry],
        mut input: Flow,
    ) -> Result<Vec<LayerPlan>, LayerMisfit> {
        let mut plans = Vec::with_capacity(layers.len());
        for (index, entry) in layers.iter().enumerate() {
            let found = self.entry(self.position_of(list, index, entry), entry, input)?;
            input = found.last().map_or(input, |last| last.output);
            plans.extend(found);
        }
        Ok(plans)
    }

    /// Parameters are named by the layer's key or, without one, by its index in the list. A
    /// container without a key adds nothing to the names.
    fn position_of(&self, list: &str, index: usize, entry: &Entry) -> LayerPosition {
        let prefix = &self.position.path;
        let has_layers = || {
            let spec = self.layers.kind(&entry.name);
            spec.is_some_and(|spec| spec.keys.iter().any(Key::is_list))
        };
        let own = match &entry.key {
            Some(key) => Some(key.clone()),
            None if has_layers() => None,
            None => Some(index.to_string()),
        };
        let path = match own {
            None => prefix.clone(),
            Some(own) if prefix.is_empty() => own,
            Some(own) => format!("{prefix}.{own}"),
        };
        LayerPosition { at: format!("{list}[{index}]"), path }
    }

    /// Returns one plan, or one for each time of a repetition.
    fn entry(
        &mut self,
        position: LayerPosition,
        entry: &Entry,
        input: Flow,
    ) -> Result<Vec<LayerPlan>, LayerMisfit> {
        let path = position.path.clone();
        let outside = replace(&mut self.position, position);
        let found = self.repeated(entry, input, &path).map_err(|misfit| self.at_least_here(misfit));
        self.position = outside;
        found
    }

    /// Adds the current position to a misfit without one: a layer does not know its own.
    fn at_least_here(&self, misfit: LayerMisfit) -> LayerMisfit {
        let at = if misfit.at.is_empty() { self.position.at.clone() } else { misfit.at };
        LayerMisfit { at, ..misfit }
    }

    fn repeated(
        &mut self,
        entry: &Entry,
        mut input: Flow,
        path: &str,
    ) -> Result<Vec<LayerPlan>, LayerMisfit> {
        self.n_layers += 1;
        self.depth += 1;
        if self.n_layers > MAX_LAYERS || self.depth > MAX_DEPTH {
            let what = format!("is more than {MAX_LAYERS} layers, or deeper than {MAX_DEPTH}");
            return Err(Unfit::of_all(what).into());
        }
        let unknown = |what: String| Unfit { key: "name", what, help: None };
        let layer =
            self.layers.build(&entry.choice()).map_err(|error| unknown(error.to_string()))?;
        let mut plans = Vec::new();
        match layer.times() {
            None => plans.push(self.one(layer.as_ref(), entry, input)?),
            Some(times) => {
                for time in 0..times {
                    self.position.path = format!("{path}.{time}");
                    let plan = self.one(layer.as_ref(), entry, input)?;
                    input = plan.output;
                    plans.push(plan);
                }
            }
        }
        self.depth -= 1;
        Ok(plans)
    }

    fn one(
        &mut self,
        layer: &dyn Layer,
        entry: &Entry,
        input: Flow,
    ) -> Result<LayerPlan, LayerMisfit> {
        let decided = layer.decide(input, self)?;
        let sizes = Sizes { input, output: decided.output, needed: self.needed };
        let path = self.position.path.clone();
        let plan = LayerPlan {
            rng_path: self.draws(layer),
            kind: without_layers(entry, self.layers),
            details: layer.details(&sizes),
            input,
            output: decided.output,
            own_parameters: layer.parameters(&sizes),
            own_flops: layer.flops(&sizes),
            layers: decided.layers,
            shortcut: decided.shortcut,
            path,
        };
        if plan.own_parameters > 0 && !self.taken.insert(plan.path.clone()) {
            let what =
                format!("has the parameters of `{}`, which another layer has as well", plan.path);
            let help = Some("give one of them another `key`");
            return Err(Unfit { help, ..Unfit::of_all(what) }.into());
        }
        Ok(plan)
    }

    /// A name of its own for the random numbers of a layer whose path another one has: containers
    /// without a key add nothing to the paths of their layers.
    fn draws(&mut self, layer: &dyn Layer) -> Option<String> {
        let LayerPosition { at, path } = &self.position;
        let is_twin = layer.draws() && !self.drawn.insert(path.clone());
        is_twin.then(|| format!("{path} at {at}"))
    }
}

/// The choice of an entry without the layers inside, which have plans of their own.
fn without_layers(entry: &Entry, layers: &Layers) -> Choice {
    let mut choice = entry.choice();
    let keys = layers.kind(&entry.name).into_iter().flat_map(|spec| &spec.keys);
    for key in keys.filter(|key| key.is_list()) {
        if let Some(list) = choice.options.get_mut(&key.name) {
            *list = Value::Array(Vec::new());
        }
    }
    choice
}
