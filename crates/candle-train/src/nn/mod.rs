//! Layers on [`crate::ops`]: parameters with PyTorch's names and initialisation, autocast,
//! train/eval.
//!
//! A layer holds [`Param`]s, not tensors, and gives `param.weight()` to [`crate::ops`], whose
//! backward hands the gradient to the sink of the pass at hand. For Candle's own operations there
//! is `param.tensor()`, a copy with a hook; mind the traps of their gradients, and keep the weight
//! the right operand where overlap matters.

mod activation;
mod activation_checkpointing;
mod batch_norm;
mod conv;
mod dropout;
mod embedding;
mod in_place;
mod init;
mod layer_norm;
mod linear;
mod lora;
pub mod params;
mod recurrent;
mod forward_context;
pub mod state_dict;
mod var_builder;

pub use activation::Nonlinearity;
pub use activation_checkpointing::{Block, run_block};
pub use batch_norm::BatchNorm2d;
pub use conv::{Conv1d, Conv2d, ConvShape, ConvTranspose1d, ConvTranspose2d, RectangularConv};
pub use dropout::{DropPath, Dropout};
pub use embedding::Embedding;
pub use forward_context::{ForwardContext, Lengths, Mode, Track};
pub use in_place::{change_all, change_values};
pub use init::Init;
pub use layer_norm::{GroupNorm, LayerNorm, RmsNorm};
pub use linear::Linear;
pub use lora::{Adapted, LoraConfig, Targets, merged, pattern_error};
pub use params::{
    Base, BaseTensor, Buffer, Builder, Counter, LibraryName, Param, Params, with_concurrent_pass,
};
pub use recurrent::{Recurrent, RecurrentShape};
pub use var_builder::{VarBuilderParams, compute_dtype};
