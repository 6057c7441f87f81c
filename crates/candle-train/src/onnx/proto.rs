//! The part of `onnx.proto` that a graph needs, as protobuf messages: field numbers are its.

use candle_core::{Error, Result};
use prost::{Message, Oneof};

/// `TensorProto.DataType`
pub(super) const FLOAT: i32 = 1;
/// `TensorProto.DataType`
pub(super) const INT64: i32 = 7;

/// A whole file.
#[derive(Clone, PartialEq, Message)]
pub struct ModelProto {
    /// Version of the format.
    #[prost(int64, tag = "1")]
    pub ir_version: i64,
    /// Program that wrote it.
    #[prost(string, tag = "2")]
    pub producer_name: String,
    /// Version of that program.
    #[prost(string, tag = "3")]
    pub producer_version: String,
    /// Nodes and values.
    #[prost(message, optional, tag = "7")]
    pub graph: Option<GraphProto>,
    /// Sets of operators.
    #[prost(message, repeated, tag = "8")]
    pub opset_import: Vec<OperatorSetIdProto>,
}

impl ModelProto {
    /// The file of these bytes.
    pub fn read(bytes: &[u8]) -> Result<Self> {
        Self::decode(bytes).map_err(Error::wrap)
    }
}

/// A set of operators.
#[derive(Clone, PartialEq, Message)]
pub struct OperatorSetIdProto {
    /// Empty = those of ONNX.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// Version of the set.
    #[prost(int64, tag = "2")]
    pub version: i64,
}

/// Nodes, in an order in which they can run.
#[derive(Clone, PartialEq, Message)]
pub struct GraphProto {
    /// The nodes.
    #[prost(message, repeated, tag = "1")]
    pub node: Vec<NodeProto>,
    /// The model's name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Weights and constants.
    #[prost(message, repeated, tag = "5")]
    pub initializer: Vec<TensorProto>,
    /// Operands that the caller gives.
    #[prost(message, repeated, tag = "11")]
    pub input: Vec<ValueInfoProto>,
    /// Results that the caller gets.
    #[prost(message, repeated, tag = "12")]
    pub output: Vec<ValueInfoProto>,
}

/// An operator with its operands.
#[derive(Clone, PartialEq, Message)]
pub struct NodeProto {
    /// Names of values; an empty one stands for an operand that is left out.
    #[prost(string, repeated, tag = "1")]
    pub input: Vec<String>,
    /// Names of values.
    #[prost(string, repeated, tag = "2")]
    pub output: Vec<String>,
    /// Name of the node.
    #[prost(string, tag = "3")]
    pub name: String,
    /// The operator.
    #[prost(string, tag = "4")]
    pub op_type: String,
    /// Attributes.
    #[prost(message, repeated, tag = "5")]
    pub attribute: Vec<AttributeProto>,
}

/// A number or a word that an operator is given besides its operands.
#[derive(Clone, PartialEq, Message)]
pub struct AttributeProto {
    /// Name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// One number.
    #[prost(float, optional, tag = "2")]
    pub f: Option<f32>,
    /// One whole number.
    #[prost(int64, optional, tag = "3")]
    pub i: Option<i64>,
    /// A word.
    #[prost(bytes = "vec", optional, tag = "4")]
    pub s: Option<Vec<u8>>,
    /// A constant.
    #[prost(message, optional, tag = "5")]
    pub t: Option<TensorProto>,
    /// Several whole numbers.
    #[prost(int64, repeated, packed = "false", tag = "8")]
    pub ints: Vec<i64>,
    /// Several words.
    #[prost(bytes = "vec", repeated, tag = "9")]
    pub strings: Vec<Vec<u8>>,
    /// `AttributeProto.AttributeType`: the field that is set.
    #[prost(int32, tag = "20")]
    pub kind: i32,
}

/// A constant.
#[derive(Clone, PartialEq, Message)]
pub struct TensorProto {
    /// Shape.
    #[prost(int64, repeated, packed = "false", tag = "1")]
    pub dims: Vec<i64>,
    /// Type of the numbers.
    #[prost(int32, tag = "2")]
    pub data_type: i32,
    /// Name.
    #[prost(string, tag = "8")]
    pub name: String,
    /// Numbers, little-endian.
    #[prost(bytes = "vec", tag = "9")]
    pub raw_data: Vec<u8>,
}

/// Name and type of a value.
#[derive(Clone, PartialEq, Message)]
pub struct ValueInfoProto {
    /// The name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The type.
    #[prost(message, optional, tag = "2")]
    pub r#type: Option<TypeProto>,
}

/// A type; here always that of a tensor.
#[derive(Clone, PartialEq, Message)]
pub struct TypeProto {
    /// A tensor.
    #[prost(message, optional, tag = "1")]
    pub tensor_type: Option<TensorTypeProto>,
}

/// Type and shape of a tensor.
#[derive(Clone, PartialEq, Message)]
pub struct TensorTypeProto {
    /// Type of the numbers.
    #[prost(int32, tag = "1")]
    pub elem_type: i32,
    /// Shape.
    #[prost(message, optional, tag = "2")]
    pub shape: Option<TensorShapeProto>,
}

/// A shape.
#[derive(Clone, PartialEq, Message)]
pub struct TensorShapeProto {
    /// One for each axis.
    #[prost(message, repeated, tag = "1")]
    pub dim: Vec<DimensionProto>,
}

/// Length of an axis.
#[derive(Clone, PartialEq, Message)]
pub struct DimensionProto {
    /// A number or a name.
    #[prost(oneof = "DimensionValue", tags = "1, 2")]
    pub value: Option<DimensionValue>,
}

/// Length of an axis.
#[derive(Clone, PartialEq, Oneof)]
pub enum DimensionValue {
    /// A fixed length.
    #[prost(int64, tag = "1")]
    Size(i64),
    /// A length that is the same wherever this name stands.
    #[prost(string, tag = "2")]
    Name(String),
}
