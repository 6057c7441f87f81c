//! Encoded images -> pixels.

mod jpeg;
pub(crate) mod orientation;
pub(crate) mod decode;
