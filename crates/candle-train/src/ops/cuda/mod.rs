//! The operations on NVIDIA's GPUs: cuDNN for convolutions, cuBLAS for matrix products, kernels of
//! our own for the rest.
//!
//! Parameters and their gradients are f32 in the GPU's memory. Under a half precision the operands
//! and results of matrix products and convolutions really are bf16 or f16, and so is what lies
//! between convolutions and follows activations (docs/gpu.md).
//! Everything of a rank happens in the order of one stream, so memory may be freed, and a buffer be
//! used again, as soon as its last use is enqueued.
//!
//! Unsafe code lives in `gpu.rs` (memory, launches), `kernel_args.rs` (structures of kernels),
//! `kernel_source.rs` (NVRTC), `h2d_prefetcher.rs` and `staging.rs` (page-locked memory), `cudnn.rs` (its
//! C interface), `graph.rs` (what the driver recorded) and `product.rs` (cuBLAS's interface).
//!
//! Files use only files declared above them.

mod kernel_text;
mod kernel_cache;
mod kernel_source;
mod kernel_args;
mod gpu;
mod graph;
mod h2d_prefetcher;
mod staging;
mod ledger;
mod optimizer;
mod pointwise;
mod images;
mod columns;
mod rows;
mod losses;
mod series;
mod product;
mod linear;
mod cudnn;
mod grouped;
mod conv;
mod attention;

pub(super) use attention::{Attend, Operand, Outcome};
pub(super) use columns::{Columns, Gate, batch_statistics, inverse_deviation, move_running};
pub(super) use conv::Conv;
pub use gpu::Gpu;
pub(super) use gpu::{placeholder, total_memory, wrap};
pub use graph::{Graph, keep_shapes};
pub use h2d_prefetcher::{H2dPrefetcher, InFlightTensor, to_gpu};
pub(super) use images::{Pool, global_average, global_average_gradient, transpose};
pub use kernel_args::Rule;
pub(super) use kernel_args::{Address, of_tensor, product_dtype};
pub use kernel_cache::keep_kernels_in;
pub use ledger::{Conditions, Decision, Ledger, PassNumbers, StepNumbers};
pub(super) use linear::Linear;
pub(super) use losses::{CrossEntropy, Differences, Logits, Scored, Targets};
pub use optimizer::{
    Parameter, Updater, clear, compress, decompress, pointer, swap_values, write_gradient,
};
pub(super) use pointwise::{
    Cast, Finish, Kind, Mask, activation, activation_gradient, add_to, cast, cast_tensor,
    drop_in_place, dropped, embedding, embedding_gradient, finish, widened_tensor,
};
pub(super) use rows::{GroupNorm, RowNorm, softmax, softmax_gradient};
pub(super) use series::{Rotation, Spectra, moving_average, table};
pub use staging::{Staging, StreamEvent};
