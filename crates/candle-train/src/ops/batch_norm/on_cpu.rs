//! A batch norm with its statistics, over numbers in the CPU's memory, f32 or bf16: what a norm
//! alone and that of a convolution have in common.

use candle_core::{Device, Result, Tensor, bail};

use super::channel_norm::{AffineGradient, Channels, Gate};
use super::sync::{BatchGroup, Extent, Moments};
use super::{Activation, BatchStatistics, RunningStatistics};
use crate::ops::element::{Element, Numbers};
use crate::ops::saved::Saved;
use crate::ops::storage::{overwrite, read, read_numbers, read_of};
use crate::ops::weight::Weight;

/// Normalises, scales, shifts, adds a residual, and rectifies if it is told to.
pub(in crate::ops) struct HostNorm {
    mean: Vec<f32>,
    inverse_std: Vec<f32>,
    beta: Weight,
    activation: Activation,
    /// The batch that the statistics were taken of; `None` of those of the training data.
    batch: Option<Extent>,
}

impl HostNorm {
    /// With the statistics of the batch, which are returned too: of the rows with these moments,
    /// or, with a group, of those of all its parts.
    pub(in crate::ops) fn of_batch(
        moments: Moments,
        group: Option<&BatchGroup>,
        eps: f64,
        beta: &Weight,
        activation: Activation,
    ) -> Result<(Self, BatchStatistics)> {
        let (moments, batch) = Extent::of(moments, group)?;
        let statistics = moments.statistics();
        let mean = statistics.mean.clone();
        let inverse_std = statistics.inverse_std(eps);
        let beta = beta.held()?;
        let batch = Some(batch);
        Ok((Self { mean, inverse_std, beta, activation, batch }, statistics))
    }

    /// With the statistics of the training data.
    pub(super) fn running(
        running: RunningStatistics<'_>,
        eps: f64,
        beta: &Weight,
        activation: Activation,
    ) -> Result<Self> {
        let inverse = |v: f32| (1.0 / (f64::from(v) + eps).sqrt()) as f32;
        Ok(Self {
            mean: running.mean.to_vec1()?,
            inverse_std: running.variance.to_vec1::<f32>()?.into_iter().map(inverse).collect(),
            beta: beta.held()?,
            activation,
            batch: None,
        })
    }

    fn channels<'a>(&'a self, gamma: &'a [f32], beta: &'a [f32]) -> Channels<'a> {
        let Self { mean, inverse_std, activation, .. } = self;
        Channels { mean, inverse_std, gamma, beta, activation: *activation }
    }

    /// activation(gamma (x - mean) / std + beta + residual), of the type of x.
    pub(in crate::ops) fn output(
        &self,
        x: Numbers<'_>,
        gamma: &Tensor,
        residual: Option<&Tensor>,
    ) -> Result<Saved> {
        read([gamma, self.beta.tensor()], |[gamma, beta]| {
            let channels = self.channels(gamma, beta);
            let apply = |residual: Option<Numbers<'_>>| match x {
                Numbers::F32(x) => Saved::F32(channels.apply(x, residual)),
                Numbers::Bf16(x) => Saved::Bf16(channels.apply(x, residual)),
            };
            match residual {
                None => Ok(apply(None)),
                Some(residual) => read_numbers([residual], |[residual]| Ok(apply(Some(residual)))),
            }
        })
    }

    /// The gradients of scale and shift, of which that of the shift is sent off, and that of x, of
    /// which `None` says that it is over `dy`. `y` is the output where a residual was added: the
    /// residual's gradient is then over `dy`.
    pub(in crate::ops) fn backward(
        &self,
        x: Numbers<'_>,
        gamma: &Tensor,
        y: Option<&Tensor>,
        dy: &Tensor,
    ) -> Result<(Vec<f32>, Option<Tensor>)> {
        let (affine, dx) = match x {
            Numbers::F32(x) => self.gradients(x, gamma, y, dy),
            Numbers::Bf16(x) => self.gradients(x, gamma, y, dy),
        }?;
        self.beta.destination().send(affine.beta, self.beta.tensor())?;
        Ok((affine.gamma, dx))
    }

    fn gradients<E: Element>(
        &self,
        x: &[E],
        gamma: &Tensor,
        y: Option<&Tensor>,
        dy: &Tensor,
    ) -> Result<(AffineGradient, Option<Tensor>)> {
        let Some(batch) = &self.batch else {
            bail!("no gradient flows through a batch norm that is being evaluated");
        };
        read([gamma, self.beta.tensor()], |[gamma, beta]| {
            let backward = |gate: Gate<'_, E>| {
                overwrite(dy, |dy| self.channels(gamma, beta).backward(x, gate, dy, batch))?
            };
            let (affine, dx) = match y {
                None => backward(Gate::Input),
                Some(y) => read_of([y], |[y]| backward(Gate::Output(y))),
            }?;
            let tensor = |values| Tensor::from_vec(values, dy.shape(), &Device::Cpu);
            Ok((affine, dx.map(tensor).transpose()?))
        })
    }
}
