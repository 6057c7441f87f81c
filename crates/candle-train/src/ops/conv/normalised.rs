//! Convolution, batch norm, residual and rectifier as one node of the graph.
//!
//! Between two nodes Candle adds the gradient into fresh zeros. Inside of one, the gradient of the
//! norm is at once that of the convolution.

use candle_core::{Result, Shape, Tensor, bail};

use super::geometry::Geometry;
use super::{Conv, ConvOptions};
use crate::ops::batch_norm::{Activation, BatchGroup, BatchStatistics, HostNorm};
use crate::ops::chain;
use crate::ops::half_precision::with_type_of;
use crate::ops::operation::Backward;
use crate::ops::saved::Saved;
use crate::ops::storage::{read, read_numbers};
use crate::ops::weight::Weight;

/// Weights of a convolution and its norm, and the options of both.
#[derive(Clone, Copy)]
pub struct ConvNorm<'a> {
    /// (co, ci / groups, kh, kw).
    pub weight: &'a Weight,
    /// Scale and shift of the norm, (co) each.
    pub affine: [&'a Weight; 2],
    /// Options of the convolution.
    pub options: ConvOptions,
    /// Activation after the norm and the residual.
    pub activation: Activation,
    /// Added to the variance.
    pub eps: f64,
    /// The other parts of the batch, if statistics are those of all of them.
    pub group: Option<&'a BatchGroup>,
}

/// [`super::conv2d`] without bias, then [`crate::ops::batch_norm()`] with a residual and an
/// activation: the same bits, in one operation. Returns the statistics of the batch, too.
///
/// Under bf16, and on a GPU under fp16, the result has the precision's type, and x and residual may
/// have it: operations of [`crate::ops`] take it, those of Candle may need [`crate::ops::widen()`].
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
    let x = x.contiguous()?;
    let weight = weight.tensor();
    #[cfg(feature = "cuda")]
    if x.device().is_cuda() {
        return super::on_gpu::conv_batch_norm(&x, residual, layer, conv);
    }
    let (between, moments) = read([weight], |[weight]| {
        read_numbers([&x], |[x]| Ok(conv.values_and_moments(x, weight)))
    })?;
    let ConvNorm { affine: [gamma, beta], activation, eps, group, .. } = *layer;
    let (norm, statistics) = HostNorm::of_batch(moments, group, eps, beta, activation)?;
    let node = Node { conv, between, norm, gamma: gamma.held()? };
    let residual = residual.map(Tensor::contiguous).transpose()?;
    let result = (node.output(residual.as_ref())?.storage(), Shape::from(&*node.conv.shape));
    let operands: Vec<&Tensor> = [&x, weight].into_iter().chain(&residual).collect();
    Ok((chain::node(&operands, result, Box::new(node))?, statistics))
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

struct Node {
    conv: Conv,
    /// Result of the convolution.
    between: Saved,
    norm: HostNorm,
    gamma: Weight,
}

impl Node {
    fn output(&self, residual: Option<&Tensor>) -> Result<Saved> {
        self.norm.output(self.between.numbers(), self.gamma.tensor(), residual)
    }
}

impl Backward for Node {
    fn name(&self) -> &'static str {
        "conv2d-batch-norm"
    }

    fn backward(
        &self,
        operands: &[&Tensor],
        y: &Tensor,
        dy: &Tensor,
    ) -> Result<Vec<Option<Tensor>>> {
        let [x, weight, residual @ ..] = operands else {
            bail!("{} of {} operands", self.name(), operands.len())
        };
        let residual = residual.first();
        let dy = dy.contiguous()?;
        let y = residual.map(|_| y);
        let gamma = self.gamma.tensor();
        let (of_gamma, between) = self.norm.backward(self.between.numbers(), gamma, y, &dy)?;
        self.gamma.destination().send(of_gamma, gamma)?;
        let gradients = self.conv.gradients(x, weight, between.as_ref().unwrap_or(&dy))?;
        let of_residual = residual.map(|residual| with_type_of(&dy, residual)).transpose()?;
        Ok(vec![gradients.dx, gradients.dw, of_residual])
    }
}
