//! `graph`: a model written down layer by layer (`[[model.layers]]`), with the names that the file
//! gives.
//!
//! A batch norm after a convolution, and a ReLU after either, are one operation, so a `resnet18` in
//! layers is as fast as the registered one, and its numbers are identical to the bit.

use candle_core::{Result, Tensor, bail};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Architecture, Head, Model, Models};
use crate::config::kind::{Kind, Spec};
use crate::model::layers::{Layers, Node, Site, run, run_onnx};
use crate::nn::{Builder, ForwardContext};
use crate::onnx;
use crate::ops;
use crate::plan::{LayerPlan, ModelPlan};

/// A model written down layer by layer, in `[[model.layers]]`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GraphConfig {
    /// keys of the layers that `model.strict = "except_head"` exempts from pretrained weights.
    /// Default: the last layer that has parameters.
    #[schemars(example = ["fc"])]
    pub head: Vec<String>,
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
        if let Some(missing) = self.head.iter().find(|key| !has_layer(&plan.layers, key)) {
            bail!("`model.head` names `{missing}`, but no layer with parameters has that key");
        }
        let nodes = Site::all(&self.layers, &plan.layers, builder, plan.outputs)?;
        Ok(Box::new(Graph { is_image, nodes }))
    }

    fn head(&self) -> Head {
        match &self.head[..] {
            [] => Head::Last,
            keys => Head::Layers(keys.to_vec()),
        }
    }
}

/// Whether a layer with parameters is called `key`, or is inside of one that is.
fn has_layer(layers: &[LayerPlan], key: &str) -> bool {
    let is_there = |layer: &LayerPlan| {
        let rest = layer.path.strip_prefix(key);
        layer.own_parameters > 0
            && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let inside =
        |layer: &LayerPlan| has_layer(&layer.layers, key) || has_layer(&layer.shortcut, key);
    layers.iter().any(|layer| is_there(layer) || inside(layer))
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

    fn onnx(&self, graph: &mut onnx::Graph, input: &onnx::Value) -> Result<onnx::Value> {
        let x = if self.is_image { graph.images(input) } else { input.clone() };
        run_onnx(&self.nodes, graph, &x)
    }
}

#[cfg(test)]
mod tests;
