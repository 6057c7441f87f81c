//! ONNX: what a model does in evaluation, written node by node.
//!
//! Candle's tensors do not tell what they were made of, so a layer says in its own file, beside its
//! `forward`, how it is written here. Initializers have the names, shapes and values of the state
//! dict. In a [`Value`] channels come last, as in `forward`; where an operator of ONNX wants them
//! first, the graph turns them and remembers it, so that convolutions in a row need no transposes.

mod attention;
mod elementwise;
mod graph;
mod proto;
mod shape;
mod spatial;
mod value;

pub use graph::{Graph, OPSET};
pub use proto::{
    AttributeProto, DimensionProto, DimensionValue, GraphProto, ModelProto, NodeProto,
    OperatorSetIdProto, TensorProto, TensorShapeProto, TensorTypeProto, TypeProto, ValueInfoProto,
};
pub use spatial::Sliding;
pub use value::{Attribute, Dim, Value};
