//! Multilayer perceptron: linear layers with ReLU and dropout between them.
//!
//! Keys: `layers.{i}.weight`, `layers.{i}.bias`, as an `nn.ModuleList` of `nn.Linear` has them;
//! `embeddings.{i}.weight`, as one of `nn.Embedding`, for each column of categories.

use candle_core::{D, Result, Tensor, bail};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Architecture, Head, Model};
use crate::config::kind::{Kind, OptionConflict};
use crate::config::values::Auto;
use crate::nn::{Builder, Dropout, Embedding, ForwardContext, Linear};
use crate::onnx::{Attribute, Graph, Value};
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
    /// size of a learned embedding for each categorical column, instead of one-hot inputs; "auto"
    /// takes min(600, 1.6 n^0.56) for n categories, as fastai does. The embedding of a category
    /// that does not occur in the training rows is zero.
    #[schemars(example = 8)]
    pub embedding_dim: Option<Auto<u32>>,
}

impl Default for MlpConfig {
    fn default() -> Self {
        Self { hidden: vec![256], dropout: 0.0, embedding_dim: None }
    }
}

impl Kind for MlpConfig {
    const NAME: &'static str = "mlp";

    fn check(&self) -> Vec<OptionConflict> {
        let is_wrong = matches!(self.embedding_dim, Some(Auto::Given(0 | 65_537..)));
        let what = "must be \"auto\" or from 1 to 65536".to_owned();
        let wrong = OptionConflict { key: "embedding_dim", with: &[], what };
        is_wrong.then_some(wrong).into_iter().collect()
    }
}

impl MlpConfig {
    /// The embeddings, and the number of inputs of the first layer.
    fn embeddings(&self, plan: &ModelPlan, builder: &Builder) -> Result<(Vec<Table>, usize)> {
        let inputs: usize = plan.input.iter().product();
        let Some(dim) = self.embedding_dim else { return Ok((Vec::new(), inputs)) };
        if plan.one_hot.is_empty() {
            bail!(
                "`embedding_dim` has nothing to embed: no column is declared in \
                 `data.features.categorical`"
            );
        }
        let width = |n: usize| match dim {
            Auto::Given(dim) => dim as usize,
            Auto::Auto => ((1.6 * (n as f64).powf(0.56)).round() as usize).min(600),
        };
        let builder = builder.pp("embeddings");
        let table = |(i, &n): (usize, &usize)| {
            let vectors = Embedding::new(&builder.pp(i), n, width(n))?;
            Ok(Table { vectors, categories: n })
        };
        let tables = plan.one_hot.iter().enumerate().map(table).collect::<Result<_>>()?;
        let embedded: usize = plan.one_hot.iter().sum();
        let vectors: usize = plan.one_hot.iter().map(|&n| width(n)).sum();
        Ok((tables, inputs - embedded + vectors))
    }
}

impl Architecture for MlpConfig {
    /// Widths: the sample's elements (and vectors of categories), `hidden`, the outputs, or all
    /// elements of a target that is a table.
    fn build(&self, plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>> {
        let table = plan.target.len() == 2;
        let outputs = if table { plan.target.iter().product() } else { plan.outputs };
        let (tables, inputs) = self.embeddings(plan, builder)?;
        let widths: Vec<usize> = std::iter::once(inputs)
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
        Ok(Box::new(Mlp { tables, layers, table: table.then(|| plan.target.clone()) }))
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

/// A vector for each category of a column.
struct Table {
    vectors: Embedding,
    categories: usize,
}

impl Table {
    /// One-hot numbers (n, categories) -> their vectors; zeros where all of them are 0.
    fn forward(&self, one_hot: &Tensor) -> Result<Tensor> {
        let known = one_hot.sum_keepdim(D::Minus1)?;
        let vectors = self.vectors.forward(&one_hot.contiguous()?.argmax(D::Minus1)?)?;
        vectors.broadcast_mul(&known)
    }

    fn onnx(&self, graph: &mut Graph, one_hot: &Value) -> Result<Value> {
        let known = graph.reduced("ReduceSum", one_hot, &[1]);
        let axis = [Attribute::Int("axis", 1), Attribute::Int("keepdims", 0)];
        let index = graph.node("ArgMax", &[one_hot], &axis, &one_hot.dims()[..1]);
        let vectors = self.vectors.onnx(graph, &index)?;
        Ok(graph.mul(&vectors, &known))
    }
}

struct Mlp {
    /// Embeddings of the one-hot numbers at the end of a sample; none if these are inputs as they
    /// are.
    tables: Vec<Table>,
    /// Each linear layer with the dropout after its activation; the last one's is not used.
    layers: Vec<(Linear, Dropout)>,
    /// Shape of a target with more than one axis.
    table: Option<Vec<usize>>,
}

impl Mlp {
    /// Samples (n, numbers) with vectors of categories in the place of one-hot numbers.
    fn embedded(&self, samples: Tensor) -> Result<Tensor> {
        if self.tables.is_empty() {
            return Ok(samples);
        }
        let embedded: usize = self.tables.iter().map(|table| table.categories).sum();
        let mut start = samples.dim(1)? - embedded;
        let mut parts = Vec::with_capacity(1 + self.tables.len());
        if start > 0 {
            parts.push(samples.narrow(1, 0, start)?);
        }
        for table in &self.tables {
            parts.push(table.forward(&samples.narrow(1, start, table.categories)?)?);
            start += table.categories;
        }
        Tensor::cat(&parts, 1)
    }

    /// [`Mlp::embedded`] in a graph of ONNX.
    fn embedded_onnx(&self, graph: &mut Graph, samples: Value) -> Result<Value> {
        if self.tables.is_empty() {
            return Ok(samples);
        }
        let embedded: usize = self.tables.iter().map(|table| table.categories).sum();
        let mut start = samples.features() - embedded;
        let mut parts = Vec::with_capacity(1 + self.tables.len());
        if start > 0 {
            parts.push(graph.narrowed(&samples, 1, 0, start));
        }
        for table in &self.tables {
            let one_hot = graph.narrowed(&samples, 1, start, table.categories);
            parts.push(table.onnx(graph, &one_hot)?);
            start += table.categories;
        }
        Ok(graph.concatenated(&parts.iter().collect::<Vec<_>>(), 1))
    }
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
        let x = ops::chain(&self.embedded(input.flatten_from(1)?)?, |x| {
            self.layers.iter().enumerate().try_fold(x.clone(), layer)
        })?;
        match &self.table {
            Some(shape) => x.reshape([&[x.dim(0)?], &shape[..]].concat()),
            None => Ok(x),
        }
    }

    fn onnx(&self, graph: &mut Graph, input: &Value) -> Result<Value> {
        let x = graph.flattened(input, 1);
        let mut x = self.embedded_onnx(graph, x)?;
        for (i, (linear, _)) in self.layers.iter().enumerate() {
            let is_last = i + 1 == self.layers.len();
            let activation =
                if is_last { LinearActivation::Identity } else { LinearActivation::Relu };
            x = linear.onnx_activated(graph, &x, activation)?;
        }
        Ok(match &self.table {
            Some(shape) => graph.shaped(&x, shape),
            None => x,
        })
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::config::kind::Choice;
    use crate::plan::Precision;

    #[test]
    fn categories_are_embedded_and_unknown_ones_are_zeros() {
        let config = MlpConfig {
            hidden: Vec::new(),
            embedding_dim: Some(Auto::Given(2)),
            ..MlpConfig::default()
        };
        let mut plan = ModelPlan::new(Choice::of(&config), &[6], 1);
        plan.one_hot = vec![3, 2];
        let builder = Builder::new(7);
        let model = config.build(&plan, &builder).unwrap();
        let params = builder.finish();
        let row = |name: &str| {
            let all = params.parameters().iter().find(|param| param.name() == name).unwrap();
            all.tensor().unwrap().to_vec2::<f32>().unwrap()
        };
        let (first, second) = (row("embeddings.0.weight"), row("embeddings.1.weight"));
        assert_eq!([first.len(), first[0].len(), second.len()], [3, 2, 2]);
        let samples = [[0.5f32, 0.0, 1.0, 0.0, 0.0, 1.0], [0.5, 0.0, 0.0, 0.0, 1.0, 0.0]];
        let samples = Tensor::new(&samples, &Device::Cpu).unwrap();
        let found = model.forward(&samples, &ForwardContext::eval(Precision::Fp32)).unwrap();
        let weight = row("layers.0.weight")[0].clone();
        let bias = 0.0;
        let expected = |inputs: [f32; 5]| -> f32 {
            bias + inputs.iter().zip(&weight).map(|(x, w)| x * w).sum::<f32>()
        };
        let found = found.to_vec2::<f32>().unwrap();
        let known = expected([0.5, first[1][0], first[1][1], second[1][0], second[1][1]]);
        let unknown = expected([0.5, 0.0, 0.0, second[0][0], second[0][1]]);
        // Both have the same bias.
        assert!((found[0][0] - found[1][0] - (known - unknown)).abs() < 1e-6);
    }
}
