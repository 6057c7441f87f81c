//! Batch normalisation with the statistics of the batch or of the training data, on the GPU.

use candle_core::{CudaStorage, Result, Shape, Tensor, Var, bail};

use super::sync::{BatchGroup, Extent, Moments};
use super::{Activation, BatchStatistics, RunningStatistics};
use crate::ops::chain;
use crate::ops::cuda::{
    self, Address, Cast, Columns, Gate, Gpu, batch_statistics, cast, cast_tensor,
    inverse_deviation, of_tensor, wrap,
};
use crate::ops::operation::{Gradients, OnGpu, Operation, TwoOrThree};
use crate::ops::weight::{Destination, Weight};

/// The normalisation of (rows, c) values with statistics that are known.
pub(in crate::ops) struct DeviceNorm {
    mean: Tensor,
    inverse_std: Tensor,
    rectified: bool,
    rows: usize,
    c: usize,
    /// The batch that the statistics were taken of, if it has more than these rows.
    joint: Option<Extent>,
}

/// Gradients of a normalisation.
pub(in crate::ops) struct DeviceGradients {
    pub(in crate::ops) gamma: Tensor,
    pub(in crate::ops) beta: Tensor,
    /// In x's type.
    pub(in crate::ops) x: CudaStorage,
}

impl DeviceNorm {
    /// With the statistics of x (rows, c), or of all parts of the batch; they are returned too.
    pub(in crate::ops) fn of_batch(
        gpu: &Gpu,
        x: Address,
        (rows, c): (usize, usize),
        activation: Activation,
        eps: f64,
        group: Option<&BatchGroup>,
    ) -> Result<(Self, BatchStatistics)> {
        let batch = batch_statistics(gpu, x, (rows, c), eps)?;
        let [mut mean, mut variance, mut inverse_std] =
            [batch.mean, batch.variance, batch.inverse_std].map(|storage| wrap(storage, c));
        let mut of_rows = rows;
        let mut joint = None;
        if group.is_some() {
            let parts = [mean.to_vec1::<f32>()?, variance.to_vec1::<f32>()?];
            let (all, extent) = Extent::of(moments(rows, &parts), group)?;
            let BatchStatistics { mean: means, variance: variances, .. } = all.statistics();
            mean = Tensor::from_vec(means, c, mean.device())?;
            variance = Tensor::from_vec(variances, c, mean.device())?;
            inverse_std = wrap(inverse_deviation(gpu, of_tensor(&variance)?, eps, c)?, c);
            of_rows = extent.rows;
            joint = Some(extent);
        } else if rows < 2 {
            bail!("batch normalisation needs more than one value per channel to train, got {rows}");
        }
        let rectified = activation == Activation::Relu;
        let statistics = BatchStatistics::on_gpu([mean.clone(), variance], of_rows);
        Ok((Self { mean, inverse_std, rectified, rows, c, joint }, statistics))
    }

    fn columns(&self, [gamma, beta]: [&Tensor; 2], gate: Gate) -> Result<Columns> {
        Ok(Columns {
            mean: of_tensor(&self.mean)?,
            inverse_std: of_tensor(&self.inverse_std)?,
            gamma: of_tensor(gamma)?,
            beta: of_tensor(beta)?,
            gate: if self.rectified { gate } else { Gate::Open },
        })
    }

    /// activation(gamma (x - mean) / std + beta + residual), in x's type.
    pub(in crate::ops) fn apply(
        &self,
        gpu: &Gpu,
        x: Address,
        affine: [&Tensor; 2],
        residual: Option<&Tensor>,
    ) -> Result<CudaStorage> {
        let of_x = |residual: &Tensor| cast(gpu, of_tensor(residual)?, x.dtype, self.rows * self.c);
        let residual = residual.map(of_x).transpose()?;
        let residual = residual.as_ref().map(Cast::address).transpose()?;
        self.columns(affine, Gate::Norm)?.apply(gpu, x, residual, (self.rows, self.c))
    }

    /// Gradients, of which that of x is in its type, as `dy` is. `y` is the output, if there was a
    /// residual; then the residual's gradient is written over `dy`.
    pub(in crate::ops) fn backward(
        &self,
        gpu: &Gpu,
        x: Address,
        [gamma, beta]: [&Tensor; 2],
        y: Option<&Tensor>,
        dy: &Tensor,
    ) -> Result<DeviceGradients> {
        let gate = y.map(of_tensor).transpose()?.map_or(Gate::Norm, Gate::Output);
        let columns = self.columns([gamma, beta], gate)?;
        let sizes = (self.rows, self.c);
        let dy = of_tensor(dy)?;
        let totals = columns.sums(gpu, x, dy, sizes)?;
        let mut slopes = wrap(totals.slopes, 3 * self.c);
        let sums = [totals.gamma, totals.beta].map(|storage| wrap(storage, self.c));
        if let Some(joint) = &self.joint {
            slopes = self.joint_slopes(gamma, &sums, joint)?;
        }
        let x = columns.pull(gpu, x, dy, of_tensor(&slopes)?, sizes)?;
        let [gamma, beta] = sums;
        Ok(DeviceGradients { gamma, beta, x })
    }

    /// The slopes that the kernel computes from these rows' `sums`, from those of all parts of the batch.
    fn joint_slopes(&self, gamma: &Tensor, sums: &[Tensor; 2], joint: &Extent) -> Result<Tensor> {
        let host = |tensor: &Tensor| -> Result<Vec<f64>> {
            Ok(tensor.to_vec1::<f32>()?.into_iter().map(f64::from).collect())
        };
        let mine = [host(&sums[0])?, host(&sums[1])?].concat();
        let all = joint.sum(mine)?;
        let (of_gamma, of_beta) = all.split_at(self.c);
        let inverse = host(&self.inverse_std)?;
        let gamma = host(gamma)?;
        let rows = joint.rows as f64;
        let scale: Vec<f64> = inverse.iter().zip(gamma).map(|(inverse, g)| inverse * g).collect();
        let slope = scale.iter().zip(&inverse).zip(of_gamma);
        let slope = slope.map(|((scale, inverse), sum)| -scale * inverse * sum / rows);
        let shift = scale.iter().zip(of_beta).map(|(scale, sum)| -scale * sum / rows);
        let slopes = scale.iter().copied().chain(slope).chain(shift);
        let slopes: Vec<f32> = slopes.map(|slope| slope as f32).collect();
        Tensor::from_vec(slopes, 3 * self.c, sums[0].device())
    }
}

fn moments(rows: usize, [mean, variance]: &[Vec<f32>; 2]) -> Moments {
    let channel =
        |(mean, variance): (&f32, &f32)| [f64::from(*mean), f64::from(*variance) * rows as f64];
    Moments { rows, channels: mean.iter().zip(variance).map(channel).collect() }
}

/// [`crate::ops::batch_norm()`] and, with a group, [`crate::ops::sync_batch_norm()`] on a GPU; x (..., c) is
/// contiguous.
pub(super) fn batch_norm(
    x: &Tensor,
    [gamma, beta]: [&Weight; 2],
    residual: Option<&Tensor>,
    activation: Activation,
    eps: f64,
    group: Option<&BatchGroup>,
) -> Result<(Tensor, BatchStatistics)> {
    let c = gamma.tensor().elem_count();
    let gpu = Gpu::of_tensor(x)?;
    let sizes = (x.elem_count() / c, c);
    let x_at = of_tensor(x)?;
    let (norm, statistics) = DeviceNorm::of_batch(&gpu, x_at, sizes, activation, eps, group)?;
    Ok((apply(x, gamma, beta, residual, norm, true)?, statistics))
}

/// [`crate::ops::batch_norm_running()`] on a GPU; x (..., c) is contiguous.
pub(super) fn batch_norm_running(
    x: &Tensor,
    [gamma, beta]: [&Weight; 2],
    residual: Option<&Tensor>,
    activation: Activation,
    eps: f64,
    running: RunningStatistics<'_>,
) -> Result<Tensor> {
    let c = gamma.tensor().elem_count();
    let gpu = Gpu::of_tensor(x)?;
    let inverse_std = wrap(inverse_deviation(&gpu, of_tensor(running.variance)?, eps, c)?, c);
    let norm = DeviceNorm {
        mean: running.mean.detach(),
        inverse_std,
        rectified: activation == Activation::Relu,
        rows: x.elem_count() / c,
        c,
        joint: None,
    };
    apply(x, gamma, beta, residual, norm, false)
}

/// Moves `running` mean and variance towards `columns`, each times its scale, by the share
/// `momentum`.
pub(super) fn move_running(
    running: [&Var; 2],
    columns: &[Tensor; 2],
    scales: [f64; 2],
    momentum: f64,
) -> Result<()> {
    let gpu = Gpu::of_tensor(&columns[0])?;
    let c = columns[0].elem_count();
    let pairs = [[&columns[0], &columns[1]], [&columns[1], &columns[0]]];
    for ((running, [own, other]), scale) in running.into_iter().zip(pairs).zip(scales) {
        let statistics = [of_tensor(own)?, of_tensor(other)?];
        cuda::move_running(&gpu, of_tensor(running)?, statistics, momentum, scale, c)?;
    }
    Ok(())
}

fn apply(
    x: &Tensor,
    gamma: &Weight,
    beta: &Weight,
    residual: Option<&Tensor>,
    norm: DeviceNorm,
    learns: bool,
) -> Result<Tensor> {
    let beta = beta.held()?;
    let d_gamma = gamma.destination();
    chain::apply(([x, gamma.tensor()], residual), DeviceBatchNorm { norm, beta, d_gamma, learns })
}

struct DeviceBatchNorm {
    norm: DeviceNorm,
    beta: Weight,
    d_gamma: Destination,
    /// True in training, where gradients flow.
    learns: bool,
}

impl Operation for DeviceBatchNorm {
    type Operands<T> = TwoOrThree<T>;

    const NAME: &'static str = "batch-norm";

    fn backward(&self, _: TwoOrThree<&Tensor>, _: &Tensor, _: Tensor) -> Gradients<Self> {
        bail!("a batch norm that was made for the GPU")
    }
}

/// The result has x's type.
impl OnGpu for DeviceBatchNorm {
    fn takes_half(&self) -> bool {
        true
    }

    fn forward_on(
        &self,
        gpu: &Gpu,
        ([x, gamma], residual): TwoOrThree<&Tensor>,
    ) -> Result<(CudaStorage, Shape)> {
        let y = self.norm.apply(gpu, of_tensor(x)?, [gamma, self.beta.tensor()], residual)?;
        Ok((y, x.shape().clone()))
    }

    /// Over `dy` the gradient of the residual.
    fn backward_on(
        &self,
        gpu: &Gpu,
        ([x, gamma], residual): TwoOrThree<&Tensor>,
        y: &Tensor,
        dy: Tensor,
    ) -> Gradients<Self> {
        if !self.learns {
            bail!("no gradient flows through a batch norm that is being evaluated");
        }
        let beta = self.beta.tensor();
        let at = of_tensor(x)?;
        let y = residual.map(|_| y);
        let gradients = self.norm.backward(gpu, at, [gamma, beta], y, &dy)?;
        self.beta.destination().send_tensor(gradients.beta, beta)?;
        let of_gamma = self.d_gamma.send_tensor(gradients.gamma, gamma)?;
        let of_residual = residual.map(|residual| cast_tensor(gpu, &dy, residual.dtype()));
        Ok(([Some(wrap(gradients.x, x.shape())), of_gamma], of_residual.transpose()?.map(Some)))
    }
}
