//! Multilayer perceptron: linear layers with ReLU and dropout between them.
//!
//! Keys: `layers.{i}.weight`, `layers.{i}.bias`, as an `nn.ModuleList` of `nn.Linear` has them.

use candle_core::{Result, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Architecture, Head, Model};
use crate::config::kind::Kind;
use crate::nn::{Builder, Dropout, ForwardContext, Linear};
use crate::ops::{self, LinearActivation};
use crate::plan::{Modality, ModelPlan};

/// Multilayer perceptron: linear layers with ReLU and dropout between them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MlpConfig {
    /// widths of the hidden layers.
    #[schemars(inner(range(min = 1, max = 65536)))]
    pub hidden: Vec<usize>,
    /// dropout after each hidden layer.
    #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
    pub dropout: f64,
}

impl Default for MlpConfig {
    fn default() -> Self {
        Self { hidden: vec![256], dropout: 0.0 }
    }
}

impl Kind for MlpConfig {
    const NAME: &'static str = "mlp";
}

impl Architecture for MlpConfig {
    /// Widths: the sample's elements, `hidden`, the outputs, or all elements of a target that is a
    /// table.
    fn build(&self, plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>> {
        let table = plan.target.len() == 2;
        let outputs = if table { plan.target.iter().product() } else { plan.outputs };
        let widths: Vec<usize> = std::iter::once(plan.input.iter().product())
            .chain(self.hidden.iter().copied())
            .chain(std::iter::once(outputs))
            .collect();
        let layers = builder.pp("layers");
        let layer = |(i, width): (usize, &[usize])| {
            let builder = layers.pp(i);
            // The last layer drops nothing.
            let p = if i < self.hidden.len() { self.dropout } else { 0.0 };
            let dropout = Dropout::new(&builder, p);
            Ok((Linear::new(&builder, width[0], width[1])?, dropout))
        };
        let layers = widths.windows(2).enumerate().map(layer).collect::<Result<_>>()?;
        Ok(Box::new(Mlp { layers, table: table.then(|| plan.target.clone()) }))
    }

    fn takes(&self) -> &'static [Modality] {
        &[Modality::Images, Modality::Table, Modality::Series, Modality::Behaviour]
    }

    fn head(&self) -> Head {
        Head::Last
    }

    fn has_blocks(&self) -> bool {
        false
    }
}

struct Mlp {
    /// Each linear layer with the dropout after its activation; the last one's is not used.
    layers: Vec<(Linear, Dropout)>,
    /// Shape of a target with more than one axis.
    table: Option<Vec<usize>>,
}

impl Model for Mlp {
    fn forward(&self, input: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let layer = |x: Tensor, (i, (linear, dropout)): (usize, &(Linear, Dropout))| {
            if i + 1 == self.layers.len() {
                return linear.forward(&x, pass);
            }
            let hidden = linear.forward_activated(&x, LinearActivation::Relu, pass)?;
            dropout.forward(&hidden, pass)
        };
        let x = ops::chain(&input.flatten_from(1)?, |x| {
            self.layers.iter().enumerate().try_fold(x.clone(), layer)
        })?;
        match &self.table {
            Some(shape) => x.reshape([&[x.dim(0)?], &shape[..]].concat()),
            None => Ok(x),
        }
    }
}
