//! Where a layer is built.

use candle_core::{Error, Result};

use crate::model::layers::node::{Node, merged};
use crate::model::layers::{Layers, Sizes};
use crate::nn::{Builder, Param};
use crate::plan::LayerPlan;

/// Where a layer is built: its place in the model, and its sizes.
#[derive(Clone, Copy)]
pub struct Site<'a> {
    root: &'a Builder,
    layers: &'a Layers,
    needed: usize,
    plan: &'a LayerPlan,
}

impl Site<'_> {
    /// All of a graph's layers, as what they do.
    pub(in crate::model) fn all(
        layers: &Layers,
        plans: &[LayerPlan],
        root: &Builder,
        needed: usize,
    ) -> Result<Vec<Node>> {
        let mut nodes: Vec<Node> = Vec::with_capacity(plans.len());
        for plan in plans {
            let node = Site { root, layers, needed, plan }.node()?;
            match nodes.pop() {
                Some(before) => nodes.extend(merged(before, node)),
                None => nodes.push(node),
            }
        }
        Ok(nodes)
    }

    /// Sizes of the layer.
    pub fn sizes(&self) -> Sizes {
        Sizes { input: self.plan.input, output: self.plan.output, needed: self.needed }
    }

    /// What its parameters are registered with.
    pub fn builder(&self) -> Builder {
        self.root.pp(&self.plan.path)
    }

    /// The weight of the layer that is called `key`, which was built before.
    pub fn weight_of(&self, key: &str) -> Result<Param> {
        let missing = || Error::Msg(format!("no layer before it has a parameter `{key}.weight`"));
        self.root.existing(&format!("{key}.weight")).ok_or_else(missing)
    }

    /// What its random numbers are named with.
    pub fn draws(&self) -> Builder {
        self.root.pp(self.plan.draws.as_ref().unwrap_or(&self.plan.path))
    }

    /// The layers inside, one after another.
    pub fn sequence(&self) -> Result<Vec<Node>> {
        Self::all(self.layers, &self.plan.layers, self.root, self.needed)
    }

    /// The layers on the way round them.
    pub fn shortcut(&self) -> Result<Vec<Node>> {
        Self::all(self.layers, &self.plan.shortcut, self.root, self.needed)
    }

    /// The layers inside, each for itself.
    pub fn branches(&self) -> Result<Vec<Node>> {
        self.plan.layers.iter().map(|plan| Site { plan, ..*self }.node()).collect()
    }

    fn node(&self) -> Result<Node> {
        let layer = self.layers.build(&self.plan.kind);
        let layer = layer.map_err(|error| Error::Msg(error.to_string()))?;
        Ok(layer.build(self)?.named(&self.plan.kind.name, &self.plan.path))
    }
}
