//! `name = "select"`

use candle_core::{Result as CandleResult, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::model::layers::{
    Decided, Flow, Forward, Layer, LayerMisfit, Node, Scope, Site, Sizes, Unfit,
};
use crate::nn::ForwardContext;
use crate::onnx::{Graph, Value};

/// one step of a sequence, as a vector: the class token, or what a recurrent layer has read at the
/// end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Select {
    /// which one, from 0; from the end, -1 is the last.
    #[schemars(range(min = -16_777_216, max = 16_777_216), example = -1)]
    pub index: i64,
}

impl Kind for Select {
    const NAME: &'static str = "select";
}

impl Select {
    /// Counted from the beginning, among so many steps.
    fn place(&self, steps: usize) -> Option<usize> {
        let place = if self.index < 0 { self.index + steps as i64 } else { self.index };
        usize::try_from(place).ok().filter(|&place| place < steps)
    }
}

impl Layer for Select {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<Decided, LayerMisfit> {
        let [steps, features] = input.sequence()?;
        if self.place(steps).is_none() {
            let what = format!("there are {steps} steps");
            return Err(Unfit { key: "index", what, help: None }.into());
        }
        Ok(Flow::Vector(features).into())
    }

    fn details(&self, _: &Sizes) -> String {
        format!(" {}", self.index)
    }

    fn build(&self, _: &Site<'_>) -> CandleResult<Node> {
        Ok(Node::of(self.clone()))
    }
}

impl Forward for Select {
    fn forward(&self, x: &Tensor, _: &ForwardContext) -> CandleResult<Tensor> {
        let place = self.place(x.dim(1)?).unwrap_or_default();
        x.narrow(1, place, 1)?.squeeze(1)?.contiguous()
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        let place = self.place(x.dims()[1].unwrap_or_default()).unwrap_or_default();
        let step = graph.narrowed(x, 1, place, 1);
        Ok(graph.squeezed(&step, &[1]))
    }
}
