//! The operations on NVIDIA's GPUs: cuDNN for convolutions, cuBLAS for matrix products, kernels of
//! our own for the rest.
//!
//! Parameters and their gradients are f32 in the GPU's memory. Under a half precision the operands
//! and results of matrix products and convolutions really are bf16 or f16, and so is what lies
//! between convolutions and follows activations (docs/gpu.md).
//! Everything of a rank happens in the order of one stream, so memory may be freed, and a buffer be
//! used again, as soon as its last use is enqueued.
//!
//! Unsafe code lives in `gpu.rs` (memory, launches), `pinned_copy.rs`, `h2d_prefetcher.rs` and
//! `staging.rs` (page-locked memory) and `cudnn.rs` (its C interface) and `graph.rs` (what the
//! driver recorded) and `product.rs` (cuBLAS's interface).

mod address;
mod attention;
mod batch_norm;
mod pinned_copy;
mod buckets;
mod columns;
mod conv;
mod cudnn;
mod fused_attention;
mod h2d_prefetcher;
mod gpu;
mod grouped;
mod graph;
mod images;
mod ledger;
mod linear;
mod losses;
mod optimizer;
mod pointwise;
mod product;
mod rows;
mod series;
mod kernel_cache;
mod kernel_source;
mod kernel_text;
mod staging;
mod constant_tables;
mod usage;
mod visible_devices;

pub(super) use address::{Address, Half, of_tensor};
pub(super) use attention::{Attend, Operand};
pub(super) use batch_norm::{DeviceNorm, batch_norm, batch_norm_running, move_running};
pub use buckets::{clear, compress, exchange, expand, pointer, put};
pub(super) use constant_tables::table;
pub(super) use conv::Conv;
pub(super) use fused_attention::Outcome;
pub use gpu::Gpu;
pub(super) use gpu::{placeholder, wrap};
pub use graph::{Graph, keep_shapes};
pub use h2d_prefetcher::{H2dPrefetcher, InFlightTensor};
pub(super) use images::{Pool, global_average, global_average_gradient, transpose};
pub use kernel_cache::keep_kernels_in;
pub use ledger::{Conditions, Found, Ledger, StepNumbers};
pub(super) use linear::Linear;
pub(super) use losses::{CrossEntropy, Differences, Logits, Scored, Targets};
pub use optimizer::{Decision, Parameter, Rule, Updater};
pub use pinned_copy::to_gpu;
pub(super) use pointwise::{
    Finish, Kind, Mask, activation, activation_gradient, add_to, cast_tensor, drop_in_place,
    dropped, embedding, embedding_gradient, finish, widened_tensor,
};
pub(super) use rows::{GroupNorm, RowNorm, softmax, softmax_gradient};
pub(super) use series::{Spectra, Turn, moving_average};
pub use staging::{Moment, Staging};
pub(super) use visible_devices::visible;
