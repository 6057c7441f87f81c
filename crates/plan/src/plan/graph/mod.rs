//! A model written down layer by layer: every layer with its sizes, or the one that does not fit.
//!
//! Shapes are worked out from the data forward, before anything is built, by the layers themselves.

mod shape;
mod table;

use serde::{Deserialize, Serialize};

use crate::config::kind::Choice;
use crate::config::schema::Model;
use crate::config::{Loaded, Problem};
use crate::plan::{DataFacts, KindFacts, Unfit};
pub use shape::Flow;
pub use table::rows;

/// A layer with all its numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerPlan {
    /// What its parameters are called by: `layer1.0.conv1`.
    pub path: String,
    /// What its random numbers are called by, where `path` is that of an earlier layer that draws.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draws: Option<String>,
    /// Which layer, with all its options but the layers inside.
    pub kind: Choice,
    /// What the table of layers says after its name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub details: String,
    /// What it takes.
    pub input: Flow,
    /// What it gives.
    pub output: Flow,
    /// Elements of its own parameters.
    pub own_parameters: usize,
    /// Its own operations in the forward pass of one sample.
    pub own_flops: u64,
    /// The layers inside.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<LayerPlan>,
    /// The layers on the way round them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shortcut: Vec<LayerPlan>,
}

/// Why a layer does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerMisfit {
    /// Which: `model.layers[3].layers[0]`; empty = the one that says so.
    pub at: String,
    /// What is wrong with it.
    pub unfit: Unfit,
}

impl From<Unfit> for LayerMisfit {
    fn from(unfit: Unfit) -> Self {
        Self { at: String::new(), unfit }
    }
}

/// The layers of the model `graph`, decided for samples of shape `input`; of any other model, none.
pub(super) fn decide(
    loaded: &Loaded,
    input: &[usize],
    data: &DataFacts,
    outputs: usize,
    kinds: &dyn KindFacts,
) -> Result<Vec<LayerPlan>, Problem> {
    let Model { name, layers, .. } = &loaded.experiment.model;
    if name == "graph" && layers.is_empty() {
        let help = "such as `[[model.layers]]` with `name = \"linear\"`; `ddprun schema` lists all";
        let what = "is missing: `graph` is made of layers";
        return Err(loaded.problem_at("model.layers", "model.name", what).help(help));
    }
    let modality = data.source.modality;
    let target = &data.target[..];
    if name != "graph" {
        return Ok(Vec::new());
    }
    let Some(start) = Flow::of(modality, input, target) else { return Ok(Vec::new()) };
    let plans = kinds.layers(layers, start, outputs).map_err(|misfit| problem(loaded, misfit))?;
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

/// Drawn under the option that is wrong, or under the layer's name.
fn problem(loaded: &Loaded, misfit: LayerMisfit) -> Problem {
    let LayerMisfit { at, unfit: Unfit { key, what, help } } = misfit;
    let name = format!("{at}.name");
    let option = format!("{at}.{key}");
    let problem = match key {
        "" => loaded.problem_at(&at, &name, what),
        _ if loaded.is_given(&option) => loaded.problem(&option, what),
        _ => loaded.problem_at(&option, &name, what),
    };
    match help {
        Some(help) => problem.help(help),
        None => problem,
    }
}

impl LayerPlan {
    /// Floating-point operations of the forward pass of one sample: two for each multiplication of
    /// a product.
    pub fn flops(&self) -> u64 {
        self.own_flops + self.inside().map(Self::flops).sum::<u64>()
    }

    /// Elements of its parameters.
    pub fn parameters(&self) -> usize {
        self.own_parameters + self.inside().map(Self::parameters).sum::<usize>()
    }

    /// The layers inside, and those on the way round them.
    fn inside(&self) -> impl Iterator<Item = &Self> {
        self.layers.iter().chain(&self.shortcut)
    }
}
