//! `graph`: a model written down layer by layer (`[[model.layers]]`), with the names that the file gives.
//!
//! A batch norm after a convolution, and a rectifier after either, are one operation; so a `resnet18` in layers has
//! the bits and the speed of the registered one.

use candle_core::{Result, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Architecture, Head, Model, Models};
use crate::config::kind::{Kind, Spec};
use crate::model::layers::{Layers, Node, Site, run};
use crate::nn::{Builder, ForwardContext};
use crate::ops;
use crate::plan::ModelPlan;

/// A model written down layer by layer, in `[[model.layers]]`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GraphConfig {
    /// Layers that it may hold.
    #[serde(skip)]
    layers: Layers,
}

impl Kind for GraphConfig {
    const NAME: &'static str = "graph";
}

impl Architecture for GraphConfig {
    fn build(&self, plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>> {
        let is_image = plan.input.len() == 3;
        let nodes = Site::all(&self.layers, &plan.layers, builder, plan.outputs)?;
        Ok(Box::new(Graph { is_image, nodes }))
    }

    fn head(&self) -> Head {
        Head::Last
    }
}

impl Models {
    /// Lets the model `graph` hold `layers`.
    pub(crate) fn hold_layers(&mut self, layers: &Layers) {
        let (about, layers) = (Spec::of::<GraphConfig>().about, layers.clone());
        self.add_variant(GraphConfig::NAME, &about, move |graph: &mut GraphConfig| {
            graph.layers = layers.clone();
        });
    }
}

struct Graph {
    is_image: bool,
    nodes: Vec<Node>,
}

impl Model for Graph {
    fn forward(&self, input: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let x = if self.is_image { ops::nchw_to_nhwc(input)? } else { input.clone() };
        run(&self.nodes, x, pass)
    }
}

#[cfg(test)]
mod tests;
