//! Layers on [`crate::ops`]: parameters with PyTorch's names and initialisation, autocast, train/eval.
//!
//! A layer holds [`Param`]s, not tensors: `param.tensor()` is the parameter's node in the graph of the
//! pass at hand, so that its complete gradient leaves `backward` through one hook. Layers are written on
//! [`crate::ops`], but any Candle operation may follow `param.tensor()`, with the traps of its gradients
//! in mind; keep the weight the right operand where overlap matters.

mod conv;
mod dropout;
mod in_place;
mod linear;
mod norm;
pub mod params;
mod pass;
pub mod state_dict;

pub use conv::{Conv2d, ConvShape};
pub use dropout::Dropout;
pub use in_place::change_values;
pub use linear::Linear;
pub use norm::BatchNorm2d;
pub use params::{Buffer, Builder, Counter, GradientSink, Init, Param, Params};
pub use pass::{Mode, Pass};
