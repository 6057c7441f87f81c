//! `FastConformer` (Rekesh et al., 2023, <https://arxiv.org/abs/2305.05084>) as NVIDIA `NeMo`
//! writes it: mel features, eight frames to one by depthwise convolutions, then Conformer blocks.
//!
//! Keys: `pre_encode.out`, `pre_encode.conv.{0,2,3,5,6}`, `layers.{i}` (see `conformer.rs`).

use candle_core::{Device, Result, Tensor, bail};

use crate::conformer::{Block, Sizes as BlockSizes};
use crate::frames::{Frames, FramesOnnx};
use crate::nn::{Builder, Conv2d, ConvShape, Dropout, ForwardContext, Linear, Nonlinearity};
use crate::onnx::{Graph, Value};
use crate::ops::{self, Window};

/// Number of input frames per encoded frame.
pub(crate) const SUBSAMPLING_FACTOR: usize = 8;

/// [`halved`] of lengths in a graph of ONNX.
fn halved_onnx(graph: &mut Graph, lengths: &Value) -> Value {
    let one = graph.scalar(1.0);
    let more = graph.add(lengths, &one);
    let half = graph.scaled(&more, 0.5);
    graph.unary("Floor", &half, &[])
}

/// Length after a convolution of stride 2.
fn halved(length: usize) -> usize {
    length.saturating_sub(1) / 2 + usize::from(length > 0)
}

/// Sizes of an encoder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) width: usize,
    pub(crate) heads: usize,
    pub(crate) layers: usize,
    /// Kernel size of a block's convolution.
    pub(crate) kernel: usize,
    /// Channels of the subsampling convolutions.
    pub(crate) channels: usize,
    pub(crate) dropout: f64,
}

pub(crate) struct FastConformer {
    conv: [Conv2d; 5],
    out: Linear,
    layers: Vec<Block>,
    dropout: Dropout,
    width: usize,
}

impl FastConformer {
    /// For `frames` features of `mels` numbers.
    pub(crate) fn new(sizes: Sizes, builder: &Builder, [frames, mels]: [usize; 2]) -> Result<Self> {
        let Sizes { width, heads, layers, kernel, channels, dropout } = sizes;
        if !mels.is_multiple_of(SUBSAMPLING_FACTOR) {
            bail!("`n_mels` = {mels} is not a multiple of {SUBSAMPLING_FACTOR}");
        }
        let encode = builder.pp("pre_encode");
        let out = Linear::new(&encode.pp("out"), channels * mels / SUBSAMPLING_FACTOR, width)?;
        let conv = |i: usize, [inputs, kernel, groups]: [usize; 3]| {
            let window = match kernel {
                1 => Window { stride: 1, padding: 0 },
                _ => Window { stride: 2, padding: 1 },
            };
            let shape = ConvShape { inputs, outputs: channels, kernel, window, groups };
            Conv2d::new(&encode.pp("conv").pp(i), shape)
        };
        let first = [1, 3, 1];
        let small = [channels, 3, channels];
        let pointwise = [channels, 1, 1];
        let conv = [
            conv(0, first)?,
            conv(2, small)?,
            conv(3, pointwise)?,
            conv(5, small)?,
            conv(6, pointwise)?,
        ];
        let block =
            BlockSizes { width, heads, kernel, frames: frames / SUBSAMPLING_FACTOR, dropout };
        let layer = |i| Block::new(&builder.pp("layers").pp(i), block);
        Ok(Self {
            conv,
            out,
            layers: (0..layers).map(layer).collect::<Result<_>>()?,
            dropout: Dropout::new(&builder.pp("pos_enc").pp("dropout"), dropout),
            width,
        })
    }

    /// x (n, frames, mels) with their `lengths` -> (n, frames / 8, width) and the lengths of these.
    pub(crate) fn forward(
        &self,
        x: &Tensor,
        lengths: &[usize],
        pass: &ForwardContext,
    ) -> Result<(Tensor, Vec<usize>)> {
        let (x, lengths) = self.subsample(x, lengths, pass)?;
        let t = x.dim(1)?;
        let frames = Frames(lengths.clone());
        let positions = positions(t, self.width)?.to_device(x.device())?;
        let positions = self.dropout.forward(&positions, pass)?;
        let x = self.dropout.forward(&(x * (self.width as f64).sqrt())?, pass)?;
        let layer = |x, block: &Block| block.forward(&x, &positions, &frames, pass);
        Ok((self.layers.iter().try_fold(x, layer)?, lengths))
    }

    /// Subsamples by 8, without positions.
    fn subsample(
        &self,
        x: &Tensor,
        lengths: &[usize],
        pass: &ForwardContext,
    ) -> Result<(Tensor, Vec<usize>)> {
        let [first, depthwise1, pointwise1, depthwise2, pointwise2] = &self.conv;
        let mut lengths = lengths.to_vec();
        let mut x = ops::hide_padding(&x.unsqueeze(3)?, &lengths)?;
        for stage in [&[first][..], &[depthwise1, pointwise1], &[depthwise2, pointwise2]] {
            x = stage.iter().try_fold(x, |x, conv| conv.forward(&x, pass))?;
            lengths = lengths.into_iter().map(halved).collect();
            x = ops::hide_padding(&Nonlinearity::Relu.forward(&x)?, &lengths)?;
        }
        // The original's channels come before the frequencies.
        let x = ops::transpose_adjacent(&x, 2)?.flatten_from(2)?;
        Ok((self.out.forward(&x, pass)?, lengths))
    }

    /// [`FastConformer::forward`] in a graph of ONNX; `lengths` (n, 1) are numbers.
    pub(crate) fn onnx(
        &self,
        graph: &mut Graph,
        x: &Value,
        lengths: &Value,
    ) -> Result<(Value, Value)> {
        let (x, lengths) = self.subsample_onnx(graph, x, lengths)?;
        let t = x.dims()[1].unwrap_or(1);
        let frames = FramesOnnx::new(graph, &lengths, t);
        let waves = positions(t, self.width)?.flatten_all()?.to_vec1::<f32>()?;
        let positions = graph.floats(&[2 * t - 1, self.width], &waves);
        let x = graph.scaled(&x, (self.width as f64).sqrt());
        let layer = |x: Value, block: &Block| block.onnx(graph, &x, &positions, &frames);
        Ok((self.layers.iter().try_fold(x, layer)?, lengths))
    }

    fn subsample_onnx(
        &self,
        graph: &mut Graph,
        x: &Value,
        lengths: &Value,
    ) -> Result<(Value, Value)> {
        let hide = |graph: &mut Graph, x: &Value, lengths: &Value| {
            let frames = FramesOnnx::new(graph, lengths, x.dims()[1].unwrap_or(1));
            frames.hide(graph, x)
        };
        let [first, depthwise1, pointwise1, depthwise2, pointwise2] = &self.conv;
        let mut lengths = lengths.clone();
        let x = graph.unsqueezed(x, &[3]);
        let mut x = hide(graph, &x, &lengths);
        for stage in [&[first][..], &[depthwise1, pointwise1], &[depthwise2, pointwise2]] {
            x = stage.iter().try_fold(x, |x, conv| conv.onnx(graph, &x, [0; 2]))?;
            lengths = halved_onnx(graph, &lengths);
            let y = Nonlinearity::Relu.onnx(graph, &x);
            x = hide(graph, &y, &lengths);
        }
        let x = graph.transposed(&x, &[0, 1, 3, 2]);
        let x = graph.flattened(&x, 2);
        Ok((self.out.onnx(graph, &x)?, lengths))
    }
}

/// Frames (without the row of the length) and mels of a sample.
pub(crate) fn frames_and_mels(input: &[usize]) -> Result<[usize; 2]> {
    match *input {
        [2, rows, mels] if rows % SUBSAMPLING_FACTOR == 1 => Ok([rows - 1, mels]),
        _ => bail!("it takes speech: use `data.name = \"speech\"`"),
    }
}

/// Sines in even and cosines in odd columns for distances from `t` - 1 ahead to `t` - 1 behind: (2
/// t - 1, width).
fn positions(t: usize, width: usize) -> Result<Tensor> {
    let value = |distance: f64, column: usize| {
        let rate = 10_000f64.powf(-((column - column % 2) as f64) / width as f64);
        let angle = distance * rate;
        (if column.is_multiple_of(2) { angle.sin() } else { angle.cos() }) as f32
    };
    let rows = (0..2 * t - 1).map(|row| (t - 1) as f64 - row as f64);
    let values: Vec<f32> =
        rows.flat_map(|distance| (0..width).map(move |c| value(distance, c))).collect();
    Tensor::from_vec(values, (2 * t - 1, width), &Device::Cpu)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_those_of_nemo() {
        let row = positions(5, 24).unwrap().narrow(0, 0, 1).unwrap();
        let row = row.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        for (found, expected) in
            row.iter().zip([-0.756_802_5, -0.653_643_6, 0.959_425_4, -0.281_962_75])
        {
            assert!((found - expected).abs() < 1e-6, "{found}");
        }
    }

    #[test]
    fn lengths_are_halved_as_convolutions_do_it() {
        assert_eq!([0, 1, 2, 3, 96, 97].map(halved), [0, 1, 1, 2, 48, 49]);
    }
}
