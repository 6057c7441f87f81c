//! Layers on [`crate::ops`]: parameters with PyTorch's names and initialisation, autocast, train/eval.
//!
//! A layer holds [`Param`]s, not tensors: `param.tensor()` is the parameter's node in the graph of the
//! pass at hand, so that its complete gradient leaves `backward` through one hook.

pub mod params;

pub use params::{Buffer, Builder, GradientSink, Init, Param, Params};
