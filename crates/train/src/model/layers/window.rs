//! Windows that slide over images and sequences, and the `padding` around these.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::config::values::Shape2;
use crate::ops::Rounding;
use crate::plan::{Flow, Unfit};

/// A window along one axis of an image or a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slide {
    /// Elements from the first tap to the last.
    pub(super) kernel: usize,
    pub(super) stride: usize,
    /// Zeros on each side.
    pub(super) padding: usize,
}

impl Slide {
    /// Number of windows over an axis of `input` of length `side`.
    pub(super) fn along(
        self,
        side: usize,
        input: Flow,
        rounding: Rounding,
    ) -> Result<usize, Unfit> {
        let Self { kernel, stride, padding } = self;
        rounding.windows(side, kernel, stride, padding).map_err(|_| {
            let what =
                format!("{kernel} is larger than {} with padding {padding}", input.in_words());
            Unfit { key: "kernel_size", what, help: None }
        })
    }
}

/// Rows and columns of an option.
pub(super) fn both(sides: Shape2) -> [usize; 2] {
    let (rows, columns) = sides.sides();
    [rows as usize, columns as usize]
}

/// "3", "3x5"
pub(super) fn shown([rows, columns]: [usize; 2]) -> String {
    if rows == columns { rows.to_string() } else { format!("{rows}x{columns}") }
}

/// Most pixels of padding.
const MAX_PADDING: u32 = 16_777_216;

/// Padding around an image or a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Padding {
    /// This many zeros on each side.
    Zeros(Shape2),
    /// As many as keep the size.
    Same,
}

impl Default for Padding {
    fn default() -> Self {
        Self::Zeros(Shape2::Side(0))
    }
}

/// Padding along one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AxisPadding(Option<u32>);

impl Padding {
    /// Along rows and columns.
    pub(super) fn both(self) -> [AxisPadding; 2] {
        match self {
            Self::Same => [AxisPadding(None); 2],
            Self::Zeros(sides) => {
                let (rows, columns) = sides.sides();
                [AxisPadding(Some(rows)), AxisPadding(Some(columns))]
            }
        }
    }

    /// Along a sequence, which has one axis.
    pub(super) fn along(self) -> Result<AxisPadding, Unfit> {
        match self {
            Self::Zeros(Shape2::Both(_)) => {
                let what = "is one number along a sequence".to_owned();
                Err(Unfit { key: "padding", what, help: None })
            }
            _ => Ok(self.both()[0]),
        }
    }

    /// ", pad 1", ", pad 1x2", ", pad same", or nothing
    pub(super) fn in_words(self) -> String {
        match self {
            Self::Same => ", pad same".to_owned(),
            Self::Zeros(sides) => match sides.sides() {
                (0, 0) => String::new(),
                (rows, columns) if rows == columns => format!(", pad {rows}"),
                (rows, columns) => format!(", pad {rows}x{columns}"),
            },
        }
    }
}

impl AxisPadding {
    /// The slide of a window that reaches over `reach` elements, and the number of zeros that are
    /// added at the end only.
    pub(super) fn around(self, reach: usize, stride: usize) -> Result<(Slide, usize), Unfit> {
        let slide = |padding| Slide { kernel: reach, stride, padding };
        match self.0 {
            Some(padding) => Ok((slide(padding as usize), 0)),
            None if stride == 1 => Ok((slide((reach - 1) / 2), (reach - 1) % 2)),
            None => {
                let what = format!("`same` keeps the size, but stride is {stride}");
                Err(Unfit { key: "padding", what, help: None })
            }
        }
    }
}

impl<'de> Deserialize<'de> for Padding {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(word) if word == "same" => Ok(Self::Same),
            number => serde_json::from_value(number).map(Self::Zeros).map_err(D::Error::custom),
        }
    }
}

impl Serialize for Padding {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Same => serializer.serialize_str("same"),
            Self::Zeros(sides) => sides.serialize(serializer),
        }
    }
}

impl JsonSchema for Padding {
    fn schema_name() -> Cow<'static, str> {
        "Padding".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [
                { "const": "same" },
                { "type": "integer", "minimum": 0, "maximum": MAX_PADDING },
                {
                    "type": "array",
                    "items": { "type": "integer", "minimum": 0, "maximum": MAX_PADDING },
                    "minItems": 2,
                    "maxItems": 2,
                },
            ],
        })
    }
}
