//! Differentiable operations that Candle lacks, gets wrong or does slowly: CPU, f32, hand-written
//! backward.
//!
//! Activations of images are NHWC (channels last); weights keep PyTorch's layout. A weight is
//! always the *right* operand of its operation: Candle walks backward from the right, so gradients
//! leave last layer first. Bits never depend on the number of threads: work is cut into fixed
//! blocks, split over outputs, and partial sums are added in a fixed order.
//!
//! An operation implements `operation::Operation`, and `operation::OnGpu` for the kernels in
//! `cuda`; `chain::apply` applies it.

mod accumulate;
mod activation;
mod add;
mod attention;
mod batch_norm;
mod chain;
mod column_sums;
mod conv;
#[cfg(feature = "cuda")]
pub mod cuda;
mod device;
mod drop_path;
mod dropout;
mod element;
mod embedding;
mod fourier;
mod group_norm;
mod half_precision;
mod instance_norm;
mod kernel;
mod simd;
mod layout;
mod linear;
mod loss;
mod log_prob;
mod math;
mod moving_average;
mod newton_schulz;
#[cfg(any(feature = "cuda", test))]
mod nvml;
#[cfg(feature = "cuda")]
mod on_gpu;
mod operation;
mod padding;
mod part;
mod pool;
mod precision;
mod product;
mod recurrent;
mod regression;
mod repeat_heads;
mod resample;
mod rotary;
mod row_norm;
mod row_norms;
mod saved;
#[cfg(feature = "cuda")]
mod scored;
mod scratch;
mod segments;
mod shift;
mod shortcut;
mod softmax;
mod storage;
mod stored;
#[cfg(test)]
pub(crate) mod testing;
mod weight;

pub use activation::{
    gelu, gelu_tanh, hardsigmoid, hardswish, leaky_relu, mish, relu, relu6, sigmoid, silu, tanh,
};
pub use add::add;
pub use attention::{
    Attention, ScoreBounds, attention, attention_bounded, attention_in, attention_packed,
    attention_packed_in, attention_packed_within, attention_within,
};
pub use batch_norm::{
    Activation, BatchGroup, BatchStatistics, RunningStatistics, SyncGroup, batch_norm,
    batch_norm_running, sync_batch_norm,
};
pub(crate) use chain::node;
pub use chain::{chain, widen};
pub use conv::{
    ConvNorm, ConvOptions, Rounding, SlidingWindow, Window, autocast_conv2d, conv_batch_norm,
    conv_transpose1d, conv_transpose2d, conv1d, conv2d,
};
pub use device::{GpuUsage, gpu_usage, visible_gpus};
#[cfg(feature = "cuda")]
pub use device::{open_gpu, take_gpu_peak, trim_gpu_memory};
pub use drop_path::drop_path;
pub use dropout::dropout;
pub use embedding::embedding;
pub use fourier::time_frequency;
pub use group_norm::group_norm;
pub use instance_norm::{Deviation, InstanceNorm};
pub use layout::{nchw_to_nhwc, nhwc_to_nchw, transpose_adjacent};
pub use linear::{LinearActivation, linear, linear_activated};
pub use log_prob::label_log_probs;
pub use loss::{
    ClassScores, IGNORED_LABEL, count_correct, count_in_top, cross_entropy, cross_entropy_soft,
    cross_entropy_sum, score_classes,
};
pub use moving_average::{Average, moving_average};
pub use newton_schulz::newton_schulz;
pub use operation::count_flops;
pub(crate) use operation::{Backward, copy_of, in_graph};
pub use padding::{hide_padding, hide_pairs};
pub use part::{narrow, narrow_groups};
pub use pool::{
    MAX_PIXELS, average_pool2d, average_pool2d_over, global_average_pool, max_pool2d,
    max_pool2d_over, mean_pixel,
};
pub use precision::{BLOCK as ROUNDED_TOGETHER, bf16_instructions, bf16_is_faster, round_block};
pub use product::{gated, product, scale, scale_channels};
pub use recurrent::{Cell, recurrent};
pub use regression::{mae, mse, score_mae, score_mse};
pub use repeat_heads::repeat_heads;
pub use resample::{Means, ResampleWeights, resample};
pub use rotary::{Rope, rotary, rotary_in};
pub use row_norm::{layer_norm, rms_norm, rms_norm_groups};
pub use row_norms::row_norms;
#[cfg(feature = "cuda")]
pub use scored::{count_right, cross_entropy_scored};
pub use segments::Segments;
pub use shift::add_channel_bias;
pub use shortcut::padded_shortcut;
pub(crate) use simd::build;
pub use simd::vectorised;
pub use softmax::softmax;
pub use storage::with_vector;
pub use stored::{SharedBytes, StoredTensor, StoredType};
pub use weight::{GradientSink, Uses, Weight, WeightUse};
