//! Values with their own spelling: `"auto"`, `"25MiB"`, `"10m"`, `"5 epochs"`, `224` or `[224, 224]`.

use serde::{Deserialize, Serialize};

/// A value, or "auto": to be decided by the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Auto<T> {
    /// To be decided.
    Auto,
    /// As given.
    Given(T),
}

/// A time span: "30s", "10m", "2h".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Duration(pub std::time::Duration);

/// How often, or how long: "1 epoch", "500 steps", "never".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Every {
    /// "never"
    Never,
    /// "n epochs"
    Epochs(u64),
    /// "n steps"
    Steps(u64),
}

/// One number, or height and width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shape2 {
    /// One number.
    Side(u32),
    /// [height, width]
    Both([u32; 2]),
}

/// `true`, or "except_head".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Strict {
    /// Every key must fit.
    All,
    /// The head may differ.
    ExceptHead,
}

/// A number of bytes: "25MiB".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size(pub u64);
