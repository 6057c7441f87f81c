//! Differentiable operations that Candle lacks, gets wrong or does slowly: CPU, f32, hand-written backward.
//!
//! Activations of images are NHWC (channels last); weights keep PyTorch's layout. A weight is always the
//! *right* operand of its operation: Candle walks backward from the right, so gradients leave last layer
//! first. Bits never depend on the number of threads: work is cut into fixed blocks, split over outputs,
//! and partial sums are added in a fixed order.

mod bias;
mod conv;
mod dropout;
mod gemm;
mod im2col;
mod layout;
mod linear;
mod loss;
mod norm;
mod pool;
mod precision;
mod regression;
mod relu;
mod storage;
#[cfg(test)]
mod testing;

pub use conv::{Window, conv2d};
pub use dropout::dropout;
pub use layout::{nchw_to_nhwc, nhwc_to_nchw};
pub use linear::linear;
pub use loss::{ClassScores, cross_entropy, score_classes};
pub use norm::{Activation, BatchStatistics, RunningStatistics, batch_norm, batch_norm_running};
pub use pool::{global_average_pool, max_pool2d};
pub use regression::{mae, mse, score_mae, score_mse};
pub use relu::relu;
