//! Table of vectors, one per index.

use candle_core::{Result, Tensor};

use super::{Builder, Init, Param};
use crate::onnx::{Graph, Value};
use crate::ops;

/// `torch.nn.Embedding`: `weight` (rows, c), drawn from N(0, 1) unless told otherwise.
pub struct Embedding {
    weight: Param,
}

impl Embedding {
    /// Registers `weight`.
    pub fn new(builder: &Builder, rows: usize, c: usize) -> Result<Self> {
        Self::with_init(builder, rows, c, Init::Normal(1.0))
    }

    /// Registers `weight` with these initial values.
    pub fn with_init(builder: &Builder, rows: usize, c: usize, init: Init) -> Result<Self> {
        builder.is_embedding("weight");
        Ok(Self { weight: builder.matrix("weight", [rows, c], init)? })
    }

    /// The table itself, for an output layer that shares it.
    pub fn weight(&self) -> &Param {
        &self.weight
    }

    /// Indices of any shape, u32 or i64 -> (..., c).
    pub fn forward(&self, indices: &Tensor) -> Result<Tensor> {
        ops::embedding(indices, &self.weight.weight()?)
    }

    /// Adds [`Embedding::forward`] to a graph of ONNX.
    pub fn onnx(&self, graph: &mut Graph, indices: &Value) -> Result<Value> {
        let table = self.weight.onnx(graph)?;
        Ok(graph.rows(&table, indices))
    }
}
