//! Multilayer perceptron: linear layers with rectifiers and dropout between them.
//!
//! Keys: `layers.{i}.weight`, `layers.{i}.bias`, as an `nn.ModuleList` of `nn.Linear` has them.

use candle_core::{Result, Tensor};

use super::Model;
use crate::nn::{Builder, Dropout, ForwardContext, Linear};
use crate::ops::{self, LinearActivation};
use crate::plan::ModelPlan;

/// Widths: the sample's elements, `plan.hidden`, `plan.outputs`, or all elements of a target that is a table.
pub(super) fn build(plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>> {
    let table = plan.target.len() == 2;
    let outputs = if table { plan.target.iter().product() } else { plan.outputs };
    let widths: Vec<usize> = std::iter::once(plan.input.iter().product())
        .chain(plan.hidden.iter().copied())
        .chain(std::iter::once(outputs))
        .collect();
    let layers = builder.pp("layers");
    let layers = widths
        .windows(2)
        .enumerate()
        .map(|(i, width)| {
            let builder = layers.pp(i);
            let dropout = Dropout::new(&builder, plan.dropout);
            Ok((Linear::new(&builder, width[0], width[1])?, dropout))
        })
        .collect::<Result<_>>()?;
    Ok(Box::new(Mlp { layers, table: table.then(|| plan.target.clone()) }))
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
