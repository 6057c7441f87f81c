//! Convolution, batch norm, residual and rectifier as one node of the graph.
//!
//! Between two nodes Candle adds the gradient into fresh zeros. Inside of one, the gradient of the
//! norm is at once that of the convolution.

use candle_core::{Result, Shape, Tensor, bail};

use super::geometry::Geometry;
use super::{Conv, ConvOptions};
use crate::ops::batch_norm::{Activation, BatchStatistics};
use crate::ops::chain;
use crate::ops::channel_norm::{Channels, Gate};
use crate::ops::operation::{Gradients, Input, Operation, TwoOrThree};
use crate::ops::saved::Saved;
use crate::ops::storage::{overwrite, read, tensor};
use crate::ops::sync_batch_norm::{BatchGroup, Extent};
use crate::ops::weight::Weight;

/// What is learnt, and how it is applied.
#[derive(Clone, Copy)]
pub struct ConvNorm<'a> {
    /// (co, ci / groups, kh, kw).
    pub weight: &'a Weight,
    /// Scale and shift of the norm, (co) each.
    pub affine: [&'a Weight; 2],
    /// How the convolution is made.
    pub options: ConvOptions,
    /// What follows the norm and the residual.
    pub activation: Activation,
    /// Added to the variance.
    pub eps: f64,
    /// The other parts of the batch, if statistics are those of all of them.
    pub group: Option<&'a BatchGroup>,
}

/// [`super::conv2d`] without bias, then [`crate::ops::batch_norm()`] with a residual and an
/// activation: the same bits, in one operation. Returns the statistics of the batch, too.
///
/// On a GPU, under a half precision, the result has the precision's type, and x and residual may
/// have it: operations of [`crate::ops`] take it, those of Candle may need [`crate::ops::widen`].
///
/// # Errors
///
/// Those of the two, or scale or shift that are tensors of Candle's graph.
pub fn conv_batch_norm(
    x: &Tensor,
    residual: Option<&Tensor>,
    layer: &ConvNorm<'_>,
) -> Result<(Tensor, BatchStatistics)> {
    let weight = &layer.weight.reachable([Some(x), residual], layer.affine)?;
    let layer = &ConvNorm { weight, ..*layer };
    let conv = Conv::new_2d(x, weight, None, layer.options)?;
    let g = conv.geometry;
    check(&g, residual, layer.affine)?;
    let (x, weight) = (x.contiguous()?, weight.tensor());
    #[cfg(feature = "cuda")]
    if x.device().is_cuda() {
        return super::normalised_on_gpu::conv_batch_norm(&x, residual, layer, conv);
    }
    let (between, moments) =
        read([&x, weight], |[x, weight]| Ok(conv.values_and_moments(x, weight)))?;
    let (moments, batch) = Extent::of(moments, layer.group)?;
    let statistics = moments.statistics();
    let op = Node {
        conv,
        between,
        mean: statistics.mean.clone(),
        inverse_std: statistics.inverse_std(layer.eps),
        batch,
        gamma: layer.affine[0].held()?,
        beta: layer.affine[1].held()?,
        activation: layer.activation,
    };
    Ok((chain::apply(([&x, weight], residual), op)?, statistics))
}

fn check(g: &Geometry, residual: Option<&Tensor>, affine: [&Weight; 2]) -> Result<()> {
    if affine.iter().any(|weight| weight.tensor().dims() != [g.co]) {
        bail!("{} channels with norm weights {:?}", g.co, affine[0].tensor().dims());
    }
    match residual {
        Some(residual) if residual.dims() != [g.n, g.oh, g.ow, g.co] => {
            bail!("a residual {:?} for {:?}", residual.dims(), [g.n, g.oh, g.ow, g.co])
        }
        _ => Ok(()),
    }
}

pub(super) struct Node {
    conv: Conv,
    /// What the convolution made.
    between: Saved,
    mean: Vec<f32>,
    inverse_std: Vec<f32>,
    batch: Extent,
    gamma: Weight,
    beta: Weight,
    activation: Activation,
}

impl Node {
    fn channels<'a>(&'a self, gamma: &'a [f32], beta: &'a [f32]) -> Channels<'a> {
        let Self { mean, inverse_std, activation, .. } = self;
        Channels { mean, inverse_std, gamma, beta, activation: *activation }
    }
}

impl Operation for Node {
    type Operands<T> = TwoOrThree<T>;

    const NAME: &'static str = "conv2d-batch-norm";

    fn forward(&self, (_, residual): TwoOrThree<Input<'_>>) -> Result<(Vec<f32>, Shape)> {
        let residual = residual.map(|residual| residual.values);
        let y = read([self.gamma.tensor(), self.beta.tensor()], |[gamma, beta]| {
            Ok(self.channels(gamma, beta).apply(&self.between, residual))
        })?;
        Ok((y, Shape::from(&*self.conv.shape)))
    }

    /// Over `dy`, with a residual's output `y`, the gradient of the residual.
    fn backward(
        &self,
        ([x, weight], residual): TwoOrThree<&Tensor>,
        y: &Tensor,
        dy: Tensor,
    ) -> Gradients<Self> {
        let (gamma, beta) = (self.gamma.tensor(), self.beta.tensor());
        let y = residual.map(|_| y);
        let (affine, between) =
            read([gamma, beta, y.unwrap_or(gamma)], |[gamma, beta, y_values]| {
                let gate = y.map_or(Gate::Input, |_| Gate::Output(y_values));
                let channels = self.channels(gamma, beta);
                overwrite(&dy, |dy| channels.backward(&self.between, gate, dy, &self.batch))?
            })?;
        self.beta.destination().send(affine.beta, beta)?;
        self.gamma.destination().send(affine.gamma, gamma)?;
        let gradients = match between {
            Some(gradient) => self.conv.gradients(x, weight, &tensor(gradient, dy.shape())?)?,
            None => self.conv.gradients(x, weight, &dy)?,
        };
        Ok(([gradients.dx, gradients.dw], Some(Some(dy))))
    }
}
