//! Which GPUs there are.

use crate::units::Bytes;

/// Name and memory of the GPUs that CUDA shows, in its order, or why it shows none; `None` in a program without CUDA.
/// No GPU is touched.
///
/// # Errors
///
/// The driver does not answer, in its words. A machine without a GPU is no error.
#[cfg(not(feature = "cuda"))]
pub fn visible_gpus() -> Option<Result<Vec<(String, Bytes)>, String>> {
    None
}

/// Name and memory of the GPUs that CUDA shows, in its order, or why it shows none; `None` in a program without CUDA.
/// No GPU is touched.
///
/// # Errors
///
/// The driver does not answer, in its words. A machine without a GPU is no error.
#[cfg(feature = "cuda")]
pub fn visible_gpus() -> Option<Result<Vec<(String, Bytes)>, String>> {
    Some(super::cuda::visible())
}
