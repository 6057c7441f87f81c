//! `graph`: a model written down layer by layer (`[[model.layers]]`), with the names that the file
//! gives.
//!
//! A batch norm after a convolution, and a ReLU after either, are one operation, so a `resnet18` in
//! layers is as fast as the registered one, and its numbers are identical to the bit.
//!
//! Recordings are padded to one length; the layers get the frames and the length of each recording.

use candle_core::{Result, Tensor, bail};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::padded_frames::{frames_and_lengths, frames_and_lengths_onnx};
use super::{Architecture, Head, Model, Models};
use crate::config::kind::{Kind, Spec};
use crate::model::layers::{Layers, Node, Site, run, run_onnx};
use crate::nn::{Builder, ForwardContext, Lengths};
use crate::onnx;
use crate::ops;
use crate::plan::{LayerPlan, ModelPlan};

/// A model built from layers in the experiment file: `[[model.layers]]`.
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
        let first = plan.layers.first();
        let is_speech = first.is_some_and(|layer| layer.input.padded().is_some());
        if let Some(first) = first
            && is_speech
        {
            // Lengths are read, and padding is hidden, on CPUs.
            builder.pp(&first.path).computes_on_cpu();
        }
        let samples = match plan.input.len() {
            3 if is_speech => Samples::Speech,
            3 => Samples::Images,
            _ => Samples::Others,
        };
        if let Some(missing) = self.head.iter().find(|key| !has_layer(&plan.layers, key)) {
            bail!("`model.head` names `{missing}`, but no layer with parameters has that key");
        }
        let nodes = Site::all(&self.layers, &plan.layers, builder, plan.outputs)?;
        Ok(Box::new(Graph { samples, nodes }))
    }

    fn head(&self) -> Head {
        match &self.head[..] {
            [] => Head::Last,
            keys => Head::Layers(keys.to_vec()),
        }
    }
}

/// True if a layer with parameters has the key `key`, or is inside one that has.
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
    /// Sets the layers that the model `graph` may hold.
    pub fn hold_layers(&mut self, layers: &Layers) {
        let about = Spec::of::<GraphConfig>().about;
        let layers = layers.clone();
        self.replace_variant(GraphConfig::NAME, &about, move |graph: &mut GraphConfig| {
            graph.layers = layers.clone();
        });
    }
}

struct Graph {
    samples: Samples,
    nodes: Vec<Node>,
}

/// Kind of the samples.
enum Samples {
    /// (n, c, h, w)
    Images,
    /// (n, 2, frames + 1, mels): clean and noisy, with a row for the length. The layers get the
    /// noisy frames.
    Speech,
    /// Passed to the layers as they are.
    Others,
}

impl Model for Graph {
    fn forward(&self, input: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let y = match self.samples {
            Samples::Images => run(&self.nodes, ops::nchw_to_nhwc(input)?, pass),
            Samples::Speech => {
                let (frames, lengths) = frames_and_lengths(input, 1)?;
                let lengths = Some(Lengths::new(lengths));
                run(&self.nodes, frames, &ForwardContext { lengths, ..pass.clone() })
            }
            Samples::Others => run(&self.nodes, input.clone(), pass),
        };
        // The last layer may have an activation.
        ops::widen(&y?)
    }

    fn onnx(&self, graph: &mut onnx::Graph, input: &onnx::Value) -> Result<onnx::Value> {
        let x = match self.samples {
            Samples::Images => graph.images(input),
            Samples::Speech => {
                let (frames, lengths) = frames_and_lengths_onnx(graph, input, 1);
                graph.measure(lengths);
                frames
            }
            Samples::Others => input.clone(),
        };
        run_onnx(&self.nodes, graph, &x)
    }
}

#[cfg(test)]
mod tests;
