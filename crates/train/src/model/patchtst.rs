//! `PatchTST` (Nie et al., ICLR 2023, <https://arxiv.org/abs/2211.14730>) as in
//! github.com/thuml/Time-Series-Library: each series on its own, cut into overlapping patches that
//! are the tokens; fixed positions; batch norm over the features after the last encoder layer; one
//! linear layer from all tokens to the forecast.
//!
//! Keys: `patch_embedding.value_embedding.weight`, `patch_embedding.position_embedding.pe`,
//! `encoder.attn_layers.{i}` (see `informer_encoder.rs`), `encoder.norm.1`, `head.linear`.

use candle_core::{Result, Tensor, bail};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::informer_encoder::{Encoder, Sizes};
use super::series::{InstanceNormOnnx, Window};
use super::{Architecture, Head, Model};
use crate::config::kind::Kind;
use crate::nn::{BatchNorm2d, Buffer, Builder, Dropout, ForwardContext, Linear};
use crate::onnx::{Attribute, Graph, Value};
use crate::ops::{self, Activation, Deviation, InstanceNorm};
use crate::plan::{Modality, ModelPlan};

/// Positions in the original's table.
const POSITIONS: usize = 5000;

/// `PatchTST`: each series on its own, cut into overlapping patches that are the tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PatchTstConfig {
    /// width, a multiple of `n_heads`.
    #[schemars(range(min = 1, max = 65536))]
    pub d_model: usize,
    /// number of attention heads.
    #[schemars(range(min = 1, max = 1024))]
    pub n_heads: usize,
    /// hidden size of the feed-forward network.
    #[schemars(range(min = 1, max = 262_144))]
    pub d_ff: usize,
    /// number of layers.
    #[schemars(range(min = 1, max = 1024))]
    pub n_layers: usize,
    /// dropout after each sublayer.
    #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
    pub dropout: f64,
    /// time steps of a patch.
    #[schemars(range(min = 1, max = 65536))]
    pub patch_len: usize,
    /// time steps from the start of a patch to the start of the next.
    #[schemars(range(min = 1, max = 65536))]
    pub stride: usize,
}

impl Default for PatchTstConfig {
    /// The options of the authors' scripts.
    fn default() -> Self {
        Self {
            d_model: 128,
            n_heads: 16,
            d_ff: 256,
            n_layers: 3,
            dropout: 0.2,
            patch_len: 16,
            stride: 8,
        }
    }
}

impl Kind for PatchTstConfig {
    const NAME: &'static str = "patchtst";
}

impl Architecture for PatchTstConfig {
    fn build(&self, plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>> {
        let window = Window::of(plan)?;
        let width = self.d_model;
        let length = self.patch_len;
        let stride = self.stride;
        // The end is repeated for one more patch.
        let Some(room) = (window.seq_len + stride).checked_sub(length) else {
            bail!("a `patch_len` of {length} is longer than `seq_len` = {}", window.seq_len)
        };
        let patches = room / stride + 1;
        if patches > POSITIONS {
            bail!("{patches} patches are more than {POSITIONS}: raise `stride`");
        }
        let sizes = Sizes {
            width,
            heads: self.n_heads,
            inner: self.d_ff,
            layers: self.n_layers,
            dropout: self.dropout,
        };
        let embedding = builder.pp("patch_embedding");
        let positions = embedding.pp("position_embedding");
        let encoder = builder.pp("encoder");
        Ok(Box::new(PatchTst {
            window,
            patches: Patches { length, stride, count: patches },
            value_embedding: Linear::without_bias(&embedding.pp("value_embedding"), length, width)?,
            positions: positions.constant("pe", &[1, POSITIONS, width], || waves(width))?,
            dropout: Dropout::new(&embedding.pp("dropout"), self.dropout),
            encoder: Encoder::new(sizes, &encoder)?,
            norm: BatchNorm2d::new(&encoder.pp("norm").pp(1), width, window.series * patches, 1.0)?,
            head: Linear::new(&builder.pp("head").pp("linear"), width * patches, window.pred_len)?,
            head_dropout: Dropout::new(&builder.pp("head").pp("dropout"), self.dropout),
        }))
    }

    fn takes(&self) -> &'static [Modality] {
        &[Modality::Series]
    }

    fn head(&self) -> Head {
        Head::Keys(&["head."])
    }
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

/// Patches of a series.
struct Patches {
    length: usize,
    stride: usize,
    count: usize,
}

impl Patches {
    /// (rows, time steps) -> (rows, patches, length)
    fn split(&self, x: &Tensor) -> Result<Tensor> {
        let steps = x.dim(1)?;
        let end = x.narrow(1, steps - 1, 1)?.repeat((1, self.stride))?;
        let x = Tensor::cat(&[x, &end], 1)?;
        let patch = |i| x.narrow(1, i * self.stride, self.length);
        Tensor::stack(&(0..self.count).map(patch).collect::<Result<Vec<_>>>()?, 1)
    }

    /// [`Patches::split`] in a graph of ONNX: gathers the steps of each patch, some beyond the end.
    fn split_onnx(&self, graph: &mut Graph, x: &Value) -> Value {
        let last = x.features() - 1;
        let steps = (0..self.count).flat_map(|i| i * self.stride..i * self.stride + self.length);
        let steps: Vec<i64> = steps.map(|step| step.min(last) as i64).collect();
        let steps = graph.integers(&steps);
        let dims = [None, Some(self.count * self.length)];
        let cut = graph.node("Gather", &[x, &steps], &[Attribute::Int("axis", 1)], &dims);
        graph.reshaped(&cut, &[0, self.count as i64, self.length as i64])
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
        let n = input.dim(0)?;
        let series = self.window.series;
        let x = InstanceNorm::new(&self.window.series(input)?, series, Deviation::Population)?;
        let rows = x.rows.reshape((n * series, self.window.seq_len))?;
        let tokens = self.value_embedding.forward(&self.patches.split(&rows)?, pass)?;
        let positions = self.positions.var()?.narrow(1, 0, self.patches.count)?.detach();
        let tokens = self.dropout.forward(&tokens.broadcast_add(&positions)?, pass)?;
        let tokens = self.encoder.forward(&tokens, pass)?.unsqueeze(2)?;
        let tokens = self.norm.forward(&tokens, None, Activation::Identity, pass)?.squeeze(2)?;
        // The original's features come before the patches.
        let flat = ops::transpose_adjacent(&tokens, 1)?.flatten_from(1)?;
        let y = self.head_dropout.forward(&self.head.forward(&flat, pass)?, pass)?;
        x.denormalise(&y.reshape((n, series, self.window.pred_len))?)
    }

    fn onnx(&self, graph: &mut Graph, input: &Value) -> Result<Value> {
        let Window { seq_len, pred_len, series, .. } = self.window;
        let windows = self.window.series_onnx(graph, input);
        let x = InstanceNormOnnx::new(graph, &windows, series, Deviation::Population);
        let rows = graph.shaped(&x.rows, &[seq_len]);
        let patches = self.patches.split_onnx(graph, &rows);
        let tokens = self.value_embedding.onnx(graph, &patches)?;
        let positions = self.positions.onnx(graph)?;
        let positions = graph.narrowed(&positions, 1, 0, self.patches.count);
        let tokens = graph.add(&tokens, &positions);
        let tokens = self.encoder.onnx(graph, &tokens)?;
        let tokens = self.norm.onnx(graph, &tokens, Activation::Identity)?;
        let flat = graph.transposed(&tokens, &[0, 2, 1]);
        let flat = graph.flattened(&flat, 1);
        let y = self.head.onnx(graph, &flat)?;
        let y = graph.shaped(&y, &[series, pred_len]);
        Ok(x.denormalise(graph, &y))
    }
}
