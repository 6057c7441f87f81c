//! Values of a graph, and attributes of its nodes.

use super::proto::AttributeProto;

/// A value of a graph: of a node, an input or an initializer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    pub(super) name: String,
    pub(super) dims: Vec<Option<usize>>,
    pub(super) layout: Layout,
}

/// Position of the channels of a value in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Layout {
    /// As in `dims`.
    Last,
    /// Before all other axes but the first.
    First,
}

impl Value {
    /// Shape as `forward` has it, channels last; `None` = known when it runs.
    pub fn dims(&self) -> &[Option<usize>] {
        &self.dims
    }

    /// Axes.
    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// Length of the last axis, which is always known; 0 if there is none.
    pub fn features(&self) -> usize {
        self.dims.last().copied().flatten().unwrap_or(0)
    }
}

/// Length of an axis of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dim {
    /// As the caller likes, but the same wherever this name stands.
    Named(&'static str),
    /// Always this.
    Size(usize),
}

/// A number or a word that an operator takes besides its operands.
#[derive(Clone, Debug, PartialEq)]
pub enum Attribute {
    /// A number.
    Float(&'static str, f64),
    /// A whole number.
    Int(&'static str, i64),
    /// Whole numbers.
    Ints(&'static str, Vec<i64>),
    /// A word.
    Text(&'static str, &'static str),
    /// Words.
    Texts(&'static str, Vec<&'static str>),
}

impl Attribute {
    pub(super) fn proto(&self) -> AttributeProto {
        let of = |name: &str, kind| AttributeProto {
            name: name.to_owned(),
            kind,
            ..AttributeProto::default()
        };
        match self {
            Self::Float(name, f) => AttributeProto { f: Some(*f as f32), ..of(name, 1) },
            Self::Int(name, i) => AttributeProto { i: Some(*i), ..of(name, 2) },
            Self::Text(name, s) => AttributeProto { s: Some(s.as_bytes().to_vec()), ..of(name, 3) },
            Self::Ints(name, ints) => AttributeProto { ints: ints.clone(), ..of(name, 7) },
            Self::Texts(name, texts) => {
                let strings = texts.iter().map(|text| text.as_bytes().to_vec()).collect();
                AttributeProto { strings, ..of(name, 8) }
            }
        }
    }
}
