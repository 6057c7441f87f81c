//! `lstm` and `gru`: a recurrent network over the steps, and a linear layer on its last state.
//!
//! Keys: `rnn.{weight,bias}_{ih,hh}_l{i}` as of `torch.nn.LSTM` and `GRU`, `fc`.

use candle_core::{Result, Tensor, bail};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Architecture, Head, Model, Models};
use crate::config::kind::Kind;
use crate::nn::{Builder, Dropout, ForwardContext, Linear, Recurrent, RecurrentShape};
use crate::onnx::{Graph, Value};
use crate::ops::{self, Cell};
use crate::plan::{Modality, ModelPlan};

/// long short-term memory over the steps of a window, or over the values of a table row; a linear
/// layer predicts from the last state. The recurrence always runs on the CPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RecurrentConfig {
    /// features of a state.
    #[schemars(range(min = 1, max = 65536))]
    pub hidden_size: usize,
    /// layers, each of which reads the states of the one before.
    #[schemars(range(min = 1, max = 1024))]
    pub num_layers: usize,
    /// whether each layer also reads backwards.
    pub bidirectional: bool,
    /// dropout between layers, and before the last one.
    #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
    pub dropout: f64,
    /// Cell, which follows from the name.
    #[serde(skip)]
    pub network: RecurrentNetwork,
}

/// Cell of a recurrent network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecurrentNetwork {
    /// `lstm`
    #[default]
    Lstm,
    /// `gru`
    Gru,
}

impl Default for RecurrentConfig {
    fn default() -> Self {
        let network = RecurrentNetwork::Lstm;
        Self { hidden_size: 64, num_layers: 1, bidirectional: false, dropout: 0.0, network }
    }
}

impl Kind for RecurrentConfig {
    const NAME: &'static str = "lstm";

    fn name(&self) -> &'static str {
        match self.network {
            RecurrentNetwork::Lstm => Self::NAME,
            RecurrentNetwork::Gru => "gru",
        }
    }
}

/// Adds both.
pub(super) fn register(models: &mut Models) {
    models.add::<RecurrentConfig>();
    let about = "The same of gated recurrent units.";
    models.add_variant("gru", about, |config: &mut RecurrentConfig| {
        config.network = RecurrentNetwork::Gru;
    });
}

impl RecurrentConfig {
    fn shape(&self, inputs: usize) -> RecurrentShape {
        RecurrentShape {
            cell: match self.network {
                RecurrentNetwork::Lstm => Cell::Lstm,
                RecurrentNetwork::Gru => Cell::Gru,
            },
            inputs,
            hidden: self.hidden_size,
            layers: self.num_layers,
            bidirectional: self.bidirectional,
            dropout: self.dropout,
        }
    }
}

impl Architecture for RecurrentConfig {
    fn build(&self, plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>> {
        let inputs = match plan.input[..] {
            [_, features] => features,
            [_] => 1,
            _ => bail!("samples are (steps, features) or (features), not {:?}", plan.input),
        };
        let table = plan.target.len() == 2;
        let outputs = if table { plan.target.iter().product() } else { plan.outputs };
        let shape = self.shape(inputs);
        Ok(Box::new(Net {
            rnn: Recurrent::new(&builder.pp("rnn"), shape)?,
            dropout: Dropout::new(&builder.pp("dropout"), self.dropout),
            fc: Linear::new(&builder.pp("fc"), shape.outputs(), outputs)?,
            hidden: self.hidden_size,
            table: table.then(|| plan.target.clone()),
        }))
    }

    fn takes(&self) -> &'static [Modality] {
        &[Modality::Series, Modality::Table]
    }

    fn head(&self) -> Head {
        Head::Keys(&["fc."])
    }

    fn has_blocks(&self) -> bool {
        false
    }
}

struct Net {
    rnn: Recurrent,
    dropout: Dropout,
    fc: Linear,
    /// Features of a state in one direction.
    hidden: usize,
    /// Shape of a target with more than one axis.
    table: Option<Vec<usize>>,
}

impl Net {
    /// Final state of each direction, (n, 1, features): that of the backward direction is at the
    /// first step.
    fn last(&self, states: &Tensor) -> Result<Tensor> {
        let (_, steps, features) = states.dims3()?;
        let forward = ops::narrow(states, 1, steps - 1, 1)?;
        if features == self.hidden {
            return Ok(forward);
        }
        let backward = ops::narrow(&ops::narrow(states, 1, 0, 1)?, 2, self.hidden, self.hidden)?;
        Tensor::cat(&[ops::narrow(&forward, 2, 0, self.hidden)?, backward], 2)
    }

    /// x (n, steps, features) -> (n, 1, outputs).
    fn output(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let last = self.last(&self.rnn.forward(x, pass)?)?;
        self.fc.forward(&self.dropout.forward(&last, pass)?, pass)
    }

    /// [`Net::last`] in a graph of ONNX.
    fn last_onnx(&self, graph: &mut Graph, states: &Value) -> Value {
        let steps = states.dims()[1].unwrap_or(1);
        let both = states.features() > self.hidden;
        let mut part = |step, first| {
            let state = graph.narrowed(states, 1, step, 1);
            let state = graph.squeezed(&state, &[1]);
            graph.narrowed(&state, 1, first, self.hidden)
        };
        let forward = part(steps - 1, 0);
        if !both {
            return forward;
        }
        let backward = part(0, self.hidden);
        graph.concatenated(&[&forward, &backward], 1)
    }
}

impl Model for Net {
    fn forward(&self, input: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let x = if input.rank() == 2 { input.unsqueeze(2)? } else { input.clone() };
        let output = |x: &Tensor| self.output(x, pass);
        let y = if self.rnn.is_bidirectional() { output(&x) } else { ops::chain(&x, output) };
        let y = y?.squeeze(1)?;
        match &self.table {
            Some(shape) => y.reshape([&[y.dim(0)?], &shape[..]].concat()),
            None => Ok(y),
        }
    }

    fn onnx(&self, graph: &mut Graph, input: &Value) -> Result<Value> {
        let x = if input.rank() == 2 { graph.unsqueezed(input, &[2]) } else { input.clone() };
        let states = self.rnn.onnx(graph, &x)?;
        let last = self.last_onnx(graph, &states);
        let y = self.fc.onnx(graph, &last)?;
        Ok(self.table.as_ref().map_or(y.clone(), |shape| graph.shaped(&y, shape)))
    }
}
