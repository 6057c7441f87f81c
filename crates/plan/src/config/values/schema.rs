//! JSON schemas of the values with their own spelling.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::config::values::{
    Auto, BYTES, COUNT, Devices, Duration, Interval, Patience, SECONDS, Shape2, Size, SplitRule,
    Strict, Warmup, ZeroStage,
};

/// The schema of a type that is written as it is read.
macro_rules! schema {
    ($type:ty, $name:literal, $schema:tt) => {
        impl JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                $name.into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!($schema)
            }
        }
    };
}

schema!(Duration, "Duration", {
    "type": "string",
    "x-unit": SECONDS,
    "examples": ["30s", "10m", "2h"],
});
schema!(Interval, "Every", {
    "type": "string",
    "x-unit": COUNT,
    "examples": ["1 epoch", "500 steps", "never"],
});
schema!(Warmup, "Warmup", {
    "type": "string",
    "x-unit": COUNT,
    "examples": ["5 epochs", "500 steps", "5 %", "never"],
});
schema!(Patience, "Patience", {
    "type": "string",
    "x-unit": SECONDS,
    "examples": ["auto", "never", "30s"],
});
schema!(SplitRule, "SplitRule", { "type": "string", "examples": ["7:1:2", "ett_hour"] });
schema!(Size, "Size", {
    "type": ["integer", "string"],
    "x-unit": BYTES,
    "minimum": 0,
    "examples": ["25MiB"],
});
schema!(Strict, "Strict", { "enum": [true, "except_head"] });
schema!(ZeroStage, "ZeroStage", { "enum": [0, 1, 2] });
schema!(Shape2, "Shape2", {
    "anyOf": [
        { "type": "integer", "minimum": 1, "maximum": 8192 },
        {
            "type": "array",
            "items": { "type": "integer", "minimum": 1, "maximum": 8192 },
            "minItems": 2,
            "maxItems": 2,
        },
    ],
});
schema!(Devices, "Devices", {
    "anyOf": [
        { "const": "auto" },
        { "type": "integer", "minimum": 1, "maximum": 1024 },
        {
            "type": "array",
            "items": { "type": "integer", "minimum": 0 },
            "minItems": 1,
            "maxItems": 1024,
        },
    ],
});

impl<T: JsonSchema> JsonSchema for Auto<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("Auto_{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let given = generator.subschema_for::<T>();
        json_schema!({ "anyOf": [{ "const": "auto" }, given] })
    }
}
