//! Steps that are a sample's own, where those behind them are padding.

use candle_core::{Result, Tensor, bail};

use crate::model::layers::Sizes;
use crate::nn::ForwardContext;

/// How many steps of each sample of x (n, steps, c) are its own, if `padded` says how many frames
/// are from one step to the next; none where samples are not padded.
pub(super) fn own_steps(
    x: &Tensor,
    padded: Option<usize>,
    pass: &ForwardContext,
) -> Result<Option<Vec<usize>>> {
    let Some(stride) = padded else { return Ok(None) };
    let Some(lengths) = &pass.lengths else { bail!("samples are padded, but have no lengths") };
    Ok(Some(lengths.among(x.dim(1)?, stride)))
}

/// ", without padding", where there is any
pub(super) fn without_padding(sizes: &Sizes) -> &'static str {
    if sizes.input.padded().is_some() { ", without padding" } else { "" }
}
