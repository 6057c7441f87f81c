//! Batch normalisation layer, NHWC.

use candle_core::{Result, Tensor};

use super::{Buffer, Builder, Conv2d, Counter, ForwardContext, Init, Mode, Param, Track};
use crate::onnx::{Graph, Value};
use crate::ops::{self, Activation, BatchStatistics, ConvNorm, RunningStatistics};

/// PyTorch's default of `eps`.
const EPS: f64 = 1e-5;
/// PyTorch's default of `momentum`.
const MOMENTUM: f64 = 0.1;

/// `torch.nn.BatchNorm2d` over NHWC activations, fused with a residual and an activation.
///
/// Normalises with the biased variance of the batch; the running variance learns the unbiased one,
/// with momentum 0.1 unless told otherwise. Statistics are those of one pass on one rank, or of the
/// batch that [`ForwardContext::sync_batchnorm`] says that it is a part of.
pub struct BatchNorm2d {
    weight: Param,
    bias: Param,
    running_mean: Buffer,
    running_var: Buffer,
    num_batches_tracked: Counter,
    eps: f64,
    momentum: f64,
}

impl BatchNorm2d {
    /// Registers `weight` (all `gamma`), `bias` (0), `running_mean` (0), `running_var` (1),
    /// `num_batches_tracked`. Each channel has `rows` values in one sample: height times width of
    /// an image, one of a vector; so a plan knows whether a pass has enough of them.
    pub fn new(builder: &Builder, channels: usize, rows: usize, gamma: f64) -> Result<Self> {
        builder.needs_statistics_of(rows);
        Ok(Self {
            weight: builder.param("weight", &[channels], Init::Constant(gamma))?,
            bias: builder.param("bias", &[channels], Init::Constant(0.0))?,
            running_mean: builder.buffer("running_mean", &[channels], 0.0)?,
            running_var: builder.buffer("running_var", &[channels], 1.0)?,
            num_batches_tracked: builder.counter("num_batches_tracked"),
            eps: EPS,
            momentum: MOMENTUM,
        })
    }

    /// Sets the number that is added to the variance, and the share by which running statistics move.
    #[must_use]
    pub fn with_options(self, eps: f64, momentum: f64) -> Self {
        Self { eps, momentum, ..self }
    }

    /// activation(norm(x) + residual); x and residual (n, h, w, c). The result has the type of x,
    /// which may be half precision ([`ops::widen`] makes it f32).
    pub fn forward(
        &self,
        x: &Tensor,
        residual: Option<&Tensor>,
        activation: Activation,
        pass: &ForwardContext,
    ) -> Result<Tensor> {
        let affine = [&self.weight.weight()?, &self.bias.weight()?];
        match pass.mode {
            Mode::Train { track, .. } => {
                let group = pass.sync_batchnorm.as_ref();
                let (y, batch) =
                    ops::sync_batch_norm(x, affine, residual, activation, self.eps, group)?;
                self.track(&batch, track)?;
                Ok(y)
            }
            Mode::Eval => {
                let running = RunningStatistics {
                    mean: self.running_mean.var()?,
                    variance: self.running_var.var()?,
                };
                ops::batch_norm_running(x, affine, residual, activation, self.eps, running)
            }
        }
    }

    /// activation(norm(conv(x)) + residual); while training, as one operation if `conv` has no
    /// bias. Under bf16 the result may be bf16, and on a GPU under fp16 f16 ([`ops::widen`] makes
    /// it f32).
    pub fn after(
        &self,
        conv: &Conv2d,
        x: &Tensor,
        residual: Option<&Tensor>,
        activation: Activation,
        pass: &ForwardContext,
    ) -> Result<Tensor> {
        if let Mode::Train { track, .. } = pass.mode
            && let Some((weight, options)) = conv.parts(pass)?
        {
            let affine = [&self.weight.weight()?, &self.bias.weight()?];
            let group = pass.sync_batchnorm.as_ref();
            let layer =
                ConvNorm { weight: &weight, affine, options, activation, eps: self.eps, group };
            let (y, batch) = ops::conv_batch_norm(x, residual, &layer)?;
            self.track(&batch, track)?;
            return Ok(y);
        }
        self.forward(&conv.autocast(x, pass)?, residual, activation, pass)
    }

    /// activation(norm(x)) in a graph of ONNX, by the running statistics.
    pub fn onnx(&self, graph: &mut Graph, x: &Value, activation: Activation) -> Result<Value> {
        let scale = self.weight.onnx(graph)?;
        let shift = self.bias.onnx(graph)?;
        let mean = self.running_mean.onnx(graph)?;
        let variance = self.running_var.onnx(graph)?;
        let y = graph.batch_norm(x, [&scale, &shift, &mean, &variance], self.eps);
        Ok(activated(graph, y, activation))
    }

    /// The batches of an average are not those that `num_batches_tracked` counts, which are the
    /// training's.
    fn track(&self, batch: &BatchStatistics, track: Track) -> Result<()> {
        let running = [self.running_mean.var()?, self.running_var.var()?];
        match track {
            Track::Nothing => Ok(()),
            Track::Momentum => {
                self.num_batches_tracked.increment();
                batch.move_running(running, self.momentum)
            }
            Track::Average(n) => batch.move_running(running, 1.0 / n as f64),
        }
    }
}

/// Adds the activation after a norm to a graph of ONNX.
fn activated(graph: &mut Graph, x: Value, activation: Activation) -> Value {
    match activation {
        Activation::Identity => x,
        Activation::Relu => graph.unary("Relu", &x, &[]),
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::Precision;
    use crate::rng::{Key, Purpose};

    #[test]
    fn running_statistics_follow_pytorch_and_only_when_asked() -> Result<()> {
        let builder = Builder::new(1);
        let norm = BatchNorm2d::new(&builder, 1, 4, 1.0)?;
        let params = builder.finish();
        // torch.nn.BatchNorm2d(1) over [1, 2, 3, 6]: mean 3, unbiased variance 14/3.
        let x = Tensor::new(&[1f32, 2.0, 3.0, 6.0], &Device::Cpu)?.reshape((1, 2, 2, 1))?;
        let key = Key::new(1, Purpose::Dropout, 0, 0);
        let mut pass = ForwardContext::train(key, Precision::Fp32);
        norm.forward(&x, None, Activation::Identity, &pass)?;
        let buffer = |i: usize| params.buffers()[i].var()?.to_vec1::<f32>();
        assert_eq!((buffer(0)?, buffer(1)?), (vec![0.3], vec![0.9 + 0.466_666_67]));
        pass.mode = Mode::Train { key, track: Track::Nothing };
        norm.forward(&x, None, Activation::Identity, &pass)?;
        norm.forward(&x, None, Activation::Identity, &ForwardContext::eval(Precision::Fp32))?;
        assert_eq!((buffer(0)?[0], params.counters()[0].get()), (0.3, 1));
        for (n, x) in [(1, x.clone()), (2, (&x + 1.0)?)] {
            pass.mode = Mode::Train { key, track: Track::Average(n) };
            norm.forward(&x, None, Activation::Identity, &pass)?;
        }
        // Running statistics with `momentum=None`.
        assert_eq!((buffer(0)?, buffer(1)?), (vec![3.5], vec![4.666_666_5]));
        Ok(())
    }
}
