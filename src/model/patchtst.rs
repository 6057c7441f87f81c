//! `PatchTST` (Nie et al., ICLR 2023, <https://arxiv.org/abs/2211.14730>) as in github.com/thuml/Time-Series-Library: each
//! series on its own, cut into overlapping patches that are the tokens; fixed positions; batch norm over the
//! features after the last encoder layer; one linear layer from all tokens to the forecast.
//!
//! Keys: `patch_embedding.value_embedding.weight`, `patch_embedding.position_embedding.pe`,
//! `encoder.attn_layers.{i}` (see `encoder.rs`), `encoder.norm.1`, `head.linear`.

use candle_core::{Result, Tensor, bail};

use super::Model;
use super::encoder::Encoder;
use super::series::Window;
use crate::nn::{BatchNorm2d, Buffer, Builder, Dropout, ForwardContext, Linear};
use crate::ops::{Activation, Deviation, InstanceNorm};
use crate::plan::ModelPlan;

/// Positions in the original's table.
const POSITIONS: usize = 5000;

pub(super) fn build(plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>> {
    let (window, sizes) = (Window::of(plan)?, &plan.sequence);
    let (width, length, stride) = (sizes.d_model, sizes.patch_len, sizes.stride);
    // The end is repeated for one more patch.
    let Some(room) = (window.seen + stride).checked_sub(length) else {
        bail!("a `patch_len` of {length} is longer than `seq_len` = {}", window.seen)
    };
    let patches = room / stride + 1;
    if patches > POSITIONS {
        bail!("{patches} patches are more than {POSITIONS}: raise `stride`");
    }
    let embedding = builder.pp("patch_embedding");
    let positions = embedding.pp("position_embedding");
    let encoder = builder.pp("encoder");
    Ok(Box::new(PatchTst {
        window,
        patches: Patches { length, stride, count: patches },
        value_embedding: Linear::without_bias(&embedding.pp("value_embedding"), length, width)?,
        positions: positions.constant("pe", &[1, POSITIONS, width], || waves(width))?,
        dropout: Dropout::new(&embedding.pp("dropout"), plan.dropout),
        encoder: Encoder::new(plan, &encoder)?,
        norm: BatchNorm2d::new(&encoder.pp("norm").pp(1), width, window.series * patches, 1.0)?,
        head: Linear::new(&builder.pp("head").pp("linear"), width * patches, window.next)?,
        head_dropout: Dropout::new(&builder.pp("head").pp("dropout"), plan.dropout),
    }))
}

/// Sines in even and cosines in odd features, of wavelengths from 2 pi to 10,000 times that.
fn waves(width: usize) -> Vec<f32> {
    let value = |position: usize, feature: usize| {
        let rate = (-(10_000f64.ln()) * (feature - feature % 2) as f64 / width as f64).exp();
        let angle = position as f64 * rate;
        (if feature.is_multiple_of(2) { angle.sin() } else { angle.cos() }) as f32
    };
    (0..POSITIONS).flat_map(|p| (0..width).map(move |f| value(p, f))).collect()
}

/// How a series is cut.
struct Patches {
    length: usize,
    stride: usize,
    count: usize,
}

impl Patches {
    /// (rows, time steps) -> (rows, patches, length)
    fn cut(&self, x: &Tensor) -> Result<Tensor> {
        let steps = x.dim(1)?;
        let end = x.narrow(1, steps - 1, 1)?.repeat((1, self.stride))?;
        let x = Tensor::cat(&[x, &end], 1)?;
        let patch = |i| x.narrow(1, i * self.stride, self.length);
        Tensor::stack(&(0..self.count).map(patch).collect::<Result<Vec<_>>>()?, 1)
    }
}

struct PatchTst {
    window: Window,
    patches: Patches,
    value_embedding: Linear,
    positions: Buffer,
    dropout: Dropout,
    encoder: Encoder,
    norm: BatchNorm2d,
    head: Linear,
    head_dropout: Dropout,
}

impl Model for PatchTst {
    fn forward(&self, input: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let (n, series) = (input.dim(0)?, self.window.series);
        let x = InstanceNorm::new(&self.window.series(input)?, series, Deviation::Population)?;
        let rows = x.rows.reshape((n * series, self.window.seen))?;
        let tokens = self.value_embedding.forward(&self.patches.cut(&rows)?, pass)?;
        let positions = self.positions.var()?.narrow(1, 0, self.patches.count)?.detach();
        let tokens = self.dropout.forward(&tokens.broadcast_add(&positions)?, pass)?;
        let tokens = self.encoder.forward(&tokens, pass)?.unsqueeze(2)?;
        let tokens = self.norm.forward(&tokens, None, Activation::Identity, pass)?.squeeze(2)?;
        // The original's features come before the patches.
        let flat = tokens.transpose(1, 2)?.contiguous()?.flatten_from(1)?;
        let y = self.head_dropout.forward(&self.head.forward(&flat, pass)?, pass)?;
        x.undo(&y.reshape((n, series, self.window.next))?)
    }
}
