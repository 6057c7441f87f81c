//! Encoded images -> pixels.

mod jpeg;
mod png;
pub(crate) mod orientation;
pub(crate) mod decode;
