//! Operators that take numbers one by one, along the features, or as matrices.

use super::graph::Graph;
use super::value::{Attribute, Layout, Value};

impl Graph {
    /// An operator of one operand that keeps its shape, number by number: `Relu`, `Tanh` ...
    pub fn unary(&mut self, op: &str, x: &Value, attributes: &[Attribute]) -> Value {
        let name = self.push(op, &[&x.name], attributes);
        Value { name, ..x.clone() }
    }

    /// a + b, each stretched along axes of length 1.
    pub fn add(&mut self, a: &Value, b: &Value) -> Value {
        self.binary("Add", a, b)
    }

    /// a - b
    pub fn sub(&mut self, a: &Value, b: &Value) -> Value {
        self.binary("Sub", a, b)
    }

    /// a b
    pub fn mul(&mut self, a: &Value, b: &Value) -> Value {
        self.binary("Mul", a, b)
    }

    /// a / b
    pub fn div(&mut self, a: &Value, b: &Value) -> Value {
        self.binary("Div", a, b)
    }

    /// x times a number.
    pub fn scaled(&mut self, x: &Value, factor: f64) -> Value {
        let factor = self.scalar(factor);
        self.mul(x, &factor)
    }

    /// An operator of two operands, number by number, with ONNX's rules for shapes that differ.
    pub fn binary(&mut self, op: &str, a: &Value, b: &Value) -> Value {
        let (a, b) = match (a.rank(), b.rank()) {
            (0, _) | (_, 0) => (a.clone(), b.clone()),
            (n, m) if n == m && a.layout == Layout::First => (a.clone(), self.first(b)),
            (n, m) if n == m && b.layout == Layout::First => (self.first(a), b.clone()),
            _ => (self.last(a), self.last(b)),
        };
        let name = self.push(op, &[&a.name, &b.name], &[]);
        let layout = if a.rank() >= b.rank() { a.layout } else { b.layout };
        Value { name, dims: stretched(&a.dims, &b.dims), layout }
    }

    /// x + v or x v for a number of each feature or channel, (c).
    pub fn per_channel(&mut self, op: &str, x: &Value, v: &Value) -> Value {
        if x.layout == Layout::Last {
            return self.binary(op, x, v);
        }
        let axes: Vec<i64> = (1..x.rank() as i64 - 1).collect();
        let axes = self.integers(&axes);
        let v = self.push("Unsqueeze", &[&v.name, &axes.name], &[]);
        let name = self.push(op, &[&x.name, &v], &[]);
        Value { name, ..x.clone() }
    }

    /// Each channel of x (n, ..., c) times its gate, (n, c) or (n, 1, ..., c).
    pub fn gated(&mut self, x: &Value, gate: &Value) -> Value {
        let gate = match gate.rank() {
            2 => self.unsqueezed(gate, &(1..x.rank() - 1).collect::<Vec<_>>()),
            _ => gate.clone(),
        };
        self.mul(x, &gate)
    }

    /// The product of matrices, (..., n, k) and (..., k, m).
    pub fn matmul(&mut self, a: &Value, b: &Value) -> Value {
        let columns = b.dims.last().copied().flatten();
        let larger = if a.rank() >= b.rank() { a } else { b };
        let mut dims = larger.dims.clone();
        let rank = dims.len();
        (dims[rank - 2], dims[rank - 1]) = (a.dims[a.rank() - 2], columns);
        self.node("MatMul", &[a, b], &[], &dims)
    }

    /// x (..., in) times a weight (out, in), plus a bias (out) -> (..., out).
    pub fn linear(&mut self, x: &Value, weight: &Value, bias: Option<&Value>) -> Value {
        let mut dims = x.dims.clone();
        if let (Some(last), Some(&outputs)) = (dims.last_mut(), weight.dims.first()) {
            *last = outputs;
        }
        if x.rank() == 2 {
            let operands: Vec<&Value> = [x, weight].into_iter().chain(bias).collect();
            return self.node("Gemm", &operands, &[Attribute::Int("transB", 1)], &dims);
        }
        let weight = self.transposed(weight, &[1, 0]);
        let y = self.node("MatMul", &[x, &weight], &[], &dims);
        bias.map_or(y.clone(), |bias| self.add(&y, bias))
    }

    /// e^x / sum(e^x) over the last axis.
    pub fn softmax(&mut self, x: &Value) -> Value {
        let dims = x.dims.clone();
        self.node("Softmax", &[x], &[Attribute::Int("axis", -1)], &dims)
    }

    /// `torch.nn.LayerNorm` over the last axis.
    pub fn layer_norm(
        &mut self,
        x: &Value,
        scale: &Value,
        bias: Option<&Value>,
        eps: f64,
    ) -> Value {
        let operands: Vec<&Value> = [x, scale].into_iter().chain(bias).collect();
        let attributes = [Attribute::Int("axis", -1), Attribute::Float("epsilon", eps)];
        let dims = x.dims.clone();
        self.node("LayerNormalization", &operands, &attributes, &dims)
    }

    /// `torch.nn.RMSNorm` over the last axis.
    pub fn rms_norm(&mut self, x: &Value, scale: &Value, eps: f64) -> Value {
        let x = &self.last(x);
        let squares = self.mul(x, x);
        let mean = self.reduced("ReduceMean", &squares, &[x.rank() - 1]);
        let eps = self.scalar(eps);
        let mean = self.add(&mean, &eps);
        let root = self.unary("Sqrt", &mean, &[]);
        let y = self.div(x, &root);
        self.mul(&y, scale)
    }

    /// A row of `table` (rows, ...) for each of `indices`.
    pub fn rows(&mut self, table: &Value, indices: &Value) -> Value {
        let dims = [&indices.dims, &table.dims[1..]].concat();
        self.node("Gather", &[table, indices], &[Attribute::Int("axis", 0)], &dims)
    }

    /// `ReduceMean`, `ReduceSum` ... over `axes`, which keep the length 1.
    pub fn reduced(&mut self, op: &str, x: &Value, axes: &[usize]) -> Value {
        let first = x.layout == Layout::First;
        let rank = x.rank();
        let place = |&axis: &usize| match axis {
            0 => 0,
            axis if !first => axis as i64,
            axis if axis + 1 == rank => 1,
            axis => axis as i64 + 1,
        };
        let places: Vec<i64> = axes.iter().map(place).collect();
        let places = self.integers(&places);
        let name = self.push(op, &[&x.name, &places.name], &[Attribute::Int("keepdims", 1)]);
        let mut dims = x.dims.clone();
        for &axis in axes {
            dims[axis] = Some(1);
        }
        Value { name, dims, layout: x.layout }
    }
}

/// The shape of two operands together.
fn stretched(a: &[Option<usize>], b: &[Option<usize>]) -> Vec<Option<usize>> {
    let rank = a.len().max(b.len());
    let at = |dims: &[Option<usize>], i: usize| {
        (i + dims.len()).checked_sub(rank).map_or(Some(1), |i| dims[i])
    };
    let both = |i| match (at(a, i), at(b, i)) {
        (Some(1), other) => other,
        (one, _) => one,
    };
    (0..rank).map(both).collect()
}
