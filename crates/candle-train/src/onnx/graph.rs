//! The graph that is being written: nodes, initializers, inputs, and where channels are.

use std::collections::{BTreeMap, BTreeSet};

use candle_core::{DType, Result, Tensor, bail};
use prost::Message;

use super::proto::{
    DimensionProto, DimensionValue, FLOAT, GraphProto, INT64, ModelProto, NodeProto,
    OperatorSetIdProto, TensorProto, TensorShapeProto, TensorTypeProto, TypeProto, ValueInfoProto,
};
use super::value::{Attribute, Dim, Layout, Value};

/// Version of ONNX's operators.
pub const OPSET: i64 = 20;
/// Version of the file's form in which that came.
const IR_VERSION: i64 = 9;
/// Bytes of the largest protobuf message.
const MAX_BYTES: usize = i32::MAX as usize;

/// A graph that is being written.
#[derive(Debug, Default)]
pub struct Graph {
    nodes: Vec<NodeProto>,
    initializers: Vec<TensorProto>,
    inputs: Vec<ValueInfoProto>,
    /// Names of initializers.
    held: BTreeSet<String>,
    /// Values and the same with their channels elsewhere.
    turned: BTreeMap<(String, Layout), Value>,
    longest: usize,
    /// Length of each sample, (n, 1).
    lengths: Option<Value>,
    /// The first that could not be written.
    unsupported: Option<String>,
}

impl Graph {
    /// A graph without nodes, for sequences of up to so many steps.
    pub fn new(longest: usize) -> Self {
        Self { longest, ..Self::default() }
    }

    /// Steps of the longest sequence that it takes.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// Says how many steps of each sample are its own, (n, 1), where the others are padding.
    pub fn measure(&mut self, lengths: Value) {
        self.lengths = Some(lengths);
    }

    /// Lengths of the samples, (n, 1), in steps of `stride` of the input's steps each; none where samples
    /// are not padded.
    pub fn lengths(&mut self, stride: usize) -> Option<Value> {
        let lengths = self.lengths.clone()?;
        let stride = self.scalar(stride.max(1) as f64);
        let lengths = self.div(&lengths, &stride);
        let lengths = self.unary("Ceil", &lengths, &[]);
        let one = self.scalar(1.0);
        Some(self.binary("Max", &lengths, &one))
    }

    /// Notes that this part could not be written, unless a part of it was blamed before.
    pub fn mark_unsupported(&mut self, what: &str, name: &str) {
        self.unsupported.get_or_insert_with(|| format!("{what} {name}"));
    }

    /// The part that could not be written.
    pub fn unsupported(&self) -> Option<&str> {
        self.unsupported.as_deref()
    }

    /// A value that the caller gives, f32.
    pub fn input(&mut self, name: &str, dims: &[Dim]) -> Value {
        self.given(name, dims, FLOAT)
    }

    /// A value that the caller gives, whole numbers (i64).
    pub fn indices(&mut self, name: &str, dims: &[Dim]) -> Value {
        self.given(name, dims, INT64)
    }

    fn given(&mut self, name: &str, dims: &[Dim], elem_type: i32) -> Value {
        let written = dims.iter().map(|&dim| match dim {
            Dim::Named(name) => DimensionValue::Name(name.to_owned()),
            Dim::Size(size) => DimensionValue::Size(size as i64),
        });
        self.inputs.push(info(name, elem_type, written));
        let known = dims.iter().map(|&dim| match dim {
            Dim::Named(_) => None,
            Dim::Size(size) => Some(size),
        });
        Value { name: name.to_owned(), dims: known.collect(), layout: Layout::Last }
    }

    /// A weight under its name in the state dict; the same value however often it is asked for.
    pub fn initializer(&mut self, name: &str, tensor: &Tensor) -> Result<Value> {
        let dims = tensor.dims().to_vec();
        if !self.held.contains(name) {
            let values = tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
            self.hold(name, &dims, FLOAT, bytemuck::cast_slice(&values).to_vec());
        }
        Ok(constant(name.to_owned(), &dims))
    }

    /// A constant of this shape.
    pub fn floats(&mut self, dims: &[usize], values: &[f32]) -> Value {
        let name = format!("constant_{}", self.initializers.len());
        self.hold(&name, dims, FLOAT, bytemuck::cast_slice(values).to_vec());
        constant(name, dims)
    }

    /// A number.
    pub fn scalar(&mut self, value: f64) -> Value {
        self.floats(&[], &[value as f32])
    }

    /// A constant vector of whole numbers.
    pub fn integers(&mut self, values: &[i64]) -> Value {
        self.integers_of(&[values.len()], values)
    }

    /// A whole number.
    pub(super) fn integer(&mut self, value: i64) -> Value {
        self.integers_of(&[], &[value])
    }

    fn integers_of(&mut self, dims: &[usize], values: &[i64]) -> Value {
        let name = format!("constant_{}", self.initializers.len());
        self.hold(&name, dims, INT64, bytemuck::cast_slice(values).to_vec());
        constant(name, dims)
    }

    fn hold(&mut self, name: &str, dims: &[usize], data_type: i32, raw_data: Vec<u8>) {
        let dims = dims.iter().map(|&dim| dim as i64).collect();
        self.held.insert(name.to_owned());
        self.initializers.push(TensorProto { dims, data_type, name: name.to_owned(), raw_data });
    }

    /// A node of the operator `op`, whose operands have their channels last, and whose output has
    /// the shape `dims`.
    pub fn node(
        &mut self,
        op: &str,
        operands: &[&Value],
        attributes: &[Attribute],
        dims: &[Option<usize>],
    ) -> Value {
        let operands: Vec<Value> = operands.iter().map(|&operand| self.last(operand)).collect();
        let names: Vec<&str> = operands.iter().map(|operand| operand.name.as_str()).collect();
        let name = self.push(op, &names, attributes);
        Value { name, dims: dims.to_vec(), layout: Layout::Last }
    }

    /// The output's name of a node with these operands.
    pub(super) fn push(&mut self, op: &str, operands: &[&str], attributes: &[Attribute]) -> String {
        let name = format!("{}_{}", op.to_lowercase(), self.nodes.len());
        self.nodes.push(NodeProto {
            input: operands.iter().map(|&name| name.to_owned()).collect(),
            output: vec![name.clone()],
            name: name.clone(),
            op_type: op.to_owned(),
            attribute: attributes.iter().map(Attribute::proto).collect(),
        });
        name
    }

    /// The value with its channels last in the file, too.
    pub(super) fn last(&mut self, x: &Value) -> Value {
        let rank = x.rank() as i64;
        let order = [0].into_iter().chain(2..rank).chain([1]);
        self.laid_out(x, Layout::Last, order)
    }

    /// The value with its channels in the second place in the file.
    pub(super) fn first(&mut self, x: &Value) -> Value {
        let rank = x.rank() as i64;
        let order = [0, rank - 1].into_iter().chain(1..rank - 1);
        self.laid_out(x, Layout::First, order)
    }

    fn laid_out(&mut self, x: &Value, layout: Layout, order: impl Iterator<Item = i64>) -> Value {
        if x.rank() < 3 || x.layout == layout {
            return x.clone();
        }
        let key = |x: &Value| (x.name.clone(), x.layout);
        if let Some(found) = self.turned.get(&key(x)) {
            return found.clone();
        }
        let name = self.push("Transpose", &[&x.name], &[Attribute::Ints("perm", order.collect())]);
        let y = Value { name, dims: x.dims.clone(), layout };
        self.turned.insert(key(x), y.clone());
        self.turned.insert(key(&y), x.clone());
        y
    }

    /// Images (n, channels, height, width) as layers take them: (n, height, width, channels).
    pub fn images(&mut self, x: &Value) -> Value {
        let Value { name, dims, .. } = self.last(x);
        let dims = vec![dims[0], dims[2], dims[3], dims[1]];
        Value { name, dims, layout: Layout::First }
    }

    /// Channels first, which [`Graph::images`] undoes: (n, height, width, channels) -> (n, channels, height,
    /// width).
    pub fn planes(&mut self, x: &Value) -> Value {
        let Value { name, dims, .. } = self.first(x);
        let dims = vec![dims[0], dims[3], dims[1], dims[2]];
        Value { name, dims, layout: Layout::Last }
    }

    /// The bytes of a file of this graph, called `name`, that gives `output`; an axis whose length
    /// is not known is called as in `names`, in this order.
    pub fn finish(mut self, name: &str, output: &Value, names: &[&str]) -> Result<Vec<u8>> {
        let output = self.last(output);
        self.push_output(&output.name);
        let mut names = names.iter();
        let dims = output.dims.iter().map(|dim| match dim {
            Some(size) => DimensionValue::Size(*size as i64),
            None => DimensionValue::Name((*names.next().unwrap_or(&"unknown")).to_owned()),
        });
        let output = info("output", FLOAT, dims);
        let graph = GraphProto {
            node: self.nodes,
            name: name.to_owned(),
            initializer: self.initializers,
            input: self.inputs,
            output: vec![output],
        };
        let model = ModelProto {
            ir_version: IR_VERSION,
            producer_name: "ddprun".to_owned(),
            producer_version: env!("CARGO_PKG_VERSION").to_owned(),
            graph: Some(graph),
            opset_import: vec![OperatorSetIdProto { domain: String::new(), version: OPSET }],
        };
        match model.encoded_len() {
            bytes if bytes > MAX_BYTES => {
                let gib = bytes as f64 / f64::from(1 << 30);
                bail!("it takes {gib:.1} GiB, and an ONNX file holds at most 2 GiB")
            }
            _ => Ok(model.encode_to_vec()),
        }
    }

    /// A node that gives the value `name` to the caller.
    fn push_output(&mut self, name: &str) {
        self.nodes.push(NodeProto {
            input: vec![name.to_owned()],
            output: vec!["output".to_owned()],
            name: "output".to_owned(),
            op_type: "Identity".to_owned(),
            attribute: Vec::new(),
        });
    }
}

fn constant(name: String, dims: &[usize]) -> Value {
    Value { name, dims: dims.iter().map(|&dim| Some(dim)).collect(), layout: Layout::Last }
}

fn info(name: &str, elem_type: i32, dims: impl Iterator<Item = DimensionValue>) -> ValueInfoProto {
    let dim = dims.map(|value| DimensionProto { value: Some(value) }).collect();
    let tensor = TensorTypeProto { elem_type, shape: Some(TensorShapeProto { dim }) };
    let r#type = Some(TypeProto { tensor_type: Some(tensor) });
    ValueInfoProto { name: name.to_owned(), r#type }
}
