//! Recurrent layers over sequences.

use candle_core::{D, Result, Tensor};

use super::{Builder, Dropout, ForwardContext, Init, Param};
use crate::onnx::{Attribute, Graph, Value};
use crate::ops::{self, Cell};

/// Sizes of a [`Recurrent`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecurrentShape {
    /// Kind of a step.
    pub cell: Cell,
    /// Features of the input.
    pub inputs: usize,
    /// Features of a state.
    pub hidden: usize,
    /// Layers, each of which reads the states of the one before.
    pub layers: usize,
    /// True if each layer reads from the end as well.
    pub bidirectional: bool,
    /// Dropout between layers.
    pub dropout: f64,
}

impl RecurrentShape {
    /// Features of the output.
    pub fn outputs(&self) -> usize {
        self.hidden * self.directions()
    }

    /// Elements of all parameters.
    pub fn elem_count(&self) -> usize {
        let layer = |i: usize| {
            let inputs = if i == 0 { self.inputs } else { self.outputs() };
            self.cell.gates() * self.hidden * (inputs + self.hidden + 2)
        };
        (0..self.layers).map(layer).sum::<usize>() * self.directions()
    }

    /// Operations of the forward pass over so many steps: two for each multiplication.
    pub fn flops(&self, steps: usize) -> u64 {
        let width = self.cell.gates() * self.outputs();
        let inputs = self.inputs + (self.layers - 1) * self.outputs();
        2 * (steps * width * (inputs + self.layers * self.hidden)) as u64
    }

    fn directions(&self) -> usize {
        1 + usize::from(self.bidirectional)
    }
}

/// `torch.nn.LSTM`, `GRU` or `RNN` with `batch_first=True`, from a state of zeros: `weight_ih_l0`,
/// `weight_hh_l0`, `bias_ih_l0`, `bias_hh_l0` and so on, all U(+-1/sqrt(hidden)). The CPU computes
/// it.
pub struct Recurrent {
    layers: Vec<Vec<Direction>>,
    cell: Cell,
    dropouts: Vec<Dropout>,
}

impl Recurrent {
    /// Registers the parameters of all layers.
    pub fn new(builder: &Builder, shape: RecurrentShape) -> Result<Self> {
        Self::drawing(builder, builder, shape)
    }

    /// [`Recurrent::new`] whose random numbers are called by the path of `draws`.
    pub fn drawing(builder: &Builder, draws: &Builder, shape: RecurrentShape) -> Result<Self> {
        builder.computes_on_cpu();
        let layer = |i: usize| {
            let inputs = if i == 0 { shape.inputs } else { shape.outputs() };
            let direction = |reverse| Direction::new(builder, i, inputs, reverse, shape);
            let directions = [false, true].into_iter().take(shape.directions());
            directions.map(direction).collect::<Result<Vec<_>>>()
        };
        Ok(Self {
            layers: (0..shape.layers).map(layer).collect::<Result<_>>()?,
            cell: shape.cell,
            dropouts: (1..shape.layers)
                .map(|i| Dropout::new(&draws.pp(format!("dropout_l{i}")), shape.dropout))
                .collect(),
        })
    }

    /// x (n, t, in) -> the states of the last layer (n, t, hidden), of both directions side by
    /// side.
    pub fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let mut x = x.clone();
        for (i, directions) in self.layers.iter().enumerate() {
            if i > 0 {
                x = self.dropouts[i - 1].forward(&x, pass)?;
            }
            let outputs = directions.iter().map(|direction| direction.forward(&x, self.cell, pass));
            let outputs = outputs.collect::<Result<Vec<_>>>()?;
            x = match &outputs[..] {
                [one] => one.clone(),
                both => Tensor::cat(both, D::Minus1)?,
            };
        }
        Ok(x)
    }

    /// True if it reads from both ends; Candle then concatenates the outputs of both directions.
    pub fn is_bidirectional(&self) -> bool {
        self.layers.iter().any(|directions| directions.len() > 1)
    }

    /// Adds [`Recurrent::forward`] to a graph of ONNX.
    pub fn onnx(&self, graph: &mut Graph, x: &Value) -> Result<Value> {
        // ONNX has the steps first, and both directions in one node.
        let mut x = graph.transposed(x, &[1, 0, 2]);
        for directions in &self.layers {
            x = layer_onnx(graph, &x, directions, self.cell)?;
        }
        Ok(graph.transposed(&x, &[1, 0, 2]))
    }
}

/// x (t, n, in) -> (t, n, directions h)
fn layer_onnx(graph: &mut Graph, x: &Value, directions: &[Direction], cell: Cell) -> Result<Value> {
    let hidden = directions[0].weight_hh.shape()[1];
    let mut operands: [Vec<Value>; 3] = Default::default();
    for direction in directions {
        let numbers = direction.onnx(graph, cell, hidden)?;
        operands.iter_mut().zip(numbers).for_each(|(all, value)| all.push(value));
    }
    let [w, r, b] =
        operands.map(|values| graph.concatenated(&values.iter().collect::<Vec<_>>(), 0));
    let mut attributes = vec![Attribute::Int("hidden_size", hidden as i64)];
    if directions.len() == 2 {
        attributes.push(Attribute::Text("direction", "bidirectional"));
    }
    let op = match cell {
        Cell::Lstm => "LSTM",
        Cell::Gru => {
            attributes.push(Attribute::Int("linear_before_reset", 1));
            "GRU"
        }
        Cell::Tanh => "RNN",
        Cell::Relu => {
            attributes.push(Attribute::Texts("activations", vec!["Relu"; directions.len()]));
            "RNN"
        }
    };
    let dims = [x.dims()[0], Some(directions.len()), x.dims()[1], Some(hidden)];
    let y = graph.node(op, &[x, &w, &r, &b], &attributes, &dims);
    let y = graph.transposed(&y, &[0, 2, 1, 3]);
    Ok(graph.reshaped(&y, &[0, 0, (directions.len() * hidden) as i64]))
}

/// Position in PyTorch's weights of each gate, in ONNX's order.
fn gate_order(cell: Cell) -> &'static [usize] {
    match cell {
        // Input, output, forget, cell.
        Cell::Lstm => &[0, 3, 1, 2],
        // Update, reset, new.
        Cell::Gru => &[1, 0, 2],
        Cell::Tanh | Cell::Relu => &[0],
    }
}

/// A layer in one direction.
struct Direction {
    weight_ih: Param,
    weight_hh: Param,
    bias_ih: Param,
    bias_hh: Param,
    reverse: bool,
}

impl Direction {
    fn new(
        builder: &Builder,
        layer: usize,
        inputs: usize,
        reverse: bool,
        shape: RecurrentShape,
    ) -> Result<Self> {
        let width = shape.cell.gates() * shape.hidden;
        let init = Init::torch_default(shape.hidden);
        let suffix = if reverse { "_reverse" } else { "" };
        let param = |name: &str, dims: &[usize]| {
            builder.param(&format!("{name}_l{layer}{suffix}"), dims, init)
        };
        Ok(Self {
            weight_ih: param("weight_ih", &[width, inputs])?,
            weight_hh: param("weight_hh", &[width, shape.hidden])?,
            bias_ih: param("bias_ih", &[width])?,
            bias_hh: param("bias_hh", &[width])?,
            reverse,
        })
    }

    fn forward(&self, x: &Tensor, cell: Cell, pass: &ForwardContext) -> Result<Tensor> {
        let weight = self.weight_ih.weight()?;
        let bias = self.bias_ih.weight()?;
        let gates = ops::linear(x, &weight, Some(&bias), pass.precision)?;
        let weight = self.weight_hh.weight()?;
        let bias = self.bias_hh.weight()?;
        ops::recurrent(&gates, &weight, Some(&bias), cell, self.reverse)
    }

    /// W (1, gates h, in), R (1, gates h, h) and B (1, 2 gates h) of ONNX.
    fn onnx(&self, graph: &mut Graph, cell: Cell, hidden: usize) -> Result<[Value; 3]> {
        let rows = gate_order(cell).iter().flat_map(|gate| gate * hidden..(gate + 1) * hidden);
        let rows: Vec<i64> = rows.map(|row| row as i64).collect();
        let rows = graph.integers(&rows);
        let ordered = |graph: &mut Graph, param: &Param| -> Result<Value> {
            let value = param.onnx(graph)?;
            Ok(if cell.gates() == 1 { value } else { graph.rows(&value, &rows) })
        };
        let w = ordered(graph, &self.weight_ih)?;
        let r = ordered(graph, &self.weight_hh)?;
        let biases = [ordered(graph, &self.bias_ih)?, ordered(graph, &self.bias_hh)?];
        let b = graph.concatenated(&[&biases[0], &biases[1]], 0);
        Ok([w, r, b].map(|value| graph.unsqueezed(&value, &[0])))
    }
}
