//! `ModelPlan -> forward function + Params`: the registry and the models that come with it.
//!
//! Images arrive as (n, channels, height, width); models turn them to NHWC at their entry. Parameters
//! carry the names of the public original, so that its weights load.

mod attention;
mod cnn;
mod dlinear;
mod encoder;
mod gpt;
mod graph;
mod itransformer;
mod mlp;
mod patchtst;
mod registry;
mod resnet;
mod series;
mod timebridge;

use candle_core::{Result, Tensor};

use crate::nn::Pass;

pub use registry::{Build, Error, Registry};

/// What is trained: a forward function over parameters that were registered when it was built.
pub trait Model: Send + Sync {
    /// (n, ...) f32 -> (n, outputs) f32; a forecast is (n, time steps, series).
    ///
    /// # Errors
    ///
    /// An input of another shape than the model was built for, or whatever its operations refuse.
    fn forward(&self, input: &Tensor, pass: &Pass) -> Result<Tensor>;
}
