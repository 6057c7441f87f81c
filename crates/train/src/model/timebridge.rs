//! `TimeBridge` (Liu et al., ICML 2025, <https://arxiv.org/abs/2410.04442>,
//! github.com/Hank0626/TimeBridge): patches of every series, and of every feature of the dates,
//! through three kinds of attention layers.
//!
//! - *Integrated*: among the patches of one series; queries and keys are detrended copies without a
//!   gradient.
//! - *Sampling*: from all patches to `num_p` of them.
//! - *Cointegrated*: among all series at one patch, first along the rows and then along the columns
//!   of a square in which they are laid out. Its `norm0` is registered and never used, as in the
//!   original: training needs `distributed.find_unused_parameters = true`.
//!
//! Keys: `embedding.proj.0.weight`; `encoder.attn_layers.{i}` with `attention` (`attention1`,
//! `attention2`) `.{q_proj,k_proj,v_proj,out}`, `conv1`, `conv2`, `fc1`, `fc2`, `norm0`, `norm1`,
//! `norm2`; `decoder.1.weight`.

use std::sync::Arc;

use candle_core::{Result, Tensor, bail};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::informer_encoder::MultiHead;
use super::series::{InstanceNormOnnx, Window};
use super::{Architecture, Head, Model};
use crate::config::kind::Kind;
use crate::nn::{self, Builder, Conv1d, ConvShape, Dropout, ForwardContext, LayerNorm, Linear};
use crate::onnx::{Graph, Value};
use crate::ops::{self, Average, Deviation, InstanceNorm, LinearActivation};
use crate::plan::{Modality, ModelPlan};

const PROJECTIONS: [&str; 4] = ["q_proj", "k_proj", "v_proj", "out"];

/// `TimeBridge`: patches of every series, and of every feature of the dates, through three kinds of
/// attention layers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TimeBridgeConfig {
    /// width, a multiple of `n_heads`.
    #[schemars(range(min = 1, max = 65536))]
    pub d_model: usize,
    /// number of attention heads.
    #[schemars(range(min = 1, max = 1024))]
    pub n_heads: usize,
    /// hidden size of the feed-forward network.
    #[schemars(range(min = 1, max = 262_144))]
    pub d_ff: usize,
    /// dropout after each sublayer.
    #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
    pub dropout: f64,
    /// dropout of attention probabilities (of the others it is `dropout`).
    #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
    pub attn_dropout: f64,
    /// time steps of a patch; divides `data.seq_len`.
    #[schemars(range(min = 1, max = 65536))]
    pub period: usize,
    /// patches kept. Default: all.
    #[schemars(range(min = 1, max = 65536), example = 8)]
    pub num_p: Option<usize>,
    /// window of the moving average subtracted from queries and keys.
    #[schemars(range(min = 1, max = 65536))]
    pub stable_len: usize,
    /// layers within each series.
    #[schemars(range(min = 0, max = 1024))]
    pub ia_layers: usize,
    /// layers that sample patches.
    #[schemars(range(min = 0, max = 1024))]
    pub pd_layers: usize,
    /// layers across series. With any, set `distributed.find_unused_parameters = true`: the
    /// published model has a norm in them that it never uses.
    #[schemars(range(min = 0, max = 1024))]
    pub ca_layers: usize,
}

impl Default for TimeBridgeConfig {
    /// The options of the authors' scripts.
    fn default() -> Self {
        Self {
            d_model: 128,
            n_heads: 8,
            d_ff: 128,
            dropout: 0.0,
            attn_dropout: 0.15,
            period: 24,
            num_p: None,
            stable_len: 6,
            ia_layers: 1,
            pd_layers: 1,
            ca_layers: 0,
        }
    }
}

impl Kind for TimeBridgeConfig {
    const NAME: &'static str = "timebridge";
}

impl Architecture for TimeBridgeConfig {
    fn build(&self, plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>> {
        let window = Window::of(plan)?;
        let period = self.period;
        let patches = window.seq_len / self.period.max(1);
        if patches * period != window.seq_len || patches == 0 {
            bail!("`seq_len` = {} is not a multiple of `period` = {period}", window.seq_len);
        }
        if self.stable_len > self.d_model {
            bail!("`stable_len` = {} is more than `d_model` = {}", self.stable_len, self.d_model);
        }
        let embedding = builder.pp("embedding");
        let embed = Linear::without_bias(&embedding.pp("proj").pp(0), period, self.d_model)?;
        let (layers, patches_out) = layers(self, builder, window.series + window.marks, patches)?;
        let head = builder.pp("decoder").pp(1);
        Ok(Box::new(TimeBridge {
            window,
            patches,
            embed,
            dropout: Dropout::new(&embedding.pp("dropout"), self.dropout),
            layers,
            head: Linear::without_bias(&head, patches_out * self.d_model, window.pred_len)?,
        }))
    }

    fn takes(&self) -> &'static [Modality] {
        &[Modality::Series]
    }

    fn head(&self) -> Head {
        Head::Keys(&["decoder."])
    }

    fn draws_on_cpu(&self) -> bool {
        true
    }
}

/// All layers in the order of the original, and the number of patches after the last one.
fn layers(
    config: &TimeBridgeConfig,
    builder: &Builder,
    rows: usize,
    patches: usize,
) -> Result<(Vec<Arc<Layer>>, usize)> {
    let builder = builder.pp("encoder").pp("attn_layers");
    let integrated = config.ia_layers;
    let sampling = config.pd_layers;
    let cointegrated = config.ca_layers;
    let mut layers = Vec::new();
    let embedded = patches;
    let mut patches = patches;
    for i in 0..integrated + sampling + cointegrated {
        let builder = builder.pp(i);
        let mixing = if i < integrated {
            Mixing::integrated(config, &builder)?
        } else if i < integrated + sampling {
            let sampled = config.num_p.unwrap_or(embedded);
            let mixing = Mixing::sampling(config, &builder, [patches, sampled])?;
            patches = sampled;
            mixing
        } else {
            Mixing::cointegrated(config, &builder, rows)?
        };
        let is_cointegrated = matches!(mixing, Mixing::Cointegrated { .. });
        let rest = FeedForward::new(config, &builder, is_cointegrated)?;
        layers.push(Arc::new(Layer { mixing, rest }));
    }
    Ok((layers, patches))
}

struct TimeBridge {
    window: Window,
    patches: usize,
    embed: Linear,
    dropout: Dropout,
    layers: Vec<Arc<Layer>>,
    head: Linear,
}

impl Model for TimeBridge {
    fn forward(&self, input: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let Window { seq_len, pred_len, series, marks } = self.window;
        let n = input.dim(0)?;
        let x = InstanceNorm::new(input, series, Deviation::Sample)?;
        let patches = (n, series + marks, self.patches, seq_len / self.patches);
        let tokens = self.embed.forward(&x.rows.reshape(patches)?, pass)?;
        let tokens = self.dropout.forward(&tokens, pass)?;
        let tokens =
            self.layers.iter().try_fold(tokens, |x, layer| nn::run_block(layer, &x, pass))?;
        let flat = ops::narrow(&tokens, 1, 0, series)?.flatten_from(2)?;
        let y = self.head.forward(&flat, pass)?.reshape((n, series, pred_len))?;
        x.denormalise(&y)
    }

    fn onnx(&self, graph: &mut Graph, input: &Value) -> Result<Value> {
        let Window { seq_len, series, marks, .. } = self.window;
        let x = InstanceNormOnnx::new(graph, input, series, Deviation::Sample);
        let patches =
            graph.shaped(&x.rows, &[series + marks, self.patches, seq_len / self.patches]);
        let tokens = self.embed.onnx(graph, &patches)?;
        let tokens = self.layers.iter().try_fold(tokens, |x, layer| layer.onnx(graph, &x))?;
        let tokens = graph.narrowed(&tokens, 1, 0, series);
        let flat = graph.flattened(&tokens, 2);
        let y = self.head.onnx(graph, &flat)?;
        Ok(x.denormalise(graph, &y))
    }
}

/// (n, rows, patches, `d_model`) -> the same, with `num_p` patches after sampling.
struct Layer {
    mixing: Mixing,
    rest: FeedForward,
}

impl Layer {
    /// x (n, rows, patches, width)
    fn onnx(&self, graph: &mut Graph, x: &Value) -> Result<Value> {
        let rows = x.dims()[1].unwrap_or(1);
        let width = x.features();
        let (kept, mixed) = self.mixing.onnx(graph, x)?;
        let y = self.rest.onnx(graph, &kept, &mixed)?;
        let patches = y.dims()[1].unwrap_or(1);
        Ok(graph.shaped(&y, &[rows, patches, width]))
    }
}

impl nn::Block for Layer {
    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let (n, rows, _, width) = x.dims4()?;
        let (kept, mixed) = self.mixing.forward(x, pass)?;
        let y = self.rest.forward(&kept, &mixed, pass)?;
        let patches = y.elem_count() / (n * rows * width);
        y.reshape((n, rows, patches, width))
    }
}

/// Attention of the three kinds of layers.
enum Mixing {
    Integrated { attention: MultiHead, window: usize, dropout: Dropout },
    Sampling { attention: MultiHead, conv1: Conv1d, conv2: Conv1d, dropout: Dropout },
    Cointegrated { along_rows: MultiHead, along_columns: MultiHead, side: usize, dropout: Dropout },
}

impl Mixing {
    fn integrated(config: &TimeBridgeConfig, builder: &Builder) -> Result<Self> {
        Ok(Self::Integrated {
            attention: attention(config, &builder.pp("attention"))?,
            window: config.stable_len,
            dropout: dropout(config, builder),
        })
    }

    fn sampling(
        config: &TimeBridgeConfig,
        builder: &Builder,
        [patches, num_p]: [usize; 2],
    ) -> Result<Self> {
        let conv = |name: &str, inputs| {
            let window = ops::Window { stride: 1, padding: 0 };
            let shape = ConvShape { inputs, outputs: num_p, kernel: 1, window, groups: 1 };
            Conv1d::without_bias(&builder.pp(name), shape)
        };
        Ok(Self::Sampling {
            attention: attention(config, &builder.pp("attention"))?,
            conv1: conv("conv1", patches)?,
            conv2: conv("conv2", num_p + 1)?,
            dropout: dropout(config, builder),
        })
    }

    fn cointegrated(config: &TimeBridgeConfig, builder: &Builder, rows: usize) -> Result<Self> {
        let mixing = Self::Cointegrated {
            along_rows: attention(config, &builder.pp("attention1"))?,
            along_columns: attention(config, &builder.pp("attention2"))?,
            side: (rows as f64).sqrt().ceil() as usize,
            dropout: dropout(config, builder),
        };
        Ok(mixing)
    }

    /// Two tensors (rows of the batch, patches, `d_model`) whose sum the feed-forward part takes.
    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<(Tensor, Tensor)> {
        let flat = x.flatten_to(1)?;
        match self {
            Self::Integrated { attention, window, dropout } => {
                let trend = ops::moving_average(&flat, *window, Average::Trailing)?;
                let stable = (flat.detach() - trend)?;
                let y = attention.forward(&stable, &stable, &flat, pass)?;
                Ok((flat, dropout.forward(&y, pass)?))
            }
            Self::Sampling { attention, conv1, conv2, dropout } => {
                let across = ops::transpose_adjacent(&flat, 1)?;
                let a = conv1.forward(&across, pass)?;
                let with_mean = Tensor::cat(&[&a, &across.mean_keepdim(2)?], 2)?;
                let sampled = ops::add(&conv2.forward(&with_mean, pass)?, &a)?;
                let sampled = ops::transpose_adjacent(&sampled, 1)?;
                let y = attention.forward(&sampled, &flat, &flat, pass)?;
                Ok((y, dropout.forward(&sampled, pass)?))
            }
            Self::Cointegrated { along_rows, along_columns, side, dropout } => {
                let y = square(x, [along_rows, along_columns], *side, pass)?;
                Ok((flat, dropout.forward(&y, pass)?))
            }
        }
    }

    /// [`Mixing::forward`] in a graph of ONNX.
    fn onnx(&self, graph: &mut Graph, x: &Value) -> Result<(Value, Value)> {
        let patches = x.dims()[2].unwrap_or(1);
        let width = x.features();
        let flat = graph.shaped(x, &[patches, width]);
        match self {
            Self::Integrated { attention, window, .. } => {
                let trend = Average::Trailing.onnx(graph, &flat, *window);
                let stable = graph.sub(&flat, &trend);
                let y = attention.onnx(graph, [&stable, &stable, &flat])?;
                Ok((flat, y))
            }
            Self::Sampling { attention, conv1, conv2, .. } => {
                let across = graph.transposed(&flat, &[0, 2, 1]);
                let a = conv1.onnx(graph, &across, 0)?;
                let mean = graph.reduced("ReduceMean", &across, &[2]);
                let with_mean = graph.concatenated(&[&a, &mean], 2);
                let b = conv2.onnx(graph, &with_mean, 0)?;
                let sampled = graph.add(&b, &a);
                let sampled = graph.transposed(&sampled, &[0, 2, 1]);
                let y = attention.onnx(graph, [&sampled, &flat, &flat])?;
                Ok((y, sampled))
            }
            Self::Cointegrated { along_rows, along_columns, side, .. } => {
                let y = square_onnx(graph, x, [along_rows, along_columns], *side)?;
                Ok((flat, y))
            }
        }
    }
}

/// [`square`] in a graph of ONNX.
fn square_onnx(
    graph: &mut Graph,
    x: &Value,
    [along_rows, along_columns]: [&MultiHead; 2],
    side: usize,
) -> Result<Value> {
    let [rows, patches] = [1, 2].map(|axis| x.dims()[axis].unwrap_or(1));
    let width = x.features();
    let by_patch = graph.transposed(x, &[0, 2, 1, 3]);
    let by_patch = graph.shaped(&by_patch, &[rows, width]);
    let padded = graph.padded(&by_patch, 1, 0, side * side - rows);
    let lines = graph.shaped(&padded, &[side, width]);
    let turned = |graph: &mut Graph, lines: &Value| {
        let grid = graph.shaped(lines, &[side, side, width]);
        let grid = graph.transposed(&grid, &[0, 2, 1, 3]);
        graph.shaped(&grid, &[side, width])
    };
    let y = along_rows.onnx(graph, [&lines, &lines, &lines])?;
    let columns = turned(graph, &y);
    let y = along_columns.onnx(graph, [&columns, &columns, &columns])?;
    let y = graph.add(&y, &columns);
    let y = turned(graph, &y);
    let y = graph.shaped(&y, &[side * side, width]);
    let y = graph.narrowed(&y, 1, 0, rows);
    let y = graph.shaped(&y, &[patches, rows, width]);
    let y = graph.transposed(&y, &[0, 2, 1, 3]);
    Ok(graph.shaped(&y, &[patches, width]))
}

/// Attention among the series of each patch, laid out in a square with zeros at its end:
/// x (n, rows, patches, width) -> (n rows, patches, width).
fn square(
    x: &Tensor,
    [along_rows, along_columns]: [&MultiHead; 2],
    side: usize,
    pass: &ForwardContext,
) -> Result<Tensor> {
    let (n, rows, patches, width) = x.dims4()?;
    let grids = n * patches;
    let by_patch = ops::transpose_adjacent(x, 1)?.reshape((grids, rows, width))?;
    let padded = by_patch.pad_with_zeros(1, 0, side * side - rows)?;
    let lines = padded.reshape((grids * side, side, width))?;
    let turned = |lines: &Tensor| -> Result<Tensor> {
        let grid = lines.reshape((grids, side, side, width))?;
        ops::transpose_adjacent(&grid, 1)?.reshape((grids * side, side, width))
    };
    let columns = turned(&along_rows.forward(&lines, &lines, &lines, pass)?)?;
    let y = ops::add(&along_columns.forward(&columns, &columns, &columns, pass)?, &columns)?;
    let y = ops::narrow(&turned(&y)?.reshape((grids, side * side, width))?, 1, 0, rows)?;
    let y = ops::transpose_adjacent(&y.reshape((n, patches, rows, width))?, 1)?;
    y.reshape((n * rows, patches, width))
}

/// fc1, GELU, fc2 with a residual, between two layer norms.
struct FeedForward {
    fc1: Linear,
    fc2: Linear,
    norm1: LayerNorm,
    norm2: LayerNorm,
    inside: Dropout,
    last: Dropout,
}

impl FeedForward {
    /// With a `norm0` that is part of the state dict and of nothing else.
    fn new(config: &TimeBridgeConfig, builder: &Builder, has_norm0: bool) -> Result<Self> {
        let width = config.d_model;
        let inner = config.d_ff;
        let fc1 = Linear::new(&builder.pp("fc1"), width, inner)?;
        let fc2 = Linear::new(&builder.pp("fc2"), inner, width)?;
        if has_norm0 {
            LayerNorm::new(&builder.pp("norm0"), width)?;
        }
        Ok(Self {
            fc1,
            fc2,
            norm1: LayerNorm::new(&builder.pp("norm1"), width)?,
            norm2: LayerNorm::new(&builder.pp("norm2"), width)?,
            inside: Dropout::new(&builder.pp("dropout1"), config.dropout),
            last: Dropout::new(&builder.pp("dropout2"), config.dropout),
        })
    }

    /// The layer after its attention: `kept` and `mixed` are added first.
    fn forward(&self, kept: &Tensor, mixed: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let x = self.norm1.forward_sum(kept, mixed)?;
        let y = self.fc1.forward_activated(&x, LinearActivation::Gelu, pass)?;
        let y = self.fc2.forward(&self.inside.forward(&y, pass)?, pass)?;
        self.norm2.forward_sum(&x, &self.last.forward(&y, pass)?)
    }

    /// [`FeedForward::forward`] in a graph of ONNX.
    fn onnx(&self, graph: &mut Graph, kept: &Value, mixed: &Value) -> Result<Value> {
        let sum = graph.add(kept, mixed);
        let x = self.norm1.onnx(graph, &sum)?;
        let y = self.fc1.onnx_activated(graph, &x, LinearActivation::Gelu)?;
        let y = self.fc2.onnx(graph, &y)?;
        let sum = graph.add(&x, &y);
        self.norm2.onnx(graph, &sum)
    }
}

fn attention(config: &TimeBridgeConfig, builder: &Builder) -> Result<MultiHead> {
    let TimeBridgeConfig { d_model, n_heads, attn_dropout, .. } = *config;
    MultiHead::new(builder, PROJECTIONS, d_model, n_heads, attn_dropout)
}

fn dropout(config: &TimeBridgeConfig, builder: &Builder) -> Dropout {
    Dropout::new(&builder.pp("dropout0"), config.dropout)
}
