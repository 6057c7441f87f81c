//! Weights and forward pass -> the bytes of an ONNX file.

use candle_core::Result;

use super::{Error, Model, Models};
use crate::onnx::{Dim, Graph, Value};
use crate::plan::{Flow, Modality, ModelPlan};

/// Samples of a batch.
const BATCH: Dim = Dim::Named("batch");
/// Tokens of a sample.
const SEQUENCE: Dim = Dim::Named("sequence");

impl Models {
    /// What `model`, which was built of `plan`, does in evaluation, for batches of any size; a text
    /// may be shorter than those of its training. Inputs are `input` as the data pipeline gives it,
    /// or `input_ids` of a text, and what else the model asks for.
    pub fn onnx(&self, plan: &ModelPlan, model: &dyn Model) -> std::result::Result<Vec<u8>, Error> {
        let mut graph = Graph::new(plan.input.first().copied().unwrap_or(1));
        let input = self.onnx_input(plan, &mut graph)?;
        let output = model.onnx(&mut graph, &input);
        let blamed = graph.blamed().map(|part| format!("its {part}: ")).unwrap_or_default();
        let written: Result<Vec<u8>> =
            output.and_then(|output| graph.finish(plan.name(), &output, &["batch", "sequence"]));
        let name = plan.name().to_owned();
        written.map_err(|error| Error::Onnx { name, what: format!("{blamed}{error}") })
    }

    fn onnx_input(&self, plan: &ModelPlan, graph: &mut Graph) -> std::result::Result<Value, Error> {
        if self.architecture(plan)?.takes() == [Modality::Text] {
            return Ok(graph.indices("input_ids", &[BATCH, SEQUENCE]));
        }
        let sizes = plan.input.iter().map(|&size| Dim::Size(size));
        let dims: Vec<Dim> = [BATCH].into_iter().chain(sizes).collect();
        let is_text =
            plan.layers.first().is_some_and(|first| matches!(first.input, Flow::Tokens(_)));
        Ok(if is_text { graph.indices("input_ids", &dims) } else { graph.input("input", &dims) })
    }
}

#[cfg(test)]
mod tests;
