//! Encoded images -> pixels.

mod png;
mod jpeg;
pub(in crate::data) mod orientation;
pub(in crate::data) mod decode;
#[cfg(test)]
mod golden_tests;
